"""Images that need branching: what they share, their unproved margins, and what is proved of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lipgraft.verification.roots import Roots
from lipgraft.verification.subproblems import Subproblems


@dataclass(frozen=True, eq=False)
class Opened:
    """sub: the unproved margins of the I images in roots; floor: (I,), the smallest margin that is proved."""

    roots: Roots
    sub: Subproblems
    floor: Tensor

    @staticmethod
    def cat(parts: Sequence[Opened]) -> Opened:
        """All images of several groups."""
        roots = Roots.cat([part.roots for part in parts])
        shifted: list[Subproblems] = []
        before = 0
        for part in parts:
            moved = replace(part.sub, image=part.sub.image + before)
            shifted.append(moved.widened(roots.open.shape[1], 0, roots.layout.size))
            before += len(part.roots)
        return Opened(roots, Subproblems.cat(shifted), torch.cat([part.floor for part in parts]))
