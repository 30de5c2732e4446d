"""Dealing images out over the workers of a Ray cluster, and gathering their verdicts.

Every image is handed to one worker at a time. A worker that dies has its unfinished images handed out again; a verdict
that has arrived is never asked for again, so none is lost and none comes twice. When nothing is left to hand out, an
idle worker gets half of the open images of another, which go on there as they stand.
"""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from torch import Tensor, nn

from lipgraft.cluster.connection import LOCAL, ClusterError, connected
from lipgraft.cluster.queue import DEATHS, Queue
from lipgraft.cluster.share import Finding, Question
from lipgraft.errors import LipgraftError, SettingsError
from lipgraft.network import Network
from lipgraft.runs.fingerprint import network_fingerprint
from lipgraft.verification import Verdict, VerifySettings
from lipgraft.verification.cascade import CPU_GROUP
from lipgraft.verification.handover import Package
from lipgraft.verification.job import Job
from lipgraft.verification.ledger import Decided
from lipgraft.version import __version__

START_SECONDS = 120.0
"""How long the first worker may take to start."""

LOOK_SECONDS = 1.0
"""Between two looks at the clock while no worker says anything."""

RIPE = 1.0
"""Seconds that a worker keeps its images before it is asked for some, and between two such questions."""

ASIDE = "aside"
"""A worker's second thread, in which it is asked for images while it verifies."""

SOON = 1e-3
"""Seconds given to chunks after the end of the run's time, in which they end as timeouts."""


@dataclass(eq=False)
class _Worker:
    """actor: Ray's; images: what it was handed and has not answered, by place in its chunk; loaded: Ray's promise that
    it has the model, None before it has greeted; network: the one that its proofs speak of; handed: how many images it
    was handed last, and when; asked: when it has last answered whether it can spare any; resting: it has said all, but
    not yet answered that.
    """

    actor: Any
    images: dict[int, int] = field(default_factory=dict)
    loaded: Any = None
    network: Network | None = None
    handed: tuple[int, float] = (0, 0.0)
    asked: float = 0.0
    resting: bool = False


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
        self._run: _Run | None = None
        self._crew: list[_Worker] = []  # those that have done their part of one question, and wait for the next

    def __enter__(self) -> Cluster:
        self._ray = self._connection.__enter__()
        try:
            self._count()
        except SettingsError as error:
            self._connection.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._run is not None:
            self._run.dismiss()
        for worker in self._crew:
            self._ray.kill(worker.actor)
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
        most = settings.images if self.on_gpu else min(settings.images, CPU_GROUP)
        queue = Queue(range(len(x)), self.workers, most)
        self._run = _Run(self, question, x, y, queue, began, watch, together)
        return self._run.verdicts()


class _Run:
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
        self.ray, self.cluster, self.question = cluster._ray, cluster, question
        self.x, self.y, self.queue, self.began, self.watch, self.together = x, y, queue, began, watch, together
        self.parcel = self.ray.put(question)
        self.busy: dict[Any, _Worker] = {}  # by what Ray is asked to wait for: a greeting, or a stream of findings
        self.greeting: set[Any] = set()
        self.idle: list[_Worker] = []
        self.asking: dict[Any, tuple[_Worker, Any]] = {}  # who is asked for images, and what they will come in
        self.moving: list[tuple[list[int], Any]] = []  # images that have left one worker for another
        self.networks: dict[str, Network] = {}
        # How many workers died before they greeted, one after the other; whether any has.
        self.stillborn, self.greeted = 0, False

    def verdicts(self) -> Iterator[Decided]:
        try:
            crew, self.cluster._crew = self.cluster._crew, []
            for worker in crew:
                self._engage(worker)
            for _ in range(min(self.cluster.workers, len(self.x)) - len(crew)):
                self._hire()
            left = len(self.x)
            # Who has said all has yet to say that it has.
            while left or len(self.busy) > len(self.greeting) or self.asking:
                for decided in self._turn():
                    left -= 1
                    yield decided
        finally:
            self.dismiss()

    def dismiss(self) -> None:
        """End the workers that still do something; the others wait for the next question. Only while connected."""
        self.cluster._crew += self.idle
        workers = [*self.busy.values(), *(worker for worker, _ in self.asking.values() if worker.resting)]
        self.busy, self.idle, self.asking = {}, [], {}
        for worker in workers:
            self.ray.kill(worker.actor)

    def _turn(self) -> Iterator[Decided]:
        """Hand out what waits, then take what came first."""
        self.together &= bool(self.greeting)
        while self.idle and self.moving:
            self._hand_on(self.idle.pop())
        while self.idle and len(self.queue) and not self.together:
            self._hand_out(self.idle.pop())
        self._ask()
        ready, _ = self.ray.wait([*self.busy, *self.asking], num_returns=1, timeout=LOOK_SECONDS)
        if not ready and not self.greeted and self._now() > START_SECONDS:
            free = ", ".join(f"{k} {v:g}" for k, v in self.ray.available_resources().items() if k in ("CPU", "GPU"))
            raise ClusterError(
                f"no worker started within {START_SECONDS:.0f} s; free in the cluster: {free or 'nothing'}."
            )
        for waited in ready:
            if waited in self.asking:
                yield from self._answered(waited)
                continue
            worker = self.busy.pop(waited)
            try:
                if waited in self.greeting:
                    self.greeting.remove(waited)
                    self._greet(worker, self.ray.get(waited))
                else:
                    yield self._found(worker, self.ray.get(next(waited)))
                    self.busy[waited] = worker
            except StopIteration:
                images, since = worker.handed
                self.queue.took(images, self._now() - since)
                worker.resting = any(worker is asked for asked, _ in self.asking.values())
                if not worker.resting:
                    self.idle.append(worker)
            except (self.ray.exceptions.RayActorError, self.ray.exceptions.ObjectLostError):
                yield from self._bury(worker)
            except self.ray.exceptions.RayTaskError as error:
                raise _plain(self.ray, error) from None

    def _hire(self) -> None:
        asides = {ASIDE: 1}
        actor = self.ray.remote(**self.cluster._takes, max_restarts=0, concurrency_groups=asides)(_shell()).remote()
        hello = actor.hello.remote()
        self.greeting.add(hello)
        self.busy[hello] = _Worker(actor)

    def _greet(self, worker: _Worker, said: tuple[str, str | None]) -> None:
        host, version = said
        if version != __version__:
            has = "no lipgraft" if version is None else f"lipgraft {version}"
            raise ClusterError(
                f"the worker on {host} has {has}, and this is {__version__}; install the same everywhere."
            )
        self.stillborn = 0
        self._engage(worker)

    def _engage(self, worker: _Worker) -> None:
        """Send a worker the model; it is ready for images then."""
        self.greeted, worker.network, worker.asked, worker.handed = True, None, 0.0, (0, 0.0)
        device = "cuda" if self.cluster.on_gpu else "cpu"
        worker.loaded = worker.actor.load.remote(self.parcel, device, self.cluster.threads)
        self.idle.append(worker)

    def _hand_out(self, worker: _Worker) -> None:
        self._hand(worker, self.queue.take(), None)

    def _hand_on(self, worker: _Worker) -> None:
        self._hand(worker, *self.moving.pop(0))

    def _hand(self, worker: _Worker, images: list[int], package: Any) -> None:
        """package: a promise of what another worker has done of them; None: they are new."""
        worker.images, worker.handed = dict(enumerate(images)), (len(images), self._now())
        eps = self.question.eps
        mine = eps[images] if isinstance(eps, Tensor) and eps.ndim else eps
        limit = self.question.settings.limits.total_seconds
        left = None if limit is None else max(SOON, limit - self._now())
        verify = worker.actor.verify.options(num_returns="streaming")
        self.busy[verify.remote(worker.loaded, self.x[images], self.y[images], mine, left, package)] = worker

    # --- open images that move to another worker

    def _ask(self) -> None:
        """Ask the workers with the most open images for some, if others have nothing to do."""
        spare = len(self.idle) - len(self.asking) - len(self.moving) - len(self.queue)
        if spare <= 0 or self.question.certificates:
            return
        now, asked = self._now(), [worker for worker, _ in self.asking.values()]
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
        except (self.ray.exceptions.RayActorError, self.ray.exceptions.ObjectLostError):
            self.ray.kill(worker.actor)
            if worker.resting:  # else its stream of findings will say so too
                yield from self._bury(worker)
            return
        except self.ray.exceptions.RayTaskError as error:
            raise _plain(self.ray, error) from None
        if places:
            self.moving.append(([worker.images.pop(place) for place in places], package))
        worker.asked = self._now()
        if worker.resting:
            worker.resting = False
            self.idle.append(worker)

    def _found(self, worker: _Worker, finding: Finding) -> Decided:
        if self.watch is not None and finding.bounded:
            self.watch(finding.bounded)
        if finding.network is not None:  # equal ones of several workers are kept once
            worker.network = self.networks.setdefault(network_fingerprint(finding.network), finding.network)
        certificate = None
        if finding.proof is not None:
            assert worker.network is not None
            certificate = finding.proof.of(worker.network)
        verdict = replace(finding.verdict, certificate=certificate, ended=self._now())
        return worker.images.pop(finding.place), verdict

    def _bury(self, worker: _Worker) -> Iterator[Decided]:
        """Another worker takes a dead one's place, and its unfinished images."""
        self.ray.kill(worker.actor)  # after a lost message it may still live
        self.asking = {answer: asked for answer, asked in self.asking.items() if asked[0] is not worker}
        self.stillborn += worker.loaded is None
        if self.stillborn >= DEATHS:
            raise ClusterError(
                f"{DEATHS} workers died as they started; look at Ray's logs, or ask for fewer --workers."
            )
        self.cluster._notice(f"a worker died; its {len(worker.images)} unfinished images are done again.")
        for image in self.queue.died(worker.images.values()):
            reason = f"{DEATHS} workers died while they verified this image"
            yield image, Verdict("error", reason, ended=self._now())
        self._hire()

    def _now(self) -> float:
        return time.perf_counter() - self.began


def _plain(ray: Any, error: Any) -> Exception:
    """What a worker raised, for people where it was meant for them."""
    if isinstance(error.cause, LipgraftError):
        return error.cause
    missing = re.search(r"No module named '[^']+'", str(error))
    if isinstance(error.cause, ray.exceptions.RaySystemError) and missing:
        return ClusterError(f"a worker cannot load the model: {missing[0]}; install it on every machine.")
    return ClusterError(f"a worker failed; this is a fault of lipgraft, please report it: {error}")


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
            """loaded: of `load`; where that failed, Ray raises its error here."""
            yield from self.share.verify(x, y, eps, seconds_left, package)

        def give(self, loaded: None) -> tuple[list[int], Package | None]:
            return self.share.give()

    return Worker
