"""Cholesky factors of a batch of large matrices, and solving with them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 256
ROWS = 512  # of one product in `subtract_square`: the smaller, the less is computed in vain above the diagonal


@dataclass(frozen=True, eq=False)
class Factor:
    """lower: (B, N, N), the lower factor of each matrix; proved: (B,), whether there is one; without, it is garbage.

    inverses: of the blocks on the diagonal, if the factor was made of blocks.
    """

    lower: Tensor
    proved: Tensor
    inverses: tuple[Tensor, ...] = ()

    def solve(self, right: Tensor) -> Tensor:
        """The matrices' inverses times right, (B, N, k)."""
        if not self.inverses:
            return torch.cholesky_solve(right, self.lower)
        L, out, start = self.lower, right.clone(), 0
        spans = []
        for inverse in self.inverses:
            spans.append(slice(start, start + inverse.shape[1]))
            start += inverse.shape[1]
        for here, inverse in zip(spans, self.inverses, strict=True):
            before = slice(0, here.start)
            out[:, here] = inverse @ (out[:, here] - L[:, here, before] @ out[:, before])
        for here, inverse in zip(reversed(spans), reversed(self.inverses), strict=True):
            after = slice(here.stop, None)
            out[:, here] = inverse.mT @ (out[:, here] - L[:, after, here].mT @ out[:, after])
        return out


def cholesky(H: Tensor) -> Factor:
    """The factors of matrices (B, N, N), of which only what is on and below the diagonal is read."""
    # The libraries of GPUs factor either one large matrix well or many small ones, not many large ones.
    if H.device.type == "cuda" and len(H) > 1:
        return by_blocks(H)
    lower, info = torch.linalg.cholesky_ex(H)
    return Factor(lower, info == 0)


def by_blocks(H: Tensor, block: int = BLOCK) -> Factor:
    """The same from small factors and products: factor a diagonal block, multiply the rows below it, take them off.

    Solving for many rows is slow in batches; inverting a small block and multiplying are not.
    """
    L, inverses = H.clone(), []
    proved = torch.ones(len(H), dtype=torch.bool, device=H.device)
    for start in range(0, H.shape[1], block):
        here, below = slice(start, start + block), slice(start + block, None)
        corner, info = torch.linalg.cholesky_ex(L[:, here, here])
        proved &= info == 0
        one = torch.eye(corner.shape[1], dtype=H.dtype, device=H.device)
        inverses.append(torch.linalg.solve_triangular(corner, one, upper=False))
        L[:, here, here] = corner
        L[:, here, below] = 0.0
        L[:, below, here] = L[:, below, here] @ inverses[-1].mT
        subtract_square(L[:, below, below], L[:, below, here])
    return Factor(L, proved, tuple(inverses))


def subtract_square(H: Tensor, A: Tensor, block: int = ROWS) -> None:
    """H <- H - A A', in place, on and below the diagonal; what stands above is of no use afterwards.

    H: (B, N, N); A: (B, N, n). Half the work of the whole product, and all that a factorisation reads.
    """
    for start in range(0, H.shape[1], block):
        rows, columns = slice(start, start + block), slice(0, start + block)
        H[:, rows, columns].baddbmm_(A[:, rows], A[:, columns].mT, alpha=-1)
