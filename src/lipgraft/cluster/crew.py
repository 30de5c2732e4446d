"""The workers of a Ray cluster: starting them, waiting for them, replacing those that die."""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from torch import Tensor

from lipgraft.cluster.connection import ClusterError
from lipgraft.errors import LipgraftError
from lipgraft.version import __version__

if TYPE_CHECKING:
    from lipgraft.cluster.driver import Cluster
    from lipgraft.cluster.share import Finding, Question
    from lipgraft.verification.handover import Package

START_SECONDS = 120.0
"""How long the first worker may take to start."""

LOOK_SECONDS = 1.0
"""Between two looks at the clock while no worker says anything."""

DEATHS = 3
"""Workers that may die with a piece of work, the last of them alone with it, before it counts as an error; or that may
die one after the other as they start."""

ASIDE = "aside"
"""A worker's second thread, in which it is asked for images while it verifies."""


@dataclass(eq=False)
class Worker:
    """actor: Ray's; loaded: Ray's promise that it has what it needs for its work."""

    actor: Any
    loaded: Any


W = TypeVar("W", bound=Worker)


class Crew(ABC, Generic[W]):
    """The workers that do one kind of work, until it is done. Those that are idle then stay for the next."""

    def __init__(self, cluster: Cluster) -> None:
        self.ray, self.cluster, self.began = cluster._ray, cluster, time.perf_counter()
        self.greeting: dict[Any, Any] = {}  # actors by Ray's promise of their greeting
        self.busy: dict[Any, W] = {}  # by the promise of what they do
        self.idle: list[W] = []
        # How many died before they greeted, one after the other; whether any has.
        self.stillborn, self.greeted = 0, False
        errors = self.ray.exceptions
        self.deaths = (errors.RayActorError, errors.ObjectLostError)

    @abstractmethod
    def engaged(self, actor: Any) -> W:
        """A worker, sent what it needs for its work."""

    def now(self) -> float:
        return time.perf_counter() - self.began

    def gather(self, most: int) -> None:
        """Take those that wait, and hire others, at most so many in all."""
        waiting, self.cluster._waiting = self.cluster._waiting, []
        for actor in waiting:
            self._engage(actor)
        for _ in range(min(self.cluster.workers, most) - len(waiting)):
            self.hire()

    def hire(self) -> None:
        actor = self.ray.remote(**self.cluster._takes, max_restarts=0, concurrency_groups={ASIDE: 1})(_shell()).remote()
        self.greeting[actor.hello.remote()] = actor

    def dismiss(self) -> None:
        """End the workers that still do something; the others wait for what comes next. Only while connected."""
        self.cluster._waiting += [worker.actor for worker in self.idle]
        ended = [*self.greeting.values(), *(worker.actor for worker in self.busy.values())]
        self.greeting, self.busy, self.idle = {}, {}, []
        for actor in ended:
            self.ray.kill(actor)

    def wait(self, more: Iterable[Any] = ()) -> Any | None:
        """The first promise of somebody busy, or of these, that is kept; None: nothing for now. Greetings are heard."""
        self.cluster.interrupts.check()
        ready, _ = self.ray.wait([*self.greeting, *self.busy, *more], num_returns=1, timeout=LOOK_SECONDS)
        if not ready:
            if not self.greeted and self.now() > START_SECONDS:
                has = self.ray.available_resources()
                free = ", ".join(f"{name} {has[name]:g}" for name in ("CPU", "GPU") if name in has)
                raise ClusterError(
                    f"no worker started within {START_SECONDS:.0f} s; free in the cluster: {free or 'nothing'}."
                )
            return None
        if ready[0] not in self.greeting:
            return ready[0]
        actor = self.greeting.pop(ready[0])
        try:
            self._greet(actor, *self.ray.get(ready[0]))
        except self.deaths:
            self._stillborn(actor)
        return None

    def replace(self, worker: W, what: str) -> None:
        """Another worker takes a dead one's place. what: becomes of its work."""
        self.ray.kill(worker.actor)  # after a lost message it may still live
        self.cluster._notice(f"a worker died; {what}.")
        self.hire()

    def plain(self, error: Any) -> Exception:
        """What a worker raised, for people where it was meant for them."""
        if isinstance(error.cause, LipgraftError):
            return error.cause
        missing = re.search(r"No module named '[^']+'", str(error))
        if isinstance(error.cause, self.ray.exceptions.RaySystemError) and missing:
            return ClusterError(f"a worker cannot load the model: {missing[0]}; install it on every machine.")
        return ClusterError(f"a worker failed; this is a bug in lipgraft, please report it: {error}")

    def _engage(self, actor: Any) -> None:
        self.greeted = True
        self.idle.append(self.engaged(actor))

    def _greet(self, actor: Any, host: str, version: str | None) -> None:
        if version != __version__:
            has = "no lipgraft" if version is None else f"lipgraft {version}"
            raise ClusterError(
                f"the worker on {host} has {has}, and this is {__version__}; install the same everywhere."
            )
        self.stillborn = 0
        self._engage(actor)

    def _stillborn(self, actor: Any) -> None:
        self.ray.kill(actor)
        self.stillborn += 1
        if self.stillborn >= DEATHS:
            raise ClusterError(
                f"{DEATHS} workers died as they started; look at Ray's logs, or ask for fewer --workers."
            )
        self.cluster._notice("a worker died as it started.")
        self.hire()


def _shell() -> type:
    """The worker's class, made in a function: such a class travels as it is, and can say whether the other machine has
    lipgraft, and which. Everything else is that lipgraft's own.
    """

    class Worker:
        def hello(self) -> tuple[str, str | None]:
            import platform

            try:
                from lipgraft.version import __version__ as version
            except ImportError:
                return platform.node(), None
            return platform.node(), version

        # `loaded` is what `load` or `prepare` promised; where that failed, Ray raises its error in whoever needs it.

        def load(self, question: Question, device: str, threads: int) -> None:
            from lipgraft.cluster.share import Share

            self.share = Share(question, device, threads)

        def verify(
            self,
            loaded: None,
            x: Tensor,
            y: Tensor,
            eps: float | Tensor,
            seconds_left: float | None,
            package: Package | None,
        ) -> Iterator[Finding]:
            yield from self.share.verify(x, y, eps, seconds_left, package)

        def give(self, loaded: None) -> tuple[list[int], Package | None]:
            return self.share.give()

        def prepare(self, make: Callable[[str], Callable[[Any], Any]], device: str, threads: int) -> None:
            import torch

            torch.set_num_threads(threads)
            self.task = make(device)

        def do(self, loaded: None, item: Any) -> Any:
            return self.task(item)

    return Worker
