"""What a run found, as plain values: everything the tables and the page show, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

STATUSES = VERIFIED, FALSIFIED, UNKNOWN, ERROR = "verified", "falsified", "unknown", "error"


@dataclass(frozen=True)
class LayerResult:
    """One activation layer. unr: share of (neuron, image) pairs that are unstable, grafted neurons in the denominator.

    unr_grafted: the same right after grafting, before fine-tuning; None where there was no graft.
    """

    name: str
    neurons: int
    grafted: int
    unr: float
    unr_grafted: float | None = None

    @property
    def share(self) -> float:
        """Grafted neurons over all."""
        return self.grafted / self.neurons


@dataclass(frozen=True)
class ImageResult:
    """The verdict on one image. method: what decided it; seconds: spent on it; reason: of an unknown or an error.

    ended: seconds from the beginning of the certification to the verdict; None: results that do not say.
    """

    index: int
    label: int
    status: str
    method: str | None
    seconds: float
    reason: str | None = None
    margin: float | None = None
    ended: float | None = None


@dataclass(frozen=True)
class Published:
    """A row of the paper, in per cent, seconds, and the paper's own units for the Lipschitz constant."""

    sa: float | None = None
    ra: float | None = None
    va: float | None = None
    unr: float | None = None
    time: float | None = None
    lipschitz: float | None = None


@dataclass(frozen=True)
class ModelResult:
    """One model. sa, ra, va, unr: shares in [0, 1]; time: mean seconds over the images that reach the verifier.

    lipschitz: mean over images by notion; the table shows the first. margins: the certified lower bound of the worst
    margin of each correctly classified image, by one bound method for all models. seconds: of each stage of the run.
    over: how many images each measure speaks of, by its name. paper: the key of `published`.
    made: commits and devices that its stages were made with. proofs: where they were written down, their "count" and
    how many an independent checker "accepted".
    """

    name: str
    title: str
    sa: float
    ra: float
    va: float
    unr: float
    time: float
    lipschitz: Mapping[str, float]
    layers: tuple[LayerResult, ...] = ()
    margins: tuple[float, ...] = ()
    images: tuple[ImageResult, ...] = ()
    published: Published | None = None
    paper: str | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    over: Mapping[str, int] = field(default_factory=dict)
    made: tuple[Mapping[str, str], ...] = ()
    proofs: Mapping[str, int] | None = None

    @property
    def grafted(self) -> bool:
        return any(layer.grafted for layer in self.layers)

    @property
    def margin(self) -> float:
        """The mean certified lower bound of the margin, over the correctly classified images."""
        return float(np.mean(self.margins)) if self.margins else float("nan")

    def count(self, status: str) -> int:
        return sum(image.status == status for image in self.images)

    @property
    def proved_at(self) -> list[float] | None:
        """When each verified image was, in order; None where the images do not say when they ended."""
        times = [image.ended for image in self.images if image.status == VERIFIED]
        known = sorted(time for time in times if time is not None)
        return known if len(known) == len(times) and self.last is not None else None

    @property
    def last(self) -> float | None:
        """When the last image ended; None where one does not say."""
        times = [image.ended for image in self.images]
        known = [time for time in times if time is not None]
        return max(known) if known and len(known) == len(times) else None

    def verified_after(self, seconds: float) -> float | None:
        """Share of all images that were proved so many seconds after the certification began.

        None: nobody knows, because the images do not say when they ended, or because the time for all of them was over
        before that and left some open.
        """
        times = self.proved_at
        if times is None or self.last is None or (seconds > self.last and "timeout" in self.reasons):
            return None
        return sum(time <= seconds for time in times) / len(self.images)

    @property
    def reasons(self) -> dict[str, int]:
        """How many images are unknown for each reason."""
        found = Counter(image.reason or UNKNOWN for image in self.images if image.status == UNKNOWN)
        return dict(sorted(found.items()))


@dataclass(frozen=True, eq=False)
class ExampleVerdict:
    """What became of one image under one model. adversarial: (H, W, C) in [0, 1], with the class it is taken for."""

    model: str
    status: str
    method: str | None = None
    adversarial: NDArray[np.float32] | None = None
    taken_for: str | None = None


@dataclass(frozen=True, eq=False)
class Example:
    """One image to look at. image: (H, W, C) in [0, 1]."""

    index: int
    label: str
    image: NDArray[np.float32]
    verdicts: tuple[ExampleVerdict, ...]


@dataclass(frozen=True, eq=False)
class RunResults:
    """A whole run, and what the reader needs to judge it by.

    counts: images by purpose (tested, certified, ...).
    lipschitz_units: pixel or normalised. margin_method: how the margins were bounded.
    settings, versions, hardware: as written in the run's config.yaml.
    made: commits and devices that the stages were made with.
    missing: names of models that are not finished. classes: their names; empty where only their numbers are known.
    literature: published rows, by title, that were not run.
    """

    name: str
    title: str
    data: str
    network: str
    eps: float
    models: tuple[ModelResult, ...]
    counts: Mapping[str, int]
    examples: tuple[Example, ...] = ()
    lipschitz_units: str = "pixel"
    margin_method: str = "crown"
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    hardware: Mapping[str, str] = field(default_factory=dict)
    made: tuple[Mapping[str, str], ...] = ()
    missing: tuple[str, ...] = ()
    literature: Mapping[str, Published] = field(default_factory=dict)
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.models:
            raise ValueError("a run without a model has no results")

    @property
    def radius(self) -> str:
        """eps for readers."""
        return readable_eps(self.eps)


def readable_eps(eps: float) -> str:
    """2/255 where it is one of those, else the number."""
    whole = round(eps * 255)
    return f"{whole}/255" if abs(eps * 255 - whole) < 1e-9 and whole else f"{eps:.4g}"


@dataclass(frozen=True, eq=False)
class ExperimentResults:
    """A table of the paper: one run for each network and data set. missing: rows that are not finished.

    changes: settings that differ from the experiment's own; command: what makes it again.
    """

    name: str
    title: str
    about: str
    scale: str
    command: str
    seed: int
    runs: tuple[RunResults, ...]
    missing: tuple[str, ...] = ()
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def made(self) -> list[dict[str, str]]:
        """Every commit and device that a stage was made with."""
        found = {tuple(sorted(made.items())): dict(made) for run in self.runs for made in run.made}
        return list(found.values())

    @property
    def seconds(self) -> float:
        """Of all stages. What models share counts once for each run."""
        return sum(
            sum(seconds for what, seconds in model.seconds.items() if what != "pretrain" or i == 0)
            for run in self.runs
            for i, model in enumerate(run.models)
        )
