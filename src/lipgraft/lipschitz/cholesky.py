"""Cholesky factors of a batch of large matrices."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 256
ROWS = 512  # of one product in `subtract_square`: the smaller, the less is computed in vain above the diagonal


def cholesky(H: Tensor) -> tuple[Tensor, Tensor]:
    """The lower factor of each matrix (B, N, N), and whether there is one, (B,); without, the factor is garbage."""
    # The libraries of GPUs factor either one large matrix well or many small ones, not many large ones.
    if H.device.type == "cuda" and len(H) > 1:
        return by_blocks(H)
    factor, info = torch.linalg.cholesky_ex(H)
    return factor, info == 0


def by_blocks(H: Tensor, block: int = BLOCK) -> tuple[Tensor, Tensor]:
    """The same from small factors and products: factor a diagonal block, solve for the rows below it, take them off."""
    L = H.clone()
    proved = torch.ones(len(H), dtype=torch.bool, device=H.device)
    for start in range(0, H.shape[1], block):
        here, below = slice(start, start + block), slice(start + block, None)
        corner, info = torch.linalg.cholesky_ex(L[:, here, here])
        proved &= info == 0
        L[:, here, here] = corner
        L[:, here, below] = 0.0
        if start + block < H.shape[1]:
            # Solving for the many rows below is slow in batches; inverting a small corner and a product are not.
            inverse = torch.linalg.solve_triangular(
                corner, torch.eye(block, dtype=H.dtype, device=H.device), upper=False
            )
            panel = L[:, below, here] @ inverse.mT
            L[:, below, here] = panel
            subtract_square(L[:, below, below], panel)
    return L, proved


def subtract_square(H: Tensor, A: Tensor, block: int = ROWS) -> None:
    """H <- H - A A', in place, on and below the diagonal; what stands above is of no use afterwards.

    H: (B, N, N); A: (B, N, n). Half the work of the whole product, and all that a factorisation reads.
    """
    for start in range(0, H.shape[1], block):
        rows, columns = slice(start, start + block), slice(0, start + block)
        H[:, rows, columns].baddbmm_(A[:, rows], A[:, columns].mT, alpha=-1)
