"""What a run says while it goes: a line of JSON per epoch, TensorBoard on request, a progress bar."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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


class Bar:
    """A progress bar over all steps of a run, with the last epoch's loss and accuracies and the time left."""

    def __init__(self, title: str, steps: int, done: int, *, show: bool) -> None:
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not show,
        )
        self.task = self.bar.add_task(title, total=steps, completed=done, numbers="")

    def __enter__(self) -> Bar:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def advance(self, steps: int) -> None:
        self.bar.advance(self.task, steps)

    def show(self, record: dict[str, float]) -> None:
        parts = [f"epoch {record['epoch']:.0f}", f"loss {record['loss']:.3f}"]
        parts += [f"{name.upper()} {record[name]:.1%}" for name in ("sa", "ra") if name in record]
        self.bar.update(self.task, numbers="  ".join(parts))
