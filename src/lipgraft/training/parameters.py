"""Which parameters are what: weights that can be pruned, slopes and intercepts of grafted neurons, the rest."""

from __future__ import annotations

from torch import Tensor, nn

from lipgraft.grafting.activation import GraftedActivation


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The weights of convolutions and linear layers, by parameter name."""
    layers = {n: m for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)}
    return {f"{name}.weight" if name else "weight": module.weight for name, module in layers.items()}


def grafts_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """Slopes gamma and intercepts omega of the grafted activations, by parameter name."""
    modules = {n: m for n, m in model.named_modules() if isinstance(m, GraftedActivation)}
    return {
        f"{name}.{key}" if name else key: getattr(module, key)
        for name, module in modules.items()
        for key in ("gamma", "omega")
    }
