"""What a whole run can be told: frozen dataclasses with a sentence per field. `recipe_file` fills them from YAML."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from lipgraft import data as datasets
from lipgraft import models
from lipgraft.attacks.methods import method_named
from lipgraft.bounds import METHODS
from lipgraft.errors import SettingsError, unknown_name
from lipgraft.grafting.activation import LINES
from lipgraft.grafting.sequence import check_selection
from lipgraft.models import ACTIVATIONS
from lipgraft.report.published import published
from lipgraft.sensitivity import NOTIONS, UNITS, LipschitzSettings
from lipgraft.settings import check_eps, check_seed, check_threads, setting, to_mapping
from lipgraft.training import TrainSettings
from lipgraft.verification import VerifySettings
from lipgraft.verification.settings import flat


def _known(kind: str, name: str, names: Any) -> None:
    if name not in names:
        raise SettingsError(unknown_name(kind, name, list(names)))


LONGEST_NAME = 100
MEASURED_ON = TEST, HELD_OUT = "test", "held-out"


def check_folder_name(kind: str, name: str) -> None:
    """A name that becomes a folder of its own: not the folder above, nor one elsewhere."""
    if not name or name.startswith(".") or len(name) > LONGEST_NAME or re.search(r"[/\\\x00-\x1f\x7f-\x9f]", name):
        shown = name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..."
        raise SettingsError(
            f"{kind} must be a plain name of 1 to {LONGEST_NAME} characters, without slashes, control characters or a "
            f"leading dot, because it names a folder, got {shown!r}."
        )


def _at_least(least: int, **values: int | None) -> None:
    for name, value in values.items():
        if value is not None and value < least:
            raise SettingsError(f"{name} must be at least {least}, got {value}.")


@dataclass(frozen=True)
class CalibrationSettings:
    """The images over which neurons are scored, once for all models."""

    count: int | None = setting(None, "Training images to score with; by default the paper's number for the network.")
    bounds: str = setting("crown", "Bound method for the scores.")
    batch: int = setting(100, "Images bounded at once.")

    def __post_init__(self) -> None:
        _known("bound method", self.bounds, METHODS)
        _at_least(1, count=self.count, batch=self.batch)


@dataclass(frozen=True)
class GraftSettings:
    """Which neurons become lines, and how the lines start."""

    criterion: str = setting("weighted-interval", "How neurons are selected; `lipgraft graft --help` lists the names.")
    ratio: float = setting(0.5, "Share of all neurons to graft.")
    options: dict[str, Any] = setting({}, "Settings of the criterion, such as pool: 0.9.")
    lines: str = setting(
        "constant",
        "Lines before fine-tuning: constant, all the same; fitted, each to its activation over the calibration images.",
        choices=LINES,
    )
    slope: float = setting(0.4, "Slope of constant lines, and of the lines that the gain-aware score expects.")
    intercept: float = setting(0.0, "Intercept of constant lines.")
    calibration: int | None = setting(None, "Training images to score with, instead of calibration.count.")

    def __post_init__(self) -> None:
        _at_least(1, calibration=self.calibration)
        check_selection(self.criterion, self.ratio, **self.options)


@dataclass(frozen=True)
class ModelRecipe:
    """One model of the comparison. All start from the same pre-trained network, unless they name one of their own."""

    name: str = setting(help="Short name, for files: lowercase letters, digits and hyphens.")
    title: str = setting("", "Name in tables and figures; by default the short name.")
    graft: GraftSettings | None = setting(None, "How the model is grafted; none: not at all.")
    finetune: TrainSettings | None = setting(None, "How the model is fine-tuned; none: not at all.")
    network: str | None = setting(
        None,
        "A finished network to measure as it is, instead of making one: an .onnx or .safetensors file, or "
        "module:function.",
    )
    paper: str | None = setting(None, "The paper's row to show beside it, such as cnn-b/cifar10/ours.")

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.name) or len(self.name) > LONGEST_NAME:
            raise SettingsError(
                f"a model's name must be lowercase letters, digits and hyphens, at most {LONGEST_NAME}, "
                f"got {self.name[:LONGEST_NAME]!r}."
            )
        if self.network is not None:
            models.check_name(self.network)
            if not models.is_own(self.network):
                raise SettingsError(f"{self.network} is not trained; a model's network must be a file or a function.")
            if self.graft is not None or self.finetune is not None:
                raise SettingsError(
                    f"the model {self.name} has a network, which is measured as it is; leave out graft and finetune."
                )
        if self.paper is not None:
            published(self.paper)


@dataclass(frozen=True)
class AttackSettings:
    """How robust accuracy is measured."""

    method: str = setting("pgd", "Name of the attack.")
    steps: int = setting(100, "Steps of the attack.")
    restarts: int = setting(1, "Random starts (paper: 100).")
    count: int | None = setting(
        None, "Number of test images to attack, from the first, also used for SA; by default all."
    )

    def __post_init__(self) -> None:
        method_named(self.method)
        _at_least(1, steps=self.steps, restarts=self.restarts, count=self.count)


@dataclass(frozen=True)
class CertifySettings:
    """Which images are certified, and with which verifier settings."""

    count: int = setting(1000, "Number of images to certify.")
    start: int = setting(0, "Number of the first image to certify; 1000 for the second thousand.")
    verifier: VerifySettings = setting(VerifySettings(), "Settings of the verifier.")
    margins: str = setting("crown", "Bound method of the certified margins in the report.")
    certificates: bool = setting(False, "Write a certificate for every proof, and check all of them.")

    def __post_init__(self) -> None:
        _known("bound method", self.margins, METHODS)
        _at_least(1, count=self.count)
        _at_least(0, start=self.start)
        if self.certificates and self.verifier.arithmetic != "sound":
            raise SettingsError("certify.certificates needs certify.verifier.arithmetic: sound.")

    def record(self) -> dict[str, Any]:
        """What finished stages know it by: the same text for the same values as before settings had groups."""
        record = {**to_mapping(self), "verifier": flat(self.verifier)}
        for name in ("certificates", "start"):  # older versions had none
            if not record[name]:
                del record[name]
        return record


@dataclass(frozen=True)
class LipschitzRecipe:
    """How the local Lipschitz constant is measured."""

    notions: tuple[str, ...] = setting(
        ("jacobian", "interval-jacobian", "output-width", "sampled"),
        "Notions to compute; the table shows the first. An empty list computes none.",
    )
    count: int = setting(100, "Number of correctly classified test images to average over, from the first.")
    units: str = setting("pixel", "Units of the input.", choices=tuple(UNITS))
    method: LipschitzSettings = setting(LipschitzSettings(), "How each notion is computed.")

    def __post_init__(self) -> None:
        for notion in self.notions:
            _known("notion of the Lipschitz constant", notion, NOTIONS)
        _at_least(1, count=self.count)


@dataclass(frozen=True)
class Recipe:
    """A whole run: pre-train one network, graft and fine-tune it in several ways, certify and compare them all."""

    name: str = setting(help="Short name; the default run directory is runs/NAME.")
    models: tuple[ModelRecipe, ...] = setting(help="The models to compare, in the order of the table.")
    title: str = setting("", "Heading of the report.")
    data: str = setting("cifar10", "Name of the data set, an .npz file, or module:function.")
    network: str = setting("cnn-b", "Name of the network, an .onnx or .safetensors file, or module:function.")
    activation: str = setting("relu", "Activation of a network given by name: a name in lipgraft.activations.KINDS.")
    batchnorm: bool | None = setting(
        None,
        "Whether a network given by name is trained with BatchNorm, which is folded later; null: "
        "if the network supports it.",
    )
    eps: float = setting(2 / 255, "Perturbation radius in raw [0,1] pixels, for training, scores and proofs.")
    seed: int = setting(0, "The same seed gives the same results, except for times.")
    pretrain: TrainSettings = setting(
        TrainSettings(), "Adversarial or certified training of the network that all models start from."
    )
    calibration: CalibrationSettings = setting(CalibrationSettings(), "Images used to score neurons.")
    attack: AttackSettings = setting(AttackSettings(), "How robust accuracy is measured.")
    certify: CertifySettings = setting(CertifySettings(), "How verified accuracy is measured.")
    lipschitz: LipschitzRecipe = setting(LipschitzRecipe(), "How the Lipschitz constant is measured.")
    measured_on: str = setting(
        "test",
        "Images for all measurements: the test images, or the held-out training images, for choosing settings.",
        choices=MEASURED_ON,
    )
    examples: int = setting(8, "Number of images with verdicts to show in the report.")
    threads: int | None = setting(
        None,
        "CPU threads; by default PyTorch's choice. With one thread, small networks are faster and runs repeat exactly.",
    )

    def __post_init__(self) -> None:
        check_folder_name("a recipe's name", self.name)
        datasets.check_name(self.data)
        models.check_name(self.network)
        _known("activation", self.activation, ACTIVATIONS)
        check_eps(self.eps)
        check_seed(self.seed)
        check_threads(self.threads)
        _known("kind of images", self.measured_on, MEASURED_ON)
        _at_least(0, examples=self.examples)
        if not self.models:
            raise SettingsError("a recipe needs at least one model to compare.")
        name, times = Counter(model.name for model in self.models).most_common(1)[0]
        if times > 1:
            raise SettingsError(f"two models of the recipe are called {name!r}; each needs its own name.")
        object.__setattr__(self, "title", self.title or self.name)
        titled = tuple(replace(m, title=m.title or m.name) for m in self.models)
        object.__setattr__(self, "models", titled)


def explain() -> str:
    """Every key of a recipe with its sentence, in Markdown: one table per group of settings."""
    groups = _groups()
    return "\n\n".join(_section(cls, path, groups) for cls, path in groups.items())


def _groups() -> dict[type[Any], str]:
    """Recipe and the dataclasses inside it, outer ones first, each with the dotted path where it occurs first."""
    groups: dict[type[Any], str] = {Recipe: ""}
    waiting: list[type[Any]] = [Recipe]
    while waiting:
        cls = waiting.pop(0)
        for field in dataclasses.fields(cls):
            inner, many = _inside(cls, field.name)
            if inner is not None and inner not in groups:
                groups[inner] = ".".join(filter(None, (groups[cls], field.name + ("[]" if many else ""))))
                waiting.append(inner)
    return groups


def _section(cls: type[Any], path: str, groups: dict[type[Any], str]) -> str:
    title = f"### `{path}`" if path else "### The top level"
    summary = (cls.__doc__ or "").strip().splitlines()[0]
    lines = [title, "", summary, "", "| key | default | meaning |", "|---|---|---|"]
    for field in dataclasses.fields(cls):
        inner, _ = _inside(cls, field.name)
        choices = field.metadata.get("choices")
        meaning = field.metadata["help"] + (f" One of: {', '.join(choices)}." if choices else "")
        meaning += f" Keys: see `{groups[inner]}`." if inner is not None else ""
        lines.append(f"| `{field.name}` | {_default(field)} | {meaning.replace('|', chr(92) + '|')} |")
    return "\n".join(lines)


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
        return "required"
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    if dataclasses.is_dataclass(value):
        return "see below"
    if value is None or value in ("", {}):
        return "none"
    if value == 2 / 255:
        return "`2/255`"
    return f"`{list(value) if isinstance(value, tuple) else value}`"


def _inside(cls: type[Any], name: str) -> tuple[type[Any] | None, bool]:
    """The dataclass in a field of type `X`, `X | None` or `tuple[X, ...]`, and whether there may be many."""
    hint = typing.get_type_hints(cls)[name]
    kinds = (kind for kind in (hint, *typing.get_args(hint)) if isinstance(kind, type))
    return next(filter(dataclasses.is_dataclass, kinds), None), typing.get_origin(hint) is tuple
