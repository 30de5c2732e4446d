"""What each neuron's line costs a lower bound, at the point where the bound is attained.

A bound is the least value over the box of the network with lines in place of activations: below where the output counts
positively, above where it counts negatively. At the corner of the box where that least value is, the relaxed network
has a value at every neuron; how far its line is from the curve there, times the coefficient, is what that neuron costs.
With one hidden layer, the bound and all costs add up to the function's value at that corner.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lipgraft.activations import Lines
from lipgraft.bounds.alpha_crown import LowerBound


def costs(function: LowerBound, alpha: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """The coefficients of the open neurons' outputs in the bounds, and what their lines cost: (P, U) each. R = 1."""
    layout, record = function.layout, dict[int, Tensor]()
    _, rows = function.value(alpha, beta, record)
    lines = function.lines_at(alpha)
    lower, upper = function.root
    values = {layout.path.root: torch.where(rows.view_as(lower) > 0, lower, upper)}
    cost: dict[int, Tensor] = {}
    for i in range(layout.path.root + 1, layout.path.target + 1):
        if i not in layout.path.windows:
            continue
        node = layout.network.nodes[i]
        inputs = [values[j] for j in node.inputs]
        if i not in layout.places:
            values[i] = node.forward(*inputs)
            continue
        z, coefficient = inputs[0], record[i].view_as(inputs[0])
        values[i] = _line(lines[i], z, coefficient)
        # Beyond its interval, where no input of the subproblem lies, a line says nothing of the curve.
        ends = (end.view_as(z) for end in function.pre[i])
        z = z.clamp(*ends)
        cost[i] = coefficient * (layout.activation(i).curve(z) - _line(lines[i], z, coefficient))
        if i in function.hinged:
            cost[i] = function.hinged[i].cost(record[i], cost[i].view_as(record[i])).view_as(z)
    column = function.open.clamp(max=layout.size - 1)
    return layout.flat(record).gather(1, column), layout.flat(cost).gather(1, column).clamp(min=0)


def _line(lines: Lines, z: Tensor, coefficient: Tensor) -> Tensor:
    """The value at z of the line that the coefficient's sign picks; all of one shape, but for axes of length 1."""
    low, high = lines.lower_slope.view_as(z) * z, lines.upper_slope.view_as(z) * z
    low = low if lines.lower_intercept is None else low + lines.lower_intercept.view_as(z)
    high = high if lines.upper_intercept is None else high + lines.upper_intercept.view_as(z)
    return torch.where(coefficient > 0, low, high)
