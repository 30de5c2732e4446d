"""Networks as functions of real numbers, in rational arithmetic: nothing here rounds.

Along a segment of inputs a network of affine layers and ReLUs is piecewise linear. It is kept as its values at the
places where it may bend, each a fraction, and goes through the layers exactly: affine layers map the values, a ReLU
adds a place wherever a neuron crosses zero.
"""

from __future__ import annotations

from fractions import Fraction
from math import isqrt, lcm
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from families import Residual
from lipgraft.grafting import GraftedActivation
from lipgraft.models.layers import Normalise

Array = np.ndarray
"""Of fractions, as objects."""


def fractions(values: Tensor) -> Array:
    """The real numbers that floats are."""
    out = np.empty(values.shape, dtype=object)
    flat = out.reshape(-1)
    for k, value in enumerate(values.detach().double().flatten().tolist()):
        flat[k] = Fraction(value)
    return out


class Path(NamedTuple):
    """A piecewise linear function of t in [0, 1]: linear between neighbouring places t (P,), values (P, *shape)."""

    t: list[Fraction]
    values: Array

    def at(self, places: list[Fraction]) -> Path:
        """The same function with its values at more places, which contain its own."""
        if places == self.t:
            return self
        rows, k = [], 0
        for place in places:
            while self.t[k + 1] < place:
                k += 1
            share = (place - self.t[k]) / (self.t[k + 1] - self.t[k])
            rows.append(self.values[k] + share * (self.values[k + 1] - self.values[k]))
        return Path(places, np.stack(rows))

    def bent_at_zero(self) -> Path:
        """With a place wherever an element crosses zero."""
        flat = self.values.reshape(len(self.t), -1)
        places = set(self.t)
        for k in range(len(self.t) - 1):
            for a, b in zip(flat[k], flat[k + 1], strict=True):
                if a < 0 < b or b < 0 < a:
                    places.add(self.t[k] + (self.t[k + 1] - self.t[k]) * a / (a - b))
        return self.at(sorted(places))


def outputs_along(model: nn.Module, start: Array, end: Array) -> Path:
    """The outputs on the way from one input to another. start, end: (*shape)."""
    return _through(model, Path([Fraction(0), Fraction(1)], np.stack([start, end])))


def outputs_at(model: nn.Module, point: Array) -> Array:
    """The outputs (n,) at one input (*shape)."""
    return outputs_along(model, point, point).values[0]


def _through(module: nn.Module, path: Path) -> Path:
    match module:
        case nn.Sequential():
            for layer in module:
                path = _through(layer, path)
            return path
        case nn.Linear():
            return Path(path.t, _dense(path.values, module.weight, module.bias))
        case nn.Conv2d():
            return Path(path.t, _convolved(module, path.values))
        case nn.BatchNorm1d() | nn.BatchNorm2d():
            return Path(path.t, _normalised(module, path.values))
        case Normalise():
            return Path(path.t, (path.values - fractions(module.mean)) / fractions(module.std))
        case nn.Flatten():
            return Path(path.t, path.values.reshape(len(path.t), -1))
        case nn.Identity():
            return path
        case nn.ReLU():
            path = path.bent_at_zero()
            return Path(path.t, np.maximum(path.values, Fraction(0)))
        case GraftedActivation(base=nn.ReLU()):
            path = path.bent_at_zero()
            lines = path.values * fractions(module.gamma) + fractions(module.omega)
            return Path(path.t, np.where(module.mask.numpy(), lines, np.maximum(path.values, Fraction(0))))
        case Residual():
            branch = _through(nn.Sequential(module.into, module.act, module.out), path)
            kept = _through(module.keep, path.at(branch.t))
            return Path(branch.t, kept.values + branch.values)
    raise TypeError(f"no exact arithmetic for {type(module).__name__}")


def _dense(values: Array, weight: Tensor, bias: Tensor | None) -> Array:
    """values (P, n) times the weights. Over common denominators the sums are of integers, which is faster."""
    integers, below = _over_one_denominator(fractions(weight))
    rows = []
    for row in values:
        numerators, own = _over_one_denominator(row)
        rows.append([Fraction(number, own * below) for number in (integers @ numerators).tolist()])
    out = np.array(rows, dtype=object).reshape(len(values), len(weight))
    return out if bias is None else out + fractions(bias)


def _over_one_denominator(values: Array) -> tuple[Array, int]:
    """Integers, as objects, and what they are to be divided by."""
    flat = values.reshape(-1).tolist()
    below = lcm(*{value.denominator for value in flat})
    out = np.empty(len(flat), dtype=object)
    out[:] = [value.numerator * (below // value.denominator) for value in flat]
    return out.reshape(values.shape), below


def _convolved(conv: nn.Conv2d, values: Array) -> Array:
    """As the matrix that a convolution is; its entries are single weights, which double precision holds."""
    shape, inputs = values.shape[1:], int(np.prod(values.shape[1:]))
    units = torch.eye(inputs, dtype=torch.float64).reshape(inputs, *shape)
    with torch.no_grad():
        columns = torch.conv2d(units, conv.weight.double(), None, conv.stride, conv.padding)  # type: ignore[arg-type]
    out = _dense(values.reshape(len(values), -1), columns.flatten(1).T, None).reshape(len(values), *columns.shape[1:])
    return out if conv.bias is None else out + fractions(conv.bias)[:, None, None]


def _normalised(norm: nn.BatchNorm1d | nn.BatchNorm2d, values: Array) -> Array:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    roots = np.array([_root(v + Fraction(norm.eps)) for v in fractions(norm.running_var)], dtype=object)
    parts = (fractions(norm.running_mean), roots, fractions(norm.weight), fractions(norm.bias))
    mean, root, weight, bias = (part.reshape(-1, *[1] * (values.ndim - 2)) for part in parts)
    return (values - mean) / root * weight + bias


def _root(value: Fraction) -> Fraction:
    """The square root of a fraction that has one."""
    root = Fraction(isqrt(value.numerator), isqrt(value.denominator))
    assert root * root == value, f"the root of {value} is not rational"
    return root
