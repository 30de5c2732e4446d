"""Whole pieces of work, one at a time to each worker: instances of a benchmark, rows of a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lipgraft.cluster.crew import DEATHS, Crew, Worker

if TYPE_CHECKING:
    from lipgraft.cluster.driver import Cluster

Make = Callable[[str], Callable[[Any], Any]]
"""Called on each worker with its device, cuda or cpu; returns what does the work there. It has to be importable."""


@dataclass(frozen=True)
class Died:
    """In place of a result: every worker died that tried."""

    reason: str = f"{DEATHS} workers died of it"


@dataclass(eq=False)
class _Worker(Worker):
    """item: what it works on."""

    item: Any = None


class Tasks(Crew[_Worker]):
    """Items, each done by one worker, and done again where that dies."""

    def __init__(self, cluster: Cluster, make: Make, items: Iterable[Any]) -> None:
        """items: hashable, not None; the next one is taken when a worker is free."""
        super().__init__(cluster)
        self.items = iter(items)
        self.again: list[Any] = []
        self.died = Counter[Any]()
        self.make = self.ray.put(make)

    def results(self) -> Iterator[tuple[Any, Any]]:
        """(item, what came of it), as they end; `Died` where nothing did."""
        first = self._next()
        if first is None:
            return
        self.again.append(first)
        try:
            self.gather(self.cluster.workers)
            while True:
                while self.idle and (item := self._next()) is not None:
                    self._hand(self.idle.pop(), item)
                if self.idle and not self.busy:
                    return
                if (waited := self.wait()) is not None:
                    yield from self._ended(waited)
        finally:
            self.dismiss()

    def engaged(self, actor: Any) -> _Worker:
        device = "cuda" if self.cluster.on_gpu else "cpu"
        return _Worker(actor, actor.prepare.remote(self.make, device, self.cluster.threads))

    def _next(self) -> Any | None:
        """The next item, if there is one. What a dead worker left comes first."""
        return self.again.pop() if self.again else next(self.items, None)

    def _hand(self, worker: _Worker, item: Any) -> None:
        worker.item = item
        self.busy[worker.actor.do.remote(worker.loaded, item)] = worker

    def _ended(self, waited: Any) -> Iterator[tuple[Any, Any]]:
        worker = self.busy.pop(waited)
        try:
            result = self.ray.get(waited)
        except self.deaths:
            self.died[worker.item] += 1
            if self.died[worker.item] < DEATHS:
                self.again.append(worker.item)
            self.replace(worker, "what it did is done again")
            if self.died[worker.item] >= DEATHS:
                yield worker.item, Died()
        except self.ray.exceptions.RayTaskError as error:
            raise self.plain(error) from None
        else:
            self.idle.append(worker)
            yield worker.item, result
