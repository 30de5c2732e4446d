"""Dealing images out over the workers of a Ray cluster, and gathering their verdicts.

Every image is handed to one worker at a time. A worker that dies has its unfinished images handed out again; a verdict
that has arrived is never asked for again, so none is lost and none comes twice. When nothing is left to hand out, an
idle worker gets half of the open images of another, which go on there as they stand.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from torch import Tensor, nn

from lipgraft.cluster.connection import LOCAL, connected
from lipgraft.cluster.crew import ASIDE, DEATHS, Crew, Worker
from lipgraft.cluster.interrupts import Interrupts
from lipgraft.cluster.queue import Queue
from lipgraft.cluster.share import Finding, Question
from lipgraft.cluster.tasks import Make, Tasks
from lipgraft.errors import SettingsError
from lipgraft.network import Network
from lipgraft.runs.fingerprint import network_fingerprint
from lipgraft.runs.progress import WorkerState
from lipgraft.verification import Verdict, VerifySettings
from lipgraft.verification.api import CPU_GROUP
from lipgraft.verification.job import Job
from lipgraft.verification.verdict import Decided

RIPE = 1.0
"""Seconds that a worker keeps its images before it is asked for some, and between two such questions."""

GPU_CHUNK = 1024
"""Images that a GPU gets at most at once. Each chunk begins with seconds that hardly depend on how many they are."""

SOON = 1e-3
"""Seconds given to chunks after the end of the run's time, in which they end as timeouts."""


@dataclass(eq=False)
class _Worker(Worker):
    """images: what it was handed and has not answered, by place in its chunk; network: the one that proofs are about.

    handed: how many images it was handed last, and when; asked: when it has last answered whether it can spare any;
    resting: it has said all, but not yet answered that. number, decided, subproblems: for people.
    """

    images: dict[int, int] = field(default_factory=dict)
    network: Network | None = None
    handed: tuple[int, float] = (0, 0.0)
    asked: float = 0.0
    resting: bool = False
    number: int = 0
    decided: int = 0
    subproblems: int = 0


class Cluster:
    """The workers of a Ray cluster, while the block lasts.

    address: "local", or HOST:PORT of a cluster that this machine belongs to.
    workers: how many; None: one per GPU, or where there is none, as many as its CPUs allow.
    device: "auto" takes GPUs where the cluster has some; "cpu"; "cuda". More workers than GPUs share them.
    threads: CPU threads of each worker.
    notice: called with a sentence when a worker dies.
    """

    def __init__(
        self,
        address: str = LOCAL,
        *,
        workers: int | None = None,
        device: str = "auto",
        threads: int = 1,
        notice: Callable[[str], None] | None = None,
    ) -> None:
        if device not in ("auto", "cpu", "cuda"):
            raise SettingsError(
                f"workers of a cluster choose their GPUs themselves; use auto, cpu or cuda, not {device}."
            )
        self._asked, self._device, self.threads = workers, device, threads
        self._notice = notice or (lambda text: None)
        cpus = None if workers is None else workers * threads
        self._connection: AbstractContextManager[Any] = connected(address, cpus)
        self._work: _Run | Tasks | None = None
        self.interrupts = Interrupts()
        self._waiting: list[Any] = []  # actors that have done their part of one question, and wait for the next

    def __enter__(self) -> Cluster:
        self._ray = self._connection.__enter__()
        try:
            self._count()
        except SettingsError as error:
            self._connection.__exit__(type(error), error, error.__traceback__)
            raise
        self.interrupts.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._work is not None:
            self._work.dismiss()
        for actor in self._waiting:
            self._ray.kill(actor)
        self.interrupts.__exit__(kind, error, trace)
        self._connection.__exit__(kind, error, trace)

    def _count(self) -> None:
        """How many workers there will be, and what each takes of the cluster."""
        has = self._ray.cluster_resources()
        cpus, gpus = int(has.get("CPU", 0)), int(has.get("GPU", 0))
        if self._device == "cuda" and not gpus:
            raise SettingsError("the cluster has no GPUs; use --device cpu.")
        self.on_gpu = gpus > 0 and self._device != "cpu"
        self.workers = self._asked or (gpus if self.on_gpu else max(1, cpus // self.threads))
        if self.workers * self.threads > cpus:
            raise SettingsError(
                f"the cluster has {cpus} CPUs, too few for {self.workers} workers with {self.threads} each; ask for "
                "fewer --workers or --threads."
            )
        self._takes: dict[str, float] = {"num_cpus": self.threads}
        if self.on_gpu:
            self._takes["num_gpus"] = 1 / -(-self.workers // gpus)

    def verify_stream(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        eps: float | Tensor,
        *,
        settings: VerifySettings,
        watch: Callable[[int], None] | None = None,
        certificates: bool = False,
        together: bool = False,
    ) -> Iterator[Decided]:
        """`verification.verify_stream` over the workers. The clock of `ended` and `total_seconds` is this machine's.

        together: nobody begins before all workers are there.
        """
        began = time.perf_counter()
        x, y = x.cpu(), y.cpu()
        model = copy.deepcopy(model).cpu()
        first = eps[:1] if isinstance(eps, Tensor) and eps.ndim else eps
        # What is wrong with the question is said here, before any worker starts.
        Job.of(model, x[:1], y[:1], first, 0.0, 1.0, settings, certificates=certificates)
        question = Question(model, eps, settings, certificates)
        queue = first_queue(len(x), self.workers, settings, on_gpu=self.on_gpu)
        self._work = run = _Run(self, question, x, y, queue, began, watch, together)
        return run.verdicts()

    def states(self) -> list[WorkerState]:
        """What each worker has done so far of the question that is being answered. Any thread may ask."""
        team = list(self._work.team) if isinstance(self._work, _Run) else []
        return [WorkerState(one.number, len(one.images), one.decided, one.subproblems) for one in team]

    def each(self, make: Make, items: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """(item, what came of it) for all items, each done by one worker, as they end; `Died` where no worker survived.

        make: called on each worker with its device, "cuda" or "cpu"; returns what is called there with an item. Both
        have to be importable. items: hashable, not None; the next one is taken when a worker is free.
        """
        self._work = tasks = Tasks(self, make, items)
        return tasks.results()


def first_queue(images: int, workers: int, settings: VerifySettings, *, on_gpu: bool) -> Queue:
    """All images, in the chunks in which workers get them; open ones move to who is done first.

    A GPU gets its whole share at once. So does a CPU if the run's time is limited: it tries all images that it has
    before the hard ones have a turn, and with a part of its share it might never come to the rest.
    """
    share = max(1, -(-images // workers))
    if on_gpu:
        return Queue(range(images), workers, GPU_CHUNK, least=share)
    if settings.limits.total_seconds is not None:
        return Queue(range(images), workers, share, least=share)
    return Queue(range(images), workers, min(settings.images, CPU_GROUP))


class _Run(Crew[_Worker]):
    """One question put to the workers, from the first image to the last."""

    def __init__(
        self,
        cluster: Cluster,
        question: Question,
        x: Tensor,
        y: Tensor,
        queue: Queue,
        began: float,
        watch: Callable[[int], None] | None,
        together: bool,
    ) -> None:
        super().__init__(cluster)
        self.question, self.began, self.watch, self.together = question, began, watch, together
        self.x, self.y, self.queue = x, y, queue
        self.parcel = self.ray.put(question)
        self.asking: dict[Any, tuple[_Worker, Any]] = {}  # who is asked for images, and what they will come in
        self.moving: list[tuple[list[int], Any]] = []  # images that have left one worker for another
        self.networks: dict[str, Network] = {}
        self.team: list[_Worker] = []  # all who live
        self.hired = 0

    def verdicts(self) -> Iterator[Decided]:
        try:
            self.gather(len(self.x))
            left = len(self.x)
            while left or self.busy or self.asking:  # who has said all has yet to say that it has
                for decided in self._turn():
                    left -= 1
                    yield decided
        finally:
            self.dismiss()

    def dismiss(self) -> None:
        for worker, _ in self.asking.values():
            if worker.resting:
                self.ray.kill(worker.actor)
        self.asking = {}
        super().dismiss()

    def engaged(self, actor: Any) -> _Worker:
        """A worker with the model, ready for images."""
        device = "cuda" if self.cluster.on_gpu else "cpu"
        self.hired += 1
        loaded = actor.load.remote(self.parcel, device, self.cluster.threads)
        self.team.append(_Worker(actor, loaded, number=self.hired))
        return self.team[-1]

    def _turn(self) -> Iterator[Decided]:
        """Hand out what waits, then take what came first."""
        self.together &= bool(self.greeting)
        while self.idle and self.moving:
            self._hand_on(self.idle.pop())
        while self.idle and len(self.queue) and not self.together:
            self._hand_out(self.idle.pop())
        self._ask()
        waited = self.wait(self.asking)
        if waited is None:
            return
        if waited in self.asking:
            yield from self._answered(waited)
            return
        worker = self.busy.pop(waited)
        try:
            yield self._found(worker, self.ray.get(next(waited)))
            self.busy[waited] = worker
        except StopIteration:
            images, since = worker.handed
            self.queue.took(images, self.now() - since)
            worker.resting = any(worker is asked for asked, _ in self.asking.values())
            if not worker.resting:
                self.idle.append(worker)
        except self.deaths:
            yield from self._bury(worker)
        except self.ray.exceptions.RayTaskError as error:
            raise self.plain(error) from None

    def _hand_out(self, worker: _Worker) -> None:
        self._hand(worker, self.queue.take(), None)

    def _hand_on(self, worker: _Worker) -> None:
        self._hand(worker, *self.moving.pop(0))

    def _hand(self, worker: _Worker, images: list[int], package: Any) -> None:
        """package: a promise of what another worker has done of them; None: they are new."""
        worker.images, worker.handed = dict(enumerate(images)), (len(images), self.now())
        eps = self.question.eps
        mine = eps[images] if isinstance(eps, Tensor) and eps.ndim else eps
        limit = self.question.settings.limits.total_seconds
        left = None if limit is None else max(SOON, limit - self.now())
        verify = worker.actor.verify.options(num_returns="streaming")
        self.busy[verify.remote(worker.loaded, self.x[images], self.y[images], mine, left, package)] = worker

    # --- open images that move to another worker

    def _ask(self) -> None:
        """Ask the workers with the most open images for some, if others have nothing to do."""
        spare = len(self.idle) - len(self.asking) - len(self.moving) - len(self.queue)
        if spare <= 0 or self.question.certificates:
            return
        now, asked = self.now(), [worker for worker, _ in self.asking.values()]
        ripe = [
            worker
            for worker in self.busy.values()
            if len(worker.images) > 1 and worker not in asked and now - max(worker.asked, worker.handed[1]) > RIPE
        ]
        for worker in sorted(ripe, key=lambda one: -len(one.images))[:spare]:
            give = worker.actor.give.options(num_returns=2, concurrency_group=ASIDE)
            places, package = give.remote(worker.loaded)
            self.asking[places] = (worker, package)

    def _answered(self, waited: Any) -> Iterator[Decided]:
        """A worker has said which of its images it gives away; or it has died."""
        worker, package = self.asking.pop(waited)
        try:
            places = self.ray.get(waited)
        except self.deaths:
            self.ray.kill(worker.actor)
            if worker.resting:  # else its stream of findings will say so too
                yield from self._bury(worker)
            return
        except self.ray.exceptions.RayTaskError as error:
            raise self.plain(error) from None
        if places:
            self.moving.append(([worker.images.pop(place) for place in places], package))
        worker.asked = self.now()
        if worker.resting:
            worker.resting = False
            self.idle.append(worker)

    def _found(self, worker: _Worker, finding: Finding) -> Decided:
        worker.decided, worker.subproblems = worker.decided + 1, worker.subproblems + finding.bounded
        if self.watch is not None and finding.bounded:
            self.watch(finding.bounded)
        if finding.network is not None:  # equal ones of several workers are kept once
            worker.network = self.networks.setdefault(network_fingerprint(finding.network), finding.network)
        certificate = None
        if finding.proof is not None:
            assert worker.network is not None
            certificate = finding.proof.of(worker.network)
        verdict = replace(finding.verdict, certificate=certificate, ended=self.now())
        return worker.images.pop(finding.place), verdict

    def _bury(self, worker: _Worker) -> Iterator[Decided]:
        """Another worker takes a dead one's place, and its unfinished images."""
        self.team.remove(worker)
        self.asking = {answer: asked for answer, asked in self.asking.items() if asked[0] is not worker}
        self.replace(worker, f"its {len(worker.images)} unfinished images are done again")
        for image in self.queue.died(worker.images.values()):
            reason = f"{DEATHS} workers died while they verified this image"
            yield image, Verdict("error", reason, ended=self.now())
