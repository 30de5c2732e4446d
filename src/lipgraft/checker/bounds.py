"""Rigorous bounds in double precision: the argument, and the arithmetic that follows it.

u = 2^-53, gamma_n = n u / (1 - n u). A sum of n products, in any order, is off by at most gamma_n times the sum of the
products' absolute values, plus n ETA for underflow, which is gradual (see `need_subnormals`).

Substitution. Rows A stand at some nodes, with a constant c, such that for every x of the box (and of the splits)

    claim(x) >= sum over nodes v of A_v . v(x) + c - rho.

At first that is the row of the claim itself, rho = 0. An affine node v = W w + b is replaced by its input: A_w = A_v W,
c += A_v . b. An activation is replaced neuron by neuron by a line below it where A_v > 0 and above it where A_v < 0.
These steps start from the *computed* A_v, whatever it is, so that rounding never chooses a wrong line. What rounding
does change is the new A_w: it is off by some d with |d| <= gamma_n |A_v||W| + n ETA, and rho grows by |d| . |w(x)|.
Let mag be the magnitudes

    mag(input) = max(|lower|, |upper|),   mag(W w + b) = |W| mag(w) + |b|,   mag(act(z)) = s mag(z) + |t|

where s and t are the largest slope and intercept of any line that may stand for the activation. They bound |v(x)|, and

    S = sum over nodes v of |A_v| . mag(v) + the absolute values of all terms of c

does not grow in a step but for rounding, by a factor of 1 + gamma_n. So each step adds at most gamma_n S to rho, and
all together rho <= gamma_K S_0, where K adds up the lengths of the sums of all steps and S_0 = |row| . mag(target). A
split's multiplier beta adds beta mag(z) to S_0. The constant A_v . b is a sum over all elements of a node, so K counts
those too. The factor 2 in `Forward.error` is for mag and S_0, which are rounded themselves, and for the subtraction of
the error. Underflow adds at most ETA (1 + sum mag(w)) for each term of a sum.

Planes. A neuron may also be replaced, where A_v < 0, by a plane above it (see `planes`): rows at the values that the
neuron reads, and a constant. Of a neuron's share |A_v| mag(v) of S the new rows take at most |A_v| mag(z), but its
constant k may be larger than any line's. So |A_v| |k| is added to S_0, by k itself: it is larger than it has to be by
the factor that S_0 is multiplied with. K counts the sums over neurons with planes.

Hardware. In float32 a node gives its exact value, of the inputs that it sees, plus some d with |d| <= rho, where
rho = gamma_n (|W| max(|low|, |high|) + |b|) + n ETA32 with float32's own u. So it is the network with an unknown d at
each node: intervals and mag get rho added, and where rows A leave a node, c loses |A| . rho. Where subnormal numbers
are flushed to zero, that holds if neither the input nor a weight is subnormal: then no operand is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lipgraft.checker.network import Activation, Array, Network, Node, Pick, Sum, Weighted, need

U, U32 = 2.0**-53, 2.0**-24
ETA, ETA32 = 2.0**-1022, 2.0**-126  # more than a result loses by underflow; ETA32 even where it is flushed to zero
LARGEST32 = 2.0**127
CHUNK = 2**22  # numbers held at once by the widest node


@dataclass(frozen=True)
class Value:
    """Of a node, all (n,): low <= v(x) <= high, and mag as above."""

    low: Array
    high: Array
    mag: Array


@dataclass(frozen=True)
class Lines:
    """The lines of one activation. Neurons at `index` were given bounds, all others are lines of slope `stable`."""

    first: int  # the number of the first neuron at `index`, counted through all activations
    index: Array
    stable: Array  # (n,), zero at `index`
    left: float  # the activation's slope left of zero
    lower: Array  # the bounds given for the neurons at `index`, (U,)
    upper: Array
    chord: Array  # the line above: chord z + intercept
    intercept: Array
    least: Array  # the slopes that the line below may have: [left, 1], or a single one where the bounds have one sign
    most: Array

    @classmethod
    def of(cls, first: int, left: float, active: Array, index: Array, lower: Array, upper: Array) -> Lines:
        """The line above is right if it is so at both ends; its intercept makes up for any rounding of its slope."""
        stable = np.where(active, 1.0, left)
        stable[index] = 0.0
        least, most = np.where(lower >= 0, 1.0, left), np.where((upper <= 0) & (lower < 0), left, 1.0)
        one = least == most
        chord = np.where(one, least, np.clip((upper - left * lower) / (upper - lower), left, 1.0))
        need(bool(np.isfinite(chord).all()), "a pre-activation interval is too wide.")
        ends = np.maximum(left * lower - chord * lower, upper - chord * upper)
        intercept = np.where(one, 0.0, ends + 8 * U * (upper - lower) + 8 * ETA)
        return cls(first, index, stable, left, lower, upper, chord, intercept, least, most)

    @property
    def last(self) -> int:
        return self.first + len(self.index)

    def places(self, neurons: Array, what: str) -> Array:
        """Where neurons stand in `index`. what: a name for one of them."""
        need(bool(np.isin(neurons, self.index).all()), f"{what} is not listed as unstable.")
        return np.searchsorted(self.index, neurons)

    def usual(self) -> Array:
        """The slope below that CROWN takes: 1 if upper > -lower, else the left one."""
        return np.clip(np.where(self.upper > -self.lower, 1.0, self.left), self.least, self.most)


@dataclass(frozen=True)
class Above:
    """Planes above P neurons of one activation: relu(z) <= slope . values of the sources + const.

    place: (P,), among the neurons that were given bounds; slope: (P, n) by source; const: (P,).
    """

    place: Array
    slope: dict[int, Array]
    const: Array


@dataclass(frozen=True)
class Splits:
    """Which rows know a sign: row, neuron (counted through all activations), sign +1 or -1, multiplier >= 0."""

    row: Array
    neuron: Array
    sign: Array
    beta: Array


class Forward:
    """One box: a pass through the network that ends with bounds and lines for every activation.

    hardware: speak of the network as float32 hardware evaluates it.
    """

    def __init__(self, network: Network, lower: Array, upper: Array, hardware: bool = False) -> None:
        self.network, self.hardware = network, hardware
        self.values = [Value(lower, upper, np.maximum(abs(lower), abs(upper)))]
        self.rho: list[Array | None] = [None]
        self.lines: dict[int, Lines] = {}
        self.planes: dict[int, Above] = {}
        self.terms = [2.0 * lower.size + 8]  # K of substitution from each node
        self.lost = [2 * ETA * lower.size]  # what underflow may cost it

    @property
    def given(self) -> int:
        """How many neurons were given bounds so far."""
        return sum(len(lines.index) for lines in self.lines.values())

    def error(self, target: int, sizes: Array) -> Array:
        """How far a bound by substitution from a node may be off. sizes: S_0."""
        need(2 * self.terms[target] * U < 2.0**-10, "the network is too large for the checker's error bound.")
        return 2 * self.terms[target] * U * sizes + 2 * self.lost[target]

    def _put(self, value: Value, rho: Array | None, terms: int, inputs: list[Value]) -> None:
        """The next node. terms: how long its sums are."""
        if rho is not None:
            value = Value(value.low - rho, value.high + rho, value.mag + rho)
            terms += int(np.count_nonzero(rho))
        self.values.append(value)
        self.rho.append(rho)
        self.terms.append(self.terms[-1] + terms)
        self.lost.append(self.lost[-1] + terms * ETA * (1 + sum(float(value.mag.sum()) for value in inputs)))

    def affine(self, node: Node) -> None:
        """Interval arithmetic, W c + b -/+ |W| r, outward; and the magnitudes."""
        inputs = [self.values[i] for i in node.inputs]
        bias = np.zeros(node.size) if node.bias is None else node.bias
        centres, parts = [], []
        for value in inputs:
            centre = (value.low + value.high) / 2
            radius = np.nextafter(np.maximum(value.high - centre, centre - value.low), np.inf)
            radius = np.where(value.low == value.high, 0.0, radius)
            size = abs(centre) + radius
            centres.append(centre[None])
            parts.append(np.stack([radius, size, (size > 0) * 1.0, value.mag]))
        centre = node.linear(*centres)[0] + bias
        radius, size, touched, mag = node.magnitude().linear(*parts)
        size, n = size + abs(bias), node.terms
        outward = 2 * (n + 6) * U * size + 4 * (n + 1) * ETA * (touched > 0)  # what is zero by its weights stays so
        value = Value(centre - radius - outward, centre + radius + outward, mag + abs(bias) + n * ETA)
        rho = rounding32(node, inputs, size, touched > 0) if self.hardware and n else None
        self._put(value, rho, n + int(np.count_nonzero(bias)) + len(inputs) + 8, inputs)

    def activation(self, node: Activation, lines: Lines, low: Array, high: Array) -> None:
        """low, high: what was found for its input; lines: made from the bounds that were given."""
        z, a = self.values[node.inputs[0]], node.slope
        self.values[node.inputs[0]] = z = Value(low, high, z.mag)
        slope, intercept = lines.stable.copy(), np.zeros(node.size)
        slope[lines.index], intercept[lines.index] = 1.0, abs(lines.intercept)
        mag = slope * z.mag + intercept + ETA
        value = Value(*node.image(low, high), mag)
        rho = np.where(low < 0, 1.001 * U32 * a * abs(low) + ETA32, 0.0) if self.hardware and a else None
        self.lines[len(self.values)] = lines
        self._put(value, rho, len(lines.index) + 8, [z])

    def usual(self) -> Array:
        """CROWN's slopes below, (1, given)."""
        return np.concatenate([np.empty(0), *(lines.usual() for lines in self.lines.values())])[None]

    def slopes(self, alpha: Array) -> Array:
        """Slopes below from fractions, (R, U), for the first U neurons: any from least to most is right."""
        out = alpha / float(np.iinfo(alpha.dtype).max)
        for lines in self.lines.values():
            if lines.last <= out.shape[1]:
                part = out[:, lines.first : lines.last]
                part[:] = np.clip(lines.left + part * (1.0 - lines.left), lines.least, lines.most)
        return out

    def chunks(self, count: int) -> Iterator[slice]:
        """Parts of so many rows that fit into memory."""
        step = max(1, CHUNK // max(node.work for node in self.network.nodes))
        yield from (slice(start, min(start + step, count)) for start in range(0, count, step))

    def neurons(self, target: int, index: Array) -> tuple[Array, Array]:
        """Lower and upper bounds of some numbers of a node, by substitution with CROWN's slopes."""
        usual = self.usual()
        low, high = np.empty(len(index)), np.empty(len(index))
        for part in self.chunks(len(index)):
            pending, constant, lost = self._picked(target, index[part])
            while (v := max(pending)) not in self.lines and v > 0:  # the same for both sides until lines differ
                lost = lost + self._unknown(v, pending[v])
                constant = constant + self._back(pending, v)
            high[part] = -self.substitute({v: -rows for v, rows in pending.items()}, -constant - lost, usual)
            low[part] = self.substitute(pending, constant - lost, usual)
        error = self.error(target, self.values[target].mag[index])
        return low - error, high + error

    def read(self, target: int, index: Array, sources: tuple[int, ...]) -> tuple[dict[int, Array], Array]:
        """What some numbers of a node read: rows at the sources, (R, n) each, and constants (R,).

        Between the sources and the node everything must be affine.
        """
        rows = {v: np.zeros((len(index), self.network.nodes[v].size)) for v in sources}
        constants = np.zeros(len(index))
        for part in self.chunks(len(index)):
            pending, constant, _ = self._picked(target, index[part], sources)
            while left := [v for v in pending if v not in sources]:
                v = max(left)
                need(v not in self.lines and v > 0, "neurons with planes read more than the sources that are named.")
                constant = constant + self._back(pending, v)
            for v, found in pending.items():
                rows[v][part] = found
            constants[part] = constant
        return rows, constants

    def _picked(
        self, target: int, index: Array, sources: tuple[int, ...] = ()
    ) -> tuple[dict[int, Array], Array, Array]:
        """Rows that pick one number each, some nodes back, where they are cheap to write down, but not behind the
        sources: rows at nodes, the constant, and what unknown d may cost so far.
        """
        scale, constant, lost = np.ones(len(index)), np.zeros(len(index)), np.zeros(len(index))
        while target not in self.lines and target > 0 and target not in sources:
            node, rho = self.network.nodes[target], self.rho[target]
            constant = constant if node.bias is None else constant + scale * node.bias[index]
            lost = lost if rho is None else lost + abs(scale) * rho[index]
            if type(node) not in (Node, Weighted):
                pending: dict[int, Array] = {}
                for source, part in zip(node.inputs, node.picked(index), strict=True):
                    rows = part * scale[:, None]
                    pending[source] = pending[source] + rows if source in pending else rows
                return pending, constant, lost
            scale = scale * node.weight[index] if isinstance(node, Weighted) else scale
            (target,) = node.inputs
        rows = np.zeros((len(index), self.network.nodes[target].size))
        rows[np.arange(len(rows)), index] = scale
        return {target: rows}, constant, lost

    def refined(self, target: int, index: Array, sign: Array, alpha: Array) -> Array:
        """Lower bounds of sign times some numbers of a node, each with slopes of its own: (R,)."""
        low = np.empty(len(index))
        for part in self.chunks(len(index)):
            pending, constant, lost = self._picked(target, index[part])
            pending = {v: rows * sign[part, None] for v, rows in pending.items()}
            low[part] = self.substitute(pending, constant * sign[part] - lost, self.slopes(alpha[part]))
        return low - self.error(target, self.values[target].mag[index])

    def substitute(
        self, pending: dict[int, Array], constant: Array, slopes: Array, splits: Splits | None = None
    ) -> Array:
        """The least value over the box of rows that stand at some nodes, each (R, n), plus a constant (R,)."""
        while (v := max(pending)) > 0:
            constant = constant - self._unknown(v, pending[v])
            if v in self.lines:
                rows = pending.pop(v)
                if v in self.planes:
                    rows, more = self._lifted(v, rows, splits, pending)
                    constant = constant + more
                rows, more = through(self.lines[v], rows, slopes, splits)
                (source,) = self.network.nodes[v].inputs
                pending[source] = pending[source] + rows if source in pending else rows
                constant = constant + more
            else:
                constant = constant + self._back(pending, v)
        rows, box = pending[0], self.values[0]
        least = np.maximum(rows, 0.0) @ box.low + np.minimum(rows, 0.0) @ box.high + constant
        return np.where(np.isfinite(least), least, np.nan)  # an overflow proves nothing

    def _unknown(self, v: int, rows: Array) -> Array | float:
        """What the unknown d of a node may take from rows that stand at it."""
        rho = self.rho[v]
        return 0.0 if rho is None else abs(rows) @ rho

    def _lifted(self, v: int, rows: Array, splits: Splits | None, pending: dict[int, Array]) -> tuple[Array, Array]:
        """Negative coefficients of neurons with planes go on to the sources; what is left, and a constant each.

        A neuron that is split is a line, which no plane is better than.
        """
        above, lines = self.planes[v], self.lines[v]
        columns = lines.index[above.place]
        part = rows[:, columns]
        negative = np.minimum(part, 0.0)
        if splits is not None:
            where = np.full(len(lines.index), -1)
            where[above.place] = np.arange(len(above.place))
            here = np.flatnonzero((splits.neuron >= lines.first) & (splits.neuron < lines.last))
            place = where[splits.neuron[here] - lines.first]
            negative[splits.row[here][place >= 0], place[place >= 0]] = 0.0
        rows = rows.copy()
        rows[:, columns] = part - negative
        for source, slope in above.slope.items():
            more = negative @ slope
            pending[source] = pending[source] + more if source in pending else more
        return rows, negative @ above.const

    def _back(self, pending: dict[int, Array], v: int) -> Array | float:
        """Replace an affine node by its inputs; return what its bias adds."""
        node, rows = self.network.nodes[v], pending.pop(v)
        for source, part in zip(node.inputs, node.back(rows), strict=True):
            pending[source] = pending[source] + part if source in pending else part
        return 0.0 if node.bias is None else rows @ node.bias


def rounding32(node: Node, inputs: list[Value], sizes: Array, touched: Array) -> Array:
    """rho of a node with sums. sizes: |W| max(|low|, |high|) + |b|; touched: where an input that counts is not zero."""
    n = node.terms + 1
    need(n < 2**20, "the network's sums are too long for the checker's error bound.")
    exact = ~touched
    if type(node) is Node and node.bias is not None:
        exact |= node.bias == 0
    elif type(node) is Weighted and node.bias is None:
        exact |= (node.weight == 0) | (abs(node.weight) == 1)
    elif isinstance(node, Pick):
        exact |= True  # nothing is computed
    elif isinstance(node, Sum):
        exact |= np.any([(value.low == 0) & (value.high == 0) for value in inputs], axis=0)
    rho = (n * U32 / (1 - n * U32) * sizes + n * ETA32) * (1 + 2.0**-20)
    return np.where(sizes < LARGEST32, np.where(exact, 0.0, rho), np.inf)


def through(lines: Lines, rows: Array, slopes: Array, splits: Splits | None) -> tuple[Array, Array]:
    """Rows at an activation, (R, n), become rows at its input and a constant each."""
    out = rows * lines.stable
    part = rows[:, lines.index]
    above = np.minimum(part, 0.0)
    new = np.maximum(part, 0.0) * slopes[:, lines.first : lines.last] + above * lines.chord
    if splits is not None:
        here = (splits.neuron >= lines.first) & (splits.neuron < lines.last)
        row, place = splits.row[here], splits.neuron[here] - lines.first
        known = np.where(splits.sign[here] > 0, 1.0, lines.left)  # the activation is this line on its half
        new[row, place] = part[row, place] * known - splits.sign[here] * splits.beta[here]
        above[row, place] = 0.0
    out[:, lines.index] = new
    return out, above @ lines.intercept
