"""What a selection did, in Python and on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import typer

from lipgraft import models
from lipgraft.cli.graft import graft as graft_command
from lipgraft.errors import SettingsError
from lipgraft.grafting import LayerScores, Scores, masks_of, overlap, summarise

DIGITS = ["--data", "digits", "--eps", "0.1", "--count", "20", "--device", "cpu"]


def scores_with(s_u: dict[str, list[int]], count: int) -> Scores:
    def layer(values: list[int]) -> LayerScores:
        fields = {name: torch.ones(len(values)) for name in LayerScores.__dataclass_fields__}
        return LayerScores(**{**fields, "s_u": torch.tensor(values)})

    return Scores({name: layer(v) for name, v in s_u.items()}, count, (3,))


def test_unstable_neurons_that_are_grafted_leave_the_count_and_stay_in_the_denominator():
    scores = scores_with({"a": [10, 0], "b": [5, 5, 0, 0]}, count=10)
    masks = {"a": torch.tensor([True, False]), "b": torch.tensor([False, True, True, False])}
    summary = summarise(masks, scores)
    a, b = summary.layers
    assert (a.neurons, a.grafted, a.unr_before, a.unr_after, a.remaining) == (2, 1, 0.5, 0.0, 0.0)
    assert (b.neurons, b.grafted, b.unr_before, b.unr_after, b.remaining) == (4, 2, 0.25, 0.125, 0.5)
    assert summary.total.unr_before == pytest.approx(20 / 60)
    assert summary.total.unr_after == pytest.approx(5 / 60)
    assert summary.total.share == 0.5


def test_a_network_without_unstable_neurons_has_nothing_left():
    summary = summarise({"a": torch.tensor([False, False])}, scores_with({"a": [0, 0]}, count=3))
    assert summary.total.remaining == 0.0


def test_overlap_counts_common_neurons():
    first = {"a": torch.tensor([True, True, False, True]), "b": torch.tensor([False])}
    second = {"a": torch.tensor([True, False, True, True]), "b": torch.tensor([False])}
    both = overlap(first, second)
    assert (both.jaccard, both.share) == (0.5, pytest.approx(2 / 3))
    assert overlap(first, first).jaccard == overlap(first, first).share == 1.0
    nothing = {name: torch.zeros_like(mask) for name, mask in first.items()}
    assert overlap(nothing, nothing).jaccard == 1.0
    assert overlap(nothing, first).share == 0.0


def test_masks_of_different_networks_have_no_overlap():
    with pytest.raises(SettingsError, match="different networks"):
        overlap({"a": torch.ones(2, dtype=torch.bool)}, {"a": torch.ones(3, dtype=torch.bool)})
    with pytest.raises(SettingsError, match="do not fit"):
        summarise({"b": torch.ones(2, dtype=torch.bool)}, scores_with({"a": [0, 0]}, count=3))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "base.safetensors"
    models.save(models.build("digits-cnn", "digits", seed=0), path)
    return path


def command(*line: object) -> None:
    app = typer.Typer()
    app.command()(graft_command)
    app([str(word) for word in line], standalone_mode=False)


def test_the_command_writes_a_grafted_network_that_loads(checkpoint, tmp_path, capsys):
    out = tmp_path / "grafted.safetensors"
    command(checkpoint, *DIGITS, "--ratio", 0.25, "--out", out, "--show")
    shown = capsys.readouterr().out
    assert "UNR before" in shown
    assert "409 of 1636 neurons grafted (25.0%)" in shown
    grafted = models.load(out)
    assert sum(int(mask.sum()) for mask in masks_of(grafted).values()) == 409
    extra = models.read_metadata(out)["extra"]["graft"]
    assert (extra["criterion"], extra["ratio"], extra["count"]) == ("weighted-interval", 0.25, 20)


def test_the_command_speaks_json_compares_and_takes_settings(checkpoint, tmp_path, capsys):
    out = tmp_path / "grafted.safetensors"
    command(checkpoint, *DIGITS, "--criterion", "random", "--set", "seed=1", "--out", out)
    capsys.readouterr()
    line = (checkpoint, *DIGITS, "--criterion", "random", "--compare", out, "--json")
    command(*line, "--set", "seed=1")
    assert json.loads(capsys.readouterr().out)["overlap"]["jaccard"] == 1.0
    command(*line, "--set", "seed=2")
    answer = json.loads(capsys.readouterr().out)
    assert answer["overlap"]["share"] < 0.6
    assert answer["total"]["grafted"] == 818


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ratio", "1.5", "--show"], "ratio must be between 0 and 1"),
        (["--criterion", "best", "--show"], "unknown criterion 'best'"),
        (["--set", "pool", "--show"], "--set takes NAME=VALUE"),
        (["--set", "pol=1", "--show"], "unknown setting 'pol'"),
        ([], "nothing to do"),
    ],
)
def test_the_command_refuses_mistakes_before_it_scores(checkpoint, words, message, monkeypatch):
    monkeypatch.setattr(
        "lipgraft.grafting.sequence.score", lambda *_, **__: pytest.fail("scored in spite of the mistake")
    )
    with pytest.raises(SettingsError, match=message):
        command(checkpoint, *DIGITS, *words)
