"""`verify_vnnlib`: does a network have a property? One ONNX file, one VNNLIB file, one word."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from lipgraft.errors import SettingsError
from lipgraft.files import check_folder
from lipgraft.inputs import seconds, settings_of
from lipgraft.interop.certificates import CertificateFolder
from lipgraft.interop.clock import OutOfTime, check_time
from lipgraft.interop.corners import falsify_corners
from lipgraft.interop.errors import VnnlibError
from lipgraft.interop.falsify import QUICK, THOROUGH, Effort, falsify
from lipgraft.interop.load import check_import, import_checked
from lipgraft.interop.module import OnnxNetwork
from lipgraft.interop.property_network import PropertyNetwork
from lipgraft.interop.replay import replay
from lipgraft.interop.result import VnnResult, Word, write_result
from lipgraft.interop.runtime import OnnxRuntime
from lipgraft.interop.specification import Region, Specification
from lipgraft.interop.splitting import MOST_INPUTS, split_inputs
from lipgraft.interop.vnnlib import read_vnnlib
from lipgraft.network import Network, trace
from lipgraft.rounding import inner_box
from lipgraft.verification import VerifySettings, verify_stream

PathLike = str | os.PathLike[str]
HALVED, SMALL = 6, 4000  # free inputs and neurons up to which boxes are halved and nothing else is tried
ATTACKED = 64  # regions that are few enough for a thorough attack on each
CHECKED = 16  # points of a property at which the import is compared with onnxruntime


@dataclass(frozen=True, eq=False)
class Subject:
    """A network to verify, and onnxruntime to confirm counterexamples. like: its device and dtype."""

    network: OnnxNetwork
    judge: OnnxRuntime
    like: Tensor

    @staticmethod
    def read(path: PathLike, device: torch.device | str = "cpu", *, deadline: float = math.inf) -> Subject:
        """After the deadline (time.monotonic), OutOfTime is raised."""
        judge = OnnxRuntime(path)
        network = import_checked(judge, deadline, drop_softmax=True).to(device)
        return Subject(network, judge, torch.empty(0, dtype=getattr(torch, judge.file.dtype), device=device))

    @cached_property
    def exact(self) -> Network:
        """The network's graph in double precision."""
        return trace(deepcopy(self.network).double(), self.network.input_shape, products=True).to()

    @property
    def neurons(self) -> int:
        """Of all activations."""
        return sum(math.prod(node.shape) for _, node in self.exact.activations())


def verify_vnnlib(
    onnx_path: PathLike,
    vnnlib_path: PathLike,
    timeout: float = 300.0,
    *,
    device: torch.device | str = "cpu",
    results: PathLike | None = None,
    settings: VerifySettings | None = None,
    started: float | None = None,
    certificates: PathLike | None = None,
) -> VnnResult:
    """Can the network do what the specification describes? "unsat": never; "sat": here is how.

    timeout: seconds for everything, reading included. results: a file that gets the word and the counterexample. A
    file that cannot be used is a LipgraftError, and "error" in the results. started: when the seconds began to run, by
    time.monotonic; by default now. certificates: a folder that gets a certificate for every region that is proved.
    """
    started = time.monotonic() if started is None else started
    chosen = settings_of(settings, VerifySettings, VerifySettings())
    result = VnnResult("error")  # until there is a better word
    deadline = started + seconds(timeout, "timeout")
    try:
        specification = read_vnnlib(vnnlib_path, deadline=deadline)
        subject = Subject.read(onnx_path, device, deadline=deadline)
        result = verify_specification(
            subject, specification, deadline, where=str(vnnlib_path), settings=chosen, certificates=certificates
        )
    except OutOfTime:
        result = VnnResult("timeout")
    finally:
        if results is not None:
            write_result(results, result.text())
    return replace(result, seconds=time.monotonic() - started)


def verify_specification(
    subject: Subject,
    specification: Specification,
    deadline: float,
    *,
    where: str = "the specification",
    settings: VerifySettings | None = None,
    certificates: PathLike | None = None,
) -> VnnResult:
    """Decide every region, until one is violated. deadline: by time.monotonic.

    certificates: a folder that gets a folder for every region that is proved, with the region's network in it (see
    `PropertyNetwork`) and a certificate that its class 0 wins. Boxes are not halved then, as such proofs have no file.
    """
    chosen = settings_of(settings, VerifySettings, VerifySettings())
    _check_counts(subject, specification, where)
    dropped = subject.network.dropped
    if dropped is not None:
        if chosen.speaks_of == "float32":
            raise SettingsError(
                f"speaks_of: float32 needs every operator, and the network's final {dropped} is left out: it keeps the "
                f"order of real numbers, but rounded, different inputs of {dropped} have equal results; export the "
                f"network without {dropped}, or use speaks_of: real."
            )
        specification = _order_alone(specification, dropped, where)
    kept = None if certificates is None else check_folder(certificates)
    try:
        answer = _answer(subject, specification, deadline, chosen, kept)
    except OutOfTime:
        answer = VnnResult("timeout")
    note = None if dropped is None else f"the network's final {dropped} is left out: only the outputs' order counts"
    return replace(answer, note=note, names=(specification.x, specification.y))


def _answer(
    subject: Subject, specification: Specification, deadline: float, settings: VerifySettings, kept: Path | None
) -> VnnResult:
    """Attack all regions, then prove them: by halving boxes where inputs are few, otherwise one after the other."""
    _check_in_boxes(subject, specification, deadline)
    if len(list(islice(specification.expand(deadline), 2))) > 1:
        # A violation that is easy to find must not wait for the proofs of other regions.
        found = _attacked(subject, specification, _half(deadline), settings, QUICK)
        if found is not None:
            return found
    count = free = 0
    for region in specification.expand(deadline):
        count, free = count + 1, max(free, int((region.lower < region.upper).sum()))
    if free > MOST_INPUTS or settings.speaks_of != "real" or kept is not None:
        return _decide_all(subject, specification, count, deadline, settings, kept)
    if count <= ATTACKED:
        found = _attacked(subject, specification, _half(deadline), settings, THOROUGH)
        if found is not None:
            return found
    now = time.monotonic()
    few = (free <= HALVED and subject.neurons <= SMALL) or count > ATTACKED
    answer = _split(subject, specification, deadline if few else now + (deadline - now) / 8, settings)
    if few or answer.status in ("sat", "unsat"):
        return answer
    tried = _decide_all(subject, specification, count, _half(deadline), settings, None)  # neurons may be easier
    return tried if tried.status in ("sat", "unsat") else _split(subject, specification, deadline, settings)


def _split(subject: Subject, specification: Specification, until: float, settings: VerifySettings) -> VnnResult:
    """All regions by halving boxes."""
    regions, sound = specification.expand(until), settings.arithmetic == "sound"
    try:
        split = split_inputs(subject.exact, regions, subject.judge, until, sound=sound)
    except OutOfTime:
        return VnnResult("timeout", method="input-splitting")
    return VnnResult(split.status, split.counterexample, method="input-splitting")


def _half(deadline: float) -> float:
    """The middle between now and the deadline."""
    return (time.monotonic() + deadline) / 2


def _attacked(
    subject: Subject, specification: Specification, until: float, settings: VerifySettings, effort: Effort
) -> VnnResult | None:
    """ "sat" if an ascent finds a violation. until: by time.monotonic."""
    regions = specification.expand(until)
    network, judge, like = subject.network, subject.judge, subject.like
    try:
        found = falsify(network, regions, judge, like, until, effort=effort, seed=settings.attack.seed)
    except OutOfTime:
        return None
    return None if found is None else VnnResult("sat", found, method="pgd")


def _decide_all(
    subject: Subject,
    specification: Specification,
    count: int,
    deadline: float,
    settings: VerifySettings,
    kept: Path | None,
) -> VnnResult:
    """Every region in turn, each for its share of the time that is left; what some leave over goes to the open ones.

    count: how many regions there are.
    """
    open_: list[VnnResult] = []
    method: str | None = None
    waiting: Collection[int] = range(count)
    try:
        while waiting:
            again: set[int] = set()
            turns = ((i, region) for i, region in enumerate(specification.expand(deadline)) if i in waiting)
            for turn, (number, region) in enumerate(turns):
                check_time(deadline)
                now = time.monotonic()
                share = now + (deadline - now) / (len(waiting) - turn)
                folder = None if kept is None else kept / f"region-{number:05d}"
                result = _decide(subject, region, share, settings, folder)
                method = result.method or method
                if result.status == "sat":
                    return result
                if result.status == "timeout":
                    again.add(number)
                elif result.status != "unsat":
                    open_.append(result)
            waiting = again
    except OutOfTime:
        open_.append(VnnResult("timeout", method=method))
    if not open_:
        return VnnResult("unsat", method=method)
    order: tuple[Word, ...] = ("error", "timeout", "unknown")
    return min(open_, key=lambda result: order.index(result.status))


def _check_in_boxes(subject: Subject, specification: Specification, deadline: float) -> None:
    """Compare the import with onnxruntime where the property speaks of it: corners, middles, random points."""
    regions = list(islice(specification.expand(deadline), CHECKED // 4))
    generator = torch.Generator().manual_seed(0)
    points = []
    for region in regions:
        low, high = inner_box(region.lower, region.upper, subject.like.dtype)
        share = torch.rand(max(CHECKED // len(regions) - 3, 1), len(low), generator=generator)
        share[::2] = share[::2].round()  # every other one is a corner
        share = torch.cat([torch.tensor([[0.0], [1.0], [0.5]]).expand(3, len(low)), share]).to(low)
        inside = low + share * (high - low)
        points.append(torch.where(share == 1, high, torch.minimum(torch.maximum(inside, low), high)))
    if points:
        x = torch.cat(points).reshape(-1, *subject.network.input_shape)
        check_import(subject.network, subject.judge, x, deadline)


def _check_counts(subject: Subject, specification: Specification, where: str) -> None:
    network = subject.network
    with torch.no_grad():
        zero = subject.like.new_zeros(1, *network.input_shape)
        inputs, outputs = zero.numel(), network(zero).shape[1]
    if (specification.inputs, specification.outputs) != (inputs, outputs):
        raise VnnlibError(
            f"{where} declares {specification.inputs} inputs and {specification.outputs} outputs, but the network has "
            f"{inputs} and {outputs}."
        )


def _order_alone(specification: Specification, dropped: str, where: str) -> Specification:
    """The specification, whose regions may only compare outputs with each other, as the last node is left out."""

    def expand(until: float) -> Iterator[Region]:
        for region in specification.expand(until):
            if not all(disjunct.only_compares for disjunct in region.disjuncts):
                raise VnnlibError(
                    f"{where} asks for more than the order of the outputs, and the network ends in {dropped}; export "
                    f"it without {dropped}, and write the property for its inputs."
                )
            yield region

    return replace(specification, expand=expand)


def _decide(
    subject: Subject, region: Region, deadline: float, settings: VerifySettings, folder: Path | None
) -> VnnResult:
    """Attack, then prove by the verifier of images."""
    left = deadline - time.monotonic()
    if left <= 0:
        return VnnResult("timeout")
    # Where a disjunct holds with nothing to spare, as 0 <= 0 does, an attack sees no loss: ask about one point first.
    found = replay(subject.judge, region, ((region.lower + region.upper) / 2)[None])
    if found is not None:
        return VnnResult("sat", found, method="pgd")
    if any(len(disjunct.b) > 1 for disjunct in region.disjuncts):
        half = deadline - left / 2  # the other half is for proofs
        seed = settings.attack.seed
        found = falsify(subject.network, [region], subject.judge, subject.like, half, seed=seed)
        if found is not None:
            return VnnResult("sat", found, method="pgd")
        now = time.monotonic()
        soon = now + (deadline - now) / 8
        found = falsify_corners(subject.network, region, subject.judge, subject.like, soon, seed=seed)
        if found is not None:
            return VnnResult("sat", found, method="corners")
    return _by_verifier(subject, region, _property(subject, region), deadline, settings, folder)


def _property(subject: Subject, region: Region) -> PropertyNetwork:
    """The property as a classifier."""
    network, dtype = subject.network, subject.like.dtype
    model: PropertyNetwork = PropertyNetwork(network, region, network.input_shape, dtype).to(subject.like.device)
    return model.eval()


def _by_verifier(
    subject: Subject,
    region: Region,
    model: PropertyNetwork,
    deadline: float,
    settings: VerifySettings,
    folder: Path | None,
) -> VnnResult:
    """The property is a classifier now: is class 0 certain in the box [-1, 1]?"""
    left = deadline - time.monotonic()
    if left <= 0:
        return VnnResult("timeout", method="pgd")
    limited = settings.changed(limits={"timeout": left, "total_seconds": left})
    zero = torch.zeros_like(model.centre)[None]
    y = torch.zeros(1, dtype=torch.int64)
    stream = verify_stream(model, zero, y, 1.0, low=-1.0, high=1.0, settings=limited, certificates=folder is not None)
    [(_, verdict)] = stream
    method = "pgd" if verdict.method == "misclassified" else verdict.method
    if verdict.status == "verified":
        if folder is not None and verdict.certificate is not None:
            proofs = CertificateFolder(folder)
            proofs.put(0, verdict.certificate)
            proofs.settle()
        return VnnResult("unsat", method=method)
    if verdict.counterexample is not None:
        point = model.inputs(verdict.counterexample.to(model.centre)[None])
        found = replay(subject.judge, region, point)
        if found is not None:
            return VnnResult("sat", found, method=method)
        return VnnResult("unknown", reason="onnxruntime did not confirm the counterexample", method=method)
    if verdict.status == "error":
        return VnnResult("error", reason=verdict.reason, method=method)
    word: Word = "timeout" if verdict.reason == "timeout" else "unknown"
    return VnnResult(word, reason=verdict.reason, method=method)
