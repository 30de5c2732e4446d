"""The state of a run between two epochs: everything needed to go on, in one file that is old or new, never half."""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lipgraft.errors import CheckpointError, SettingsError
from lipgraft.files import atomic_write_bytes
from lipgraft.models import tensor_file
from lipgraft.training.step import Step

FORMAT = "lipgraft-training-state"


@dataclass(frozen=True)
class Progress:
    """epoch: how many are done; the best one so far (0: the start) and its accuracy under FGSM on held-out images.

    All randomness of an epoch comes from the run's seed and the epoch's number, so this is also the generators' state.
    """

    epoch: int = 0
    best_epoch: int = 0
    best_ra: float = -1.0
    history: tuple[dict[str, float], ...] = field(default=(), repr=False)


class StateWriter:
    """Writes states while training goes on: the tensors are copied at once, the disk is not waited for.

    One state at a time, in order; an error of the disk is raised by the next call. A process that is killed may lose
    the state of the epoch that it had just ended, never an earlier one.
    """

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="training-state")
        self.pending: Future[None] | None = None

    def write(
        self, path: Path, step: Step, best: dict[str, Tensor], progress: Progress, identity: dict[str, Any]
    ) -> None:
        """best: the weights of the best epoch so far; identity: what must be the same when the run is resumed
        (settings, data, seed, model), as JSON can hold it."""
        metadata = {
            "format": FORMAT,
            "identity": json.dumps(identity),
            "epoch": str(progress.epoch),
            "best_epoch": str(progress.best_epoch),
            "best_ra": repr(progress.best_ra),
            "history": json.dumps(progress.history),
        }
        self.wait()
        copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in state_tensors(step, best).items()}
        self.pending = self.thread.submit(lambda: atomic_write_bytes(path, tensor_file.to_bytes(copies, metadata)))

    def wait(self) -> None:
        """Until the last state is on the disk."""
        pending, self.pending = self.pending, None
        if pending is not None:
            pending.result()


def read_state(path: Path, step: Step, best: dict[str, Tensor], identity: dict[str, Any]) -> Progress:
    """Put everything back where a `StateWriter` found it, after checking that it is a state of this very run."""
    stored = tensor_file.read(path)
    if stored.metadata.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not the state of a training run; give the run's own directory.")
    _check_identity(path, json.loads(stored.metadata["identity"]), json.loads(json.dumps(identity)))
    here = state_tensors(step, best)
    if here.keys() != stored.tensors.keys() or any(here[k].shape != t.shape for k, t in stored.tensors.items()):
        raise CheckpointError(f"{path} is the state of another network; start in a new directory.")
    # Masks of grafted neurons are part of what the run is; weights are what it has become.
    if any(not torch.equal(here[name].cpu(), t) for name, t in stored.tensors.items() if t.dtype == torch.bool):
        raise SettingsError(f"the run in {path.parent.parent} grafts other neurons; use a new directory.")
    with torch.no_grad():
        for name, tensor in here.items():
            tensor.copy_(stored.tensors[name])
    return Progress(
        int(stored.metadata["epoch"]),
        int(stored.metadata["best_epoch"]),
        float(stored.metadata["best_ra"]),
        tuple(json.loads(stored.metadata["history"])),
    )


def state_tensors(step: Step, best: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights and buffers now, at their best and on average, momenta, the objective's memory and pruning masks."""
    return {
        **{f"best.{name}": tensor for name, tensor in best.items()},
        **{f"model.{name}": tensor for name, tensor in step.task.model.state_dict().items()},
        **step.optimiser.state,
        **{f"average.{name}": tensor for name, tensor in step.average.items()},
        **{f"memory.{name}": tensor for name, tensor in step.task.memory.items()},
        **{f"keep.{name}": tensor for name, tensor in step.keep.items()},
    }


def _check_identity(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    before, now = _flat(before), _flat(now)
    changed = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    if changed:
        first, *rest = changed
        more = f", and {', '.join(rest)} changed too" if rest else ""
        raise SettingsError(
            f"the run in {path.parent.parent} was started with {first} = {before.get(first)}, now it is "
            f"{now.get(first)}{more}; resume with the same settings or use a new directory."
        )


def _flat(mapping: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys joined by dots."""
    out: dict[str, Any] = {}
    for key, value in mapping.items():
        out.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return out
