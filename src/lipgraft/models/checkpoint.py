"""Checkpoints: safetensors with the architecture or the graph, the masks and the settings in the metadata."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lipgraft.data.catalogue import CATALOGUE
from lipgraft.errors import CheckpointError, LipgraftError, SettingsError, UnsupportedOperationError, unknown_name
from lipgraft.files import atomic_write_bytes
from lipgraft.grafting.apply import apply
from lipgraft.inputs import shape_of_one
from lipgraft.models import tensor_file
from lipgraft.models.classifier import NETWORKS, Classifier, ModelSpec, build
from lipgraft.models.graph_model import OWN, build_graph, describe
from lipgraft.models.zoo import PREFIX, zoo_checkpoint
from lipgraft.network import call, evaluated, known_input_shape, like
from lipgraft.settings import build as build_settings
from lipgraft.settings import to_mapping
from lipgraft.source import is_source, made_by
from lipgraft.version import __version__

KEY = "lipgraft"  # of the one metadata entry; safetensors writes several in random order
FORMAT_VERSION = 1


@dataclass(frozen=True)
class FileFormat:
    """How models are read from files of another kind, and written to them."""

    read: Callable[[Path], nn.Module]
    write: Callable[[nn.Module, Path, tuple[int, ...] | None], object]


FORMATS: dict[str, FileFormat] = {}
"""File formats besides safetensors, by suffix."""
ADDED_BY = {".onnx": "lipgraft.interop"}
"""The room that adds a format to them when it is imported: one after this room, known here by its name alone."""


def save(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    extra: Mapping[str, Any] | None = None,
    input_shape: Sequence[int] | None = None,
) -> None:
    """Write the model so that a crash leaves the old file or the new one.

    extra: settings to keep with it, as JSON can hold them. input_shape: of one input, without the batch axis; needed
    for a module of your own, whose graph is then kept with its tensors, so that `load(path)` reads it back without its
    source. Without it, the module itself is needed again: `load(path, into=module)`. A path that ends in .onnx is
    written as ONNX, which has no place for `extra`.

    Examples:
        >>> import tempfile, torch
        >>> import lipgraft as lg
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> file = f"{tempfile.mkdtemp()}/mine.safetensors"
        >>> lg.save(model, file, input_shape=(1, 8, 8))
        >>> x = torch.rand(1, 1, 8, 8)
        >>> bool(torch.allclose(lg.load(file)(x), model(x)))
        True
    """
    other = _format(Path(path))
    if not isinstance(model, nn.Module):
        raise CheckpointError(
            f"the model must be a torch.nn.Module, got a {type(model).__name__}; pass the module itself."
        )
    shape = known_input_shape(model) if input_shape is None else shape_of_one(input_shape)
    if other is not None:
        if extra:
            raise CheckpointError(f"{path} cannot hold settings; write a .safetensors file instead.")
        other.write(model, Path(path), shape)
        return
    spec = getattr(model, "spec", None)
    by_name = isinstance(spec, ModelSpec) and spec.dataset in CATALOGUE
    state = model.state_dict()
    graph, own, why_not = (None, {}, None) if by_name else _graph(model, shape)
    if why_not is not None and input_shape is not None:
        _check_takes(model, shape_of_one(input_shape))
    about = {
        "format_version": FORMAT_VERSION,
        "spec": to_mapping(spec) if by_name else None,
        "graph": graph,
        "why_no_graph": why_not,
        "grafted": _grafted_names(state),
        "extra": dict(extra or {}),
        "versions": _versions(),
    }
    try:
        text = json.dumps(about)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"the extra settings of a checkpoint must be plain JSON values: {error}.") from None
    atomic_write_bytes(path, tensor_file.to_bytes({**state, **own}, {KEY: text}))


def load(
    path: str | os.PathLike[str], device: torch.device | str | None = None, *, into: nn.Module | None = None
) -> nn.Module:
    """The model in a checkpoint, in a .onnx file, of the zoo ("zoo/NAME"), or made by a function of your own
    (module:function, or file.py:function), in eval mode.

    into: a module of your own to fill, strictly; the file may then be any safetensors file. If the file has grafts
    that the module lacks, a grafted copy is filled and returned, and the module is left as it was.

    Examples:
        >>> import tempfile
        >>> import lipgraft as lg
        >>> file = f"{tempfile.mkdtemp()}/digits.safetensors"
        >>> lg.save(lg.models.build("digits-cnn", "digits", seed=0), file)
        >>> lg.load(file).spec.name
        'digits-cnn'
    """
    name = os.fspath(path)
    if is_source(name):
        model = _from_source(name)
    elif (other := _format(file := _find(path))) is not None:
        model = other.read(file)
    else:
        stored = tensor_file.read(file)
        if into is None:
            model = _build_for(file, stored)
        else:
            model = _with_grafts(file, into, stored)
            _fill(file, model, _state(stored.tensors))
    return model.to(device).eval() if device is not None else model.eval()


def read_metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a checkpoint says of itself: format_version, spec, graph, grafted, extra, versions. No tensor is loaded."""
    file = _find(path)
    return _parse_metadata(file, tensor_file.read_metadata(file))


def _graph(
    model: nn.Module, shape: tuple[int, ...] | None
) -> tuple[dict[str, Any] | None, dict[str, Tensor], str | None]:
    """The model's graph, the tensors it needs besides the state's, or else why there is none."""
    if shape is None:
        return None, {}, "it was saved without its input_shape"
    try:
        return *describe(model, shape), None
    except UnsupportedOperationError as error:
        return None, {}, f"its graph cannot be traced: {str(error).partition('. ')[0]}"


@torch.no_grad()
def _check_takes(model: nn.Module, shape: tuple[int, ...]) -> None:
    """Refuse an input_shape that the model itself cannot take: it is why there is no graph."""
    with evaluated(model):
        try:
            call(model, torch.zeros(2, *shape).to(like(model)))
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise SettingsError(
                f"the model cannot take inputs of input_shape {shape}: {error}. Give the shape of one input, without "
                "the batch axis."
            ) from error


def _from_source(name: str) -> nn.Module:
    made = made_by(name)
    if not isinstance(made, nn.Module):
        raise CheckpointError(f"{name} must return a torch.nn.Module, got {type(made).__name__}.")
    return made


def _state(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the module's own state, without those that only the graph needs."""
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(OWN)}


def _format(file: Path) -> FileFormat | None:
    """The format of the file if it is none of ours."""
    suffix = file.suffix.lower()
    if suffix in ADDED_BY:
        import_module(ADDED_BY[suffix])
    return FORMATS.get(suffix)


def _find(path: str | os.PathLike[str]) -> Path:
    """The file of that name, or the checkpoint of a network of the zoo."""
    name = os.fspath(path)
    if name.startswith(PREFIX) and Path(name).suffix != ".safetensors":
        return zoo_checkpoint(name)
    return tensor_file.existing(Path(name))


def _versions() -> dict[str, str]:
    return {"lipgraft": __version__, "torch": str(torch.__version__), "python": platform.python_version()}


def _grafted_names(state: Mapping[str, Tensor]) -> list[str]:
    """The qualified names of the grafted activations: they alone have a boolean mask, a gamma and an omega."""
    masks = [key.removesuffix(".mask") for key, t in state.items() if key.endswith(".mask") and t.dtype == torch.bool]
    return sorted(name for name in masks if f"{name}.gamma" in state and f"{name}.omega" in state)


def _parse_metadata(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    if KEY not in metadata:
        raise CheckpointError(
            f"{path} is a safetensors file that lipgraft did not write; load it into your own module with "
            "lipgraft.models.load(path, into=module)."
        )
    try:
        about = json.loads(metadata[KEY])
        parsed = {key: about[key] for key in ("format_version", "spec", "grafted", "extra", "versions")}
        parsed |= {key: about.get(key) for key in ("graph", "why_no_graph")}  # which older files do not have
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} has damaged metadata ({error}); restore it from a copy.") from None
    if parsed["format_version"] != FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has format version {parsed['format_version']}, this lipgraft reads {FORMAT_VERSION}; "
            f"use the lipgraft that wrote it ({parsed['versions'].get('lipgraft')})."
        )
    return parsed


def _build_for(path: Path, stored: tensor_file.TensorFile) -> nn.Module:
    """A fresh network of the checkpoint's architecture, grafted where the checkpoint is."""
    parsed = _parse_metadata(path, stored.metadata)
    if parsed["spec"] is None:
        return _from_graph(path, parsed, stored.tensors)
    try:
        spec = build_settings(ModelSpec, parsed["spec"], where=str(path))
        if spec.name not in NETWORKS:
            raise CheckpointError(f"{path}: {unknown_name('architecture', spec.name, list(NETWORKS))}")
        # With a seed, although the weights are replaced: without one the global random numbers would be drawn from.
        model: Classifier = build(spec.name, spec.dataset, activation=spec.activation, batchnorm=spec.batchnorm, seed=0)
    except CheckpointError:
        raise
    except LipgraftError as error:
        raise CheckpointError(f"{path} does not describe a network of this lipgraft: {error}") from None
    if model.spec != spec:
        raise CheckpointError(
            f"{path} is a {spec.name} for {spec.input_shape} inputs and {spec.classes} classes, but {spec.dataset} has "
            f"{model.spec.input_shape} and {model.spec.classes}; restore it from a copy."
        )
    whole = _with_grafts(path, model.to(_float_dtype(stored.tensors)), stored)
    _fill(path, whole, stored.tensors)
    return whole


def _from_graph(path: Path, parsed: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
    """A module of somebody's own, from its graph."""
    if parsed["graph"] is None:
        why = f" ({parsed['why_no_graph']})" if parsed["why_no_graph"] else ""
        raise CheckpointError(
            f"{path} holds a module without its graph{why}; load it with lipgraft.load(path, into=module), and save it "
            "again with input_shape=... to use it without its source."
        )
    if _grafted_names(tensors) != parsed["grafted"]:
        raise CheckpointError(f"{path} does not hold the masks that its metadata names; restore it from a copy.")
    try:
        return build_graph(parsed["graph"], tensors)
    except CheckpointError as error:
        raise CheckpointError(f"{path} is damaged: {error}; restore it from a copy.") from None


def _with_grafts(path: Path, model: nn.Module, stored: tensor_file.TensorFile) -> nn.Module:
    """The model itself, or a copy grafted as the file is; the slopes are filled in later with the other tensors."""
    names = _grafted_names(stored.tensors)
    if KEY in stored.metadata and names != _parse_metadata(path, stored.metadata)["grafted"]:
        raise CheckpointError(f"{path} does not hold the masks that its metadata names; restore it from a copy.")
    present = model.state_dict()
    if all(f"{name}.mask" in present for name in names):
        return model
    try:
        grafted = apply(model, {name: stored.tensors[f"{name}.mask"] for name in names})
    except LipgraftError as error:
        raise CheckpointError(f"{path} has grafts that do not fit the network: {error}") from None
    return grafted.to(_float_dtype(stored.tensors))


def _float_dtype(tensors: Mapping[str, Tensor]) -> torch.dtype:
    """The dtype of the file's floating-point tensors; the default one when they differ, which `_fill` then reports."""
    dtypes = {t.dtype for t in tensors.values() if t.is_floating_point()}
    return dtypes.pop() if len(dtypes) == 1 else torch.get_default_dtype()


def _fill(path: Path, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy every tensor to its place; names, shapes and dtypes must agree exactly."""
    expected = model.state_dict()
    missing, foreign = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    what = getattr(getattr(model, "spec", None), "name", type(model).__name__)
    if missing or foreign:
        lacks = [f"it lacks {missing[0]!r}"] if missing else []
        brings = [f"it brings {foreign[0]!r}"] if foreign else []
        raise CheckpointError(f"{path} does not fit {what}: {' and '.join(lacks + brings)}; it is of another network.")
    for name, tensor in expected.items():
        found = tensors[name]
        if found.shape != tensor.shape or found.dtype != tensor.dtype:
            raise CheckpointError(
                f"{path} does not fit {what}: {name} is {found.dtype} {tuple(found.shape)} where {tensor.dtype} "
                f"{tuple(tensor.shape)} is expected."
            )
    model.load_state_dict(dict(tensors), strict=True)
