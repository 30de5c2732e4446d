"""What a training run can be told, and the schedules that have names."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lipgraft.errors import SettingsError, unknown_name
from lipgraft.settings import setting
from lipgraft.training.objectives import OBJECTIVES, ObjectiveSettings
from lipgraft.training.regularisers import RegulariserSettings
from lipgraft.training.task import check


@dataclass(frozen=True)
class TrainSettings(RegulariserSettings, ObjectiveSettings):
    """One run. loss = objective + grad_align R_GA + slope loss_slope + rs loss_RS + l1 sum|w|.

    The settings of objectives and regularisers come with them.
    """

    epochs: int = setting(200, "Passes over the training images; 0 leaves the model as it is.")
    batch: int = setting(128, "Images per step; the last incomplete batch of an epoch is left out.")

    objective: str = setting("fat", f"What is minimised: {', '.join(OBJECTIVES)}.")

    prune: str = setting(
        "none",
        "Small weights: fixed sets them to 0 at the start and keeps them there, one-shot sets them to 0 at the end.",
        choices=("none", "fixed", "one-shot"),
    )
    prune_ratio: float = setting(0.3, "Share of all convolution and linear weights that pruning sets to 0.")

    lr: float = setting(0.1, "Learning rate of the weights.")
    graft_lr: float = setting(0.01, "Learning rate of the slopes and intercepts of grafted neurons.")
    train_grafts: bool = setting(True, "Whether slopes and intercepts of grafted neurons are trained at all.")
    momentum: float = setting(0.9, "Momentum of SGD.")
    clip: float = setting(
        4.0, "Largest norm of a step's gradient, longer ones are shortened to it (published: none); 0: any length."
    )
    weight_decay: float = setting(5e-4, "Weight decay, of everything but slopes and intercepts.")
    schedule: str = setting("multistep", "Course of the learning rate: constant, multistep, cosine or hurry.")
    milestones: tuple[int, ...] = setting((100, 150), "Epochs at which multistep divides the learning rate by ten.")

    select: str = setting(
        "best",
        "The model that is kept: best by accuracy under FGSM on the held-out images, or last.",
        choices=("best", "last"),
    )
    augment: bool = setting(True, "Whether the data set's augmentation is applied.")
    capture: bool = setting(True, "Capture the step as a CUDA graph and replay it; a CPU runs it plainly.")
    checkpoint_every: int = setting(1, "Epochs between two checkpoints to resume from.")
    tensorboard: bool = setting(False, "Also write the metrics for TensorBoard (needs the package tensorboard).")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lr", "graft_lr"):
            check(name, getattr(self, name), getattr(self, name) > 0, "a finite number > 0")
        for name in ("weight_decay", "clip"):
            check(name, getattr(self, name), getattr(self, name) >= 0, "a finite number >= 0")
        for name in ("momentum", "prune_ratio"):
            check(name, getattr(self, name), 0 <= getattr(self, name) < 1, "in [0, 1)")
        check("epochs", self.epochs, self.epochs >= 0, "a whole number >= 0")
        for name in ("batch", "checkpoint_every"):
            check(name, getattr(self, name), getattr(self, name) >= 1, "a whole number >= 1")


_PRETRAIN = TrainSettings()
_FINETUNE = replace(_PRETRAIN, epochs=100, lr=1e-3, schedule="cosine")

PRESETS: dict[str, TrainSettings] = {
    "pretrain": _PRETRAIN,
    "finetune": _FINETUNE,
    "pretrain-short": replace(_PRETRAIN, epochs=50, schedule="hurry", clip=1.0),
    "finetune-short": replace(_FINETUNE, epochs=10, lr=5e-3, graft_lr=0.02, schedule="hurry"),
}
"""pretrain and finetune are the published schedules, but for the clipping, without which CNN-B can diverge, at this
learning rate or with the slope loss; the short ones are for people in a hurry."""


def preset(name: str) -> TrainSettings:
    """The settings of a named schedule."""
    if name not in PRESETS:
        raise SettingsError(unknown_name("preset", name, list(PRESETS)))
    return PRESETS[name]
