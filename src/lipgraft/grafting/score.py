"""Scores of every neuron over a calibration set. Only reductions over images are kept, never bounds per image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from lipgraft.bounds import bound
from lipgraft.box import Box
from lipgraft.errors import DataError, NumericalError, SettingsError
from lipgraft.grafting.accumulate import Accumulator
from lipgraft.grafting.scores.significance import significance
from lipgraft.grafting.scores.table import LayerScores, Scores
from lipgraft.grafting.scores.weighted_interval import s_wi
from lipgraft.grafting.scores.weights import weight_factor
from lipgraft.grafting.traced import traced
from lipgraft.inputs import check_classes, labels, pixels, radii
from lipgraft.network import Network, expanded, full_precision, like


def score(
    model: nn.Module | Network,
    x: Tensor,
    eps: float,
    bounds: str = "crown",
    *,
    y: Tensor | None = None,
    batch: int = 100,
    low: float | None = 0.0,
    high: float | None = 1.0,
    slope: float = 0.4,
    neurons: Literal["all", "needed"] = "all",
    progress: Callable[[int, int], None] | None = None,
) -> Scores:
    """The scores over the images x (N, *input shape), on the model's device, `batch` images at a time.

    eps, low, high: the boxes, as for `Box.linf`. bounds: a method of `lipgraft.bounds.bound`. y: labels (N,), needed
    by gradient significance alone. slope: the line the gain is reckoned for. neurons: "all" bounds every neuron by the
    method; "needed" leaves a neuron that a cheaper bound proves stable with that bound (same s_u, looser widths).
    progress: called after each batch with the images scored so far and their number.
    """
    with full_precision():
        x, eps = pixels(x, low, high), float(radii(eps, 1)[0])
        y = None if y is None else labels(y, len(x), x.device)
        _check(x, batch)
        network = traced(model, tuple(x.shape[1:])).to()  # detached
        bounded = expanded(network)
        if y is not None:
            check_classes(y, network.output_shape[0])
        number = like(network, x)
        sums = {
            node.name: Accumulator.empty(node, slope, number, with_gradient=y is not None)
            for _, node in network.activations()
        }
        for first in range(0, len(x), batch):
            rows = slice(first, first + batch)
            images, classes = x[rows].to(number), None if y is None else y[rows].to(number.device)
            box = Box.linf(images, eps, low=low, high=high)
            layers = bound(bounded, box, method=bounds, neurons=neurons).layers
            sizes = significance(network, images, classes)
            with torch.no_grad():
                for name, total in sums.items():
                    total.add(*layers[name], *sizes[name])
            if progress is not None:
                progress(min(first + batch, len(x)), len(x))
        _check_finite(sums)
        return Scores(_scores(network, sums, len(x)), len(x), tuple(x.shape[1:]), eps, bounds, slope)


def _check(x: Tensor, batch: int) -> None:
    if len(x) == 0:
        raise DataError("the calibration set is empty; give at least one image.")
    if batch < 1:
        raise SettingsError(f"batch must be at least 1, got {batch}.")


def _check_finite(sums: dict[str, Accumulator]) -> None:
    # One look at the end, not one per batch: reading a value makes the device wait.
    bad = [name for name, total in sums.items() if not bool(total.finite())]
    if bad:
        raise NumericalError(f"bounds of {', '.join(bad)} are NaN or infinite; check the weights, the images and eps.")


def _scores(network: Network, sums: dict[str, Accumulator], count: int) -> dict[str, LayerScores]:
    return {
        name: LayerScores(
            s_u=total.unstable,
            s_wi=s_wi(weight_factor(network, name), total.width_max),
            width_max=total.width_max,
            width_mean=total.width_sum / count,
            lower_min=total.lower_min,
            upper_max=total.upper_max,
            gain_max=total.gain_max,
            gain_mean=total.gain_sum / count,
            magnitude=total.magnitude / count,
            gradient=None if total.gradient is None else total.gradient / count,
        )
        for name, total in sums.items()
    }
