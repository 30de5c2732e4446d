"""Interval bound propagation (Gowal et al., 2018), and CROWN-IBP (Zhang et al., 2020)."""

from __future__ import annotations

import torch
from torch import Tensor

from lipgraft.bounds.backward import Relaxed, Rows, Substitution
from lipgraft.bounds.geometry import plan
from lipgraft.bounds.margins import true_minus
from lipgraft.bounds.relaxations import relax
from lipgraft.network.graph import Network
from lipgraft.training.intervals import box_balls, exact_products, graph_of
from lipgraft.training.objectives.certified import interval_margins, verified_loss, with_clean
from lipgraft.training.task import Ball, Batch, Task


def ibp(task: Task, batch: Batch) -> tuple[Tensor, Tensor]:
    """CE(-m, y), m: interval bounds of the margins. Training accuracy is the share that they verify."""
    margins = interval_margins(task, batch)
    return with_clean(task, batch, verified_loss(margins, batch.y)), -margins


def crown_ibp(task: Task, batch: Batch) -> tuple[Tensor, Tensor]:
    """CE(-((1 - b) m + b m_CROWN), y) with b = 1 - (the share of eps reached): CROWN first, intervals at the end.

    m_CROWN: backward substitution from the margins to the input, with lines from the interval bounds.
    """
    network, low = graph_of(task, batch), interval_margins(task, batch)
    with exact_products(task, batch.x.device):
        high = crown_margins(network, box_balls(task, batch), batch.y)
    margins = low + (1 - batch.share) * (high - low)
    return with_clean(task, batch, verified_loss(margins, batch.y)), -margins


def crown_margins(network: Network, balls: list[Ball], y: Tensor) -> Tensor:
    """Lower bounds of f_y - f_j, (B, n), 0 at j = y, by one backward substitution. Gradients flow to the parameters."""
    intervals = [(centre - radius, centre + radius) for centre, radius in balls]
    lines = {i: relax(node, *intervals[node.inputs[0]], live=True) for i, node in network.activations()}
    path, (classes,) = plan(network, network.output), network.output_shape
    every = torch.arange(classes, device=y.device)
    rows = true_minus(y[:, None], every, classes, intervals[0][0].dtype)[:, None]  # (B, 1, n, n)
    walk = Substitution(network, path, Relaxed(lines, intervals[path.root]), None)
    return walk.lower_bound(Rows(rows), rows.new_zeros(rows.shape[:3]), network.output).squeeze(1)
