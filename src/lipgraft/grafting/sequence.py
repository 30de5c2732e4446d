"""`graft`: the whole sequence, from a model and its data to a grafted copy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from lipgraft.data import Dataset
from lipgraft.grafting.apply import apply
from lipgraft.grafting.calibration import calibration_set, calibration_size
from lipgraft.grafting.lines import Line, check_lines, chosen_lines
from lipgraft.grafting.score import score
from lipgraft.grafting.scores import Scores
from lipgraft.grafting.select import check_selection, select
from lipgraft.grafting.summary import Summary, summarise


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
    options = dict(options or {})
    check_selection(criterion, ratio, **options)
    check_lines(lines)
    network = getattr(getattr(model, "spec", None), "name", "")
    x, y = calibration_set(data, count or calibration_size(network, data.name), seed=seed)
    if scores is None:
        scores = score(model, x, eps, bounds, y=y, batch=batch, slope=slope, progress=progress)
    masks = select(model, scores, criterion, ratio, **options)
    return Plan(scores, masks, slope, intercept, chosen_lines(lines, model, x))
