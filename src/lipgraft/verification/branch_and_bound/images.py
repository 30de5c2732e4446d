"""The images that branch and bound works on: what all subproblems of an image share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lipgraft.attacks.methods import worst_margin
from lipgraft.bounds.alpha_crown import LowerBound, coded, decoded
from lipgraft.bounds.geometry import at_input
from lipgraft.bounds.grouped import Grouped
from lipgraft.bounds.implied import Implied
from lipgraft.bounds.interval import Interval
from lipgraft.bounds.layout import Layout, NeuronBounds
from lipgraft.bounds.margins import true_minus
from lipgraft.bounds.memory import fitting
from lipgraft.network import evaluate
from lipgraft.rounding import round_down
from lipgraft.verification.branch_and_bound.planes import Planes, UpperPlanes
from lipgraft.verification.branch_and_bound.subproblems import Subproblems


@dataclass(frozen=True, eq=False)
class Images:
    """I images.

    bounds: of their neurons; number: (I,), the image's place in the caller's batch; y: (I,), its class.
    box: of each image, both ends (I, *input shape); inner: the box for counterexamples, which lies inside.
    proof: sound bounds of the neurons in double precision, with which proofs are made; None: the search's word counts.
    places: (I, classes, *root shape), in 8 bits, where the planes around curves are exact, for every margin; see
        `bounds.corners`; lifted: (I, classes), the level of a margin's planes, 0 for none. None: all have lines.
    implied, planes: what splits say about other neurons, and planes above neurons of hard margins; not handed on to
        some of the images or to several groups together.
    """

    bounds: NeuronBounds
    number: Tensor
    y: Tensor
    box: Interval
    inner: Interval
    proof: NeuronBounds | None = None
    places: Tensor | None = None
    lifted: Tensor | None = None
    implied: Implied | None = None
    planes: UpperPlanes | None = None

    def __len__(self) -> int:
        return len(self.number)

    @property
    def layout(self) -> Layout:
        return self.bounds.layout

    @property
    def alphas(self) -> int:
        """How many free parameters the lines of a subproblem have."""
        return self.bounds.open.shape[1] * self.layout.parameters

    @staticmethod
    def cat(parts: Sequence[Images]) -> Images:
        """All images of several groups."""
        return Images(
            bounds=NeuronBounds.cat([p.bounds for p in parts]),
            number=torch.cat([p.number for p in parts]),
            y=torch.cat([p.y for p in parts]),
            box=(torch.cat([p.box[0] for p in parts]), torch.cat([p.box[1] for p in parts])),
            inner=(torch.cat([p.inner[0] for p in parts]), torch.cat([p.inner[1] for p in parts])),
            proof=None if parts[0].proof is None else NeuronBounds.cat([p.proof for p in parts if p.proof is not None]),
            places=None if parts[0].places is None else torch.cat([p.places for p in parts if p.places is not None]),
            lifted=None if parts[0].lifted is None else torch.cat([p.lifted for p in parts if p.lifted is not None]),
        )

    def at(self, images: Tensor) -> Images:
        """Some of the images. images: an index or a boolean mask."""
        return Images(
            bounds=self.bounds.at(images),
            number=self.number[images],
            y=self.y[images],
            box=(self.box[0][images], self.box[1][images]),
            inner=(self.inner[0][images], self.inner[1][images]),
            proof=None if self.proof is None else self.proof.at(images),
            places=None if self.places is None else self.places[images],
            lifted=None if self.lifted is None else self.lifted[images],
        )

    def margins(self, image: Tensor, target: Tensor) -> Tensor:
        """The rows "true class minus target": image, target (B,) -> (B, 1, 1, classes)."""
        return true_minus(self.y[image], target, self.layout.network.output_shape[0], self.box[0].dtype)[:, None, None]

    def lower_bound(self, sub: Subproblems) -> LowerBound:
        """The margins of subproblems as functions of their lines and multipliers, for the search."""
        if self.planes is None:
            return self.lifted_bound(sub, None, None)
        return self.lifted_bound(sub, self.planes.search, self.planes.grouped(sub.image, sub.target))

    def lifted_bound(self, sub: Subproblems, planes: Planes | None, grouped: Grouped | None) -> LowerBound:
        """The same with these planes."""
        rows = self.margins(sub.image, sub.target)
        splits = sub.neuron, sub.sign, sub.point
        function = LowerBound(self.bounds, sub.image, rows, *splits, self.implied, planes, grouped)
        return self._placed(function, sub.image, sub.target)

    def _placed(self, function: LowerBound, image: Tensor, target: Tensor) -> LowerBound:
        """With the planes of these margins, (B,), around the first layer's curves, if there are any."""
        if self.places is None or self.lifted is None:
            return function
        return function.exact_at(decoded(self.places[image, target], function.base.dtype), self.lifted[image, target])

    def whole(self, image: Tensor, target: Tensor) -> LowerBound:
        """The same of margins without splits, and with lines alone."""
        return LowerBound(self.bounds, image, self.margins(image, target))

    def proved_bounds(self, sub: Subproblems, most: int) -> Tensor:
        """The bounds of subproblems that may be called proved, (B,): never better than what the search found.

        most: how many are evaluated at once.
        """
        proof = self.proof
        if proof is None or len(sub) == 0:
            return sub.bound
        parts: list[Tensor] = []
        most = most if self.planes is None else most // 4  # planes take memory of their own
        size = fitting(self.layout.floats, sub.image.device, torch.float64, most)
        for some in torch.split(torch.arange(len(sub), device=sub.image.device), size):
            part = sub.at(some)
            rows = self.margins(part.image, part.target).double()
            splits = part.neuron, part.sign.double(), part.point.double()
            above = () if self.planes is None else (self.planes.proof, self.planes.grouped(part.image, part.target))
            function = LowerBound(proof, part.image, rows, *splits, self.implied, *above)
            function = self._placed(function, part.image, part.target)
            parts.append(function.sound_value(decoded(coded(part.alpha), torch.float64), part.beta.double()))
        return torch.minimum(round_down(torch.cat(parts), sub.bound.dtype), sub.bound)

    def contradictory(self, packed: Subproblems) -> Tensor:
        """Whether a subproblem's splits leave no input at all, by the bounds of the neurons: (B,)."""
        held = self.bounds if self.proof is None else self.proof
        image, neuron = packed.image.long(), packed.neuron.long()
        upper, lower = held.upper[image[:, None], neuron], held.lower[image[:, None], neuron]
        return ((packed.sign > 0) & (upper < packed.point) | (packed.sign < 0) & (lower > packed.point)).any(1)

    def corner(self, image: Tensor, rows: Tensor) -> Tensor:
        """Where linear functions of the root, (B, *root shape), are smallest in the inner box: (B, *input shape)."""
        down = at_input(self.layout.network, self.layout.path.root, rows)
        return torch.where(down > 0, self.inner[0][image], self.inner[1][image])

    def margin_at(self, image: Tensor, point: Tensor) -> Tensor:
        """The true logit minus the largest other one at points (B, *input shape) of the images (B,): (B,)."""
        network = self.layout.network
        return -worst_margin(evaluate(network, point)[network.output], self.y[image])


@dataclass(frozen=True, eq=False)
class OpenImages:
    """Images that need branching.

    sub: their unproved margins; floor: (I,), the smallest margin of each that is proved.
    """

    images: Images
    sub: Subproblems
    floor: Tensor

    @staticmethod
    def cat(parts: Sequence[OpenImages]) -> OpenImages:
        """All images of several groups."""
        images = Images.cat([part.images for part in parts])
        shifted: list[Subproblems] = []
        before = 0
        for part in parts:
            moved = replace(part.sub, image=part.sub.image + before)
            shifted.append(moved.widened(images.alphas, 0, images.layout.size))
            before += len(part.images)
        return OpenImages(images, Subproblems.cat(shifted), torch.cat([part.floor for part in parts]))

    def at(self, images: Tensor) -> OpenImages:
        """Some of the images, (J,), with their subproblems."""
        place = torch.full((len(self.images),), -1, device=images.device)
        place[images] = torch.arange(len(images), device=images.device)
        moved = replace(self.sub, image=place[self.sub.image])
        return OpenImages(self.images.at(images), moved.at(moved.image >= 0), self.floor[images])
