"""One step of branching: choose neurons, split, bound both halves, and look for counterexamples on the way.

A score looks at every open neuron once; a rule then takes the best, or tries the best few by one bounding step and
keeps the one whose halves leave least to prove. Grafted neurons are lines and never among the open ones.

In a step, shapes depend on the number of subproblems alone and nothing waits for the device: it can be captured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from lipgraft.bounds.alpha_crown import LowerBound
from lipgraft.bounds.ascent import AlphaSettings, Optimised, optimise
from lipgraft.bounds.attained import costs
from lipgraft.bounds.memory import Late, never
from lipgraft.bounds.splits import curve_start, split_points
from lipgraft.errors import SettingsError, unknown_name
from lipgraft.network.graph import Conv
from lipgraft.verification.branch_and_bound.images import Images
from lipgraft.verification.branch_and_bound.subproblems import Subproblems
from lipgraft.verification.settings import VerifySettings

SPARED = 0.01  # of what the chords of all neurons cost
MANY, RISEN = 64, 0.9  # so many halves, and this share of them better than their parents
SHORT = 0.25  # of the step for multipliers, in convolutional networks, once an image of the search has planes
MOST_STEPS = 32  # of optimisation of a subproblem, where few would not do
SMALLEST = 0.125  # of a step's size, where long ones would not do
LOWEST = -1e30  # keeps a gain finite, so that a neuron that cannot be split never looks better


@dataclass(frozen=True, eq=False)
class Neurons:
    """What is known of the open neurons of B subproblems, each (B, U).

    coefficient: of the neuron's output in the bound; lower, upper: of its pre-activation z; bias: z's own bias;
    negative_slope: of the activation left of zero.
    """

    coefficient: Tensor
    lower: Tensor
    upper: Tensor
    bias: Tensor
    negative_slope: Tensor

    def chord(self) -> tuple[Tensor, Tensor]:
        """Slope and intercept of the upper line."""
        width = (self.upper - self.lower).clamp(min=torch.finfo(self.lower.dtype).tiny)
        slope = (self.upper - self.negative_slope * self.lower) / width
        return slope, (self.negative_slope - slope) * self.lower


Score = Callable[[Neurons], Tensor]


@dataclass(frozen=True)
class Branching:
    """score: (B, U), higher is better; tries: whether the best few are tried by one bounding step."""

    score: Score
    tries: bool


BRANCHING: dict[str, Branching] = {}


def register(name: str, *, tries: bool = False) -> Callable[[Score], Score]:
    def add(score: Score) -> Score:
        BRANCHING[name] = Branching(score, tries)
        return score

    return add


def branching_named(name: str) -> Branching:
    if name not in BRANCHING:
        raise SettingsError(unknown_name("branching", name, list(BRANCHING)))
    return BRANCHING[name]


@register("babsr")
def babsr(neurons: Neurons) -> Tensor:
    """How much the bound changes if the neuron becomes a line and all other coefficients stay.

    With coefficient a, chord slope s and intercept t, and the pre-activation's bias b standing for its value: the
    chord's intercept is saved where it was used, -min(a, 0) t, and the better of the two slopes replaces s at b,
    max(a (s - 1) b, a (s - n) b), n the negative slope.
    """
    a, b = neurons.coefficient, neurons.bias
    slope, intercept = neurons.chord()
    moved = torch.maximum(a * (slope - 1) * b, a * (slope - neurons.negative_slope) * b)
    return (moved - a.clamp(max=0) * intercept).abs()


@register("filtered", tries=True)
@register("intercept")
def intercept(neurons: Neurons) -> Tensor:
    """The most that the chord can cost, at z = 0: -min(a, 0) t. See docs/verifier.md."""
    return -neurons.coefficient.clamp(max=0) * neurons.chord()[1]


@register("widest")
def widest(neurons: Neurons) -> Tensor:
    """The width of the pre-activation's interval."""
    return neurons.upper - neurons.lower


@dataclass(frozen=True, eq=False)
class Children:
    """sub: the 2 P halves; leaf: (2P,), nothing is left to split; point: (2P, *input), where the bound is attained.

    margin: (2P,), the true class's logit minus the strongest other one at that point; negative: a counterexample.
    risen: (2P,), whether the bound is better than the parent's.
    """

    sub: Subproblems
    leaf: Tensor
    point: Tensor
    margin: Tensor
    risen: Tensor


class Step:
    """Bounds and splits the subproblems of these images."""

    def __init__(self, images: Images, settings: VerifySettings) -> None:
        self.images, self.settings = images, settings
        self.branching = branching_named(settings.branch.rule)
        self.early = images.y.device.type == "cpu"
        self.iterations, self.size = settings.branch.iterations, 1.0
        self.windows = any(isinstance(node, Conv) for node in images.layout.network.nodes)

    @property
    def sizes(self) -> tuple[float, float]:
        """Of the steps for lines and for multipliers, which begin near where they belong once a tree has planes."""
        return self.size, self.size * (SHORT if self.windows and self.images.planes is not None else 1.0)

    def __call__(self, parents: Subproblems) -> Children:
        """parents: P subproblems, each with at least one neuron to split."""
        children = self.decide(parents)
        function = self.lower_bound(children)
        found = self._optimised(function, children, self.iterations, self.sizes)
        # A half lies inside its parent, so what was proved of the parent holds for it too.
        bound = torch.maximum(found.bound, children.bound)
        point = self.images.corner(children.image, found.rows)
        return Children(
            replace(children, bound=bound, alpha=found.alpha, beta=found.beta),
            ~function.free.any(1),
            point,
            self.images.margin_at(children.image, point),
            found.bound > children.bound,
        )

    def lower_bound(self, sub: Subproblems) -> LowerBound:
        return self.images.lower_bound(sub)

    def bounded(self, sub: Subproblems) -> Subproblems:
        """The same subproblems, a few steps of optimisation further."""
        found = self._optimised(self.lower_bound(sub), sub, self.iterations, self.sizes)
        better = found.bound > sub.bound
        return replace(
            sub,
            bound=torch.where(better, found.bound, sub.bound),
            alpha=torch.where(better[:, None], found.alpha, sub.alpha),
            beta=torch.where(better[:, None], found.beta, sub.beta),
        )

    def leaf_bounds(self, leaves: Subproblems, late: Late) -> Subproblems:
        """Fully split subproblems, whose multipliers alone are free, with better ones. late: ends the optimisation."""
        steps = self.settings.branch.leaf_iterations
        found = self._optimised(self.lower_bound(leaves), leaves, steps, (1.0, 1.0), late)
        return replace(leaves, bound=found.bound, alpha=found.alpha, beta=found.beta)

    def _optimised(
        self, function: LowerBound, sub: Subproblems, iterations: int, sizes: tuple[float, float], late: Late = never
    ) -> Optimised:
        """sizes: of the steps, as shares of the settings'."""
        settings = self.settings.branch
        # Around curves alone, the lines that are right for the whole box gain nothing by being moved.
        held = not function.layout.kinks
        lr_alpha, lr_beta = sizes[0] * settings.lr_alpha, sizes[1] * settings.lr_beta
        steps = AlphaSettings(iterations, 0.0 if held else lr_alpha, self.settings.optimise.decay)
        function = function.holding(sub.alpha) if held else function
        # The half of a curve is no line: what it gains rests on multipliers, which take many steps to get there.
        return optimise(
            function,
            sub.alpha,
            sub.beta,
            steps,
            lr_beta=lr_beta,
            onward=bool(function.layout.curved),
            early=self.early,
            late=late,
        )

    def start_over(self) -> bool:
        """The usual steps, for images that others do not speak of; whether they were different."""
        before, usual = (self.iterations, self.size), (self.settings.branch.iterations, 1.0)
        self.iterations, self.size = usual
        return before != usual

    def take_pains(self, risen: Tensor) -> bool:
        """Other steps of optimisation from now on, if one half in ten is no better than its parent; whether so.

        Their lines and multipliers have lost touch with the splits then, and to split on would never end. In turn,
        steps get half as long and twice as many. In fully connected networks, where short steps lose more than they
        gain, they only get more. risen: of the halves of a round.
        """
        shorter = self.windows and self.size > SMALLEST
        shorter = shorter and self.size * self.iterations >= self.settings.branch.iterations
        more = 0 < self.iterations < MOST_STEPS
        if not (shorter or more) or len(risen) < MANY or float(risen.double().mean()) >= RISEN:
            return False
        if shorter:
            self.size /= 2
        else:
            self.iterations = min(2 * self.iterations, MOST_STEPS)
        return True

    def decide(self, parents: Subproblems) -> Subproblems:
        """Both halves of the split that the rule chooses: 2 P subproblems, with the lines and bounds of their parents.

        A curve's own lines begin anew in the halves of its interval.
        """
        function = self.lower_bound(parents)
        score = (curve_scores if function.layout.curved else scores)(function, parents, self.branching.score)
        column = score.argmax(1)
        if self.branching.tries and score.shape[1] > 1:
            best, choice = score.topk(min(self.settings.branch.candidates, score.shape[1]), 1)
            pairs = zip(best.unbind(1), choice.unbind(1), strict=True)
            gains = [self._gain(halves(function, parents, place), value) for value, place in pairs]
            column = pick(choice, torch.stack(gains, 1).argmax(1))
        return halves(function, parents, column)

    def _gain(self, children: Subproblems, score: Tensor) -> Tensor:
        """What is still to prove in both halves of a split, min(bound, 0) summed, without optimising. (P,).

        -inf if the neuron cannot be split. The sum needs fewer subproblems than the worse half alone would.
        """
        bound, _ = self.lower_bound(children).value(children.alpha, children.beta)
        left = torch.nan_to_num(torch.maximum(bound, children.bound), nan=LOWEST).clamp(LOWEST, 0)
        return torch.where(torch.isfinite(score), left.view(2, -1).sum(0), -torch.inf)


class Splittable(Protocol):
    """What a score looks at, as `LowerBound` has it. open, free, lower, upper, bias, negative_slope: (B, U)."""

    open: Tensor
    free: Tensor
    lower: Tensor
    upper: Tensor
    bias: Tensor
    negative_slope: Tensor

    def coefficients(self, alpha: Tensor, beta: Tensor) -> Tensor: ...


def scores(function: Splittable, parents: Subproblems, score: Score) -> Tensor:
    """The scores of the open neurons of subproblems, -inf for those that cannot be split: (B, U)."""
    found = score(known(function, function.coefficients(parents.alpha, parents.beta)))
    return torch.where(function.free, torch.nan_to_num(found, nan=0.0), -torch.inf)


def costly(function: Splittable, sub: Subproblems) -> Tensor:
    """The neurons whose chords make up nearly all that chords cost subproblems of one image: (K,), in order."""
    cost, order = scores(function, sub, intercept).clamp(min=0).sum(0).sort(descending=True)
    needed = cost.cumsum(0) - cost < (1 - SPARED) * cost.sum()
    return function.open[0, order[needed]].sort().values


def curve_scores(function: LowerBound, parents: Subproblems, score: Score) -> Tensor:
    """The same where some neurons are curves: whatever the rule is, these count by what their lines cost the bound."""
    coefficient, cost = costs(function, parents.alpha, parents.beta)
    found = torch.where(function.layout.is_curved[function.open], cost, score(known(function, coefficient)))
    return torch.where(function.free, torch.nan_to_num(found, nan=0.0), -torch.inf)


def known(function: Splittable, coefficient: Tensor) -> Neurons:
    return Neurons(coefficient, function.lower, function.upper, function.bias, function.negative_slope)


def halves(function: LowerBound, parents: Subproblems, column: Tensor) -> Subproblems:
    """Both halves of the split of one open neuron each. column: (P,), its place among the open ones."""
    neuron = pick(function.open, column)
    if not function.layout.curved:
        return parents.split(neuron)
    lower, upper = pick(function.lower, column), pick(function.upper, column)
    point = split_points(function.layout, neuron, lower, upper)
    children = parents.split(neuron, point)
    ends = torch.cat([point, lower]), torch.cat([upper, point])
    start = curve_start(function.layout, neuron.repeat(2), *ends)
    columns = column.repeat(2)[:, None] * start.shape[1] + torch.arange(start.shape[1], device=column.device)
    start = torch.where(torch.isnan(start), children.alpha.gather(1, columns), start)
    return replace(children, alpha=children.alpha.scatter(1, columns, start))


def pick(table: Tensor, column: Tensor) -> Tensor:
    """table: (B, k), column: (B,) -> (B,)."""
    return table.gather(1, column[:, None]).squeeze(1)
