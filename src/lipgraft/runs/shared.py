"""Finished stages that several runs share: what one run has made, another takes instead of making it again."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lipgraft.files import atomic_write_text


@dataclass(frozen=True)
class Handover:
    """What a stage leaves besides its result. keep(path): put it there for others; bring(path): take it from there."""

    suffix: str
    keep: Callable[[Path], None]
    bring: Callable[[Path], None]


class Shared:
    """A folder of finished stages by the digest of their inputs; every file is whole or not there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def scratch(self, key: str) -> Path:
        """Where the unfinished stage of this digest keeps what it needs to go on."""
        return self.path / "unfinished" / key[:32]

    def take(self, key: str, handover: Handover | None) -> dict[str, Any] | None:
        """The record of a finished stage, with what it left brought along; None when it is not here."""
        record = self._place(key, ".json")
        if not record.exists() or (handover is not None and not self._place(key, handover.suffix).exists()):
            return None
        content: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
        if handover is not None:
            handover.bring(self._place(key, handover.suffix))
        return content

    def put(self, key: str, content: dict[str, Any], handover: Handover | None) -> None:
        """The record goes last: where it is, everything is."""
        if handover is not None:
            self._place(key, handover.suffix).parent.mkdir(parents=True, exist_ok=True)
            handover.keep(self._place(key, handover.suffix))
        atomic_write_text(self._place(key, ".json"), json.dumps(content, indent=1))

    def _place(self, key: str, suffix: str) -> Path:
        return self.path / f"{key[:32]}{suffix}"


def link(source: Path, target: Path) -> None:
    """The same file under another name, without a second copy where the file system can do that."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".link-") as folder:
        new = Path(folder) / target.name
        try:
            os.link(source, new)
        except OSError:
            shutil.copyfile(source, new)
        os.replace(new, target)
