"""Putting masks on models: ours, and modules of a user's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lipgraft as lg
from lipgraft import models
from lipgraft.errors import SettingsError, UnsupportedOperationError
from lipgraft.grafting import GraftedActivation, apply, masks_of
from lipgraft.network import activation_calls, evaluate, trace

SHAPE = (1, 6, 6)


class Residual(nn.Module):
    """A user's own network: one activation module called three times, functional ones, a residual branch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1)
        self.conv3 = nn.Conv2d(4, 4, 3, padding=1)
        self.fc1, self.fc2, self.fc3 = nn.Linear(4 * 36, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.conv1(x))
        h = self.act(self.conv3(self.act(self.conv2(h))) + h)
        z = F.leaky_relu(self.fc1(h.flatten(1)), 0.1)
        return self.fc3(torch.tanh(self.fc2(z)))


class Own(nn.Module):
    """A user's own network with a residual branch and one module per activation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.relu1 = nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(inplace=True)
        self.conv2, self.relu2 = nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()
        self.fc1, self.sig, self.fc2 = nn.Linear(4 * 36, 8), nn.Sigmoid(), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu1(self.conv1(x))
        h = self.relu2(self.conv2(h) + h)
        return self.fc2(self.sig(self.fc1(h.flatten(1))))


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {node.name: node.shape for _, node in trace(model, SHAPE).activations()}


def masks_like(sizes: dict[str, tuple[int, ...]], share: float, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.rand(shape, generator=generator) < share for name, shape in sizes.items()}


def by_graph(model: nn.Module, masks: dict[str, Tensor], slope: float, x: Tensor) -> Tensor:
    """The grafted model's output, reckoned from the original's graph: activations replaced one by one by hand."""
    from lipgraft.network.graph import Activation

    values: list[Tensor] = []
    network = trace(model, tuple(x.shape[1:]))
    for node in network.nodes:
        inputs = [values[i] for i in node.inputs]
        value = node.forward(*inputs) if inputs else x
        if isinstance(node, Activation) and node.name in masks:
            value = torch.where(masks[node.name], slope * inputs[0], value)
        values.append(value)
    return values[network.output]


@pytest.mark.parametrize("make", [Own, Residual])
def test_grafted_copy_computes_the_lines_and_leaves_the_original_alone(make):
    torch.manual_seed(0)
    model = make()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    x = torch.randn(3, *SHAPE)
    expected_before = model(x)
    masks = masks_like(shapes(model), 0.5)
    new = apply(model, masks, slope=0.3, input_shape=SHAPE)
    torch.testing.assert_close(new(x), by_graph(model, masks, 0.3, x))
    assert not torch.allclose(new(x), expected_before)
    torch.testing.assert_close(model(x), expected_before, rtol=0, atol=0)
    assert before.keys() == model.state_dict().keys()
    assert not any(isinstance(m, GraftedActivation) for m in model.modules())


@pytest.mark.parametrize("make", [Own, Residual])
def test_names_and_masks_survive_grafting(make):
    model = make()
    masks = masks_like(shapes(model), 0.5)
    new = apply(model, masks)  # without the input's shape
    assert shapes(new) == shapes(model)
    found = {node.name: node.graft.mask for _, node in trace(new, SHAPE).activations() if node.graft is not None}
    assert found.keys() == masks.keys()
    assert all(found[name].equal(masks[name]) for name in masks)
    assert all(masks_of(new)[name].equal(masks[name]) for name in masks)


@pytest.mark.parametrize("make", [Own, Residual])
def test_some_activations_alone_can_be_grafted(make):
    torch.manual_seed(1)
    model = make()
    x = torch.randn(2, *SHAPE)
    for name, shape in shapes(model).items():
        masks = {name: torch.ones(shape, dtype=torch.bool)}
        new = apply(model, masks, slope=0.3, input_shape=SHAPE)
        assert shapes(new) == shapes(model)
        torch.testing.assert_close(new(x), by_graph(model, masks, 0.3, x))


def test_an_empty_mask_equals_the_original_network():
    model = models.build("digits-cnn", "digits", seed=0)
    new = apply(model, {name: torch.zeros(s, dtype=torch.bool) for name, s in model_shapes(model).items()})
    x = torch.rand(4, *model.spec.input_shape)
    torch.testing.assert_close(new(x), model(x), rtol=0, atol=0)


def model_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {node.name: node.shape for _, node in trace(model, model.spec.input_shape).activations()}


@pytest.mark.parametrize("name", ["digits-cnn", "resnet4b"])
def test_our_networks_keep_class_spec_and_parameter_names(name):
    model = models.build(name, "digits" if name == "digits-cnn" else "cifar10", seed=0)
    masks = masks_like(model_shapes(model), 0.5)
    new = apply(model, masks)
    assert type(new) is type(model)
    assert new.spec == model.spec
    added = {f"{act}.{part}" for act in masks for part in ("mask", "gamma", "omega")}
    assert set(new.state_dict()) == set(model.state_dict()) | added
    network = trace(new, model.spec.input_shape)
    x = torch.rand(2, *model.spec.input_shape)
    torch.testing.assert_close(evaluate(network, x)[network.output], by_graph(model, masks, 0.4, x))


def test_a_wholly_grafted_network_is_affine():
    torch.manual_seed(0)
    model = Own()
    new = apply(model, {name: torch.ones(s, dtype=torch.bool) for name, s in shapes(model).items()}).double()
    x, y = torch.randn(2, 1, *SHAPE, dtype=torch.float64)
    torch.testing.assert_close(new(0.3 * x + 0.7 * y), 0.3 * new(x) + 0.7 * new(y))


def test_grafting_again_replaces_the_mask_and_keeps_learned_lines():
    model = Own()
    size = shapes(model)["sig"]
    first = torch.zeros(size, dtype=torch.bool)
    first[:4] = True
    once = apply(model, {"sig": first}, slope=0.4, input_shape=SHAPE)
    with torch.no_grad():
        once.sig.gamma.fill_(0.9)
    second = torch.zeros(size, dtype=torch.bool)
    second[2:6] = True
    twice = apply(once, {"sig": second}, slope=0.1, input_shape=SHAPE)
    assert twice.sig.mask.equal(second)
    torch.testing.assert_close(twice.sig.gamma[2:4], torch.full((2,), 0.9))
    torch.testing.assert_close(twice.sig.gamma[4:6], torch.full((2,), 0.1))
    assert isinstance(twice.sig.base, nn.Sigmoid)
    assert once.sig.mask.equal(first)


def test_device_dtype_and_mode_follow_the_model():
    model = Own().double().train()
    new = apply(model, masks_like(shapes(model), 0.5))
    assert new.relu1.gamma.dtype == torch.float64
    assert new.relu1.training
    assert new(torch.randn(2, *SHAPE, dtype=torch.float64)).dtype == torch.float64


def test_a_mask_for_another_architecture_is_refused_by_name():
    with pytest.raises(SettingsError, match=r"another network: unknown activation 'relu3'.*Known: relu1, relu2, sig"):
        apply(Own(), {"relu3": torch.ones(4, 6, 6, dtype=torch.bool)}, input_shape=SHAPE)


def test_a_mask_of_the_wrong_shape_is_refused_at_once_or_at_the_first_pass():
    wrong = {"relu1": torch.ones(4, 1, 1, dtype=torch.bool)}
    with pytest.raises(SettingsError, match=r"relu1 has shape \(4, 6, 6\), its mask \(4, 1, 1\)"):
        apply(Own(), wrong, input_shape=SHAPE)
    with pytest.raises(SettingsError, match="grafted for activations of shape"):
        apply(Own(), wrong)(torch.zeros(1, *SHAPE))


def test_a_network_without_activations_is_refused():
    with pytest.raises(UnsupportedOperationError, match="no activations"):
        apply(nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), {})


def test_an_in_place_activation_whose_input_is_read_elsewhere_is_refused():
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.act = nn.Linear(3, 3), nn.ReLU(inplace=True)

        def forward(self, x: Tensor) -> Tensor:
            z = self.fc(x)
            return self.act(z) + z

    with pytest.raises(UnsupportedOperationError, match="act overwrites its input in place"):
        apply(Shared(), {"act": torch.ones(3, dtype=torch.bool)})


class Aliased(nn.Module):
    """Two linear layers with an activation in place between them; rest: what happens from the first one's result on."""

    def __init__(self, rest):
        super().__init__()
        self.fc, self.act, self.out, self.drop = nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2), nn.Dropout()
        self.rest = rest

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self, self.fc(x))


def act_and_old_parts(self, h):
    left, right = h.chunk(2, 1)
    y = self.act(h)
    return self.out(y + torch.cat([left, right], 1))


READ_LATER = {
    "through dropout": lambda self, h: self.out(self.act(self.drop(h)) + h),
    "through a view": lambda self, h: self.out(F.relu_(h.view(h.size(0), -1)) + h),
    "through a reshape": lambda self, h: self.out(F.relu(h.reshape(-1, 2, 2), inplace=True).flatten(1) + h),
    "its parts": act_and_old_parts,
    "as a statement": lambda self, h: (self.act(h), self.out(h))[1],
    "after a sum in place": lambda self, h: self.out(self.act(h.add_(1.0)) + h),
}


@pytest.mark.parametrize("rest", READ_LATER.values(), ids=READ_LATER)
def test_an_in_place_activation_whose_memory_is_read_under_another_name_is_refused(rest):
    model = Aliased(rest).eval()
    ((name, _),) = activation_calls(model)
    with pytest.raises(UnsupportedOperationError, match="overwrites its input in place"):
        apply(model, {name: torch.zeros(4, dtype=torch.bool)})


def act_and_sum(self, h):
    n = h.size(0)
    out = h * 2
    out += h
    return self.out(self.act(self.drop(out)).view(n, -1))


NOT_READ_LATER = {
    "as usual": lambda self, h: self.out(self.act(h)),
    "after dropout and a view": lambda self, h: self.out(self.act(self.drop(h).view(h.shape[0], -1))),
    "a shortcut": act_and_sum,
    "of a copy": lambda self, h: self.out(self.act(h.clone()) + h),
}


@pytest.mark.parametrize("rest", NOT_READ_LATER.values(), ids=NOT_READ_LATER)
def test_an_empty_mask_on_an_activation_in_place_leaves_the_function(rest):
    model = Aliased(rest).eval()
    new = apply(model, {"act": torch.zeros(4, dtype=torch.bool)}).eval()
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(new(x), model(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the exporter that needs no further package warns of its age
@pytest.mark.parametrize("make", [Own, Residual])
def test_a_grafted_network_of_a_users_own_exports_to_plain_onnx(make, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    model = make()
    new = apply(model, masks_like(shapes(model), 0.5)).eval()
    x = torch.randn(1, *SHAPE)
    torch.onnx.export(new, (x,), str(tmp_path / "net.onnx"), dynamo=False)
    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"))
    (got,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(got), new(x).detach())


@pytest.mark.parametrize("lines", ["constant", "fitted"])
def test_graft_is_its_steps_in_one(lines):
    data = lg.data.load("digits")
    model = lg.models.build("digits-cnn", "digits", seed=0)
    given = {"criterion": "weighted-interval", "ratio": 0.4, "options": {"pool": 0.9}, "count": 40, "seed": 3}
    seen = []
    grafted = lg.graft(model, data, 0.02, **given, lines=lines, batch=16, progress=lambda *a: seen.append(a))
    x, y = lg.grafting.calibration_set(data, 40, seed=3)
    masks = lg.grafting.select(model, lg.grafting.score(model, x, 0.02, y=y), ratio=0.4, pool=0.9)
    expected = apply(model, masks, lines=lg.grafting.fit_lines(model, x) if lines == "fitted" else None)
    assert seen == [(16, 40), (32, 40), (40, 40)]
    assert lg.models.fingerprint(grafted) == lg.models.fingerprint(expected)
    assert not lg.grafting.masks_of(model)
