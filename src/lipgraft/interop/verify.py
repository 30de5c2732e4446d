"""`verify_vnnlib`: does a network have a property? One ONNX file, one VNNLIB file, one word."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lipgraft.errors import SettingsError
from lipgraft.files import atomic_write_text
from lipgraft.interop.errors import VnnlibError
from lipgraft.interop.falsify import falsify
from lipgraft.interop.load import import_checked
from lipgraft.interop.module import OnnxNetwork
from lipgraft.interop.property_network import PropertyNetwork
from lipgraft.interop.replay import replay
from lipgraft.interop.result import VnnResult, Word
from lipgraft.interop.runtime import OnnxRuntime
from lipgraft.interop.specification import Region, Specification
from lipgraft.interop.splitting import MOST_INPUTS, split_inputs
from lipgraft.interop.vnnlib import read_vnnlib
from lipgraft.verify import VerifySettings
from lipgraft.verify import verify as verify_images

PathLike = str | os.PathLike[str]
Clock = Callable[[], float]


@dataclass(frozen=True, eq=False)
class Subject:
    """A network to verify, and onnxruntime to confirm counterexamples. like: its device and dtype."""

    network: OnnxNetwork
    judge: OnnxRuntime
    like: Tensor

    @staticmethod
    def read(path: PathLike, device: torch.device | str = "cpu") -> Subject:
        judge = OnnxRuntime(path)
        network = import_checked(judge).to(device)
        return Subject(network, judge, torch.empty(0, dtype=getattr(torch, judge.file.dtype), device=device))


def verify_vnnlib(
    onnx_path: PathLike,
    vnnlib_path: PathLike,
    timeout: float = 300.0,
    *,
    device: torch.device | str = "cpu",
    results: PathLike | None = None,
    settings: VerifySettings | None = None,
) -> VnnResult:
    """Can the network do what the specification describes? "unsat": never; "sat": here is how.

    timeout: seconds for everything, reading included. results: a file that gets the word and the counterexample. A
    file that cannot be used is a LipgraftError, and "error" in the results.
    """
    started = time.monotonic()
    if not timeout > 0:
        raise SettingsError(f"timeout must be > 0 seconds, got {timeout}.")
    result = VnnResult("error")  # until there is a better word
    try:
        specification = read_vnnlib(vnnlib_path)
        subject = Subject.read(onnx_path, device)
        deadline = started + timeout
        result = verify_specification(subject, specification, deadline, where=str(vnnlib_path), settings=settings)
    finally:
        if results is not None:
            atomic_write_text(results, result.text())
    return replace(result, seconds=time.monotonic() - started)


def verify_specification(
    subject: Subject,
    specification: Specification,
    deadline: float,
    *,
    where: str = "the specification",
    settings: VerifySettings | None = None,
) -> VnnResult:
    """Decide every region, until one is violated. deadline: by time.monotonic."""
    _check_counts(subject, specification, where)
    chosen = settings or VerifySettings()
    open_: list[VnnResult] = []
    method: str | None = None
    for region in specification.regions:
        result = _decide(subject, region, deadline, chosen)
        if result.status == "sat":
            return result
        if result.status != "unsat":
            open_.append(result)
        method = result.method
    if not open_:
        return VnnResult("unsat", method=method)
    order: tuple[Word, ...] = ("error", "timeout", "unknown")
    return min(open_, key=lambda result: order.index(result.status))


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


def _decide(subject: Subject, region: Region, deadline: float, settings: VerifySettings) -> VnnResult:
    """Attack, then prove: by halving the box where inputs are few, otherwise by the verifier of images."""
    few = len(region.lower) <= MOST_INPUTS
    left = deadline - time.monotonic()
    if left <= 0:
        return VnnResult("timeout")
    if few or any(len(disjunct.b) > 1 for disjunct in region.disjuncts):
        found = falsify(subject.network, region, subject.judge, subject.like, deadline, seed=settings.seed)
        if found is not None:
            return VnnResult("sat", found, method="pgd")
    if few:
        double = settings.recheck == "float64"
        split = split_inputs(_property(subject, region, double=double), region, subject.judge, deadline)
        return VnnResult(split.status, split.counterexample, method="input-splitting")
    return _by_verifier(subject, region, _property(subject, region), deadline, settings)


def _property(subject: Subject, region: Region, *, double: bool = False) -> PropertyNetwork:
    """The property as a classifier; double: in double precision, whatever the file has."""
    network, dtype = subject.network, subject.like.dtype
    if double:
        network, dtype = deepcopy(network).double(), torch.float64
    model: PropertyNetwork = PropertyNetwork(network, region, network.input_shape, dtype).to(subject.like.device)
    return model.eval()


def _by_verifier(
    subject: Subject, region: Region, model: PropertyNetwork, deadline: float, settings: VerifySettings
) -> VnnResult:
    """The property is a classifier now: is class 0 certain in the box [-1, 1]?"""
    left = deadline - time.monotonic()
    if left <= 0:
        return VnnResult("timeout", method="pgd")
    limited = replace(settings, timeout=left, total_seconds=left)
    zero = torch.zeros_like(model.centre)[None]
    [verdict] = verify_images(model, zero, torch.zeros(1, dtype=torch.int64), 1.0, low=-1.0, high=1.0, settings=limited)
    method = "pgd" if verdict.method == "misclassified" else verdict.method
    if verdict.status == "verified":
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
