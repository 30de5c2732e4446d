"""Planes above the neurons of hard margins, shared by all subproblems of a margin. See `bounds.planes`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lipgraft.bounds.alpha_crown import Adam, LowerBound
from lipgraft.bounds.layout import NeuronBounds
from lipgraft.bounds.memory import Late
from lipgraft.bounds.planes import Choice, Plane, Reads
from lipgraft.verification.branch_and_bound.subproblems import Subproblems

NUMBERS = 2**25  # neurons with planes times the largest layer before them, at most, in all layers of a margin
LR_ALPHA, LR_BETA, LR_PLANES, DECAY = 0.1, 0.1, 0.05, 0.985

Bound = Callable[[Subproblems, "dict[int, Plane]"], LowerBound]
"""The lower bounds of subproblems with these planes."""


@dataclass(frozen=True, eq=False)
class Group:
    """The planes of one margin. image: by its place in the search; target: the class; reads, choice: by activation.

    reads: as proofs see them; choice: of the search's type.
    """

    image: int
    target: int
    reads: dict[int, Reads]
    choice: dict[int, Choice]

    @staticmethod
    def of(held: NeuronBounds, image: int, target: int, dtype: torch.dtype) -> Group:
        """Chords, to begin with. held: the bounds that proofs are made with; dtype: of the search."""
        layout, open_ = held.layout, held.open[image]
        reads: dict[int, Reads] = {}
        left = NUMBERS
        for i, place in layout.places.items():
            column = open_[(open_ >= place.start) & (open_ < place.stop)] - place.start
            numbers = len(column) * max(math.prod(node.shape) for node in layout.network.nodes[:i])
            if len(column) == 0 or numbers > left or layout.activation(i).curve.slopes != (0.0, 1.0):
                continue
            found = Reads.of(layout, i, column)
            if found is not None:
                reads[i], left = found, left - numbers
        return Group(image, target, reads, {i: read.chord(held, image).to(dtype) for i, read in reads.items()})

    def planes(self, bounds: NeuronBounds) -> dict[int, Plane]:
        """In the type of the bounds."""
        dtype = bounds.lower.dtype
        return {i: read.to(dtype).plane(bounds, self.image, self.choice[i].to(dtype)) for i, read in self.reads.items()}

    def fitted(self, bounds: NeuronBounds, sub: Subproblems, bound: Bound, steps: int, late: Late) -> Group:
        """With planes that lift the bounds of these subproblems of the margin, all in all."""
        best, chosen = torch.full((), -torch.inf, device=sub.bound.device), self
        free = [sub.alpha, sub.beta]
        for choice in self.choice.values():
            free += [choice.share, choice.low, choice.high]
        climbs = [Adam(part) for part in free]
        rates = [LR_ALPHA, LR_BETA] + [LR_PLANES] * (len(free) - 2)
        for step in range(steps):
            leaves = [part.detach().requires_grad_() for part in free]
            with torch.enable_grad():
                group = self._with(leaves[2:])
                value, _ = bound(sub, group.planes(bounds)).value(leaves[0], leaves[1])
                gradient = torch.autograd.grad(value.sum(), leaves, materialize_grads=True)
            total = torch.nan_to_num(value.detach(), nan=-torch.inf).sum()
            if total > best:
                best, chosen = total, self._with([part.detach() for part in free[2:]])
            if late():
                break
            scale = DECAY**step
            moved = [
                part.detach() + rate * scale * climb.direction(slope)
                for part, rate, climb, slope in zip(free, rates, climbs, gradient, strict=True)
            ]
            free = [part.clamp(min=0) if k == 1 else part.clamp(0, 1) for k, part in enumerate(moved)]
        return chosen

    def _with(self, parts: list[Tensor]) -> Group:
        triples = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
        return replace(self, choice={i: Choice(*triple) for i, triple in zip(self.choice, triples, strict=True)})


@dataclass(frozen=True, eq=False)
class UpperPlanes:
    """The planes of some margins, as a search and as proofs see them.

    number: (images, classes), the place of each margin among the groups, or their number for one that has none.
    """

    members: list[Group]
    search: list[dict[int, Plane]]
    proof: list[dict[int, Plane]]
    number: Tensor

    @staticmethod
    def of(members: list[Group], bounds: NeuronBounds, proof: NeuronBounds | None, classes: int) -> UpperPlanes:
        number = torch.full((len(bounds.lower), classes), len(members), device=bounds.lower.device)
        for place, group in enumerate(members):
            number[group.image, group.target] = place
        exact = [group.planes(bounds if proof is None else proof) for group in members]
        search = [{i: _to(plane, bounds.lower.dtype) for i, plane in planes.items()} for planes in exact]
        return UpperPlanes(members, search, exact, number)

    def groups(self, image: Tensor, target: Tensor) -> Tensor:
        """The group of each subproblem, (B,)."""
        return self.number[image, target]


def _to(plane: Plane, dtype: torch.dtype) -> Plane:
    return Plane(plane.column, {j: slope.to(dtype) for j, slope in plane.slope.items()}, plane.const.to(dtype))
