"""`attack`: many restarts over a batch of images, no further work on images already broken."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lipgraft.attacks.ascent import Loss, random_start
from lipgraft.attacks.climb import begin
from lipgraft.attacks.methods import Method, method_named, misclassified, worst_margin
from lipgraft.box import Box
from lipgraft.errors import NumericalError, SettingsError
from lipgraft.inputs import check_classes, labels, pixels, positive, radii, seeded, whole
from lipgraft.network import Network, call, evaluated, like, ordinary_tensors, subject, trace

CHECK_EVERY = 10
"""Steps between two looks at which images are broken: a look waits for the device."""

LOOK = 0.25
"""Seconds between two looks at the clock, where steps are so slow that ten of them take longer."""

Charge = Callable[[Tensor], bool]
"""Called after some steps with the image of every point that took them, (R,); True ends the attack."""

Progress = Callable[[int, int], None]
"""Called with the ascents that are over, or that nobody needs any more, and the number of all."""


@dataclass(frozen=True, eq=False)
class Search:
    """x: (B, *shape), misclassified where `broken`, elsewhere the worst point found. margin: (B,), the largest wrong
    logit minus the true logit at x; broken: where it is positive, so that a tie is not. complete: whether every start
    was followed to its end, or until its image was broken."""

    x: Tensor
    broken: Tensor
    margin: Tensor
    complete: bool = True


def attack(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    eps: float | Tensor,
    method: str = "pgd",
    *,
    steps: int = 100,
    restarts: int = 1,
    step_size: float | None = None,
    low: float | None = 0.0,
    high: float | None = 1.0,
    batch: int | None = None,
    generator: torch.Generator | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Tensor:
    """For each image a point within eps that the model misclassifies, or the worst one found. (B, *shape).

    x: (B, *shape), inside [low, high]; y: (B,) true classes; eps: a number or (B,), in the units of x. The result has
    the model's dtype, or single precision if that is less, and its device. method: a key of `ATTACKS`.
    step_size: as a multiple of eps; by default the method's own. low, high: the valid range of x (None: no limit).
    batch: how many points go through the model at once. Randomness comes from `generator`, else from `seed`. progress:
    called after each batch with the ascents done so far and their number, such as `lipgraft.progress.bar` makes it.

    Examples:
        >>> import torch
        >>> import lipgraft as lg
        >>> model = torch.nn.Linear(2, 2)
        >>> x, y = torch.rand(5, 2), torch.zeros(5, dtype=torch.long)
        >>> points = lg.attack(model, x, y, 0.1, steps=5)
        >>> bool(((points - x).abs() <= 0.1001).all())
        True
    """
    return search(
        model,
        x,
        y,
        eps,
        method,
        steps=steps,
        restarts=restarts,
        step_size=step_size,
        low=low,
        high=high,
        batch=batch,
        generator=generator,
        seed=seed,
        progress=progress,
    ).x


def search(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    eps: float | Tensor,
    method: str = "pgd",
    *,
    steps: int = 100,
    restarts: int = 1,
    step_size: float | None = None,
    low: float | None = 0.0,
    high: float | None = 1.0,
    batch: int | None = None,
    generator: torch.Generator | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    first: int = 0,
    last: int | None = None,
    charge: Charge | None = None,
) -> Search:
    """`attack`, with what it found out about each image.

    first, last: of the ascents from all starts, those from `first` until before `last`; by default all. charge: may end
    it early, for lack of time.
    """
    chosen = method_named(method)
    steps, restarts = whole(steps, "steps", 1), whole(restarts, "restarts", 1)
    batch = None if batch is None else whole(batch, "batch", 1)
    step_size = None if step_size is None else positive(step_size, "step_size", ", a multiple of eps")
    if not isinstance(generator, torch.Generator | None):
        raise SettingsError(f"generator must be a torch.Generator, got {generator!r}; a number can be the seed.")
    with ordinary_tensors():
        model = subject(model)
        x = pixels(x, low, high, like=like(model, x))
        if not bool(torch.isfinite(x).all()):
            raise NumericalError("the images to attack contain NaN or infinity.")
        y, radius = labels(y, len(x), x.device), radii(eps, len(x), x.device)
        box = Box.inside(x, radius, low=low, high=high)
        if generator is None:
            generator = seeded(seed, x.device)
        with evaluated(model, freeze=True):
            run = _Run(model, box, y, chosen, batch or default_batch(x.device), generator, charge)
            run.start_at(x, climbs=bool((radius > 0).any()))
            run.network = trace(model, tuple(x.shape[1:]), products=True).to(device=x.device) if chosen.wide else None
            starts = range(restarts * run.targets.shape[1] if chosen.targeted else restarts)[first:last]
            run.ascents(starts, chosen.steps(chosen.fixed_steps or steps, step_size), radius.to(x.dtype), progress)
    return Search(run.x, run.broken, run.margin, not run.late)


def _check_one(model: nn.Module, x: Tensor, climbs: bool) -> None:
    """Refuse images that the model cannot take, and models that gradients cannot be taken of. x: (1, *shape).

    climbs: whether gradients are needed.
    """
    try:
        with torch.enable_grad():
            logits = call(model, x.detach().requires_grad_())
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise SettingsError(f"the model cannot take images of shape {tuple(x.shape[1:])}: {error}.") from error
    if logits.ndim != 2 or len(logits) != 1 or logits.shape[1] < 2:
        raise SettingsError(
            f"an attack needs logits of shape (B, n) with n >= 2, got {tuple(logits.shape)} for one image; where a "
            "squeeze() in forward drops an axis of size one, name the axis."
        )
    if climbs and not logits.requires_grad:
        raise SettingsError(
            "an attack needs the gradient of the logits with respect to the image, and there is none; remove "
            "torch.no_grad(), detach() and the like from forward, or verify without attacks (restarts: 0 in the "
            "attack's settings)."
        )


def default_batch(device: torch.device) -> int:
    """Enough points at once to fill a GPU; few enough that a CPU's cache helps."""
    return 4096 if device.type == "cuda" else 256


class _Run:
    """The state of one search: for each image the worst point so far.

    targets: (B, n - 1), the wrong classes of each image, from the one that the model finds most likely to the least.
    """

    def __init__(
        self,
        model: nn.Module,
        box: Box,
        y: Tensor,
        method: Method,
        batch: int,
        generator: torch.Generator,
        charge: Charge | None,
    ) -> None:
        self.model, self.box, self.y, self.method, self.batch, self.generator = model, box, y, method, batch, generator
        self.charge, self.late, self.look = charge, False, CHECK_EVERY if charge is None else 1
        self.network: Network | None = None

    def start_at(self, x: Tensor, climbs: bool) -> None:
        """Take the clean images as the first candidates: a misclassified one is broken already.

        climbs: whether ascents from them follow.
        """
        self.centre, self.x = x, x.clone()
        with torch.no_grad():
            if len(x):
                _check_one(self.model, x[:1], climbs)
            parts = [call(self.model, part) for part in torch.split(x, self.batch)]
            logits = torch.cat(parts) if len(x) else x.new_zeros(0, 2)
        if logits.ndim != 2 or logits.shape[1] < 2:
            raise SettingsError(f"an attack needs logits of shape (B, n) with n >= 2, got {tuple(logits.shape)}.")
        if not bool(torch.isfinite(logits).all()):
            raise NumericalError("the model's logits are NaN or infinite on the clean images; check its weights.")
        check_classes(self.y, logits.shape[1])
        self.targets = logits.scatter(1, self.y[:, None], -torch.inf).argsort(1, descending=True)[:, :-1]
        self.margin = worst_margin(logits, self.y).to(x.dtype)
        self.broken = misclassified(self.margin)

    def ascents(self, starts: range, steps: list[float], radius: Tensor, progress: Progress | None = None) -> None:
        """These starts, each image's in parallel as far as the batch has room, until every image is broken."""
        total = len(starts) * len(self.x)
        alive = torch.nonzero(~self.broken & (radius > 0)).flatten()
        while starts and len(alive) and not self.late:
            some = torch.tensor(starts[: max(1, self.batch // len(alive))], device=alive.device)
            waiting = len(alive)
            for images in torch.split(alive, self.batch):
                if self.late:
                    break
                self._ascend(images.repeat(len(some)), some.repeat_interleave(len(images)), steps, radius)
                waiting -= len(images)
                if progress is not None:
                    later = int((~self.broken[alive]).sum()) * (len(starts) - len(some))
                    progress(total - waiting * len(some) - later, total)
            starts = starts[len(some) :]
            alive = alive[~self.broken[alive]]

    def _ascend(self, rows: Tensor, start: Tensor, steps: list[float], radius: Tensor) -> None:
        """One ascent from each row. rows: (R,), the image of each; start: (R,), its number, which picks a target."""
        eps = radius[rows].reshape(-1, *[1] * (self.x.ndim - 1))
        lower, upper = self.box.lower[rows], self.box.upper[rows]
        x = random_start(self.centre[rows], eps, lower, upper, self.generator)
        y = self.y[rows]
        wrong = self.targets.shape[1]
        target = self.targets[rows, start % wrong]
        restart = start // wrong if self.method.targeted else start
        climb = begin(self.method, x, lower, upper, eps, steps, self.network, restart)
        loss = self._loss(y, target)
        while climb.left:
            best = _Best(climb.x, y)
            began = time.perf_counter()
            taken = climb.take(self.look, self.model, loss, best.see)
            if not climb.left:
                with torch.no_grad():
                    best.see(climb.x, call(self.model, climb.x))
            self._merge(rows, best)
            keep = torch.nonzero(~self.broken[rows]).flatten()
            if self.charge is not None:
                self.late = self.charge(rows)
                each = (time.perf_counter() - began) / taken
                self.look = max(1, min(CHECK_EVERY, int(LOOK / max(each, 1e-9))))
            if len(keep) == 0 or self.late:
                return
            if len(keep) < len(rows):
                rows, y, target = rows[keep], y[keep], target[keep]
                climb.keep(keep)
                loss = self._loss(y, target)

    def _loss(self, y: Tensor, target: Tensor) -> Loss:
        return lambda logits: self.method.objective(logits, y, target)

    def _merge(self, rows: Tensor, best: _Best) -> None:
        """Let the best row of each image replace what the image had, where it is worse for the model."""
        top = self.margin.scatter_reduce(0, rows, best.margin, "amax")
        winner = torch.nonzero((best.margin == top[rows]) & (best.margin > self.margin[rows])).flatten()
        first = torch.full_like(self.y, len(rows)).scatter_reduce(0, rows[winner], winner, "amin")
        images = torch.nonzero(first < len(rows)).flatten()
        chosen = first[images]  # one row per image, the first of equals
        self.x[images], self.margin[images] = best.x[chosen], best.margin[chosen]
        self.broken = misclassified(self.margin)


class _Best:
    """The worst point (for the model) that each row of an ascent has seen, without waiting for the device."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y
        self.margin = torch.full((len(x),), -torch.inf, dtype=x.dtype, device=x.device)

    def see(self, x: Tensor, logits: Tensor) -> None:
        margin = worst_margin(logits, self.y).to(self.margin.dtype)
        better = margin > self.margin  # False for NaN: a point the model cannot judge is no counterexample
        self.x = torch.where(better.reshape(-1, *[1] * (x.ndim - 1)), x, self.x)
        self.margin = torch.where(better, margin, self.margin)
