"""alpha-CROWN for a hidden layer: the lines below it chosen for its own bounds."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lipgraft.bounds.adam import Adam
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
    acts = {i: act for i, act in network.activations() if i in path.windows and i <= path.target}
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
    alphas = {i: act.curve.start(*pre[i]) for i, act in acts.items()}
    climb, lr = {i: Adam(a) for i, a in alphas.items()}, settings.lr
    best: Tensor | None = None
    for _ in range(settings.intermediate):
        free = {i: a.detach().requires_grad_() for i, a in alphas.items()}
        with torch.enable_grad():
            lines: dict[int, Lines] = {i: relax(act, pre[i][0], pre[i][1], free[i]) for i, act in acts.items()}
            bound = neuron_bounds(network, path, Relaxed(lines, root), index, signs)
            gradients = torch.autograd.grad(bound.sum(), list(free.values()), materialize_grads=True)
        best = bound.detach() if best is None else torch.maximum(best, bound.detach())
        for (i, a), gradient in zip(alphas.items(), gradients, strict=True):
            alphas[i] = (a + lr * climb[i].direction(gradient)).clamp(0, 1)
        lr *= settings.decay
    assert best is not None
    return best
