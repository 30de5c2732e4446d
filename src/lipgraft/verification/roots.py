"""What all subproblems of an image share: its box and the bounds of its neurons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.bounds.interval import Interval
from lipgraft.bounds.relaxations import unstable
from lipgraft.verification.layout import Layout


@dataclass(frozen=True, eq=False)
class Roots:
    """I images. number: (I,), the image's place in the caller's batch; y: (I,), its class.

    low, high: (I, *input shape), the box; root: its image at the input-like root, each (I, *root shape). inner: the
    box for counterexamples, which lies inside.
    lower, upper: (I, N + 1), pre-activation bounds on the layout's flat axis, zero in the last column.
    open: (I, U), the neurons that a split can help (unstable, not grafted), filled up with N.
    """

    layout: Layout
    number: Tensor
    y: Tensor
    low: Tensor
    high: Tensor
    root: Interval
    inner: Interval
    lower: Tensor
    upper: Tensor
    open: Tensor

    def __len__(self) -> int:
        return len(self.number)

    @staticmethod
    def of(
        layout: Layout,
        intervals: Sequence[Interval],
        number: Tensor,
        y: Tensor,
        box: Interval,
        inner: Interval | None = None,
    ) -> Roots:
        """intervals: of every node of the network, as `bounds.crown.Prepared` holds them. inner: by default the box."""
        nodes = {i: layout.activation(i) for i in layout.places}
        pre = {i: intervals[node.inputs[0]] for i, node in nodes.items()}
        lower, upper, loose = box[0].new_zeros(len(y), 0), box[0].new_zeros(len(y), 0), None
        if nodes:
            lower = layout.flat({i: ends[0] for i, ends in pre.items()})
            upper = layout.flat({i: ends[1] for i, ends in pre.items()})
            loose = layout.flat({i: unstable(node, *pre[i]) for i, node in nodes.items()})
        return Roots(
            layout=layout,
            number=number,
            y=y,
            low=box[0],
            high=box[1],
            root=intervals[layout.path.root],
            inner=box if inner is None else inner,
            lower=F.pad(lower, (0, 1)),
            upper=F.pad(upper, (0, 1)),
            open=number.new_zeros(len(y), 0) if loose is None else _positions(loose),
        )

    @staticmethod
    def cat(parts: Sequence[Roots]) -> Roots:
        """All images of several groups."""
        width = max(part.open.shape[1] for part in parts)
        size = parts[0].layout.size

        def join(name: str) -> Tensor:
            return torch.cat([getattr(part, name) for part in parts])

        return Roots(
            layout=parts[0].layout,
            number=join("number"),
            y=join("y"),
            low=join("low"),
            high=join("high"),
            root=(torch.cat([p.root[0] for p in parts]), torch.cat([p.root[1] for p in parts])),
            inner=(torch.cat([p.inner[0] for p in parts]), torch.cat([p.inner[1] for p in parts])),
            lower=join("lower"),
            upper=join("upper"),
            open=torch.cat([F.pad(p.open, (0, width - p.open.shape[1]), value=size) for p in parts]),
        )

    def at(self, images: Tensor) -> Roots:
        """Some of the images. images: an index or a boolean mask."""
        return replace(
            self,
            root=(self.root[0][images], self.root[1][images]),
            inner=(self.inner[0][images], self.inner[1][images]),
            **{name: getattr(self, name)[images] for name in ("number", "y", "low", "high", "lower", "upper", "open")},
        )

    def margins(self, image: Tensor, target: Tensor) -> Tensor:
        """The rows "true class minus target": image, target (B,) -> (B, 1, 1, classes)."""
        eye = torch.eye(self.layout.network.output_shape[0], dtype=self.lower.dtype, device=self.lower.device)
        return (eye[self.y[image]] - eye[target])[:, None, None]


def _positions(wanted: Tensor) -> Tensor:
    """(I, N) boolean -> (I, U): the positions of the true ones, U the largest count; N fills up shorter rows."""
    size = wanted.shape[1]
    width = int(wanted.sum(1).max()) if len(wanted) else 0
    places = torch.where(wanted, torch.arange(size, device=wanted.device), size)
    return places.sort(1).values[:, :width]
