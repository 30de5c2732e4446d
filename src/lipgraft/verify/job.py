"""One call of the verifier: the model, the images and their boxes, checked."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lipgraft.box import Box
from lipgraft.errors import SettingsError
from lipgraft.inputs import any_pixel, check_classes, labels, pixels, radii
from lipgraft.network import Graft, Network, full_precision, like, subject, trace
from lipgraft.verify.ledger import Ledger
from lipgraft.verify.settings import VerifySettings


@dataclass(frozen=True, eq=False)
class Job:
    """network: the model's graph, detached, in the dtype of all bounds. x: (B, *shape), inside [low, high]; y: (B,).

    eps: (B,), exact_eps the same in double precision; box: the B boxes. finite: (B,), whether an image's pixels are;
    those of others are set to a valid one, and they are never bounded.
    """

    model: nn.Module
    network: Network
    x: Tensor
    y: Tensor
    eps: Tensor
    exact_eps: Tensor
    box: Box
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
    ) -> Job:
        with full_precision():
            model = subject(model)
            x = pixels(x, low, high, like=like(model, x))
            y, exact = labels(y, len(x), x.device), radii(eps, len(x), x.device)
            network = trace(model, tuple(x.shape[1:])).to(device=x.device)
        if len(network.output_shape) != 1 or network.output_shape[0] < 2:
            raise SettingsError(f"the model must return logits of at least two classes, got {network.output_shape}.")
        check_classes(y, network.output_shape[0])
        finite = torch.isfinite(x).flatten(1).all(1)
        x = torch.where(finite.reshape(-1, *[1] * (x.ndim - 1)), x, any_pixel(low, high))
        radius = exact.to(x.dtype)
        box = Box.linf(x, radius, low=low, high=high)
        ledger = Ledger(len(x), x.device)
        return Job(model, network, x, y, radius, exact, box, finite, low, high, settings, ledger)

    def index(self, images: list[int]) -> Tensor:
        return torch.tensor(images, dtype=torch.int64, device=self.x.device)

    def late(self) -> bool:
        """Whether the wall time of the whole run is over."""
        limit = self.settings.total_seconds
        return limit is not None and self.ledger.now() > limit


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
