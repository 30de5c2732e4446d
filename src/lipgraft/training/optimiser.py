"""SGD and Adam whose learning rates are tensors, so that a captured step follows the schedule."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lipgraft.errors import SettingsError
from lipgraft.training.parameters import grafts_of
from lipgraft.training.settings import TrainSettings


@dataclass(frozen=True, eq=False)
class Group:
    """Parameters that share a learning rate and a weight decay; a momentum for each."""

    parameters: dict[str, nn.Parameter]
    momenta: dict[str, Tensor]
    lr: float
    weight_decay: float


class Sgd:
    """buf <- momentum buf + grad + weight_decay p;  p <- p - lr buf.

    Slopes and intercepts of grafted neurons form a group of their own, without weight decay.
    """

    def __init__(self, model: nn.Module, settings: TrainSettings) -> None:
        grafts = grafts_of(model)
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        others = {name: p for name, p in named.items() if name not in grafts}
        lines = {name: p for name, p in named.items() if name in grafts and settings.train_grafts}
        if not others and not lines:
            raise SettingsError("the model has no parameter that may be trained; set requires_grad on some.")
        self.momentum = settings.momentum
        self.groups = [
            _group(parameters, lr, decay)
            for parameters, lr, decay in (
                (others, settings.lr, settings.weight_decay),
                (lines, settings.graft_lr, 0.0),
            )
            if parameters
        ]

    @property
    def state(self) -> dict[str, Tensor]:
        """Everything that `step` changes beside the parameters, by name."""
        return {f"momentum.{name}": momentum for name, momentum in self.momenta.items()}

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All trained parameters, in the order that `step` takes their gradients."""
        return [p for group in self.groups for p in group.parameters.values()]

    @property
    def momenta(self) -> dict[str, Tensor]:
        """The momentum of each parameter, by parameter name."""
        return {name: m for group in self.groups for name, m in group.momenta.items()}

    def rates(self, factors: list[float]) -> Tensor:
        """The learning rate of each group at each step. (steps, groups)."""
        return torch.tensor([[factor * group.lr for group in self.groups] for factor in factors])

    @torch.no_grad()
    def step(self, gradients: tuple[Tensor, ...], rates: Tensor, skip: Tensor) -> None:
        """rates: (groups,); skip: a float scalar, 1 leaves everything as it is."""
        rest = list(gradients)
        for rate, group in zip(rates.unbind(), self.groups, strict=True):
            parameters: list[Tensor] = list(group.parameters.values())
            own, rest = rest[: len(parameters)], rest[len(parameters) :]
            self._update(group, [_laid_out_like(p, g) for p, g in zip(parameters, own, strict=True)], rate, skip)

    def _update(self, group: Group, gradients: list[Tensor], rate: Tensor, skip: Tensor) -> None:
        torch._fused_sgd_(
            list(group.parameters.values()),
            gradients,
            list(group.momenta.values()) if self.momentum else [],
            weight_decay=group.weight_decay,
            momentum=self.momentum,
            lr=rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
            found_inf=skip,
        )


SQUARE_DECAY, LEAST_ROOT = 0.999, 1e-8
"""Of Adam: the decay of the mean squared gradient, and what is added to its root."""


class Adam(Sgd):
    """Adam (Kingma and Ba, 2015), whose weight decay is a part of the gradient; groups as for `Sgd`."""

    def __init__(self, model: nn.Module, settings: TrainSettings) -> None:
        super().__init__(model, settings)
        self.squares = {name: torch.zeros_like(momentum) for name, momentum in self.momenta.items()}
        self.count = torch.zeros((), device=next(iter(self.squares.values())).device)  # of the updates so far

    @property
    def state(self) -> dict[str, Tensor]:
        return {**super().state, **{f"square.{name}": s for name, s in self.squares.items()}, "count": self.count}

    @torch.no_grad()
    def step(self, gradients: tuple[Tensor, ...], rates: Tensor, skip: Tensor) -> None:
        self.count.add_(1 - skip)
        super().step(gradients, rates, skip)

    def _update(self, group: Group, gradients: list[Tensor], rate: Tensor, skip: Tensor) -> None:
        torch._fused_adam_(
            list(group.parameters.values()),
            gradients,
            list(group.momenta.values()),
            [self.squares[name] for name in group.parameters],
            [],
            [self.count] * len(gradients),
            lr=rate,
            beta1=self.momentum,
            beta2=SQUARE_DECAY,
            weight_decay=group.weight_decay,
            eps=LEAST_ROOT,
            amsgrad=False,
            maximize=False,
            found_inf=skip,
        )


class RAdam(Adam):
    """Adam whose steps are short while the mean squared gradient is uncertain (Liu et al., 2020): in the first 2,000.

    In its first five steps, which have no such measure, nothing moves; published are five steps of plain momentum.
    """

    @torch.no_grad()
    def step(self, gradients: tuple[Tensor, ...], rates: Tensor, skip: Tensor) -> None:
        super().step(gradients, rates * rectification(self.count + (1 - skip)), skip)


def rectification(count: Tensor) -> Tensor:
    """The factor of RAdam's update number `count`, from 0 to 1.

    With r = 2 / (1 - b) - 1 and r_t = r - 2 t b^t / (1 - b^t), the root of (r_t - 4) (r_t - 2) r over (r - 4) (r - 2)
    r_t where r_t > 5, elsewhere 0. In double precision: for small t it is a small difference of large numbers.
    """
    t, most = count.double().clamp(min=1.0), 2 / (1 - SQUARE_DECAY) - 1
    power = SQUARE_DECAY**t
    length = most - 2 * t * power / (1 - power)
    known = length.clamp(min=5.0)
    squared = (known - 4) * (known - 2) * most / ((most - 4) * (most - 2) * known)
    return torch.where(length > 5, squared.sqrt(), 0.0).to(count.dtype)


OPTIMISERS: dict[str, type[Sgd]] = {"sgd": Sgd, "adam": Adam, "radam": RAdam}


def clipped(gradients: tuple[Tensor, ...], most: float) -> tuple[Tensor, ...]:
    """The gradients, all shortened by one factor if their norm together is larger than `most`; 0: as they are."""
    if not most:
        return gradients
    norm = torch.stack(torch._foreach_norm(list(gradients))).norm()
    factor = (most / norm).clamp(max=1.0)
    return tuple(torch._foreach_mul(list(gradients), factor))


def _group(parameters: dict[str, nn.Parameter], lr: float, weight_decay: float) -> Group:
    momenta = {name: torch.zeros_like(p, requires_grad=False) for name, p in parameters.items()}
    return Group(parameters, momenta, lr, weight_decay)


def _laid_out_like(parameter: Tensor, gradient: Tensor) -> Tensor:
    """The gradient with the parameter's strides, which the fused update relies on."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)
