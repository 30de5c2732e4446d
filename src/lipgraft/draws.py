"""Random numbers for a batch that several processes share: each takes its own rows of what one process would draw."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class PartGenerator(torch.Generator):
    """The generator of one of several processes. All are seeded alike and draw the same numbers, for the whole batch.

    part: which of the `parts` equal parts of a batch belongs to this process.
    """

    part = 0
    parts = 1


def for_batch(draw: Callable[[int], Tensor], rows: int, generator: torch.Generator | None) -> Tensor:
    """What `draw` gives for a batch of this many rows, of which draw(n) makes n from the generator."""
    if not isinstance(generator, PartGenerator):
        return draw(rows)
    first = generator.part * rows
    return draw(generator.parts * rows)[first : first + rows]
