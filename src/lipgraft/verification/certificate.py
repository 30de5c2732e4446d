"""What it takes to check a proof without searching for it again: the bounds, lines, multipliers and splits it rests on.

`Drafts` collects them while images are on their way. The arrays are those of the file format in docs/proofs.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from lipgraft.bounds.alpha_crown import coded
from lipgraft.bounds.crown import Prepared
from lipgraft.bounds.layout import Layout
from lipgraft.bounds.refine import Improved
from lipgraft.bounds.relaxations import unstable
from lipgraft.box import Box
from lipgraft.network.graph import Affine, Network, Planar, Scale
from lipgraft.verification.branch_and_bound.images import Images
from lipgraft.verification.branch_and_bound.planes import Group
from lipgraft.verification.branch_and_bound.subproblems import Subproblems

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Certificate:
    """The proof of one image, or its counterexample: arrays by name, and what they are about.

    network: the one that it speaks of, in double precision.
    """

    arrays: dict[str, Array]
    label: int
    speaks_of: str
    network: Network

    @property
    def is_proof(self) -> bool:
        return "leaf_row" in self.arrays


@dataclass(frozen=True, eq=False)
class _Leaves:
    """Some proved subproblems of one image, on the CPU. plane: which of the draft's planes each has, or -1."""

    target: Array
    code: Array
    plane: Array
    depth: Array
    neuron: Array
    sign: Array
    beta: Array


@dataclass(eq=False)
class _Draft:
    """unstable: flat places of the neurons that CROWN leaves unstable, with their bounds; open: of those that have
    lines to choose in branch and bound, in the order of the leaves' codes; planes: all that some leaf rests on.
    """

    unstable: Array
    bounds: tuple[Array, Array]
    open: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    refined: list[dict[str, Array]] = field(default_factory=list)
    leaves: list[_Leaves] = field(default_factory=list)
    planes: list[Group] = field(default_factory=list)

    def number(self, group: Group) -> int:
        """Of a margin's planes among all. When they are fitted anew, they are others."""
        known = next((k for k, have in enumerate(self.planes) if have is group), len(self.planes))
        if known == len(self.planes):
            self.planes.append(group)
        return known


class Drafts:
    """Proofs in the making, by image."""

    def __init__(self, network: Network, speaks_of: str, box: Box, y: Tensor) -> None:
        """network: the one that proofs are made with; box, y: of all images."""
        self.network, self.speaks_of, self.box, self.y = network, speaks_of, box, y
        self.layout = Layout.of(network, network.output)
        self.drafts: dict[int, _Draft] = {}

    @staticmethod
    def possible(network: Network) -> bool:
        """Whether proofs about this network can be written down: it bends at zero alone, and every bend matters.

        The network's file holds a leaky slope in float32, so it must be a number of that type.
        """
        if any(isinstance(node, Planar) for node in network.nodes):
            return False
        places = Layout.of(network, network.output).places
        slopes = [node.curve.slopes[0] for _, node in network.activations() if node.curve.splits_at_zero]
        kinds = len(slopes) == sum(1 for _ in network.activations())
        held = all(slope >= 0 and float(np.float32(slope)) == slope for slope in slopes)
        return kinds and held and all(i in places for i, _ in network.activations())

    @cached_property
    def takes_planes(self) -> bool:
        """Whether the checker's bounds of what neurons read are as good as the verifier's.

        Not where two activations read the same node: one may have grafted a neuron, and gain by what the other needs.
        """
        read = [node.inputs[0] for _, node in self.network.activations()]
        return len(set(read)) == len(read)

    def begin(self, images: Sequence[int], prepared: Prepared, dtype: torch.dtype) -> None:
        """CROWN's bounds of the neurons of these images, which are numbers of this type."""
        layout = self.layout
        flat: dict[str, list[Tensor]] = {"loose": [], "lower": [], "upper": []}
        for i in layout.places:
            node = layout.activation(i)
            lower, upper = prepared.intervals[node.inputs[0]]
            for name, value in (("loose", unstable(node, lower, upper)), ("lower", lower), ("upper", upper)):
                flat[name].append(value.flatten(1))
        empty = torch.zeros(len(images), 0)
        loose, lower, upper = (torch.cat(parts, 1).cpu() if parts else empty for parts in flat.values())
        for place, image in enumerate(images):
            where = torch.nonzero(loose[place]).flatten()
            self.drafts[image] = _Draft(
                where.numpy(),
                (lower[place, where].to(dtype).numpy(), upper[place, where].to(dtype).numpy()),
            )

    def improved(self, images: Sequence[int], found: Improved) -> None:
        """Better bounds of neurons. found.image: places in `images`."""
        layout = Layout.of(self.network, found.target)
        moved = torch.full((layout.size + 1,), -1, dtype=torch.int64)
        for i, place in layout.places.items():
            moved[place] = torch.arange(self.layout.places[i].start, self.layout.places[i].stop)
        image, neuron = found.image.cpu().numpy(), found.neuron.cpu().numpy()
        columns = {
            "bound": found.bound.cpu().numpy(),
            "open": moved[found.open.cpu()].numpy(),
            "code": found.code.cpu().numpy(),
            "side": np.full(len(image), int(found.side), np.int8),
        }
        readers = [i for i, node in self.network.activations() if node.inputs[0] == found.target]
        for place in np.unique(image):
            draft = self.drafts[images[place]]
            for i in readers:
                own = neuron + self.layout.places[i].start
                rows = (image == place) & np.isin(own, draft.unstable)  # one reader may have grafted the neuron
                if rows.any():
                    draft.refined.append({"neuron": own[rows], **{name: c[rows] for name, c in columns.items()}})

    def add(self, images: Images, sub: Subproblems) -> None:
        """Proved subproblems of these images."""
        if len(sub) == 0:
            return
        order = torch.argsort(sub.image, stable=True)
        places, counts = torch.unique_consecutive(sub.image[order], return_counts=True)
        sorted_ = sub.at(order)
        groups = [] if images.planes is None else images.planes.members
        none = torch.zeros_like(sorted_.image)
        columns = [
            t.cpu().numpy()
            for t in (
                sorted_.target,
                coded(sorted_.alpha),
                none if images.planes is None else images.planes.number[sorted_.image, sorted_.target],
                sorted_.depth,
                sorted_.neuron,
                sorted_.sign.to(torch.int8),
                sorted_.beta,
            )
        ]
        first = 0
        for place, count in zip(places.tolist(), counts.tolist(), strict=True):
            draft = self.drafts[int(images.number[place])]
            mine = images.bounds.open[place].cpu().numpy()
            draft.open = mine[mine < images.layout.size]
            end = first + count
            target, code, plane, depth, neuron, sign, beta = (column[first:end] for column in columns)
            moved = {int(g): draft.number(groups[g]) if g < len(groups) else -1 for g in np.unique(plane)}
            deepest = int(depth.max())
            draft.leaves.append(
                _Leaves(
                    target,
                    code[:, : len(draft.open)],
                    np.array([moved[int(g)] for g in plane]),
                    depth,
                    neuron[:, :deepest],
                    sign[:, :deepest],
                    beta[:, :deepest],
                )
            )
            first = end

    def drop(self, image: int) -> None:
        self.drafts.pop(image, None)

    def finish(self, image: int) -> Certificate | None:
        """The certificate of an image all of whose margins are proved; what has no leaf was proved by CROWN."""
        draft = self.drafts.pop(image, None)
        if draft is None:
            return None
        arrays = self._box(image)
        layers = [self.layout.places[i] for i in self.layout.places]
        for k, place in enumerate(layers):
            mine = (draft.unstable >= place.start) & (draft.unstable < place.stop)
            if mine.any():
                arrays[f"unstable_{k}"] = (draft.unstable[mine] - place.start).astype(np.int32)
                arrays[f"lower_{k}"], arrays[f"upper_{k}"] = (end[mine] for end in draft.bounds)
        number = np.full(self.layout.size + 1, -1, np.int64)  # of each unstable neuron among all of them
        number[draft.unstable] = np.arange(len(draft.unstable))
        self._refined(draft, layers, number, arrays)
        label = int(self.y[image])
        self._leaves(draft, label, number, arrays)
        if draft.planes:
            self._planes(draft.planes, arrays)
        return Certificate(arrays, label, self.speaks_of, self.network)

    def counterexample(self, image: int, point: Tensor) -> Certificate:
        """A misclassified point, (*shape), of an image's box."""
        arrays = {**self._box(image), "x": point.cpu().numpy()}
        return Certificate(arrays, int(self.y[image]), self.speaks_of, self.network)

    def _box(self, image: int) -> dict[str, Array]:
        return {"lower": self.box.lower[image].cpu().numpy(), "upper": self.box.upper[image].cpu().numpy()}

    def _refined(self, draft: _Draft, layers: list[slice], number: Array, arrays: dict[str, Array]) -> None:
        by_layer: dict[int, list[dict[str, Array]]] = defaultdict(list)
        for part in draft.refined:
            k = next(k for k, place in enumerate(layers) if place.start <= part["neuron"][0] < place.stop)
            by_layer[k].append(part)
        for k, parts in by_layer.items():
            before = int((draft.unstable < layers[k].start).sum())
            alphas = [_spread(part["code"], part["open"], number, before) for part in parts]
            arrays[f"refined_{k}_neuron"] = _joined(parts, "neuron").astype(np.int32) - layers[k].start
            arrays[f"refined_{k}_side"] = _joined(parts, "side")
            arrays[f"refined_{k}_bound"] = _joined(parts, "bound").astype(draft.bounds[0].dtype)
            arrays[f"refined_{k}_alpha"] = np.concatenate(alphas)

    def _leaves(self, draft: _Draft, label: int, number: Array, arrays: dict[str, Array]) -> None:
        classes = self.network.output_shape[0]
        found = {int(t) for part in draft.leaves for t in part.target}
        rest = [t for t in range(classes) if t != label and t not in found]
        target = [np.array(rest, np.int64), *(part.target for part in draft.leaves)]
        depth = [np.zeros(len(rest), np.int64), *(part.depth for part in draft.leaves)]
        codes = [part.code for part in draft.leaves]
        open_ = np.broadcast_to(draft.open, (sum(map(len, codes)), len(draft.open)))
        table = np.concatenate(codes) if codes else np.zeros((0, len(draft.open)), np.uint8)
        real = [np.arange(part.neuron.shape[1]) < part.depth[:, None] for part in draft.leaves]
        splits = [(number[part.neuron] + 1) * part.sign for part in draft.leaves]
        none = np.zeros(0, np.float32)
        targets = np.concatenate(target)
        arrays["leaf_row"] = (targets - (targets > label)).astype(np.int32)
        arrays["leaf_alpha"] = np.concatenate([np.full(len(rest), -1), np.arange(len(table))]).astype(np.int32)
        if draft.planes:
            planes = [np.full(len(rest), -1), *(part.plane for part in draft.leaves)]
            arrays["leaf_plane"] = np.concatenate(planes).astype(np.int32)
        arrays["leaf_depth"] = np.concatenate(depth).astype(np.int32)
        paths = [split[r] for split, r in zip(splits, real, strict=True)]
        arrays["leaf_split"] = np.concatenate([none, *paths]).astype(np.int32)
        betas = [part.beta[r] for part, r in zip(draft.leaves, real, strict=True)]
        arrays["leaf_beta"] = np.concatenate([none, *betas])
        arrays["alpha"] = _spread(table, open_, number, len(draft.unstable))

    def _planes(self, groups: list[Group], arrays: dict[str, Array]) -> None:
        """All of one image. They may be above different neurons, of which the file has all, and who has which."""
        for k, i in enumerate(self.layout.places):
            some = {g: group.reads[i] for g, group in enumerate(groups) if i in group.reads}
            if not some:
                continue
            columns = {g: read.column[0].cpu().numpy() for g, read in some.items()}
            neurons = np.unique(np.concatenate(list(columns.values())))
            sources = next(iter(some.values())).sources
            shape = len(groups), len(neurons)
            used, low, high = np.zeros(shape, np.uint8), np.zeros(shape, np.uint16), np.zeros(shape, np.uint16)
            dense = np.zeros((*shape, sum(sources.values())), np.uint16)
            for g, read in some.items():
                rows, choice = np.searchsorted(neurons, columns[g]), groups[g].choice[i]
                part = np.zeros((len(rows), dense.shape[2]), np.uint16)
                np.put_along_axis(part, read.index[0].cpu().numpy(), _codes(choice.share), 1)
                used[g, rows], low[g, rows], high[g, rows] = 1, _codes(choice.low), _codes(choice.high)
                dense[g, rows] = part
            names, parts = self._sources(sources, dense)
            arrays[f"plane_{k}_neuron"], arrays[f"plane_{k}_used"] = neurons.astype(np.int32), used
            arrays[f"plane_{k}_source"], arrays[f"plane_{k}_share"] = names, np.concatenate(parts, 2)
            arrays[f"plane_{k}_low"], arrays[f"plane_{k}_high"] = low, high

    def _sources(self, sources: dict[int, int], dense: Array) -> tuple[Array, list[Array]]:
        """The names of sources, and their shares out of all, (G, P, values)."""
        layout, numbers = self.layout, list(self.layout.places)
        names, parts = [], []
        for j, part in zip(sources, np.split(dense, np.cumsum(list(sources.values()))[:-1], 2), strict=True):
            if j == layout.path.root:
                names.append(-1)
                parts.append(np.stack([self._at_input(one) for one in part]))
            else:
                lined = layout.activation(j).graft is not None
                names.append(-2 - numbers.index(j) if lined else numbers.index(j))
                parts.append(part)
        return np.array(names, np.int32), parts

    def _at_input(self, codes: Array) -> Array:
        """Codes of values of the input-like root, (P, n), as those of the input: the same, in other places."""
        network, root = self.network, self.layout.path.root
        rows = torch.from_numpy(codes.astype(np.float64)).view(1, 1, len(codes), *network.nodes[root].shape)
        for i in range(root, 0, -1):
            node = network.nodes[i]
            assert isinstance(node, Affine)
            if not isinstance(node, Scale):
                rows = node.transpose(rows, network.nodes[node.inputs[0]].shape, {})
        return rows.reshape(len(codes), -1).numpy().astype(codes.dtype)


def _codes(numbers: Tensor) -> Array:
    """Of the choice of one margin's planes, in 16 bits: (1, ...) -> (...)."""
    return numbers[0].cpu().numpy().astype(np.uint16)


def _joined(parts: list[dict[str, Array]], name: str) -> Array:
    return np.concatenate([part[name] for part in parts])


def _spread(code: Array, place: Array, number: Array, count: int) -> Array:
    """Codes (R, U) of the neurons at these places of the flat axis, (R, U), -1 for none, by number: (R, count)."""
    out = np.zeros((len(code), count + 1), np.uint8)  # the last column takes what belongs to no unstable neuron
    column = np.where(place >= 0, number[place], count)
    np.put_along_axis(out, np.where((column < 0) | (column > count), count, column), code, 1)
    return out[:, :count]
