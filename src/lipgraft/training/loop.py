"""The one loop, for pre-training and for fine-tuning."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from lipgraft import models
from lipgraft.attacks.search import search
from lipgraft.data import Dataset, images
from lipgraft.data.dataset import check_dataset
from lipgraft.display import Chart, chart, curve, table
from lipgraft.errors import NumericalError, SettingsError, unknown_name
from lipgraft.inputs import device_named, settings_of
from lipgraft.locking import held
from lipgraft.models.classifier import ModelSpec
from lipgraft.models.own import check_fits
from lipgraft.network.evaluation import check_module
from lipgraft.settings import to_mapping
from lipgraft.training.checkpoint import Progress, StateWriter, read_state, state_tensors
from lipgraft.training.evaluate import accuracy, interval_accuracy
from lipgraft.training.log import MetricsFile, TensorBoard
from lipgraft.training.prepare import draw_weights, is_finite, permutation, prepare, seed_for
from lipgraft.training.processes import Processes
from lipgraft.training.pruning import apply_masks, keep_masks
from lipgraft.training.schedule import average_weights, factors, radius_shares
from lipgraft.training.settings import TrainSettings, preset
from lipgraft.training.step import runner

TELL_EVERY = 20
"""Steps between two calls of `progress`."""

SHARES = "sa", "ra", "accuracy"
"""The entries of a record that are shares of images."""

Tell = Callable[[int, int, Mapping[str, float]], None]
"""What `progress` is called with: steps done, steps of the run, the record of the last epoch (empty before)."""


@dataclass(frozen=True, eq=False)
class TrainResult:
    """model: the module given, with the chosen weights; history: one record per epoch (epoch, lr, loss and its parts,
    accuracy on the images trained on, sa, ra and perhaps ibp on held-out images, seconds); best_epoch: 0 is the start;
    checkpoint: the chosen model's file, if one was written."""

    model: nn.Module
    history: tuple[dict[str, float], ...]
    best_epoch: int
    checkpoint: Path | None

    def __repr__(self) -> str:
        last = self.history[-1] if self.history else {}
        shares = "".join(f", {name.upper()} {last[name]:.1%}" for name in ("sa", "ra") if name in last)
        return f"<TrainResult: {len(self.history)} epochs, the best is {self.best_epoch}{shares} after the last>"

    def _repr_html_(self) -> str:
        names = [name for name in ("loss", "sa", "ra", "lr", "seconds") if any(name in r for r in self.history)]
        rows = []
        for name in names:
            values = [record[name] for record in self.history if name in record]
            rows.append((name, f"{values[0]:.4g}", f"{values[-1]:.4g}", curve(values)))
        return table(repr(self)[1:-1], ("", "first epoch", "last", "all epochs"), rows)

    def plot(self, *names: str) -> Chart:
        """Entries of the records by epoch; by default the accuracies: sa, ra and that on the images trained on."""
        chosen = names or SHARES
        known = sorted({name for record in self.history for name in record})
        for name in names:
            if name not in known:
                raise SettingsError(unknown_name("entry of the history", name, known))
        series = {name: [(r["epoch"], r[name]) for r in self.history if name in r] for name in chosen}
        share = set(chosen) <= set(SHARES)
        return chart("Training", series, across="epoch", up="%" if share else "", share=share)


def train(
    model: nn.Module,
    data: Dataset,
    settings: TrainSettings | str,
    *,
    run_dir: str | Path | None = None,
    resume: bool = False,
    device: str | torch.device = "auto",
    seed: int = 0,
    progress: Tell | None = None,
) -> TrainResult:
    """Train the model in place and leave it with the chosen weights, in evaluation mode.

    settings: of the run, or the name of a preset, a key of `training.PRESETS`.
    run_dir: gets metrics.jsonl, checkpoints/state.safetensors after each epoch, checkpoints/last.safetensors and
    best.safetensors at the end; None writes nothing. resume: go on from the state in run_dir, if there is one; on a
    CPU the result is that of an uninterrupted run, bit for bit. progress: called every few steps, see `Tell`.

    Examples:
        >>> from dataclasses import replace
        >>> import lipgraft as lg
        >>> model, data = lg.models.build("digits-cnn", "digits", seed=0), lg.data.load("digits")
        >>> settings = replace(lg.training.preset("pretrain-short"), eps=0.05, epochs=1, batch=256)
        >>> result = lg.train(model, data, settings, device="cpu")
        >>> len(result.history), result.model is model
        (1, True)
    """
    device, settings = device_named(device), _chosen(settings)
    check_dataset(data)
    check_module(model)
    check_fits(model, data, "the model")
    # In a run of several processes the first one alone writes.
    directory = None if run_dir is None or not Processes.here().first else Path(run_dir)
    with nullcontext() if directory is None else held(directory):
        run = _Run(model, data, settings, directory, device, seed)
        run.begin(resume)
        try:
            run.epochs(progress)
        finally:
            run.states.wait()
        return run.finish()


def _chosen(settings: TrainSettings | str) -> TrainSettings:
    """The settings, also by the name of a preset."""
    return preset(settings) if isinstance(settings, str) else settings_of(settings, TrainSettings, None)


class _Run:
    def __init__(
        self,
        model: nn.Module,
        data: Dataset,
        settings: TrainSettings,
        directory: Path | None,
        device: torch.device,
        seed: int,
    ) -> None:
        self.model, self.settings, self.directory, self.seed = model, settings, directory, seed
        self.input_shape = data.input_shape
        _, held_out = data.holding_out(settings.held_out).split()
        if settings.select == "best" and len(held_out) == 0:
            raise SettingsError(f"{data.name} holds out no images to choose the best epoch by; set select to last.")
        if settings.init == "ibp" and settings.epochs:
            draw_weights(model, torch.Generator().manual_seed(seed_for(seed, 0, "init")))
        self.step = prepare(model, data, settings, device)
        self.x_val, self.y_val = (t[held_out.to(t.device)].to(device) for t in (data.x_train, data.y_train))
        self.best = _copy(model)
        self.progress = Progress()
        self.states = StateWriter()
        spec = getattr(model, "spec", None)
        self.identity: dict[str, Any] = {
            "settings": to_mapping(settings),
            "data": data.name,
            "seed": seed,
            "model": to_mapping(spec) if isinstance(spec, ModelSpec) else type(model).__name__,
        }
        self.writers: list[Callable[[dict[str, float]], None]] = []

    def begin(self, resume: bool) -> None:
        """Start at the state on disk, or at the beginning; all processes at that of the first."""
        if self.directory is not None:
            self._open(self.directory, resume)
        tensors = [*state_tensors(self.step, self.best).values()]
        self.progress = self.step.processes.from_first(self.progress, tensors)

    def _open(self, directory: Path, resume: bool) -> None:
        if not self._file("state").exists():
            self._write_state()
        elif resume:
            self.progress = read_state(self._file("state"), self.step, self.best, self.identity)
        else:
            raise SettingsError(f"{directory} already holds a run; resume it or choose another directory.")
        self.writers.append(MetricsFile(directory / "metrics.jsonl", self.progress.history).write)
        if self.settings.tensorboard:
            self.writers.append(TensorBoard(directory / "tensorboard").write)

    def epochs(self, tell: Tell | None) -> None:
        first, last = self.progress.epoch, self.settings.epochs
        if first >= last:
            return
        take_step = runner(self.step)
        for epoch in range(first, last):
            began = time.perf_counter()
            record = {**self._one_epoch(epoch, take_step, tell), **self._validate(epoch)}
            record["seconds"] = time.perf_counter() - began
            self._account(record)
            if (epoch + 1) % self.settings.checkpoint_every == 0 or epoch + 1 == last:
                self._write_state()

    def finish(self) -> TrainResult:
        """Write the models and leave the chosen one in the module."""
        last = _copy(self.model)
        if self.settings.average_from is not None and self.progress.epoch > self.settings.average_from:
            last |= {name: mean.clone() for name, mean in self.step.average.items()}
        kept = {"last": last, "best": self.best} if len(self.x_val) else {"last": last}
        for name, weights in kept.items():
            self.model.load_state_dict(weights)
            if self.settings.prune == "one-shot" and self.settings.epochs:
                apply_masks(self.model, keep_masks(self.model, self.settings.prune_ratio))
                kept[name] = _copy(self.model)
            self._save_model(name)
        self.model.load_state_dict(kept[self.settings.select])
        self.model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        self.model.eval()
        chosen = None if self.directory is None else self._file(self.settings.select)
        return TrainResult(self.model, self.progress.history, self.progress.best_epoch, chosen)

    def _one_epoch(self, epoch: int, take_step: Callable[[], None], tell: Tell | None) -> dict[str, float]:
        """All steps of an epoch; the means of what they measured."""
        step, task = self.step, self.step.task
        task.generator.manual_seed(seed_for(self.seed, epoch, "steps"))
        if step.objective.begin_epoch is not None:
            step.objective.begin_epoch(task, epoch)
        rates = factors(self.settings, epoch, step.steps)
        shares, blends = (table(self.settings, epoch, step.steps) for table in (radius_shares, average_weights))
        step.begin_epoch(permutation(self.seed, epoch, len(step.x)), rates, shares, blends)
        at_once = step.x.device.type == "cpu"  # elsewhere a look at the loss would hold up the device
        for i in range(1, step.steps + 1):
            take_step()
            if at_once and step.diverged:
                self._give_up(epoch)
            if tell is not None and (i % TELL_EVERY == 0 or i == step.steps):
                last = self.progress.history[-1] if self.progress.history else {}
                tell(epoch * step.steps + i, self.settings.epochs * step.steps, last)
        if step.diverged or not is_finite(self.model):
            self._give_up(epoch)
        step.end_epoch()
        return {"epoch": epoch + 1, "lr": rates[0] * self.settings.lr, **step.means()}

    def _validate(self, epoch: int) -> dict[str, float]:
        """Accuracy on the held-out images, clean (sa), under FGSM (ra) and, if training has them, by bounds (ibp)."""
        if len(self.x_val) == 0:
            return {}
        try:
            found = search(
                self.model,
                images(self.x_val),
                self.y_val,
                self.settings.eps,
                "fgsm",
                seed=seed_for(self.seed, epoch, "validation"),
            )
        except NumericalError:
            self._give_up(epoch)
        sa = accuracy(self.model, self.x_val, self.y_val)
        record = {"sa": sa, "ra": float((~found.broken).float().mean())}
        if self.step.objective.bounds:
            record["ibp"] = interval_accuracy(self.model, self.x_val, self.y_val, self.settings.eps)
        return record

    def _account(self, record: dict[str, float]) -> None:
        """Enter an epoch into the books; keep its weights if it is the best so far."""
        done = int(record["epoch"])
        self.progress = replace(self.progress, epoch=done, history=(*self.progress.history, record))
        if record.get("ra", -1.0) > self.progress.best_ra:
            self.progress = replace(self.progress, best_epoch=done, best_ra=record["ra"])
            for name, tensor in self.model.state_dict().items():
                self.best[name].copy_(tensor)
        for write in self.writers:
            write(record)

    def _give_up(self, epoch: int) -> NoReturn:
        """The run diverged: say so, and leave the last good state as models that can be loaded."""
        advice = "lower the learning rate or the regularisers' weights"
        if self.directory is None:
            self.step.processes.wait()
            raise NumericalError(f"training diverged in epoch {epoch + 1}: the loss is NaN or infinite; {advice}.")
        self.states.wait()
        self.progress = read_state(self._file("state"), self.step, self.best, self.identity)
        self.finish()
        self.step.processes.wait()
        raise NumericalError(
            f"training diverged in epoch {epoch + 1}: the loss is NaN or infinite; the models in "
            f"{self.directory / 'checkpoints'} are those after epoch {self.progress.epoch}; {advice}."
        )

    def _file(self, name: str) -> Path:
        assert self.directory is not None
        return self.directory / "checkpoints" / f"{name}.safetensors"

    def _write_state(self) -> None:
        if self.directory is not None:
            self.states.write(self._file("state"), self.step, self.best, self.progress, self.identity)

    def _save_model(self, name: str) -> None:
        if self.directory is not None:
            extra = {**self.identity, "epoch": self.progress.best_epoch if name == "best" else self.progress.epoch}
            models.save(self.model, self._file(name), extra=extra, input_shape=self.input_shape)


def _copy(model: nn.Module) -> dict[str, Tensor]:
    """The weights and buffers as they are now."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}
