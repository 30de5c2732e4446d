"""The element-wise steps of backward substitution as one GPU kernel each.

In plain PyTorch a step through an activation reads and writes the rows, the largest tensors there are, about ten times.
Here it reads them once and writes them once. The tables (slopes, intercepts, centres, radii) are small, so they stay in
the cache; each row says by `index` which line of the tables is its own, and nothing has to be laid out beside the rows.
"""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from types import ModuleType

import torch
from torch import Tensor


def available(rows: Tensor) -> bool:
    """On a GPU (or in Triton's interpreter) with Triton at hand."""
    return (rows.is_cuda or os.environ.get("TRITON_INTERPRET") == "1") and _has_triton()


def usable(rows: Tensor, *others: Tensor) -> bool:
    """Available, and no gradient is asked for."""
    differentiated = torch.is_grad_enabled() and any(t.requires_grad for t in (rows, *others))
    return available(rows) and not differentiated


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@cache
def _kernels() -> ModuleType:
    from lipgraft.bounds import kernels  # needs Triton, which comes with PyTorch for GPUs only

    return kernels


def relax(
    rows: Tensor, index: Tensor, lower: Tensor, gap: Tensor, high: Tensor, low: Tensor | None
) -> tuple[Tensor, Tensor]:
    """rows * lower + min(rows, 0) * gap, and for each row the sum of min(rows, 0) * high + max(rows, 0) * low.

    rows: (R, K); index: (R,), a line of each table; tables: (T, K); low None: zero. -> (R, K), (R,).
    """
    rows, index = rows.contiguous(), index.contiguous()  # one problem alone makes an expanded index a view
    out, const = torch.empty_like(rows), rows.new_empty(len(rows))
    if rows.numel():
        tables = [table.contiguous() for table in (lower, gap, high, high if low is None else low)]
        _kernels().relax_rows[(len(rows),)](
            rows, index, *tables, out, const, rows.shape[1], HAS_LOW=low is not None, **_steps(rows.shape[1])
        )
    return out, const


def minimum(rows: Tensor, index: Tensor, centre: Tensor, radius: Tensor) -> Tensor:
    """For each row the sum of rows * centre - |rows| * radius: (R, K), (R,), (T, K) -> (R,)."""
    rows, index = rows.contiguous(), index.contiguous()  # one problem alone makes an expanded index a view
    out = rows.new_empty(len(rows))
    if rows.numel():
        _kernels().minimum_of_rows[(len(rows),)](
            rows, index, centre.contiguous(), radius.contiguous(), out, rows.shape[1], **_steps(rows.shape[1])
        )
    return out


def own_lines(rows: Tensor, lower: Tensor, upper: Tensor, high: Tensor, low: Tensor | None) -> tuple[Tensor, Tensor]:
    """rows * (lower if rows > 0 else upper), and for each row the sum of rows * (low if rows > 0 else high).

    rows: (B, R, K), contiguous; lower: (B, R, K); upper, high, low: (B, 1, K), all contiguous along K; low None: zero.
    -> (B, R, K), (B, R).
    """
    out, const = torch.empty_like(rows), rows.new_empty(rows.shape[:2])
    if rows.numel():
        tables = (rows, lower, upper, high, high if low is None else low)
        _kernels().own_lines[(const.numel(),)](
            *tables, out, const, *_shape(*tables), HAS_LOW=low is not None, **_steps(rows.shape[2])
        )
    return out, const


def own_lines_gradient(
    rows: Tensor, lower: Tensor, upper: Tensor, high: Tensor, low: Tensor | None, out: Tensor, const: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of `own_lines` by rows and by lower, (B, R, K) each. out, const: those by its results."""
    of_rows, of_lower = torch.empty_like(rows), torch.empty_like(rows)
    if rows.numel():
        tables = (rows, lower, upper, high, high if low is None else low)
        _kernels().own_lines_gradient[(const.numel(),)](
            *tables,
            out,
            const.contiguous(),
            of_rows,
            of_lower,
            *_shape(*tables),
            HAS_LOW=low is not None,
            **_steps(rows.shape[2]),
        )
    return of_rows, of_lower


def _shape(rows: Tensor, lower: Tensor, upper: Tensor, high: Tensor, low: Tensor) -> tuple[int, ...]:
    """How many rows a problem has, how long they are, and how far apart the lines of the tables stand."""
    strides = lower.stride(0), lower.stride(1), upper.stride(0), high.stride(0), low.stride(0)
    return rows.shape[1], rows.shape[2], *strides


def _steps(size: int) -> dict[str, int]:
    """How a program goes along its row: so many steps of so many elements, a power of two."""
    block = min(1024, max(64, 1 << (size - 1).bit_length()))
    return {"STEPS": -(-size // block), "BLOCK": block}
