"""Scores of every neuron over a calibration set. Only reductions over images are kept, never bounds per image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lipgraft.bounds import bound
from lipgraft.box import Box
from lipgraft.display import Chart, chart, table
from lipgraft.errors import DataError, NumericalError
from lipgraft.grafting.graph import traced, weight_factor
from lipgraft.inputs import check_classes, labels, pixels, radii, whole
from lipgraft.network import Activation, Network, expanded, full_precision, like
from lipgraft.network.evaluate import evaluate
from lipgraft.network.graph import Shape


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

    Examples:
        >>> import torch
        >>> import lipgraft as lg
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))
        >>> lg.grafting.score(model, torch.rand(20, 4), 0.1)
        <Scores of 6 neurons in 1 layer over 20 images>
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
            node.name: _Sums.empty(node, slope, number, with_gradient=y is not None)
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
        return Scores(_scores(network, sums, len(x)), len(x), tuple(x.shape[1:]))


def _check(x: Tensor, batch: int) -> None:
    if len(x) == 0:
        raise DataError("the calibration set is empty; give at least one image.")
    whole(batch, "batch", 1)


def _check_finite(sums: dict[str, _Sums]) -> None:
    # One look at the end, not one per batch: reading a value makes the device wait.
    bad = [name for name, total in sums.items() if not bool(total.finite())]
    if bad:
        raise NumericalError(f"bounds of {', '.join(bad)} are NaN or infinite; check the weights, the images and eps.")


def _scores(network: Network, sums: dict[str, _Sums], count: int) -> dict[str, LayerScores]:
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


@dataclass
class _Sums:
    """Running sums and extremes over images, for one activation.

    Every tensor is of the activation's shape and stays on the device.
    """

    node: Activation
    slope: float
    unstable: Tensor
    width_sum: Tensor
    width_max: Tensor
    lower_min: Tensor
    upper_max: Tensor
    gain_sum: Tensor
    gain_max: Tensor
    magnitude: Tensor
    gradient: Tensor | None

    @staticmethod
    def empty(node: Activation, slope: float, like: Tensor, *, with_gradient: bool) -> _Sums:
        """Before the first image. like: for the dtype and the device."""

        def full(value: float) -> Tensor:
            return like.new_full(node.shape, value)

        inf = float("inf")
        return _Sums(
            node=replace(node, graft=None),  # what a graft would gain is reckoned against the activation itself
            slope=slope,
            unstable=torch.zeros(node.shape, dtype=torch.int64, device=like.device),
            width_sum=full(0.0),
            width_max=full(-inf),
            lower_min=full(inf),
            upper_max=full(-inf),
            gain_sum=full(0.0),
            gain_max=full(-inf),
            magnitude=full(0.0),
            gradient=full(0.0) if with_gradient else None,
        )

    def add(self, lb: Tensor, ub: Tensor, magnitude: Tensor, gradient: Tensor | None) -> None:
        """lb, ub: (B, *shape), bounds of the pre-activation; magnitude, gradient: sums over the same images."""
        width = ub - lb
        low, high = self.node.interval((lb, ub))
        gains = gain(high - low, width, self.slope)
        self.unstable += s_u(lb, ub, self.node.curve.bends)
        self.width_sum += width.sum(0)
        self.gain_sum += gains.sum(0)
        self.width_max = torch.maximum(self.width_max, width.amax(0))
        self.lower_min = torch.minimum(self.lower_min, lb.amin(0))
        self.upper_max = torch.maximum(self.upper_max, ub.amax(0))
        self.gain_max = torch.maximum(self.gain_max, gains.amax(0))
        self.magnitude += magnitude
        if self.gradient is not None and gradient is not None:
            self.gradient += gradient

    def finite(self) -> Tensor:
        """Whether every reduction is finite; a NaN or infinite bound of any image shows in one of these sums."""
        return torch.isfinite(self.width_sum).all() & torch.isfinite(self.gain_sum).all()


@dataclass(frozen=True, eq=False)
class LayerScores:
    """One activation's scores, each of the activation's shape; lb, ub are pre-activation bounds per image."""

    s_u: Tensor  # images on which lb < 0 < ub
    s_wi: Tensor  # max width times the largest |w| into the next layers, all of their neurons counted
    width_max: Tensor  # max over images of ub - lb
    width_mean: Tensor  # mean over images of ub - lb
    lower_min: Tensor  # min over images of lb
    upper_max: Tensor  # max over images of ub
    gain_max: Tensor  # max over images of (act(ub) - act(lb)) - slope (ub - lb)
    gain_mean: Tensor  # its mean
    magnitude: Tensor  # mean over images of |z|
    gradient: Tensor | None  # mean over images of |d CE / d z|; None when no labels were given


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of every activation, in the network's order, over `count` images of this shape."""

    layers: dict[str, LayerScores]
    count: int
    input_shape: Shape

    def __repr__(self) -> str:
        neurons = sum(layer.s_u.numel() for layer in self.layers.values())
        layers = f"{len(self.layers)} layer{'s' if len(self.layers) > 1 else ''}"
        return f"<Scores of {neurons:,} neurons in {layers} over {self.count:,} images>"

    def _repr_html_(self) -> str:
        rows = [
            (
                name,
                f"{layer.s_u.numel():,}",
                f"{layer.s_u.double().mean() / max(self.count, 1):.1%}",
                f"{layer.width_mean.mean():.4g}",
                f"{layer.s_wi.max():.4g}",
            )
            for name, layer in self.layers.items()
        ]
        return table(repr(self)[1:-1], ("layer", "neurons", "unstable", "mean width", "largest s_wi"), rows)

    def plot(self) -> Chart:
        """On what share of the images the neurons of each layer are unstable, the most unstable first."""
        series = {}
        for name, layer in self.layers.items():
            shares = (layer.s_u.double().flatten() / max(self.count, 1)).sort(descending=True).values.tolist()
            series[name] = [((i + 0.5) / len(shares), share) for i, share in enumerate(shares)]
        return chart("Unstable neurons", series, across="share of the layer's neurons", up="% of images", share=True)

    @property
    def s_u(self) -> dict[str, Tensor]:
        """Instability: the number of images on which each neuron is unstable."""
        return {name: layer.s_u for name, layer in self.layers.items()}

    @property
    def s_wi(self) -> dict[str, Tensor]:
        """Weighted interval with the whole next layer selected; `select` computes it anew for its own selection."""
        return {name: layer.s_wi for name, layer in self.layers.items()}

    @property
    def widths(self) -> dict[str, Tensor]:
        """max over images of ub - lb."""
        return {name: layer.width_max for name, layer in self.layers.items()}


def s_u(lb: Tensor, ub: Tensor, bends: Sequence[float] = (0.0,)) -> Tensor:
    """s_u(j) = sum over images i of 1[lb_j < b < ub_j for some bend b]. lb, ub: (B, *shape) -> (*shape), whole numbers.

    bends: of the activation's curve; 0 for ReLU, and for the smooth curves, which bend most or turn there.
    """
    inside = torch.stack([(lb < bend) & (ub > bend) for bend in bends])
    return inside.any(0).sum(0)


def s_wi(weight: Tensor, width: Tensor) -> Tensor:
    """s_wi(j) = max_i max_{k in P} |w_jk| |ub_j - lb_j|: separable, so the two maxima are taken apart.

    weight: max (or mean) over the selected neurons k of the next layers, from `weight_factor`;
    width: max over images of ub - lb (the paper), their mean (average sensitivity), or max ub - min lb (range).
    """
    return weight * width


def gain(out_width: Tensor, width: Tensor, gamma: float) -> Tensor:
    """How much narrower the neuron's output interval becomes: (act(ub) - act(lb)) - |gamma| (ub - lb).

    For an unstable ReLU this is ub - gamma (ub - lb), negative when gamma > ub / (ub - lb): the graft then widens.
    The next layer's interval changes by |w_jk| times the gain, so the score is max_k |w_jk| gain_j.
    """
    return out_width - abs(gamma) * width


def significance(network: Network, x: Tensor, y: Tensor | None = None) -> dict[str, tuple[Tensor, Tensor | None]]:
    """{activation name: (sum over images of |z|, sum over images of |d CE / d z|)}; without labels y no gradient.

    x: (B, *input shape); y: (B,). Each image's own gradient counts, not the batch's: the loss is a sum over images.
    """
    with torch.set_grad_enabled(y is not None):
        pre, logits = pre_activations(network, x.detach().requires_grad_(y is not None))
        if y is None:
            return {name: (z.abs().sum(0), None) for name, z in pre.items()}
        loss = F.cross_entropy(logits, y, reduction="sum")
        gradients = torch.autograd.grad(loss, list(pre.values()), allow_unused=True, materialize_grads=True)
    return {
        name: (z.detach().abs().sum(0), g.abs().sum(0)) for (name, z), g in zip(pre.items(), gradients, strict=True)
    }


def pre_activations(network: Network, x: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """({activation name: its pre-activation (B, *shape)}, logits (B, n)) at the images x (B, *input shape)."""
    values = evaluate(network, x)
    return {node.name: values[node.inputs[0]] for _, node in network.activations()}, values[network.output]
