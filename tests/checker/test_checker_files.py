"""Files that are two things at once, none at all, or made to take time and memory; and those beside them."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest

from forged import checked, gemm, model, plainest, pointing, put
from lipgraft.checker import Rejected, check_file, check_folder, folder
from lipgraft.cli import main

DATA = gemm([[1.0], [0.0]], [0.5, 0.0])


def good(place: Path) -> Path:
    return put(place, DATA, plainest(DATA, [0.0], [1.0]))


def appended(path: Path, name: str, array: np.ndarray) -> Path:
    """The file with one more member."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as parts:
        parts.writestr(name, buffer.getvalue())
    return path


def judged(path: Path) -> str:
    return check_file(path, path.parent / "network.onnx").reason


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", ["lower", "lower.npy"])
def test_an_array_that_a_file_holds_twice_is_rejected(name: str, tmp_path: Path) -> None:
    path = good(tmp_path)
    assert judged(path) == ""
    assert "twice" in judged(appended(path, name, np.array([-9.0])))


def test_a_key_that_meta_holds_twice_is_rejected(tmp_path: Path) -> None:
    arrays = plainest(DATA, [0.0], [1.0])
    text = arrays["meta"].tobytes().replace(b'"label": 0', b'"label": 1, "label": 0')
    assert json.loads(text)["label"] == 0
    assert "twice" in checked(tmp_path, DATA, arrays | {"meta": np.frombuffer(text, np.uint8)}).reason


def test_an_array_that_no_certificate_has_is_rejected_before_it_is_unpacked(tmp_path: Path) -> None:
    path = appended(good(tmp_path), "junk.npy", np.zeros(2**25, np.uint8))
    tracemalloc.start()
    assert "'junk'" in judged(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**22


@pytest.mark.parametrize("kind", ["proof", "counterexample"])
def test_a_small_network_with_many_outputs_does_not_fill_the_memory(kind: str, tmp_path: Path) -> None:
    """Rows for every pair of them would take 8 GiB."""
    many = np.array([0, 0, 0, 2**15])
    data = model(onnx.helper.make_node("Pad", ["x", "p"], ["y"]), double=True, p=many)
    arrays = plainest(data, [0.0, 0.0], [1.0, 1.0]) if kind == "proof" else pointing(data, [-1.0, 0.0])
    tracemalloc.start()
    outcome = checked(tmp_path, data, arrays)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert outcome.accepted == (kind == "counterexample")
    assert outcome.accepted or "no leaf" in outcome.reason
    assert peak < 2**27


def test_a_counterexample_names_the_class_that_wins(tmp_path: Path) -> None:
    data = gemm(np.eye(4), np.zeros(4))
    for x in ([1.0, 0.0, 2.0, 0.5], [1.0, 3.0, 0.0, 0.0]):
        outcome = checked(tmp_path, data, pointing(data, x))
        assert outcome.accepted
        assert outcome.margin == pytest.approx(max(x) - 1.0)
    assert not checked(tmp_path, data, pointing(data, [1.0, 0.5, 0.75, 1.0])).accepted


def test_links_to_nothing_and_names_in_capitals_are_not_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = good(tmp_path / "a")
    (path.parent / "000001.npz").symlink_to(tmp_path / "nothing")
    shutil.copy(path, path.parent / "000002.NPZ")
    (path.parent / "folder.npz").mkdir()
    outcomes = {outcome.name: outcome for outcome in check_folder(path.parent)}
    assert [outcomes[name].accepted for name in sorted(outcomes)] == [True, False, True]
    assert "cannot be read" in outcomes["000001.npz"].reason
    assert main(["check", str(path.parent)]) == 1
    assert "rejected: 000001.npz: the file cannot be read" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    path = good(tmp_path)
    os.mkfifo(tmp_path / "000001.npz")
    assert [outcome.accepted for outcome in check_folder(tmp_path)] == [True, False]
    path.with_name("network.onnx").unlink()
    os.mkfifo(tmp_path / "network.onnx")
    with pytest.raises(Rejected, match="cannot be read"):
        check_folder(tmp_path)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_network_that_cannot_be_read_leaves_the_others_to_be_checked(jobs: int, tmp_path: Path) -> None:
    good(tmp_path / "a")
    put(tmp_path / "b", b"not a network", plainest(b"", [0.0], [1.0]))
    good(tmp_path / "c")
    outcomes = check_folder(tmp_path, jobs=jobs, exact=3)
    assert [outcome.accepted for outcome in outcomes] == [True, False, True]
    assert "no readable ONNX" in outcomes[1].reason
    assert [outcome.name for outcome in outcomes] == [f"{name}/000000.npz" for name in "abc"]


def test_checking_does_not_load_pytorch(tmp_path: Path) -> None:
    good(tmp_path)
    code = "import sys, lipgraft.cli; assert not lipgraft.cli.main(sys.argv[1:]); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code, "check", str(tmp_path)], check=False).returncode == 0


def test_an_error_that_nobody_foresaw_rejects_one_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(good(tmp_path), tmp_path / "000001.npz")
    judge, calls = folder.judge, []

    def failing(*arguments: object) -> tuple[int, float, int]:
        calls.append(arguments)
        if len(calls) == 1:
            raise ValueError("Maximum allowed dimension exceeded")
        return judge(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(folder, "judge", failing)
    assert main(["check", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert "1 of 2 proofs checked" in captured.out
    assert "rejected: 000000.npz: the checker cannot make sense of it (ValueError: Maximum" in captured.err
