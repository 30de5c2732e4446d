"""Is this copy of a data set the right one? Counts, classes and channel means against the published figures."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import Tensor

from lipgraft.data.catalogue import Published, entry
from lipgraft.data.dataset import Dataset
from lipgraft.data.files import data_root
from lipgraft.data.loading import load
from lipgraft.errors import DataError

MEAN_TOLERANCE = 1e-4  # the published means have four digits


@dataclass(frozen=True)
class CheckReport:
    """What was found: images per class of both sets, mean and std per channel of the training set."""

    name: str
    root: str
    input_shape: tuple[int, int, int]
    train: tuple[int, ...]
    test: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


def check(name: str, root: str | os.PathLike[str] | None = None, *, download: bool = False) -> CheckReport:
    """Compare the copy under the root with the published figures; a difference is a DataError that names it."""
    report = describe(load(name, root, download=download), str(data_root(root)))
    compare(report, entry(name).published)
    return report


def describe(data: Dataset, root: str = "") -> CheckReport:
    """Count and measure a data set."""
    mean, std = _moments(data.x_train)
    return CheckReport(
        name=data.name,
        root=root,
        input_shape=data.input_shape,
        train=_histogram(data.y_train, len(data.classes)),
        test=_histogram(data.y_test, len(data.classes)),
        mean=mean,
        std=std,
    )


def compare(report: CheckReport, published: Published) -> None:
    """Raise a DataError when the report differs from the published figures."""
    for split, found, expected in (
        ("training", report.train, published.train),
        ("test", report.test, published.test),
    ):
        if sum(found) != sum(expected):
            raise DataError(
                f"{report.name} under {report.root} has {sum(found)} {split} images where {sum(expected)} are "
                "published; fetch the files again."
            )
        wrong = [c for c, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b]
        if wrong:
            c = wrong[0]
            raise DataError(
                f"{report.name} under {report.root} has {found[c]} {split} images of class {c} where {expected[c]} are "
                "published; fetch the files again."
            )
    if any(abs(a - b) > MEAN_TOLERANCE for a, b in zip(report.mean, published.mean, strict=True)):
        raise DataError(
            f"{report.name} under {report.root} has channel means {_digits(report.mean)} where "
            f"{_digits(published.mean)} are published; fetch the files again."
        )


def _histogram(labels: Tensor, classes: int) -> tuple[int, ...]:
    return tuple(torch.bincount(labels, minlength=classes).tolist())


def _moments(x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel in [0, 1], exactly: from how often each of the 256 values occurs."""
    values = torch.arange(256, dtype=torch.float64) / 255
    channels = x.reshape(-1, x.shape[-1]).T
    shares = [torch.bincount(c.contiguous(), minlength=256).double() / c.numel() for c in channels]
    means = [float(values @ s) for s in shares]
    stds = [float((values - m).square() @ s) ** 0.5 for m, s in zip(means, shares, strict=True)]
    return tuple(means), tuple(stds)


def _digits(numbers: tuple[float, ...]) -> str:
    return " ".join(f"{n:.4f}" for n in numbers)
