"""lipgraft watch: how far a run is, while another process writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

import lipgraft as lg
from command_line import failure
from lipgraft.cli import main
from lipgraft.runs import verify_run
from lipgraft.runs.store import Row
from lipgraft.runs.watch import look


def test_a_verification_is_followed_while_it_runs(tmp_path: Path) -> None:
    data, model = lg.data.load("digits"), lg.models.build("digits-cnn", "digits", seed=0)
    seen: list[str] = []

    def decided(row: Row) -> None:
        seen.extend(look(tmp_path))

    verify_run(model, data, 0.001, tmp_path, count=3, decided=decided)
    assert seen[0].startswith(f"{tmp_path.name}: 1 image, ")
    assert seen[-1].startswith(f"{tmp_path.name}: 3 images, ")


def test_a_training_inside_a_run_shows_its_last_whole_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "unfinished" / "pretrained"
    place.mkdir(parents=True)
    (place / "metrics.jsonl").write_text('{"epoch": 1, "loss": 2.0}\n{"epoch": 2, "loss": 1.5, "sa": 0.75}\n{"epo')
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages" / "one.json").write_text("{}")
    assert main(["watch", str(tmp_path), "--once"]) == 0
    assert capsys.readouterr().out.splitlines() == ["pretrained: epoch 2, loss 1.5, SA 75.0%", "1 stage finished"]


def test_a_run_that_has_got_nowhere_and_none_at_all_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", str(tmp_path), "--once"]) == 0
    assert "nothing finished yet" in capsys.readouterr().out
    assert main(["watch", str(tmp_path / "no"), "--once"]) == 1
    assert "there is no run" in failure(capsys)
