"""Runs: the results file, resuming, refusing, and surviving kill -9."""

from __future__ import annotations

import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from rich.console import Console
from torch import Tensor, nn

from lipgraft import grafting, models
from lipgraft.bench import bench_verify
from lipgraft.checker import check_folder
from lipgraft.cli import main
from lipgraft.data import Dataset
from lipgraft.errors import LipgraftError, SettingsError
from lipgraft.interop.module import INPUT, OnnxNetwork, Step
from lipgraft.network import trace
from lipgraft.runs import RESULTS, Identity, ResultStore, Row, StoreError, read_results, verify_run
from lipgraft.runs.fingerprint import network_fingerprint
from lipgraft.runs.progress import SHOWN, VerifyProgress, WorkerState
from lipgraft.verification import (
    AttackSettings,
    BranchSettings,
    Limits,
    OptimiseSettings,
    Verdict,
    VerifySettings,
    measure,
)

SETTINGS = VerifySettings(
    attack=AttackSettings(steps=5, restarts=1),
    optimise=OptimiseSettings(iterations=3),
    branch=BranchSettings(iterations=2),
    images=4,
    arithmetic="fast",
)
FLAT_SETTINGS = (
    '{"alpha_iterations": 3, "attack": "pgd-targeted", "attack_restarts": 1, "attack_steps": 5, '
    '"bab_iterations": 2, "batch": 4096, "branching": "intercept", "candidates": 3, "capture": true, '
    '"decay": 0.98, "images": 4, "leaf_iterations": 50, "lp_size": 2000000, "lr_alpha": 0.1, '
    '"lr_beta": 0.2, "lr_root": 0.1, "max_subproblems": null, "pool_gigabytes": null, "recheck": "none", '
    '"refine": "vectors", "refine_iterations": 10, "search_every": 8, "search_steps": 20, "seed": 0, '
    '"spill_gigabytes": null, "timeout": 300.0, "total_seconds": null}'
)
"""What lipgraft wrote for these settings when they had no groups."""
IDENTITY = Identity("abc", "digits", 0.1, {"timeout": 1.0})


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(9, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3))


def dataset(count: int = 50) -> Dataset:
    """Random images with the network's own labels, but for every tenth."""
    x = torch.randint(256, (count, 3, 3, 1), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    y = network()(x.permute(0, 3, 1, 2) / 255).argmax(1)
    y[::10] = (y[::10] + 1) % 3
    return Dataset("random", x, y, x, y, (0.0,), (1.0,), ("a", "b", "c"), "none", 1)


def table(rows: list[Row]) -> list[tuple[object, ...]]:
    return [(r.image, r.label, r.verdict.status, r.verdict.reason) for r in rows]


def example(image: int) -> Row:
    point = torch.arange(4.0).reshape(1, 2, 2) if image % 2 else None
    return Row(image, 3, Verdict("falsified", None, point, -0.5, 1.5, "pgd", 7, 0.25, ended=2.5))


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    with ResultStore(tmp_path / RESULTS, IDENTITY) as store:
        for image in (4, 1):
            store.put(example(image))
        store.put(Row(2, 0, Verdict("unknown", "timeout", margin=float("nan"))))
        assert store.done() == {1, 2, 4}
    rows = read_results(tmp_path / RESULTS)
    assert [row.image for row in rows] == [1, 2, 4]
    assert rows[0].verdict.counterexample is not None
    assert torch.equal(rows[0].verdict.counterexample, torch.arange(4.0).reshape(1, 2, 2))
    written, read = vars(example(4).verdict), vars(rows[2].verdict)
    assert written == read
    assert rows[1].verdict.margin is None


def test_an_image_is_written_once(tmp_path: Path) -> None:
    with ResultStore(tmp_path / RESULTS, IDENTITY) as store:
        store.put(example(1))
        store.put(Row(1, 3, Verdict("verified")))
        assert [row.verdict.status for row in store.rows()] == ["falsified"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "abd"}, "another model"),
        ({"dataset": "mnist"}, "dataset digits instead of mnist"),
        ({"eps": 0.2}, "eps 0.1 instead of 0.2"),
        ({"settings": {"timeout": 2.0}}, "timeout 1.0 instead of 2.0"),
    ],
)
def test_results_of_another_run_are_refused(tmp_path: Path, change: dict[str, object], words: str) -> None:
    ResultStore(tmp_path / RESULTS, IDENTITY).close()
    with pytest.raises(StoreError, match=words):
        ResultStore(tmp_path / RESULTS, replace(IDENTITY, **change))  # type: ignore[arg-type]
    ResultStore(tmp_path / RESULTS, IDENTITY).close()


def test_a_file_that_is_no_results_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / RESULTS).write_bytes(b"something else entirely, and long enough to be looked at" * 20)
    with pytest.raises(StoreError, match="not a results file"):
        ResultStore(tmp_path / RESULTS, IDENTITY)
    with pytest.raises(StoreError, match="no results file"):
        read_results(tmp_path / "nowhere")


@pytest.mark.skipif(sys.platform == "win32", reason="file locks differ")
def test_two_writers_are_refused_and_readers_are_not(tmp_path: Path) -> None:
    with ResultStore(tmp_path / RESULTS, IDENTITY) as store:
        store.put(example(1))
        with pytest.raises(StoreError, match="another process"):
            ResultStore(tmp_path / RESULTS, IDENTITY)
        assert len(read_results(tmp_path / RESULTS)) == 1


# What results belong to


class Hidden(nn.Module):
    """Computes with a plain attribute and a buffer that no checkpoint keeps."""

    shift: Tensor

    def __init__(self, factor: float = 1.0, shift: float = 0.0) -> None:
        super().__init__()
        self.body, self.factor = network(), factor
        self.register_buffer("shift", torch.tensor(shift), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x * self.factor + self.shift)
        return out


def wired(*names: str) -> nn.Module:
    """The same layers in the order given, as an imported ONNX network runs them."""
    torch.manual_seed(0)
    layers = {"flat": nn.Flatten(), "a": nn.Linear(9, 9), "b": nn.Linear(9, 9), "relu": nn.ReLU(), "c": nn.Linear(9, 3)}
    steps = [Step(name, (before,)) for before, name in zip((INPUT, *names), names, strict=False)]
    return OnnxNetwork((1, 3, 3), layers, steps)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Hidden(), Hidden(factor=0.5)),
        (Hidden(), Hidden(shift=0.25)),
        (wired("flat", "a", "relu", "b", "c"), wired("flat", "b", "relu", "a", "c")),
    ],
    ids=["a plain attribute", "a buffer that is not kept", "the wiring of an ONNX graph"],
)
def test_results_of_another_function_with_the_same_weights_are_refused(
    tmp_path: Path, before: nn.Module, after: nn.Module
) -> None:
    verify_run(before, dataset(3), 0.01, tmp_path, settings=SETTINGS)
    with pytest.raises(StoreError, match="another model"):
        verify_run(after, dataset(3), 0.01, tmp_path, settings=SETTINGS)
    assert len(verify_run(before, dataset(3), 0.01, tmp_path, settings=SETTINGS)) == 3


def test_results_for_other_images_or_labels_of_the_same_name_are_refused(tmp_path: Path) -> None:
    data = dataset(4)
    verify_run(network(), data, 0.01, tmp_path, settings=SETTINGS)
    other_pixels = replace(data, x_test=data.x_test ^ 1)
    other_labels = replace(data, y_test=(data.y_test + 1) % 3)
    for other in (other_pixels, other_labels):
        with pytest.raises(StoreError, match="other images or labels"):
            verify_run(network(), other, 0.01, tmp_path, settings=SETTINGS)


def test_results_of_another_version_of_the_verifier_are_refused(tmp_path: Path) -> None:
    verify_run(network(), dataset(3), 0.01, tmp_path, settings=SETTINGS)
    change(tmp_path / RESULTS, "UPDATE run SET value = '0.0.1' WHERE key = 'verifier'")
    with pytest.raises(StoreError, match=r"lipgraft 0\.0\.1"):
        verify_run(network(), dataset(3), 0.01, tmp_path, settings=SETTINGS)


def test_a_fingerprint_changes_with_every_parameter_of_every_node() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.LeakyReLU(0.1), nn.Flatten(), nn.Linear(18, 3))
    masks = {"1": torch.arange(18).reshape(2, 3, 3) % 3 == 0}
    graph = trace(grafting.apply(plain, masks, input_shape=(1, 3, 3)), (1, 3, 3))
    seen = {network_fingerprint(graph), network_fingerprint(replace(graph, output=graph.output - 1))}
    tried = 2
    for place, node in enumerate(graph.nodes):
        for field in fields(node):
            for value in changed(getattr(node, field.name)) if field.name != "name" else ():
                nodes = (*graph.nodes[:place], replace(node, **{field.name: value}), *graph.nodes[place + 1 :])
                seen.add(network_fingerprint(replace(graph, nodes=nodes)))
                tried += 1
    assert len(seen) == tried > 20


def changed(value: Any) -> list[Any]:
    """The value with one thing changed, in every way that its kind has."""
    if isinstance(value, Tensor):
        other = value.detach().clone()
        other.view(-1)[-1] = ~other.view(-1)[-1] if value.dtype == torch.bool else other.view(-1)[-1] + 1e-3
        return [other]
    if isinstance(value, tuple):
        return [(*value[:-1], value[-1] + 1)] if value else []
    if isinstance(value, float):
        return [value / 2 if value else 1.0]
    if isinstance(value, int):
        return [value + 1]
    if isinstance(value, str):
        return [value + "?"]
    if value is None:
        return []
    return [replace(value, **{f.name: new}) for f in fields(value) for new in changed(getattr(value, f.name))]


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


OLD_FORMAT = """
CREATE TABLE run (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE results (
    image INTEGER PRIMARY KEY, label INTEGER NOT NULL, status TEXT NOT NULL, reason TEXT, method TEXT, margin REAL,
    seconds REAL NOT NULL, subproblems INTEGER NOT NULL, unstable REAL, counterexample BLOB
);
INSERT INTO run VALUES ('format', '1'), ('model', 'abc'), ('dataset', 'random'), ('eps', '0.01'), ('settings', '{}');
INSERT INTO results VALUES (0, 1, 'verified', NULL, 'crown', 0.5, 0.1, 0, 0.2, NULL);
INSERT INTO results VALUES (1, 1, 'unknown', 'timeout', NULL, NULL, 0.0, 0, NULL, NULL);
"""


def test_a_store_of_the_first_format_can_be_read_and_says_why_it_cannot_be_continued(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / RESULTS)) as connection:
        connection.executescript(OLD_FORMAT)
    before = (tmp_path / RESULTS).read_bytes()
    rows = read_results(tmp_path / RESULTS)
    assert [(row.verdict.status, row.verdict.method) for row in rows] == [("verified", "crown"), ("unknown", None)]
    found = measure([row.verdict for row in rows])
    assert (found.sa, found.ra, found.va, found.attacked) == (1.0, 1.0, 0.5, 1)
    with pytest.raises(StoreError, match=r"can be read .* but not continued"):
        verify_run(network(), dataset(3), 0.01, tmp_path, settings=SETTINGS)
    assert (tmp_path / RESULTS).read_bytes() == before


# Files that fail


def filled(path: Path, count: int = 60) -> ResultStore:
    store = ResultStore(path / RESULTS, IDENTITY)
    for image in range(count):
        store.put(example(image))
    return store


def test_a_full_disk_is_told_as_such_and_no_row_is_lost(tmp_path: Path) -> None:
    with filled(tmp_path) as store:
        connection = store._connection
        assert connection is not None
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        large = Row(100, 1, Verdict("falsified", counterexample=torch.zeros(100_000)))
        with pytest.raises(StoreError, match=r"disk is full.*what it holds is safe"):
            store.put(large)
    assert len(read_results(tmp_path / RESULTS)) == 60


def test_a_file_that_may_not_be_written_is_not_called_foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path).close()
    real = sqlite3.connect

    def read_only(path: Path | str, **options: Any) -> sqlite3.Connection:
        return real(f"file:{tmp_path / RESULTS}?mode=ro", **{**options, "uri": True})

    monkeypatch.setattr(sqlite3, "connect", read_only)
    with pytest.raises(StoreError) as error, ResultStore(tmp_path / RESULTS, IDENTITY) as store:
        store.put(example(60))
    assert "what it holds is safe" in str(error.value)
    assert "remove" not in str(error.value)
    assert len(read_results(tmp_path / RESULTS)) == 60


@pytest.mark.long
def test_a_locked_store_is_refused_in_seconds_with_a_sentence(tmp_path: Path) -> None:
    filled(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / RESULTS, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        refused = pytest.raises(StoreError, match="locked by another program")
        with refused, ResultStore(tmp_path / RESULTS, IDENTITY) as store:
            store.put(example(60))
        assert time.monotonic() - began < 20


def test_somebody_elses_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / RESULTS)) as connection, connection:
        connection.execute("CREATE TABLE users (name TEXT)")
    before = (tmp_path / RESULTS).read_bytes()
    with pytest.raises(StoreError, match="something else"):
        ResultStore(tmp_path / RESULTS, IDENTITY)
    with pytest.raises(StoreError, match="something else"):
        read_results(tmp_path / RESULTS)
    assert (tmp_path / RESULTS).read_bytes() == before


def test_a_store_with_a_damaged_page_is_told_as_such(tmp_path: Path) -> None:
    filled(tmp_path).close()
    content = bytearray((tmp_path / RESULTS).read_bytes())
    size = int.from_bytes(content[16:18], "big")
    content[size:] = b"\xa5" * (len(content) - size)
    (tmp_path / RESULTS).write_bytes(content)
    with pytest.raises(StoreError, match="damaged"):
        read_results(tmp_path / RESULTS)


def test_a_folder_that_is_a_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(LipgraftError, match="is a file; give the name of a folder"):
        verify_run(network(), dataset(3), 0.01, tmp_path / "file", settings=SETTINGS)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_run_that_stops_early_goes_on_and_gives_the_same_table(tmp_path: Path) -> None:
    data = dataset(20)
    whole = verify_run(network(), data, 0.05, tmp_path / "whole", settings=SETTINGS)

    class Stop(Exception):
        pass

    new: list[int] = []

    def stop(row: Row) -> None:
        new.append(row.image)
        if len(new) == 6:
            raise Stop

    with pytest.raises(Stop):
        verify_run(network(), data, 0.05, tmp_path / "parts", settings=SETTINGS, decided=stop)
    assert len(read_results(tmp_path / "parts" / RESULTS)) == 6
    found: list[int] = []
    rows = verify_run(
        network(),
        data,
        0.05,
        tmp_path / "parts",
        settings=SETTINGS,
        started=lambda total, before: found.extend(row.image for row in before),
        decided=lambda row: new.append(row.image),
    )
    assert sorted(found) == sorted(new[:6])
    assert sorted(new) == list(range(20))
    assert table(rows) == table(whole)
    assert {row.verdict.status for row in rows} == {"verified", "falsified"}
    with pytest.raises(StoreError, match="other settings"):
        verify_run(network(), data, 0.05, tmp_path / "parts", settings=SETTINGS.changed(attack={"seed": 5}))


def test_a_store_written_before_settings_had_groups_is_continued(tmp_path: Path) -> None:
    """Its settings are those that the version before wrote for the same values."""
    data = dataset(4)
    verify_run(network(), data, 0.05, tmp_path, count=2, settings=SETTINGS)
    with closing(sqlite3.connect(tmp_path / RESULTS)) as connection:
        assert connection.execute("SELECT value FROM run WHERE key = 'settings'").fetchone() == (FLAT_SETTINGS,)
    rows = verify_run(network(), data, 0.05, tmp_path, settings=SETTINGS)
    assert [row.image for row in rows] == [0, 1, 2, 3]
    with pytest.raises(StoreError, match=r"branch\.iterations 2 instead of 5"):
        verify_run(network(), data, 0.05, tmp_path, settings=SETTINGS.changed(branch={"iterations": 5}))


def test_a_store_written_before_verdicts_said_when_they_came_is_continued(tmp_path: Path) -> None:
    data = dataset(4)
    verify_run(network(), data, 0.05, tmp_path, count=2, settings=SETTINGS)
    with closing(sqlite3.connect(tmp_path / RESULTS)) as connection:
        connection.execute("ALTER TABLE results DROP COLUMN ended")
    assert [row.verdict.ended for row in read_results(tmp_path / RESULTS)] == [None, None]
    rows = verify_run(network(), data, 0.05, tmp_path, settings=SETTINGS)
    assert [row.verdict.ended is None for row in rows] == [True, True, False, False]


def test_the_clock_of_verdicts_goes_on_where_a_run_goes_on(tmp_path: Path) -> None:
    data = dataset(8)
    first = verify_run(network(), data, 0.05, tmp_path, count=4, settings=SETTINGS)
    ended = [row.verdict.ended for row in verify_run(network(), data, 0.05, tmp_path, settings=SETTINGS)]
    assert ended[:4] == [row.verdict.ended for row in first]
    known = [time for time in ended if time is not None]
    assert len(known) == 8
    assert min(known) > 0
    assert min(known[4:]) > max(known[:4])


SHORT = SETTINGS.changed(limits={"max_subproblems": 0}, attack={"restarts": 0})
LONG = SETTINGS.changed(attack={"restarts": 0})
HARD = 0.12
"""A radius at which many images need branch and bound."""


def test_unknown_images_are_tried_again_with_other_limits_and_the_others_are_left(tmp_path: Path) -> None:
    data = dataset(20)
    first = {row.image: row for row in verify_run(network(), data, HARD, tmp_path, settings=SHORT)}
    unknown = {image for image, row in first.items() if row.verdict.status == "unknown"}
    assert 0 < len(unknown) < len(first)
    with pytest.raises(StoreError, match=r"limits\.max_subproblems 0 instead of None\); --again"):
        verify_run(network(), data, HARD, tmp_path, settings=LONG)
    tried: list[int] = []
    found: list[int] = []
    rows = verify_run(
        network(),
        data,
        HARD,
        tmp_path,
        settings=LONG,
        again=True,
        started=lambda total, before: found.extend(row.image for row in before),
        decided=lambda row: tried.append(row.image),
    )
    assert set(tried) == unknown
    assert set(found) == set(first) - unknown
    assert table(rows) == table(verify_run(network(), data, HARD, tmp_path / "whole", settings=LONG))
    for row in rows:
        before, now = first[row.image].verdict, row.verdict
        if row.image in unknown:
            assert now.status in ("verified", "falsified")
            assert now.seconds > before.seconds
            assert now.ended > max(row.verdict.ended for row in first.values())  # type: ignore[operator, type-var]
        else:
            assert (now.status, now.seconds, now.ended) == (before.status, before.seconds, before.ended)
    assert table(verify_run(network(), data, HARD, tmp_path, settings=LONG)) == table(rows)


def test_a_second_try_that_is_cut_short_or_fails_too_loses_nothing(tmp_path: Path) -> None:
    data = dataset(20)
    few = SHORT.changed(limits={"max_subproblems": 2})
    first = {row.image: row.verdict for row in verify_run(network(), data, HARD, tmp_path, settings=few)}
    unknown = {image for image, verdict in first.items() if verdict.status == "unknown"}
    late = few.changed(limits={"total_seconds": 1e-9})
    rows = verify_run(network(), data, HARD, tmp_path, settings=late, again=True)
    for row in rows:
        before, now = first[row.image], row.verdict
        assert (now.status, now.margin, now.unstable) == (before.status, before.margin, before.unstable)
        assert now.subproblems == before.subproblems
        assert now.reason == ("timeout" if row.image in unknown else before.reason)

    def stop(row: Row) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify_run(network(), data, HARD, tmp_path, settings=LONG, again=True, decided=stop)
    assert sorted(row.image for row in read_results(tmp_path / RESULTS)) == list(range(20))
    rows = verify_run(network(), data, HARD, tmp_path, settings=LONG, again=True)
    assert table(rows) == table(verify_run(network(), data, HARD, tmp_path / "whole", settings=LONG))


def test_a_second_try_may_change_nothing_but_the_limits(tmp_path: Path) -> None:
    verify_run(network(), dataset(4), 0.05, tmp_path, settings=SETTINGS)
    for other in (SETTINGS.changed(attack={"seed": 5}), SETTINGS.changed(arithmetic="sound", limits={"timeout": 5})):
        with pytest.raises(StoreError, match="other settings"):
            verify_run(network(), dataset(4), 0.05, tmp_path, settings=other, again=True)
    with pytest.raises(StoreError, match="with eps"):
        verify_run(network(), dataset(4), 0.06, tmp_path, settings=SETTINGS, again=True)


def test_more_images_can_be_asked_for_later(tmp_path: Path) -> None:
    data = dataset(12)
    first = verify_run(network(), data, 0.02, tmp_path, count=5, settings=SETTINGS)
    new: list[int] = []
    rows = verify_run(network(), data, 0.02, tmp_path, settings=SETTINGS, decided=lambda row: new.append(row.image))
    assert sorted(new) == list(range(5, 12))
    assert table(rows)[:5] == table(first)


def test_images_from_the_middle_are_those_of_the_whole_run(tmp_path: Path) -> None:
    data = dataset(12)
    whole = verify_run(network(), data, 0.05, tmp_path / "whole", settings=SETTINGS)
    new: list[int] = []
    rows = verify_run(network(), data, 0.05, tmp_path / "run", start=4, count=3, settings=SETTINGS)
    assert [row.image for row in rows] == [4, 5, 6]
    assert table(rows) == table(whole)[4:7]
    more = verify_run(
        network(),
        data,
        0.05,
        tmp_path / "run",
        start=5,
        settings=SETTINGS,
        decided=lambda row: new.append(row.image),
    )
    assert sorted(new) == list(range(7, 12))
    assert table(more) == table(whole)[5:]
    for start in (-1, 12):
        with pytest.raises(SettingsError, match="of 12 test images"):
            verify_run(network(), data, 0.05, tmp_path / "run", start=start, settings=SETTINGS)


SCRIPT = """
import sys, time
sys.path.insert(0, sys.argv[1])
import test_verify_store as t
def slowly(row):
    print(row.image, flush=True)
    time.sleep(0.02)
t.verify_run(t.network(), t.dataset(), 0.05, sys.argv[2], settings=t.SETTINGS, decided=slowly)
"""


def test_kill_9_during_a_run_of_50_images_loses_none_and_does_none_twice(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(Path(__file__).parent), str(tmp_path / "killed")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert process.stdout is not None
    first = [int(process.stdout.readline()) for _ in range(7)]
    process.send_signal(signal.SIGKILL)
    printed = [int(line) for line in process.stdout.read().split()]
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL
    kept = {row.image for row in read_results(tmp_path / "killed" / RESULTS)}
    assert kept >= {*first, *printed}
    assert len(kept) < 50
    new: list[int] = []
    rows = verify_run(
        network(), dataset(), 0.05, tmp_path / "killed", settings=SETTINGS, decided=lambda row: new.append(row.image)
    )
    assert sorted([*kept, *new]) == list(range(50))
    assert table(rows) == table(verify_run(network(), dataset(), 0.05, tmp_path / "whole", settings=SETTINGS))
    assert sum(row.verdict.method == "misclassified" for row in rows) == 5


def test_the_command_prints_measures_resumes_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint, out = str(tmp_path / "net.safetensors"), tmp_path / "run"
    models.save(models.build("digits-cnn", "digits", seed=0), checkpoint)
    line = [checkpoint, "--data", "digits", "--eps", "1/255", "--out", str(out), "--device", "cpu"]
    line += ["--set", "attack.restarts=1", "--set", "attack-steps=3", "--set", "alpha_iterations=2", "--timeout", "30"]
    assert main(["verify", *line, "--count", "3", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["measures"]["count"] == 3
    assert [image["image"] for image in printed["images"]] == [0, 1, 2]
    assert (out / "config.yaml").is_file()
    assert main(["verify", *line, "--count", "4"]) == 0
    assert "VA" in capsys.readouterr().out
    with sqlite3.connect(out / RESULTS) as connection:
        assert connection.execute("SELECT count(*) FROM results").fetchone() == (4,)
    connection.close()
    assert main(["verify", *line, "--start", "3", "--count", "2", "--json"]) == 0
    assert [image["image"] for image in json.loads(capsys.readouterr().out)["images"]] == [3, 4]
    assert main(["verify", *line, "--timeout", "60", "--count", "5"]) == 1
    assert "--again" in capsys.readouterr().err
    assert main(["verify", *line, "--timeout", "60", "--count", "5", "--again", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measures"]["count"] == 5
    line += ["--timeout", "60"]
    assert main(["verify", *line[:-4], "--out", str(tmp_path / "none"), "--again"]) == 1
    assert "no run in" in capsys.readouterr().err
    assert main(["verify", *line, "--arithmetic", "fast"]) == 1
    assert "arithmetic" in capsys.readouterr().err
    assert main(["verify", *line, "--set", "batches=3"]) == 1
    assert "Did you mean 'branch.batch'" in capsys.readouterr().err
    assert main(["verify", *line, "--set", "batch"]) == 1
    assert "NAME=VALUE" in capsys.readouterr().err


def test_the_settings_shown_are_those_that_the_store_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    models.save(models.build("digits-cnn", "digits", seed=0), tmp_path / "net.safetensors")
    line = ["verify", str(tmp_path / "net.safetensors"), "--data", "digits", "--eps", "1/255", "--out", str(out)]
    line += ["--count", "1", "--device", "cpu", "--set", "attack.steps=3"]

    def timeout() -> float:
        return float(yaml.safe_load((out / "config.yaml").read_text())["verify"]["limits"]["timeout"])

    assert main([*line, "--timeout", "30"]) == 0
    assert main([*line, "--timeout", "60", "--again"]) == 0
    assert timeout() == 60
    (out / "config.yaml").unlink()
    assert main([*line, "--timeout", "30"]) == 1
    assert not (out / "config.yaml").exists()
    assert main([*line, "--timeout", "60"]) == 0
    assert timeout() == 60


def test_counterexamples_of_a_run_without_certificates_are_written_later_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, settings, proofs = dataset(12), replace(SETTINGS, arithmetic="sound"), tmp_path / "proofs"
    before = verify_run(network(), data, HARD, tmp_path / "run", settings=settings)
    broken = [row.image for row in before if row.verdict.status == "falsified"]
    assert len(broken) > 2  # misclassified ones and others
    tried: list[int] = []
    again = verify_run(
        network(),
        data,
        HARD,
        tmp_path / "run",
        settings=settings,
        certificates=proofs,
        decided=lambda row: tried.append(row.image),
    )
    assert not set(tried) & set(broken)
    assert table(again) == table(before)
    assert {file.name for file in proofs.glob("*.counterexample.npz")} == {
        f"{i:06d}.counterexample.npz" for i in broken
    }
    assert all(outcome.accepted for outcome in check_folder(proofs))


def test_errors_are_told_with_their_reason_and_an_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = models.build("digits-cnn", "digits", seed=0)
    with torch.no_grad():
        next(net.parameters()).fill_(torch.nan)
    models.save(net, tmp_path / "net.safetensors")
    line = ["verify", str(tmp_path / "net.safetensors"), "--data", "digits", "--eps", "1/255", "--count", "2"]
    assert main([*line, "--out", str(tmp_path / "my run"), "--device", "cpu"]) == 1
    (told,) = (text for text in capsys.readouterr().out.splitlines() if text.startswith("verified"))
    (reason,) = {row.verdict.reason for row in read_results(tmp_path / "my run" / RESULTS)}
    assert told == f"verified 0, falsified 0, unknown 0, error 2 ({reason} 2)"


def test_the_command_finds_its_run_again_without_being_told_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    models.save(models.build("digits-cnn", "digits", seed=0), "net-0.1.safetensors")
    line = ["verify", "net-0.1.safetensors", "--data", "digits", "--device", "cpu", "--set", "attack.steps=3"]
    assert main([*line, "--eps", "1/255", "--count", "2", "--json"]) == 0
    run = Path(json.loads(capsys.readouterr().out)["run"])
    assert run == Path("runs/verify-net-0.1-digits-1-255")
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["versions"]["torch"] == str(torch.__version__)
    assert config["hardware"]["device"] == "cpu"
    assert main([*line, "--eps", "1/255", "--count", "3"]) == 0
    assert f"Run: {run.resolve()}" in capsys.readouterr().out
    assert [row.image for row in read_results(run / RESULTS)] == [0, 1, 2]
    assert main([*line, "--eps", "0.02", "--count", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"] == "runs/verify-net-0.1-digits-0.02"


def test_the_live_line_counts_what_is_decided() -> None:
    progress = VerifyProgress(Console(quiet=True))
    with progress:
        progress.started(5, [example(0)])
        progress.decided(Row(1, 0, Verdict("verified")))
        progress.bounded(300)
        time.sleep(0.01)
        line = progress.line()
    assert line.startswith("decided 2/5 | open 3 | verified 1 | falsified 1 | ")
    assert "subproblems/s" in line


def test_the_time_left_grows_while_nothing_is_decided_and_never_beyond_the_limits() -> None:
    now = [0.0]
    limits = VerifySettings(limits=Limits(timeout=60.0, total_seconds=400.0))
    progress = VerifyProgress(Console(quiet=True), limits, clock=lambda: now[0])
    progress.started(110, [])
    assert progress.line().endswith("0:00 so far | at most 6:40 left")
    now[0] = 10.0
    for image in range(100):
        progress.decided(Row(image, 0, Verdict("verified")))
    assert progress.line().endswith("0:10 so far | about 0:01 left")
    now[0] = 30.0  # ten hard images are left, and one of them has taken 20 seconds by now
    assert progress.line().endswith("about 3:20 left")
    now[0] = 210.0
    assert progress.line().endswith("3:30 so far | at most 3:10 left")
    now[0] = 399.0
    assert progress.line().endswith("at most 0:01 left")
    alone = VerifyProgress(Console(quiet=True), VerifySettings(limits=Limits(timeout=60.0)), clock=lambda: now[0])
    alone.started(3, [])
    assert alone.line().endswith("at most 3:00 left")


def test_the_benchmark_accounts_for_every_image() -> None:
    data = dataset(16)
    x = data.x_test.permute(0, 3, 1, 2) / 255
    figures = bench_verify(network(), x, data.y_test, 0.05, timeout=20.0, settings=SETTINGS, warm_up=2)
    assert sum(figures["methods"].values()) == figures["images"] == 16
    assert figures["verified"] + figures["falsified"] + figures["unknown"] + figures["error"] == 16
    assert figures["curve"][-1][1] == figures["verified"]
    assert all(count <= figures["verified"] for count in figures["verified_after"].values())
    assert [n for _, n in figures["curve"]] == list(range(1, figures["verified"] + 1))
    json.dumps(figures)


def test_on_a_terminal_every_worker_has_a_row_and_of_many_those_with_the_most_open_images() -> None:
    def shown(states: list[WorkerState]) -> str:
        screen = io.StringIO()
        with VerifyProgress(Console(file=screen, force_terminal=True, width=100), workers=lambda: states) as progress:
            progress.started(500, [])
        return screen.getvalue()

    two = shown([WorkerState(1, 7, 120, 4321), WorkerState(2, 0, 99, 12)])
    assert "decided 0/500" in two
    assert next(row.split() for row in two.splitlines() if "4,321" in row) == ["1", "7", "120", "4,321"]
    assert next(row.split() for row in two.splitlines() if " 99 " in row) == ["2", "0", "99", "12"]
    many = shown([WorkerState(number, number, 0, 1000 + number) for number in range(SHOWN + 3)])
    assert "and 3 others" in many
    assert "1,002" not in many
    assert "1,003" in many
    assert "worker" not in shown([])


def test_a_run_without_a_terminal_says_now_and_then_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    progress = VerifyProgress(Console(file=io.StringIO()), clock=lambda: now[0])
    with progress:
        progress.started(10, [])
        for _ in range(8):
            now[0] += 10.0
            progress.bounded(100)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("decided 0/10 | open 10 | ")
