"""The images that branch and bound works on: what all subproblems of an image share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lipgraft.attacks.methods import worst_margin
from lipgraft.bounds.geometry import at_input
from lipgraft.bounds.interval import Interval
from lipgraft.bounds.layout import Layout, NeuronBounds
from lipgraft.bounds.margins import true_minus
from lipgraft.network import evaluate
from lipgraft.verification.branch_and_bound.subproblems import Subproblems


@dataclass(frozen=True, eq=False)
class Images:
    """I images.

    bounds: of their neurons; number: (I,), the image's place in the caller's batch; y: (I,), its class.
    box: of each image, both ends (I, *input shape); inner: the box for counterexamples, which lies inside.
    """

    bounds: NeuronBounds
    number: Tensor
    y: Tensor
    box: Interval
    inner: Interval

    def __len__(self) -> int:
        return len(self.number)

    @property
    def layout(self) -> Layout:
        return self.bounds.layout

    @staticmethod
    def cat(parts: Sequence[Images]) -> Images:
        """All images of several groups."""
        return Images(
            bounds=NeuronBounds.cat([p.bounds for p in parts]),
            number=torch.cat([p.number for p in parts]),
            y=torch.cat([p.y for p in parts]),
            box=(torch.cat([p.box[0] for p in parts]), torch.cat([p.box[1] for p in parts])),
            inner=(torch.cat([p.inner[0] for p in parts]), torch.cat([p.inner[1] for p in parts])),
        )

    def at(self, images: Tensor) -> Images:
        """Some of the images. images: an index or a boolean mask."""
        return Images(
            bounds=self.bounds.at(images),
            number=self.number[images],
            y=self.y[images],
            box=(self.box[0][images], self.box[1][images]),
            inner=(self.inner[0][images], self.inner[1][images]),
        )

    def margins(self, image: Tensor, target: Tensor) -> Tensor:
        """The rows "true class minus target": image, target (B,) -> (B, 1, 1, classes)."""
        return true_minus(self.y[image], target, self.layout.network.output_shape[0], self.box[0].dtype)[:, None, None]

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
            shifted.append(moved.widened(images.bounds.open.shape[1], 0, images.layout.size))
            before += len(part.images)
        return OpenImages(images, Subproblems.cat(shifted), torch.cat([part.floor for part in parts]))

    def at(self, images: Tensor) -> OpenImages:
        """Some of the images, (J,), with their subproblems."""
        place = torch.full((len(self.images),), -1, device=images.device)
        place[images] = torch.arange(len(images), device=images.device)
        moved = replace(self.sub, image=place[self.sub.image])
        return OpenImages(self.images.at(images), moved.at(moved.image >= 0), self.floor[images])
