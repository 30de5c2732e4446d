"""The quickstart as a user sees it: the command, its table, its page; on a smaller scale, with the same story."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lipgraft import runs
from lipgraft.cli import main

pytestmark = pytest.mark.xdist_group("quickstart")  # one process makes the fixture, and runs all tests on it

SMALL = """
extends: quickstart
pretrain: {epochs: 8}
calibration: {count: 40}
defaults: {finetune: {epochs: 3}}
models:
  - {name: baseline, title: Baseline}
  - {name: lg, title: LG, graft: {criterion: lg}}
  - {name: ours, title: Ours, graft: {criterion: weighted-interval}}
attack: {count: 100, steps: 10, restarts: 1}
certify: {count: 40, verifier: {limits: {max_subproblems: 0}}}
lipschitz: {notions: [output-width], count: 4}
examples: 3
"""


def command(*line: str) -> int:
    """`lipgraft ...`; returns the exit code."""
    return main(line)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run; its recipe lies beside it."""
    folder = tmp_path_factory.mktemp("quickstart")
    (folder / "small.yaml").write_text(SMALL)
    assert command("run", str(folder / "small.yaml"), "--out", str(folder / "out"), "--device", "cpu") == 0
    return folder / "out"


def test_the_run_ends_with_one_table_and_the_path_of_the_page(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("run", str(finished.parent / "small.yaml"), "--out", str(finished), "--device", "cpu") == 0
    out, err = capsys.readouterr()
    for head in ("Model", "SA %", "RA %", "VA %", "UNR %", "Lipschitz", "Time s"):
        assert head in out
    for model in runs.load_recipe(finished.parent / "small.yaml").models:
        assert model.title in out
    page = Path(out.strip().splitlines()[-1].removeprefix("Report: "))
    assert page.read_text().startswith("<!doctype html>")
    assert "Baseline: certifying 40 images, done before" in err


def test_grafting_raises_verified_accuracy_and_lowers_the_lipschitz_constant(finished: Path) -> None:
    table = {model["name"]: model for model in json.loads((finished / "results.json").read_text())["models"]}
    baseline, lg, ours = table["baseline"], table["lg"], table["ours"]
    assert ours["va"] > lg["va"] >= baseline["va"]
    assert ours["lipschitz"]["output-width"] < lg["lipschitz"]["output-width"] < baseline["lipschitz"]["output-width"]
    assert ours["unr"] < baseline["unr"]
    assert ours["sa"] > 0.85


def test_every_proof_is_written_down_and_checked(finished: Path) -> None:
    for model in json.loads((finished / "results.json").read_text())["models"]:
        assert model["proofs"]["accepted"] == model["proofs"]["count"] == round(40 * model["va"]) > 0
        written = list((finished / "certificates" / model["name"]).glob("*.npz"))
        assert sum(".counterexample" not in path.name for path in written) == model["proofs"]["count"]


def test_the_report_command_prints_the_same_table_from_the_files(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("report", str(finished)) == 0
    text = capsys.readouterr().out
    assert command("report", str(finished), "--json") == 0
    table = json.loads(capsys.readouterr().out)
    assert Path(table["report"]) == finished / "report.html"
    for model in table["models"]:
        row = next(line for line in text.splitlines() if f" {model['title']} " in line)
        assert f" {100 * model['va']:.1f} " in row


def fails(line: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of an error."""
    assert command(*line) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("error: ")
    return err


def test_mistakes_are_answered_with_one_line(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "Did you mean 'quickstart'" in fails(["run", "quickstar"], capsys)
    assert "quickstart" in fails(["run"], capsys)
    (tmp_path / "bad.yaml").write_text("extends: quickstart\nepps: 1\n")
    assert "Did you mean 'eps'" in fails(["run", str(tmp_path / "bad.yaml")], capsys)
    other = ["run", str(finished.parent / "small.yaml"), "--out", str(finished), "--seed", "4"]
    assert "seed = 0, not 4" in fails(other, capsys)
    other[-2:] = ["--set", "certify.count=7"]
    assert "not 7" in fails(other, capsys)
    assert "not a run directory" in fails(["report", str(tmp_path)], capsys)


def test_ctrl_c_is_answered_with_one_line_that_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "run", interrupted)
    assert command("run", "quickstart", "--out", str(tmp_path), "--device", "cpu") == 130
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "run the same command again" in err


def test_every_key_of_a_recipe_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("run", "--explain") == 0
    assert "| `eps` |" in capsys.readouterr().out
