"""Planes above the neurons of hard margins, shared by all subproblems of a margin. See `bounds.planes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lipgraft.bounds.alpha_crown import LowerBound
from lipgraft.bounds.ascent import Adam
from lipgraft.bounds.grouped import SIZE, Grouped
from lipgraft.bounds.layout import NeuronBounds
from lipgraft.bounds.memory import Late, free_bytes
from lipgraft.bounds.planes import Choice, Plane, Reads
from lipgraft.verification.branch_and_bound.subproblems import Subproblems

SLOPES = 2**25  # of the planes of a margin, at most
ROWS = 2**27  # numbers in the rows from which what neurons read is taken, at most
FEW, MANY = 12, 64  # margins with planes at a time, at most: on a CPU, and on a GPU
MEMORY = 0.45  # of what is free, for planes
SLOPE, READ = 4 + 8, 3 * 8  # bytes of a slope, as a search and as proofs see it, and of a value that a neuron reads
COPIES = 8  # bytes of a slope in every block of subproblems that are bounded, on a GPU
CODES = 65535  # 16 bits: with 8, planes that are chords lose up to a seventh of what is left to prove
LR_ALPHA, LR_BETA, LR_PLANES, DECAY = 0.1, 0.1, 0.05, 0.985
LR_AGAIN = 0.02  # for planes that were fitted before: longer steps lose what they had

Planes = dict[int, Plane]
"""By activation."""

Bound = Callable[[Subproblems, Planes, Grouped], LowerBound]
"""The lower bounds of subproblems with these planes."""


@dataclass(frozen=True, eq=False)
class Group:
    """The planes of one margin. image: by its place in the search; target: the class; reads, choice: by activation.

    reads: as proofs see them; choice: chords of the search's type, or what was fitted, in whole numbers of CODES. Every
    choice is sound, and a certificate has these numbers. rate: the size of the first step when they are fitted.
    """

    image: int
    target: int
    reads: dict[int, Reads]
    choice: dict[int, Choice]
    rate: float = LR_PLANES

    @staticmethod
    def of(
        held: NeuronBounds, image: int, target: int, neurons: Tensor, dtype: torch.dtype, known: Group | None = None
    ) -> Group:
        """Planes above these neurons, (K,), in order. held: the bounds that proofs are made with; dtype: of the search.

        They are chords to begin with, or what is known of the same margin.
        """
        layout = held.layout
        reads: dict[int, Reads] = {}
        left = SLOPES
        sizes = {i: Reads.values(layout, i) for i in layout.places if layout.activation(i).curve.slopes == (0.0, 1.0)}
        for i in sorted((i for i in sizes if sizes[i]), key=lambda i: sizes[i]):  # the cheapest first
            place = layout.places[i]
            mine = neurons[(neurons >= place.start) & (neurons < place.stop)]
            mine = _widest(held, image, mine, min(left // sizes[i], ROWS // (place.stop - place.start)))
            found = Reads.of(layout, i, image, mine - place.start) if len(mine) else None
            if found is not None:
                reads[i], left = found, left - found.slopes
        reads = dict(sorted(reads.items()))
        choice = {i: read.chord(held).to(dtype) for i, read in reads.items()}
        if known is not None:
            for i in choice.keys() & known.choice.keys():
                seen = _numbers(known.choice[i], dtype)
                choice[i] = choice[i].over(reads[i].column[0], seen, known.reads[i].column[0])
        return Group(image, target, reads, choice, LR_PLANES if known is None else LR_AGAIN)

    @property
    def slopes(self) -> int:
        """Of all its planes."""
        return sum(read.slopes for read in self.reads.values())

    @property
    def values(self) -> int:
        """That its neurons read."""
        return sum(read.index.numel() for read in self.reads.values())


def _widest(held: NeuronBounds, image: int, neurons: Tensor, most: int) -> Tensor:
    """Of neurons, (K,), in order, those whose chords are furthest above their kinks: `most` at most, in order."""
    if len(neurons) <= most:
        return neurons
    lower, upper = held.lower[image, neurons], held.upper[image, neurons]
    gap = -lower * upper / (upper - lower).clamp(min=torch.finfo(upper.dtype).tiny)
    return neurons[gap.topk(most).indices.sort().values]


def most_margins(device: torch.device) -> int:
    """How many have planes at a time, at most."""
    return FEW if device.type == "cpu" else MANY


def fits(groups: Sequence[Group], batch: int, device: torch.device) -> bool:
    """Whether there is memory for the planes of so many margins, where this many subproblems are bounded at once."""
    if len(groups) > most_margins(device):
        return False
    widest, most = max(group.slopes for group in groups), max(group.values for group in groups)
    blocks = 0 if device.type == "cpu" else batch // SIZE + len(groups)  # see `bounds.grouped`
    need = len(groups) * (widest * SLOPE + most * READ) + blocks * widest * COPIES
    return need <= MEMORY * free_bytes(device)


def fit(
    groups: Sequence[Group], bounds: NeuronBounds, sub: Subproblems, bound: Bound, steps: int, late: Late
) -> list[Group]:
    """Groups with planes that lift the bounds of some subproblems, all in all; those that gain nothing are left out.

    sub: equally many of each group, in order.
    """
    device, dtype = sub.bound.device, bounds.lower.dtype
    grouped = Grouped.even(len(groups), len(sub) // len(groups), device)
    reads = {i: read.to(dtype) for i, read in _reads(groups).items()}
    first = best = torch.full((len(groups),), -torch.inf, device=device)
    free = [sub.alpha, sub.beta]
    for choice in _choices(groups, reads, dtype).values():
        free += [choice.share, choice.low, choice.high]
    chosen = free[2:]
    climbs = [Adam(part) for part in free]
    planar = torch.tensor([group.rate for group in groups], dtype=dtype, device=device)
    rates: list[float | Tensor] = [LR_ALPHA, LR_BETA, *(_like(planar, part) for part in free[2:])]
    for step in range(steps):
        leaves = [part.detach().requires_grad_() for part in free]
        with torch.enable_grad():
            planes = {i: reads[i].plane(bounds, choice) for i, choice in _triples(reads, leaves[2:]).items()}
            value, _ = bound(sub, planes, grouped).value(leaves[0], leaves[1])
            gradient = torch.autograd.grad(value.sum(), leaves, materialize_grads=True)
        total = torch.nan_to_num(value.detach(), nan=-torch.inf).view(len(groups), -1).sum(1)
        better = total > best
        first = total if step == 0 else first
        best = torch.where(better, total, best)
        chosen = [torch.where(_like(better, new), new, old) for new, old in zip(free[2:], chosen, strict=True)]
        if late():
            break
        scale = DECAY**step
        moved = [
            part.detach() + rate * scale * climb.direction(slope)
            for part, rate, climb, slope in zip(free, rates, climbs, gradient, strict=True)
        ]
        free = [part.clamp(min=0) if k == 1 else part.clamp(0, 1) for k, part in enumerate(moved)]
    found = _triples(reads, [(part * CODES).round().int() for part in chosen])
    return [
        replace(group, choice={i: found[i].one(g, *read.index.shape[1:]) for i, read in group.reads.items()})
        for g, (group, gained) in enumerate(zip(groups, (best > first).tolist(), strict=True))
        if gained
    ]


@dataclass(frozen=True, eq=False)
class UpperPlanes:
    """The planes of some margins, as a search and as proofs see them.

    number: (images, classes), the place of each margin among the groups, or their number for one that has none.
    """

    members: list[Group]
    search: Planes
    proof: Planes
    number: Tensor

    @staticmethod
    def of(members: list[Group], bounds: NeuronBounds, proof: NeuronBounds | None, classes: int) -> UpperPlanes:
        number = torch.full((len(bounds.lower), classes), len(members), device=bounds.lower.device)
        for place, group in enumerate(members):
            number[group.image, group.target] = place
        held = bounds if proof is None else proof
        reads = _reads(members)
        dtype = held.lower.dtype
        choices = _choices(members, reads, dtype)
        exact = {i: read.to(dtype).plane(held, choices[i]) for i, read in reads.items()}
        return UpperPlanes(members, {i: plane.to(bounds.lower.dtype) for i, plane in exact.items()}, exact, number)

    def grouped(self, image: Tensor, target: Tensor) -> Grouped:
        """Subproblems, (B,), by margin."""
        return Grouped.of(self.number[image, target], len(self.members))


def _reads(groups: Sequence[Group]) -> dict[int, Reads]:
    """What the neurons of all groups read, by activation."""
    some = {i: read for group in groups for i, read in group.reads.items()}
    out: dict[int, Reads] = {}
    for i, read in sorted(some.items()):
        parts = [g.reads[i] if i in g.reads else read.nothing(read.image.new_full((1,), g.image)) for g in groups]
        out[i] = Reads.cat(parts)
    return out


def _choices(groups: Sequence[Group], reads: dict[int, Reads], dtype: torch.dtype) -> dict[int, Choice]:
    out: dict[int, Choice] = {}
    for i in reads:
        some = next(group.choice[i] for group in groups if i in group.choice)
        none = some.one(0, 0, some.share.shape[2])
        out[i] = Choice.cat([_numbers(group.choice.get(i, none), dtype) for group in groups])
    return out


def _numbers(choice: Choice, dtype: torch.dtype) -> Choice:
    """The numbers of a choice that may be in codes."""
    found = choice.to(dtype)
    if choice.share.is_floating_point():
        return found
    return Choice(found.share / CODES, found.low / CODES, found.high / CODES)


def _triples(reads: dict[int, Reads], parts: list[Tensor]) -> dict[int, Choice]:
    triples = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    return {i: Choice(*triple) for i, triple in zip(reads, triples, strict=True)}


def _like(by_group: Tensor, values: Tensor) -> Tensor:
    """(G,) -> (G, 1, ...)."""
    return by_group.view(-1, *(1,) * (values.ndim - 1))
