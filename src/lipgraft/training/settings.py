"""What a training run can be told, and the schedules that have names."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from lipgraft.errors import SettingsError, unknown_name
from lipgraft.settings import setting


@dataclass(frozen=True)
class TrainSettings:
    """One run. loss = objective + grad_align R_GA + slope loss_slope + rs loss_RS + l1 sum|w|."""

    epochs: int = setting(200, "Passes over the training images; 0 leaves the model as it is.")
    batch: int = setting(128, "Images per step; the last incomplete batch of an epoch is left out.")
    eps: float = setting(2 / 255, "Perturbation radius in raw pixels, of the attack and of the interval bounds.")

    objective: str = setting("fat", "What is minimised: standard, fat, pgd, trades, fgsm-mep or fgsm-pco.")
    attack_steps: int = setting(10, "Steps of the attack inside pgd and trades.")
    attack_step_size: float | None = setting(None, "Step of the attack as a multiple of eps; by default its own.")
    trades_beta: float = setting(1.0, "Weight of the divergence between clean and attacked outputs in trades.")
    prior_weight: float = setting(10.0, "Weight of the consistency term in fgsm-mep and fgsm-pco.")
    prior_decay: float = setting(0.3, "Momentum of the stored gradients in fgsm-mep.")
    prior_reset: int = setting(40, "Epochs between two resets of the stored perturbations in fgsm-mep.")
    true_share: float = setting(0.6, "Share of the true class in the smoothed labels of fgsm-mep and fgsm-pco.")

    grad_align: float = setting(0.2, "Weight of gradient alignment.")
    slope: float = setting(0.0, "Weight of the slope loss (paper: 5e-5).")
    slope_form: str = setting(
        "printed",
        "printed: 1 - tanh(k (1-s)^2), as in the paper; symmetric: 1 - tanh(k (1-2s)^2).",
        choices=("printed", "symmetric"),
    )
    slope_k: float = setting(2.0, "The k of the slope loss.")
    slope_scope: str = setting(
        "all", "Neurons in the slope loss: all, only unstable or only grafted.", choices=("all", "unstable", "grafted")
    )
    rs: float = setting(0.0, "Weight of the ReLU stability loss.")
    l1: float = setting(0.0, "Weight of the sum of absolute weights (paper: 1e-4).")

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
    precision: str = setting(
        "auto",
        "Of the products in a step: float32, tf32 (GPUs only), bf16, or auto (bf16 on a GPU, float32 on a CPU).",
        choices=("auto", "float32", "tf32", "bf16"),
    )
    capture: bool = setting(True, "Capture the step as a CUDA graph and replay it; a CPU runs it plainly.")
    fused: bool = setting(True, "Use the formulation of gradient alignment without double backward, where it applies.")
    checkpoint_every: int = setting(1, "Epochs between two checkpoints to resume from.")
    tensorboard: bool = setting(False, "Also write the metrics for TensorBoard (needs the package tensorboard).")

    def __post_init__(self) -> None:
        for name in ("lr", "graft_lr"):
            _check(name, getattr(self, name), getattr(self, name) > 0, "a finite number > 0")
        for name in (
            "grad_align",
            "slope",
            "rs",
            "l1",
            "weight_decay",
            "trades_beta",
            "prior_weight",
            "slope_k",
            "clip",
        ):
            _check(name, getattr(self, name), getattr(self, name) >= 0, "a finite number >= 0")
        for name in ("momentum", "prune_ratio", "prior_decay"):
            _check(name, getattr(self, name), 0 <= getattr(self, name) < 1, "in [0, 1)")
        _check("eps", self.eps, 0 <= self.eps <= 1, "in [0, 1], in raw pixels (8/255, not 8)")
        _check("true_share", self.true_share, 0 < self.true_share <= 1, "in (0, 1]")
        _check("epochs", self.epochs, self.epochs >= 0, "a whole number >= 0")
        for name in ("batch", "attack_steps", "checkpoint_every", "prior_reset"):
            _check(name, getattr(self, name), getattr(self, name) >= 1, "a whole number >= 1")
        if self.attack_step_size is not None:
            _check("attack_step_size", self.attack_step_size, self.attack_step_size > 0, "a finite number > 0")

    def weights(self) -> dict[str, float]:
        """The regularisers in use and their weights, by registry name."""
        named = {"grad-align": self.grad_align, "slope": self.slope, "rs": self.rs, "l1": self.l1}
        return {name: weight for name, weight in named.items() if weight > 0}


def _check(name: str, value: float, fine: bool, rule: str) -> None:
    if not (fine and math.isfinite(value)):
        raise SettingsError(f"{name} must be {rule}, got {value}.")


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
