"""What one neuron of a fully connected network sees: all of the network before it.

That is more than a window of convolutions, and still little where every layer is a vector: a few hundred neurons, of
which a box leaves some dozen unstable. So its interval, too, can be branched on by itself. Behind convolutions there
are too many, and a tree splits the neurons of the fully connected layers first anyway.
"""

from __future__ import annotations

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

    @staticmethod
    def of(whole: Network, target: int) -> PrefixNetwork | None:
        """None where the target or an activation before it is no vector, where one has no kink, or it is too large."""
        layout = Layout.of(whole, target)
        nodes = [whole.nodes[target], *(layout.activation(i) for i in layout.places)]
        if layout.curved or any(len(node.shape) != 1 for node in nodes):
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
        """The rows "side times the neuron" at the target: neuron, side (R,) -> (R, 1, 1, neurons)."""
        out = side.new_zeros(len(side), *self.whole.nodes[self.target].shape)
        return out.scatter(1, neuron[:, None], side[:, None])[:, None, None]
