"""What is exported is the same network: for onnxruntime, and when it is read back."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
import torch
import typer
import yaml
from torch import Tensor, nn

from interop_grafted import grafted, half_grafted
from lipgraft import Box, bound, data, grafting, models
from lipgraft.cli import execute
from lipgraft.cli.export import EPILOG, export, parse_indices
from lipgraft.errors import LipgraftError, SettingsError
from lipgraft.interop import OnnxRuntime, export_bundle, export_onnx, load_onnx, read_vnnlib, verify_instances
from lipgraft.verification import verify


@pytest.mark.parametrize("dataset", ["digits", "cifar10"])
@pytest.mark.parametrize("name", ["cnn-b", "resnet4b"])
def test_a_grafted_network_comes_back_with_the_same_outputs(name: str, dataset: str, tmp_path: Path) -> None:
    model = grafted(name, dataset)
    shape = models.build(name, dataset).spec.input_shape
    export_onnx(model, tmp_path / "net.onnx")
    again = load_onnx(tmp_path / "net.onnx")
    x = torch.rand(4, *shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(x)
        torch.testing.assert_close(OnnxRuntime(tmp_path / "net.onnx")(x), expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(again(x), expected, atol=1e-5, rtol=0)


class Leaky(nn.Module):
    """Leaky ReLU between linear layers, an average pool and a residual sum in front."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.act = nn.LeakyReLU(0.2)
        self.pool = nn.AvgPool2d(2)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(self.pool(self.act(self.conv(x) + x)).flatten(1))
        return y


def small(kind: str) -> tuple[nn.Module, tuple[int, ...]]:
    if kind == "leaky":
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return Leaky(), (2, 4, 4)
    return models.build("digits-cnn", "digits", activation=kind, seed=0), (1, 8, 8)


@pytest.mark.parametrize("kind", ["relu", "sigmoid", "tanh", "leaky"])
def test_grafts_of_every_activation_survive_the_round_trip(kind: str, tmp_path: Path) -> None:
    plain, shape = small(kind)
    model = half_grafted(plain, shape)
    export_onnx(model, tmp_path / "net.onnx", shape)
    again = load_onnx(tmp_path / "net.onnx")
    x = 3 * torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(again(x), model(x), atol=1e-5, rtol=1e-5)
    box = Box.linf(x[:1], 0.05, low=None, high=None)
    before, after = bound(model, box, "crown"), bound(again, box, "crown")
    torch.testing.assert_close(after.lower, before.lower, atol=1e-4, rtol=1e-4)


def test_the_relu_of_a_grafted_neuron_sees_the_constant_minus_one(tmp_path: Path) -> None:
    model = half_grafted(models.build("digits-cnn", "digits", seed=0), (1, 8, 8))
    export_onnx(model, tmp_path / "net.onnx")
    box = Box.linf(torch.rand(1, 1, 8, 8), 0.3)
    layers = bound(load_onnx(tmp_path / "net.onnx"), box, "crown", neurons="all").layers
    for name, mask in grafting.masks_of(model).items():
        lower, upper = layers[name]
        assert bool((lower[0][mask] == -1).all())
        assert bool((upper[0][mask] == -1).all())
        assert bool((lower[0][~mask] < upper[0][~mask]).all())


def test_an_add_stands_right_before_every_relu_of_a_grafted_layer(tmp_path: Path) -> None:
    export_onnx(half_grafted(models.build("digits-cnn", "digits", seed=0), (1, 8, 8)), tmp_path / "net.onnx")
    nodes = onnx.load(tmp_path / "net.onnx").graph.node
    made_by = {name: node.op_type for node in nodes for name in node.output}
    assert [made_by[node.input[0]] for node in nodes if node.op_type == "Relu"] == ["Add"] * 3


def test_batch_normalisation_is_folded_into_the_export(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
    model[1].running_mean.copy_(torch.tensor([0.5, -1.0, 2.0]))
    model[1].running_var.copy_(torch.tensor([0.1, 3.0, 1.5]))
    export_onnx(model, tmp_path / "net.onnx", (1, 4, 4))
    assert [node.op_type for node in onnx.load(tmp_path / "net.onnx").graph.node] == ["Conv", "Relu", "Flatten", "Gemm"]
    assert all(module.training for module in model.modules())


def test_an_exported_network_takes_batches_of_any_size(tmp_path: Path) -> None:
    model = models.build("digits-cnn", "digits", seed=0)
    export_onnx(model, tmp_path / "net.onnx")
    session = OnnxRuntime(tmp_path / "net.onnx").session
    x = torch.rand(3, 1, 8, 8)
    [got] = session.run(None, {"input": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(got), model(x).detach(), atol=1e-5, rtol=0)


def test_a_model_that_does_not_know_its_input_needs_to_be_told(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="input_shape"):
        export_onnx(nn.Linear(2, 2), tmp_path / "net.onnx")


@pytest.mark.parametrize("name", ["cnn-b", "resnet4b"])
def test_exported_questions_have_the_answers_of_the_verifier(name: str, tmp_path: Path) -> None:
    model = grafted(name, "digits").eval()
    x = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([4, 4])
    with torch.no_grad():
        # On the first image all classes draw level, class 4 a little ahead: a large box is enough to lose it.
        model.get_parameter("fc2.bias").sub_(model(x[0:1])[0])
        model.get_parameter("fc2.bias")[4] += 5e-4
    words = {"verified": "unsat", "falsified": "sat"}
    seen = set()
    for eps in (5e-4, 0.3):
        verdicts = verify(model, x, y, eps, timeout=600)
        bundle = export_bundle(model, x, y, eps, tmp_path / str(eps), timeout=600)
        results = verify_instances(bundle.instances).results
        assert [result.status for result in results] == [words[verdict.status] for verdict in verdicts]
        seen |= {result.status for result in results}
    assert seen == {"unsat", "sat"}


def test_a_bundle_holds_the_very_boxes_and_labels(tmp_path: Path) -> None:
    model = models.build("digits-cnn", "digits", seed=0)
    x, y = torch.rand(2, 1, 8, 8), torch.tensor([3, 0])
    bundle = export_bundle(model, x, y, 0.1, tmp_path, timeout=7, names=["a", "b"])
    box = Box.linf(x, 0.1)
    assert bundle.instances.read_text() == "net.onnx,vnnlib/a.vnnlib,7\nnet.onnx,vnnlib/b.vnnlib,7\n"
    for i, path in enumerate(bundle.properties):
        [region] = read_vnnlib(path).regions
        assert torch.equal(region.lower.float(), box.lower[i].flatten())
        assert torch.equal(region.upper.float(), box.upper[i].flatten())
        logits = torch.randn(50, 10)
        others = torch.cat([logits[:, : y[i]], logits[:, y[i] + 1 :]], 1)
        assert torch.equal(region.excess(logits) <= 0, others.amax(1) >= logits[:, y[i]])
    config = yaml.safe_load(bundle.config.read_text())
    assert config["general"]["conv_mode"] == "matrix"
    assert config["general"]["csv_name"] == "instances.csv"


def test_a_label_that_is_no_class_is_refused(tmp_path: Path) -> None:
    model = models.build("digits-cnn", "digits", seed=0)
    with pytest.raises(SettingsError, match="labels"):
        export_bundle(model, torch.rand(1, 1, 8, 8), torch.tensor([10]), 0.1, tmp_path)


def commands() -> typer.Typer:
    app = typer.Typer()
    app.command("export", epilog=EPILOG)(export)
    app.callback()(lambda: None)
    return app


def test_the_command_writes_all_files_for_the_chosen_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = models.build("digits-cnn", "digits", seed=0)
    models.save(model, tmp_path / "model.safetensors")
    line = ["export", str(tmp_path / "model.safetensors"), "--data", "digits", "--eps", "1/10", "--indices", "1:3,7"]
    assert execute(commands(), [*line, "--out", str(tmp_path / "out"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["indices"] == [1, 2, 7]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "abcrown.yaml", "instances.csv", "net.onnx", "vnnlib",
    ]  # fmt: skip
    digits = data.load("digits")
    box = Box.linf(data.images(digits.x_test[7:8]), 0.1)
    [region] = read_vnnlib(tmp_path / "out" / "vnnlib" / "00007.vnnlib").regions
    assert torch.equal(region.lower.float(), box.lower.flatten())


@pytest.mark.parametrize("text", ["", "a", "5:2", "0:99", "-1", "3,,4", "1:2:3"])
def test_indices_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(LipgraftError, match="indices"):
        parse_indices(text, 20)


def test_ranges_may_be_open() -> None:
    assert parse_indices(":2,1:4,18:", 20) == [0, 1, 2, 3, 18, 19]


PADDINGS = [
    ((1, 2, 0, 1), nn.Conv2d(3, 4, 4, stride=2)),
    ((2, 0, 3, 0), nn.Conv2d(3, 4, 3, padding=(1, 2))),
    ((0, 1, 0, 0), nn.Conv2d(3, 4, (2, 3), stride=(1, 3), groups=1, bias=False)),
    ((0, 4, 2, 0), nn.Conv2d(3, 6, 2, dilation=2, groups=3)),
]


@pytest.mark.parametrize(("sides", "conv"), PADDINGS)
def test_uneven_padding_is_written_as_even_padding(sides: tuple[int, ...], conv: nn.Conv2d, tmp_path: Path) -> None:
    model = nn.Sequential(nn.ZeroPad2d(sides), conv, nn.ReLU(), nn.Flatten(), nn.LazyLinear(5)).eval()
    x = torch.rand(3, 3, 11, 12)
    with torch.no_grad():
        expected = model(x)
    export_onnx(model, tmp_path / "net.onnx", (3, 11, 12))
    nodes = onnx.load(tmp_path / "net.onnx").graph.node
    assert "Pad" not in {node.op_type for node in nodes}
    torch.testing.assert_close(OnnxRuntime(tmp_path / "net.onnx")(x), expected, atol=1e-5, rtol=1e-5)


def test_padding_that_no_kernel_can_take_over_stays(tmp_path: Path) -> None:
    model = nn.Sequential(nn.ZeroPad2d((0, 1, 0, 0)), nn.Conv2d(3, 2, 2, dilation=2), nn.Flatten()).eval()
    export_onnx(model, tmp_path / "net.onnx", (3, 6, 6))
    assert "Pad" in {node.op_type for node in onnx.load(tmp_path / "net.onnx").graph.node}


def test_constants_of_images_have_a_batch_axis(tmp_path: Path) -> None:
    model = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten()).eval()
    masks = {"1": torch.rand(3, 6, 6) < 0.5, "3": torch.rand(4, 4, 4) < 0.5}
    export_onnx(grafting.apply(model, masks, 0.4, input_shape=(3, 6, 6)).eval(), tmp_path / "net.onnx", (3, 6, 6))
    graph = onnx.load(tmp_path / "net.onnx").graph
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    used = [
        shapes[name] for node in graph.node if node.op_type in ("Add", "Mul") for name in node.input if name in shapes
    ]
    assert len(used) >= 8
    assert all(len(shape) == 4 and shape[0] == 1 for shape in used)
