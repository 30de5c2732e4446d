"""alpha-CROWN: choose the free lines of the relaxation so that the lower bound is as high as possible."""

from __future__ import annotations

import torch
from torch import Tensor

from lipgraft.bounds.adam import Adam
from lipgraft.bounds.alpha_settings import AlphaSettings
from lipgraft.bounds.crown import Prepared, specification_bounds
from lipgraft.bounds.memory import Late, never
from lipgraft.bounds.relaxations import Lines, relax, unstable


def alpha_crown(
    prepared: Prepared, C: Tensor, settings: AlphaSettings, late: Late = never
) -> tuple[Tensor, dict[int, Tensor]]:
    """Lower bounds of C f(x), the best seen, hence never worse than CROWN's; and the lines' parameters that gave them.

    C: (B, G, S, n) -> (B, G, S), {activation position: alpha (k, B, G, S, *shape)}. Each row has lines of its own.
    late: asked before every step; once it holds, no more are taken.
    """
    network = prepared.network
    alphas: dict[int, Tensor] = {}
    for i, node in network.activations():
        if i > network.output:
            continue
        lb, ub = prepared.intervals[node.inputs[0]]
        if bool(unstable(node, lb, ub).any()):
            start = node.curve.start(lb, ub)[:, :, None, None]
            alphas[i] = start.repeat(1, 1, *C.shape[1:3], *[1] * len(node.shape))
    best = specification_bounds(prepared, C)
    kept = dict(alphas)
    climb, lr = {i: Adam(a) for i, a in alphas.items()}, settings.lr
    for _ in range(settings.iterations if alphas else 0):
        if late():
            break
        free = {i: a.detach().requires_grad_() for i, a in alphas.items()}
        with torch.enable_grad():
            bound = specification_bounds(prepared, C, lines_for(prepared, free))
            gradients = torch.autograd.grad(bound.sum(), list(free.values()), materialize_grads=True)
        better = bound.detach() > best
        best = torch.where(better, bound.detach(), best)
        for (i, a), gradient in zip(alphas.items(), gradients, strict=True):
            kept[i] = torch.where(better[None].reshape(1, *better.shape, *[1] * (a.ndim - 4)), a, kept[i])
            alphas[i] = (a + lr * climb[i].direction(gradient)).clamp(0, 1)
        lr *= settings.decay
    return best, kept


def lines_for(prepared: Prepared, alphas: dict[int, Tensor]) -> dict[int, Lines]:
    """The lines of every activation, with these parameters where given."""
    lines = dict(prepared.lines)
    for i, alpha in alphas.items():
        node = prepared.network.nodes[i]
        lb, ub = prepared.intervals[node.inputs[0]]
        lines[i] = relax(node, lb[:, None, None], ub[:, None, None], alpha)  # type: ignore[arg-type]
    return lines
