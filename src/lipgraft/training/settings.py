"""What a training run can be told, and the schedules that have names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lipgraft.errors import SettingsError, unknown_name
from lipgraft.settings import setting, to_mapping
from lipgraft.training.objectives import OBJECTIVES, ObjectiveSettings
from lipgraft.training.regularisers import RegulariserSettings
from lipgraft.training.task import check


@dataclass(frozen=True)
class TrainSettings(RegulariserSettings, ObjectiveSettings):
    """One run. loss = objective + grad_align R_GA + slope loss_slope + rs loss_RS + ibp_reg loss_IBP + l1 sum|w|.

    The settings of objectives and regularisers come with them.
    """

    epochs: int = setting(200, "Passes over the training images; 0 leaves the model as it is.")
    batch: int = setting(128, "Images per step; the last incomplete batch of an epoch is left out.")

    objective: str = setting("fat", f"What is minimised: {', '.join(OBJECTIVES)}.")

    init: str = setting(
        "given",
        "Initial weights: given, or ibp, drawn from N(0, 2 pi / fan_in^2) except in the last layer (Shi et al.).",
        choices=("given", "ibp"),
    )
    ramp_from: int = setting(0, "Epochs with interval bounds of radius 0 before ramp_epochs begin.")
    ramp_epochs: int = setting(
        0,
        "Epochs over which the radius of interval bounds, and of certified objectives' attacks, grows to eps; 0: none.",
    )

    prune: str = setting(
        "none",
        "Pruning of small weights: fixed sets them to 0 at the start and keeps them there, "
        "one-shot sets them to 0 at the end.",
        choices=("none", "fixed", "one-shot"),
    )
    prune_ratio: float = setting(0.3, "Share of all convolution and linear weights that pruning sets to 0.")

    optimiser: str = setting(
        "sgd",
        "sgd; adam, which keeps its own step sizes; or radam, whose steps also grow over the first 2,000.",
        choices=("sgd", "adam", "radam"),
    )
    lr: float = setting(0.1, "Learning rate of the weights.")
    graft_lr: float = setting(0.01, "Learning rate of the slopes and intercepts of grafted neurons.")
    train_grafts: bool = setting(True, "Whether slopes and intercepts of grafted neurons are trained.")
    momentum: float = setting(0.9, "Momentum of SGD; for adam and radam, the decay of the mean gradient.")
    clip: float = setting(
        4.0, "Largest norm of a step's gradient; longer ones are clipped to it (published: none). 0: no clipping."
    )
    weight_decay: float = setting(5e-4, "Weight decay of everything except slopes and intercepts.")
    schedule: str = setting("multistep", "Learning rate schedule: constant, multistep, cosine or hurry.")
    milestones: tuple[int, ...] = setting((100, 150), "Epochs at which multistep lowers the learning rate.")
    lr_drop: float = setting(0.1, "Factor by which multistep multiplies the learning rate.")
    average_from: int | None = setting(
        None, "Epoch after which weights are averaged; the last model is then the average. None: no average."
    )
    average_every: int = setting(10, "Steps between two sets of weights that enter the average.")

    select: str = setting(
        "best",
        "Which model is kept: the best by accuracy under FGSM on the held-out images, or the last.",
        choices=("best", "last"),
    )
    held_out: int | None = setting(
        None,
        "Number of training images to hold out, from the end; by default the data set's own "
        "number. 0: none, and select must be last.",
    )
    augment: bool = setting(True, "Whether the data set's augmentation is applied.")
    crop: int = setting(4, "Most pixels by which augmentation shifts an image.")
    crop_edge: bool = setting(False, "Whether the border after a shift repeats the image's edge; otherwise it is 0.")
    capture: bool = setting(True, "Capture the step as a CUDA graph and replay it; ignored on a CPU.")
    checkpoint_every: int = setting(1, "Epochs between two checkpoints to resume from.")
    tensorboard: bool = setting(False, "Also write the metrics for TensorBoard (needs the package tensorboard).")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lr", "graft_lr", "lr_drop"):
            check(name, getattr(self, name), getattr(self, name) > 0, "a finite number > 0")
        for name in ("weight_decay", "clip"):
            check(name, getattr(self, name), getattr(self, name) >= 0, "a finite number >= 0")
        for name in ("momentum", "prune_ratio"):
            check(name, getattr(self, name), 0 <= getattr(self, name) < 1, "in [0, 1)")
        for name in ("epochs", "ramp_from", "ramp_epochs", "crop"):
            check(name, getattr(self, name), getattr(self, name) >= 0, "a whole number >= 0")
        if self.average_from is not None:
            check("average_from", self.average_from, self.average_from >= 0, "a whole number >= 0")
        if self.held_out is not None:
            check("held_out", self.held_out, self.held_out >= 0, "a whole number >= 0")
        for name in ("batch", "checkpoint_every", "average_every"):
            check(name, getattr(self, name), getattr(self, name) >= 1, "a whole number >= 1")

    def record(self) -> dict[str, Any]:
        """What finished trainings are known by: the same for the same values as before there were more settings."""
        default = TrainSettings()
        unused = {name for name in LATER if getattr(self, name) == getattr(default, name)}
        return {name: value for name, value in to_mapping(self).items() if name not in unused}


LATER = (
    *("init", "ramp_from", "ramp_epochs", "optimiser", "lr_drop", "average_from", "average_every", "crop"),
    *("clean_share", "attack_reach", "attack_restarts", "ibp_share", "small_box", "relu_shrink", "ibp_reg"),
    *("fold_lines", "attack_worst", "crop_edge", "held_out"),
)
"""Settings that older versions did not have; their defaults are what those versions did."""

_PRETRAIN = TrainSettings()
_FINETUNE = replace(_PRETRAIN, epochs=100, lr=1e-3, schedule="cosine")

_IBP = replace(
    _PRETRAIN,
    objective="ibp",
    epochs=160,
    grad_align=0.0,
    ibp_reg=0.5,
    init="ibp",
    ramp_from=1,
    ramp_epochs=80,
    optimiser="adam",
    lr=5e-4,
    weight_decay=0.0,
    clip=10.0,
    milestones=(120, 140),
    lr_drop=0.2,
    select="last",
    crop=2,
)
_MTL_IBP = replace(
    _IBP,
    objective="mtl-ibp",
    ibp_share=4e-3,
    l1=3e-6,
    attack_reach=2.1,
    attack_steps=8,
    attack_step_size=0.25,
)

PRESETS: dict[str, TrainSettings] = {
    "pretrain": _PRETRAIN,
    "finetune": _FINETUNE,
    "pretrain-short": replace(_PRETRAIN, epochs=50, schedule="hurry", clip=1.0),
    "finetune-short": replace(_FINETUNE, epochs=10, lr=5e-3, graft_lr=0.02, schedule="hurry"),
    "ibp": _IBP,
    "mtl-ibp": _MTL_IBP,
    "mtl-ibp-short": replace(_MTL_IBP, epochs=60, batch=512, lr=1e-3, ramp_epochs=30, milestones=(45, 52), l1=1e-6),
    "ctbench": replace(
        _MTL_IBP,
        ibp_share=0.01,
        clean_share=0.1,
        attack_reach=2.0,
        attack_steps=1,
        attack_step_size=2.0,
        attack_restarts=3,
        average_from=150,
    ),
    "sabr": replace(
        _MTL_IBP,
        objective="sabr",
        l1=1e-6,
        attack_reach=1.5,
        attack_steps=5,
        attack_step_size=0.2,
        attack_restarts=3,
        small_box=0.1,
        relu_shrink=0.8,
    ),
    "mtl-ibp-finetune": replace(
        _MTL_IBP,
        epochs=40,
        init="given",
        ibp_reg=0.0,
        ramp_from=0,
        ramp_epochs=0,
        lr=1e-4,
        graft_lr=1e-3,
        schedule="cosine",
    ),
}
"""pretrain and finetune are the published schedules, but for the clipping, without which CNN-B can diverge, at this
learning rate or with the slope loss; the short ones are for people in a hurry. ibp to sabr are certified training as it
is published for CIFAR-10 at eps 2/255 (docs/certified-training.md), but for mtl-ibp-short; mtl-ibp-finetune goes on
with a trained network, grafted or not."""


def preset(name: str) -> TrainSettings:
    """The settings of a named schedule."""
    if name not in PRESETS:
        raise SettingsError(unknown_name("preset", name, list(PRESETS)))
    return PRESETS[name]
