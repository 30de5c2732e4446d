"""CROWN: lower bounds of all margins at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lipgraft.bounds.alpha_crown import AlphaSettings
from lipgraft.bounds.api import METHODS, bound_specification
from lipgraft.bounds.crown import Prepared, prepare
from lipgraft.bounds.interval import Interval
from lipgraft.bounds.margins import other_classes
from lipgraft.bounds.numerics import guard_lower, proved
from lipgraft.bounds.relaxations import unstable
from lipgraft.bounds.sound import Rounding
from lipgraft.rounding import round_down
from lipgraft.verification.job import Job
from lipgraft.verification.ledger import Decided, Outcome


@dataclass(frozen=True, eq=False)
class OpenMargins:
    """Images with margins that CROWN leaves open.

    intervals: of every node of the network; target: (B, S), the wrong classes; margins: (B, S), proved lower bounds.
    rounding, errors: of sound bounds; see `Prepared`.
    """

    images: list[int]
    intervals: list[Interval]
    target: Tensor
    margins: Tensor
    rounding: Rounding | None = None
    errors: Mapping[int, Tensor] = field(default_factory=dict)

    def at(self, places: list[int]) -> OpenMargins:
        """Some of the images."""
        some = torch.tensor(places, dtype=torch.int64, device=self.margins.device)
        return OpenMargins(
            [self.images[place] for place in places],
            [(lower[some], upper[some]) for lower, upper in self.intervals],
            self.target[some],
            self.margins[some].clone(),
            None if self.rounding is None else self.rounding.at(some),
            {i: error[some] for i, error in self.errors.items()},
        )


@torch.no_grad()
def crown(job: Job, images: list[int]) -> Outcome[OpenMargins]:
    """All margins of the images by CROWN: what that decides, and the rest."""
    ledger, late = job.ledger, job.limit(images)
    with ledger.share(images):
        index = job.index(images)
        if job.proof is None:
            prepared = prepare(job.network, job.box[index], late=late)
        else:
            prepared = prepare(
                job.proof,
                job.exact_box[index],
                late=late,
                sound_for=job.x.dtype,
                hardware=job.settings.speaks_of == "float32",
            )
        target, C = other_classes(job.y[index], job.network.output_shape[0], prepared.box.lower.dtype)
        margins = guard_lower(bound_specification(prepared, C[:, None], METHODS["crown"][1], AlphaSettings())[:, 0])
        margins = round_down(margins, job.x.dtype)
        ledger.note(images, margins, "crown")
        if ledger.drafts is not None:
            ledger.drafts.begin(images, prepared, job.x.dtype)
        for image, share in zip(images, unstable_share(prepared).tolist(), strict=True):
            ledger.unstable[image] = share
        done = proved(margins).all(1).tolist()
        finite = (_finite(prepared) & torch.isfinite(margins).all(1)).tolist()
    over = late()
    decided: list[Decided] = []
    rest: list[int] = []
    for place, image in enumerate(images):
        if done[place]:
            decided.append(ledger.verdict(image, "verified"))
        elif over:
            decided.append(ledger.verdict(image, "unknown", reason="timeout"))
        elif not finite[place]:
            reason = "the bounds are not finite: the network's numbers are too large"
            decided.append(ledger.verdict(image, "error", reason=reason))
        else:
            rest.append(place)
    left = OpenMargins(images, prepared.intervals, target, margins, prepared.rounding, prepared.errors)
    return Outcome(decided, [left.at(rest)] if rest else [])


def unstable_share(prepared: Prepared) -> Tensor:
    """(B,): the share of all neurons, grafted ones included, that are unstable and not grafted.

    The ReLUs that stand for max pooling are no neurons of the model, and do not count.
    """
    counts, total = torch.zeros(len(prepared.box), device=prepared.box.lower.device), 0
    for _, node in prepared.network.activations():
        if node.auxiliary:
            continue
        loose = unstable(node, *prepared.intervals[node.inputs[0]]).flatten(1)
        counts, total = counts + loose.sum(1), total + loose.shape[1]
    return counts / max(total, 1)


def _finite(prepared: Prepared) -> Tensor:
    """(B,): whether every bound that a relaxation uses is finite."""
    out = torch.ones(len(prepared.box), dtype=torch.bool, device=prepared.box.lower.device)
    for _, node in prepared.network.activations():
        for end in prepared.intervals[node.inputs[0]]:
            out &= torch.isfinite(end).flatten(1).all(1)
    return out
