"""The step of backward substitution through an activation where every row has lower slopes of its own, as a function
with a gradient of its own.

PyTorch would put the gradient together from that of every operator, and read and write the rows, the largest tensors
there are, some fifty times. Here a step reads them once and writes them once, and so does its gradient; on a GPU each
is one kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lipgraft.bounds import fused
from lipgraft.bounds.relaxations import Lines


@dataclass(frozen=True, eq=False)
class Shift:
    """What is added to the coefficients of an activation's input, one row per problem: this is how constraints on
    neurons enter, as multipliers. column: (B, D), places among the activation's neurons; amount: (B, D).
    """

    column: Tensor
    amount: Tensor

    def added(self, data: Tensor) -> Tensor:
        """data: (B, 1, 1, *shape)."""
        return data.flatten(1).scatter_add(1, self.column, self.amount).view_as(data)


def apply(data: Tensor, lines: Lines, shift: Shift | None) -> tuple[Tensor, Tensor] | None:
    """Rows at an activation's output, (B, 1, R, *shape), as rows at its input, and what they add to the constants,
    (B, 1, R). Gradients reach the rows, the lower slopes and the shift. None: the lines are not of this kind.

    lines: their lower slopes are (B, 1, R, *shape), all others (B, 1, 1, *shape) and fixed.
    """
    others = [t for t in (lines.upper_slope, lines.upper_intercept, lines.lower_intercept) if t is not None]
    shared = (len(data), 1, 1, *data.shape[3:])
    fixed = not any(t.requires_grad for t in others) and all(t.shape == shared for t in others)
    if not fixed or lines.upper_intercept is None or lines.lower_slope.shape != data.shape:
        return None
    batch, _, count = data.shape[:3]
    low = None if lines.lower_intercept is None else _table(lines.lower_intercept, 1)
    out, const = _OwnLines.apply(  # type: ignore[no-untyped-call]
        data.reshape(batch, count, -1).contiguous(),
        _table(lines.lower_slope, count),
        _table(lines.upper_slope, 1),
        _table(lines.upper_intercept, 1),
        low,
        None if shift is None else shift.column,
        None if shift is None else shift.amount,
    )
    return out.view(data.shape), const.unsqueeze(1)


def _table(values: Tensor, rows: int) -> Tensor:
    """(B, 1, rows, *shape) -> (B, rows, n), whose last axis is contiguous; a view where that is possible."""
    out = values.reshape(len(values), rows, -1)
    return out if out.stride(2) == 1 or out.shape[2] == 1 else out.contiguous()


class _OwnLines(torch.autograd.Function):
    """rows, lower: (B, R, n); upper, high, low: (B, 1, n) -> rows (B, R, n), constants (B, R).

    A positive coefficient takes the lower line, any other one the upper line.
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        lower: Tensor,
        upper: Tensor,
        high: Tensor,
        low: Tensor | None,
        column: Tensor | None,
        amount: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(rows, lower, upper, high, low, column)
        if fused.available(rows):
            out, const = fused.own_lines(rows, lower, upper, high, low)
        else:
            positive = rows > 0
            out = torch.where(positive, lower, upper).mul_(rows)
            const = torch.where(positive, 0.0 if low is None else low, high).mul_(rows).sum(2)
        if column is not None and amount is not None:
            out.view(len(out), -1).scatter_add_(1, column, amount)
        return out, const

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, out: Tensor, const: Tensor) -> tuple[Tensor | None, ...]:
        rows, lower, upper, high, low, column = ctx.saved_tensors
        out = out.contiguous()
        if fused.available(rows):
            of_rows, of_lower = fused.own_lines_gradient(rows, lower, upper, high, low, out, const)
        else:
            positive = rows > 0
            of_lower = torch.where(positive, rows, 0.0).mul_(out)
            of_rows = torch.where(positive, 0.0 if low is None else low, high).mul_(const.unsqueeze(2))
            of_rows.addcmul_(torch.where(positive, lower, upper), out)
        of_amount = None if column is None else out.view(len(out), -1).gather(1, column)
        return of_rows, of_lower, None, None, None, None, of_amount
