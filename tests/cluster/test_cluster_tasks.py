"""Whole pieces of work over the workers of a Ray cluster: instances of a benchmark, rows of a table."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from command_line import failure
from deadly import DeadlyTask
from lipgraft import training
from lipgraft.bench.vnncomp import bench_vnncomp, find_benchmarks
from lipgraft.cli import main
from lipgraft.cluster import tasks
from lipgraft.cluster.instances import deciding
from lipgraft.cluster.rows import interleaved
from lipgraft.cluster.tasks import Died
from lipgraft.interop import export_bundle
from lipgraft.runs import stages
from workers import Workers

pytest.importorskip("ray", reason="Ray is not installed: pip install ray")
pytestmark = pytest.mark.xdist_group("ray")


@pytest.mark.long
def test_what_a_dead_worker_left_is_done_again_and_what_kills_every_worker_is_given_up(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "DEATHS", 2)  # each costs the seconds in which the next worker starts
    found = list(workers.cluster.each(partial(DeadlyTask, tmp_path / "happened"), range(1, 8)))
    assert list(workers.cluster.each(partial(DeadlyTask, tmp_path / "happened"), [])) == []
    assert len(workers.notices) == 1 + 2
    assert len(found) == 7
    assert dict(found) == {1: 1, 2: 4, 3: 9, 4: 16, 5: Died(), 6: 36, 7: 49}


@pytest.mark.long
def test_instances_are_answered_as_in_one_process_and_none_is_asked_again(
    address: str, workers: Workers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    x = torch.rand(6, 1, 2, 2)
    y = model(x).argmax(1)
    y[0] = (y[0] + 1) % 3
    export_bundle(model, x, y, 0.02, tmp_path / "sets" / "mine")
    here = bench_vnncomp(find_benchmarks(tmp_path / "sets"), tmp_path / "alone")
    command = ["bench", "vnncomp", str(tmp_path / "sets"), "--out", str(tmp_path / "many"), "--device", "cpu"]
    command += ["--cluster", address, "--workers", "2", "--json", str(tmp_path / "many.json")]
    assert main(command) == 0
    [row] = json.loads((tmp_path / "many.json").read_text())["results"]
    assert [one["status"] for one in row["results"]] == [one["status"] for one in here[0]["results"]]
    assert {one["status"] for one in row["results"]} == {"sat", "unsat"}
    assert [one["vnnlib"] for one in row["results"]] == [one["vnnlib"] for one in here[0]["results"]]
    asked = list[str]()
    again = bench_vnncomp(
        find_benchmarks(tmp_path / "sets"),
        tmp_path / "many",
        decide=deciding(workers.cluster, None),
        progress=lambda name, done, total, result: asked.append(name),
    )
    assert asked == []
    assert again[0]["results"] == row["results"]


ROWS = ["cnn-b/baseline", "cnn-b/ours"]


@pytest.mark.long
def test_rows_of_a_table_are_those_of_one_process_and_what_they_share_is_made_once(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = ["pretrain.epochs=1", "defaults.finetune.epochs=1", "certify.count=2"]
    command = ["reproduce", "table1", "--scale", "smoke", "--device", "cpu", "--threads", "1", "--json"]
    command += [word for row in ROWS for word in ("--only", row)]
    command += [word for change in changes for word in ("--set", change)]
    answers = []
    for name, more in (("alone", []), ("many", ["--cluster", address, "--workers", "2"])):
        assert main([*command, "--out", str(tmp_path / name), *more]) == 0
        answers.append(json.loads(capsys.readouterr().out))
        for room, work in ((training, "train"), (stages, "verify_run")):  # from here on the workers do it all
            monkeypatch.setattr(room, work, None)
    alone, many = (
        {model["name"]: (model["sa"], model["va"]) for run in one[0]["runs"] for model in run["models"]}
        for one in answers
    )
    assert alone == many
    assert set(many) == {"baseline", "ours"}
    made = [sorted(path.name for path in (tmp_path / name / "shared").glob("*.json")) for name in ("alone", "many")]
    assert made[0] == made[1]
    assert not list((tmp_path / "many" / "rows").rglob("config.yaml"))
    assert (tmp_path / "many" / "table1" / "report.html").exists()


def test_rows_of_different_runs_come_first() -> None:
    assert interleaved(["a/1", "a/2", "b/1", "c/1", "c/2", "c/3"]) == ["a/1", "b/1", "c/1", "a/2", "c/2", "c/3"]


def test_runs_with_certificates_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "table1", "--scale", "smoke", "--out", str(tmp_path), "--cluster", "local"]
    assert main([*command, "--set", "certify.certificates=true"]) == 1
    assert "leave out --cluster" in failure(capsys)
