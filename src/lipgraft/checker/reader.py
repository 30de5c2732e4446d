"""Reading a network from the bytes of an ONNX file. Whatever is not understood is refused, in a sentence."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from lipgraft.checker.network import (
    LARGEST_NODE,
    Activation,
    Array,
    Conv,
    Dense,
    Network,
    Node,
    Pad,
    Pick,
    Rejected,
    Shape,
    Sum,
    Weighted,
    need,
)

OLDEST = 7  # the first opset in which all operators below, Dropout among them, mean what they mean today


def read_network(data: bytes) -> Network:
    """The network in the bytes of an ONNX file."""
    try:
        import onnx
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    except ImportError:
        raise Rejected("reading ONNX needs the onnx package: pip install onnx.") from None
    try:
        model = onnx.load_model_from_string(data)
    except (DecodeError, ValueError) as error:
        raise Rejected(f"the network is no readable ONNX file ({error}).") from None
    need(all(part.domain in ("", "ai.onnx") for part in model.opset_import), "the network uses foreign operators.")
    opsets = [part.version for part in model.opset_import]
    need(min(opsets, default=0) >= OLDEST, f"the network must name its opset, {OLDEST} or newer.")
    need(not model.functions and not model.graph.sparse_initializer, "the network has functions or sparse weights.")
    with np.errstate(all="ignore"):
        return _Reader(model.graph, onnx).network()


class _Reader:
    """Goes through a graph once; each operator below turns one ONNX node into one Node or constant."""

    def __init__(self, graph: Any, onnx: Any) -> None:
        self.onnx, self.graph, self.single = onnx, graph, True
        self.constants: dict[str, Array] = {}
        self.values: dict[str, int] = {}
        self.nodes: list[Node] = []
        for tensor in graph.initializer:
            self._keep(tensor.name, tensor)

    def network(self) -> Network:
        inputs = [value for value in self.graph.input if value.name not in self.constants]
        need(len(inputs) == 1 and len(self.graph.output) == 1, "the network must have one input and one output.")
        dims = inputs[0].type.tensor_type.shape.dim
        shape = tuple(dim.dim_value for dim in dims)[1:]
        kinds = self.onnx.TensorProto
        need(inputs[0].type.tensor_type.elem_type in (kinds.FLOAT, kinds.DOUBLE), "the network's input is no float.")
        need(len(dims) > 1 and all(0 < n < 2**31 for n in shape), "the network's input needs a batch axis and a shape.")
        need(dims[0].dim_value in (0, 1), "the network's batch axis must be open, or 1.")
        self._put(inputs[0].name, Node((), shape))
        for node in self.graph.node:
            name, kind = list(node.output), node.op_type
            need(
                node.domain in ("", "ai.onnx") and kind in OPERATORS,
                f"the operator {kind} is not known to the checker.",
            )
            need(len(name) == 1 and name[0] != "", f"{kind} must have one result.")
            read, inputs_read, known = OPERATORS[kind]
            need(len(node.input) in inputs_read, f"{kind} has {len(node.input)} inputs.")
            try:
                given = self._attributes(node, known)
                made = read(self, list(node.input), {**known, **given})
            except (ValueError, TypeError, IndexError, KeyError, OverflowError, MemoryError) as error:
                raise Rejected(f"the operator {kind} ({name[0]}) has inputs that do not fit: {error}.") from None
            if made is not None:
                self._put(name[0], made)
            else:
                self._keep(name[0], given["value"])
        result = self.graph.output[0].name
        need(result in self.values, "the network's output is not computed from its input.")
        need(len(self.nodes[self.values[result]].shape) == 1, "the network's output must be a vector.")
        return Network(tuple(self.nodes), self.values[result], self.single)

    def _attributes(self, node: Any, known: dict[str, Any]) -> dict[str, Any]:
        """Those that an operator is given, each of them once and of its type."""
        given, kind = {a.name: a for a in node.attribute}, node.op_type
        need(len(given) == len(node.attribute), f"{kind} has an attribute twice.")
        need(set(given) <= set(known), f"{kind} has an unknown attribute among {sorted(given)}.")
        for name, attribute in given.items():
            typed = attribute.type == getattr(self.onnx.AttributeProto, ATTRIBUTES[name])
            need(typed, f"the attribute {name} of {kind} is no {ATTRIBUTES[name]}.")
        return {name: self.onnx.helper.get_attribute_value(attribute) for name, attribute in given.items()}

    def _put(self, name: str, node: Node) -> None:
        need(name not in self.values and name not in self.constants, f"the name {name} is given twice.")
        weights = [part for part in (node.bias, getattr(node, "weight", None)) if part is not None]
        need(all(np.isfinite(part).all() for part in weights), f"the weights of {name} are not finite.")
        need(min(node.shape) > 0, f"the result of {name} is empty.")
        need(node.work <= LARGEST_NODE, f"{name} is too large for the checker.")
        self.values[name] = len(self.nodes)
        self.nodes.append(node)

    def _keep(self, name: str, tensor: Any) -> None:
        need(name not in self.values and name not in self.constants, f"the name {name} is given twice.")
        kinds = self.onnx.TensorProto
        need(tensor.data_type in (kinds.FLOAT, kinds.DOUBLE, kinds.INT64), f"{name} is neither float nor double.")
        need(tensor.data_location == kinds.DEFAULT, f"{name} is kept in another file.")
        need(min(tensor.dims, default=0) >= 0, f"{name} has an axis of negative length.")
        try:
            array = self.onnx.numpy_helper.to_array(tensor)
        except (ValueError, TypeError) as error:
            raise Rejected(f"the constant {name} cannot be read ({error}).") from None
        self.single &= bool((array == array.astype(np.float32)).all())
        self.constants[name] = array if tensor.data_type == kinds.INT64 else array.astype(np.float64)

    def value(self, name: str) -> tuple[int, Shape]:
        need(name in self.values, f"{name or 'an input'} is not computed from the network's input.")
        return self.values[name], self.nodes[self.values[name]].shape

    def constant(self, name: str, kind: str = "f") -> Array:
        need(name in self.constants, f"{name or 'an input'} is no constant.")
        need(self.constants[name].dtype.kind == kind, f"{name} is a constant of the wrong kind.")
        return self.constants[name]

    def whole(self, name: str) -> list[int]:
        array = self.constant(name, "i")
        need(array.ndim == 1, f"{name} is no list of numbers.")
        return [int(n) for n in array]

    def spread(self, name: str, shape: Shape) -> Array:
        """A constant for every element: (n,)."""
        array = self.constant(name)
        fits = array.ndim <= len(shape) or (array.ndim == len(shape) + 1 and array.shape[0] == 1)
        need(fits, f"{name} has more axes than what it is added to.")
        return np.broadcast_to(array.reshape(array.shape[-len(shape) :]), shape).reshape(-1).copy()


def _constant(reader: _Reader, names: list[str], known: dict[str, Any]) -> None:
    need(isinstance(known["value"], reader.onnx.TensorProto), "a Constant must hold a tensor.")


def _same(reader: _Reader, names: list[str], known: dict[str, Any]) -> Node:
    source, shape = reader.value(names[0])
    return Node((source,), shape)


def _flatten(reader: _Reader, names: list[str], known: dict[str, Any]) -> Node:
    source, shape = reader.value(names[0])
    need(known["axis"] == 1, "Flatten must keep the batch axis.")
    return Node((source,), (math.prod(shape),))


def _reshape(reader: _Reader, names: list[str], known: dict[str, Any]) -> Node:
    source, shape = reader.value(names[0])
    batch, *wanted = reader.whole(names[1])
    if wanted.count(-1) == 1 and batch in (0, 1):
        at, rest = wanted.index(-1), -math.prod(wanted)
        need(rest > 0, "Reshape has an empty axis.")
        wanted[at] = math.prod(shape) // rest
    need(known["allowzero"] == 0 and batch in (-1, 0, 1) and len(wanted) > 0, "Reshape must keep the batch axis.")
    need(min(wanted) > 0 and math.prod(wanted) == math.prod(shape), "Reshape changes the number of elements.")
    return Node((source,), tuple(wanted))


def _pad(reader: _Reader, names: list[str], known: dict[str, Any]) -> Node:
    source, shape = reader.value(names[0])
    pads = reader.whole(names[1])
    zero = len(names) < 3 or names[2] == "" or not reader.constant(names[2]).any()
    need(known["mode"] == b"constant" and zero, "Pad must pad with zeros.")
    first, last = pads[1 : 1 + len(shape)], pads[len(shape) + 2 :]
    need(len(pads) == 2 * len(shape) + 2 and min(pads) >= 0, "Pad must give a padding >= 0 for every axis.")
    need(pads[0] == pads[len(shape) + 1] == 0, "Pad must leave the batch axis alone.")
    outside = tuple(n + b + a for n, b, a in zip(shape, first, last, strict=True))
    return Pad((source,), outside, image=shape, before=tuple(first))


def _gather(reader: _Reader, names: list[str], known: dict[str, Any]) -> Node:
    source, shape = reader.value(names[0])
    index = np.array(reader.whole(names[1]))
    need(known["axis"] == 1 and len(shape) == 1 and index.size > 0, "Gather must pick numbers of a flat input.")
    need(index.min() >= 0 and index.max() < shape[0], "Gather picks a number that its input does not have.")
    return Pick((source,), index.shape, index=index, count=shape[0])


def _gemm(reader: _Reader, names: list[str], known: dict[str, Any]) -> Node:
    source, shape = reader.value(names[0])
    weight = reader.constant(names[1])
    need(
        known["alpha"] == known["beta"] == 1.0 and known["transA"] == 0, "Gemm must have alpha = beta = 1, transA = 0."
    )
    need(weight.ndim == 2 and len(shape) == 1, "a matrix product must be of vectors and a matrix.")
    weight = weight if known["transB"] else weight.T
    need(weight.shape[1] == shape[0], "a matrix product does not fit its input.")
    bias = reader.spread(names[2], weight.shape[:1]) if len(names) > 2 and names[2] else None
    return Dense((source,), weight.shape[:1], bias, np.ascontiguousarray(weight))


def _matmul(reader: _Reader, names: list[str], known: dict[str, Any]) -> Node:
    return _gemm(reader, names, GEMM)


def _conv(reader: _Reader, names: list[str], known: dict[str, Any]) -> Node:
    source, shape = reader.value(names[0])
    weight, groups, upside = reader.constant(names[1]), known["group"], "output_padding" in known
    need(
        weight.ndim == 4 and weight.size > 0 and len(shape) == 3 and groups >= 1,
        "a convolution must be of images, with a 4-d weight.",
    )
    kernel = list(weight.shape[2:])
    need(known["auto_pad"] == b"NOTSET" and known["kernel_shape"] in (None, kernel), "a convolution is not explicit.")
    strides, dilations = (tuple(known[name] or (1, 1)) for name in ("strides", "dilations"))
    pads = tuple(known["pads"] or (0, 0, 0, 0))
    more = tuple(known["output_padding"] or (0, 0)) if upside else (0, 0)
    need(len(strides) == len(dilations) == len(more) == 2 and len(pads) == 4, "a convolution is not 2-d.")
    need(min(strides + dilations) >= 1 and min(pads + more) >= 0, "a convolution has a stride or padding out of range.")
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    if upside:  # the input is the grid, the output the image; weight (grid channels, image channels / G, kh, kw)
        need(known["output_shape"] is None, "ConvTranspose must not give an output_shape.")
        beyond = [m >= max(steps) for m, *steps in zip(more, strides, dilations, strict=True)]
        need(not any(beyond), "ConvTranspose must have an output_padding below its stride or dilation.")
        outer, inner, grid = weight.shape[0] // groups, weight.shape[1], shape
        sides = [(shape[i + 1] - 1) * strides[i] + reach[i] - pads[i] - pads[i + 2] + more[i] for i in (0, 1)]
        image = result = (inner * groups, *sides)
        need(weight.shape[0] == shape[0] and outer * groups == shape[0], "ConvTranspose does not fit its input.")
    else:
        outer, inner, image = weight.shape[0] // groups, weight.shape[1], shape
        sides = [(shape[i + 1] + pads[i] + pads[i + 2] - reach[i]) // strides[i] + 1 for i in (0, 1)]
        grid = result = (outer * groups, *sides)
        need(inner * groups == shape[0] and outer * groups == weight.shape[0], "Conv does not fit its input.")
    need(min(image + grid) > 0, "a convolution is larger than its input.")
    padded = image[0] * (image[1] + pads[0] + pads[2]) * (image[2] + pads[1] + pads[3])
    need(max(padded, math.prod(result)) <= LARGEST_NODE, "a convolution is too large for the checker.")
    bias = None
    if len(names) > 2 and names[2]:
        bias = np.repeat(reader.spread(names[2], result[:1]), math.prod(result[1:]))
    weight = np.ascontiguousarray(weight.reshape(groups, outer, inner, *kernel))
    return Conv((source,), result, bias, weight, image, grid, strides, dilations, pads, upside)


def _add(reader: _Reader, names: list[str], known: dict[str, Any], sign: float = 1.0) -> Node:
    first, second = (name in reader.values for name in names)
    source, shape = reader.value(names[0] if first else names[1])
    if first and second:
        other, same = reader.value(names[1])
        need(shape == same, "the two sides of a sum differ in shape.")
        return Sum((source, other), shape, sign=sign)
    bias = reader.spread(names[1] if first else names[0], shape)
    if sign > 0 or first:
        return Node((source,), shape, bias if sign > 0 else -bias)
    return Weighted((source,), shape, bias, -np.ones(math.prod(shape)))


def _sub(reader: _Reader, names: list[str], known: dict[str, Any]) -> Node:
    return _add(reader, names, known, -1.0)


def _mul(reader: _Reader, names: list[str], known: dict[str, Any]) -> Node:
    first = names[0] in reader.values
    source, shape = reader.value(names[0] if first else names[1])
    return Weighted((source,), shape, None, reader.spread(names[1] if first else names[0], shape))


def _activation(reader: _Reader, names: list[str], known: dict[str, Any]) -> Node:
    source, shape = reader.value(names[0])
    slope = float(known.get("alpha", 0.0))
    need(0.0 <= slope < 1.0, "LeakyRelu must have 0 <= alpha < 1.")
    return Activation((source,), shape, slope=slope)


# the types that attributes must have, by ONNX's names
ATTRIBUTES = {
    **dict.fromkeys(("alpha", "beta", "ratio"), "FLOAT"),
    **dict.fromkeys(("allowzero", "axis", "group", "seed", "transA", "transB"), "INT"),
    **dict.fromkeys(("dilations", "kernel_shape", "output_padding", "output_shape", "pads", "strides"), "INTS"),
    **dict.fromkeys(("auto_pad", "mode"), "STRING"),
    "value": "TENSOR",
}

Read = Callable[[_Reader, list[str], dict[str, Any]], Node | None]
WINDOW = {"auto_pad": b"NOTSET", "kernel_shape": None, "strides": None, "dilations": None, "pads": None, "group": 1}
UPSIDE = {**WINDOW, "output_padding": None, "output_shape": None}
GEMM = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}

# name: the function that reads it, how many inputs it may have, its attributes and what they are when left out
OPERATORS: dict[str, tuple[Read, tuple[int, ...], dict[str, Any]]] = {
    "Constant": (_constant, (0,), {"value": None}),
    "Identity": (_same, (1,), {}),
    "Dropout": (_same, (1, 2), {"ratio": 0.5, "seed": 0}),
    "Flatten": (_flatten, (1,), {"axis": 1}),
    "Gather": (_gather, (2,), {"axis": 0}),
    "Reshape": (_reshape, (2,), {"allowzero": 0}),
    "Pad": (_pad, (2, 3), {"mode": b"constant"}),
    "Gemm": (_gemm, (2, 3), GEMM),
    "MatMul": (_matmul, (2,), {}),
    "Conv": (_conv, (2, 3), WINDOW),
    "ConvTranspose": (_conv, (2, 3), UPSIDE),
    "Add": (_add, (2,), {}),
    "Sub": (_sub, (2,), {}),
    "Mul": (_mul, (2,), {}),
    "Relu": (_activation, (1,), {}),
    "LeakyRelu": (_activation, (1,), {"alpha": float(np.float32(0.01))}),
}
