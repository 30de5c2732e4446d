"""The choice of weights and multipliers for the quadratic bound: a safe first guess, then Adam on their logarithms."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lipgraft.sensitivity.expansion import Expansion
from lipgraft.sensitivity.quadratic import Form, certificate, log_gradient

POWER_STEPS = 16
LARGEST = 0.95  # the largest eigenvalue of S^-1/2 (S - H) S^-1/2 that counts as safe; below 1 H is positive definite
RAISE, RAISES = 1.2, 20  # factor on multipliers that are too small, and how often
STEP, SHORTEN = 0.15, 0.5  # length of Adam's steps in the logarithms, and the factor on it after a failure
MOMENTUM, SMOOTHING = 0.6, 0.9


def quadratic_norms(expansion: Expansion, iterations: int) -> Tensor:
    """Bounds of the l1 norms of all rows, the best of some weights and multipliers: (B, K). Infinite where none proved.

    A step that ends where nothing can be proved, or far above the best, is taken back and shortened.
    """
    form = Form.of(expansion)
    now = first_guess(form)
    inputs = form.rows.shape[2]
    growth = torch.cat([now.new_zeros(inputs), _growth(form).log()])
    best = now.new_full(form.rows.shape[:2], torch.inf)
    anchor, slope = now, torch.zeros_like(now)  # the best place so far, and the gradient there
    record = now.new_full((len(now), 1), torch.inf)
    length = torch.full_like(record, STEP)
    mean, square = torch.zeros_like(now), torch.zeros_like(now)
    for number in range(1, iterations + 1):
        w, s = now[:, :inputs].exp(), now[:, inputs:].exp()
        found = certificate(form, w, s)
        best = torch.minimum(best, found.norms)
        if number == iterations:
            break
        gradient = log_gradient(form, w, s, found)
        worst = found.norms.amax(1, keepdim=True)
        failed = ~(worst < 1.5 * record) | ~gradient.isfinite().all(1, keepdim=True)
        better = (worst < record) & ~failed
        anchor, slope = torch.where(better, now, anchor), torch.where(better, gradient, slope)
        record = torch.where(better, worst, record)
        anchor = torch.where(record.isinf(), anchor + growth, anchor)  # the first guess was too small after all
        now, gradient = torch.where(failed, anchor, now), torch.where(failed, slope, gradient)
        length = torch.where(failed, length * SHORTEN, length)
        mean = torch.where(failed, 0.0, mean).lerp(gradient, 1 - MOMENTUM)
        square = square.lerp(gradient.square(), 1 - SMOOTHING)
        size = (square / (1 - SMOOTHING**number)).sqrt().clamp(min=1e-12)
        now = now - length * mean / (1 - MOMENTUM**number) / size
    return best + expansion.aside.sum(2)


def first_guess(form: Form) -> Tensor:
    """log w and log s, (B, n + M), for which H is positive definite, as far as power steps can tell."""
    rows = form.rows.abs()
    w = rows.mean(1) + rows.mean((1, 2)).unsqueeze(1)
    mean = w.mean(1, keepdim=True)
    w = torch.where(mean > 0, w / mean, 1.0)
    s = _layer_by_layer(form, w)
    growth = _growth(form)
    for _ in range(RAISES):
        low = (_largest_of_all(form, w, s) > LARGEST).unsqueeze(1)
        if not bool(low.any()):
            break
        s = torch.where(low, s * growth, s)
    return torch.cat([w, s], 1).log()


def _growth(form: Form) -> Tensor:
    """Factors on s that make H more positive definite. Later layers see earlier ones' s, so they grow more. (M,)."""
    sizes = [span.stop - span.start for span in form.spans]
    return torch.cat([form.freedom.new_full((size,), RAISE ** (k + 1)) for k, size in enumerate(sizes)])


def _layer_by_layer(form: Form, w: Tensor) -> Tensor:
    """s for which each activation's own block of H is positive definite, from the input on: (B, M).

    Within an activation s_j is proportional to the square root of what is subtracted from it.
    """
    s = torch.zeros_like(form.freedom)
    for span in form.spans:
        before = slice(0, span.start)
        rows = form.V[:, span] / w.sqrt().unsqueeze(1)
        between = form.B[:, span, before] * (s * form.freedom)[:, None, before].sqrt()
        subtracted = torch.cat([rows, between], 2)
        profile = subtracted.square().sum(2).sqrt()
        profile = torch.where(profile > 0, profile, profile.amax(1, keepdim=True))  # padding, neurons without effect
        profile = torch.where(profile > 0, profile, 1.0)
        root = subtracted / profile.sqrt().unsqueeze(2)
        top = _largest(lambda v, a=root: a @ (a.mT @ v), profile)  # type: ignore[misc]
        s[:, span] = torch.where(top > 0, top, 1.0).unsqueeze(1) * profile / LARGEST
    return s


def _largest_of_all(form: Form, w: Tensor, s: Tensor) -> Tensor:
    """The largest eigenvalue of S^-1/2 (V diag(1/w) V' + B diag(s freedom) B') S^-1/2, about: (B,)."""
    root = s.sqrt().unsqueeze(2)
    inverse, freedom = (1 / w).unsqueeze(2), (s * form.freedom).unsqueeze(2)

    def product(v: Tensor) -> Tensor:
        u = v / root
        return (form.V @ (inverse * (form.V.mT @ u)) + form.B @ (freedom * (form.B.mT @ u))) / root

    return _largest(product, s)


def _largest(product: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
    """The largest eigenvalue of a positive semidefinite matrix by power steps, or less. like: (B, M) -> (B,)."""
    v = torch.ones_like(like).unsqueeze(2)
    size: Tensor = torch.linalg.vector_norm(v, dim=1, keepdim=True)
    for _ in range(POWER_STEPS):
        v = product(v / size.clamp(min=1e-30))
        size = torch.linalg.vector_norm(v, dim=1, keepdim=True)
    return size.view(-1)
