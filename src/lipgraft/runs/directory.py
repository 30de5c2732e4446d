"""A run directory: settings, checkpoints, and what each stage found, so that a killed run goes on where it was."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lipgraft import models, yaml_text
from lipgraft.errors import CheckpointError, SettingsError
from lipgraft.files import atomic_write_text
from lipgraft.locking import awaited
from lipgraft.runs.provenance import hardware, made_by, versions
from lipgraft.runs.recipe import Recipe
from lipgraft.runs.recipe_file import with_groups
from lipgraft.runs.store import RESULTS
from lipgraft.settings import build, to_mapping

Result = dict[str, Any]
RESTORE = "restore it from a copy, or delete it and start the run again, which begins anew."
Announce = Callable[[str, bool], None]
"""(what a stage does, whether it was done before)"""


@dataclass(frozen=True)
class Handover:
    """What a stage leaves besides its result. keep(path): put it there for others; bring(path): take it from there."""

    suffix: str
    keep: Callable[[Path], None]
    bring: Callable[[Path], None]


class SharedStages:
    """A folder of finished stages by the digest of their inputs; every file is whole or not there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def scratch(self, key: str) -> Path:
        """Where the unfinished stage of this digest keeps what it needs to go on."""
        return self.path / "unfinished" / key[:32]

    def alone(self, key: str) -> AbstractContextManager[None]:
        """Within, nobody else is at the stage of this digest; whoever is, is waited for."""
        return awaited(self.path / "locks" / key[:32])

    def take(self, key: str, handover: Handover | None) -> dict[str, Any] | None:
        """The record of a finished stage, with what it left brought along; None when it is not here."""
        content = _record(self._place(key, ".json"))
        if content is None or (handover is not None and not self._place(key, handover.suffix).exists()):
            return None
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


class RunDirectory:
    """The files of one run. Every file is the old one or the new one, never half of one.

    shared: finished stages of other runs too. A run that has it may be begun again with other settings: whatever they
    do not change is taken from there.
    """

    def __init__(
        self, path: Path, announce: Announce = lambda what, done: None, shared: SharedStages | None = None
    ) -> None:
        self.path, self.announce, self.shared = path, announce, shared
        self.device = torch.device("cpu")

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def store(self) -> Path:
        return self.path / RESULTS

    @property
    def examples(self) -> Path:
        return self.path / "examples.npz"

    def begin(self, recipe: Recipe, device: torch.device) -> None:
        """Write the settings, or check that they are those of the run that is here."""
        now = _plain(to_mapping(recipe))
        self.device = device
        if not self.config.exists() or (self.shared is not None and not self.holds(recipe)):
            shutil.rmtree(self.path / "stages", ignore_errors=True)  # found with other settings
            self._write_config(now)
            return
        before = self._recipe()
        if self.shared is not None and before != now:  # a run with fewer models; its examples are of those alone
            self._file("examples").unlink(missing_ok=True)
            self._write_config(now)
            return
        if before is None:
            raise SettingsError(f"{self.path} holds a run of another command; give another --out.")
        if before != now:
            key, was, wanted = _first_difference(before, now)
            if wanted is None:
                raise SettingsError(
                    f"{self.path} was started with {key} = {was}, which is not given now; give the same settings or "
                    "another --out."
                )
            raise SettingsError(
                f"{self.path} holds a run with {key} = {was}, not {wanted}; give another --out, or the same settings."
            )

    def _write_config(self, recipe: Any) -> None:
        content = {"recipe": recipe, "versions": versions(), "hardware": hardware(self.device)}
        atomic_write_text(self.config, yaml_text.dump(content))

    def holds(self, recipe: Recipe) -> bool:
        """Whether the run that is here, if any, is one of this recipe, with all of its models or some."""
        now = _plain(to_mapping(recipe))
        if self.config.exists() and self.read_config().get("recipe") == now:
            return True
        here = self._recipe() if self.config.exists() else None
        if here is None:
            return False
        known = all(model in now["models"] for model in here["models"])
        return known and bool({**here, "models": None} == {**now, "models": None})

    def _recipe(self) -> Any:
        """The recipe of the run that is here, with settings that its version did not have; None: it has none."""
        before = self.read_config().get("recipe")
        try:
            return before and _plain(to_mapping(build(Recipe, before, where=str(self.config))))
        except SettingsError:  # of a version with other settings, which is a difference to tell
            return before

    def read_config(self) -> Result:
        """What the run was started with: recipe, versions and hardware, or what `lipgraft verify` writes."""
        if not self.config.exists():
            raise SettingsError(f"{self.path} is not a run directory: it has no config.yaml; give one that a run made.")
        state = self.config.stat()
        try:
            content = _parsed(self.config, (state.st_ino, state.st_mtime_ns, state.st_size))
        except SettingsError as error:
            raise SettingsError(f"{str(error).removesuffix('.')}; {RESTORE}") from None
        if content is None or (isinstance(content, Mapping) and "recipe" in content and "versions" not in content):
            raise SettingsError(f"{self.config} is damaged: its end is missing; {RESTORE}")
        if not isinstance(content, Mapping) or not {"recipe", "verify"} & set(content):
            raise SettingsError(f"{self.config} is not that of a `run` or a `verify`; give a directory of one of them.")
        return dict(with_groups(content, str(self.config)))

    def checkpoint(self, name: str) -> Path:
        return self.path / "checkpoints" / f"{name}.safetensors"

    def stage(
        self,
        name: str,
        what: str,
        inputs: Mapping[str, Any],
        work: Callable[[Path], Result],
        handover: Handover | None = None,
        *,
        share: bool = True,
    ) -> Result:
        """The result of a stage: the stored one if its inputs are the same, else that of `work`, stored.

        inputs: everything the result depends on, as JSON can hold it; results are JSON too. work(folder): may keep
        there what it needs to go on after an interruption. handover: files besides the result. share: whether other
        runs may take it.
        """
        key = _digest(inputs)
        shared = self.shared if share else None
        stored = self._stored(name, key)
        if stored is not None:
            self.announce(what, True)
            return stored
        with nullcontext() if shared is None else shared.alone(key):
            return self._made(name, key, what, work, handover, shared)

    def _made(
        self,
        name: str,
        key: str,
        what: str,
        work: Callable[[Path], Result],
        handover: Handover | None,
        shared: SharedStages | None,
    ) -> Result:
        """The result of a stage that this run does not have: that of another run, or of `work`."""
        if shared is not None and (record := shared.take(key, handover)) is not None:
            atomic_write_text(self._file(name), json.dumps(record, indent=1))
            self.announce(what, True)
            return dict(record["result"])
        self.announce(what, False)
        scratch = self.path / "unfinished" / f"{name}.{key[:8]}" if shared is None else shared.scratch(key)
        began = time.perf_counter()
        result = _plain(work(scratch))
        # A stage that went on after an interruption knows better how long it took in all.
        result["seconds"] = max(time.perf_counter() - began, result.get("seconds", 0.0))
        record = {"key": key, "made": made_by(self.device), "result": result}
        if shared is not None:
            shared.put(key, record, handover)
        atomic_write_text(self._file(name), json.dumps(record, indent=1))
        shutil.rmtree(scratch, ignore_errors=True)
        return dict(result)

    def model(
        self,
        name: str,
        what: str,
        inputs: Mapping[str, Any],
        make: Callable[[Path], tuple[nn.Module, Result]],
        device: torch.device,
        input_shape: tuple[int, ...],
    ) -> nn.Module:
        """The model of a stage that makes one: read from its checkpoint, or made and written there."""
        file = self.checkpoint(name)

        def work(scratch: Path) -> Result:
            model, result = make(scratch)
            models.save(model, file, extra={"stage": what, "inputs": _plain(inputs)}, input_shape=input_shape)
            return {**result, "sha256": _sha256(file)}

        if not file.exists():
            self.forget(name)
        handover = Handover(".safetensors", lambda place: _link(file, place), lambda place: _link(place, file))
        made = self.stage(name, what, inputs, work, handover)
        try:
            model = models.load(file, device)
        except CheckpointError as error:
            raise CheckpointError(f"{error} Or delete it and run the same command again, to make it anew.") from None
        if made.get("sha256", written := _sha256(file)) != written:  # older runs did not record it
            raise CheckpointError(
                f"{file} is not as it was written; restore it from a copy, or delete it and run the "
                "same command again, to make it anew."
            )
        return model

    def forget(self, name: str) -> None:
        """Let a stage count as not done: what it left is not there any more."""
        self._file(name).unlink(missing_ok=True)

    def finished(self, name: str) -> bool:
        """Whether a stage of this name has a result."""
        return _record(self._file(name)) is not None

    def made(self, name: str) -> dict[str, str]:
        """The commit and the device that a finished stage was made with."""
        return dict((_record(self._file(name)) or {}).get("made", {}))

    def result(self, name: str) -> Result:
        """What a finished stage found."""
        record = _record(self._file(name))
        if record is None:
            raise SettingsError(f"the run in {self.path} is not finished: {name} is missing; run it again to continue.")
        return dict(record["result"])

    def _stored(self, name: str, key: str) -> Result | None:
        record = _record(self._file(name))
        return dict(record["result"]) if record is not None and record["key"] == key else None

    def _file(self, name: str) -> Path:
        return self.path / "stages" / f"{name}.json"


@lru_cache(maxsize=8)
def _parsed(config: Path, version: tuple[int, int, int]) -> Any:
    """What a config.yaml says, read once for each version of it: after every row the whole table is written again."""
    return yaml_text.read(config, str(config))


def _record(file: Path) -> dict[str, Any] | None:
    """The record of a finished stage; one that cannot be read counts as not there, so that the stage is done again."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return content if isinstance(content, dict) and {"key", "result"} <= set(content) else None


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _link(source: Path, target: Path) -> None:
    """The same file under another name, without a second copy where the file system can do that."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".link-") as folder:
        new = Path(folder) / target.name
        try:
            os.link(source, new)
        except OSError:
            shutil.copyfile(source, new)
        os.replace(new, target)


def _digest(inputs: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(_plain(inputs), sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """As JSON gives it back: tuples are lists, and so on. NaN and infinity stay, Python's JSON has them."""
    return json.loads(json.dumps(value))


def _first_difference(before: Any, now: Any, path: str = "") -> tuple[str, Any, Any]:
    """(dotted key, the value before, the value now) of the first setting that differs."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in [*now, *(k for k in before if k not in now)]:
            if before.get(key) != now.get(key):
                return _first_difference(before.get(key), now.get(key), f"{path}.{key}" if path else key)
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for i, (old, new) in enumerate(zip(before, now, strict=True)):
            if old != new:
                return _first_difference(old, new, f"{path}[{i}]")
    return path, before, now
