"""Every number of the verifier that a user may want to change."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from lipgraft.errors import SettingsError
from lipgraft.settings import check_seed, setting


@dataclass(frozen=True)
class VerifySettings:
    """How an image is attacked, bounded and branched, and when the verifier gives up."""

    timeout: float = setting(300.0, "Seconds of device time that one image may take, at most half of them attacked.")
    total_seconds: float | None = setting(
        None, "Wall time, from the call on, after which all open images end as timeouts; none: no limit."
    )
    max_subproblems: int | None = setting(
        None, "Subproblems after which an image ends undecided, whatever the clock says; none: no limit."
    )
    images: int = setting(256, "Images that go through the stages before branch and bound together.")
    attack: str = setting("pgd-targeted", "Attack that runs before any bound.")
    attack_steps: int = setting(50, "Steps of the attack.")
    attack_restarts: int = setting(2, "Random starts of the attack (times the classes, if targeted); 0: no attack.")
    refine: str = setting(
        "vectors", "Which layers get optimised bounds before branching.", choices=("none", "vectors", "all")
    )
    refine_iterations: int = setting(10, "Steps of optimisation for the bounds of neurons.")
    alpha_iterations: int = setting(20, "Steps of optimisation of a margin before branching.")
    lr_root: float = setting(0.1, "Step size for the lines before branching.")
    bab_iterations: int = setting(2, "Steps of optimisation of a subproblem.")
    lr_alpha: float = setting(0.1, "Step size for the lines of a subproblem.")
    lr_beta: float = setting(0.2, "Step size for the multipliers of splits.")
    decay: float = setting(0.98, "Factor on every step size after each step.")
    branching: str = setting("intercept", "How the neuron to split is chosen: a key of BRANCHING.")
    candidates: int = setting(3, "Neurons that the filtered branching tries by one bounding step.")
    batch: int = setting(4096, "Subproblems bounded at once, at most; less where memory is short.")
    pool_gigabytes: float | None = setting(
        None, "Device memory for open subproblems; none: 40 % of what is free. Beyond it they move to the host."
    )
    spill_gigabytes: float | None = setting(
        None, "Host memory for them; none: 40 % of what is free beside a GPU. Beyond both, images end for memory."
    )
    capture: bool = setting(True, "Replay the bounding step as a CUDA graph; a CPU ignores it.")
    search_every: int = setting(8, "Rounds of branching between two short attacks from subproblems; 0: none.")
    search_steps: int = setting(20, "Steps of such a short attack.")
    leaf_iterations: int = setting(50, "Steps of optimisation of a fully split subproblem before it is solved exactly.")
    lp_size: int = setting(2_000_000, "A fully split subproblem is solved exactly if it has at most this many entries.")
    recheck: str = setting("none", "Repeat proofs in double precision.", choices=("none", "float64"))
    seed: int = setting(0, "Seed of the attack's random starts.")

    def __post_init__(self) -> None:
        for name in ("timeout", "lr_root", "lr_alpha", "lr_beta", "decay"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise SettingsError(f"{name} must be a finite number > 0, got {value}.")
        if self.total_seconds is not None and not self.total_seconds > 0:
            raise SettingsError(f"total_seconds must be > 0 or none, got {self.total_seconds}.")
        if self.pool_gigabytes is not None and not 0 < self.pool_gigabytes < math.inf:
            raise SettingsError(f"pool_gigabytes must be a finite number > 0 or none, got {self.pool_gigabytes}.")
        if self.spill_gigabytes is not None and not 0 <= self.spill_gigabytes < math.inf:
            raise SettingsError(f"spill_gigabytes must be a finite number >= 0 or none, got {self.spill_gigabytes}.")
        if self.max_subproblems is not None and self.max_subproblems < 0:
            raise SettingsError(f"max_subproblems must be at least 0 or none, got {self.max_subproblems}.")
        for name in ("images", "attack_steps", "candidates", "search_steps"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} must be at least 1, got {getattr(self, name)}.")
        counts = (
            "attack_restarts",
            "refine_iterations",
            "alpha_iterations",
            "bab_iterations",
            "leaf_iterations",
            "search_every",
            "lp_size",
        )
        for name in counts:
            if getattr(self, name) < 0:
                raise SettingsError(f"{name} must not be negative, got {getattr(self, name)}.")
        check_seed(self.seed)
        if self.batch < 2:
            raise SettingsError(f"batch must be at least 2, the two halves of a split, got {self.batch}.")
        for field in fields(self):
            choices = field.metadata.get("choices")
            if choices is not None and getattr(self, field.name) not in choices:
                raise SettingsError(
                    f"{field.name} must be one of {', '.join(choices)}, got {getattr(self, field.name)!r}."
                )
