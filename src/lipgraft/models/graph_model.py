"""A network as its graph alone: what a checkpoint keeps of a module whose source may be gone when it is read."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lipgraft.activations import KINDS, Curve
from lipgraft.errors import CheckpointError, LipgraftError, UnsupportedOperationError
from lipgraft.grafting.activation import GraftedActivation
from lipgraft.network import Builder, Graft, Node, Ref, like, lowers_module, nodes, subject, trace
from lipgraft.network.graph import Shape


def _is_node(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Node)


OWN = "graph:"
"""In front of the names of tensors that a graph needs and the module's state does not have."""
_KINDS: dict[str, type[Node]] = {kind.__name__: kind for kind in vars(nodes).values() if _is_node(kind)}
_CURVES = {kind.name: kind for kind in KINDS}
# What Python and PyTorch raise where the parts of a description do not fit together.
_MISFITS = (LipgraftError, KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError, AssertionError)


class Layer(nn.Module):
    """One node of a graph as a module. Tensors that are trained are parameters, the others buffers."""

    def __init__(
        self,
        kind: type[Node],
        shape: Shape,
        settings: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        trained: Collection[str] = (),
    ) -> None:
        super().__init__()
        self.kind, self.output_shape, self.settings, self.names = kind, shape, dict(settings), tuple(tensors)
        for name, tensor in tensors.items():
            if name in trained:
                self.register_parameter(name, nn.Parameter(tensor))
            else:
                self.register_buffer(name, tensor)

    def fields(self) -> dict[str, Any]:
        """Everything that the node is made of."""
        return {"shape": self.output_shape, **self.settings, **{name: getattr(self, name) for name in self.names}}

    def forward(self, *inputs: Tensor) -> Tensor:
        """The node's value from those of its inputs."""
        return self.kind("", (), **self.fields()).forward(*inputs)

    def extra_repr(self) -> str:
        return f"{self.kind.__name__}, shape={self.output_shape}, {self.settings}"


@lowers_module(Layer)
def lower_layer(build: Builder, layer: Layer, *inputs: Ref) -> Ref:
    return build.add(layer.kind, *inputs, **layer.fields())


@dataclass(frozen=True)
class Step:
    """Call the layer of this name with the results at these positions; 0 is the network's input."""

    layer: str
    inputs: tuple[int, ...]


class GraphModel(nn.Module):
    """x: (B, *input_shape) -> (B, outputs). It can be trained, grafted, verified and exported like any other module.

    Layers have the names that they had in the module it was made of. BatchNorm is folded into the layer before it, and
    a layer that was called several times has become several layers.
    """

    def __init__(self, input_shape: Shape, layers: Sequence[tuple[str, nn.Module, tuple[int, ...]]]) -> None:
        super().__init__()
        self.input_shape = tuple(input_shape)
        self.steps = tuple(Step(_place(self, name, layer), inputs) for name, layer, inputs in layers)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, *input_shape) -> (B, outputs)."""
        values = [x]
        for step in self.steps:
            values.append(self.get_submodule(step.layer)(*(values[i] for i in step.inputs)))
        return values[-1]

    def extra_repr(self) -> str:
        """The wiring: the same layers, put together otherwise, are another network."""
        calls = (f"{step.layer}({', '.join(map(str, step.inputs))})" for step in self.steps)
        return f"input_shape={self.input_shape}, steps=[{', '.join(calls)}]"


def graph_model(model: nn.Module, input_shape: Shape) -> GraphModel:
    """The module as its graph: a copy that computes the same in evaluation mode."""
    description, own = describe(model, input_shape)
    tensors = {name: tensor.detach() for name, tensor in {**model.state_dict(), **own}.items()}
    return build_graph(description, tensors).train(model.training)


def describe(model: nn.Module, input_shape: Shape) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The model's graph as JSON can hold it, and the tensors it needs besides those of the model's state, by name."""
    network = trace(subject(model), input_shape, expand=False)
    if network.output != len(network.nodes) - 1 or len(network.nodes) < 2:
        raise UnsupportedOperationError("the network returns its input, or a result that others are computed from.")
    keys = {_mark(tensor): name for name, tensor in model.state_dict().items()}
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    trained = _depends_on_parameters(model, input_shape, [_tensors(node) for node in network.nodes], keys)
    rows, own = [], {}
    for position, node in enumerate(network.nodes):
        names = {}
        for part, tensor in _tensors(node).items():
            key = keys.get(_mark(tensor))
            if key is None:
                key = f"{OWN}{position}.{part}"
                own[key] = tensor
                if (position, part) in trained:
                    parameters.add(key)
            names[part] = key
        rows.append(
            {
                "kind": type(node).__name__,
                "name": _name(node, names),
                "inputs": list(node.inputs),
                "shape": list(node.shape),
                "settings": _settings(node),
                "tensors": names,
                "trained": [part for part, key in names.items() if key in parameters],
            }
        )
    return {"nodes": rows}, own


def build_graph(description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> GraphModel:
    """The module that `describe` described. A description that does not hang together is a CheckpointError."""
    try:
        first, *rest = description["nodes"]
        layers = [(str(row["name"]), _layer(row, tensors), tuple(map(int, row["inputs"]))) for row in rest]
        if any(not 0 <= i <= position for position, (_, _, inputs) in enumerate(layers) for i in inputs):
            raise ValueError("a layer reads a later one")
        model = GraphModel(tuple(map(int, first["shape"])), layers).eval()
        with torch.no_grad():
            found = model(torch.zeros(2, *model.input_shape).to(like(model))).shape
        if list(found) != [2, *rest[-1]["shape"]]:
            raise ValueError(f"its output has shape {tuple(found)[1:]}")
    except _MISFITS as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise CheckpointError(f"the graph in the file is inconsistent ({reason})") from None
    return model


def _layer(row: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
    # Copies: two layers that were one share a tensor of the file, and are trained apart from now on.
    kind, parts = _KINDS[row["kind"]], {part: tensors[key].clone() for part, key in row["tensors"].items()}
    settings = {name: _tuples(value) for name, value in row["settings"].items()}
    if kind is nodes.Activation:
        curve: Curve = _CURVES[settings["curve"]](**row["settings"]["parameters"])
        base = curve.module()
        return GraftedActivation(base, parts["mask"], parts["gamma"], parts["omega"]) if parts else base
    all_trained = bool(parts) and set(row["trained"]) == parts.keys()
    if all_trained and kind is nodes.Linear:
        outputs, inputs = parts["weight"].shape
        return _filled(nn.Linear(inputs, outputs, bias="bias" in parts, device="meta"), parts)
    if all_trained and kind is nodes.Conv:
        outputs, inputs, height, width = parts["weight"].shape
        channels = inputs * settings["groups"]
        layer = nn.Conv2d(channels, outputs, (height, width), **settings, bias="bias" in parts, device="meta")
        return _filled(layer, parts)
    missing = {f.name: None for f in dataclasses.fields(kind) if f.name == "bias" and f.name not in parts}
    return Layer(kind, tuple(map(int, row["shape"])), {**settings, **missing}, parts, row["trained"])


def _filled(layer: nn.Module, parts: Mapping[str, Tensor]) -> nn.Module:
    for name, tensor in parts.items():
        if getattr(layer, name).shape != tensor.shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}")
        setattr(layer, name, nn.Parameter(tensor))
    return layer


def _place(model: nn.Module, path: str, layer: nn.Module) -> str:
    """Hang the layer into the model under this path, or the next that is free; returns the path."""
    *above, last = path.split(".")
    parent = model
    for name in above:
        if name not in parent._modules:
            if hasattr(parent, name):
                return _place(model, path.replace(".", "_"), layer)
            parent.add_module(name, nn.Module())
        parent = parent.get_submodule(name)
    name, number = last, 1
    while hasattr(parent, name):
        name, number = f"{last}_{number}", number + 1
    parent.add_module(name, layer)
    return ".".join((*above, name))


def _name(node: Node, names: Mapping[str, str]) -> str:
    """The path of the module that holds all of the node's tensors under their own names, else the node's name."""
    paths = {key.removesuffix(f".{part}") if key.endswith(f".{part}") else "" for part, key in names.items()}
    path = paths.pop() if len(paths) == 1 else ""
    return path if path and not path.startswith(OWN) else node.name


def _tensors(node: Node) -> dict[str, Tensor]:
    graft = getattr(node, "graft", None)
    return {name: value for name, value in vars(graft or node).items() if isinstance(value, Tensor)}


def _settings(node: Node) -> dict[str, Any]:
    """The fields of a node that are neither tensors nor what every node has."""
    if isinstance(node, nodes.Activation):
        return {"curve": node.curve.name, "parameters": dataclasses.asdict(node.curve)}
    common = {field.name for field in dataclasses.fields(Node)}
    values = {field.name: getattr(node, field.name) for field in dataclasses.fields(node) if field.name not in common}
    return {
        name: value for name, value in values.items() if value is not None and not isinstance(value, Tensor | Graft)
    }


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _mark(tensor: Tensor) -> tuple[Any, ...]:
    """Alike for two tensors that are the same numbers in memory, laid out in the same way."""
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _depends_on_parameters(
    model: nn.Module, shape: Shape, parts: Sequence[Mapping[str, Tensor]], keys: Mapping[tuple[Any, ...], str]
) -> set[tuple[int, str]]:
    """Which tensors of the graph that are not the state's own change when the parameters do.

    A weight with BatchNorm folded into it does, and goes on being trained; the mean of a pooling window does not.
    """
    derived = [(i, name) for i, tensors in enumerate(parts) for name, t in tensors.items() if _mark(t) not in keys]
    if not derived:
        return set()
    other = copy.deepcopy(subject(model))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.25).add_(0.125)
    changed = [_tensors(node) for node in trace(other, shape, check=False, expand=False).nodes]
    return {(i, name) for i, name in derived if not torch.equal(parts[i][name], changed[i][name])}
