"""What the verbs are given beside the module: a right answer, or one sentence that says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lipgraft as lg
from lipgraft.errors import LipgraftError, SettingsError
from lipgraft.sensitivity import LipschitzSettings
from lipgraft.training import TrainSettings
from lipgraft.verification import AttackSettings, Limits, VerifySettings

SHAPE = (1, 3, 3)
FEW = LipschitzSettings(samples=2, steps=1)
QUICK = VerifySettings(attack=AttackSettings(steps=3, restarts=1))
Verb = Callable[..., Any]

VERBS: dict[str, Verb] = {
    "bound": lambda model, x, y, eps, **more: lg.bound(model, lg.Box.linf(x, eps, **more)).lower,
    "attack": lambda model, x, y, eps, **more: lg.attack(model, x, y, eps, steps=3, **more),
    "verify": lambda model, x, y, eps, **more: lg.verify(model, x, y, eps, settings=QUICK, **more),
    "lipschitz": lambda model, x, y, eps, **more: lg.lipschitz(model, x, eps, **more),
    "sampled": lambda model, x, y, eps, **more: lg.lipschitz(model, x, eps, "sampled", settings=FEW, **more),
    "score": lambda model, x, y, eps, **more: lg.grafting.score(model, x, eps, y=y, **more).layers["2"].width_max,
}
every_verb = pytest.mark.parametrize("verb", VERBS)


def network() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return nn.Sequential(nn.Flatten(), nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


def images(count: int = 2) -> Tensor:
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(6))


def same(got: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        return [v.status for v in got] == [v.status for v in expected]
    return torch.equal(got, expected)


LABELS = torch.tensor([0, 2])


@every_verb
@pytest.mark.parametrize(
    "changes",
    [
        {"x": images() + 1.0},
        {"x": images() * 255},
        {"x": images() - 0.5},
        {"x": images(), "low": 0.4},
        {"x": images(), "high": 0.6},
        {"x": np.full((2, *SHAPE), 2.0)},
    ],
    ids=["above", "bytes as floats", "below", "low", "high", "array"],
)
def test_pixels_outside_the_valid_range_are_refused(verb: str, changes: dict[str, Any]) -> None:
    arguments = {"x": images(), "y": LABELS, "eps": 0.1, **changes}
    with pytest.raises(LipgraftError, match=r"must lie in .*; scale the images, or pass their valid range"):
        VERBS[verb](network(), **arguments)


@every_verb
def test_images_of_another_range_are_taken_as_they_are(verb: str) -> None:
    VERBS[verb](network(), 4 * images() - 2, LABELS, 0.1, low=-2.0, high=2.0)
    VERBS[verb](network(), 4 * images() - 2, LABELS, 0.1, low=None, high=None)


@every_verb
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool, torch.complex64])
def test_images_that_are_no_floats_are_refused(verb: str, dtype: torch.dtype) -> None:
    with pytest.raises(LipgraftError, match=r"must be floats, got torch\."):
        VERBS[verb](network(), torch.zeros(2, *SHAPE, dtype=dtype), LABELS, 0.1)


def test_an_image_with_nan_is_an_error_of_its_own_in_whatever_range() -> None:
    x = images(3) * 0.5 + 0.5
    x[1, 0, 0, 0] = float("nan")
    x[2, 0, 0, 0] = float("inf")
    y = network()(x).argmax(1)
    y[1:] = 0
    verdicts = lg.verify(network(), x, y, 1e-3, low=0.5, high=1.0)
    assert [v.status for v in verdicts] == ["verified", "error", "error"]


@every_verb
@pytest.mark.parametrize(
    "changes",
    [
        {"x": images().numpy()},
        {"x": images().numpy()[:, :, ::-1, :][:, :, ::-1, :]},
        {"x": images().double()},
        {"y": LABELS.numpy()},
        {"y": [0, 2]},
        {"y": LABELS.to(torch.uint8)},
        {"y": np.array([0, 2], dtype=np.int32)},
        {"eps": np.float32(0.125)},
        {"eps": np.float64(0.125)},
        {"eps": np.array(0.125)},
        {"eps": torch.tensor(0.125)},
        {"eps": "1/8"},
    ],
    ids=lambda changes: next(f"{key} {type(value).__name__}" for key, value in changes.items()),
)
def test_arrays_lists_and_fractions_are_taken(verb: str, changes: dict[str, Any]) -> None:
    arguments = {"x": images(), "y": LABELS, "eps": 0.125}
    expected = VERBS[verb](network(), **arguments)
    got = VERBS[verb](network(), **{**arguments, **changes})
    if isinstance(expected, Tensor) and "x" in changes:  # a double x is another box for `bound`
        torch.testing.assert_close(got.to(expected), expected, rtol=1e-5, atol=1e-5)
    else:
        assert same(got, expected)


@pytest.mark.parametrize("eps", [[0.0, 0.125], np.array([0.0, 0.125]), torch.tensor([0.0, 0.125])])
@pytest.mark.parametrize("verb", ["bound", "attack", "verify", "lipschitz", "sampled"])
def test_every_image_may_have_its_own_radius(verb: str, eps: Any) -> None:
    got = VERBS[verb](network(), images(), LABELS, eps)
    alone = [VERBS[verb](network(), images()[i : i + 1], LABELS[i : i + 1], e) for i, e in enumerate((0.0, 0.125))]
    if isinstance(got, list):
        assert [v.status for v in got] == [v.status for some in alone for v in some]
    elif verb in ("bound", "lipschitz"):
        torch.testing.assert_close(got, torch.cat(alone))


@every_verb
@pytest.mark.parametrize(
    "eps",
    [-0.1, float("nan"), float("inf"), "a lot", "2/0", None, [0.1, 0.1, 0.1], np.ones((2, 2)), 1j, {}, True, 10**400],
    ids=str,
)
def test_a_radius_that_is_none_is_refused(verb: str, eps: Any) -> None:
    with pytest.raises(SettingsError):
        VERBS[verb](network(), images(), LABELS, eps)


@every_verb
@pytest.mark.parametrize(
    "x",
    ["image.png", None, 0.5, torch.tensor(0.5), torch.rand(9), [[0.1], [0.1, 0.2]], np.array(["a", "b"]), {}],
    ids=lambda x: type(x).__name__,
)
def test_what_is_no_batch_of_images_is_refused(verb: str, x: Any) -> None:
    with pytest.raises(SettingsError, match="the images must be"):
        VERBS[verb](network(), x, LABELS, 0.1)


@every_verb
def test_images_that_do_not_fit_the_model_are_refused(verb: str) -> None:
    with pytest.raises(LipgraftError):
        VERBS[verb](network(), torch.rand(2, 1, 4, 4), LABELS, 0.1)


@pytest.mark.parametrize("verb", ["attack", "verify", "score"])
@pytest.mark.parametrize(
    "y",
    [[0.9, 0.0], torch.tensor([0.0, float("nan")]), [0], 0, [[0, 1]], ["a", "b"], None, [0, 3], [0, -1], [True, False]],
    ids=str,
)
def test_labels_that_are_no_classes_are_refused(verb: str, y: Any) -> None:
    if verb == "score" and y is None:
        pytest.skip("scores need no labels")
    with pytest.raises(LipgraftError):
        VERBS[verb](network(), images(), y, 0.1)


@pytest.mark.parametrize("timeout", ["5", "soon", None, -1, 0, float("nan"), float("inf"), np.array([1.0, 2.0]), {}])
def test_a_time_limit_is_a_number_of_seconds(timeout: Any) -> None:
    if timeout is None:
        assert len(lg.verify(network(), images(), LABELS, 0.01, timeout=None)) == 2
        return
    with pytest.raises(SettingsError, match="timeout must be a finite number > 0"):
        lg.verify(network(), images(), LABELS, 0.01, timeout=timeout)
    assert len(lg.verify(network(), images(), LABELS, 0.01, timeout=np.float32(5))) == 2


@pytest.mark.parametrize("seed", [2**64, 2**200, -1, 0.5, "1", None], ids=str)
def test_a_seed_is_a_whole_number_that_fits(seed: Any) -> None:
    model, x = network(), images()
    with pytest.raises(SettingsError, match="seed must be a whole number"):
        lg.attack(model, x, LABELS, 0.1, steps=2, seed=seed)
    with pytest.raises(SettingsError, match="seed must be a whole number"):
        lg.lipschitz(model, x, 0.1, "sampled", seed=seed)
    lg.attack(model, x, LABELS, 0.1, steps=2, seed=2**63 - 1)


@every_verb
@pytest.mark.parametrize("ends", [("a", 1.0), (float("nan"), 1.0), (1.0, 0.0), (None, float("inf"))], ids=str)
def test_the_ends_of_the_valid_range_are_numbers(verb: str, ends: tuple[Any, Any]) -> None:
    with pytest.raises(SettingsError, match="low"):
        VERBS[verb](network(), images(), LABELS, 0.1, low=ends[0], high=ends[1])


# --- data sets, settings and devices


def shapes() -> lg.data.Dataset:
    """Twelve training images of 1x3x3 in three classes."""
    x, y = np.arange(12 * 9, dtype=np.uint8).reshape(12, 3, 3), np.arange(12) % 3
    return lg.data.from_arrays(x[:3], y[:3], x, y, name="shapes", val_size=3)


TRAIN = TrainSettings(epochs=1, batch=3, eps=0.01, attack_steps=1)
WRONG_TRAINING: dict[str, tuple[dict[str, Any], str]] = {
    "too few outputs": ({"model": nn.Sequential(nn.Flatten(), nn.Linear(9, 2))}, "has 2 classes, but shapes has 3"),
    "another input": ({"model": nn.Sequential(nn.Flatten(), nn.Linear(8, 3))}, "images of shapes are 1x3x3, but"),
    "no module": ({"model": torch.relu}, "must be a torch.nn.Module"),
    "a name of data": ({"data": "digits"}, r"must be a lipgraft.data.Dataset, got 'digits'; lipgraft.data.load"),
    "a pair": ({"data": (torch.rand(3, 1, 3, 3), LABELS)}, r"must be a lipgraft.data.Dataset, got a tuple"),
    "a mapping": ({"settings": {"epochs": 1}}, r"settings must be TrainSettings\(\.\.\.\), got a dict"),
    "no preset": ({"settings": "finetun"}, "Did you mean 'finetune'"),
    "no device": ({"device": "foo"}, "device 'foo' cannot be used .* choose auto, cpu or cuda"),
    "a missing device": ({"device": "cuda:99"}, "device 'cuda:99' cannot be used"),
}


@pytest.mark.parametrize("kind", WRONG_TRAINING)
def test_training_that_cannot_begin_is_refused(kind: str) -> None:
    changes, words = WRONG_TRAINING[kind]
    arguments = {"model": network(), "data": shapes(), "settings": TRAIN, "device": "cpu", **changes}
    with pytest.raises(LipgraftError, match=words):
        lg.train(**arguments)


def test_training_takes_a_module_that_fits_its_data() -> None:
    model = network()
    assert lg.train(model, shapes(), TRAIN, device=torch.device("cpu")).model is model


WRONG_GRAFTING: dict[str, tuple[dict[str, Any], str]] = {
    "a name of data": ({"data": "digits"}, r"must be a lipgraft.data.Dataset, got 'digits'"),
    "a pair": ({"data": (images(), LABELS)}, r"must be a lipgraft.data.Dataset, got a tuple"),
    "part of an image": ({"count": 2.5}, "count must be at least 1, and a whole number, got 2.5"),
    "no images": ({"count": 0}, "count must be at least 1, and a whole number, got 0"),
    "a text": ({"ratio": "0.3"}, "ratio must be between 0 and 1, got '0.3'"),
    "part of a batch": ({"batch": 2.5}, "batch must be at least 1, and a whole number, got 2.5"),
}


@pytest.mark.parametrize("kind", WRONG_GRAFTING)
def test_grafting_that_cannot_begin_is_refused(kind: str) -> None:
    changes, words = WRONG_GRAFTING[kind]
    with pytest.raises(LipgraftError, match=words):
        lg.graft(**{"model": network(), "data": shapes(), "eps": 0.01, "count": 3, **changes})


ANSWERS: dict[str, Callable[[], Any]] = {
    "verify": lambda: lg.verify(network(), images(), LABELS, 0.1, settings={"timeout": 5}),  # type: ignore[arg-type]
    "verify, nothing": lambda: lg.verify(network(), images(), LABELS, 0.1, settings={}),  # type: ignore[arg-type]
    "verify, a group": lambda: lg.verify(network(), images(), LABELS, 0.1, settings=Limits()),  # type: ignore[arg-type]
    "lipschitz": lambda: lg.lipschitz(network(), images(), 0.1, settings={}),  # type: ignore[arg-type]
    "vnnlib": lambda: lg.interop.verify_vnnlib("a.onnx", "a.vnnlib", settings={}),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("verb", ANSWERS)
def test_settings_of_another_kind_are_refused(verb: str) -> None:
    with pytest.raises(SettingsError, match=r"settings must be (Verify|Lipschitz)Settings\(\.\.\.\), got a"):
        ANSWERS[verb]()


@pytest.mark.parametrize("timeout", ["5", None, -1, 0, float("nan")], ids=str)
def test_a_property_has_a_number_of_seconds(timeout: Any) -> None:
    with pytest.raises(SettingsError, match="timeout must be a finite number > 0, in seconds"):
        lg.interop.verify_vnnlib("net.onnx", "property.vnnlib", timeout)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": 2.5}, "steps must be at least 1, and a whole number, got 2.5"),
        ({"steps": "3"}, "steps must be at least 1, and a whole number, got '3'"),
        ({"restarts": 0}, "restarts must be at least 1, and a whole number, got 0"),
        ({"batch": 2.5}, "batch must be at least 1, and a whole number, got 2.5"),
        ({"step_size": float("nan")}, "step_size must be a finite number > 0, a multiple of eps, got nan"),
        ({"step_size": "large"}, "step_size must be a finite number > 0"),
        ({"generator": 5}, "generator must be a torch.Generator, got 5; a number can be the seed"),
    ],
    ids=str,
)
def test_an_attack_that_cannot_begin_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        lg.attack(network(), images(), LABELS, 0.1, **changes)


def test_masks_may_be_arrays() -> None:
    mask = np.arange(8) % 2 == 0
    grafted = lg.grafting.apply(network(), {"2": mask}, input_shape=SHAPE)  # type: ignore[dict-item]
    assert torch.equal(lg.grafting.masks_of(grafted)["2"], torch.from_numpy(mask))
    with pytest.raises(SettingsError, match="the mask of 2 must be a boolean tensor, got 'all'"):
        lg.grafting.apply(network(), {"2": "all"}, input_shape=SHAPE)  # type: ignore[dict-item]


# --- files


@pytest.mark.parametrize("name", ["model.safetensors", "model.onnx"])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": network().state_dict()}, "must be a torch.nn.Module, got a OrderedDict; pass the module itself"),
        ({"input_shape": 64}, "input_shape must be the positive sizes of one input, such as .*, got 64"),
        ({"input_shape": (1, 2.5, 3)}, "input_shape must be the positive sizes of one input"),
    ],
    ids=["state dict", "number", "part"],
)
def test_what_cannot_be_saved_is_refused(name: str, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(LipgraftError, match=words):
        lg.save(**{"model": network(), "path": tmp_path / name, "input_shape": SHAPE, **changes})
    assert not list(tmp_path.iterdir())


def test_a_shape_that_the_model_cannot_take_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot take inputs of input_shape \(1, 4, 4\)"):
        lg.save(network(), tmp_path / "model.safetensors", input_shape=(1, 4, 4))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["own.safetensors", "named.safetensors", "own.onnx"])
def test_loading_leaves_the_global_random_numbers_alone(name: str, tmp_path: Path) -> None:
    model = lg.models.build("digits-cnn", "digits", seed=0) if name.startswith("named") else network()
    lg.save(model, tmp_path / name, input_shape=None if name.startswith("named") else SHAPE)
    before = torch.get_rng_state()
    lg.load(tmp_path / name)
    assert torch.equal(torch.get_rng_state(), before)
