"""Checking proofs as they come, in a process beside the one that finds them."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import certificates
from lipgraft.checker import Rejected, check_file
from lipgraft.checker.folder import NETWORK
from lipgraft.checker.follow import Follower


def three_proofs(folder: Path) -> list[Path]:
    """One that stands, one that is damaged, one of another network."""
    case = next(filter(None, (certificates.case(folder, "dense", seed, 0.2) for seed in range(6))))
    (folder / NETWORK).write_bytes(case.file.read_bytes())
    files = [folder / name for name in ("good.npz", "a name with\nodd \u00fc characters.npz", "other.npz")]
    np.savez(files[0], **case.arrays)
    files[1].write_bytes(files[0].read_bytes()[:-100])
    other = case.arrays | {"meta": np.frombuffer(bytes(case.arrays["meta"]).replace(b"network", b"Network"), np.uint8)}
    np.savez(files[2], **other)
    return files


def test_what_is_followed_is_judged_as_in_this_process_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    files = three_proofs(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json.py").write_text("raise SystemExit('a file of the working folder was taken for a library')")
    with Follower() as follower:
        for file in (*files, files[0]):
            follower.add(Path(file.name))
        found = follower.outcomes()
    expected = [check_file(file, tmp_path / NETWORK) for file in files]
    assert [replace(outcome, seconds=0.0) for outcome in found] == [replace(one, seconds=0.0) for one in expected]
    assert [outcome.accepted for outcome in found] == [True, False, False]
    assert capfd.readouterr() == ("", "")


def test_a_process_that_was_ended_is_told_and_never_counts_as_accepted(tmp_path: Path) -> None:
    with Follower() as follower:
        os.kill(follower._process.pid, signal.SIGKILL)
        follower._process.wait()
        with pytest.raises(Rejected, match="was ended"):
            follower.add(tmp_path / "x.npz")
        with pytest.raises(Rejected, match="was ended"):
            follower.outcomes()


def test_the_process_is_gone_when_the_run_fails() -> None:
    with pytest.raises(KeyboardInterrupt), Follower() as follower:
        raise KeyboardInterrupt
    assert follower._process.poll() is not None
