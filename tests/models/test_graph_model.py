"""A module of one's own, saved with its graph: it comes back without its source, and goes on as any other module."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lipgraft as lg
from lipgraft.activations import KINDS
from lipgraft.errors import CheckpointError
from lipgraft.models import fingerprint, graph_model, load, save, tensor_file
from lipgraft.models.checkpoint import KEY

SHAPE = (1, 8, 8)


class Block(nn.Module):
    """One activation for two calls, BatchNorm after a convolution without bias, a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1, groups=2)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.act(self.conv2(self.act(self.bn(self.conv1(x)))) + x)
        return out


class Own(nn.Module):
    """Every kind of node: functions and modules, buffers and parameters of its own, pooling, an upsampling."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(0.3))
        self.stem = nn.Conv2d(1, 4, 3, padding="same")
        self.blocks = nn.Sequential(Block(), Block())
        self.gain = nn.Parameter(torch.rand(4, 1, 1))
        self.up = nn.ConvTranspose2d(4, 3, 2, stride=2)
        self.fc = nn.Linear(3 * 4 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.gelu(self.stem(x - self.mean)))
        x = F.max_pool2d(self.up(F.avg_pool2d(x * self.gain, 2)), 2)
        out: Tensor = self.fc(torch.flatten(F.leaky_relu(x, 0.2), 1))
        return out


@pytest.fixture
def own() -> nn.Module:
    model = Own()
    model(torch.rand(16, *SHAPE))  # gives the BatchNorms their statistics
    return model.eval()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "own.safetensors"


def test_a_saved_module_comes_back_without_its_source(own: nn.Module, path: Path) -> None:
    save(own, path, input_shape=SHAPE)
    again, x = load(path), torch.rand(6, *SHAPE)
    assert type(again) is lg.models.GraphModel
    assert again.input_shape == SHAPE
    torch.testing.assert_close(again(x), own(x), rtol=1e-4, atol=1e-5)


def test_the_same_file_still_fills_the_original_module(own: nn.Module, path: Path) -> None:
    save(own, path, input_shape=SHAPE)
    assert fingerprint(load(path, into=Own())) == fingerprint(own)


def test_what_was_read_can_be_saved_and_read_again_bit_for_bit(own: nn.Module, path: Path) -> None:
    model = graph_model(own, SHAPE)
    save(model, path)
    assert fingerprint(load(path)) == fingerprint(model)


def test_layers_keep_their_names_so_that_weights_go_back_to_the_original(path: Path) -> None:
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Sequential(nn.Linear(5, 10)))
    save(plain, path, input_shape=SHAPE)
    again = load(path)
    assert set(again.state_dict()) == set(plain.state_dict())
    plain.load_state_dict(again.state_dict())


def test_exactly_what_was_trained_is_trained_further(own: nn.Module) -> None:
    model = graph_model(own, SHAPE)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    weights = {"stem", "blocks_0_conv1", "blocks_1_conv1", "blocks.0.conv2", "blocks.1.conv2", "up", "fc"}
    assert trained == {f"{name}.{part}" for name in weights for part in ("weight", "bias")} | {"mul.scale"}
    assert {"sub.shift", "avg_pool2d.weight"} <= dict(model.named_buffers()).keys()


@pytest.mark.long
def test_a_graph_goes_through_grafting_training_verifying_and_exporting(own: nn.Module, path: Path) -> None:
    data = lg.data.load("digits")
    save(own, path, input_shape=SHAPE)
    grafted = lg.graft(load(path), data, 0.02, ratio=0.3, count=40)
    settings = lg.TrainSettings(epochs=1, batch=256, eps=0.02, prune="fixed", prune_ratio=0.1)
    before = grafted.state_dict()["stem.weight"].clone()
    lg.train(grafted, data, settings, device="cpu")
    assert not torch.equal(grafted.state_dict()["stem.weight"], before)
    save(grafted, path)
    again = load(path)
    x, y = lg.data.images(data.x_test[:3]), data.y_test[:3]
    assert fingerprint(again) == fingerprint(grafted)
    assert len(lg.verify(again, x, y, 0.001, timeout=5.0)) == 3
    save(again, path.with_suffix(".onnx"))
    torch.testing.assert_close(load(path.with_suffix(".onnx"))(x), again(x), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_activation_comes_back(kind: Any, path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), kind.modules[0](), nn.Linear(4, 2))
    save(model, path, input_shape=(3,))
    x = 3 * torch.randn(20, 3)
    assert torch.equal(load(path)(x), model(x))


def test_a_file_without_a_graph_says_why_and_what_to_do(path: Path) -> None:
    class Sorts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sort().values

    save(Sorts(), path, input_shape=(3,))
    with pytest.raises(CheckpointError, match=r"cannot be traced: node 'sort'.*load it with lipgraft\.load"):
        load(path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda nodes: nodes[1].update(kind="Node"),
        lambda nodes: nodes[1].update(kind="os.system"),
        lambda nodes: nodes[1].update(inputs=[7]),
        lambda nodes: nodes[1]["tensors"].update(weight="elsewhere"),
        lambda nodes: nodes[1]["tensors"].update(weight="2.weight"),
        lambda nodes: nodes[2]["settings"].update(curve="none"),
        lambda nodes: nodes[2]["settings"].update(parameters={"slope": 3}),
        lambda nodes: nodes[3].update(shape=[9]),
        lambda nodes: nodes[0].update(shape=[5]),
        lambda nodes: nodes.clear(),
        lambda nodes: nodes[1].pop("name"),
    ],
)
def test_a_damaged_graph_is_refused_in_words(damage: Any, path: Path) -> None:
    save(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), path, input_shape=(3,))
    stored = tensor_file.read(path)
    about = json.loads(stored.metadata[KEY])
    damage(about["graph"]["nodes"])
    path.write_bytes(tensor_file.to_bytes(stored.tensors, {KEY: json.dumps(about)}))
    with pytest.raises(CheckpointError, match="is inconsistent"):
        load(path)


@pytest.mark.parametrize("precision", ["double", "half", "mixed"])
def test_a_module_of_any_precision_comes_back_in_the_one_that_it_is_computed_with(precision: str, path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model = model if precision == "mixed" else getattr(model, precision)()
    if precision == "mixed":
        model.register_buffer("seen", torch.zeros(1, dtype=torch.float64))
    save(model, path, input_shape=(3,))
    again, x = load(path), torch.rand(5, 3)
    assert {t.dtype for t in again.state_dict().values()} == {torch.float32 if precision == "half" else torch.float64}
    got = again(x.to(next(again.parameters())))
    torch.testing.assert_close(got.double(), model.double()(x.double()), rtol=1e-4, atol=1e-5)
    assert any(parameter.requires_grad for parameter in again.parameters())


def test_weights_that_are_shared_or_normalised_come_back_as_plain_ones(path: Path) -> None:
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), shared, nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)))
    save(model, path, input_shape=(4,))
    again, x = load(path), torch.rand(5, 4)
    torch.testing.assert_close(again(x), model(x))
    assert sum(isinstance(layer, nn.Linear) for layer in again.modules()) == 3
    places = [parameter.data_ptr() for parameter in again.parameters()]
    assert len(set(places)) == len(places)
    assert all(parameter.requires_grad for parameter in again.parameters())


@pytest.mark.parametrize("options", [{"activation": "tanh"}, {"batchnorm": True}])
def test_layers_of_ones_own_network_cannot_be_chosen(options: dict[str, Any], path: Path) -> None:
    save(nn.Linear(64, 10), path, input_shape=(64,))
    with pytest.raises(lg.LipgraftError, match="has its own layers"):
        lg.models.start(str(path), lg.data.load("digits"), **options)
