"""What a bound must be before it proves anything: finite, and true in real numbers although floating point computed it.

Backward substitution is a chain of sums of products. Let B stand for the rows with absolute values everywhere: |C| at
the target, B |W| through an affine node, B times the steeper line's slope through an activation, B times the slopes of
its plane through a product. A sum of n products in any order errs by at most gamma_n = n u / (1 - n u) times the sum of
the absolute values, so the computed rows differ from exact ones by at most delta B, where delta grows by one gamma_n
per node. Constants and the minimum over the box are sums of the same kind. All in all the bound errs by at most delta
times what the absolute rows make of the absolute constants and inputs; and that is |C| times the *magnitude* of the
target: the network with absolute values everywhere, evaluated once per box, forward. A multiplier beta of a neuron adds
beta times that neuron's magnitude.

This holds for every order of summation, and so on every device, but not for reduced precision (TF32) or fast transforms
(Winograd): those are not used in double precision. Double precision makes the error small enough to be given away:
about 1e-6 of a margin for CNN-B. So a search may look for lines, multipliers and splits in any precision, as long as
the result is evaluated here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lipgraft.bounds.interval import Interval
from lipgraft.bounds.relaxations import Lines
from lipgraft.network.graph import Activation, Graft, Network, Node, Pad, Pick, Planar, Reshape
from lipgraft.rounding import round_down

UNIT = 2.0**-53
FLUSHED = 2.0**-1022  # what a product may lose where denormal numbers are flushed to zero
SINGLE = 2.0**-24
FLUSHED_SINGLE = 2.0**-126
LARGEST_SINGLE = (2.0 - 2.0**-23) * 2.0**127
SPARE_SINGLE = 1.0 + 2.0**-20  # for the rounding of this sum itself, which is in double precision
PER_NODE = 8  # roundings per node beside its sums: slopes, centres, radii, joining rows
SPARE = 4.0  # how many times its own error a bound gives away, so that another program's rounding finds room as well


def guard_lower(lower: Tensor) -> Tensor:
    """A lower bound that is not a finite number proves nothing: it becomes -inf."""
    return torch.where(torch.isfinite(lower), lower, -torch.inf)


def guard_upper(upper: Tensor) -> Tensor:
    """An upper bound that is not a finite number proves nothing: it becomes +inf."""
    return torch.where(torch.isfinite(upper), upper, torch.inf)


def guard(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """`guard_lower` and `guard_upper`; if either end is NaN, both become infinite."""
    nothing = lower.isnan() | upper.isnan()
    return guard_lower(torch.where(nothing, -torch.inf, lower)), guard_upper(torch.where(nothing, torch.inf, upper))


def unbounded_like(pre: tuple[Tensor, Tensor], image: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The image of an interval under an activation, without an end where the interval has none.

    A sigmoid's values lie in [0, 1] whatever its input; but an input without bounds may be NaN, and so its value.
    """
    lower = torch.where(torch.isfinite(pre[0]), image[0], -torch.inf)
    return lower, torch.where(torch.isfinite(pre[1]), image[1], torch.inf)


def proved(lower: Tensor) -> Tensor:
    """What "verified" means everywhere: the lower bound is finite and positive."""
    return torch.isfinite(lower) & (lower > 0)


@dataclass(frozen=True, eq=False)
class Rounding:
    """How large the numbers of a batch of boxes are, and so how far their bounds may be off. In double precision.

    counts: for each node, the roundings on the longest way from the input to it.
    zero_is_zero: a magnitude of zero means that nothing but zeros was added up: no product can have been flushed.
    magnitude: of every node so far, (B, *shape). total: (B,), the sum of all magnitudes.
    """

    counts: tuple[int, ...]
    zero_is_zero: bool
    magnitude: tuple[Tensor, ...]
    total: Tensor

    @staticmethod
    def of(network: Network, box: Interval) -> Rounding:
        """With the input's magnitude."""
        size = torch.maximum(box[0].abs(), box[1].abs())
        return Rounding(_counts(network), _zero_is_zero(network, size), (size,), size.flatten(1).sum(1))

    def through(self, node: Node, lines: Lines | None, pre: Interval, error: Tensor | None) -> Rounding:
        """With the magnitude of the next node; of an activation, with the lines around it.

        pre: the interval of its (first) input; error: see `evaluation_error`, or the node's plane.
        """
        before = [self.magnitude[j] for j in node.inputs]
        if isinstance(node, Planar) and error is not None:
            *slopes, constant, error = error.abs().unbind(1)
            return self._with(sum((s * b for s, b in zip(slopes, before, strict=True)), constant + error))
        if isinstance(node, Activation) and lines is not None:
            size = _of_activation(node, before[0], lines, pre)
        else:
            size = node.absolute(*before)
        return self._with(size if error is None else size + error)

    def _with(self, magnitude: Tensor) -> Rounding:
        return replace(self, magnitude=(*self.magnitude, magnitude), total=self.total + magnitude.flatten(1).sum(1))

    def slack(self, i: int, target: int | None = None) -> Tensor:
        """What a bound of each neuron of node i gives away: (B, *shape).

        target: of a node behind i; what its bound gives away for each unit of a multiplier on the neuron.
        """
        size, end = self.magnitude[i], i if target is None else target
        lost = FLUSHED * self.counts[end] * (1.0 + self.total)
        error = SPARE * (self.share(end) * size + lost.reshape(-1, *[1] * (size.ndim - 1)))
        return torch.where(size == 0, 0.0, error) if self.zero_is_zero else error

    def share(self, i: int) -> float:
        """gamma of the way to node i; twice, as magnitudes are rounded themselves."""
        return 2 * self.counts[i] * UNIT / max(1 - 2 * self.counts[i] * UNIT, UNIT)

    def at(self, boxes: slice | Tensor) -> Rounding:
        """Of some of the boxes."""
        return replace(self, magnitude=tuple(size[boxes] for size in self.magnitude), total=self.total[boxes])


def _counts(network: Network) -> tuple[int, ...]:
    readers = network.consumers()
    out: list[int] = []
    for i, node in enumerate(network.nodes):
        before = max((out[j] for j in node.inputs), default=0)
        out.append(before + node.terms + math.prod(node.shape) + len(readers[i]) + PER_NODE)
    return tuple(out)


def _zero_is_zero(network: Network, size: Tensor) -> bool:
    if any(isinstance(node, Planar) for node in network.nodes):
        return False  # values are multiplied with each other
    least = _least(size)
    for node in network.nodes:
        for value in vars(node).values():
            for part in vars(value).values() if isinstance(value, Graft) else (value,):
                if isinstance(part, Tensor) and part.is_floating_point():
                    least *= _least(part)
    return least > 2.0**-900


def _least(values: Tensor) -> float:
    """The smallest of the numbers' absolute values, zeros aside, and at most 1."""
    return float(torch.where(values == 0, 1.0, values.abs()).amin().clamp(max=1.0)) if values.numel() else 1.0


def _of_activation(node: Activation, size: Tensor, lines: Lines, pre: Interval) -> Tensor:
    """The steepest slope times the input's magnitude and the largest intercept, whatever alpha is."""
    curve, (lb, ub) = node.curve, pre
    if curve.splits_at_zero:
        high = 0.0 if lines.upper_intercept is None else lines.upper_intercept.abs()
        out = torch.where(curve.exact(lb, ub), lines.upper_slope.abs() * size, curve.steepest * size + high)
    else:
        out = curve.steepest * (size + 2 * torch.maximum(lb.abs(), ub.abs())) + curve.at_zero
    if node.graft is None:
        return out
    return torch.where(node.graft.mask, node.graft.gamma.abs() * size + node.graft.omega.abs(), out)


def evaluation_error(node: Node, inputs: Sequence[Interval]) -> Tensor | None:
    """How far float32 hardware, adding up in any order, may be from the node's real value at the inputs that it is
    given: (B, *shape); None: not at all. inputs: sound intervals of these inputs.

    gamma_n of float32 times the absolute values that are added up, and what flushing denormal results loses. n has room
    for a node to be computed in a few steps, as an exported graft or a normalisation is. Hardware that flushes denormal
    numbers to zero is covered where neither the point nor a weight has one: then it never reads one.
    """
    if isinstance(node, Activation) and node.graft is None and node.curve.slopes == (0.0, 1.0):
        return None  # max(z, 0) is exact
    if isinstance(node, Reshape | Pad | Pick):
        return None
    n = node.terms + PER_NODE
    if isinstance(node, Planar):  # one operation, which errs by a share of its value
        inputs = [node.interval(*inputs)]
    sizes = [torch.maximum(lower.abs(), upper.abs()) for lower, upper in inputs]
    size = sizes[0] if isinstance(node, Planar) else node.absolute(*sizes)
    error = SPARE_SINGLE * (n * SINGLE / (1 - n * SINGLE) * size + n * FLUSHED_SINGLE)
    return torch.where(size + error <= LARGEST_SINGLE, error, torch.inf)  # beyond it a sum, in some order, overflows


def outward(interval: Interval, slack: Tensor, dtype: torch.dtype) -> Interval:
    """An interval that is wider by the slack, in double precision but with ends that the other type holds too.

    The search in that type and whoever checks the proof then use the very same numbers.
    """
    lower, upper = interval[0] - slack, interval[1] + slack
    moved = slack > 0
    low, high = torch.where(moved, below(lower, dtype), lower), torch.where(moved, -below(-upper, dtype), upper)
    return low, high


def below(value: Tensor, dtype: torch.dtype) -> Tensor:
    """A number of this type, held in double precision, a step further below the value than rounding needs.

    So it is below what others compute, too. Double precision has no coarser type to step in: its slack is enough.
    """
    if dtype == torch.float64:
        return value
    near = round_down(value, dtype)
    return torch.nextafter(near, torch.full_like(near, -torch.inf)).double()
