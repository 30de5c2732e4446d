"""Planes above ReLUs: any choice gives a true one, because its constant is computed here.

A neuron reads values x_i of some nodes, its sources: z = sum_i w_i x_i + b. Each x_i lies in an interval, and z in
[l, u]. Let s_i be any numbers, and p, q >= 0. Where z <= 0 and where z >= 0, relu(z) - sum_i s_i x_i is at most

    p (z - l) - sum_i s_i x_i     = p (b - l)       + sum_i (p w_i - s_i) x_i,
    z + q (u - z) - sum_i s_i x_i = q u + (1 - q) b + sum_i ((1 - q) w_i - s_i) x_i,

and the most that these can be over the intervals of the x_i are sums. The larger one is k, and relu(z) is at most
sum_i s_i x_i + k. A certificate gives shares c_i, p and q, all in [0, 1], and s_i is c_i w_i, rounded.

The weights w_i and b are computed as in a substitution that ends at the sources. So for every x of the box they give z
but for an error e, `Forward.error` of the neuron: the computed z lies in [l - e, u + e], and relu(z) is at most e more
than that of the computed one. All in all that costs at most (1 + p + q) e. The sums round by at most a few times
gamma_n (1 + p + q) (sum_i |w_i| max|x_i| + |b| + |l| + |u|).
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace

import numpy as np

from lipgraft.checker.bounds import ETA, Above, Forward, U
from lipgraft.checker.network import Activation, Array, Network, Sum, need

INPUT = -1


@dataclass(frozen=True)
class Choice:
    """What is free in P planes, all in [0, 1]: share c, (P, values); low p, (P,); high q, (P,)."""

    share: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class Reads:
    """What P neurons of one activation read, in values of all sources side by side.

    place: (P,), among the neurons that were given bounds; lower, upper: (P,), their bounds.
    sources: numbers of nodes; sizes: how many values each has; low, high: (values,), their intervals.
    weight: (P, values); bias: (P,); error: (P,), how far all of them together may be off.
    """

    place: Array
    lower: Array
    upper: Array
    sources: tuple[int, ...]
    sizes: tuple[int, ...]
    low: Array
    high: Array
    weight: Array
    bias: Array
    error: Array

    @classmethod
    def of(cls, forward: Forward, v: int, place: Array, sources: tuple[int, ...]) -> Reads:
        """forward: with the bounds that the planes rest on. v: the activation."""
        lines, (target,) = forward.lines[v], forward.network.nodes[v].inputs
        index = lines.index[place]
        rows, bias = forward.read(target, index, sources)
        boxes = [interval(forward, source) for source in sources]
        return cls(
            place,
            lines.lower[place],
            lines.upper[place],
            sources,
            tuple(len(low) for low, _ in boxes),
            np.concatenate([low for low, _ in boxes]),
            np.concatenate([high for _, high in boxes]),
            np.concatenate([rows[source] for source in sources], axis=1),
            bias,
            forward.error(target, forward.values[target].mag[index]),
        )

    def at(self, some: Array) -> Reads:
        """Of some of the neurons: (P,), boolean."""
        names = ("place", "lower", "upper", "weight", "bias", "error")
        return replace(self, **{name: getattr(self, name)[some] for name in names})

    @property
    def terms(self) -> int:
        """How long the sums are that a substitution has to do for these planes."""
        return len(self.place) + len(self.sources) + 8

    def slope(self, choice: Choice) -> Array:
        """(P, values)."""
        out: Array = choice.share * self.weight
        return out

    def above(self, choice: Choice, spare: float) -> Above:
        """The planes. spare: the share of its constant that a plane adds to it, for those who add it up."""
        slope, p, q = self.slope(choice), choice.low, choice.high
        below = self._most(p[:, None] * self.weight - slope) + p * (self.bias - self.lower)
        over = self._most((1 - q)[:, None] * self.weight - slope) + (1 - q) * self.bias + q * self.upper
        largest = np.maximum(abs(self.low), abs(self.high))
        size = abs(self.weight) @ largest + abs(self.bias) + abs(self.lower) + abs(self.upper)
        values = len(self.low)
        lost = 4 * (values + 16) * U * size + 8 * values * ETA * (1 + float(largest.sum()))
        const = np.maximum(below, over) + (1 + p + q) * (self.error + lost)
        const = const + (spare + 16 * U) * abs(const)
        parts = np.split(slope, np.cumsum(self.sizes)[:-1], axis=1)
        return Above(self.place, dict(zip(self.sources, parts, strict=True)), const)

    def _most(self, rows: Array) -> Array:
        """The largest value of each row over the intervals: (P, values) -> (P,)."""
        out: Array = np.maximum(rows, 0.0) @ self.high + np.minimum(rows, 0.0) @ self.low
        return out


def lifted(forward: Forward, reads: dict[int, Reads], choices: dict[int, Choice]) -> Forward:
    """The same with planes above some neurons, by activation."""
    out, output = copy(forward), forward.network.output
    terms, lost = 0, 0.0
    for v, read in reads.items():
        terms += read.terms
        lost += read.terms * ETA * (1 + sum(float(forward.values[i].mag.sum()) for i in (v, *read.sources)))
    out.terms, out.lost = [n + terms for n in forward.terms], [n + lost for n in forward.lost]
    spare = 2 * out.terms[output] * U
    out.planes = {v: read.above(choices[v], spare) for v, read in reads.items()}
    return out


def interval(forward: Forward, v: int) -> tuple[Array, Array]:
    """Of the values of a node, an activation's or such a one's sum with a line by the bounds that it has by now."""
    node, known = forward.network.nodes[v], forward.values[v]
    if isinstance(node, Sum) and node.sign > 0:
        (low, high), (more_low, more_high) = (_image(forward, i) for i in node.inputs)
        low, high = np.nextafter(low + more_low, -np.inf), np.nextafter(high + more_high, np.inf)
    else:
        low, high = _image(forward, v)
    return np.fmax(low, known.low), np.fmin(high, known.high)


def _image(forward: Forward, v: int) -> tuple[Array, Array]:
    """An activation's values by the bounds of its neurons, another node's as they were found."""
    node = forward.network.nodes[v]
    if not isinstance(node, Activation):
        return forward.values[v].low, forward.values[v].high
    lines, z = forward.lines[v], forward.values[node.inputs[0]]
    low, high = z.low.copy(), z.high.copy()
    low[lines.index] = np.maximum(low[lines.index], lines.lower)
    high[lines.index] = np.minimum(high[lines.index], lines.upper)
    return node.image(low, high)


def source(network: Network, name: int, before: int) -> int:
    """The node that a certificate names: -1 for the input, k for activation k, -(k + 2) for its sum with something.

    before: it must be one of the activations before this one.
    """
    if name == INPUT:
        return 0
    number = name if name >= 0 else -name - 2
    need(number < before, f"planes of activation {before} read what does not come before it.")
    v, (target,) = network.activations[number], network.nodes[network.activations[before]].inputs
    if name >= 0:
        return v
    sums = [i for i, node in enumerate(network.nodes[:target]) if isinstance(node, Sum) and v in node.inputs]
    need(len(sums) > 0, f"no sum that comes before activation {before} reads activation {number}.")
    return sums[0]
