"""Interval bounds behind lines, with the way through the lines taken in one step.

Between two layers W and V a grafted neuron is a line of slope g. Layer by layer the spread of V g W x is |V| |g| |W| r;
but that is one affine map, whose spread is |V g W| r, which is less. So the rows of a vector's neurons, and of the
margins, go back through lines as they are, as far as lines lead, and meet intervals only where a neuron is bent. Lines
are the same for all images, and so are the rows: they are computed once per step.

Convolutions keep their own bounds. Lines stand at single neurons with slopes of their own, so behind them every neuron
of an image has another row, and these rows would be the largest tensors of a step.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.network.graph import Activation, Affine, Linear, Network
from lipgraft.training.intervals import ball_step
from lipgraft.training.task import Ball


def folded_margins(network: Network, balls: list[Ball], y: Tensor, shrink: float = 1.0) -> Tensor:
    """Lower bounds of f_y - f_j, (B, n), 0 at j = y; never below `margin_bounds` but for rounding.

    balls: of all nodes, by interval arithmetic layer by layer; shrink: what they were computed with.
    """
    balls = _folded(network, balls, shrink)
    centre, own = balls[network.output][0], y[:, None]
    (classes,) = network.output_shape
    one = torch.eye(classes, dtype=centre.dtype, device=centre.device)
    apart = _spread(network, network.output, (one[:, None] - one).flatten(0, 1), balls)  # of each pair of classes
    apart = apart.view(-1, classes, classes).gather(1, own[:, :, None].expand(-1, 1, classes)).squeeze(1)
    return centre.gather(1, own) - centre - apart


def _folded(network: Network, balls: list[Ball], shrink: float) -> list[Ball]:
    """The balls with those of linear layers that lines lead to made smaller, and of what comes after them."""
    out: list[Ball] = []
    behind, changed = [False] * len(network.nodes), [False] * len(network.nodes)
    for i, node in enumerate(network.nodes):
        behind[i] = any(behind[k] for k in node.inputs) or (isinstance(node, Activation) and node.graft is not None)
        folds = behind[i] and isinstance(node, Linear) and i != network.output
        changed[i] = folds or any(changed[k] for k in node.inputs)
        ball = ball_step(node, [out[k] for k in node.inputs], shrink) if changed[i] else balls[i]
        if folds:
            one = torch.eye(node.shape[0], dtype=ball[0].dtype, device=ball[0].device)
            ball = ball[0], _spread(network, i, one, out)
        out.append(ball)
    return out


def _spread(network: Network, start: int, rows: Tensor, balls: list[Ball]) -> Tensor:
    """The radius of rows times the value of node `start`: rows (R, *shape) -> (B, R)."""
    waiting = {start: rows}
    total = balls[0][1].new_zeros(())
    for i in range(start, -1, -1):
        here, node = waiting.pop(i, None), network.nodes[i]
        if here is None:
            continue
        graft = node.graft if isinstance(node, Activation) else None
        if isinstance(node, Affine):
            shapes = [network.nodes[k].shape for k in node.inputs]
            back = [(k, node.transpose(here, shape, {})) for k, shape in zip(node.inputs, shapes, strict=True)]
        else:  # what is bent, or the box itself
            bent = here if graft is None else torch.where(graft.mask, 0.0, here)
            total = total + F.linear(balls[i][1].flatten(1), bent.flatten(1).abs())
            line = [] if graft is None else [torch.where(graft.mask, graft.gamma, 0.0) * here]
            back = list(zip(node.inputs, line, strict=False))
        for k, more in back:
            waiting[k] = waiting[k] + more if k in waiting else more
    return total
