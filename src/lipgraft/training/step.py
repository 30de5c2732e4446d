"""One training step on tensors that stay where they are, so that it can run plainly or be captured and replayed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lipgraft.cuda_graph import capture
from lipgraft.data import images
from lipgraft.training import fused
from lipgraft.training.objectives import objective_named
from lipgraft.training.optimiser import Sgd, clipped
from lipgraft.training.precision import products_in, resolve
from lipgraft.training.processes import Processes
from lipgraft.training.pruning import apply_masks
from lipgraft.training.regularisers import REGULARISERS
from lipgraft.training.settings import TrainSettings
from lipgraft.training.task import Batch, Task

WARM_UP = 3
"""Plain steps before the capture, in which libraries choose their kernels and allocate their workspaces."""


Augment = Callable[[Tensor, torch.Generator], Tensor]


class Step:
    """Draws the next batch of the epoch, augments, attacks, differentiates, updates; everything on the device.

    x: (N, H, W, C) uint8 and y: (N,), the training images; keep: masks of pruned weights; average: the mean of some
    late weights and buffers, by name, if the settings want one. `begin_epoch` fills the tables that the steps of an
    epoch read: which images, which learning rates, what radius, how much of the weights enters the average.
    """

    def __init__(
        self,
        task: Task,
        optimiser: Sgd,
        x: Tensor,
        y: Tensor,
        augment: Augment,
        keep: dict[str, Tensor],
        processes: Processes,
    ) -> None:
        settings, device = task.own(TrainSettings), x.device
        self.task, self.optimiser, self.x, self.y, self.augment, self.keep = task, optimiser, x, y, augment, keep
        self.settings, self.processes = settings, processes
        self.part = processes.part(settings.batch)
        self.objective = objective_named(settings.objective)
        self.weights = settings.weights()
        self.steps = len(x) // settings.batch
        self.fused = fused.applies(task)
        self.precision = resolve(settings.precision, device)
        self.names = ("loss", "objective", *self.weights, "accuracy")
        self.order = torch.zeros(self.steps, settings.batch // processes.count, dtype=torch.int64, device=device)
        self.rates = torch.zeros(self.steps, len(optimiser.groups), device=device)
        self.shares = torch.ones(self.steps, device=device)
        self.blends = torch.zeros(self.steps, device=device)
        self.average = {} if settings.average_from is None else {n: t.clone() for n, t in self._averaged().items()}
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        # Running statistics of BatchNorm, which each process takes of its own part.
        norms = [m for m in task.model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        running = [statistic for norm in norms for statistic in (norm.running_mean, norm.running_var)]
        self.averages = [statistic for statistic in running if statistic is not None]
        self.sums = torch.zeros(len(self.names), device=device)
        self.diverged = torch.zeros((), device=device)  # 1 after a loss that is not finite: no update from then on

    def begin_epoch(
        self,
        permutation: Tensor,
        factors: list[float],
        shares: list[float] | None = None,
        blends: list[float] | None = None,
    ) -> None:
        """permutation: (N,) order of the training images; factors: of the learning rate, one per step.

        shares: of eps, the radius of interval bounds at each step, by default all of it; blends: how far each step
        moves the average to its weights, by default not at all.
        """
        self.taken = permutation[: self.steps * self.settings.batch].to(self.order.device)
        self.order.copy_(self.taken.view(self.steps, self.settings.batch)[:, self.part])
        self.rates.copy_(self.optimiser.rates(factors))
        self.shares.copy_(torch.tensor(shares or [1.0] * self.steps))
        self.blends.copy_(torch.tensor(blends or [0.0] * self.steps))
        self.position.zero_()
        self.sums.zero_()

    def __call__(self) -> None:
        with products_in(self.precision, self.x.device):
            batch = self._batch()
            terms, logits = self._terms(batch)
            loss = terms["objective"] + sum(weight * terms[name] for name, weight in self.weights.items())
            gradients = torch.autograd.grad(loss, self.optimiser.parameters, materialize_grads=True)
        accuracy = (logits.detach().argmax(1) == batch.y).float().mean()
        parts = [terms[name].detach().float() for name in ("objective", *self.weights)]
        own = [loss.detach().float(), *parts, accuracy]
        *shared, measured = self.processes.mean([*gradients, torch.stack(own)])
        loss = measured[0]
        torch.maximum(self.diverged, 1 - torch.isfinite(loss).float(), out=self.diverged)
        gradients = clipped(tuple(shared), self.settings.clip)
        self.optimiser.step(gradients, self.rates.index_select(0, self.position).squeeze(0), self.diverged)
        apply_masks(self.task.model, self.keep)
        self.processes.average_(self.averages)
        self._blend()
        self.sums.add_(measured)
        self.position.add_(1)

    def end_epoch(self) -> None:
        """What the objective remembers of an image is known to all processes, whoever trains on it next."""
        for memory in self.task.memory.values():
            self.processes.gather_rows_(memory, self.order.flatten(), self.taken)

    def means(self) -> dict[str, float]:
        """The epoch's mean of each part of the loss, and of the accuracy on the images trained on. Waits."""
        return dict(zip(self.names, (self.sums / max(self.steps, 1)).tolist(), strict=True))

    def tensors(self) -> list[Tensor]:
        """Everything that a step changes."""
        model = self.task.model
        changed = [*model.parameters(), *model.buffers(), *self.optimiser.state.values(), *self.task.memory.values()]
        return [*(t.detach() for t in changed), *self.average.values(), self.position, self.sums, self.diverged]

    def _batch(self) -> Batch:
        index = self.order.index_select(0, self.position).squeeze(0)
        x = self.augment(images(self.x.index_select(0, index)), self.task.generator)
        if x.device.type == "cuda":
            x = x.contiguous(memory_format=torch.channels_last)
        share = self.shares.index_select(0, self.position).squeeze(0) if self.settings.ramp_epochs else 1.0
        return Batch(x, self.y.index_select(0, index), index, share)

    def _averaged(self) -> dict[str, Tensor]:
        """What an average is taken of."""
        return {name: t for name, t in self.task.model.state_dict().items() if t.is_floating_point()}

    @torch.no_grad()
    def _blend(self) -> None:
        """average <- average + blend (weights - average)."""
        if self.average:
            means = list(self.average.values())
            moves = torch._foreach_sub(list(self._averaged().values()), means)
            torch._foreach_mul_(moves, self.blends.index_select(0, self.position).squeeze(0))
            torch._foreach_add_(means, moves)

    def _terms(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """The parts of the loss by name, unweighted, and the logits."""
        terms: dict[str, Tensor] = {}
        if self.fused:
            terms["objective"], logits, terms["grad-align"] = fused.fat_grad_align(self.task, batch)
        else:
            terms["objective"], logits = self.objective.loss(self.task, batch)
        for name in self.weights:
            if name not in terms:
                terms[name] = REGULARISERS[name](self.task, batch)
        return terms, logits


def runner(step: Step) -> Callable[[], None]:
    """What to call for each step: the captured step on a GPU, if the settings allow it; elsewhere the step itself."""
    if step.x.device.type != "cuda" or not step.settings.capture:
        return step
    return captured(step)


def captured(step: Step) -> Callable[[], None]:
    """The step as a graph. The steps that the warm-up needs leave no trace: everything they change is put back."""
    generator = step.task.generator
    before = [tensor.clone() for tensor in step.tensors()]
    random = generator.get_state()
    benchmark, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True

    def warm_up() -> None:
        for _ in range(WARM_UP):
            step.position.zero_()
            step()

    try:
        return capture(step, step.x.device, warm_up=warm_up, generator=generator).replay
    finally:
        torch.backends.cudnn.benchmark = benchmark
        for tensor, value in zip(step.tensors(), before, strict=True):
            tensor.copy_(value)
        generator.set_state(random)
