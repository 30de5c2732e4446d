"""alpha-CROWN for a hidden layer: the lines below it chosen for its own bounds."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lipgraft.bounds.alpha_settings import AlphaSettings
from lipgraft.bounds.backward import Relaxed
from lipgraft.bounds.geometry import Plan
from lipgraft.bounds.interval import Interval
from lipgraft.bounds.neurons import neuron_bounds
from lipgraft.bounds.relaxations import Lines, relax
from lipgraft.network.graph import Activation, Network


def optimised_bounds(
    network: Network,
    path: Plan,
    intervals: list[Interval],
    problems: slice,
    index: Tensor,
    signs: Tensor,
    settings: AlphaSettings,
) -> Tensor:
    """Lower bounds of sign * neuron, as `neuron_bounds`: the best of all steps, (B, G, S).

    All neurons of a group share the lines below them: lines for each neuron would not fit into memory.
    """
    acts = {i: act for i, act in network.activations() if i in path.windows and i < path.target}
    pre = {i: tuple(end[problems] for end in intervals[act.inputs[0]]) for i, act in acts.items()}
    lower, upper = intervals[path.root]
    root = (lower[problems], upper[problems])
    groups = [_one_group(network, path, acts, pre, root, index, sign, settings) for sign in torch.split(signs, 1, 1)]
    return torch.cat(groups, 1)


def _one_group(
    network: Network,
    path: Plan,
    acts: Mapping[int, Activation],
    pre: Mapping[int, tuple[Tensor, ...]],
    root: Interval,
    index: Tensor,
    signs: Tensor,
    settings: AlphaSettings,
) -> Tensor:
    if not acts:  # nothing below that could be chosen
        return neuron_bounds(network, path, Relaxed({}, root), index, signs)
    alphas = {i: act.curve.start(*pre[i]).requires_grad_() for i, act in acts.items()}
    optimiser = torch.optim.Adam(alphas.values(), lr=settings.lr)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimiser, settings.decay)
    best: Tensor | None = None
    for _ in range(settings.intermediate):
        with torch.enable_grad():
            lines: dict[int, Lines] = {i: relax(act, pre[i][0], pre[i][1], alphas[i]) for i, act in acts.items()}
            bound = neuron_bounds(network, path, Relaxed(lines, root), index, signs)
            optimiser.zero_grad()
            bound.sum().neg().backward()  # type: ignore[no-untyped-call]
        best = bound.detach() if best is None else torch.maximum(best, bound.detach())
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            for alpha in alphas.values():
                alpha.clamp_(0, 1)
    assert best is not None
    return best
