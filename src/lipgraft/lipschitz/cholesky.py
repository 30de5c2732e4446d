"""Cholesky factors of a batch of large matrices."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 256


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
            panel = torch.linalg.solve_triangular(corner.mT, L[:, below, here], upper=True, left=False)
            L[:, below, here] = panel
            L[:, below, below].baddbmm_(panel, panel.mT, alpha=-1)
    return L, proved
