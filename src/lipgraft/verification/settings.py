"""Every number of the verifier that a user may want to change, in groups: limits, attack, optimise, branch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from lipgraft.errors import SettingsError
from lipgraft.settings import build, check_seed, converted, nested, over, setting, to_mapping

ARITHMETIC = ("sound", "fast")
SPEAKS_OF = ("real", "float32")


def _positive(group: str, **values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise SettingsError(f"{group}.{name} must be a finite number > 0, got {value}.")


def _at_least(least: int, group: str, **values: int) -> None:
    for name, value in values.items():
        if value < least:
            raise SettingsError(f"{group}.{name} must be at least {least}, got {value}.")


def _one_of_choices(group: str, settings: Any) -> None:
    for field in fields(settings):
        choices, value = field.metadata.get("choices"), getattr(settings, field.name)
        if choices is not None and value not in choices:
            raise SettingsError(f"{group}{field.name} must be one of {', '.join(choices)}, got {value!r}.")


@dataclass(frozen=True)
class Limits:
    """When the verifier gives up."""

    timeout: float = setting(300.0, "Seconds of device time per image; the attack gets at most half of it.")
    total_seconds: float | None = setting(
        None, "Wall time from the start of the call, after which all open images end as timeouts; none: no limit."
    )
    max_subproblems: int | None = setting(
        None, "Subproblems after which an image ends undecided, independent of time; none: no limit."
    )
    pool_gigabytes: float | None = setting(
        None,
        "Device memory for open subproblems; none: 40 % of what is free. Beyond that, subproblems move to the host.",
    )
    spill_gigabytes: float | None = setting(
        None,
        "Host memory for open subproblems; none: 40 % of what is free, if there is a GPU. Beyond "
        "both, images end with reason memory.",
    )

    def __post_init__(self) -> None:
        converted(self, "limits.")
        _positive("limits", timeout=self.timeout)
        if self.total_seconds is not None and not self.total_seconds > 0:
            raise SettingsError(f"limits.total_seconds must be > 0 or none, got {self.total_seconds}.")
        if self.max_subproblems is not None and self.max_subproblems < 0:
            raise SettingsError(f"limits.max_subproblems must be at least 0 or none, got {self.max_subproblems}.")
        pool, spill = self.pool_gigabytes, self.spill_gigabytes
        if pool is not None and not 0 < pool < math.inf:
            raise SettingsError(f"limits.pool_gigabytes must be a finite number > 0 or none, got {pool}.")
        if spill is not None and not 0 <= spill < math.inf:
            raise SettingsError(f"limits.spill_gigabytes must be a finite number >= 0 or none, got {spill}.")


@dataclass(frozen=True)
class AttackSettings:
    """How counterexamples are searched for, before bounds are optimised and during branch and bound."""

    method: str = setting("pgd-targeted", "Attack that runs before bounds are optimised.")
    steps: int = setting(50, "Steps of the attack.")
    restarts: int = setting(2, "Random starts of the attack (times the classes, if targeted); 0: no attack.")
    search_every: int = setting(
        8, "Rounds of branching between two searches near the worst points found so far; 0: none."
    )
    search_steps: int = setting(20, "Steps of each ascent of such a search.")
    seed: int = setting(0, "Seed of the attack's random starts.")

    def __post_init__(self) -> None:
        converted(self, "attack.")
        _at_least(1, "attack", steps=self.steps, search_steps=self.search_steps)
        _at_least(0, "attack", restarts=self.restarts, search_every=self.search_every)
        check_seed(self.seed)


@dataclass(frozen=True)
class OptimiseSettings:
    """How bounds are optimised before branching."""

    refine: str = setting(
        "vectors",
        "Layers whose bounds are optimised, in convolutional networks for images that prove hard, in others before"
        " branching; vectors: the fully connected ones.",
        choices=("none", "vectors", "all"),
    )
    refine_iterations: int = setting(10, "Optimisation steps for the bounds of neurons.")
    iterations: int = setting(20, "Optimisation steps for a margin before branching.")
    lr: float = setting(0.1, "Step size for the lines before branching.")
    decay: float = setting(0.98, "Factor on every step size after each step, also in branch and bound.")

    def __post_init__(self) -> None:
        converted(self, "optimise.")
        _one_of_choices("optimise.", self)
        _at_least(0, "optimise", refine_iterations=self.refine_iterations, iterations=self.iterations)
        _positive("optimise", lr=self.lr, decay=self.decay)


@dataclass(frozen=True)
class BranchSettings:
    """How subproblems are split, bounded and, when fully split, solved."""

    rule: str = setting("intercept", "How the neuron to split is chosen: a key of BRANCHING.")
    candidates: int = setting(3, "Number of neurons that filtered branching tries with one bounding step.")
    iterations: int = setting(2, "Optimisation steps for a subproblem; raised up to 32 when splits alone gain nothing.")
    lr_alpha: float = setting(0.1, "Step size for the lines of a subproblem.")
    lr_beta: float = setting(0.2, "Step size for the multipliers of splits; a quarter of it once images have planes.")
    batch: int = setting(4096, "Subproblems, or margins before branching, bounded at once; fewer if memory is short.")
    leaf_iterations: int = setting(50, "Optimisation steps for a fully split subproblem before it is solved exactly.")
    lp_size: int = setting(2_000_000, "A fully split subproblem is solved exactly if it has at most this many entries.")
    capture: bool = setting(True, "Replay the bounding step as a CUDA graph; a CPU ignores it.")
    neuron_splits: int = setting(
        16, "Splits used to improve the bounds of a convolution's neurons once an image proves hard; 0: none."
    )
    neuron_after: int = setting(
        300, "Subproblems after which an image counts as hard; after ten times as many, four times the splits are used."
    )
    plane_steps: int = setting(
        120,
        "Steps for fitting planes above neurons to margins that prove hard; half as many on a CPU and for many"
        " margins; 0: no planes.",
    )

    def __post_init__(self) -> None:
        converted(self, "branch.")
        _at_least(1, "branch", candidates=self.candidates)
        _at_least(0, "branch", iterations=self.iterations, leaf_iterations=self.leaf_iterations, lp_size=self.lp_size)
        _at_least(0, "branch", neuron_splits=self.neuron_splits, neuron_after=self.neuron_after)
        _at_least(0, "branch", plane_steps=self.plane_steps)
        _positive("branch", lr_alpha=self.lr_alpha, lr_beta=self.lr_beta)
        if self.batch < 2:
            raise SettingsError(f"branch.batch must be at least 2, the two halves of a split, got {self.batch}.")


@dataclass(frozen=True)
class VerifySettings:
    """How an image is attacked, bounded and branched, and when the verifier gives up."""

    limits: Limits = setting(Limits(), "Limits on time, subproblems and memory.")
    attack: AttackSettings = setting(AttackSettings(), "The search for counterexamples.")
    optimise: OptimiseSettings = setting(OptimiseSettings(), "The optimisation of bounds before branching.")
    branch: BranchSettings = setting(BranchSettings(), "Branch and bound.")
    images: int = setting(256, "Images per batch in the stages before branch and bound.")
    arithmetic: str = setting(
        "sound",
        "sound: proofs account for their own rounding; fast: bounds in the model's precision, rounding ignored.",
        choices=ARITHMETIC,
    )
    speaks_of: str = setting(
        "real",
        "What a proof is about: the network over the real numbers, or as float32 hardware evaluates it, in any order.",
        choices=SPEAKS_OF,
    )

    def __post_init__(self) -> None:
        converted(self)
        if self.images < 1:
            raise SettingsError(f"images must be at least 1, got {self.images}.")
        _one_of_choices("", self)
        if self.speaks_of == "float32" and self.arithmetic == "fast":
            raise SettingsError("speaks_of: float32 needs arithmetic: sound; a fast proof ignores rounding.")

    def changed(
        self,
        *,
        limits: Mapping[str, Any] | None = None,
        attack: Mapping[str, Any] | None = None,
        optimise: Mapping[str, Any] | None = None,
        branch: Mapping[str, Any] | None = None,
        **own: Any,
    ) -> VerifySettings:
        """A copy with other values: settings.changed(limits={"timeout": 5}, arithmetic="fast")."""
        groups = {"limits": limits, "attack": attack, "optimise": optimise, "branch": branch}
        changes = {name: values for name, values in groups.items() if values is not None} | own
        return build(VerifySettings, over(to_mapping(self), changes), where="settings")


FLAT_NAMES = {
    "timeout": "limits.timeout",
    "total_seconds": "limits.total_seconds",
    "max_subproblems": "limits.max_subproblems",
    "images": "images",
    "attack": "attack.method",
    "attack_steps": "attack.steps",
    "attack_restarts": "attack.restarts",
    "refine": "optimise.refine",
    "refine_iterations": "optimise.refine_iterations",
    "alpha_iterations": "optimise.iterations",
    "lr_root": "optimise.lr",
    "bab_iterations": "branch.iterations",
    "lr_alpha": "branch.lr_alpha",
    "lr_beta": "branch.lr_beta",
    "decay": "optimise.decay",
    "branching": "branch.rule",
    "candidates": "branch.candidates",
    "batch": "branch.batch",
    "pool_gigabytes": "limits.pool_gigabytes",
    "spill_gigabytes": "limits.spill_gigabytes",
    "capture": "branch.capture",
    "search_every": "attack.search_every",
    "search_steps": "attack.search_steps",
    "leaf_iterations": "branch.leaf_iterations",
    "lp_size": "branch.lp_size",
    "seed": "attack.seed",
}
"""What settings were called before they had groups. Recipes may still say so, and results are recorded by these names,
in this order, so that what an older version began can go on. A new setting needs no entry: it is recorded by its path.
"""


RETIRED = "recheck"
"""It repeated proofs in double precision; now all are made so. Older recipes may still have it."""


def grouped(settings: Mapping[str, Any], where: str = "settings") -> dict[str, Any]:
    """Settings by group, by dotted path or by flat name, as `build` takes them: groups alone.

    {"timeout": 5, "attack.steps": 3, "branch": {"batch": 2}} -> {"limits": {"timeout": 5}, "attack": {"steps": 3}, ...}
    where: what an error calls the place they came from. Unknown names are left for `build` to refuse.
    """
    out: dict[str, Any] = {}
    seen: dict[str, str] = {}
    for name, value in settings.items():
        if name == RETIRED:
            if value not in ("none", "float64"):
                raise SettingsError(f"{where}: {RETIRED} is no longer a setting; see arithmetic.")
            continue
        # "attack" was a method's name and is a group now; the value tells.
        inside = {f"{name}.{key}": item for key, item in value.items()} if isinstance(value, Mapping) else None
        parts = {FLAT_NAMES.get(str(name), str(name)): value} if inside is None else inside
        for path, part in parts.items():
            if path in seen:
                raise SettingsError(f"{where}: {path} is given twice, as {seen[path]} and as {name}.")
            seen[path] = str(name) if inside is None else path
            out = over(out, nested(path, part))
        if inside == {}:
            out = over({name: {}}, out)
    return out


LIMITS = tuple(name for name, path in FLAT_NAMES.items() if path.startswith("limits."))
"""What says when the verifier gives up, and has no part in what it proves or refutes."""


def flat(settings: VerifySettings) -> dict[str, Any]:
    """Every setting under the name by which results record it.

    Older versions knew fast arithmetic alone: a run of theirs goes on with arithmetic: fast.
    """
    values = _by_path(settings)
    named = {name: values.pop(path) for name, path in FLAT_NAMES.items()}
    if settings.arithmetic == "fast":
        usual = _by_path(VerifySettings(arithmetic="fast"))
        values = {RETIRED: "none"} | {path: value for path, value in values.items() if value != usual[path]}
    return {**named, **values}


def _by_path(settings: Any, group: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for field in fields(settings):
        value = getattr(settings, field.name)
        out |= _by_path(value, f"{group}{field.name}.") if is_dataclass(value) else {f"{group}{field.name}": value}
    return out
