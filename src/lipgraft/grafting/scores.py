"""Scores of neurons: their formulas, and the tables that `score` fills."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.display import Chart, chart, table
from lipgraft.network.evaluate import evaluate
from lipgraft.network.graph import Network, Shape


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
