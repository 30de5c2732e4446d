"""`graft`: the whole sequence, from a model and its data to a grafted copy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lipgraft.data import Dataset, images
from lipgraft.data.dataset import check_dataset
from lipgraft.errors import SettingsError
from lipgraft.grafting.activation import Line, check_lines, chosen_lines
from lipgraft.grafting.apply import apply
from lipgraft.grafting.criteria import Criterion, known_criterion
from lipgraft.grafting.graph import traced
from lipgraft.grafting.scores import Scores, score
from lipgraft.grafting.summary import Summary, summarise
from lipgraft.inputs import seeded, whole
from lipgraft.network.graph import Network
from lipgraft.settings import build

# (network, data set): how many training images the paper scores with.
CALIBRATION_SIZES = {
    ("conv-big", "mnist"): 4000,
    ("cnn-b", "cifar10"): 4000,
    ("conv-big", "svhn"): 3000,
    ("conv-big", "cifar10"): 3000,
    ("resnet4b", "cifar10"): 3000,
    ("conv-huge", "cifar10"): 2000,
}
DEFAULT_SIZE = 3000


@dataclass(frozen=True, eq=False)
class Plan:
    """What is to be grafted, decided but not done yet.

    scores: of every neuron, which decided it.
    masks: {activation name: boolean tensor}, True = to be grafted.
    slope, intercept: of all lines alike, unless `lines` has them neuron by neuron.
    """

    scores: Scores
    masks: dict[str, Tensor]
    slope: float
    intercept: float
    lines: Mapping[str, Line] | None

    @cached_property
    def summary(self) -> Summary:
        """How many neurons of each layer become lines, and how many unstable ones are left."""
        return summarise(self.masks, self.scores)

    def apply(self, model: nn.Module) -> nn.Module:
        """A grafted copy of the model that the plan was made for."""
        shape = self.scores.input_shape
        return apply(model, self.masks, self.slope, self.intercept, lines=self.lines, input_shape=shape)


def graft(
    model: nn.Module,
    data: Dataset,
    eps: float,
    *,
    criterion: str = "weighted-interval",
    ratio: float = 0.3,
    options: Mapping[str, Any] | None = None,
    lines: str = "constant",
    slope: float = 0.4,
    intercept: float = 0.0,
    count: int | None = None,
    bounds: str = "crown",
    batch: int = 100,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> nn.Module:
    """A copy of the model in which the neurons that the criterion chooses are lines; the model itself is untouched.

    data: its training images calibrate the scores.
    eps: the radius around them, in raw pixels.
    criterion: a key of `grafting.CRITERIA`; options: settings of that criterion, such as {"pool": 0.9}.
    ratio: the share of all neurons to graft, in [0, 1].
    lines: "constant", all of this slope and intercept; "fitted", each to its activation over the images.
    count: how many images to score with; by default the paper's number for this network and data set.
    bounds: the bound method behind the scores.
    batch: images bounded at once.
    seed: of the draw of the images.
    progress: called with the images scored so far and their number.

    Examples:
        >>> import torch
        >>> import lipgraft as lg
        >>> data = lg.data.load("digits")
        >>> model = lg.models.build("digits-cnn", "digits", seed=0)
        >>> grafted = lg.graft(model, data, 0.05, ratio=0.3, count=10)
        >>> sum(int(mask.sum()) for mask in lg.grafting.masks_of(grafted).values())
        491
    """
    return plan(
        model,
        data,
        eps,
        criterion=criterion,
        ratio=ratio,
        options=options,
        lines=lines,
        slope=slope,
        intercept=intercept,
        count=count,
        bounds=bounds,
        batch=batch,
        seed=seed,
        progress=progress,
    ).apply(model)


def plan(
    model: nn.Module,
    data: Dataset,
    eps: float,
    *,
    criterion: str = "weighted-interval",
    ratio: float = 0.3,
    options: Mapping[str, Any] | None = None,
    lines: str = "constant",
    slope: float = 0.4,
    intercept: float = 0.0,
    count: int | None = None,
    bounds: str = "crown",
    batch: int = 100,
    seed: int = 0,
    scores: Scores | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Plan:
    """What `graft` would do with the same arguments, for a look before it is done.

    scores: of an earlier plan over the same images with the same slope, so that they are not computed again.
    """
    check_dataset(data)
    options = dict(options or {})
    check_selection(criterion, ratio, **options)
    check_lines(lines, slope, intercept)
    network = getattr(getattr(model, "spec", None), "name", "")
    count = calibration_size(network, data.name) if count is None else count
    x, y = calibration_set(data, count, seed=seed)
    if scores is None:
        scores = score(model, x, eps, bounds, y=y, batch=batch, slope=slope, progress=progress)
    masks = select(model, scores, criterion, ratio, **options)
    return Plan(scores, masks, slope, intercept, chosen_lines(lines, model, x))


def calibration_size(network: str, dataset: str) -> int:
    """The paper's number of calibration images, or 3000 where the paper has none."""
    return CALIBRATION_SIZES.get((network, dataset), DEFAULT_SIZE)


def calibration_set(data: Dataset, count: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """`count` random training images, not augmented, and their labels: (count, C, H, W) in [0, 1] and (count,).

    Drawn without repetition from the images that training sees (not the held-out ones); all of them when there are
    fewer. The draw does not depend on the device.
    """
    train, _ = data.split()
    drawn = torch.randperm(len(train), generator=seeded(seed))[: whole(count, "count", 1)]
    rows = train[drawn.to(train.device)]
    return images(data.x_train[rows]), data.y_train[rows]


def select(
    model: nn.Module | Network,
    scores: Scores,
    criterion: str = "weighted-interval",
    ratio: float = 0.5,
    **settings: Any,
) -> dict[str, Tensor]:
    """{activation name: boolean mask of its shape}, True = to be grafted.

    criterion: a key of `lipgraft.grafting.criteria.CRITERIA`; settings: fields of that criterion (pool, share, ...).
    ratio: the share of all neurons to graft, in [0, 1]. Ties go to the larger mean width, then to the lower index.

    Examples:
        >>> import torch
        >>> import lipgraft as lg
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))
        >>> scores = lg.grafting.score(model, torch.rand(20, 4), 0.1)
        >>> masks = lg.grafting.select(model, scores, "weighted-interval", 0.5)
        >>> {name: int(mask.sum()) for name, mask in masks.items()}
        {'1': 3}
    """
    chosen = check_selection(criterion, ratio, **settings)
    network = traced(model, scores.input_shape)
    _check(network, scores)
    return chosen.masks(network, scores, ratio)


def check_selection(criterion: str, ratio: float, **settings: Any) -> Criterion:
    """The criterion with its settings, or a SettingsError; asking before scoring saves the time of scoring."""
    if isinstance(ratio, bool) or not isinstance(ratio, int | float | np.number) or not 0.0 <= ratio <= 1.0:
        raise SettingsError(f"ratio must be between 0 and 1, got {ratio!r}.")
    return build(known_criterion(criterion), settings, where=f"criterion {criterion}")


def _check(network: Network, scores: Scores) -> None:
    """The scores must be those of this network."""
    expected = {node.name: tuple(node.shape) for _, node in network.activations()}
    got = {name: tuple(layer.s_u.shape) for name, layer in scores.layers.items()}
    if list(expected.items()) != list(got.items()):
        raise SettingsError(
            f"the scores are of another network: they cover {_show(got)}, the network has {_show(expected)}."
        )


def _show(shapes: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in shapes.items())
