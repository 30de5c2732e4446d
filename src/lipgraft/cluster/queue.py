"""Which images are handed out next, and what becomes of those whose worker died. Knows nothing of Ray."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable

from lipgraft.cluster.crew import DEATHS

PORTIONS = 4
"""Each worker's part of what is left is cut into this many chunks: the last are small, so that all end together."""

PIECES = 8
"""The smallest chunk is cut into this many when a worker has died of it for the first time."""

WORTH = 0.5
"""Seconds that a chunk should take at least, by the images before it: to begin one costs some hundredths."""


class Queue:
    """Images that wait for a worker, in order, handed out in chunks that grow smaller.

    images: their numbers; workers: how many share them; most, least: the largest chunk, and the smallest but for the
    last. Who works on many images together, as a GPU does, needs nearly as long for a few.
    """

    def __init__(self, images: Iterable[int], workers: int, most: int, least: int = 1) -> None:
        self.workers, self.most, self.least = workers, most, least
        self._fresh = deque(images)
        self._again: deque[list[int]] = deque()
        self._deaths: Counter[int] = Counter()
        self._done, self._seconds = 0, 0.0

    def __len__(self) -> int:
        return len(self._fresh) + sum(map(len, self._again))

    def take(self) -> list[int]:
        """The next chunk. Images whose worker died come first, few at a time and then one: who is alone is to blame."""
        if self._again:
            return self._again.popleft()
        fair = -(-len(self._fresh) // (PORTIONS * self.workers))
        worth = math.ceil(WORTH * self._done / self._seconds) if self._seconds > 0 else 1
        size = min(self.most, max(fair, worth, self.least), len(self._fresh))
        return [self._fresh.popleft() for _ in range(size)]

    def took(self, images: int, seconds: float) -> None:
        """A worker has needed this long for a chunk of so many."""
        self._done, self._seconds = self._done + images, self._seconds + seconds

    def died(self, images: Iterable[int]) -> list[int]:
        """Take back the unfinished images of a worker that died; returns those that too many workers died of."""
        self._deaths.update(back := list(images))
        once = [image for image in back if self._deaths[image] < DEATHS - 1]
        piece = -(-self.least // PIECES)
        self._again.extend(once[i : i + piece] for i in range(0, len(once), piece))
        self._again.extend([image] for image in back if self._deaths[image] == DEATHS - 1)
        return [image for image in back if self._deaths[image] >= DEATHS]
