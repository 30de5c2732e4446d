"""Which images are handed out next, and what becomes of those whose worker died. Knows nothing of Ray."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable

from lipgraft.cluster.crew import DEATHS

PORTIONS = 4
"""Each worker's part of what is left is cut into this many chunks: the last are small, so that all end together."""

WORTH = 0.5
"""Seconds that a chunk should take at least, by the images before it: to begin one costs some hundredths."""


class Queue:
    """Images that wait for a worker, in order, handed out in chunks that grow smaller.

    images: their numbers; workers: how many share them; most: the largest chunk, which is what one worker bounds
    together at best.
    """

    def __init__(self, images: Iterable[int], workers: int, most: int) -> None:
        self.workers, self.most = workers, most
        self._fresh = deque(images)
        self._again: deque[int] = deque()
        self._deaths: Counter[int] = Counter()
        self._done, self._seconds = 0, 0.0

    def __len__(self) -> int:
        return len(self._fresh) + len(self._again)

    def take(self) -> list[int]:
        """The next chunk. Images whose worker died come first, one at a time: who is alone is to blame."""
        if self._again:
            return [self._again.popleft()]
        fair = -(-len(self._fresh) // (PORTIONS * self.workers))
        worth = math.ceil(WORTH * self._done / self._seconds) if self._seconds > 0 else 1
        size = min(self.most, max(fair, worth), len(self._fresh))
        return [self._fresh.popleft() for _ in range(size)]

    def took(self, images: int, seconds: float) -> None:
        """A worker has needed this long for a chunk of so many."""
        self._done, self._seconds = self._done + images, self._seconds + seconds

    def died(self, images: Iterable[int]) -> list[int]:
        """Take back the unfinished images of a worker that died; returns those that too many workers died of."""
        given_up: list[int] = []
        for image in images:
            self._deaths[image] += 1
            (given_up if self._deaths[image] >= DEATHS else self._again).append(image)
        return given_up
