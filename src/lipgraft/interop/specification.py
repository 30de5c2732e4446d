"""What a VNNLIB file says: boxes of inputs, and the outputs that must not occur there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lipgraft.interop.declarations import TensorName


@dataclass(frozen=True, eq=False)
class Conjunction:
    """All outputs y with A y <= b. A: (k, outputs), b: (k,), float64."""

    A: Tensor
    b: Tensor

    @property
    def only_compares(self) -> bool:
        """Whether every row says that one output is at most another: then only the outputs' order counts."""
        a, b = self.A.amax(1), self.A.amin(1)
        pairs = ((self.A != 0).sum(1) == 2) & (a == -b)
        return bool((pairs & (self.b == 0)).all())

    def excess(self, y: Tensor) -> Tensor:
        """max_i (A_i y - b_i), for y (B, outputs) -> (B,): at most 0 exactly where all rows hold."""
        return (y.to(self.A) @ self.A.T - self.b).amax(1)


@dataclass(frozen=True, eq=False)
class Region:
    """The property is violated by an x with lower <= x <= upper whose output lies in one of the disjuncts.

    lower, upper: (inputs,), float64.
    """

    lower: Tensor
    upper: Tensor
    disjuncts: tuple[Conjunction, ...]

    def excess(self, y: Tensor) -> Tensor:
        """The least excess of any disjunct, for y (B, outputs) -> (B,): at most 0 exactly at a violation."""
        return torch.stack([disjunct.excess(y) for disjunct in self.disjuncts]).amin(0)


@dataclass(frozen=True, eq=False)
class Specification:
    """Inputs X_0 .. and outputs Y_0 .. by their number, and the regions where a violation is looked for.

    expand(deadline): the regions one after the other. There may be far more of them than fit into memory, or into the
    time until the deadline (time.monotonic), after which OutOfTime is raised.
    x, y: what a file of version 2.0 calls the input and the output; None for X_0 .. and Y_0 ..
    """

    inputs: int
    outputs: int
    expand: Callable[[float], Iterator[Region]]
    x: TensorName | None = None
    y: TensorName | None = None

    @property
    def regions(self) -> tuple[Region, ...]:
        """All regions at once."""
        return tuple(self.expand(math.inf))
