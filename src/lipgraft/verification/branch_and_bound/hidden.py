"""Branch and bound of hidden neurons: better bounds for all subproblems of an image at once.

What makes an image hard is rarely one neuron: after a few splits of the last layers, hundreds of neurons of a
convolution each cost the margin a little, because each of their intervals is a little too wide. To split them one by
one would take thousands of subproblems. But such a neuron sees a small window, with a few dozen unstable neurons, and
so its own interval can be branched on for next to nothing: some 16 splits of its worst subproblem close most of the gap
to its true range. The tighter intervals then hold everywhere in the image's tree. So it is with fully connected
networks of a few hundred neurons, where a neuron sees all layers before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.bounds.alpha_crown import LowerBound, decoded
from lipgraft.bounds.ascent import AlphaSettings, optimise
from lipgraft.bounds.crown import Prepared, prepare
from lipgraft.bounds.geometry import interval_is_exact
from lipgraft.bounds.interval import Interval
from lipgraft.bounds.layout import Layout, NeuronBounds
from lipgraft.bounds.memory import Late, fitting
from lipgraft.bounds.one_layer import OneLayer, OneLayerBound
from lipgraft.bounds.prefix_network import PrefixNetwork
from lipgraft.bounds.refine import Sound, refine
from lipgraft.bounds.relaxations import unstable
from lipgraft.bounds.sound import below
from lipgraft.bounds.window_network import WindowNetwork
from lipgraft.network.graph import Activation, Conv, Network
from lipgraft.verification.branch_and_bound.branching import intercept, scores
from lipgraft.verification.branch_and_bound.images import Images
from lipgraft.verification.branch_and_bound.subproblems import Subproblems
from lipgraft.verification.job import Job

FIRST_STEPS = 10  # of optimisation, before a neuron is branched on
STEPS = 2  # of optimisation of each half
LR_ALPHA, LR_BETA, DECAY = 0.1, 0.02, 0.98
ROWS = 2**16  # neurons that are branched on at once, at most; fewer with more splits than usual, which are all kept
USUAL = 16
IMAGES = 64  # whose windows are cut at once
LEVELS = 3  # of effort for the bounds of an image's neurons
WAITING = 4  # neurons are bounded when at least one in so many of the open images waits for it
FEW = 4  # images together whose neurons are branched on even where they see much of the network,
MANY = 16  # if so many are open, at most: it may take a quarter of the time that is left
SHARE = 0.25  # of the time that is left to these images, at most, for that
AT_ONCE = 128  # images whose neurons are bounded between two rounds, the most promising first


class HiddenNeurons:
    """The layers of a network whose neurons are branched on, in order.

    far: those among them whose neurons see much, which takes time that only a few images have.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        # A certificate has no room for the trees of neurons.
        wanted = job.settings.branch.neuron_splits > 0 and job.ledger.drafts is None
        self.windows = _seen_networks(job.network) if wanted else {}
        self.proof = _seen_networks(job.proof) if wanted and job.proof is not None else None
        self.far = [target for target, seen in self.windows.items() if isinstance(seen, PrefixNetwork) and seen.far]

    def __bool__(self) -> bool:
        """Whether there is anything to improve."""
        return bool(self.windows)

    @property
    def refines(self) -> bool:
        """Whether optimised bounds of hidden neurons, which come with these, can wait for them.

        In convolutional networks they cost as much as hundreds of subproblems, and most images need fewer. In fully
        connected ones they are worth more than any split, and smooth activations have their planes from them.
        """
        network, most = self.job.network, self.job.settings.limits.max_subproblems
        convolutional = any(isinstance(node, Conv) for node in network.nodes)
        reached = most is None or most > self.job.settings.branch.neuron_after
        return bool(self) and reached and convolutional and not Layout.of(network, network.output).curved

    def due(
        self, numbers: Sequence[int], stopped: Sequence[bool], tightened: Sequence[int], cost: Callable[[], Tensor]
    ) -> Iterator[tuple[list[int], int]]:
        """Images that prove hard, by their places, and how many splits every bound of one of their neurons gets.

        The harder an image turns out to be, the more its neurons are worth: ten times as many subproblems buy them four
        times as many splits. Images wait for each other: many cost a device hardly more than one.

        numbers: the images of the search; stopped: which of them have ended; tightened: how often each was here; all
        are looked at anew after every answer. cost: (I,), how much work each image needs.
        """
        settings, subproblems = self.job.settings.branch, self.job.ledger.subproblems
        live = len(numbers) - sum(stopped)
        for level in range(LEVELS if self else 0):
            after = settings.neuron_after * int(10**level)
            waiting = [place for place, times in enumerate(tightened) if times == level and not stopped[place]]
            hard = [place for place in waiting if subproblems[numbers[place]] >= after]
            if hard and WAITING * len(hard) >= min(live, WAITING * AT_ONCE):
                if len(hard) > AT_ONCE:
                    needed = cost().tolist()
                    hard = sorted(hard, key=lambda place: needed[place])[:AT_ONCE]
                yield hard, settings.neuron_splits * 4**level

    def tighten(self, images: Images, some: Tensor, splits: int, late: Late, open_: int) -> None:
        """Better bounds of the neurons of some images, (J,), in place: whoever holds `images` sees them.

        splits: of each neuron's worst subproblem, for either bound; open_: how many images of the search are open.
        """
        far = len(some) <= FEW and open_ <= MANY
        for group in torch.split(some, IMAGES):
            if not late():
                self._tighten(images, group, splits, late, far)

    def _tighten(self, images: Images, some: Tensor, splits: int, late: Late, far: bool) -> None:
        job, settings = self.job, self.job.settings
        held = images.bounds if images.proof is None else images.proof
        prepared = self._prepared(images.number[some], _by_name(held.at(some)))
        end = job.ledger.now() + SHARE * job.left(images.number[some].tolist())

        def far_late() -> bool:
            return late() or job.ledger.now() > end

        done: dict[str, Interval] = {}
        for target, readers in _readers(prepared.network).items():
            if target in self.windows and (far or target not in self.far):
                over = far_late if target in self.far else late
                prepared.intervals[target] = self._layer(prepared, target, readers, splits, over)
            if target <= max(self.windows):
                done |= {act.name: prepared.intervals[target] for act in readers}
        # Layers that see everything: once more over the better ones before them.
        prepared = self._prepared(images.number[some], done)
        alpha = AlphaSettings(settings.optimise.refine_iterations, settings.optimise.lr, settings.optimise.decay)
        sound = None
        if job.proof is not None and prepared.rounding is not None:
            sound = Sound(job.proof, prepared.rounding, prepared.errors)
        intervals = refine(
            job.network, prepared.intervals, settings.optimise.refine, alpha, settings.branch.batch, late, sound
        )
        _narrow(held, some, NeuronBounds.of(held.layout, intervals))
        if images.proof is not None:
            images.bounds.lower[some] = images.proof.lower[some].to(images.bounds.lower)
            images.bounds.upper[some] = images.proof.upper[some].to(images.bounds.upper)

    def _prepared(self, number: Tensor, layers: Mapping[str, Interval]) -> Prepared:
        """The images with these bounds; those of other layers by CROWN."""
        job = self.job
        if job.proof is None:
            return prepare(job.network, job.box[number], layers=layers)
        hardware = job.settings.speaks_of == "float32"
        return prepare(job.proof, job.exact_box[number], layers=layers, sound_for=job.x.dtype, hardware=hardware)

    def _layer(self, prepared: Prepared, target: int, readers: list[Activation], splits: int, late: Late) -> Interval:
        """The interval of one node, improved where some activation finds it unstable."""
        intervals, dtype = prepared.intervals, self.job.x.dtype
        lower, upper = (end.flatten(1).clone() for end in intervals[target])
        wanted = torch.stack([unstable(act, *intervals[target]) for act in readers]).any(0).flatten(1)
        image, neuron = torch.nonzero(wanted, as_tuple=True)
        if len(image) == 0:
            return intervals[target]
        window = self.windows[target]
        size = fitting(window.layout.floats, lower.device, dtype, 2 * ROWS * USUAL // max(splits, USUAL)) // 2
        for end, sign, best in ((lower, 1.0, torch.maximum), (upper, -1.0, torch.minimum)):
            for part in torch.split(torch.arange(len(image), device=image.device), size):
                if late():
                    break
                where, which = image[part], neuron[part]
                side = torch.full((len(part),), sign, dtype=dtype, device=image.device)
                if self.proof is None:
                    bounds, proof = window.bounds(intervals, where, which), None
                else:
                    proof = self.proof[target].bounds(intervals, where, which, prepared.rounding, prepared.errors)
                    bounds = proof.searched(window.layout, dtype)
                problem = NeuronProblem(bounds, proof, window.rows(which, side))
                bound = problem.branched(splits, late)
                end[where, which] = best(end[where, which], bound.to(end) * sign)
        shape = intervals[target][0].shape
        return lower.view(shape), upper.view(shape)


class NeuronProblem:
    """R neurons, each to be branched on in its own window.

    In its subproblems `image` is the row, and splits name open neurons by their place among the row's open ones.
    """

    def __init__(self, bounds: NeuronBounds, proof: NeuronBounds | None, rows: Tensor) -> None:
        """bounds, proof: of what each neuron sees, for the search and for the proof; rows: (R, 1, 1, channels)."""
        self.bounds, self.proof, self.rows = bounds, proof, rows
        self.layer = OneLayer(bounds, rows) if OneLayer.fits(bounds) else None

    def branched(self, splits: int, late: Late) -> Tensor:
        """Lower bounds of the rows, (R,), that may be called proved: the worst subproblem is split so many times.

        A row that is above zero already is split no more: the neuron is stable.
        """
        count, device = len(self.rows), self.rows.device
        everyone = torch.arange(count, device=device)
        splits = splits if self.bounds.open.shape[1] else 0  # windows without an unstable neuron
        # Each row has so many slots for its subproblems, `count` apart; the bound of an empty one is infinite.
        width = splits + 1
        leaves = Subproblems.cat([self._first(everyone, splits).packed()] * width)
        leaves.bound[count:] = torch.inf
        filled = torch.arange(len(leaves), device=device) < count
        live = everyone
        for k in range(splits):
            if late():
                break
            worst = leaves.bound.view(width, count)[:, live].argmin(0) * count + live
            parents = leaves.at(worst).unpacked()
            best, column = scores(self._function(parents), parents, intercept).max(1)
            kept = torch.isfinite(best) & (parents.bound < 0)
            live, worst, parents = live[kept], worst[kept], parents.at(kept)
            if len(live) == 0:
                break
            children = self._bounded(parents.split(column[kept])).packed()
            into = torch.cat([worst, (k + 1) * count + live])
            for name, tensor in leaves.tensors().items():
                tensor.index_copy_(0, into, children.tensors()[name])
            filled[into] = True
        if self.proof is None:
            return leaves.bound.view(width, count).amin(0)
        return self._proved(leaves, torch.nonzero(filled).flatten(), count)

    def _function(self, sub: Subproblems) -> LowerBound | OneLayerBound:
        if self.layer is not None:
            return OneLayerBound(self.layer, sub.image, sub.neuron, sub.sign)
        return self._lower_bound(sub, self.bounds)

    def _lower_bound(self, sub: Subproblems, bounds: NeuronBounds) -> LowerBound:
        rows = self.rows[sub.image].to(bounds.lower.dtype)
        neuron = F.pad(bounds.open, (0, 1), value=bounds.layout.size)[sub.image].gather(1, sub.neuron)
        return LowerBound(bounds, sub.image, rows, neuron, sub.sign.to(rows.dtype))

    def _first(self, everyone: Tensor, splits: int) -> Subproblems:
        """The whole problem of every row, with room for splits."""
        none = self.bounds.open.shape[1]
        depth = min(splits, none)
        zero = self.rows.new_zeros(len(everyone), depth)
        start = LowerBound(self.bounds, everyone, self.rows).start()
        image, nothing = torch.zeros_like(everyone), self.rows.new_full((len(everyone),), -torch.inf)
        column = torch.full((len(everyone), depth), none, device=everyone.device)
        whole = Subproblems(everyone, image, nothing, start, image, column, zero, zero, zero)
        return self._bounded(whole, FIRST_STEPS)

    def _bounded(self, sub: Subproblems, steps: int = STEPS) -> Subproblems:
        settings = AlphaSettings(steps, LR_ALPHA, DECAY)
        found = optimise(self._function(sub), sub.alpha, sub.beta, settings, lr_beta=LR_BETA)
        return replace(sub, bound=torch.maximum(found.bound, sub.bound), alpha=found.alpha, beta=found.beta)

    def _proved(self, leaves: Subproblems, filled: Tensor, count: int) -> Tensor:
        """The worst of the proved bounds of each row's subproblems, as numbers of the search's type: (count,)."""
        proof = self.proof
        assert proof is not None
        out = torch.full((count,), torch.inf, dtype=torch.float64, device=filled.device)
        size = fitting(proof.layout.floats, filled.device, torch.float64, 2 * ROWS)
        for some in torch.split(filled, size):
            sub = leaves.at(some).unpacked()
            function = self._lower_bound(sub, proof)
            alpha = decoded(leaves.alpha[some], torch.float64)
            out.scatter_reduce_(0, sub.image, function.sound_value(alpha, sub.beta.double()), "amin")
        return below(out, self.rows.dtype)


def _seen_networks(network: Network) -> dict[int, WindowNetwork | PrefixNetwork]:
    """What the neurons of each layer see, where it is worth branching on; the first layer's intervals are exact."""
    exact = interval_is_exact(network)
    targets = [target for target in _readers(network) if not exact[target]]
    found = {target: WindowNetwork.of(network, target) or PrefixNetwork.of(network, target) for target in targets}
    return {target: seen for target, seen in found.items() if seen is not None}


def _readers(network: Network) -> dict[int, list[Activation]]:
    """The nodes that activations read, in order, with these activations."""
    out: dict[int, list[Activation]] = {}
    for i, act in network.activations():
        if i <= network.output:
            out.setdefault(act.inputs[0], []).append(act)
    return dict(sorted(out.items()))


def _by_name(bounds: NeuronBounds) -> dict[str, Interval]:
    """Pre-activation bounds by activation name: (B, *shape) each end."""
    layout = bounds.layout
    lower, upper = layout.pieces(bounds.lower), layout.pieces(bounds.upper)
    return {layout.activation(i).name: (lower[i][:, 0, 0], upper[i][:, 0, 0]) for i in layout.places}


def _narrow(held: NeuronBounds, some: Tensor, found: NeuronBounds) -> None:
    """Take the better of two bounds everywhere, in place. If they contradict each other, by rounding, keep the old."""
    lower, upper = torch.maximum(held.lower[some], found.lower), torch.minimum(held.upper[some], found.upper)
    fine = lower <= upper
    held.lower[some] = torch.where(fine, lower, held.lower[some])
    held.upper[some] = torch.where(fine, upper, held.upper[some])
