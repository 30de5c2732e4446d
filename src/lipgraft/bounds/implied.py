"""What the sign of one neuron says about another: bounds of first-layer neurons that follow from splits.

Where two pre-activations z_k and z_j are affine in the input, a split z_k >= 0 takes a part of the box away, and often
all of it where z_j has one of its signs. On what is left z_j >= z_j - t z_k for every t >= 0, an affine function whose
minimum over the whole box is known. A few t are tried for each pair, once per image; a subproblem then takes the best
of what its splits say.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.bounds.backward import Relaxed, Rows, Substitution
from lipgraft.bounds.geometry import dense_plan, interval_is_exact
from lipgraft.bounds.layout import Layout, NeuronBounds
from lipgraft.bounds.neurons import positions
from lipgraft.bounds.sound import below, guard_lower

TRIED = (0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)  # t; 1 gives both functions coefficients of the same size
NEURONS = 256  # of an image that are looked at, at most
NUMBERS = 1 << 22  # pairs of them times inputs, at most


@dataclass(frozen=True, eq=False)
class Implied:
    """Bounds that splits imply, for I images with up to U such neurons each.

    neurons: (I, U), on the flat axis of N, filled up with N; column: (I, N + 1), the place of each among them, or U.
    ends: (I, 2 (U + 1), 2 U). Row k is for z_k >= 0, row U + 1 + k for z_k <= 0; they hold the lower bounds of all U
    and then their upper bounds, negated. A row of no neuron says nothing: -inf.
    """

    neurons: Tensor
    column: Tensor
    ends: Tensor

    @staticmethod
    def of(bounds: NeuronBounds, dtype: torch.dtype) -> Implied | None:
        """None where splits imply nothing. dtype: in which somebody searches with these bounds; all ends are numbers of
        this type, so that the search and the proof see the same.
        """
        layout = bounds.layout
        if layout.curved or bounds.errors:
            return None
        neurons = _open_in_first_layer(bounds)
        images, most, none = len(neurons), neurons.shape[1], layout.size
        if most == 0:
            return None
        device = neurons.device
        column = torch.full((images, none + 1), most, device=device)
        column.scatter_(1, neurons, torch.arange(most, device=device).expand_as(neurons))
        column[:, none] = most
        ends = torch.full((images, 2, most + 1, 2, most), -torch.inf, dtype=dtype, device=device)
        exact = Layout(layout.network.to(dtype=torch.float64), layout.path, layout.places, layout.size)
        for image in range(images):
            mine = neurons[image][neurons[image] != none]
            count = len(mine)
            if count:
                found = _pairs(exact, bounds, image, mine)
                ends[image, :, :count, :, :count] = below(found, dtype).to(dtype)
        return Implied(neurons, column, ends.view(images, 2 * (most + 1), 2 * most))

    def narrowed(
        self, lower: Tensor, upper: Tensor, at: Tensor, image: Tensor, neuron: Tensor, sign: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Bounds of subproblems, (B, n), with what their splits imply. image: (B,); neuron, sign: (B, D).

        at: (B, U), the columns in which the neurons stand; those that fill up share one that nobody reads.

        Where splits leave no value of a neuron they leave no input, and any bounds are true; lower <= upper stays so.
        """
        if not neuron.shape[1]:
            return lower, upper
        most, flat = self.neurons.shape[1], self.ends.flatten(0, 1)
        column = self.column[image].gather(1, neuron)
        rows = (2 * (most + 1) * image)[:, None] + (most + 1) * (sign < 0).long() + column
        first, *others = rows.T.contiguous().unbind(0)
        found = flat.index_select(0, first)
        for row in others:  # all at once would take as many times the memory
            found = torch.maximum(found, flat.index_select(0, row))
        found = found.to(lower.dtype)
        low = torch.maximum(lower.gather(1, at), found[:, :most])
        high = torch.maximum(low, torch.minimum(upper.gather(1, at), -found[:, most:]))
        return lower.scatter(1, at, low), upper.scatter(1, at, high)


def _open_in_first_layer(bounds: NeuronBounds) -> Tensor:
    """The open neurons of each image whose pre-activations are affine in the input, (I, U), filled up with N.

    None of an image that has too many.
    """
    layout = bounds.layout
    exact = interval_is_exact(layout.network)
    first = torch.zeros(layout.size + 1, dtype=torch.bool, device=bounds.open.device)
    for i, place in layout.places.items():
        first[place] = exact[layout.activation(i).inputs[0]]
    wanted = torch.zeros_like(bounds.lower, dtype=torch.bool).scatter_(1, bounds.open, True) & first
    count, inputs = wanted.sum(1), bounds.root[0][0].numel()
    few = (count <= NEURONS) & (count * count * inputs <= NUMBERS)
    return positions(wanted & few[:, None], layout.size)[0]


def _pairs(layout: Layout, bounds: NeuronBounds, image: int, mine: Tensor) -> Tensor:
    """What the sign of each of an image's neurons, (U,), says about all of them: (2, U, 2, U), as in `Implied.ends`.

    The minimum of a x + c - t (g x + h), with the box's middle m and radius r, is
    (a m + c) - t (g m + h) - |a r - t g r|. It is one row with multiplier t on the other neuron, so it gives away for
    rounding what such a row does.
    """
    weight, const = _affine(layout, mine)
    low, high = (end[image].flatten().double() for end in bounds.root)
    middle, spread = weight @ ((low + high) / 2) + const, weight * ((high - low) / 2)
    size = spread.abs().sum(1).clamp(min=torch.finfo(torch.float64).tiny)
    unit = spread / size[:, None]
    slack = torch.zeros_like(size) if bounds.slack is None else bounds.slack[image, mine].double()
    out = middle.new_full((2, len(mine), 2, len(mine)), -torch.inf)
    for tried in TRIED:
        factor = tried * size / size[:, None]  # (k, j)
        lost = slack + factor * slack[:, None]
        for side in (1.0, -1.0):  # of z_k; the lower bound of z_j, and that of -z_j, which reads z_k's other side
            distance = size * torch.cdist(tried * side * unit, unit, p=1.0) + lost
            bound = middle - factor * side * middle[:, None] - distance
            negated = -middle + factor * side * middle[:, None] - distance
            at = int(side < 0)
            out[at, :, 0] = torch.maximum(out[at, :, 0], bound)
            out[1 - at, :, 1] = torch.maximum(out[1 - at, :, 1], negated)
    return guard_lower(out)


def _affine(layout: Layout, mine: Tensor) -> tuple[Tensor, Tensor]:
    """The pre-activations of first-layer neurons, (U,), as functions of the root: (U, inputs), (U,)."""
    network = layout.network
    weights, consts = [], []
    for i, place in layout.places.items():
        here = mine[(mine >= place.start) & (mine < place.stop)] - place.start
        if len(here) == 0:
            continue
        target = layout.activation(i).inputs[0]
        rows = F.one_hot(here, place.stop - place.start).double().view(1, 1, len(here), *network.nodes[target].shape)
        walk = Substitution(network, dense_plan(network, target), Relaxed({}, (rows, rows)), None)
        found, const = walk.to_root(Rows(rows), rows.new_zeros(rows.shape[:3]), target)
        weights.append(found.data.reshape(len(here), -1))
        consts.append(const.flatten())
    return torch.cat(weights), torch.cat(consts)
