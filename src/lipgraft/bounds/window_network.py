"""What one neuron of a convolution sees, as a small network of its own.

A neuron of an image-shaped layer depends on a window of every layer before it, and so on few unstable neurons: dozens,
where the whole network has thousands. On flattened windows each convolution is one matrix, the same for every place of
the grid; what differs from place to place are bounds, grafted lines and the image's edge. A neuron that would lie over
the edge is padding: a line that is zero everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.bounds.geometry import Plan, plan, row_numel
from lipgraft.bounds.interval import Interval
from lipgraft.bounds.layout import Layout, NeuronBounds
from lipgraft.bounds.neurons import positions
from lipgraft.bounds.sound import Rounding
from lipgraft.bounds.windows import cut
from lipgraft.network.graph import Activation, Conv, Graft, Input, Linear, Network, Node, Pad
from lipgraft.network.window import Window

Seen = Callable[[Tensor, int], Tensor]

LARGEST = 2**21  # numbers in all matrices; a neuron that sees more than that is bounded like the others


@dataclass(frozen=True, eq=False)
class WindowNetwork:
    """The part of `whole` that a neuron of node `target` sees.

    network: Input, then Linear and Activation in turn, then Linear; its output is one number per channel of the target.
    positions: of the nodes of `network` that have one, the position of the same node in `whole`.
    """

    whole: Network
    target: int
    path: Plan
    network: Network
    layout: Layout
    positions: dict[int, int]

    @staticmethod
    def of(whole: Network, target: int, *, curves: bool = False) -> WindowNetwork | None:
        """None where there is no such network: a neuron sees all of a layer, or more than a chain of convolutions, or
        no activation, which leaves nothing to split. curves: activations may be curves; otherwise they split at zero.
        """
        if len(whole.nodes[target].shape) != 3:
            return None
        path = plan(whole, target)
        chain = _chain(whole, path, curves)
        if chain is None or _numbers(whole, path, chain) > LARGEST:
            return None
        nodes: list[Node] = [Input("windows", (), (row_numel(whole.nodes[path.root].shape, path.windows[path.root]),))]
        found: dict[int, int] = {}
        for i in chain:
            node, window = whole.nodes[i], path.windows[i]
            assert window is not None
            before = (len(nodes) - 1,)
            size = row_numel(node.shape, window)
            if isinstance(node, Activation):
                nodes.append(replace(node, inputs=before, shape=(size,), graft=None))
            elif isinstance(node, Conv):
                nodes.append(Linear(node.name, before, (size,), _matrix(node, window), _bias(node, window)))
            else:  # padding adds nothing that a window would not have
                continue
            found[len(nodes) - 1] = i
        network = Network(tuple(nodes), len(nodes) - 1)
        return WindowNetwork(whole, target, path, network, Layout.of(network, network.output), found)

    def bounds(
        self,
        intervals: Sequence[Interval],
        image: Tensor,
        neuron: Tensor,
        rounding: Rounding | None = None,
        errors: Mapping[int, Tensor] | None = None,
    ) -> NeuronBounds:
        """The bounds of what R neurons of the target see, each a box of its own: image, neuron (R,).

        intervals, rounding, errors: of all nodes of the whole network, as `bounds.crown.Prepared` holds them.
        """
        rows, columns = self.path.grid
        place = neuron % (rows * columns)

        def seen(layer: Tensor, i: int) -> Tensor:
            """What the neurons see of the values of node i, (B, *shape), or of a constant, (*shape): (R, n)."""
            window = self.path.windows[i]
            assert window is not None
            constant = layer.ndim == 3
            cuts = cut(layer[None] if constant else layer, window, self.path.grid)
            return cuts[0, place] if constant else cuts[image, place]

        lower: list[Tensor] = []
        upper: list[Tensor] = []
        loose: list[Tensor] = []
        slacks: list[Tensor] = []
        grafts: dict[int, Graft] = {}
        known: dict[int, Tensor] = {}
        for local in self.layout.places:
            i = self.positions[local]
            node = self.whole.nodes[i]
            assert isinstance(node, Activation)
            before = node.inputs[0]
            low, high = (seen(end, before) for end in intervals[before])
            graft = self._graft(node, i, low.dtype, seen)
            lower.append(low)
            upper.append(high)
            loose.append(~node.curve.exact(low, high) & ~graft.mask)
            anchors = node.curve.anchors(*intervals[before], quick=True)
            if anchors is not None:
                known[local] = torch.stack([seen(part, before) for part in anchors])
            grafts[local] = graft
            if rounding is not None:
                slacks.append(seen(rounding.slack(before, self.target), before))
        slack = target_slack = None
        if rounding is not None:
            slack = F.pad(torch.cat(slacks, 1), (0, 1))
            target_slack = seen(rounding.slack(self.target), self.target)
        root = self.path.root
        here = {local: i for local, i in self.positions.items() if errors is not None and i in errors}
        return NeuronBounds(
            layout=self.layout,
            root=(seen(intervals[root][0], root), seen(intervals[root][1], root)),
            lower=F.pad(torch.cat(lower, 1), (0, 1)),
            upper=F.pad(torch.cat(upper, 1), (0, 1)),
            open=positions(torch.cat(loose, 1), self.layout.size)[0],
            slack=slack,
            target_slack=target_slack,
            errors={} if errors is None else {local: seen(errors[i], i) for local, i in here.items()},
            grafts=grafts,
            known=known,
        )

    def rows(self, neuron: Tensor, side: Tensor) -> Tensor:
        """The rows "side times the neuron" at the output: neuron, side (R,) -> (R, 1, 1, channels)."""
        rows, columns = self.path.grid
        channel = neuron // (rows * columns)
        out = side.new_zeros(len(side), self.network.output_shape[0])
        return out.scatter(1, channel[:, None], side[:, None])[:, None, None]

    def _graft(self, node: Activation, i: int, dtype: torch.dtype, seen: Seen) -> Graft:
        """The lines of grafted neurons and of those over the edge, which are zero."""
        like = next(t for n in self.network.nodes for t in vars(n).values() if isinstance(t, Tensor))
        one = torch.ones(node.shape, dtype=dtype, device=like.device)
        outside = seen(one, i) == 0
        if node.graft is None:
            zero = torch.zeros_like(outside, dtype=dtype)
            return Graft(outside, zero, zero)
        mask = seen(node.graft.mask.to(dtype).expand(node.shape), i) > 0
        gamma, omega = (seen(t.detach().to(dtype).expand(node.shape), i) for t in (node.graft.gamma, node.graft.omega))
        return Graft(mask | outside, gamma, omega)


def _chain(whole: Network, path: Plan, curves: bool) -> list[int] | None:
    """The nodes from the root to the target, if these are convolutions, padding, and activations that split at zero.

    curves: or that have no kink.

    Padding, of its own or of a convolution, must stand right behind an activation or the root: behind a constant a
    zero would be another number.
    """
    out: list[int] = []
    i = path.target
    while i > path.root:
        node = whole.nodes[i]
        if path.windows[i] is None or len(node.inputs) != 1:
            return None
        before = node.inputs[0]
        if isinstance(node, Conv | Pad):
            if node.overhangs and before != path.root and not isinstance(whole.nodes[before], Activation):
                return None
        elif not (isinstance(node, Activation) and (node.curve.splits_at_zero or (curves and not node.curve.kinks))):
            return None
        out.append(i)
        i = before
    bent = any(isinstance(whole.nodes[i], Activation) for i in out)
    return out[::-1] if bent and i == path.root and path.windows[i] is not None else None


def _numbers(whole: Network, path: Plan, chain: list[int]) -> int:
    sizes = [row_numel(whole.nodes[i].shape, path.windows[i]) for i in (path.root, *chain)]
    return sum(a * b for a, b, i in zip(sizes, sizes[1:], chain, strict=False) if isinstance(whole.nodes[i], Conv))


def _matrix(conv: Conv, window: Window) -> Tensor:
    """The convolution from the window that it reads to this window of its output: (outputs, inputs)."""
    channels = conv.shape[0]
    size = channels * window.area()
    eye = torch.eye(size, dtype=conv.weight.dtype, device=conv.weight.device).view(size, channels, *window.size)
    return conv.transpose_window(eye, lambda _, value: value, {}).reshape(size, -1).contiguous()


def _bias(conv: Conv, window: Window) -> Tensor | None:
    return None if conv.bias is None else conv.bias.repeat_interleave(window.area())
