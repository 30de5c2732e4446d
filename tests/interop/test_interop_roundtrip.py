"""A grafted network that is exported and read back is the same network: outputs, bounds, verdicts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from interop_grafted import grafted
from lipgraft import Box, bound, data, grafting
from lipgraft.interop import export_onnx, load_onnx
from lipgraft.verification import AttackSettings, Limits, OptimiseSettings, VerifySettings, verify

# Bounds and a short attack alone, no branching: so the clock decides nothing.
SETTINGS = VerifySettings(
    limits=Limits(max_subproblems=0),
    attack=AttackSettings(steps=3, restarts=1),
    optimise=OptimiseSettings(refine_iterations=2, iterations=5),
)
EPS = torch.logspace(-3.9, -1, 20)  # from easily proved to easily attacked; no margin is closer to 0 than 1e-4


def case(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A network with 20 images, and the classes that it gives them.

    Large weights make many neurons unstable, and the bias lets the image decide the class, not the network.
    """
    model, x = grafted(name, "digits").eval(), data.images(data.load("digits").x_test[:20])
    with torch.no_grad():
        for parameter, tensor in model.named_parameters():
            if parameter.endswith("weight"):
                tensor.mul_(2.0)
        model.get_parameter("fc2.bias").sub_(model(x).mean(0))
        return model, x, model(x).argmax(1)


@pytest.mark.parametrize("name", ["cnn-b", "resnet4b"])
def test_a_grafted_network_comes_back_with_the_same_outputs_bounds_and_verdicts(name: str, tmp_path: Path) -> None:
    model, x, y = case(name)
    export_onnx(model, tmp_path / "net.onnx")
    again = load_onnx(tmp_path / "net.onnx")
    with torch.no_grad():
        torch.testing.assert_close(again(x), model(x), atol=1e-5, rtol=0)

    box = Box.linf(x, 0.005)
    before, after = (bound(network, box, "crown") for network in (model, again))
    torch.testing.assert_close(after.lower, before.lower, atol=1e-4, rtol=0)
    torch.testing.assert_close(after.upper, before.upper, atol=1e-4, rtol=0)
    for layer, mask in grafting.masks_of(model).items():  # a grafted neuron's ReLU sees a constant in the file
        for side in (0, 1):
            got = after.layers[layer.replace(".", "_")][side][:, ~mask]
            expected = before.layers[layer][side][:, ~mask]
            torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)

    verdicts = [verify(network, x, y, EPS, settings=SETTINGS) for network in (model, again)]
    words = [[verdict.status for verdict in some] for some in verdicts]
    assert words[0] == words[1]
    assert set(words[0]) == {"verified", "falsified", "unknown"}
