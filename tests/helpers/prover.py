"""Branch and bound of a page, which writes down its proofs. Nothing here comes from the checker or the verifier."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onnx_networks import Net, Stage

Arrays = dict[str, np.ndarray]


@dataclass
class Layer:
    """low, high: of all neurons, as the first pass finds them."""

    unstable: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    active: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclass
class Planes:
    """Above the unstable neurons of one activation: codes in 255ths, and what follows from them.

    share, slope: (P, variables before); low, high, const: (P,).
    """

    share: np.ndarray
    low: np.ndarray
    high: np.ndarray
    slope: np.ndarray
    const: np.ndarray


class Prover:
    """Branch and bound on one box, in plain double precision with a little to spare.

    plain: the layers as CROWN bounds them; layers: after `refine`; planes: sets of them, by activation, after `lift`.
    """

    def __init__(self, net: Net, lower: np.ndarray, upper: np.ndarray, spare: float = 1e-6) -> None:
        self.net, self.lower, self.upper, self.spare = net, lower, upper, spare
        self.plain: list[Layer] = []
        self.planes: list[list[Planes]] = []
        for stage in net.stages:
            ends = []
            for sign in (1, -1):
                rows = sign * stage.z.matrix
                ends.append([self.bound(row, sign * c) for row, c in zip(rows, stage.z.offset, strict=True)])
            low, high = np.array(ends[0]), -np.array(ends[1])
            zero = ~stage.z.matrix.any(1)  # constants need no room
            low, high = np.where(zero, stage.z.offset, low - spare), np.where(zero, stage.z.offset, high + spare)
            at = np.flatnonzero((low < 0) & (high > 0))
            below, above = np.float32(low[at]), np.float32(high[at])
            below, above = np.nextafter(below, np.float32(-np.inf)), np.nextafter(above, np.float32(np.inf))
            wide_low, wide_high = self.intervals(stage, self.plain)
            stable = (wide_low >= 0) | (wide_high <= 0)  # a checker may ask for nothing better then
            ends = (np.where(stable, *pair) for pair in ((wide_low, low), (wide_high, high)))
            self.plain.append(Layer(at, below, above, low >= 0, *ends))
        self.layers = list(self.plain)
        self.first = np.cumsum([0] + [len(layer.unstable) for layer in self.layers])

    def intervals(self, stage: Stage, layers: list[Layer]) -> tuple[np.ndarray, np.ndarray]:
        """Of the neurons of a stage, by the bounds of the layers before it."""
        low, high = self.box(stage, layers)
        w = stage.z.matrix[:, : stage.first]
        positive, negative = np.maximum(w, 0), np.minimum(w, 0)
        ends = positive @ low + negative @ high - self.spare, positive @ high + negative @ low + self.spare
        return ends[0] + stage.z.offset, ends[1] + stage.z.offset

    def box(self, stage: Stage, layers: list[Layer]) -> tuple[np.ndarray, np.ndarray]:
        """Of all variables before a stage."""
        lows, highs = [self.lower], [self.upper]
        known = [before for before in self.net.stages if before.first < stage.first]
        for before, layer in zip(known, layers, strict=False):
            low, high = layer.low.copy(), layer.high.copy()
            low[layer.unstable], high[layer.unstable] = layer.lower, layer.upper
            lows.append(np.maximum(low, before.left * low))
            highs.append(np.maximum(high, before.left * high))
        return np.concatenate(lows), np.concatenate(highs)

    def lift(self, rows: np.ndarray, random_sets: int = 2) -> Arrays:
        """Sets of planes: one fitted to each row of the claim, and random ones."""
        random, arrays = np.random.default_rng(0), {}
        for row in rows:
            codes = [self._chords(k) for k in range(len(self.net.stages))]
            self.planes.append([self._planes(k, *some) for k, some in enumerate(codes)])
            self._climb(row, codes)
        for _ in range(random_sets):
            codes = [[random.integers(0, 256, part.shape) for part in self._chords(k)] for k in range(len(codes))]
            self.planes.append([self._planes(k, *some) for k, some in enumerate(codes)])
        for k, layer in enumerate(self.layers):
            if len(layer.unstable) and not self.net.stages[k].left:
                arrays[f"plane_{k}_neuron"] = layer.unstable.astype(np.int32)
                arrays[f"plane_{k}_source"] = np.arange(-1, k, dtype=np.int32)
                arrays[f"plane_{k}_used"] = np.ones((len(self.planes), len(layer.unstable)), np.uint8)
                for name in ("share", "low", "high"):
                    arrays[f"plane_{k}_{name}"] = np.stack([getattr(some[k], name) for some in self.planes])
        return arrays

    def _climb(self, row: np.ndarray, codes: list[list[np.ndarray]]) -> None:
        """Shares, one after the other, for the last set of planes: the best of a few for this row."""
        assert self.net.out is not None
        full, constant = row @ self.net.out.matrix, float(row @ self.net.out.offset)
        usual = [np.where(layer.upper > -layer.lower, 255, 0) for layer in self.layers]
        alpha, planes = np.concatenate(usual), len(self.planes) - 1
        best = self.bound(full, constant, alpha, planes=planes)
        for k, parts in reversed(list(enumerate(codes))):
            for part in parts:
                for at in range(part.size):
                    for value in (0, 128, 255):
                        before, part.flat[at] = part.flat[at], value
                        self.planes[-1][k] = self._planes(k, *parts)
                        found = self.bound(full, constant, alpha, planes=planes)
                        if found > best:
                            best = found
                        else:
                            part.flat[at] = before
            self.planes[-1][k] = self._planes(k, *parts)

    def _chords(self, k: int) -> list[np.ndarray]:
        """Codes of the chords of an activation: shares, p and q."""
        layer = self.layers[k]
        code = np.rint(255 * layer.upper / (layer.upper - layer.lower)).astype(int)
        return [np.repeat(code[:, None], self.net.stages[k].first, axis=1), code, 255 - code]

    def _planes(self, k: int, share: np.ndarray, p: np.ndarray, q: np.ndarray) -> Planes:
        layer, stage = self.layers[k], self.net.stages[k]
        w, b = stage.z.matrix[layer.unstable, : stage.first], stage.z.offset[layer.unstable]
        lower, upper = layer.lower.astype(float), layer.upper.astype(float)
        low, high = self.box(stage, self.layers)

        def most(rows: np.ndarray) -> np.ndarray:
            found: np.ndarray = np.maximum(rows, 0) @ high + np.minimum(rows, 0) @ low
            return found

        slope, p_, q_ = share / 255 * w, p / 255, q / 255
        off = p_ * (b - lower) + most(p_[:, None] * w - slope)
        on = q_ * upper + (1 - q_) * b + most((1 - q_)[:, None] * w - slope)
        codes = (part.astype(np.uint8) for part in (share, p, q))
        return Planes(*codes, slope, np.maximum(off, on))

    def bound(
        self,
        row: np.ndarray,
        constant: float,
        alpha: np.ndarray | None = None,
        splits: dict[int, int] | None = None,
        beta: dict[int, float] | None = None,
        planes: int = -1,
    ) -> float:
        """The least value of row . variables + constant, by lines. splits: unstable neuron -> sign.

        alpha: None for CROWN's slopes, which go with the layers before they were refined. planes: which set, or none.
        """
        row, layers = row.copy(), self.plain if alpha is None else self.layers
        firsts = np.cumsum([0] + [len(layer.unstable) for layer in layers])
        for k, (layer, stage, first) in reversed(
            list(enumerate(zip(layers, self.net.stages, firsts[:-1], strict=False)))
        ):
            a, span = stage.left, slice(stage.first, stage.first + len(stage.z.offset))
            rows, row[span] = row[span].copy(), 0.0
            slopes = np.where(layer.active, 1.0, a)
            added = np.zeros(len(slopes))
            for place, j in enumerate(layer.unstable):
                low, high = float(layer.lower[place]), float(layer.upper[place])
                sign = (splits or {}).get(first + place)
                if sign is not None:
                    slopes[j] = 1.0 if sign > 0 else a
                    added[j] = -sign * (beta or {}).get(first + place, 0.0)
                elif low >= 0 or high <= 0:
                    slopes[j] = 1.0 if low >= 0 else a
                elif rows[j] > 0:
                    usual = 1.0 if high > -low else a
                    slopes[j] = usual if alpha is None else a + alpha[first + place] / 255 * (1 - a)
                elif planes >= 0 and not a:
                    above = self.planes[planes][k]
                    row[: stage.first] += rows[j] * above.slope[place]
                    constant += rows[j] * above.const[place]
                    slopes[j] = 0.0
                else:
                    slopes[j] = (high - a * low) / (high - low)
                    constant += rows[j] * (a - slopes[j]) * low
            rows = rows * slopes + added
            row += rows @ stage.z.matrix
            constant += rows @ stage.z.offset
        x = row[: len(self.lower)]
        assert not row[len(self.lower) :].any()
        return float(np.maximum(x, 0) @ self.lower + np.minimum(x, 0) @ self.upper + constant)

    def refine(self, wide: type[np.unsignedinteger[Any]] = np.uint8) -> Arrays:
        """The second pass: better bounds from the second activation on, with random slopes in 255ths or 65535ths."""
        arrays: Arrays = {}
        random, most = np.random.default_rng(1), int(np.iinfo(wide).max)
        for k, (layer, stage) in enumerate(zip(self.layers, self.net.stages, strict=True)):
            found: list[tuple[int, int, np.float32, np.ndarray]] = []
            better = replace(layer, lower=layer.lower.copy(), upper=layer.upper.copy())
            for place, j in enumerate(layer.unstable):
                for side, ends in ((1, better.lower), (-1, better.upper)):
                    for alpha in random.integers(0, most + 1, (4, self.first[k])):
                        part = np.append(alpha * (255.0 / most), np.zeros(self.first[-1] - self.first[k]))
                        value = self.bound(side * stage.z.matrix[j], side * float(stage.z.offset[j]), part) - self.spare
                        end = np.nextafter(np.float32(side * value), np.float32(-side * np.inf))
                        if side * end > side * ends[place]:
                            ends[place] = end
                            found.append((int(j), side, end, alpha))
            self.layers[k] = better
            if found:
                neuron, side_, bound, alphas = zip(*found, strict=True)
                arrays[f"refined_{k}_neuron"] = np.array(neuron, np.int32)
                arrays[f"refined_{k}_side"] = np.array(side_, np.int8)
                arrays[f"refined_{k}_bound"] = np.array(bound, np.float32)
                arrays[f"refined_{k}_alpha"] = np.array(alphas).astype(wide)
        return arrays

    def prove(self, rows: np.ndarray, offset: np.ndarray, limit: int = 400) -> Arrays | None:
        """The leaves' arrays, or None: not proved within so many bounds."""
        assert self.net.out is not None
        count, random = int(self.first[-1]), np.random.default_rng(0)
        table = np.vstack([random.integers(0, 256, (3, count)), np.zeros((1, count)), np.full((1, count), 255)])
        table = table.astype(np.uint8)
        leaves: list[tuple[int, int, dict[int, int], dict[int, float], int]] = []
        todo: list[tuple[int, dict[int, int]]] = [(s, {}) for s in range(len(rows))]
        while todo:
            limit -= 1
            if limit < 0:
                return None
            s, splits = todo.pop()
            full, constant = rows[s] @ self.net.out.matrix, float(rows[s] @ self.net.out.offset + offset[s])
            best, which, betas, planes = self._search(full, constant, table, splits)
            if best > 10 * self.spare:
                leaves.append((s, which, splits, betas, planes))
                continue
            free = [j for j in range(count) if j not in splits]
            if not free:
                return None
            j = int(random.choice(free))
            todo += [(s, {**splits, j: 1}), (s, {**splits, j: -1})]
        lifted = {"leaf_plane": np.array([leaf[4] for leaf in leaves], np.int32)} if self.planes else {}
        return lifted | {
            "alpha": table,
            "leaf_row": np.array([leaf[0] for leaf in leaves], np.int32),
            "leaf_alpha": np.array([leaf[1] for leaf in leaves], np.int32),
            "leaf_depth": np.array([len(leaf[2]) for leaf in leaves], np.int32),
            "leaf_split": np.array([s * (j + 1) for leaf in leaves for j, s in leaf[2].items()], np.int32),
            "leaf_beta": np.array([leaf[3][j] for leaf in leaves for j in leaf[2]], np.float32),
        }

    def _search(
        self, row: np.ndarray, constant: float, table: np.ndarray, splits: dict[int, int]
    ) -> tuple[float, int, dict[int, float], int]:
        """Slopes out of the table, planes for those, multipliers one after the other out of a few."""
        betas = dict.fromkeys(splits, 0.0)
        tried = {-1: self.bound(row, constant, None, splits, betas)}
        tried |= {t: self.bound(row, constant, alpha, splits, betas) for t, alpha in enumerate(table)}
        which = max(tried, key=lambda t: tried[t])
        best, alpha, planes = tried[which], None if which < 0 else table[which], -1
        for number in range(len(self.planes)):
            for t, slopes in enumerate(table):
                found = self.bound(row, constant, slopes, splits, betas, number)
                if found > best:
                    best, which, alpha, planes = found, t, slopes, number
        for _ in range(2):
            for j in splits:
                for value in (0.0, 0.0625, 0.125, 0.25, 0.5, 1.0, 2.0):
                    found = self.bound(row, constant, alpha, splits, {**betas, j: value}, planes)
                    if found > best:
                        best, betas[j] = found, value
        return best, which, betas, planes
