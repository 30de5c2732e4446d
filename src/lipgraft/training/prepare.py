"""From a model, data and settings to a step that is ready to run; everything that can be wrong is found here."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor, nn

from lipgraft.data import Dataset
from lipgraft.data.dataset import AUGMENT, unchanged
from lipgraft.errors import NumericalError, SettingsError, UnsupportedOperationError
from lipgraft.network import trace
from lipgraft.network.graph import Graft, Network
from lipgraft.training.batchnorm import Normalised
from lipgraft.training.objectives import objective_named
from lipgraft.training.optimiser import OPTIMISERS
from lipgraft.training.parameters import weights_of
from lipgraft.training.processes import Processes
from lipgraft.training.pruning import apply_masks, keep_masks
from lipgraft.training.schedule import schedule_named
from lipgraft.training.settings import TrainSettings
from lipgraft.training.step import Step
from lipgraft.training.task import Task

MODE_DEPENDENT = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)
"""Layers that compute something else in training than in evaluation, so that the traced graph is not the step's."""


def prepare(model: nn.Module, data: Dataset, settings: TrainSettings, device: torch.device) -> Step:
    """The step of a run that starts at the model's present weights. The model is moved to the device."""
    objective, _ = objective_named(settings.objective), schedule_named(settings.schedule)
    processes = Processes.here()
    train_indices, _ = data.holding_out(settings.held_out).split()
    if settings.batch > len(train_indices):
        raise SettingsError(
            f"a batch of {settings.batch} is larger than the {len(train_indices)} training images of {data.name}; "
            "choose a smaller batch."
        )
    if not is_finite(model):
        raise NumericalError("the model to train has weights that are NaN or infinite; start from another checkpoint.")
    if other := {str(p.dtype) for p in model.parameters() if p.is_floating_point()} - {"torch.float32"}:
        raise SettingsError(f"the model to train has {', '.join(sorted(other))} weights; give model.float().")
    model.to(device).train()
    if device.type == "cuda":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x, y = (t[train_indices.to(t.device)].to(device) for t in (data.x_train, data.y_train))
    shape = (len(x), *data.input_shape)
    memory = {name: torch.zeros(shape, device=device) for name in objective.memory}
    network = traced(model, settings, data.input_shape)
    normalised = completed(model, data.input_shape) if objective.bounds and network is None else None
    if objective.bounds and network is None and normalised is None:
        raise SettingsError(
            f"the objective {settings.objective} bounds the network, which must be without dropout and reparametrised "
            "weights, and whose BatchNorm must follow convolutions and linear layers; change the model."
        )
    task = Task(model, settings, processes.generator(device), network, memory, normalised)
    keep = keep_masks(model, settings.prune_ratio) if settings.prune == "fixed" and settings.epochs else {}
    apply_masks(model, keep)
    augment = partial(
        AUGMENT[data.augment] if settings.augment else unchanged, pad=settings.crop, edge=settings.crop_edge
    )
    return Step(task, OPTIMISERS[settings.optimiser](model, settings), x, y, augment, keep, processes)


def traced(model: nn.Module, settings: TrainSettings, shape: tuple[int, ...]) -> Network | None:
    """The model's graph, or None when it has none that training could use."""
    if any(isinstance(module, MODE_DEPENDENT) for module in model.modules()):
        return None
    try:
        network = trace(model, shape)
    except UnsupportedOperationError:
        if settings.slope or settings.rs or settings.ibp_reg or objective_named(settings.objective).bounds:
            raise  # these need the graph; nothing else does
        return None
    return network if _is_live(network, model.parameters()) else None


def completed(model: nn.Module, shape: tuple[int, ...]) -> Normalised | None:
    """The graph of a model with BatchNorm that the clean batch completes, or None when it has none."""
    if any(isinstance(module, nn.modules.dropout._DropoutNd) for module in model.modules()):
        return None
    found = Normalised.of(model, shape)
    if found is None or not found.layers:
        return None
    by_batch = {id(parameter) for layer in found.layers.values() for parameter in layer.parameters()}
    others = [parameter for parameter in model.parameters() if id(parameter) not in by_batch]
    return found if _is_live(found.network, others) else None


def _is_live(network: Network, parameters: Iterable[nn.Parameter]) -> bool:
    """Whether the graph holds every trained parameter itself: one computed from others would be a stale copy."""
    fields = [value for node in network.nodes for value in vars(node).values()]
    parts = [part for value in fields for part in (vars(value).values() if isinstance(value, Graft) else (value,))]
    held = {part.data_ptr() for part in parts if isinstance(part, Tensor)}
    return all(parameter.data_ptr() in held for parameter in parameters if parameter.requires_grad)


@torch.no_grad()
def draw_weights(model: nn.Module, generator: torch.Generator) -> None:
    """W ~ N(0, 2 pi / fan_in^2) for every convolution and linear layer but the last (Shi et al., 2021).

    With these weights interval bounds grow from layer to layer neither much wider nor much narrower.
    """
    for weight in list(weights_of(model).values())[:-1]:
        noise = torch.randn(weight.shape, generator=generator) * math.sqrt(2 * math.pi) / weight[0].numel()
        weight.copy_(noise)


def seed_for(seed: int, epoch: int, purpose: str) -> int:
    """A seed of its own for each epoch and purpose: a run resumed at an epoch draws the same numbers."""
    digest = hashlib.sha256(f"{seed}/{epoch}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def permutation(seed: int, epoch: int, count: int) -> Tensor:
    """The order of the training images in an epoch, the same on every device."""
    generator = torch.Generator().manual_seed(seed_for(seed, epoch, "order"))
    return torch.randperm(count, generator=generator)


def is_finite(model: nn.Module) -> bool:
    """Whether all weights and buffers are finite. Waits for the device."""
    floats = [tensor for tensor in model.state_dict().values() if tensor.is_floating_point()]
    return not floats or bool(torch.stack([torch.isfinite(tensor).all() for tensor in floats]).all())
