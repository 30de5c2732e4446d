"""The lower bound of a batch of subproblems as a function of their lines (alpha) and multipliers (beta).

Every subproblem keeps its image's bounds, clamped where it has split a neuron: z >= 0 lifts the lower bound to zero,
z <= 0 drops the upper one. The split itself enters as a multiplier beta >= 0 on z <= 0 or -z <= 0, added to the
coefficient of z. Any alpha in [0, 1] and any beta >= 0 give a sound bound, so a bound above zero is a proof however it
was found; for a split that leaves no input at all it grows beyond every limit.

Nothing here waits for the device or depends on values in Python, so that it can be captured as a CUDA graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lipgraft.bounds.backward import Relaxed, Rows, Substitution
from lipgraft.bounds.geometry import at_input
from lipgraft.bounds.relaxations import Lines, relax
from lipgraft.verification.roots import Roots


class Bounding:
    """The relaxation of B subproblems that start as rows at the layout's target."""

    def __init__(self, roots: Roots, image: Tensor, rows: Tensor, neuron: Tensor, sign: Tensor) -> None:
        """image: (B,), row of roots; rows: (B, 1, 1, *target shape); neuron, sign: (B, D), the splits.

        A split is a flat neuron with sign +1 for z >= 0 or -1 for z <= 0; sign 0 and neuron N fill up.
        """
        self.roots, self.layout, self.rows = roots, roots.layout, rows
        self.root = (roots.root[0][image], roots.root[1][image])
        self.neuron, self.sign = neuron, sign
        lower, upper = clamped(roots.lower[image], roots.upper[image], neuron, sign)
        ends = zip(self.layout.pieces(lower).items(), self.layout.pieces(upper).values(), strict=True)
        self.lines = {i: relax(self.layout.activation(i), lb, ub) for (i, lb), ub in ends}
        none = lower.new_zeros(len(image), 1)
        slopes = [line.lower_slope.reshape(len(image), -1) for line in self.lines.values()]
        self.base = torch.cat([*slopes, none], 1)
        self.open = roots.open[image]
        self.lower, self.upper = lower.gather(1, self.open), upper.gather(1, self.open)
        self.free = (self.lower < 0) & (self.upper > 0)
        self.stable_slope = self.base.gather(1, self.open)
        self.negative_slope = self.layout.negative_slope[self.open]

    def start(self) -> Tensor:
        """The alpha that plain CROWN takes: (B, U)."""
        return (self.upper > -self.lower).to(self.lower.dtype)

    def lower_bound(
        self, alpha: Tensor, beta: Tensor, record: dict[int, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """alpha: (B, U); beta: (B, D) -> bounds (B,) and the rows at the root (B, *root shape). Differentiable.

        record: filled with the coefficients of each activation's output, (B, 1, 1, *shape).
        """
        layout = self.layout
        slope = self.negative_slope + alpha * (1 - self.negative_slope)
        slopes = self.base.scatter(1, self.open, torch.where(self.free, slope, self.stable_slope))
        lower_slope = layout.pieces(slopes)
        lines = {
            i: Lines(lower_slope[i], line.lower_intercept, line.upper_slope, line.upper_intercept)
            for i, line in self.lines.items()
        }
        shifts: dict[int, Tensor] = {}
        if self.neuron.shape[1]:
            shifts = layout.pieces(torch.zeros_like(self.base).scatter_add(1, self.neuron, -self.sign * beta))
        walk = Substitution(layout.network, layout.path, Relaxed(lines, self.root, shifts), None, record)
        const = self.rows.new_zeros(self.rows.shape[:3])
        rows, const = walk.to_root(Rows(self.rows), const, layout.path.target)
        return (const + walk.minimum(rows)).flatten(), rows.data[:, 0, 0]


def clamped(lower: Tensor, upper: Tensor, neuron: Tensor, sign: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds after splits. lower, upper: (B, N + 1), neuron, sign: (B, D)."""
    if not neuron.shape[1]:
        return lower, upper
    low, high = lower.gather(1, neuron), upper.gather(1, neuron)
    low = torch.where(sign > 0, low.clamp(min=0), low)
    high = torch.where(sign < 0, high.clamp(max=0), high)
    return lower.scatter(1, neuron, low), upper.scatter(1, neuron, high)


def corner(roots: Roots, image: Tensor, rows: Tensor) -> Tensor:
    """Where linear functions of the root, (B, *root shape), are smallest in the inner box: (B, *input shape)."""
    down = at_input(roots.layout.network, roots.layout.path.root, rows)
    return torch.where(down > 0, roots.inner[0][image], roots.inner[1][image])
