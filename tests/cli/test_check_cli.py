"""`lipgraft check DIR`: how many proofs were checked, why others were rejected, exit codes."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import certificates
from certificates import packed
from command_line import failure
from lipgraft.cli import main
from onnx_networks import network


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three proofs of one network and a counterexample."""
    net, folder = network("dense", 8), tmp_path / "certificates"
    folder.mkdir()
    data = net.onnx()
    (folder / "network.onnx").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    random, written = np.random.default_rng(0), 0
    while written < 3:
        centre = random.uniform(-1, 1, 3).astype(np.float32)
        label = int(net(centre[None].astype(float)).argmax())
        lower, upper = centre - np.float32(0.1), centre + np.float32(0.1)
        arrays = certificates.certificate(net, lower, upper, label, digest)
        if arrays is not None:
            np.savez_compressed(folder / f"{written:06d}.npz", **arrays)
            written += 1
    facts = {"format": "lipgraft-counterexample", "network": digest, "label": (label + 1) % 3}
    np.savez(folder / "000003.counterexample.npz", meta=packed(facts), lower=lower, upper=upper, x=centre)
    return folder


def test_all_proofs_checked_is_exit_code_0(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(folder), "--exact", "3"]) == 0
    out = capsys.readouterr().out
    assert "3 of 3 proofs checked" in out
    assert "3 of them repeated in exact arithmetic, of the network in real arithmetic" in out
    assert "1 of 1 counterexample checked" in out


def test_a_rejected_proof_is_exit_code_1_with_its_reason(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray((folder / "000001.npz").read_bytes())
    (folder / "000001.npz").write_bytes(data[: len(data) // 2])
    with np.load(folder / "000002.npz") as file:
        arrays = dict(file)
    arrays["leaf_row"][:] = 0
    np.savez(folder / "000002.npz", **arrays)
    assert main(["check", str(folder)]) == 1
    captured = capsys.readouterr()
    assert "1 of 2 proofs checked" in captured.out
    assert "1 file could not be read" in captured.out
    assert "rejected: 000001.npz: the file cannot be read" in captured.err
    assert "rejected: 000002.npz: row 1 of the claim has no leaf." in captured.err


def test_another_network_is_refused_by_its_fingerprint(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.onnx"
    other.write_bytes(network("dense", 9).onnx())
    assert main(["check", str(folder), "--network", str(other)]) == 1
    captured = capsys.readouterr()
    assert "0 of 3 proofs checked" in captured.out
    assert captured.err.count("another network") == 4
    shutil.copy(folder / "network.onnx", other)
    assert main(["check", str(folder), "--network", str(other)]) == 0


def test_processes_give_the_same_answer_as_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = []
    for jobs in ("1", "2"):
        assert main(["check", str(folder), "--json", "--jobs", jobs, "--exact", "2"]) == 0
        answer = json.loads(capsys.readouterr().out)
        answers.append([[file[name] for name in ("name", "accepted", "leaves", "exact")] for file in answer["files"]])
        assert (answer["accepted"], answer["rejected"]) == (4, 0)
    assert answers[0] == answers[1]


def test_a_folder_without_proofs_or_with_an_unknown_network_is_an_error(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(tmp_path / "missing")]) == 1
    assert "no certificates" in failure(capsys)
    (folder / "network.onnx").write_bytes(b"not a network")
    assert main(["check", str(folder)]) == 1
    assert "no readable ONNX" in failure(capsys)
