"""lipgraft.models: the counts of the reference, seeds, normalisation, folding."""

from __future__ import annotations

import copy
import dataclasses
import math

import pytest
import torch
from torch import Tensor, fx, nn

from lipgraft.data import entry
from lipgraft.errors import DataError, SettingsError, UnsupportedOperationError
from lipgraft.models import ACTIVATIONS, NETWORKS, ModelSpec, Normalise, build, fingerprint, fold_batchnorm


def parameter_count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def neurons(model: nn.Module, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """The shape of each activation, without the batch axis, in the order of computation."""
    shapes: dict[str, tuple[int, ...]] = {}
    hooks = [
        module.register_forward_hook(lambda _m, _i, out, name=name: shapes.__setitem__(name, tuple(out.shape[1:])))
        for name, module in model.named_modules()
        if isinstance(module, tuple(ACTIVATIONS.values()))  # type: ignore[arg-type]
    ]
    with torch.no_grad():
        model.eval()(torch.zeros(1, *shape))
    for hook in hooks:
        hook.remove()
    return shapes


COUNTS = [
    ("cnn-b", "cifar10", False, 2_118_856, [8192, 8192, 250], 16_634),
    ("conv-big", "cifar10", False, 2_466_858, [32768, 8192, 16384, 4096, 512, 512], 62_464),
    ("conv-big", "svhn", False, 2_466_858, [32768, 8192, 16384, 4096, 512, 512], 62_464),
    ("conv-big", "cifar100", False, 2_513_028, [32768, 8192, 16384, 4096, 512, 512], 62_464),
    ("conv-big", "mnist", False, 1_974_762, [25088, 6272, 12544, 3136, 512, 512], 48_064),
    ("conv-huge", "cifar10", False, 17_190_602, [65536, 65536, 32768, 32768, 32768, 512], 229_888),
    ("conv-huge", "cifar10", True, 17_192_650, [65536, 65536, 32768, 32768, 32768, 512], 229_888),
    ("cnn7", "cifar10", True, 17_192_650, [65536, 65536, 32768, 32768, 32768, 512], 229_888),
    ("cnn5", "cifar10", False, 4_398_538, [65536, 16384, 8192, 512], 90_624),
    ("cnn5", "cifar10", True, 4_400_074, [65536, 16384, 8192, 512], 90_624),
    ("resnet4b", "cifar10", False, 123_734, [4096, 2048, 2048, 2048, 2048, 512, 512, 512, 512, 100], 14_436),
]


@pytest.mark.parametrize(("name", "dataset", "batchnorm", "parameters", "per_layer", "total"), COUNTS)
def test_parameters_and_neurons_are_as_many_as_the_reference_counts(
    name: str, dataset: str, batchnorm: bool, parameters: int, per_layer: list[int], total: int
) -> None:
    model = build(name, dataset, batchnorm=batchnorm)
    shapes = neurons(model, model.spec.input_shape)
    assert parameter_count(model) == parameters
    assert [math.prod(shape) for shape in shapes.values()] == per_layer
    assert sum(math.prod(shape) for shape in shapes.values()) == total


def test_the_shapes_of_cnn_b_are_those_of_the_reference() -> None:
    assert neurons(build("cnn-b"), (3, 32, 32)) == {"act1": (32, 16, 16), "act2": (128, 8, 8), "act3": (250,)}


def test_the_quickstart_network_has_the_neurons_its_docstring_says() -> None:
    assert sum(math.prod(s) for s in neurons(build("digits-cnn", "digits"), (1, 8, 8)).values()) == 1636


@pytest.mark.parametrize("dataset", ["digits", "mnist", "cifar10", "cifar100"])
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_every_network_fits_every_data_set(name: str, dataset: str) -> None:
    model = build(name, dataset).eval()
    with torch.no_grad():
        logits = model(torch.rand(2, *entry(dataset).input_shape))
    assert logits.shape == (2, entry(dataset).classes)
    assert bool(torch.isfinite(logits).all())


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_every_activation_is_a_module_of_its_own_and_used_once(name: str, activation: str) -> None:
    model = build(name, "digits", activation=activation)
    kind: type[nn.Module] = ACTIVATIONS[activation]  # type: ignore[assignment]
    names = [n for n, m in model.named_modules(remove_duplicate=False) if isinstance(m, kind)]
    calls = [node.target for node in fx.symbolic_trace(model).graph.nodes if node.op == "call_module"]
    assert names
    assert all(calls.count(n) == 1 for n in names)
    assert len({id(model.get_submodule(n)) for n in names}) == len(names)


def test_a_model_says_how_it_was_built() -> None:
    assert build("conv-huge", "cifar10").spec == ModelSpec("conv-huge", "cifar10", "relu", True, (3, 32, 32), 10)
    assert build("cnn-b", "mnist", activation="tanh").spec == ModelSpec(
        "cnn-b", "mnist", "tanh", False, (1, 28, 28), 10
    )


def test_the_input_is_normalised_inside_the_model(generator: torch.Generator) -> None:
    x = torch.rand(2, 3, 32, 32, generator=generator)
    layer = build("cnn-b").normalise
    mean, std = (torch.tensor(v).reshape(3, 1, 1) for v in (entry("cifar10").mean, entry("cifar10").std))
    assert isinstance(layer, Normalise)
    assert torch.equal(layer(x), (x - mean) / std)
    assert not list(layer.parameters())
    assert set(layer.state_dict()) == {"mean", "std"}


def test_zero_padding_comes_after_normalisation(generator: torch.Generator) -> None:
    x = torch.rand(1, 3, 32, 32, generator=generator)
    model = build("cnn-b")
    padded = model.pad(model.normalise(x))
    assert padded.shape == (1, 3, 35, 35)
    assert bool((padded[:, :, 0] == 0).all())
    assert bool((padded[:, :, :, -2:] == 0).all())
    assert torch.equal(padded[:, :, 1:33, 1:33], model.normalise(x))


def state(model: nn.Module) -> list[Tensor]:
    return list(model.state_dict().values())


def test_the_same_seed_gives_the_same_weights_and_leaves_the_global_state_alone() -> None:
    before = torch.get_rng_state()
    first, second, other = (build("digits-cnn", "digits", seed=s) for s in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(state(first), state(second), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(state(first), state(other), strict=True))


def test_a_seed_means_the_same_weights_as_the_default_initialisation_from_it() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        plain = build("digits-cnn", "digits")
    seeded = build("digits-cnn", "digits", seed=7)
    assert all(torch.equal(a, b) for a, b in zip(state(plain), state(seeded), strict=True))


def test_models_are_built_on_the_cpu_whatever_the_default_device() -> None:
    with torch.device("meta"):
        model = build("digits-cnn", "digits")
    assert {t.device.type for t in state(model)} == {"cpu"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "cnn_b"}, "unknown network 'cnn_b'. Did you mean 'cnn-b'?"),
        ({"name": "cnn-b", "activation": "glu"}, "unknown activation 'glu'"),
        ({"name": "cnn-b", "batchnorm": True}, "cnn-b has no BatchNorm; only cnn5, cnn7, conv-huge"),
    ],
)
def test_an_unknown_choice_is_answered_with_the_known_ones(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        build(**arguments)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_an_unknown_data_set_is_a_data_error() -> None:
    with pytest.raises(DataError, match="unknown data set"):
        build("cnn-b", "imagenet")


# Folding


def with_statistics(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """BatchNorm layers as after training: no statistic or scale at its initial value."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            for tensor in (module.weight.data, module.bias.data, module.running_mean, module.running_var):
                assert tensor is not None
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return model


@pytest.mark.parametrize(("dataset", "activation"), [("digits", "relu"), ("mnist", "tanh")])
def test_folding_batchnorm_keeps_the_outputs(dataset: str, activation: str, generator: torch.Generator) -> None:
    model = with_statistics(build("conv-huge", dataset, activation=activation, seed=0), generator).double().eval()
    before = copy.deepcopy(model.state_dict())
    folded = fold_batchnorm(model)
    x = torch.rand(4, *entry(dataset).input_shape, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        assert torch.allclose(folded(x), model(x), rtol=1e-9, atol=1e-9)
    assert not any(isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d) for m in folded.modules())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())  # the original is untouched


def test_a_folded_model_is_the_network_without_batchnorm(generator: torch.Generator) -> None:
    model = build("conv-huge", "digits", seed=0)
    folded, plain = fold_batchnorm(with_statistics(model, generator)), build("conv-huge", "digits", batchnorm=False)
    assert folded.spec == plain.spec == dataclasses.replace(model.spec, batchnorm=False)  # type: ignore[union-attr]
    plain.load_state_dict(folded.state_dict(), strict=True)
    x = torch.rand(2, 1, 8, 8, generator=generator)
    with torch.no_grad():
        assert torch.equal(plain.eval()(x), folded.eval()(x))


def test_folding_a_layer_without_bias_gives_it_one(generator: torch.Generator) -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten()).double()
    model = with_statistics(model, generator).eval()  # type: ignore[assignment]
    x = torch.randn(5, 2, 6, 6, generator=generator, dtype=torch.float64)
    assert torch.allclose(fold_batchnorm(model)(x), model(x), rtol=1e-12, atol=1e-12)


def test_a_batchnorm_without_a_layer_before_it_is_refused() -> None:
    with pytest.raises(UnsupportedOperationError, match="'0' does not follow"):
        fold_batchnorm(nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)))


# Fingerprints


def test_a_fingerprint_changes_with_any_weight_and_with_the_activation_and_with_nothing_else() -> None:
    model = build("digits-cnn", "digits", seed=0)
    original = fingerprint(model)
    assert fingerprint(build("digits-cnn", "digits", seed=0).train()) == fingerprint(model.eval()) == original
    tanh = build("digits-cnn", "digits", activation="tanh")
    tanh.load_state_dict(model.state_dict())
    assert fingerprint(tanh) != original
    with torch.no_grad():
        bias = model.get_parameter("fc2.bias")
        bias[3] = torch.nextafter(bias[3], torch.tensor(10.0))
    assert fingerprint(model) != original
