"""Reading a network from a checkpoint: the numbers from its safetensors file, the architecture from the table below."""

from __future__ import annotations

import json
import math
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
    Rejected,
    Sum,
    Weighted,
    need,
)

# In order: "conv NAME stride padding", "dense NAME", "act NAME", "pad left right top bottom", "flat", and
# "block NAME stride", which is act2(conv2(act1(conv1(x))) + shortcut(x)).
CNN7 = (
    "conv conv1 1 1; act act1; conv conv2 1 1; act act2; conv conv3 2 1; act act3; conv conv4 1 1; act act4; "
    "conv conv5 1 1; act act5; flat; dense fc1; act act6; dense fc2"
)
ARCHITECTURES = {
    "digits-cnn": "conv conv1 1 1; act act1; conv conv2 2 1; act act2; flat; dense fc1; act act3; dense fc2",
    "cnn-b": "pad 1 2 1 2; conv conv1 2 0; act act1; conv conv2 2 1; act act2; flat; dense fc1; act act3; dense fc2",
    "conv-big": "conv conv1 1 1; act act1; conv conv2 2 1; act act2; conv conv3 1 1; act act3; conv conv4 2 1; "
    "act act4; flat; dense fc1; act act5; dense fc2; act act6; dense fc3",
    "conv-huge": CNN7,
    "cnn7": CNN7,
    "cnn5": "conv conv1 1 1; act act1; conv conv2 2 1; act act2; conv conv3 2 1; act act3; flat; dense fc1; act act4; "
    "dense fc2",
    "resnet4b": "conv conv1 2 1; act act1; block block1 2; block block2 1; block block3 2; block block4 1; flat; "
    "dense fc1; act act2; dense fc2",
}
TYPES = {"F32": "<f4", "F64": "<f8", "BOOL": "?"}


def read_checkpoint(data: bytes) -> Network:
    """The network in the bytes of a lipgraft checkpoint of ReLUs and lines, without BatchNorm."""
    tensors, spec = _tensors(data)
    name = str(spec.get("name"))
    need(name in ARCHITECTURES, f"the architecture {name!r} is not known to the checker; export it to ONNX.")
    need(spec.get("activation") == "relu", "the checkpoint's activation is not ReLU; export it to ONNX.")
    need(not spec.get("batchnorm"), "the checkpoint has BatchNorm, which is not folded; export it to ONNX.")
    try:
        return _Builder(tensors, tuple(spec["input_shape"])).network(ARCHITECTURES[name])
    except (KeyError, ValueError, IndexError, TypeError) as error:
        raise Rejected(f"the checkpoint does not fit its architecture {name} ({error}).") from None


def _tensors(data: bytes) -> tuple[dict[str, Array], dict[str, Any]]:
    """A safetensors file: the length of a JSON header, the header, the numbers."""
    try:
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        spec = json.loads(header.pop("__metadata__")["lipgraft"])["spec"]
        body = data[8 + size :]
        found: dict[str, Array] = {}
        for name, entry in header.items():
            first, last = entry["data_offsets"]
            array: Array = np.frombuffer(body[first:last], np.dtype(TYPES[entry["dtype"]])).reshape(entry["shape"])
            found[name] = array if array.dtype == bool else array.astype(np.float64)
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise Rejected(f"the network is no checkpoint of lipgraft ({type(error).__name__}: {error}).") from None
    need(isinstance(spec, dict), "the checkpoint says nothing of its architecture.")
    need(all(np.isfinite(array).all() for array in found.values()), "the checkpoint has numbers that are not finite.")
    return found, spec


class _Builder:
    """Appends nodes; `at` is the number of the last one."""

    def __init__(self, tensors: dict[str, Array], shape: tuple[int, ...]) -> None:
        fits = all(type(n) is int and n > 0 for n in shape) and math.prod(shape) <= LARGEST_NODE
        need(fits, "the checkpoint's input shape does not fit any image.")
        self.tensors, self.nodes = tensors, [Node((), shape)]
        mean, std = (np.broadcast_to(tensors[f"normalise.{part}"], shape).reshape(-1) for part in ("mean", "std"))
        self.add(Weighted((0,), shape, None, 1.0 / std))
        self.add(Node((1,), shape, -mean / std))

    def network(self, plan: str) -> Network:
        for step in plan.split("; "):
            kind, *words = step.split()
            getattr(self, kind)(*words)
        need(len(self.nodes[-1].shape) == 1, "the checkpoint's output is no vector.")
        return Network(tuple(self.nodes), self.at, single=False)  # float32 divides by std, it does not multiply

    @property
    def at(self) -> int:
        return len(self.nodes) - 1

    def add(self, node: Node) -> int:
        self.nodes.append(node)
        return self.at

    def numbers(self, name: str) -> tuple[Array, Array]:
        """A layer's weight, (n, ...), and bias, (n,)."""
        weight, bias = self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"]
        need(weight.shape[:1] == bias.shape, f"the weight and the bias of {name} do not fit each other.")
        return weight, bias

    def conv(self, name: str, stride: str, padding: str, source: int | None = None) -> int:
        source = self.at if source is None else source
        image, (weight, bias) = self.nodes[source].shape, self.numbers(name)
        s, p, (height, width) = int(stride), int(padding), weight.shape[2:]
        rows, columns = (image[1] + 2 * p - height) // s + 1, (image[2] + 2 * p - width) // s + 1
        need(weight.shape[1] == image[0] and min(rows, columns) > 0, f"{name} does not fit its input.")
        grid = (len(weight), rows, columns)
        spread = np.repeat(bias, rows * columns)
        return self.add(Conv((source,), grid, spread, weight[None], image, grid, (s, s), (1, 1), (p, p, p, p)))

    def dense(self, name: str) -> int:
        weight, bias = self.numbers(name)
        need(self.nodes[self.at].shape == weight.shape[1:], f"{name} does not fit its input.")
        return self.add(Dense((self.at,), bias.shape, bias, weight))

    def pad(self, left: str, right: str, top: str, bottom: str) -> int:
        image = self.nodes[self.at].shape
        shape = (image[0], image[1] + int(top) + int(bottom), image[2] + int(left) + int(right))
        return self.add(Pad((self.at,), shape, image=image, before=(0, int(top), int(left))))

    def flat(self) -> int:
        return self.add(Node((self.at,), (math.prod(self.nodes[self.at].shape),)))

    def act(self, name: str) -> int:
        """A ReLU, some of whose neurons may be lines: relu(n z + (n - 1)) + (a z + b), n = 0 for a line."""
        z, shape = self.at, self.nodes[self.at].shape
        if f"{name}.mask" not in self.tensors:
            return self.add(Activation((z,), shape))
        mask, gamma, omega = (self.tensors[f"{name}.{part}"].reshape(-1) for part in ("mask", "gamma", "omega"))
        need(mask.dtype == bool and mask.shape == (math.prod(shape),), f"the mask of {name} does not fit.")
        n = np.where(mask, 0.0, 1.0)
        kept = self.add(Node((self.add(Weighted((z,), shape, None, n)),), shape, n - 1.0))
        bent = self.add(Activation((kept,), shape))
        sloped = self.add(Weighted((z,), shape, None, np.where(mask, gamma, 0.0)))
        line = self.add(Node((sloped,), shape, np.where(mask, omega, 0.0)))
        return self.add(Sum((bent, line), shape))

    def block(self, name: str, stride: str) -> int:
        start = self.at
        self.conv(f"{name}.conv1", stride, "1")
        self.act(f"{name}.act1")
        inner = self.conv(f"{name}.conv2", "1", "1")
        changes = f"{name}.shortcut.weight" in self.tensors
        short = self.conv(f"{name}.shortcut", stride, "0", start) if changes else start
        self.add(Sum((inner, short), self.nodes[inner].shape))
        return self.act(f"{name}.act2")
