"""LG's significance of a neuron, at its pre-activation: mean magnitude, mean size of the loss's gradient."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lipgraft.network.evaluate import evaluate
from lipgraft.network.graph import Network


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
