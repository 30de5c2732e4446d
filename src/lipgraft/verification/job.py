"""One call of the verifier: the model, the images and their boxes, checked, and the time that is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain

import torch
from torch import Tensor, nn

from lipgraft.attacks.ascent import project
from lipgraft.attacks.methods import misclassified, worst_margin
from lipgraft.bounds.memory import Late
from lipgraft.box import Box
from lipgraft.errors import SettingsError, UnsupportedOperationError
from lipgraft.inputs import any_pixel, check_classes, labels, pixels, radii
from lipgraft.network import (
    Activation,
    Graft,
    Network,
    Node,
    call,
    evaluated,
    full_precision,
    kinks_at_zero,
    like,
    normalises,
    subject,
    trace,
    trace_in_double,
)
from lipgraft.rounding import within
from lipgraft.verification.certificate import Drafts
from lipgraft.verification.settings import VerifySettings
from lipgraft.verification.verdict import Ledger


@dataclass(frozen=True, eq=False)
class Job:
    """network: the model's graph, detached, in the dtype of the search. x: (B, *shape), inside [low, high]; y: (B,).

    proof: the graph in double precision, in which proofs are made; None: whatever the search finds is taken as proved.
    eps: (B,), in double precision. box: the B boxes, rounded outward; exact_box: the same in double precision, which
    proofs speak of; inner: those that hold counterexamples, rounded inward. finite: (B,), whether an image's pixels
    are; those of others are set to a valid one, and they are never bounded.
    """

    model: nn.Module
    network: Network
    proof: Network | None
    x: Tensor
    y: Tensor
    eps: Tensor
    box: Box
    exact_box: Box
    inner: Box
    finite: Tensor
    low: float | None
    high: float | None
    settings: VerifySettings
    ledger: Ledger

    @staticmethod
    def of(
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        eps: float | Tensor,
        low: float | None,
        high: float | None,
        settings: VerifySettings,
        began: float | None = None,
        *,
        certificates: bool = False,
    ) -> Job:
        """began: when the call began, by time.perf_counter; `total_seconds` counts from there.

        certificates: proofs are kept, and come with the verdicts.
        """
        with full_precision():
            model = subject(model)
            x = pixels(x, low, high, like=like(model, x))
            y, radius = labels(y, len(x), x.device), radii(eps, len(x), x.device)
            network = kinks_at_zero(trace(model, tuple(x.shape[1:]), products=True).to(device=x.device))
            proof = None if settings.arithmetic == "fast" else _in_double(model, network, settings.speaks_of)
        if len(network.output_shape) != 1 or network.output_shape[0] < 2:
            raise SettingsError(f"the model must return logits of at least two classes, got {network.output_shape}.")
        check_classes(y, network.output_shape[0])
        finite = torch.isfinite(x).flatten(1).all(1)
        x = torch.where(finite.reshape(-1, *[1] * (x.ndim - 1)), x, any_pixel(low, high))
        box, inner = Box.linf(x, radius, low=low, high=high), Box.inside(x, radius, low=low, high=high)
        exact_box = Box.linf(_within(x.double(), low, high), radius, low=low, high=high)
        drafts = _drafts(proof, settings, exact_box, y) if certificates else None
        ledger = Ledger(len(x), x.device, began, drafts, None if proof is None else settings.speaks_of)
        return Job(model, network, proof, x, y, radius, box, exact_box, inner, finite, low, high, settings, ledger)

    # --- what the model says

    def logits(self, points: Tensor) -> Tensor:
        """The model's own answer, in evaluation mode and full precision. points: (B, *shape) -> (B, classes)."""
        with torch.no_grad(), evaluated(self.model), full_precision():
            return call(self.model, points)

    def replay(self, image: int, point: Tensor) -> tuple[Tensor, float] | None:
        """The point (on the CPU) and its margin, if it is a counterexample of the image; otherwise None.

        point: (*shape). It is one if its exact distance is at most eps, it lies in the valid range, and the model,
        given this point alone, returns finite logits of which a wrong one is strictly larger than the true one.
        """
        inside = within(point, self.x[image], self.eps[image]).all()
        if self.low is not None:
            inside &= (point.double() >= self.low).all()
        if self.high is not None:
            inside &= (point.double() <= self.high).all()
        if not bool(inside):
            return None
        logits = self.logits(point[None])
        margin = worst_margin(logits, self.y[image][None])
        if not bool(torch.isfinite(logits).all() & misclassified(margin).all()):
            return None
        return point.detach().cpu().clone(), -float(margin)

    def inward(self, images: Tensor, points: Tensor) -> Tensor:
        """The nearest points where counterexamples may lie. images: (B,), points: (B, *shape)."""
        return project(points, self.inner.lower[images], self.inner.upper[images])

    # --- time

    def late(self) -> bool:
        """Whether the wall time of the whole run is over."""
        limit = self.settings.limits.total_seconds
        return limit is not None and self.ledger.now() > limit

    def left(self, images: Sequence[int], share: float = 1.0) -> float:
        """Seconds until these images, which work together, have used this share of their time, or the run its own."""
        limit, ledger = self.settings.limits.timeout, self.ledger
        own = sum(max(0.0, share * limit - ledger.spent[image]) for image in images)
        total = self.settings.limits.total_seconds
        return own if total is None else max(0.0, min(own, total - ledger.now()))

    def limit(self, images: Sequence[int], share: float = 1.0) -> Late:
        """Asks the clock whether the time that is left to these images from now on is over."""
        end = self.ledger.now() + self.left(images, share)
        return lambda: self.ledger.now() > end

    def out_of_time(self, image: int) -> bool:
        return self.ledger.spent[image] > self.settings.limits.timeout

    def index(self, images: list[int]) -> Tensor:
        return torch.tensor(images, dtype=torch.int64, device=self.x.device)


def _within(x: Tensor, low: float | None, high: float | None) -> Tensor:
    """The images inside the valid range, an end of which their own type may have rounded."""
    return x if low is None and high is None else x.clamp(low, high)


def _drafts(proof: Network | None, settings: VerifySettings, box: Box, y: Tensor) -> Drafts:
    if proof is None:
        raise SettingsError("certificates need arithmetic: sound; a fast proof ignores rounding.")
    if not Drafts.possible(proof):
        raise SettingsError(
            "certificates can be written only for networks of ReLU, leaky ReLU with a float32 slope >= 0, "
            "max pooling, hardtanh and lines; this one has a smooth activation, a product, another "
            "slope, or a part that nothing reads."
        )
    return Drafts(proof, settings.speaks_of, box, y)


def _in_double(model: nn.Module, network: Network, speaks_of: str) -> Network:
    """The graph that proofs are made with, in double precision.

    Folding BatchNorm and normalisation rounds. A proof about real numbers folds in double precision, from the numbers
    that the model stores or computes; one about float32 speaks of the graph with the float32 weights.
    """
    if speaks_of == "float32" and normalises(model):
        raise SettingsError(
            "a proof about float32 covers the steps that are computed, and BatchNorm computes other "
            "steps than its folded form; fold it first, with lipgraft.models.fold_batchnorm(model) or"
            " by `lipgraft export`."
        )
    same = _as_computed(network, like(network).dtype).to(dtype=torch.float64)
    if speaks_of == "float32" or like(network).dtype == torch.float64 or _as_stored(model, network):
        return same
    try:
        again = trace_in_double(model, network.input_shape).to(device=like(network).device)
    except (UnsupportedOperationError, RuntimeError, TypeError):  # by a lowering of the user's own
        return same
    again = kinks_at_zero(_as_computed(again, like(network).dtype))
    return again if _alike(again, same) else same


def _as_stored(model: nn.Module, network: Network) -> bool:
    """Whether all numbers of the graph lie where the model keeps its own: then none was folded, and none rounded."""
    own = {tensor.untyped_storage().data_ptr() for tensor in chain(model.parameters(), model.buffers())}
    values = chain.from_iterable(vars(node).values() for node in network.nodes)
    parts = chain.from_iterable(vars(value).values() if isinstance(value, Graft) else (value,) for value in values)
    return all(part.untyped_storage().data_ptr() in own for part in parts if isinstance(part, Tensor))


def _as_computed(network: Network, dtype: torch.dtype) -> Network:
    """The graph with the parameters of its curves, as a leaky slope, rounded to the type that the model computes in."""

    def rounded(node: Node) -> Node:
        if not isinstance(node, Activation):
            return node
        own = {field.name: getattr(node.curve, field.name) for field in fields(node.curve)}
        numbers = {name: float(torch.tensor(v, dtype=dtype)) for name, v in own.items() if isinstance(v, float)}
        return replace(node, curve=replace(node.curve, **numbers))

    return Network(tuple(rounded(node) for node in network.nodes), network.output)


def _alike(one: Network, other: Network) -> bool:
    """Whether two graphs of one model have the same nodes; their numbers may be rounded differently."""
    if one.output != other.output or len(one.nodes) != len(other.nodes):
        return False
    return all(_alike_nodes(a, b) for a, b in zip(one.nodes, other.nodes, strict=True))


def _alike_nodes(a: Node, b: Node) -> bool:
    if type(a) is not type(b) or vars(a).keys() != vars(b).keys():
        return False
    return all(_alike_values(value, vars(b)[name]) for name, value in vars(a).items())


def _alike_values(x: object, y: object) -> bool:
    if isinstance(x, Graft) and isinstance(y, Graft):
        return torch.equal(x.mask, y.mask)
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
        return x == y
    if x.is_floating_point() and y.is_floating_point():
        return x.shape == y.shape
    return torch.equal(x, y)


def finite_weights(network: Network) -> bool:
    """Whether every number that the network computes with is finite. Slopes of neurons that are not grafted are not."""
    for node in network.nodes:
        for value in vars(node).values():
            if isinstance(value, Tensor) and value.is_floating_point() and not bool(value.isfinite().all()):
                return False
            if isinstance(value, Graft) and not bool(
                (value.gamma.isfinite() & value.omega.isfinite() | ~value.mask).all()
            ):
                return False
    return True
