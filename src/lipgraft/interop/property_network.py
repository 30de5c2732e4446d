"""A property as a classifier: the question "can this happen?" becomes "can class 0 lose?".

The network behind it is extended at both ends. In front, t in [-1, 1] becomes x in the box. Behind, every disjunct
"all of A y <= b" becomes M = max_i (A_i y - b_i), which is at most 0 exactly when the disjunct holds. The outputs are
0, -M_1, -M_2, ...: class 0 wins for certain exactly when no disjunct can hold. A maximum is a row of ReLUs,
max(p, q) = p + relu(q - p), so that bounds choose the best combination of rows and branching decides between them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lipgraft.interop.errors import VnnlibError
from lipgraft.interop.specification import Conjunction, Region
from lipgraft.rounding import outer_ball, round_up

MOST_PARTS = 3  # of 24 binary digits each, for the 53 of a float64


class PropertyNetwork(nn.Module):
    """t: (B, *input_shape) in [-1, 1] -> (B, 1 + disjuncts)."""

    centre: Tensor
    radius: Tensor

    def __init__(self, network: nn.Module, region: Region, input_shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__()
        centre, radius = outer_ball(region.lower, region.upper, dtype)
        self.register_buffer("centre", centre.reshape(input_shape))
        self.register_buffer("radius", radius.reshape(input_shape))
        self.network = network
        disjuncts = list(region.disjuncts)
        self.rows, self.rest = _rows(disjuncts, dtype)
        sizes = [len(disjunct.b) for disjunct in disjuncts]
        rounds: list[nn.Module] = []
        while max(sizes) > 1:
            rounds.append(Maxima(sizes, dtype))
            sizes = [(size + 1) // 2 for size in sizes]
        self.rounds = nn.Sequential(*rounds)
        negative = torch.cat([torch.zeros(1, len(sizes)), -torch.eye(len(sizes))])
        self.against_zero = _linear(negative.to(dtype), None)

    def forward(self, t: Tensor) -> Tensor:
        outputs = self.network(self.inputs(t))
        rows = self.rows(outputs)
        for layer in self.rest:
            rows = rows + layer(outputs)
        y: Tensor = self.against_zero(self.rounds(rows))
        return y

    def inputs(self, t: Tensor) -> Tensor:
        """The network's inputs: (B, *input_shape) -> the same."""
        return t * self.radius + self.centre


class Maxima(nn.Module):
    """In every group of neighbours, the larger of each pair; an odd last one is kept. sizes: of the groups."""

    def __init__(self, sizes: list[int], dtype: torch.dtype) -> None:
        super().__init__()
        total, left = sum(sizes), sum((size + 1) // 2 for size in sizes)
        pairs = sum(size // 2 for size in sizes)
        first, second = torch.zeros(left, total), torch.zeros(pairs, total)
        place = torch.zeros(left, pairs)
        at = row = pair = 0
        for size in sizes:
            for k in range(0, size, 2):
                first[row, at + k] = 1.0
                if k + 1 < size:
                    second[pair, at + k + 1], second[pair, at + k] = 1.0, -1.0
                    place[row, pair] = 1.0
                    pair += 1
                row += 1
            at += size
        self.first = _linear(first.to(dtype), None)
        self.difference = _linear(second.to(dtype), None)
        self.relu = nn.ReLU()
        self.place = _linear(place.to(dtype), None)

    def forward(self, m: Tensor) -> Tensor:
        """m: (B, sum of sizes) -> (B, sum of halves)."""
        larger: Tensor = self.first(m) + self.place(self.relu(self.difference(m)))
        return larger


def _rows(disjuncts: list[Conjunction], dtype: torch.dtype) -> tuple[nn.Linear, nn.ModuleList]:
    """A y - b for the rows of all disjuncts, as a sum of layers; b is rounded so that no row comes out too large."""
    A = torch.cat([disjunct.A for disjunct in disjuncts])
    b = torch.cat([disjunct.b for disjunct in disjuncts])
    first, *rest = _parts(A, dtype)
    return _linear(first, -round_up(b, dtype)), nn.ModuleList([_linear(part, None) for part in rest])


def _parts(A: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Matrices of this type whose sum is A (float64) exactly: 0.1 is not a float32, but it is the sum of three.

    Outputs may be large where their combination is not: A alone, rounded, would be another property.
    """
    parts = [A.to(dtype)]
    rest = A - parts[0].double()  # exact, as all later ones are: what is left has fewer digits
    while bool((rest != 0).any()) and len(parts) < MOST_PARTS:
        parts.append(rest.to(dtype))
        rest = rest - parts[-1].double()
    if bool((rest != 0).any()):  # NaN too, of what overflows
        raise VnnlibError(f"a coefficient of the property is too large or too small for {dtype}: scale its row.")
    return parts


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer
