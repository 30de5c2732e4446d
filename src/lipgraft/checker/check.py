"""The verdict on a certificate: every bound is recomputed, every leaf proved, and the leaves cover the box."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass

import numpy as np

from lipgraft.checker.bounds import ETA, Forward, Lines, Splits
from lipgraft.checker.certificate import Certificate, Layer, Leaves, Planes
from lipgraft.checker.exact import exact_bound, show_planes
from lipgraft.checker.network import Activation, Array, Network, Rejected, need, need_subnormals
from lipgraft.checker.planes import Choice, Reads, lifted, source


def judge(
    certificate: Certificate, digest: str | None, network: Network, exact: int = 0, seed: int = 0
) -> tuple[int, float, int]:
    """How many leaves there are, the least margin, how many were repeated exactly; Rejected if anything is wrong.

    digest: SHA-256 of the network's file; None: whatever network the certificate was made for, it must hold for this.
    """
    need_subnormals()
    named = certificate.meta.get("network")
    need(digest in (named, None), f"it speaks of another network, with the fingerprint {named}, not {digest}.")
    with np.errstate(all="ignore"):
        check = _proof if certificate.is_proof else _counterexample
        return check(certificate, network, exact, np.random.default_rng(seed))


def _proof(
    certificate: Certificate, network: Network, exact: int, random: np.random.Generator
) -> tuple[int, float, int]:
    rows, offset = certificate.claim(network.nodes[network.output].size)
    need(
        certificate.speaks_of == "real" or network.single,
        "it speaks of float32, but not all of the network's weights are float32 numbers.",
    )
    plain = bound_layers(certificate, network)
    refined = refine_layers(certificate, plain)
    unstable = plain.given
    table = certificate.fractions("alpha", unstable)
    planes = PlaneSets.of(certificate, refined)
    leaves = certificate.leaves(len(rows), len(table), unstable, planes.count)
    cover(leaves, len(rows))
    margin = np.empty(len(leaves.row))
    for members, forward in by_bounds(plain, refined, planes, leaves, np.arange(len(leaves.row))):
        margin[members] = leaf_bounds(forward, rows, offset, table, leaves, members)
    bad = np.flatnonzero(~(margin > 0))
    if len(bad):
        raise Rejected(
            f"{len(bad)} of {len(leaves.row)} leaves are not proved; the first is leaf {bad[0]} of row "
            f"{leaves.row[bad[0]]}, whose bound after rounding is {margin[bad[0]]:.6g}."
        )
    chosen = random.choice(len(leaves.row), min(exact, len(leaves.row)), replace=False)
    for members, forward in by_bounds(plain, refined, planes, leaves, chosen):
        planes.show(int(leaves.plane[members[0]]), forward)
        for leaf in members:
            splits, slopes = leaf_inputs(forward, table, leaves, np.array([leaf]))
            value = exact_bound(forward, rows[leaves.row[leaf]], offset[leaves.row[leaf]], slopes[0], splits)
            need(value > 0, f"leaf {leaf} is not proved in exact arithmetic.")
    return len(leaves.row), float(margin.min()), len(chosen)


@dataclass(frozen=True)
class PlaneSets:
    """The planes of a certificate: `count` sets of them, each above some of the neurons. All by activation."""

    count: int
    reads: dict[int, Reads]
    planes: dict[int, Planes]

    @classmethod
    def of(cls, certificate: Certificate, refined: Forward) -> PlaneSets:
        network, reads, planes = refined.network, {}, {}
        for number, (v, lines) in enumerate(refined.lines.items()):
            node, names = network.nodes[v], certificate.plane_sources(number, len(refined.lines))
            if len(names) == 0:
                continue
            need(certificate.speaks_of == "real", "planes are for proofs about real numbers alone.")
            need(isinstance(node, Activation) and node.slope == 0, f"planes of activation {number} are above no ReLU.")
            sources = tuple(source(network, int(name), number) for name in names)
            need(len(set(sources)) == len(sources), f"plane_{number}_source names a source twice.")
            found = certificate.planes(number, node.size, sum(network.nodes[i].size for i in sources))
            place = lines.places(found.neuron, f"a neuron of activation {number} with a plane")
            reads[v], planes[v] = Reads.of(refined, v, place, sources), found
        counts = {len(found.share) for found in planes.values()}
        need(len(counts) < 2, "activations have different numbers of planes.")
        return cls(max(counts, default=0), reads, planes)

    def one(self, number: int) -> tuple[dict[int, Reads], dict[int, Choice]]:
        """One set: what its neurons read, and what is chosen for them."""
        reads, choices = {}, {}
        for v, found in self.planes.items():
            used = found.used[number]
            if used.any():
                parts = (part[number][used] for part in (found.share, found.low, found.high))
                reads[v] = self.reads[v].at(used)
                choices[v] = Choice(*(part / float(np.iinfo(part.dtype).max) for part in parts))
        return reads, choices

    def lifted(self, number: int, forward: Forward) -> Forward:
        """The bounds with one set of planes; without any for -1."""
        return forward if number < 0 else lifted(forward, *self.one(number))

    def show(self, number: int, forward: Forward) -> None:
        """That the planes of a set are right, in exact arithmetic. forward: with them."""
        reads, choices = self.one(number) if number >= 0 else ({}, {})
        for v, choice in choices.items():
            show_planes(reads[v], choice, forward.planes[v])


def by_bounds(
    plain: Forward, refined: Forward, planes: PlaneSets, leaves: Leaves, members: Array
) -> Iterator[tuple[Array, Forward]]:
    """Leaves that rest on the same bounds, and these. CROWN's own slopes belong to the bounds before refinement."""
    own = leaves.alpha[members] >= 0
    if not own.all():
        yield members[~own], plain
    for number in np.unique(leaves.plane[members[own]]):
        yield members[own & (leaves.plane[members] == number)], planes.lifted(int(number), refined)


def bound_layers(certificate: Certificate, network: Network) -> Forward:
    """Go through the network; at each activation, show that the bounds given for it hold."""
    forward = Forward(network, *certificate.box(network.nodes[0].shape), certificate.speaks_of == "float32")
    number = 0
    for node in network.nodes[1:]:
        if isinstance(node, Activation):
            layer = certificate.layer(number, node.size)
            _bound_activation(forward, node, layer, number)
            number += 1
        else:
            forward.affine(node)
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


def refine_layers(certificate: Certificate, plain: Forward) -> Forward:
    """Again from the first activation on: better bounds, each shown with its own slopes and those before it."""
    forward = copy(plain)
    forward.lines = dict(plain.lines)
    for number, (v, lines) in enumerate(list(forward.lines.items())):
        better = certificate.refined(number, forward.network.nodes[v].size, lines.first)
        if len(better.neuron) == 0:
            continue
        place = lines.places(better.neuron, f"a refined neuron of activation {number}")
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
    return forward


def cover(leaves: Leaves, rows: int) -> None:
    """For each row of the claim, the leaves must be those of a tree in which every split has both signs."""
    split, starts, ends = (part.tolist() for part in (leaves.split, leaves.start, leaves.start + leaves.depth))
    paths = [split[start:end] for start, end in zip(starts, ends, strict=True)]
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


def leaf_inputs(forward: Forward, table: Array, leaves: Leaves, members: Array) -> tuple[Splits, Array]:
    """The splits and slopes of some leaves, which all have CROWN's slopes or all slopes of the table."""
    depth = leaves.depth[members]
    row = np.repeat(np.arange(len(members)), depth)
    place = (leaves.start[members] - np.cumsum(depth) + depth)[row] + np.arange(len(row))
    split = leaves.split[place]
    own = leaves.alpha[members[0]] >= 0
    slopes = forward.slopes(table[leaves.alpha[members]]) if own else forward.usual()
    return Splits(row, abs(split) - 1, np.sign(split), leaves.beta[place]), slopes


def leaf_bounds(forward: Forward, rows: Array, offset: Array, table: Array, leaves: Leaves, members: Array) -> Array:
    """A lower bound of the row of some leaves over each one's part of the box, rounding subtracted."""
    network, bounds = forward.network, np.empty(len(members))
    sizes = abs(rows) @ forward.values[network.output].mag + abs(offset)
    mags = [forward.values[network.nodes[v].inputs[0]].mag[lines.index] for v, lines in forward.lines.items()]
    mag = np.concatenate([np.empty(0), *mags])
    for part in forward.chunks(len(members)):
        splits, slopes = leaf_inputs(forward, table, leaves, members[part])
        which = leaves.row[members[part]]
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
    for node in network.nodes[1:]:
        if isinstance(node, Activation):
            z = forward.values[node.inputs[0]]
            at = np.flatnonzero((z.low < 0) & (z.high > 0))
            forward.activation(node, Lines.of(0, node.slope, z.low >= 0, at, z.low[at], z.high[at]), z.low, z.high)
        else:
            forward.affine(node)
    logits = forward.values[network.output]
    rows, offset = certificate.claim(len(logits.low), logits.low)
    most = np.maximum(rows, 0.0) @ logits.high + np.minimum(rows, 0.0) @ logits.low + offset
    size = abs(rows) @ np.maximum(abs(logits.low), abs(logits.high)) + abs(offset)
    most += 2.0**-50 * rows.shape[1] * size + (rows.shape[1] + 1) * ETA
    need(bool((most < 0).any()), "no row of the claim is shown to fail at the point.")
    return 0, float(-most.min()), 0
