"""Lower bounds over networks with one hidden layer, quickly: the same function as `LowerBound`, for a search.

With one hidden layer a row's coefficients of the neurons' outputs never change, so what stable and grafted neurons
contribute is known beforehand; each evaluation looks at the open neurons alone, which are few.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lipgraft.bounds.layout import NeuronBounds
from lipgraft.bounds.relaxations import relax
from lipgraft.bounds.splits import clamped
from lipgraft.network.graph import Activation, Input, Linear


class OneLayer:
    """R rows over the network Input, Linear, Activation, Linear: what does not depend on lines and multipliers."""

    def __init__(self, bounds: NeuronBounds, rows: Tensor) -> None:
        """bounds: of R boxes; rows: (R, 1, 1, outputs)."""
        assert self.fits(bounds)
        layout = bounds.layout
        first, _, second = layout.network.nodes[1:]
        assert isinstance(first, Linear)
        assert isinstance(second, Linear)
        rows = rows[:, 0, 0]
        everyone = torch.arange(len(rows), device=rows.device)
        place = next(iter(layout.places))
        lower, upper = (end[:, :-1] for end in (bounds.lower, bounds.upper))
        lines = relax(bounds.activation(place, everyone), lower[:, None, None], upper[:, None, None])
        slope = lines.lower_slope[:, 0, 0]
        self.open, self.size = bounds.open, layout.size
        coefficient = rows @ second.weight
        known = torch.ones_like(bounds.lower).scatter(1, self.open, 0.0)[:, :-1]
        linear = coefficient * slope * known
        bias = slope.new_zeros(slope.shape[1]) if first.bias is None else first.bias
        const = linear @ bias
        if lines.lower_intercept is not None:  # of grafted neurons
            const = const + (coefficient * lines.lower_intercept[:, 0, 0] * known).sum(1)
        if second.bias is not None:
            const = const + rows @ second.bias
        self.weight, self.const, self.root_rows = first.weight, const, linear @ first.weight
        self.coefficient, self.bias = (self._of_open(t) for t in (coefficient, bias.expand_as(coefficient)))
        self.lower, self.upper = (end.gather(1, self.open) for end in (bounds.lower, bounds.upper))
        self.negative_slope = layout.negative_slope[self.open]
        self.centre, self.radius = (bounds.root[0] + bounds.root[1]) / 2, (bounds.root[1] - bounds.root[0]) / 2

    @staticmethod
    def fits(bounds: NeuronBounds) -> bool:
        layout = bounds.layout
        kinds = [type(node) for node in layout.network.nodes]
        return kinds == [Input, Linear, Activation, Linear] and not layout.curved

    def _of_open(self, values: Tensor) -> Tensor:
        """(R, N) -> (R, U), zero for fillers."""
        return torch.cat([values, torch.zeros_like(values[:, :1])], 1).gather(1, self.open)


class OneLayerBound:
    """The lower bounds of B subproblems, (B,), as a function of their lines and multipliers: see `LowerBound`.

    Splits name an open neuron by its place among the open ones of its row, and U stands for none.
    """

    def __init__(self, layer: OneLayer, row: Tensor, column: Tensor, sign: Tensor) -> None:
        """row: (B,); column, sign: (B, D), the splits."""
        self.layer, self.row, self.column, self.sign = layer, row, column, sign
        low, high = (torch.cat([end[row], end.new_zeros(len(row), 1)], 1) for end in (layer.lower, layer.upper))
        low, high = clamped(low, high, column, sign)
        self.lower, self.upper = low[:, :-1], high[:, :-1]
        self.free = (self.lower < 0) & (self.upper > 0)
        self.negative_slope, self.bias = layer.negative_slope[row], layer.bias[row]
        left, width = self.negative_slope, torch.where(self.free, self.upper - self.lower, 1.0)
        stable = torch.where(self.lower >= 0, 1.0, left)
        self.chord = torch.where(self.free, (self.upper - left * self.lower) / width, stable)
        self.intercept = torch.where(self.free, (left - self.chord) * self.lower, 0.0)
        coefficient = layer.coefficient[row]
        self.negative = coefficient.clamp(max=0)
        self.positive = coefficient - self.negative
        self.const = layer.const[row] + (self.negative * self.intercept).sum(1)
        self.base = self.const[:, None]
        self.root_rows, self.open = layer.root_rows[row], layer.open[row]
        self.centre, self.radius = layer.centre[row], layer.radius[row]

    def value(self, alpha: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        """The bounds, (B,), and the rows at the root, (B, inputs). alpha: (B, U); beta: (B, D)."""
        layer, left = self.layer, self.negative_slope
        slope = torch.where(self.free, left + alpha * (1 - left), self.chord)
        pushed = torch.zeros(len(alpha), alpha.shape[1] + 1, dtype=alpha.dtype, device=alpha.device)
        pushed = pushed.scatter_add(1, self.column, self.sign * beta)[:, :-1]
        coefficient = self.negative * self.chord + self.positive * slope - pushed
        spread = torch.zeros(len(alpha), layer.size + 1, dtype=alpha.dtype, device=alpha.device)
        spread = spread.scatter_add(1, self.open, coefficient)[:, :-1]
        rows = self.root_rows + spread @ layer.weight
        const = self.const + (coefficient * self.bias).sum(1)
        return const + (rows * self.centre - rows.abs() * self.radius).sum(1), rows

    def coefficients(self, alpha: Tensor, beta: Tensor) -> Tensor:
        """Of the open neurons' outputs: (B, U). They are the same for all lines and multipliers."""
        return self.negative + self.positive
