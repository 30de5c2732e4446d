"""Verification over the workers of a Ray cluster: real workers, real deaths."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hard_images
from command_line import failure
from deadly import Deadly
from lipgraft import data, models, training
from lipgraft.cli import GO_ON, main
from lipgraft.cluster import ClusterError, Queue, crew, driver
from lipgraft.cluster.crew import DEATHS
from lipgraft.cluster.speed import bench_cluster
from lipgraft.runs import RESULTS, Row, StoreError, read_results
from lipgraft.verification import AttackSettings, VerifySettings, verify
from lipgraft.verification.verdict import Decided
from workers import Workers

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install ray")
pytestmark = pytest.mark.xdist_group("ray")

SETTINGS = VerifySettings(attack=AttackSettings(steps=5, restarts=1), images=4)
EPS = 0.05


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(9, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3))


def images(count: int) -> tuple[Tensor, Tensor]:
    """Random images with the network's own labels, but for every tenth."""
    x = torch.rand(count, 1, 3, 3, generator=torch.Generator().manual_seed(1))
    y = network()(x).argmax(1)
    y[::10] = (y[::10] + 1) % 3
    return x, y


@pytest.mark.long
def test_a_killed_workers_images_are_done_again_none_lost_and_none_twice(workers: Workers, tmp_path: Path) -> None:
    """One image kills its worker once and is verified by the next; another kills every worker and is an error."""
    x, y = images(24)
    model = Deadly(network(), x[5], x[14], tmp_path / "happened")
    found = list(workers.cluster.verify_stream(model, x, y, EPS, settings=SETTINGS))
    assert (tmp_path / "happened").exists()
    assert len(workers.notices) == 1 + DEATHS
    assert "a worker died" in workers.notices[0]
    assert sorted(place for place, _ in found) == list(range(24))
    verdicts = dict(found)
    assert verdicts[14].status == "error"
    assert verdicts.pop(14).reason == "3 workers died while they verified this image"
    expected = verify(network(), x, y, EPS, settings=SETTINGS)
    assert {place: verdict.status for place, verdict in verdicts.items()} == {
        place: verdict.status for place, verdict in enumerate(expected) if place != 14
    }


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a network that has just begun to know its digits."""
    model, path = models.build("digits-cnn", "digits", seed=0), tmp_path_factory.mktemp("model") / "net.safetensors"
    settings = training.TrainSettings(epochs=1, objective="standard", grad_align=0.0, lr=0.05, schedule="constant")
    training.train(model, data.load("digits"), settings, device="cpu")
    models.save(model, path)
    return str(path)


def command(checkpoint: str, *more: str) -> list[str]:
    return ["verify", checkpoint, "--data", "digits", "--eps", "0.01", "--device", "cpu", *more]


@pytest.mark.long
def test_the_command_gives_the_verdicts_and_proofs_that_it_gives_without_a_cluster(
    address: str, checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = []
    for name, more in (("alone", []), ("many", ["--cluster", address, "--workers", "2"])):
        places = ["--out", str(tmp_path / name), "--certificates", str(tmp_path / f"{name}-proofs")]
        assert main(command(checkpoint, "--count", "12", "--json", *places, *more)) == 0
        answers.append(json.loads(capsys.readouterr().out)["images"])
        proofs = sorted(path.name for path in (tmp_path / f"{name}-proofs").iterdir())
        answers[-1].append(proofs)
    alone, many = answers
    assert alone.pop() == many.pop()
    for key in ("image", "label", "status", "reason", "method"):
        assert [one[key] for one in alone] == [one[key] for one in many]
    assert "verified" in {one["status"] for one in many}
    assert main(["check", str(tmp_path / "many-proofs")]) == 0


def rows(run: Path) -> list[Row]:
    try:
        return read_results(run / RESULTS)
    except StoreError:  # not there yet
        return []


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="signals differ")
def test_a_driver_that_is_interrupted_or_killed_goes_on_where_it_stopped(
    address: str, checkpoint: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    slow = ["--set", "images=1", "--set", "attack.steps=300", "--set", "attack.restarts=5"]
    line = command(checkpoint, "--count", "8", "--out", str(run), "--cluster", address, "--workers", "1", *slow)
    kept = list[Row]()
    for way, code in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        process = subprocess.Popen([sys.executable, "-m", "lipgraft", *line], stderr=subprocess.PIPE, text=True)
        while len(rows(run)) <= len(kept) and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(way)
        error = process.communicate(timeout=60)[1]
        assert process.returncode == code, error
        if way == signal.SIGINT:
            assert error.splitlines()[-1] == f"interrupted. {GO_ON}"
        kept = rows(run)
        assert 0 < len(kept) < 8
    assert main(line) == 0
    after = rows(run)
    assert [row.image for row in after] == list(range(8))
    assert [(row.image, row.verdict.seconds) for row in kept] == [
        (row.image, row.verdict.seconds) for row in after if row.image in {row.image for row in kept}
    ]


# What is wrong is said in one line


def test_a_worker_of_another_version_is_refused(
    address: str,
    checkpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(crew, "__version__", "9.9")
    assert main(command(checkpoint, "--out", str(tmp_path / "run"), "--cluster", "local", "--workers", "1")) == 1
    assert "has lipgraft 0." in (error := failure(capsys))
    assert "this is 9.9; install the same everywhere." in error


def test_more_workers_than_the_cluster_has_cpus_are_refused(
    address: str, checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(checkpoint, "--out", str(tmp_path / "run"), "--cluster", "local", "--workers", "5")) == 1
    assert "the cluster has 4 CPUs, too few for 5 workers" in failure(capsys)


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
    return port


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--cluster", f"127.0.0.1:{free_port()}"], "no Ray cluster answers at 127.0.0.1:"),
        (["--cluster", "somewhere"], "--cluster takes local or the HOST:PORT of a Ray cluster, got 'somewhere'."),
        (["--workers", "2"], "add --cluster local"),
        (["--cluster", "local", "--device", "cuda:0"], "choose their GPUs themselves"),
    ],
)
def test_options_that_cannot_work_are_refused(
    options: list[str], words: str, checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(checkpoint, "--out", str(tmp_path / "run"), *options)) == 1
    assert words in failure(capsys)


def test_without_the_extra_the_option_says_what_to_install(
    checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(command(checkpoint, "--out", str(tmp_path / "run"), "--cluster", "local")) == 1
    assert "--cluster needs the ray package: pip install ray." in failure(capsys)


class OnlyHere(nn.Sequential):
    """A class of this file, which no worker can import."""


@pytest.mark.long
def test_a_model_that_the_workers_cannot_import_is_refused(workers: Workers) -> None:
    x, y = images(2)
    with pytest.raises(ClusterError, match="No module named"):
        list(workers.cluster.verify_stream(OnlyHere(network()), x, y, EPS, settings=SETTINGS))


@pytest.mark.long
def test_the_same_workers_answer_one_question_after_the_other(workers: Workers) -> None:
    """The second one finds them waiting, and is answered about its own network."""
    x, y = images(12)
    crews = list[set[object]]()
    for model in (network(), nn.Sequential(nn.Flatten(), nn.Linear(9, 3))):
        found = dict(workers.cluster.verify_stream(model, x, y, EPS, settings=SETTINGS, together=True))
        expected = verify(model, x, y, EPS, settings=SETTINGS)
        assert [found[place].status for place in range(12)] == [verdict.status for verdict in expected]
        crews.append(set(workers.cluster._waiting))
        states = workers.cluster.states()
        assert [state.number for state in states] == [1, 2]
        assert sum(state.decided for state in states) == 12
        assert all(state.open == 0 for state in states)
    assert len(crews[0]) == 2
    assert crews[0] == crews[1]


@pytest.mark.long
def test_the_benchmark_decides_the_same_with_and_without_workers(address: str) -> None:
    x, y = images(64)
    begun: list[tuple[int, str]] = []
    rows = bench_cluster(
        network(),
        x,
        y,
        EPS,
        settings=SETTINGS,
        workers=(2,),
        device="cpu",
        progress=lambda workers, what: begun.append((workers, what)),
    )
    assert [workers for workers, what in begun if what == "starting"] == [0, 2]
    assert [row["workers"] for row in rows] == [0, 2]
    assert all(row["images"] == 64 and row["images_per_second"] > 0 for row in rows)
    assert rows[0]["verdicts"] == rows[1]["verdicts"]


# Open images that move to an idle worker


class AllAtOnce(Queue):
    """The first worker gets everything, and the second has nothing to do."""

    def take(self) -> list[int]:
        return [self._fresh.popleft() for _ in range(len(self._fresh))] or super().take()


@pytest.mark.long
@pytest.mark.parametrize("killed", ["nobody", "giver", "receiver"])
def test_half_of_a_workers_open_images_move_to_an_idle_one_and_none_is_lost(
    killed: str, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever dies of the two: the verdicts are those of one process, and each comes once."""
    (x, y), model = hard_images.images(), hard_images.network()
    # A long attack leaves the other worker time to ask before branch and bound is over.
    settings = hard_images.SETTINGS.changed(attack={"restarts": 2, "steps": 300})
    moved = list[int]()
    hand_on, answered = driver._Run._hand_on, driver._Run._answered

    def spied_hand_on(run: driver._Run, worker: driver._Worker) -> None:
        hand_on(run, worker)
        moved.append(len(worker.images))
        if killed == "receiver" and len(moved) == 1:
            ray.kill(worker.actor)

    def spied_answered(run: driver._Run, waited: object) -> Iterator[Decided]:
        giver = run.asking[waited][0]
        yield from answered(run, waited)
        if killed == "giver" and run.moving and not moved:
            ray.kill(giver.actor)

    monkeypatch.setattr(driver, "Queue", AllAtOnce)
    monkeypatch.setattr(driver, "RIPE", 0.0)
    monkeypatch.setattr(driver._Run, "_hand_on", spied_hand_on)
    monkeypatch.setattr(driver._Run, "_answered", spied_answered)
    found = list(workers.cluster.verify_stream(model, x, y, hard_images.EPS, settings=settings, together=True))
    assert moved
    assert moved[0] > 1
    assert len(workers.notices) == (killed != "nobody")
    assert sorted(place for place, _ in found) == list(range(len(x)))
    expected = verify(model, x, y, hard_images.EPS, settings=settings)
    assert [verdict.status for _, verdict in sorted(found, key=lambda one: one[0])] == [v.status for v in expected]
