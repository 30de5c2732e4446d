"""The competition's scripts, its table of instances, and the comparison with what other verifiers answered."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from interop_cases import two_sides, vnnlib
from lipgraft.bench.published import Answer, read_published, truth
from lipgraft.bench.vnncomp import bench_vnncomp, find_benchmarks
from lipgraft.cli import app
from lipgraft.errors import SettingsError
from lipgraft.interop import InstanceResult, verify_instances
from lipgraft.report.contest import figures, joined
from lipgraft.report.scoreboard import best_tool, cactus, scoreboard_page

SCRIPTS = Path(__file__).parents[2] / "vnncomp"


def script(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LIPGRAFT_PYTHON": sys.executable}
    command = ["bash", str(SCRIPTS / f"{name}.sh"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_the_scripts_write_the_word_and_the_counterexample(tmp_path: Path) -> None:
    net, spec, result = two_sides(tmp_path / "net.onnx", 2), tmp_path / "spec.vnnlib", tmp_path / "result.txt"
    spec.write_text(vnnlib([-1.0, -1.0], [1.0, 1.0], 2, "(>= Y_0 0.9)"))
    assert script("prepare_instance", "v1", "name", str(net), str(spec)).returncode == 0
    assert script("prepare_instance", "v1", "name", str(net), str(tmp_path / "none")).returncode == 1
    done = script("run_instance", "v1", "name", str(net), str(spec), str(result), "60")
    assert done.returncode == 0, done.stderr
    words = result.read_text().splitlines()
    assert words[0] == "sat"
    assert words[1].startswith("((X_0 ")
    assert words[-1].endswith("))")
    assert script("run_instance", "v2").returncode == 1


def contest(folder: Path) -> tuple[Path, Path]:
    """A benchmark of four instances, one without its files, and the tables of three verifiers.

    The third is answered with sat by both others although it is unsat, the fourth they do not agree on.
    """
    home = folder / "vnncomp2022_benchmarks" / "benchmarks" / "sides"
    (home / "onnx").mkdir(parents=True)
    (home / "vnnlib").mkdir()
    two_sides(home / "onnx" / "net.onnx", 2)
    limits = {"a": 0.9, "b": 1.01, "c": 1.02, "d": 0.8}
    for name, limit in limits.items():
        text = vnnlib([-1.0, -1.0], [1.0, 1.0], 2, f"(>= Y_0 {limit})")
        (home / "vnnlib" / f"{name}.vnnlib").write_text(text)
    lines = [f"onnx/net.onnx,vnnlib/{name}.vnnlib,100" for name in limits]
    (home / "instances.csv").write_text("\n".join([*lines, "onnx/lost.onnx,vnnlib/a.vnnlib,100"]))
    answers = {
        "alpha_beta_crown": {"a": ("sat", 5.0), "b": ("unsat", 6.0), "c": ("sat", 7.0), "d": ("sat", 8.0)},
        "nnenum": {"a": ("sat", 1.5), "b": ("timeout", 100.0), "c": ("sat", 2.0), "d": ("unsat", 2.5)},
        "somebody_else": {"b": ("sat", 1.0)},
    }
    results = folder / "results"
    for tool, said in answers.items():
        (results / tool).mkdir(parents=True)
        rows = [
            f"sides,./benchmarks/sides/onnx/net.onnx,./benchmarks/sides/vnnlib/{name}.vnnlib,0.1,{word},{seconds}"
            for name, (word, seconds) in said.items()
        ]
        (results / tool / "results.csv").write_text("\n".join(rows) + "\n")
    return folder / "vnncomp2022_benchmarks", results


def test_answers_are_compared_with_what_the_others_agree_on(tmp_path: Path) -> None:
    folder, results = contest(tmp_path)
    [row] = bench_vnncomp(find_benchmarks(folder), tmp_path / "out", published=read_published(results), limits=(60.0,))
    assert [one["status"] for one in row["results"]] == ["sat", "unsat", "unsat", "sat"]
    assert [one["truth"] for one in row["results"]] == ["sat", "unsat", "sat", "disputed"]
    counts = {key: row[key] for key in ("instances", "here", "asked", "solved", "wrong", "disputed")}
    assert counts == {"instances": 5, "here": 4, "asked": 4, "solved": 4, "wrong": 1, "disputed": 1}
    crown, nnenum = row["tools"]["alpha-beta-CROWN"], row["tools"]["nnenum"]
    assert (crown["solved"], crown["overhead"], crown["median"]) == (4, 5.0, 1.5)
    assert (nnenum["solved"], nnenum["asked"]) == (3, 4)
    assert best_tool(row) == "alpha-beta-CROWN"
    assert {one["limit"] for one in row["results"]} == {60.0}


def test_a_second_run_asks_nothing_again_and_a_spent_time_limit_keeps_what_is_there(tmp_path: Path) -> None:
    folder, _ = contest(tmp_path)
    asked: list[str] = []

    def run(every: int, seconds: float) -> int:
        rows = bench_vnncomp(
            find_benchmarks(folder),
            tmp_path / "out",
            every=every,
            total_seconds=seconds,
            progress=lambda name, done, total, result: asked.append(result.vnnlib),
        )
        return int(rows[0]["asked"])

    assert run(2, 600.0) == 2
    assert asked == ["vnnlib/a.vnnlib", "vnnlib/c.vnnlib"]
    assert run(1, 0.0) == 2
    assert run(1, 600.0) == 4
    assert asked[2:] == ["vnnlib/b.vnnlib", "vnnlib/d.vnnlib"]


def test_a_page_and_a_plot_are_made_of_the_records(tmp_path: Path) -> None:
    folder, results = contest(tmp_path)
    record, page = tmp_path / "record.json", tmp_path / "page.md"
    run = [
        "bench",
        "vnncomp",
        str(folder),
        "--results",
        str(results),
        "--device",
        "cpu",
        "--out",
        str(tmp_path / "out"),
    ]
    done = CliRunner().invoke(app, [*run, "--out", str(tmp_path / "out"), "--limit", "60", "--json", str(record)])
    assert done.exit_code == 0, done.output
    assert "4 of 4 solved, 1 wrong" in done.output
    done = CliRunner().invoke(app, ["bench", "vnncomp-page", str(record), "--out", str(page)])
    assert done.exit_code == 0, done.output
    text = page.read_text()
    assert "| sides | 5 | 4 | 4 | 1 |" in text
    assert " | 60 |\n" in text
    assert (
        "alpha-beta-CROWN solved 4 of 4 (lipgraft 4 of the same). nnenum solved 3 of 4 (lipgraft 4 of the same)."
        in text
    )
    assert str(tmp_path) not in text
    data = json.loads(record.read_text())
    assert scoreboard_page([data], "page.svg") == text
    assert scoreboard_page([data, data], "page.svg").count("\n## ") == 1, "one section for each repository"
    (tmp_path / "note.txt").write_text("Beside others.\n")
    noted = ["bench", "vnncomp-page", str(record), "--note", str(tmp_path / "note.txt"), "--out", str(page)]
    assert CliRunner().invoke(app, noted).exit_code == 0
    assert page.read_text() == scoreboard_page([data], "page.svg", "Beside others.")
    assert "\n\nBeside others.\n\n" in page.read_text()
    assert CliRunner().invoke(app, [*noted[:3], "--note", str(tmp_path / "none"), *noted[-2:]]).exit_code == 1
    assert page.with_suffix(".svg").read_text() == cactus([data])
    assert "alpha-beta-CROWN, 4" in cactus([data])


def test_records_of_one_benchmark_become_one_row_in_which_answers_count(tmp_path: Path) -> None:
    folder, results = contest(tmp_path)
    published = read_published(results)

    def record(limits: list[float], *rounds: float) -> dict[str, Any]:
        rows = bench_vnncomp(find_benchmarks(folder), tmp_path / f"out{limits}", published=published, limits=rounds)
        about = {"hardware": {"processor": f"of {limits}"}, "versions": {}}
        return {**about, "settings": {"title": "2022", "limits": limits}, "results": rows}

    first = record([1e-9], 1e-9)
    assert first["results"][0]["solved"] == 0
    table = folder / "benchmarks" / "sides" / "instances.csv"
    table.write_text("\n".join(table.read_text().splitlines()[1:3]))
    later, own = record([60.0], 60.0), record([], 100.0)
    both = joined([first, later, own])
    assert [len(one["results"]) for one in both] == [1, 0, 0]
    [row] = both[0]["results"]
    assert [one["status"] for one in row["results"]] == ["timeout", "unsat", "unsat", "timeout"]
    assert [one["limit"] for one in row["results"]] == [1e-9, 60.0, 60.0, 1e-9]
    counts = {key: row[key] for key in ("instances", "here", "asked", "solved", "wrong", "disputed")}
    assert counts == {"instances": 5, "here": 4, "asked": 4, "solved": 2, "wrong": 1, "disputed": 1}
    assert row["tools"]["alpha-beta-CROWN"]["in_limit"] == 3, "one is its start-up alone, two had 60 s here"
    page = scoreboard_page([first, later, own], "page.svg")
    assert page.count("| sides |") == 1
    assert " | 1e-09, 60, the competition's |" in page
    assert all(f"of {limits};" in page for limits in ([1e-9], [60.0], []))
    assert cactus([first, later, own]) == cactus([both[0]])
    assert joined([later, first])[0]["results"][0]["results"] == row["results"], "in any order"


def test_records_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    folder, _ = contest(tmp_path)
    rows = bench_vnncomp(find_benchmarks(folder), tmp_path / "out")
    record = {"settings": {"title": "2022", "limits": []}, "results": rows}
    other = json.loads(json.dumps(record))
    other["results"][0]["results"][1]["status"] = "sat"
    with pytest.raises(SettingsError, match=r"b\.vnnlib is unsat in one record and sat in another"):
        joined([record, other])


def test_a_longer_try_counts_more_than_a_shorter_one_and_any_try_more_than_an_error() -> None:
    answers = {"error": ("error", 90.0), "short": ("timeout", 5.0), "long": ("unknown", 60.0)}

    def record(name: str) -> dict[str, Any]:
        status, seconds = answers[name]
        one = {"onnx": "n", "vnnlib": "p", "limit": 60.0, "status": status, "seconds": seconds, "reason": name}
        row = figures("sides", (1, 1), 1, [{**one, "truth": None, "tools": {}}], {})
        return {"settings": {"title": "2022", "limits": [60.0]}, "results": [row]}

    for order in itertools.permutations(answers):
        first, *_ = joined([record(name) for name in order])
        assert first["results"][0]["results"][0]["reason"] == "long"


def test_the_scoreboard_of_the_documentation_is_what_its_records_and_its_note_make() -> None:
    results = Path(__file__).parents[2] / "docs" / "results"
    records = [json.loads(file.read_text()) for file in sorted((results / "vnncomp").glob("*.json"))]
    note = (results / "vnncomp" / "note.txt").read_text().strip()
    assert (results / "vnncomp.md").read_text() == scoreboard_page(records, "vnncomp.svg", note)
    assert (results / "vnncomp.svg").read_text() == cactus(records)


def test_a_second_round_asks_only_what_is_open_and_what_others_decided_fastest_comes_first(tmp_path: Path) -> None:
    folder, results = contest(tmp_path)
    asked: list[tuple[str, float]] = []

    def run(*limits: float) -> list[str]:
        [row] = bench_vnncomp(
            find_benchmarks(folder),
            tmp_path / "out",
            published=read_published(results),
            limits=limits,
            progress=lambda name, done, total, result: asked.append((result.vnnlib[7], result.timeout)),
        )
        assert {one["limit"] for one in row["results"]} == {max(limits)}, "others are compared within the last limit"
        return [one["status"] for one in row["results"]]

    decided = ["sat", "unsat", "unsat", "sat"]
    assert run(1e-9, 60.0) == decided
    assert asked == [*((name, 1e-9) for name in "abcd"), *((name, 60.0) for name in "acdb")]
    del asked[:]
    assert run(1e-9, 60.0) == decided, "both rounds are known"
    assert run(50.0) == decided, "nothing took longer than what it may take now"
    assert asked == []


def test_the_record_is_written_while_the_instances_are_decided(tmp_path: Path) -> None:
    folder, _ = contest(tmp_path)
    records: list[int] = []

    def killed(name: str, done: int, total: int, result: InstanceResult) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench_vnncomp(
            find_benchmarks(folder),
            tmp_path / "out",
            progress=killed,
            record=lambda rows: records.append(rows[0]["asked"]),
        )
    assert records == [1]


def test_unknown_benchmarks_and_folders_without_results_are_refused(tmp_path: Path) -> None:
    folder, _ = contest(tmp_path)
    with pytest.raises(SettingsError, match="it has sides"):
        find_benchmarks(folder, ["other"])
    with pytest.raises(SettingsError, match=r"no table called instances\.csv"):
        find_benchmarks(tmp_path / "results")
    with pytest.raises(SettingsError, match="no results of alpha-beta-CROWN"):
        read_published(folder)


def test_the_truth_is_what_all_who_answered_say() -> None:
    sat, unsat, none = Answer("sat", 1.0), Answer("unsat", 1.0), Answer(None, 1.0)
    assert truth([sat, none, None, sat]) == "sat"
    assert truth([sat, unsat]) == "disputed"
    assert truth([none, None]) is None


def test_a_line_of_several_networks_is_an_error_of_its_own(tmp_path: Path) -> None:
    table = tmp_path / "instances.csv"
    two_sides(tmp_path / "net.onnx", 2)
    (tmp_path / "spec.vnnlib").write_text(vnnlib([0.0, 0.0], [1.0, 1.0], 2, "(>= Y_0 2)"))
    table.write_text("\"[('f', 'net.onnx'), ('g', 'net.onnx')]\",spec.vnnlib,60\nnet.onnx,spec.vnnlib,60\n")
    first, second = verify_instances(table).results
    assert (first.status, second.status) == ("error", "unsat")
    assert "several networks" in first.reason


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    folder, _ = contest(tmp_path)
    asked: list[str] = []

    def interrupted(name: str, done: int, total: int, result: InstanceResult) -> None:
        asked.append(result.vnnlib)
        if len(asked) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench_vnncomp(find_benchmarks(folder), tmp_path / "out", progress=interrupted)
    [row] = bench_vnncomp(find_benchmarks(folder), tmp_path / "out", progress=interrupted)
    assert asked == [f"vnnlib/{name}.vnnlib" for name in "abcd"]
    assert row["asked"] == 4
