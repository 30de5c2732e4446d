"""What a run says while it goes: a line of JSON per epoch, TensorBoard on request."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from lipgraft.errors import SettingsError
from lipgraft.files import atomic_write_text, written


class MetricsFile:
    """metrics.jsonl: one line per epoch, in order, also after a resumed run."""

    def __init__(self, path: Path, history: tuple[dict[str, float], ...]) -> None:
        self.path = path
        atomic_write_text(path, "".join(json.dumps(record) + "\n" for record in history))

    def write(self, record: dict[str, float]) -> None:
        with written(self.path), self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")


class TensorBoard:
    """The same numbers for TensorBoard."""

    def __init__(self, directory: Path) -> None:
        try:
            module: Any = importlib.import_module("torch.utils.tensorboard")
        except ImportError:
            raise SettingsError("tensorboard = true needs the package: pip install tensorboard.") from None
        self.writer = module.SummaryWriter(directory)

    def write(self, record: dict[str, float]) -> None:
        for name, value in record.items():
            self.writer.add_scalar(name, value, int(record["epoch"]))
        self.writer.flush()
