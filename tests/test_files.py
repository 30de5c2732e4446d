"""lipgraft.files: a write is whole or did not happen."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from lipgraft.files import atomic_write_bytes, atomic_write_text, sync_files


def test_the_file_holds_exactly_the_bytes_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "a.bin"
    atomic_write_bytes(path, b"one")
    atomic_write_bytes(path, b"two")
    assert path.read_bytes() == b"two"
    assert os.listdir(path.parent) == ["a.bin"]


def test_a_failed_write_leaves_the_old_file_and_no_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    atomic_write_text(path, "old")
    with pytest.raises(TypeError):
        atomic_write_bytes(path, "not bytes")  # type: ignore[arg-type]
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_the_mode_is_that_of_an_ordinary_new_file_or_of_the_old_one(tmp_path: Path) -> None:
    plain, ours = tmp_path / "plain", tmp_path / "ours"
    plain.write_bytes(b"")
    atomic_write_bytes(ours, b"")
    assert stat.S_IMODE(ours.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    ours.chmod(0o600)
    atomic_write_bytes(ours, b"again")
    assert stat.S_IMODE(ours.stat().st_mode) == 0o600


def test_files_can_be_synced_together_after_they_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    files = [tmp_path / f"{number}.npz" for number in range(5)]
    for file in files:
        atomic_write_bytes(file, b"proof", sync=False)
    assert not synced
    files[0].unlink()
    sync_files(files)
    sync_files([])
    assert len(synced) == 4 + 1  # and the folder
    assert all(file.read_bytes() == b"proof" for file in files[1:])
