"""One call of the verifier: the model, the images and their boxes, checked."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from lipgraft.box import Box
from lipgraft.errors import SettingsError
from lipgraft.network import Graft, Network, full_precision, kinks_at_zero, trace
from lipgraft.verify.ledger import Ledger
from lipgraft.verify.settings import VerifySettings


@dataclass(frozen=True, eq=False)
class Job:
    """network: the model's graph, detached, in the dtype of all bounds. x: (B, *shape), inside [low, high]; y: (B,).

    eps: (B,), exact_eps the same in double precision; box: the B boxes. finite: (B,), whether an image's pixels are;
    those of others are set to zero, and they are never bounded.
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
        like = next((p for p in chain(model.parameters(), model.buffers()) if p.is_floating_point()), x)
        x = x.detach().to(device=like.device, dtype=like.dtype)
        y = torch.as_tensor(y).to(device=like.device, dtype=torch.int64)
        if y.shape != (len(x),):
            raise SettingsError(f"y must hold one class per image, got shape {tuple(y.shape)} for {len(x)} images.")
        radius = torch.as_tensor(eps, dtype=torch.float64, device=x.device).detach()
        if radius.ndim not in (0, 1) or (radius.ndim == 1 and len(radius) != len(x)):
            raise SettingsError(f"eps must be a number or one number per image, got shape {tuple(radius.shape)}.")
        with full_precision():
            network = kinks_at_zero(trace(model, tuple(x.shape[1:])).to(device=like.device))
        if len(network.output_shape) != 1 or network.output_shape[0] < 2:
            raise SettingsError(f"the model must return logits of at least two classes, got {network.output_shape}.")
        if len(y) and not bool(((y >= 0) & (y < network.output_shape[0])).all()):
            raise SettingsError(f"the labels must lie in 0..{network.output_shape[0] - 1}, the model's classes.")
        finite = torch.isfinite(x).flatten(1).all(1)
        x = torch.where(finite.reshape(-1, *[1] * (x.ndim - 1)), x, torch.zeros((), dtype=x.dtype, device=x.device))
        x = x.clamp(low, high) if low is not None or high is not None else x
        exact, radius = radius.expand(len(x)), radius.to(x.dtype).expand(len(x))
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
