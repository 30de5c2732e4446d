"""What commands write: checked before the work, held by one process, and refused with one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import pytest
import typer

from command_line import every_command, failure
from lipgraft import models, training
from lipgraft.cli import app, main
from lipgraft.cli.report import show
from lipgraft.cli.reproduce import _show
from lipgraft.data import load
from lipgraft.errors import LipgraftError
from lipgraft.files import atomic_write_text
from lipgraft.report import ExperimentResults
from report_results import model, results


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    path = tmp_path / "net.safetensors"
    models.save(models.build("digits-cnn", "digits", seed=0), path)
    return str(path)


def forbidden(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("the work began before its outcome could be written")


DIGITS = ("--data", "digits", "--eps", "0.01")
# Each command, where its work begins, and an --out of the wrong kind.
WRITERS: dict[str, tuple[Callable[[str], list[str]], str, bool]] = {
    "graft": (lambda c: ["graft", c, *DIGITS, "--out"], "lipgraft.grafting.sequence.score", False),
    "verify": (lambda c: ["verify", c, *DIGITS, "--out"], "lipgraft.runs.verify_run", True),
    "export": (lambda c: ["export", c, *DIGITS, "--out"], "lipgraft.interop.export_bundle", True),
    "run": (lambda c: ["run", "quickstart", "--out"], "lipgraft.runs.pipeline._run_stages", True),
    "reproduce": (
        lambda c: ["reproduce", "table1", "--scale", "smoke", "--out"],
        "lipgraft.runs.pipeline._run_stages",
        True,
    ),
    "train": (
        lambda c: ["train", "pretrain-short", "--data", "digits", "--model", "digits-cnn", "--out"],
        "lipgraft.training.train",
        True,
    ),
    "bench verify": (
        lambda c: ["bench", "verify", c, *DIGITS, "--json"],
        "lipgraft.bench.bench_verify",
        False,
    ),
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_will_be_written_is_checked_before_the_work(
    name: str, checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line, work, is_folder = WRITERS[name]
    place, _, function = work.rpartition(".")
    monkeypatch.setattr(import_module(place), function, forbidden)
    wrong = tmp_path / "wrong"
    if is_folder:
        wrong.write_text("mine")
    else:
        wrong.mkdir()
    assert main([*line(checkpoint), str(wrong)]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"error: {wrong} is a {'file' if is_folder else 'folder'}; give the name of")
    assert main([*line(checkpoint), str(tmp_path / ("x" * 300) / "deep")]) == 1
    assert "cannot be written: File name too long" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_what_the_system_refuses_is_one_sentence(capsys: pytest.CaptureFixture[str], checkpoint: str) -> None:
    with pytest.raises(LipgraftError, match=r"/dev/full/x cannot be written"):
        atomic_write_text("/dev/full/x", "text")
    assert main(["attack", "y" * 300, *DIGITS]) == 1
    assert "File name too long" in failure(capsys)


def test_a_file_larger_than_the_disk_allows_leaves_the_old_one_and_one_sentence(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: the same write fails at the same place."""
    (tmp_path / "file").write_text("old")
    script = (
        "import resource, sys; from lipgraft.files import atomic_write_text; "
        "from lipgraft.errors import LipgraftError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n    atomic_write_text(sys.argv[1], 'x' * 5000)\nexcept LipgraftError as error:\n    print(error)\n"
    )
    done = run_python(script, str(tmp_path / "file"))
    assert "cannot be written: File too large; what was there is unchanged." in done.stdout
    assert (tmp_path / "file").read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def run_python(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)


# Whose folder it is

TINY = ("--set", "attack.steps=2", "--set", "limits.max_subproblems=0", "--device", "cpu", "--threads", "1")


@pytest.mark.parametrize("option", ["--out", "--certificates"])
@pytest.mark.parametrize("content", ["train", "zoo"])
def test_verdicts_and_certificates_do_not_mix_with_something_else(
    option: str, content: str, checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    if content == "train":
        (theirs / "config.yaml").write_text("preset: pretrain\ntrain: {epochs: 1}\n")
    else:
        (theirs / "net.safetensors").write_bytes(b"x")
    before = sorted(theirs.iterdir())
    out = [] if option == "--out" else ["--out", str(tmp_path / "run")]
    assert main(["verify", checkpoint, *DIGITS, "--count", "1", *TINY, *out, option, str(theirs)]) == 1
    assert "give another folder" in failure(capsys)
    assert sorted(theirs.iterdir()) == before


def test_a_run_goes_on_beside_its_certificates_but_does_not_begin_there(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["verify", checkpoint, *DIGITS, *TINY, "--out", str(tmp_path / "run"), "--count"]
    for count in ("1", "2"):
        assert main([*line, count, "--certificates", str(tmp_path / "run")]) == 0
    (tmp_path / "run" / "config.yaml").unlink()
    (tmp_path / "run" / "results.sqlite").unlink()
    capsys.readouterr()
    assert main([*line, "1"]) == 1
    assert "holds certificates" in failure(capsys)


def test_a_training_does_not_begin_in_a_run_of_another_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text("recipe: {}\n")
    line = ["train", "pretrain-short", "--model", "digits-cnn", "--data", "digits", "--device", "cpu"]
    assert main([*line, "--out", str(tmp_path)]) == 1
    assert "another command" in failure(capsys)
    assert (tmp_path / "config.yaml").read_text() == "recipe: {}\n"


@pytest.mark.parametrize("empty", [["--out", ""], ["--out="], ["--certificates", ""]])
def test_an_empty_path_is_not_the_current_folder(
    empty: list[str],
    checkpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert main(["verify", checkpoint, *DIGITS, "--count", "1", *empty]) == 2
    assert "is empty" in failure(capsys)
    assert list(Path().iterdir()) == []


def test_a_misspelt_data_set_leaves_no_folder(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(["verify", checkpoint, "--data", "didgits", "--eps", "0.01", "--out", str(run)]) == 1
    assert "Did you mean" in failure(capsys)
    assert not run.exists()


# One run in a folder


@contextmanager
def held_elsewhere(folder: Path) -> Iterator[None]:
    """Another process that holds the folder's lock, until the end of the block."""
    folder.mkdir(parents=True, exist_ok=True)
    script = (
        "import sys, filelock; lock = filelock.FileLock(sys.argv[1]); lock.acquire(); print('held', flush=True); "
        "sys.stdin.read()"
    )
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", script, str(folder / ".lock")], **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield
        process.communicate()


@pytest.mark.parametrize("name", ["run", "reproduce", "train"])
def test_a_second_run_in_a_folder_is_refused_at_once_with_a_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line, work, _ = WRITERS[name]
    monkeypatch.setattr(work, forbidden)
    with held_elsewhere(tmp_path / "out"):
        assert main([*line(""), str(tmp_path / "out")]) == 1
        error = capsys.readouterr().err.splitlines()[-1]
        assert error == f"error: another process is writing to {tmp_path / 'out'}; wait for it, or give another --out."
        assert [file.name for file in (tmp_path / "out").iterdir()] == [".lock"]


def test_a_second_training_from_python_is_refused_too(tmp_path: Path) -> None:
    data, settings = load("digits"), training.preset("pretrain-short")
    with held_elsewhere(tmp_path), pytest.raises(LipgraftError, match="another process"):
        training.train(models.build("digits-cnn", "digits", seed=0), data, settings, run_dir=tmp_path)


# The terminal, and the processor


def test_escape_sequences_in_names_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "\x1b]0;pwned\x07\x1b[31mred\x9b2J"
    assert main(["attack", f"{tmp_path}/{evil}", *DIGITS]) == 1
    show(results(model("one", title=evil), title=evil), tmp_path, json=False)
    captured = capsys.readouterr()
    assert "red" in captured.out
    assert not {"\x1b", "\x07", "\x9b"} & set(captured.out + captured.err)


def test_a_narrow_terminal_loses_no_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    run = results(model("one", title="A model with a long name"), title="narrow")
    show(run, tmp_path, json=False)
    _show(ExperimentResults("name", "Title", "", "full", "", 0, (run,)), tmp_path)
    assert "…" not in capsys.readouterr().out


@pytest.mark.sampled(4)
@pytest.mark.parametrize("path", every_command(typer.main.get_command(app)), ids=" ".join)
def test_every_command_takes_a_number_of_threads(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*path, "--help"]) == 0
    assert "--threads" in capsys.readouterr().out
    assert main([*path, "--threads", "100000"]) == 2
    assert "256" in capsys.readouterr().err


def test_a_seed_beyond_every_generator_is_a_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attack", "x", *DIGITS, "--seed", str(2**70)]) == 2
    assert "4294967295" in failure(capsys)


def test_threads_wait_asleep_unless_the_user_says_otherwise() -> None:
    script = "import os, sys, lipgraft; print(os.environ['OMP_WAIT_POLICY'])"
    for given, expected in (({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")):
        env = {**{key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}, **given}
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, check=True)
        assert done.stdout == f"{expected}\n"
