"""What one neuron sees: all of the network before it.

That is more than a window of convolutions, and still little where every layer is a vector: a few hundred neurons, of
which a box leaves some dozen unstable. So its interval, too, can be branched on by itself. A fully connected layer
behind convolutions is left out, as a tree splits its neurons first anyway. But convolutions behind a sum, whose neurons
have no window network, are worth it where there is time: their intervals may be several times too wide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from lipgraft.bounds.interval import Interval
from lipgraft.bounds.layout import Layout, NeuronBounds
from lipgraft.bounds.sound import Rounding
from lipgraft.network.graph import Network

LARGEST = 2**21  # weights before a neuron; one that has more is bounded like the others


@dataclass(frozen=True, eq=False)
class PrefixNetwork:
    """The part of `whole` before node `target`, as its neurons' own problem; offers what `WindowNetwork` does."""

    whole: Network
    target: int
    layout: Layout

    @property
    def far(self) -> bool:
        """Whether a neuron sees much: the target is an image."""
        return len(self.whole.nodes[self.target].shape) == 3

    @staticmethod
    def of(whole: Network, target: int) -> PrefixNetwork | None:
        """None where it sees no activation, or one without a kink; of a vector, also where one is no vector or weights
        are too many.
        """
        layout = Layout.of(whole, target)
        if layout.curved or not layout.places:
            return None
        if len(whole.nodes[target].shape) == 3:
            return PrefixNetwork(whole, target, layout)
        if any(len(layout.activation(i).shape) != 1 for i in layout.places):
            return None
        seen = (whole.nodes[i] for i in layout.path.windows)
        weights = sum(t.numel() for node in seen for t in vars(node).values() if isinstance(t, Tensor))
        return PrefixNetwork(whole, target, layout) if weights <= LARGEST else None

    def bounds(
        self,
        intervals: Sequence[Interval],
        image: Tensor,
        neuron: Tensor,
        rounding: Rounding | None = None,
        errors: Mapping[int, Tensor] | None = None,
    ) -> NeuronBounds:
        """The bounds of what R neurons of the target see: image, neuron (R,). See `WindowNetwork.bounds`."""
        return NeuronBounds.of(self.layout, intervals, rounding, errors).at(image)

    def rows(self, neuron: Tensor, side: Tensor) -> Tensor:
        """The rows "side times the neuron" at the target: neuron, side (R,) -> (R, 1, 1, *shape)."""
        shape = self.whole.nodes[self.target].shape
        out = side.new_zeros(len(side), math.prod(shape)).scatter(1, neuron[:, None], side[:, None])
        return out.view(-1, 1, 1, *shape)
