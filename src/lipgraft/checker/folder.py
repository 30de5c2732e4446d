"""Checking files: one, or all of a folder, in one process or several."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from lipgraft.checker.certificate import Certificate
from lipgraft.checker.check import judge
from lipgraft.checker.checkpoint import read_checkpoint
from lipgraft.checker.network import Network, Rejected, need, need_subnormals
from lipgraft.checker.reader import read_network

NETWORK = "network.onnx"


@dataclass(frozen=True)
class Outcome:
    """What became of one file. reason: why it was rejected, or empty; margin: the least proved bound above zero."""

    name: str
    kind: str  # proof, counterexample or unreadable
    accepted: bool
    reason: str
    speaks_of: str = ""
    leaves: int = 0
    exact: int = 0  # leaves repeated without rounding
    margin: float = 0.0
    seconds: float = 0.0


def check_folder(
    folder: str | Path,
    network: str | Path | None = None,
    *,
    jobs: int = 1,
    exact: int = 0,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[Outcome]:
    """Check all .npz files of a folder and the folders in it, each with the network beside it.

    Files that cannot be read, links to nothing among them, are rejected, and so are those of a network that cannot be
    read. If no network can be read, that is an error.

    network: an ONNX file, or a checkpoint of lipgraft (.safetensors), to use instead. exact: how many leaves, at most,
    to repeat without rounding; first proofs are drawn, then leaves of each.
    """
    found = (path for path in Path(folder).rglob("*") if path.name.lower().endswith(".npz"))
    files = sorted(path for path in found if not path.is_dir())
    need(len(files) > 0, f"there are no certificates (.npz) in {folder}.")
    networks = [file.parent / NETWORK if network is None else Path(network) for file in files]
    refused = {path: _refusal(path) for path in dict.fromkeys(networks)}  # once, not once per file
    need(not all(refused.values()), refused[networks[0]])
    proofs = [i for i, file in enumerate(files) if ".counterexample" not in file.name] or [0]
    drawn = np.bincount(np.random.default_rng(seed).choice(proofs, exact), minlength=len(files))
    tasks = [(*task, seed) for task in zip(files, networks, drawn.tolist(), strict=True) if not refused[task[1]]]
    done: dict[Path, Outcome] = {}

    def keep(file: Path, outcome: Outcome) -> None:
        done[file] = outcome
        if progress is not None:
            progress(len(done), len(files))

    for file, path in zip(files, networks, strict=True):
        if refused[path]:
            keep(file, Outcome(file.name, "unreadable", False, refused[path]))
    if jobs == 1:
        for task in tasks:
            keep(task[0], check_file(*task))
    else:
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ.setdefault(name, "1")  # one core for each process, which reads this when it starts
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
            running = {pool.submit(check_file, *task): task[0] for task in tasks}
            try:
                for future in as_completed(running):
                    keep(running[future], future.result())
            except BrokenProcessPool:
                raise Rejected(
                    "a process was ended from outside, perhaps for want of memory; use fewer --jobs."
                ) from None
    return [replace(done[file], name=file.relative_to(folder).as_posix()) for file in files]


def _load(path: Path) -> tuple[str | None, Network]:
    """The network and its fingerprint; a checkpoint has none, as certificates name the ONNX file they came with."""
    need_subnormals()  # in every process and thread that checks, before a number is read
    try:
        need(path.is_file(), f"the network {path} cannot be read: there is no such file.")  # a pipe would block
        data = path.read_bytes()
    except OSError as error:
        raise Rejected(f"the network {path} cannot be read: {error.strerror}.") from None
    if path.suffix == ".safetensors":
        return None, _parsed(data, read_checkpoint)
    return hashlib.sha256(data).hexdigest(), _parsed(data, read_network)


def _refusal(path: Path) -> str:
    """Why a network is not taken, or nothing."""
    try:
        _load(path)
    except Exception as error:
        return _reason(error)
    return ""


def _reason(error: Exception) -> str:
    """In a sentence. What nobody foresaw proves nothing, and must not keep other files from being checked."""
    if isinstance(error, Rejected):
        return str(error)
    if isinstance(error, MemoryError):
        return "there is not enough memory to check it."
    return f"the checker cannot make sense of it ({type(error).__name__}: {error})."


@lru_cache(maxsize=1)
def _parsed(data: bytes, read: Callable[[bytes], Network]) -> Network:
    return read(data)


def check_file(path: Path, network: Path, exact: int = 0, seed: int = 0) -> Outcome:
    """The verdict on one file, a proof or a counterexample."""
    began, kind, speaks_of = time.perf_counter(), "unreadable", ""
    try:
        digest, net = _load(network)
        certificate = Certificate.read(path)
        kind, speaks_of = "proof" if certificate.is_proof else "counterexample", certificate.speaks_of
        leaves, margin, repeated = judge(certificate, digest, net, exact, seed)
    except Exception as error:
        return Outcome(path.name, kind, False, _reason(error), speaks_of, seconds=time.perf_counter() - began)
    return Outcome(path.name, kind, True, "", speaks_of, leaves, repeated, margin, time.perf_counter() - began)
