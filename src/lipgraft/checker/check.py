"""The verdict on a certificate: every bound is recomputed, every leaf proved, and the leaves cover the box."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from lipgraft.checker.bounds import Forward, Lines, Splits
from lipgraft.checker.certificate import Certificate, Layer, Leaves
from lipgraft.checker.exact import exact_bound
from lipgraft.checker.network import Activation, Array, Network, Rejected, need
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
    folder: Path,
    network: Path | None = None,
    *,
    jobs: int = 1,
    exact: int = 0,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[Outcome]:
    """Check all .npz files of a folder.

    network: an ONNX file to use instead of the folder's own. exact: how many leaves, at most, to repeat without
    rounding; first proofs are drawn, then leaves of each.
    """
    files = sorted(path for path in folder.glob("*.npz") if path.is_file())
    need(len(files) > 0, f"there are no certificates (.npz) in {folder}.")
    path = folder / NETWORK if network is None else network
    _load(path)  # a network that cannot be read is refused once, not once per file
    proofs = [i for i, file in enumerate(files) if ".counterexample" not in file.name] or [0]
    drawn = np.bincount(np.random.default_rng(seed).choice(proofs, exact), minlength=len(files))
    tasks = [(file, path, int(count), seed) for file, count in zip(files, drawn, strict=True)]
    done: dict[Path, Outcome] = {}

    def keep(file: Path, outcome: Outcome) -> None:
        done[file] = outcome
        if progress is not None:
            progress(len(done), len(files))

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
    return [done[file] for file in files]


def _load(path: Path) -> tuple[str, Network]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Rejected(f"the network {path} cannot be read: {error.strerror}.") from None
    return hashlib.sha256(data).hexdigest(), _parsed(data)


@lru_cache(maxsize=1)
def _parsed(data: bytes) -> Network:
    return read_network(data)


def check_file(path: Path, network: Path, exact: int = 0, seed: int = 0) -> Outcome:
    """The verdict on one file, a proof or a counterexample."""
    began, kind, speaks_of = time.perf_counter(), "unreadable", ""
    try:
        digest, net = _load(network)
        certificate = Certificate.read(path)
        kind, speaks_of = "proof" if certificate.is_proof else "counterexample", certificate.speaks_of
        leaves, margin, repeated = judge(certificate, digest, net, exact, seed)
    except (Rejected, MemoryError) as error:
        reason = str(error) if isinstance(error, Rejected) else "there is not enough memory to check it."
        return Outcome(path.name, kind, False, reason, speaks_of, seconds=time.perf_counter() - began)
    return Outcome(path.name, kind, True, "", speaks_of, leaves, repeated, margin, time.perf_counter() - began)


def judge(
    certificate: Certificate, digest: str, network: Network, exact: int = 0, seed: int = 0
) -> tuple[int, float, int]:
    """How many leaves there are, the least margin, how many were repeated exactly; Rejected if anything is wrong.

    digest: SHA-256 of the network's file.
    """
    named = certificate.meta.get("network")
    need(named == digest, f"it speaks of another network, with the fingerprint {named}, not {digest}.")
    with np.errstate(all="ignore"):
        check = _proof if certificate.is_proof else _counterexample
        return check(certificate, network, exact, np.random.default_rng(seed))


def _proof(
    certificate: Certificate, network: Network, exact: int, random: np.random.Generator
) -> tuple[int, float, int]:
    rows, offset = certificate.claim(network.nodes[network.output].size)
    need(certificate.speaks_of == "real" or network.single, "it speaks of float32, but the network has double weights.")
    forward = bound_layers(certificate, network)
    refine_layers(certificate, forward)
    unstable = forward.given
    table = certificate.fractions("alpha", unstable)
    leaves = certificate.leaves(len(rows), len(table), unstable)
    cover(leaves, len(rows))
    output = forward.values[network.output]
    hardware = abs(rows) @ output.off * (1 + 2.0**-20) if certificate.speaks_of == "float32" else np.zeros(len(rows))
    margin = leaf_bounds(forward, rows, offset, table, leaves) - hardware[leaves.row]
    bad = np.flatnonzero(~(margin > 0))
    need(len(bad) == 0, _failed(leaves, margin, bad))
    chosen = random.choice(len(leaves.row), min(exact, len(leaves.row)), replace=False)
    for leaf in chosen:
        splits, slopes = leaf_inputs(forward, table, leaves, slice(leaf, leaf + 1))
        value = exact_bound(forward, rows[leaves.row[leaf]], offset[leaves.row[leaf]], slopes[0], splits)
        need(value > float(hardware[leaves.row[leaf]]), f"leaf {leaf} is not proved in exact arithmetic.")
    return len(leaves.row), float(margin.min()), len(chosen)


def _failed(leaves: Leaves, margin: Array, bad: Array) -> str:
    if len(bad) == 0:
        return ""
    first = bad[0]
    return (
        f"{len(bad)} of {len(leaves.row)} leaves are not proved; the first is leaf {first} of row {leaves.row[first]}, "
        f"whose bound after rounding is {margin[first]:.6g}."
    )


def bound_layers(certificate: Certificate, network: Network) -> Forward:
    """Go through the network; at each activation, show that the bounds given for it hold."""
    forward = Forward(network, *certificate.box(network.nodes[0].shape))
    number = 0
    for node, absolute in zip(network.nodes[1:], forward.absolute[1:], strict=True):
        if isinstance(node, Activation):
            layer = certificate.layer(number, node.size)
            _bound_activation(forward, node, layer, number)
            number += 1
        else:
            forward.affine(node, absolute)
    return forward


def _bound_activation(forward: Forward, node: Activation, layer: Layer, number: int) -> None:
    (source,) = node.inputs
    low, high = forward.values[source].low.copy(), forward.values[source].high.copy()
    given, at = np.zeros(node.size, bool), layer.unstable
    given[at] = True
    open_ = np.flatnonzero(given | ~((low >= 0) | (high <= 0)))
    lower, upper = forward.neurons(source, open_)
    low[open_], high[open_] = np.fmax(low[open_], lower), np.fmin(high[open_], upper)  # NaN tightens nothing
    wrong = np.flatnonzero(~(given | (low >= 0) | (high <= 0)))
    need(len(wrong) == 0, f"{len(wrong)} neurons of activation {number} are not listed and not stable ({wrong[:3]}).")
    wrong = at[~((low[at] >= layer.lower) & (high[at] <= layer.upper))]
    need(len(wrong) == 0, f"{len(wrong)} bounds given for activation {number} do not hold (neurons {wrong[:3]}).")
    lines = Lines.of(forward.given, node.slope, low >= 0, at, layer.lower, layer.upper)
    forward.activation(node, lines, low, high)


def refine_layers(certificate: Certificate, forward: Forward) -> None:
    """Again from the first activation on: better bounds, each shown with its own slopes and those before it."""
    for number, (v, lines) in enumerate(list(forward.lines.items())):
        better = certificate.refined(number, forward.network.nodes[v].size, lines.first)
        if len(better.neuron) == 0:
            continue
        place = np.searchsorted(lines.index, better.neuron)
        listed = place < len(lines.index)
        listed[listed] = lines.index[place[listed]] == better.neuron[listed]
        need(bool(listed.all()), f"a refined neuron of activation {number} is not listed as unstable.")
        (source,) = forward.network.nodes[v].inputs
        found = forward.refined(source, better.neuron, better.side, better.alpha)
        wrong = better.neuron[~(found >= better.side * better.bound)]
        need(len(wrong) == 0, f"{len(wrong)} refined bounds of activation {number} do not hold (neurons {wrong[:3]}).")
        lower, upper, below = lines.lower.copy(), lines.upper.copy(), better.side > 0
        np.maximum.at(lower, place[below], better.bound[below])  # never wider: mag counts on the intercepts of before
        np.minimum.at(upper, place[~below], better.bound[~below])
        need(bool((lower <= upper).all()), f"refined bounds of activation {number} leave nothing.")
        active = lines.stable == 1.0
        forward.lines[v] = Lines.of(lines.first, lines.left, active, lines.index, lower, upper)


def cover(leaves: Leaves, rows: int) -> None:
    """For each row of the claim, the leaves must be those of a tree in which every split has both signs."""
    ends = np.cumsum(leaves.depth)
    split = leaves.split.tolist()
    paths = [split[end - depth : end] for end, depth in zip(ends.tolist(), leaves.depth.tolist(), strict=True)]
    todo: list[tuple[list[int], int]] = [([], 0) for _ in range(rows)]
    for leaf, row in enumerate(leaves.row.tolist()):
        todo[row][0].append(leaf)
        need(len({abs(s) for s in paths[leaf]}) == len(paths[leaf]), f"leaf {leaf} splits a neuron twice.")
    for row, (members, _) in enumerate(todo):
        need(len(members) > 0, f"row {row} of the claim has no leaf.")
    while todo:
        members, depth = todo.pop()
        if any(len(paths[leaf]) == depth for leaf in members):
            need(len(members) == 1, f"leaf {members[0]} and others cover the same part of the box.")
            continue
        nexts = [paths[leaf][depth] for leaf in members]
        need(len({abs(s) for s in nexts}) == 1, f"leaves {members[:3]} part at different neurons.")
        for sign in (1, -1):
            half = [leaf for leaf, s in zip(members, nexts, strict=True) if s * sign > 0]
            need(len(half) > 0, f"a half of the split beside leaf {members[0]} is missing.")
            todo.append((half, depth + 1))


def leaf_inputs(forward: Forward, table: Array, leaves: Leaves, part: slice) -> tuple[Splits, Array]:
    """The splits and slopes of some leaves."""
    depth, starts = leaves.depth[part], np.cumsum(leaves.depth) - leaves.depth
    span = slice(starts[part][0], starts[part][-1] + depth[-1])
    split = leaves.split[span]
    splits = Splits(np.repeat(np.arange(len(depth)), depth), abs(split) - 1, np.sign(split), leaves.beta[span])
    slopes = np.repeat(forward.usual(), len(depth), axis=0)
    own = leaves.alpha[part] >= 0
    slopes[own] = forward.slopes(table[leaves.alpha[part][own]])
    return splits, slopes


def leaf_bounds(forward: Forward, rows: Array, offset: Array, table: Array, leaves: Leaves) -> Array:
    """A lower bound of each leaf's row over its part of the box, rounding subtracted: (L,)."""
    network, bounds = forward.network, np.full(len(leaves.row), -np.inf)
    sizes = abs(rows) @ forward.values[network.output].mag + abs(offset)
    mags = [forward.values[network.nodes[v].inputs[0]].mag[lines.index] for v, lines in forward.lines.items()]
    mag = np.concatenate([np.empty(0), *mags])
    for part in forward.chunks(len(leaves.row)):
        splits, slopes = leaf_inputs(forward, table, leaves, part)
        which = leaves.row[part]
        found = forward.substitute({network.output: rows[which]}, offset[which], slopes, splits)
        multipliers = np.bincount(splits.row, splits.beta * mag[splits.neuron], len(which))
        bounds[part] = found - forward.error(network.output, sizes[which] + multipliers)
    return bounds


def _counterexample(
    certificate: Certificate, network: Network, exact: int, random: np.random.Generator
) -> tuple[int, float, int]:
    """Interval arithmetic over the single point bounds the rounding of its logits."""
    lower, upper = certificate.box(network.nodes[0].shape)
    x = certificate.reals("x", network.nodes[0].shape).reshape(-1)
    need(bool(((lower <= x) & (x <= upper)).all()), "the point is not in the box.")
    forward = Forward(network, x, x)
    for node, absolute in zip(network.nodes[1:], forward.absolute[1:], strict=True):
        if isinstance(node, Activation):
            low, high = (getattr(forward.values[node.inputs[0]], end) for end in ("low", "high"))
            at = np.flatnonzero((low < 0) & (high > 0))
            forward.activation(node, Lines.of(0, node.slope, low >= 0, at, low[at], high[at]), low, high)
        else:
            forward.affine(node, absolute)
    rows, offset = certificate.claim(network.nodes[network.output].size)
    logits = forward.values[network.output]
    most = np.maximum(rows, 0.0) @ logits.high + np.minimum(rows, 0.0) @ logits.low + offset
    size = abs(rows) @ np.maximum(abs(logits.low), abs(logits.high)) + abs(offset)
    most += 2.0**-50 * rows.shape[1] * size
    need(bool((most < 0).any()), "no row of the claim is shown to fail at the point.")
    return 0, float(-most.min()), 0
