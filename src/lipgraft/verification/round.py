"""One round of branch and bound: choose neurons, split, bound both halves, and look for counterexamples on the way.

Shapes depend on the number of subproblems alone and nothing waits for the device: the round can be captured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lipgraft.attacks.methods import worst_margin
from lipgraft.bounds.memory import Late
from lipgraft.network import evaluate
from lipgraft.verification.bounding import Bounding, corner
from lipgraft.verification.branching import Neurons, branching_named
from lipgraft.verification.optimise import Steps, optimise
from lipgraft.verification.roots import Roots
from lipgraft.verification.settings import VerifySettings
from lipgraft.verification.subproblems import Subproblems

LOWEST = -1e30  # keeps a gain finite, so that a neuron that cannot be split never looks better


@dataclass(frozen=True, eq=False)
class Children:
    """sub: the 2 P halves; leaf: (2P,), nothing is left to split; point: (2P, *input), where the bound is attained.

    margin: (2P,), the true class's logit minus the strongest other one at that point; negative: a counterexample.
    """

    sub: Subproblems
    leaf: Tensor
    point: Tensor
    margin: Tensor


class Round:
    def __init__(self, roots: Roots, settings: VerifySettings) -> None:
        self.roots, self.settings = roots, settings
        self.branching = branching_named(settings.branching)
        self.steps = Steps(settings.bab_iterations, settings.lr_alpha, settings.lr_beta, settings.decay)
        self.early = roots.lower.device.type == "cpu"

    def __call__(self, parents: Subproblems) -> Children:
        """parents: P subproblems, each with at least one neuron to split."""
        children = parents.split(self.decide(parents))
        bounding = self.bounding(children)
        found = optimise(bounding, children.alpha, children.beta, self.steps, early=self.early)
        # A half lies inside its parent, so what was proved of the parent holds for it too.
        bound = torch.maximum(found.bound, children.bound)
        point = corner(self.roots, children.image, found.rows)
        return Children(
            replace(children, bound=bound, alpha=found.alpha, beta=found.beta),
            ~bounding.free.any(1),
            point,
            margin_at(self.roots, children.image, point),
        )

    def bounding(self, sub: Subproblems) -> Bounding:
        return Bounding(self.roots, sub.image, self.roots.margins(sub.image, sub.target), sub.neuron, sub.sign)

    def leaf_bounds(self, leaves: Subproblems, late: Late) -> Tensor:
        """Bounds of fully split subproblems, whose multipliers alone are free: (B,). late: ends the optimisation."""
        settings = self.settings
        steps = Steps(settings.leaf_iterations, settings.lr_alpha, settings.lr_beta, settings.decay)
        found = optimise(self.bounding(leaves), leaves.alpha, leaves.beta, steps, early=self.early, late=late)
        return torch.maximum(found.bound, leaves.bound)

    def decide(self, parents: Subproblems) -> Tensor:
        """The neuron that each subproblem splits: (P,), on the flat axis."""
        bounding = self.bounding(parents)
        record: dict[int, Tensor] = {}
        bounding.lower_bound(parents.alpha, parents.beta, record)
        layout = self.roots.layout
        neurons = Neurons(
            layout.flat(record).gather(1, bounding.open.clamp(max=layout.size - 1)),
            bounding.lower,
            bounding.upper,
            layout.bias[bounding.open],
            bounding.negative_slope,
        )
        score = torch.nan_to_num(self.branching.score(neurons), nan=0.0)
        score = torch.where(bounding.free, score, -torch.inf)
        if not self.branching.tries or score.shape[1] == 1:
            return _pick(bounding.open, score.argmax(1))
        best, choice = score.topk(min(self.settings.candidates, score.shape[1]), 1)
        pairs = zip(best.unbind(1), choice.unbind(1), strict=True)
        gains = [self._gain(parents, _pick(bounding.open, place), value) for value, place in pairs]
        return _pick(bounding.open, _pick(choice, torch.stack(gains, 1).argmax(1)))

    def _gain(self, parents: Subproblems, neuron: Tensor, score: Tensor) -> Tensor:
        """What is still to prove in both halves of a split, min(bound, 0) summed, without optimising. (P,).

        -inf if the neuron cannot be split. The sum needs fewer subproblems than the worse half alone would.
        """
        children = parents.split(neuron)
        bound, _ = self.bounding(children).lower_bound(children.alpha, children.beta)
        left = torch.nan_to_num(torch.maximum(bound, children.bound), nan=LOWEST).clamp(LOWEST, 0)
        return torch.where(torch.isfinite(score), left.view(2, -1).sum(0), -torch.inf)


def margin_at(roots: Roots, image: Tensor, point: Tensor) -> Tensor:
    """The true logit minus the largest other one at points (B, *input shape) of the images (B,): (B,)."""
    network = roots.layout.network
    logits = evaluate(network, point)[network.output]
    return -worst_margin(logits, roots.y[image])


def _pick(table: Tensor, column: Tensor) -> Tensor:
    """table: (B, k), column: (B,) -> (B,)."""
    return table.gather(1, column[:, None]).squeeze(1)
