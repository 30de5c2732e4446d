"""What a run measures of a model beside its verdicts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lipgraft import models
from lipgraft.bounds import Bounds, bound
from lipgraft.bounds.margins import other_classes
from lipgraft.box import Box
from lipgraft.data import images, load
from lipgraft.network import trace
from lipgraft.runs import measurements
from lipgraft.runs.recipe import AttackSettings
from lipgraft.training import robust_accuracy

EPS = 0.02


@pytest.mark.parametrize("method", ["crown", "crown-ibp", "alpha-crown"])
def test_shares_and_margins_are_those_of_their_own_images_and_crown_bounds_each_image_once(
    method: str, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models.build("digits-cnn", "digits", seed=0).eval()
    x = torch.rand(9, 1, 8, 8, generator=generator)
    y = model(x).argmax(1)
    y[[1, 4]] += 1
    y %= 10
    reached = torch.tensor([1, 0, 1, 1, 0, 1, 0, 1, 1], dtype=torch.bool)
    right = torch.tensor([0, 2, 3, 5, 6, 7, 8])
    network = trace(model, (1, 8, 8))
    _, rows = other_classes(y[right], 10, x.dtype)
    expected = bound(network, Box.linf(x[right], EPS), method, rows).lower.amin(1)
    refined: list[int] = []

    def counted(network: Any, box: Box, method: str = "crown", *rest: Any, **named: Any) -> Bounds:
        if method != "crown-ibp" and named.get("layers") is None:
            refined.append(len(box))
        return bound(network, box, method, *rest, **named)

    monkeypatch.setattr(measurements, "bound", counted)
    layers, margins = measurements.shares_and_margins(model, x, y, EPS, method, reached)
    assert refined == [7]
    torch.testing.assert_close(torch.tensor(margins), expected, rtol=1e-4, atol=1e-5)
    alone = measurements.unstable_shares(model, x[reached], EPS)
    assert [layer["unr"] for layer in layers] == pytest.approx([layer["unr"] for layer in alone], abs=2e-3)
    assert any(layer["unr"] > 0.01 for layer in layers)


def test_an_interrupted_attack_goes_on_with_the_lot_it_was_at_and_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = models.build("digits-cnn", "digits", seed=0).eval(), load("digits")
    data = replace(data, x_test=data.x_test[:50], y_test=data.y_test[:50])
    settings = AttackSettings(steps=3, restarts=2)
    monkeypatch.setattr(measurements, "LOT", 20)
    whole = measurements.accuracies(model, data, EPS, settings, 0, tmp_path / "whole", False)
    assert whole["sa"] == pytest.approx(float((model(images(data.x_test)).argmax(1) == data.y_test).float().mean()))
    seeds: list[int] = []

    def counted(*args: Any, seed: int, **named: Any) -> Any:
        if len(seeds) == 1:
            seeds.append(-1)
            raise KeyboardInterrupt
        seeds.append(seed)
        return robust_accuracy(*args, seed=seed, **named)

    monkeypatch.setattr(measurements, "robust_accuracy", counted)
    with pytest.raises(KeyboardInterrupt):
        measurements.accuracies(model, data, EPS, settings, 0, tmp_path / "cut", False)
    again = measurements.accuracies(model, data, EPS, settings, 0, tmp_path / "cut", False)
    assert len(seeds) == 4  # three lots and the interruption
    assert len(set(seeds)) == 4  # each lot has random starts of its own
    assert {**again, "seconds": 0} == {**whole, "seconds": 0}
