"""Planes around curves that are exact where a bound is attained.

The line below a curve act(z) on [l, u] is furthest from it in the middle, and that is where bounds are attained: a
corner x* of the box is an end for every input, but not for z = sum_i w_i x_i + b, which lies somewhere inside. With two
lines that meet at z* = z(x*), a steeper one with slope s left of it and a flatter one with slope t <= s right of it,

    act(z) >= v + s min(z - z*, 0) + t max(z - z*, 0),    v about act(z*).

Away from x* every term w_i x_i falls or rises. Let those that fall take the slope s, and the others t: what falls
costs at most s, and what rises gains at least t, so

    act(z) >= v + sum_i c_i w_i (x_i - x*_i),    c_i = s where w_i x_i falls, t where it rises,

for all x of the box. The plane is as exact at x* as the two lines are. With c_i = (s + t) / 2 +/- (s - t) / 2 it is a
line of the mean slope, and (s - t) / 2 times |w_i| towards the corner: one more product with |W| for all neurons.
Above, mirrored.

Any point x* of the box does as well as a corner: beside the mean slope, (s - t) / 2 |w_i| |x_i - x*_i| is lost, which
is convex, so it is at most the line between its values at the ends of x_i. Inputs that the bound would rather have
elsewhere than in its corner lose least in between (`balanced`).

A neuron further back does not change by |w_i| times an input's change, but by no more than `Reach` knows.

Rounding. With m = (s + t) / 2 and h = (s - t) / 2, |m| + |h| is the larger one of |s| and |t|, so at most the curve's
steepest slope. Coefficients of inputs are m times those of the neuron, and h times those that `Reach` knows; both are
at most what lines of the steepest slopes make of |W| everywhere, which is what magnitudes count (`bounds.sound`).
Constants are larger than those of lines: place, width and lower end of an input make up three times h times its
coefficient and magnitude, where the row itself makes up one. So all terms together are at most four times as large,
whatever the number of layers that have planes: those of the functions in `Reach` are not multiplied again, since their
own constants have given their rounding away already. Each term takes about twice as many roundings. `HINGES` is twice
the product of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lipgraft.activations import Lines
from lipgraft.bounds.grouped import Grouped
from lipgraft.bounds.interval import Interval
from lipgraft.bounds.layout import Layout, NeuronBounds
from lipgraft.bounds.reach import Known
from lipgraft.bounds.relaxations import family
from lipgraft.network.graph import Affine, Network

NARROWED = 0.75  # of an interval, at least, must be left for a plane


def first_curve(layout: Layout) -> int | None:
    """The activation whose planes are exact: a smooth curve that reads the root through affine nodes alone."""
    smooth = (i for i in layout.curved if layout.activation(i).curve.through_upper)
    return next((i for i in smooth if chain(layout.network, layout.path.root, i) is not None), None)


def chain(network: Network, root: int, act: int) -> list[Affine] | None:
    """The affine nodes between the root and an activation, from the root on; None if there are others."""
    out: list[Affine] = []
    i = network.nodes[act].inputs[0]
    while i > root:
        node = network.nodes[i]
        if not isinstance(node, Affine) or len(node.inputs) != 1:
            return None
        out.append(node)
        i = node.inputs[0]
    return out[::-1] if i == root else None


@dataclass(frozen=True, eq=False)
class Box:
    """B boxes with a place in each.

    place: (B, *root shape), where planes are exact, from 0 at the lower end of a value's interval to 1 at the upper
    one; lower, width: of these intervals.
    """

    place: Tensor
    lower: Tensor
    width: Tensor


@dataclass(frozen=True, eq=False)
class Hinged:
    """The planes around the neurons of one activation, in each of B boxes.

    lines: of their mean slopes, each (B, 1, 1, *shape); bend_low, bend_high: by how much the two slopes below and above
    differ, >= 0, of the same shape; used: which neurons have a plane, boolean, of that shape; the others have lines.
    far: how far a neuron may be from where its plane is exact, (B, 1, 1, *shape), at that place; None: not at all.
    share: (B, 1, 1, *shape), in [0, 1], how much of its plane a neuron takes, and of its line the rest: both hold the
        curve, so what lies between them does. None: all.
    affine: the nodes between the root and the activation; or reach and grouped: what is known of its neurons, by box.
    """

    box: Box
    lines: Lines
    bend_low: Tensor
    bend_high: Tensor
    used: Tensor
    far: Tensor | None = None
    share: Tensor | None = None
    affine: Sequence[Affine] = ()
    reach: Known | None = None
    grouped: Grouped | None = None

    @staticmethod
    def all(
        bounds: NeuronBounds,
        image: Tensor,
        pre: Mapping[int, Interval],
        place: Tensor,
        level: Tensor | None = None,
        known: Mapping[int, Known] | None = None,
    ) -> dict[int, Hinged]:
        """By activation. image: (B,), rows of bounds; pre: by activation, the bounds of its neurons, each end (B, 1, 1,
        *shape); level: (B,), 0 for boxes without planes, 1 for planes in the first layer, 2 for all; by default all.
        known: what is known of neurons further back; by default what bounds hold.
        """
        layout = bounds.layout
        box = Box(place, bounds.root[0][image], (bounds.root[1] - bounds.root[0])[image])
        point = box.lower + place * box.width
        out: dict[int, Hinged] = {}
        first = first_curve(layout)
        if first is not None:
            affine, z = chain(layout.network, layout.path.root, first) or [], point
            for node in affine:
                z = node.forward(z)
            out[first] = _hinged(bounds, image, first, pre[first], z, box, None if level is None else level >= 1)
            out[first] = replace(out[first], affine=affine)
        for act, reach in (bounds.reach if known is None else known).items():
            lower, upper = pre[act]
            grouped = Grouped.of(image, len(bounds.lower))
            z, far = reach.around(point.flatten(1), grouped, (lower.flatten(1), upper.flatten(1)))
            found = _hinged(bounds, image, act, pre[act], z, box, None if level is None else level >= 2)
            out[act] = replace(found, far=far.view_as(lower), reach=reach, grouped=grouped)
        return out

    def over(self, lines: Lines) -> Lines:
        """The mean slopes of the planes where there are any, and these lines elsewhere, by their shares."""
        mine = self.lines

        def chosen(own: Tensor | None, other: Tensor | None) -> Tensor:
            assert own is not None
            line = torch.zeros_like(own) if other is None else other
            taken = own if self.share is None else self.share * own + (1 - self.share) * line
            return torch.where(self.used, taken, line)

        return Lines(
            chosen(mine.lower_slope, lines.lower_slope),
            chosen(mine.lower_intercept, lines.lower_intercept),
            chosen(mine.upper_slope, lines.upper_slope),
            chosen(mine.upper_intercept, lines.upper_intercept),
        )

    def cost(self, data: Tensor, lines: Tensor) -> Tensor:
        """What planes cost rows at the activation's output, where they have any, and else lines: (B, 1, 1, *shape)."""
        far = torch.zeros_like(data) if self.far is None else 0.5 * self._bent(data) * self.far
        return torch.where(self.used, far, lines)

    def _bent(self, data: Tensor) -> Tensor:
        bent = data.clamp(min=0) * self.bend_low - data.clamp(max=0) * self.bend_high
        return bent if self.share is None else self.share * bent

    def towards(self, data: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What rows at the activation's output, (B, 1, 1, *shape), add to rows at the root beside the mean slopes, and
        to the constants: (B, *root shape), (B,); and twice what they cost per unit of distance, (B, *root shape).
        """
        bent = self._bent(data)
        place, lower, width = self.box.place, self.box.lower, self.box.width
        if self.reach is not None and self.grouped is not None:
            bend = self.reach.spread(bent.flatten(1), self.grouped).view_as(place)
        else:
            bend = bent.view(len(data), *data.shape[3:])
            shapes = [place.shape[1:], *(node.shape for node in self.affine)]  # of what each of them reads
            for node, shape in zip(reversed(self.affine), reversed(shapes[:-1]), strict=True):
                bend = node.magnitude().transpose(bend, tuple(shape), {})
        back = (place - 0.5) * bend
        const = -(0.5 * bend * place * width + back * lower).flatten(1).sum(1)
        if self.far is not None:
            const = const - 0.5 * (bent * self.far).flatten(1).sum(1)
        return back, const, bend


def _hinged(
    bounds: NeuronBounds, image: Tensor, act: int, pre: Interval, z: Tensor, box: Box, wanted: Tensor | None
) -> Hinged:
    """The lines of an activation that meet at z, in the shape of pre. wanted: (B,), which boxes have planes."""
    lower, upper = pre
    z = z.view_as(lower)
    node = bounds.activation(act, image)
    curve, inside = node.curve, torch.minimum(torch.maximum(z, lower), upper)
    whole = bounds.anchors.get(act)
    anchors = None if whole is None else curve.halved_anchors(inside, whole[:, image].view(-1, *lower.shape))
    left_anchors, right_anchors = (None, None) if anchors is None else anchors
    ends = torch.stack([torch.full_like(z, alpha) for alpha in curve.through_upper])
    left = family(node, lower, inside, anchors=left_anchors)(ends)
    right = family(node, inside, upper, anchors=right_anchors)(1 - ends)
    # Left of the hinge a steeper line, below, is lower still; right of it a flatter one is.
    steep, flat = torch.maximum(left.lower_slope, right.lower_slope), right.lower_slope
    value = torch.minimum(*(_value(x.lower_slope, x.lower_intercept, inside) for x in (left, right)))
    low = value + steep * (z - inside).clamp(max=0) + flat * (z - inside).clamp(min=0)
    mean = (steep + flat) / 2
    flat_high, steep_high = torch.minimum(left.upper_slope, right.upper_slope), right.upper_slope
    value = torch.maximum(*(_value(x.upper_slope, x.upper_intercept, inside) for x in (left, right)))
    high = value + flat_high * (z - inside).clamp(max=0) + steep_high * (z - inside).clamp(min=0)
    mean_high = (flat_high + steep_high) / 2
    lines = Lines(mean, low - mean * z, mean_high, high - mean_high * z)
    # A plane is true of the whole box: where splits have left little of an interval, lines are better.
    whole_width = (bounds.upper - bounds.lower)[:, bounds.layout.places[act]][image].view_as(lower)
    used = upper - lower >= NARROWED * whole_width
    if wanted is not None:
        used = used & wanted.view(-1, *[1] * (used.ndim - 1))
    bend_low, bend_high = (torch.where(used, bend, 0.0) for bend in (steep - flat, steep_high - flat_high))
    return Hinged(box, lines, bend_low, bend_high, used)


def _value(slope: Tensor, intercept: Tensor | None, z: Tensor) -> Tensor:
    return slope * z if intercept is None else slope * z + intercept


def attained(rows: Tensor) -> Tensor:
    """The corner where linear functions of the root are least."""
    return (rows <= 0).to(rows.dtype)


def balanced(rows: Tensor, bend: Tensor, place: Tensor) -> Tensor:
    """A better place than this one: inputs that would rather be elsewhere lose the same at either end."""
    mean = rows.view_as(bend) - (place - 0.5) * bend
    tiny = torch.finfo(bend.dtype).tiny
    return (0.5 - mean / bend.clamp(min=tiny)).clamp(0, 1)
