"""Which uncertain neurons matter: a cheap guess of what each one's remainder does to the row."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lipgraft.bounds.interval import Interval
from lipgraft.network.graph import Network
from lipgraft.sensitivity.middle import Middle

PROBES = 4
"""Random changes of the input by which a neuron's effect is guessed."""


def effects(network: Network, slopes: Mapping[int, Interval], rows: Tensor, weight: Tensor) -> dict[int, Tensor]:
    """r |g| times what random changes of the input do to the neuron; 0 where its derivative is known.

    rows: (B, K, outputs) at the output. Returns (B, size of the layer) by the activation's position.
    """
    middle = Middle.of(
        network, slopes, {i: torch.zeros_like(low.flatten(1), dtype=torch.bool) for i, (low, _) in slopes.items()}
    )
    out = {i: torch.zeros_like(low.flatten(1)) for i, (low, _) in slopes.items()}
    if not middle.groups:
        return out
    arrivals: dict[int, Tensor] = {}
    middle.back(rows, network.output, slice(0, len(rows)), arrivals)
    generator = torch.Generator(rows.device).manual_seed(0)
    shape = (1, PROBES, *network.input_shape)
    noise = torch.rand(shape, dtype=rows.dtype, device=rows.device, generator=generator).round() * 2 - 1
    felt = middle.forward((noise * weight).expand(len(rows), -1, *network.input_shape)).abs().mean(1)
    for group in middle.groups:
        if group.position in arrivals:
            largest = group.pick(arrivals[group.position]).abs().amax(1)
            # A neuron that no probe moves still counts for something.
            effect = group.radius * largest * (felt[:, group.span] + 1e-12)
            out[group.position].scatter_(1, group.index, effect)
    return out


def strongest(effect: Mapping[int, Tensor], limit: int) -> dict[int, Tensor]:
    """Marks the neurons with the largest effects, at most so many for each problem: booleans as `effect`."""
    sizes = [e.shape[1] for e in effect.values()]
    joined = torch.cat(list(effect.values()), 1)
    top = joined.topk(min(limit, joined.shape[1]), 1).indices
    marks = torch.zeros_like(joined, dtype=torch.bool).scatter_(1, top, True)
    return dict(zip(effect, torch.split(marks & (joined > 0), sizes, 1), strict=True))
