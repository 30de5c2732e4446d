"""`lipschitz`: one verb for four notions of the local Lipschitz constant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from lipgraft.bounds import METHODS
from lipgraft.bounds.memory import affordable
from lipgraft.box import Box
from lipgraft.errors import SettingsError, unknown_name
from lipgraft.inputs import pixels, radii, seeded, settings_of, whole
from lipgraft.network import Network, agree, full_precision, like, subject, trace
from lipgraft.sensitivity import interval_jacobian, jacobian, output_width, sampled  # noqa: F401  (they fill the registry)
from lipgraft.sensitivity.problem import NOTIONS, LipschitzSettings, Problem
from lipgraft.sensitivity.units import input_weight

FEW, MANY = 4, 32  # images at a time on a CPU
PASSES = 500  # through the network that an image costs, about: samples, and steps of an ascent for every output


def lipschitz(
    model: nn.Module | Network,
    x: Tensor,
    eps: float | Tensor,
    method: str = "jacobian",
    *,
    units: str = "pixel",
    low: float | None = 0.0,
    high: float | None = 1.0,
    bounds: str | None = None,
    per_output: bool = False,
    batch: int | None = None,
    settings: LipschitzSettings | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """The local Lipschitz constant, in the maximum norms, around each image: the largest over all outputs, (B,).

    x: (B, *shape), inside [low, high]; eps: a number or (B,), in raw pixels whatever the units; low, high: as for
    `Box.linf`. What is said holds for the model in evaluation mode as a function of real numbers, as in `verify`.
    method: "jacobian" and "interval-jacobian", upper bounds; "output-width"; "sampled", a lower bound.
    units: "pixel", or "normalised" for derivatives with respect to the input after the network's own normalisation.
    bounds: the bound method for neurons and outputs, instead of the settings'. per_output: (B, n) instead of (B,).
    batch: images at a time. seed: for "sampled". progress: called with the images done so far and their number.
    NaN or infinity anywhere gives +inf where an upper bound is asked for, and -inf for "sampled".

    Examples:
        >>> import torch
        >>> import lipgraft as lg
        >>> model = torch.nn.Linear(2, 2)
        >>> _ = model.load_state_dict({"weight": torch.tensor([[1.0, -2.0], [0.5, 0.5]]), "bias": torch.zeros(2)})
        >>> lg.lipschitz(model, torch.rand(1, 2), 0.1)
        tensor([3.])
    """
    if method not in NOTIONS:
        raise SettingsError(unknown_name("notion of the Lipschitz constant", method, list(NOTIONS)))
    settings = settings_of(settings, LipschitzSettings, LipschitzSettings())
    settings = settings if bounds is None else replace(settings, bounds=bounds)
    _check(batch, settings)
    chosen = NOTIONS[method]
    with torch.no_grad(), full_precision():
        model = model if isinstance(model, Network) else subject(model)
        x = pixels(x, low, high)
        network = (model if isinstance(model, Network) else trace(model, tuple(x.shape[1:]))).to()
        if tuple(x.shape[1:]) != network.input_shape:
            raise SettingsError(f"the inputs have shape {tuple(x.shape[1:])}, the network takes {network.input_shape}.")
        x = x.to(like(network, x))
        dtype = torch.promote_types(x.dtype, torch.float32)
        box = Box.linf(x, eps, low=low, high=high)
        if isinstance(model, nn.Module):
            agree(network, model, box.lower, box.upper)
        if chosen.double:
            x, network = x.double(), network.to(dtype=torch.float64)
            box = Box.linf(x, eps, low=low, high=high)
        radius = radii(eps, len(x), x.device).to(x.dtype)
        weight = input_weight(units, network, x)
        generator = seeded(seed, x.device)
        out = torch.empty(len(x), network.output_shape[0], dtype=dtype, device=x.device)
        batch = batch or default_batch(network, x.device)
        for first in range(0, len(x), batch):
            rows = slice(first, first + batch)
            problem = Problem(network, box[rows], radius[rows], weight, settings, generator)
            out[rows] = chosen.rounded(chosen.norms(problem), dtype)
            if progress is not None:
                progress(min(first + batch, len(x)), len(x))
    return out if per_output else out.amax(1)


def default_batch(network: Network, device: torch.device) -> int:
    """Enough images to fill a GPU; few enough that a CPU's memory and patience last, more of them if it is small."""
    return 128 if device.type == "cuda" else max(FEW, affordable(network, device, PASSES, MANY))


def _check(batch: int | None, settings: LipschitzSettings) -> None:
    if batch is not None:
        whole(batch, "batch", 1)
    if settings.bounds not in METHODS:
        raise SettingsError(unknown_name("bound method", settings.bounds, list(METHODS)))
