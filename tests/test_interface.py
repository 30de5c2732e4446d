"""The public face: every name that the documentation promises is there, with the arguments it promises."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import lipgraft as lg

PACKAGES = ("attacks", "bounds", "data", "grafting", "interop", "models", "sensitivity", "training", "verification")
CLASSES = ("Bounds", "Box", "LipgraftError", "TrainSettings", "Verdict", "VerifySettings")

# function: its first arguments in order, then the keywords that must be there, each with its default.
SIGNATURES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "data.load": (("name", "root"), {"root": None}),
    "models.build": (("name", "dataset"), {}),
    "Box.linf": (("x", "eps"), {"low": 0.0, "high": 1.0}),
    "bound": (("model", "box", "method", "C"), {"method": "crown", "C": None}),
    "attack": (("model", "x", "y", "eps", "method"), {"method": "pgd", "steps": 100, "restarts": 1, "low": 0.0}),
    "verify": (("model", "x", "y", "eps"), {"low": 0.0, "high": 1.0}),
    "lipschitz": (("model", "x", "eps", "method"), {"method": "jacobian", "units": "pixel", "low": 0.0, "high": 1.0}),
    "graft": (("model", "data", "eps"), {"criterion": "weighted-interval", "ratio": 0.3}),
    "grafting.score": (("model", "x", "eps", "bounds"), {"bounds": "crown"}),
    "grafting.select": (("model", "scores", "criterion", "ratio"), {"criterion": "weighted-interval", "ratio": 0.5}),
    "grafting.apply": (("model", "masks", "slope", "intercept"), {"slope": 0.4, "intercept": 0.0}),
    "train": (("model", "data", "settings"), {}),
    "load": (("path",), {}),
    "save": (("model", "path"), {}),
}


def named(name: str) -> Callable[..., Any]:
    found: Any = lg
    for part in name.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_verb_takes_what_is_promised(name: str) -> None:
    first, defaults = SIGNATURES[name]
    parameters = inspect.signature(named(name)).parameters
    assert tuple(parameters)[: len(first)] == first
    for keyword, default in defaults.items():
        assert parameters[keyword].default == default
    for keyword, parameter in parameters.items():  # settings are keyword-only
        assert keyword in first or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD) or name == "load"


def test_the_packages_are_nouns_and_the_verbs_functions() -> None:
    assert all(inspect.ismodule(getattr(lg, name)) for name in PACKAGES)
    assert all(inspect.isclass(getattr(lg, name)) for name in CLASSES)
    assert all(inspect.isfunction(named(name)) for name in SIGNATURES)
    assert set(lg.__all__) >= {*PACKAGES, *CLASSES, *(name for name in SIGNATURES if "." not in name), "__version__"}
    assert all(hasattr(lg, name) for name in lg.__all__)


def test_results_have_the_promised_fields() -> None:
    assert {"lower", "upper", "layers"} <= {field.name for field in dataclasses.fields(lg.Bounds)}
    fields = {field.name for field in dataclasses.fields(lg.Verdict)}
    assert {"status", "reason", "counterexample", "margin", "seconds", "method"} <= fields


def test_the_documented_session_runs(tmp_path: Path) -> None:
    data = lg.data.load("digits", root=None)
    model = lg.models.build("digits-cnn", dataset="digits").eval()
    x, y = lg.data.images(data.x_test[:2]), data.y_test[:2]
    bounds = lg.bound(model, lg.Box.linf(x, 0.01, low=0.0, high=1.0), method="crown", C=None)
    assert (bounds.lower <= bounds.upper).all()
    assert lg.attack(model, x, y, 0.01, method="pgd", steps=2, restarts=1).shape == x.shape
    assert {v.status for v in lg.verify(model, x, y, 0.01, timeout=5.0)} <= {"verified", "falsified", "unknown"}
    assert lg.lipschitz(model, x, 0.01, method="output-width", units="pixel").shape == (2,)
    grafted = lg.graft(model, data, 0.01, criterion="weighted-interval", ratio=0.3, count=4)
    result = lg.train(grafted, data, lg.TrainSettings(epochs=0, eps=0.01), device="cpu")
    for name in ("net.safetensors", "net.onnx"):
        lg.save(result.model, tmp_path / name)
        again = lg.load(tmp_path / name)
        torch.testing.assert_close(again(x), result.model(x), atol=1e-4, rtol=1e-4)
