"""Only valid ONNX files are read, and checkpoints whose parts fit; others are refused in a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from forged import checked, gemm, model, plainest
from lipgraft import models
from lipgraft.checker import Rejected, read_network
from lipgraft.checker.checkpoint import read_checkpoint

make = helper.make_node
DENSE = gemm([[1.0], [0.0]], [1.0, 0.0])


def window(kind: str = "Conv", bias: int = 0, **attributes: Any) -> bytes:
    """A convolution of a 4 x 4 image."""
    parts = {"w": np.ones((1, 1, 2, 2), np.float32)} | ({"b": np.ones(1, np.float32)} if bias else {})
    return model(
        make(kind, ["x", *parts], ["c"], **attributes), make("Flatten", ["c"], ["y"]), shape=(1, 4, 4), **parts
    )


def changed(change: Callable[[onnx.ModelProto], object], data: bytes = DENSE) -> bytes:
    network = onnx.load_model_from_string(data)
    change(network)
    out: bytes = network.SerializeToString()
    return out


def batch(network: onnx.ModelProto, size: int) -> None:
    network.graph.input[0].type.tensor_type.shape.dim[0].dim_value = size


TRANSPOSED = {"output_padding": [2, 2], "strides": [2, 2], "dilations": [1, 2]}
REFUSED = {
    "attribute twice": changed(lambda m: m.graph.node[0].attribute.append(helper.make_attribute("transB", 0))),
    "alpha of LeakyRelu is no FLOAT": model(make("LeakyRelu", ["x"], ["y"], alpha="0.3")),
    "strides of Conv is no INTS": window(strides=[1.0, 1.0]),
    "pads of Conv is no INTS": window(pads=[0.0] * 4),
    "dilations of Conv is no INTS": window(dilations=[1.0, 1.0]),
    "group of Conv is no INT": window(group=1.0),
    "axis of negative length": changed(lambda m: m.graph.initializer[0].dims.__setitem__(0, -1)),
    "one input": changed(lambda m: m.graph.ClearField("input")),
    "must name its opset": changed(lambda m: m.ClearField("opset_import")),
    "opset, 7 or newer": model(make("Dropout", ["x"], ["y"]), opset=6),
    "batch axis must be open, or 1": changed(lambda m: batch(m, 2)),
    "output_padding below its stride or dilation": window("ConvTranspose", **TRANSPOSED),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_a_network_that_is_no_valid_onnx_file_is_refused(sentence: str) -> None:
    with pytest.raises(Rejected, match=sentence):
        read_network(REFUSED[sentence])


FAR = {"output_padding": [2**40 - 1] * 2, "strides": [2**40] * 2}
TOO_LARGE = {
    "padded output": model(make("Pad", ["x", "p"], ["y"]), p=np.array([0, 0, 0, 2**31])),
    "padded inside": model(make("Pad", ["x", "p"], ["r"]), make("Relu", ["r"], ["y"]), p=np.array([0, 0, 0, 2**62])),
    "padded image": window(pads=[2**40] * 4),
    "bias of many places": window(pads=[2**62] * 4, bias=1),
    "padded image that is passed over": window(pads=[2**62] * 4, strides=[2**62] * 2),
    "image behind a grid": window("ConvTranspose", **FAR),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_an_operator_that_no_memory_holds_is_refused(name: str) -> None:
    with pytest.raises(Rejected, match="too large for the checker"):
        read_network(TOO_LARGE[name])


@pytest.mark.parametrize("opset", [7, 11, 13, 17])
def test_dropout_is_the_identity_where_onnx_says_so(opset: int, tmp_path: Path) -> None:
    nodes = make("Dropout", ["x"], ["d"]), make("Gemm", ["d", "w", "b"], ["y"], transB=1)
    parts = {"w": np.array([[1.0], [0.0]], np.float32), "b": np.array([1.0, 0.0], np.float32)}
    data = model(*nodes, shape=(1,), opset=opset, **parts)
    assert checked(tmp_path, data, plainest(data, [0.0], [1.0])).accepted


@pytest.mark.parametrize("size", [0, 1])
def test_a_batch_axis_may_be_open_or_of_one_image(size: int) -> None:
    assert len(read_network(changed(lambda m: batch(m, size))).nodes) == 2


def test_windows_with_any_valid_padding_and_stride_are_read() -> None:
    assert read_network(window(pads=[1, 0, 2, 1], strides=[2, 3], bias=1)).nodes[-1].size == 3 * 2
    valid = window("ConvTranspose", output_padding=[1, 1], strides=[2, 1], dilations=[1, 2])
    assert read_network(valid).nodes[-1].size == 9 * 7


def edited(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """A checkpoint with another header."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


@pytest.mark.parametrize("name", ["conv1.bias", "fc1.bias", "fc2.bias"])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_checkpoint_whose_bias_has_another_length_is_refused(name: str, count: int, tmp_path: Path) -> None:
    def shorten(header: dict[str, Any]) -> None:
        first = header[name]["data_offsets"][0]
        header[name] |= {"shape": [count], "data_offsets": [first, first + 4 * count]}

    models.save(models.build("digits-cnn", "digits", seed=0), tmp_path / "net.safetensors")
    with pytest.raises(Rejected, match="do not fit"):
        read_checkpoint(edited((tmp_path / "net.safetensors").read_bytes(), shorten))


@pytest.mark.parametrize("shape", [[1, 2**40, 2**40], [1, -8, -8], [1, 8.0, 8]])
def test_a_checkpoint_whose_input_has_no_possible_shape_is_refused(shape: list[Any], tmp_path: Path) -> None:
    def respecify(header: dict[str, Any]) -> None:
        facts = json.loads(header["__metadata__"]["lipgraft"])
        facts["spec"]["input_shape"] = shape
        header["__metadata__"]["lipgraft"] = json.dumps(facts)

    models.save(models.build("digits-cnn", "digits", seed=0), tmp_path / "net.safetensors")
    with pytest.raises(Rejected, match="input shape"):
        read_checkpoint(edited((tmp_path / "net.safetensors").read_bytes(), respecify))
