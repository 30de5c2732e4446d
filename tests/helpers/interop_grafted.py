"""Networks of the paper with random weights, half of whose neurons are lines, each of its own."""

from __future__ import annotations

import torch
from torch import nn

from lipgraft import grafting, models
from lipgraft.network import trace


def half_grafted(model: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """Every second neuron, at random, is a line of its own."""
    generator = torch.Generator().manual_seed(1)
    nodes = [node for _, node in trace(model, shape).activations()]
    masks = {node.name: torch.rand(node.shape, generator=generator) < 0.5 for node in nodes}
    grafted = grafting.apply(model, masks, slope=0.4, intercept=0.1, input_shape=shape)
    for name, tensor in grafted.named_parameters():
        if name.endswith((".gamma", ".omega")):
            tensor.data += 0.1 * torch.randn(tensor.shape, generator=generator)
    return grafted


def grafted(name: str, dataset: str) -> nn.Module:
    plain = models.build(name, dataset, seed=0)
    return half_grafted(plain, plain.spec.input_shape)
