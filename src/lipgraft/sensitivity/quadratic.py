"""A bound of the row's norm from all remainders together.

With weights w > 0 on the inputs, |t_i| <= t_i^2 / (2 w_i) + w_i / 2. With multipliers s > 0 on the neurons, every
remainder obeys s_j (r_j^2 g_j^2 - e_j^2) >= 0. Adding these to the first, where t = t_m + e V and g = g_m + e B,

    2 |t|_1 <= sum w + max over e of  |t|^2_{1/w} + sum s_j (r_j^2 g_j^2 - e_j^2).

The right side is quadratic in e with the matrix -H, H = diag(s) - V diag(1/w) V' - B diag(s r^2) B'. If H is positive
definite, which a Cholesky factor proves, the maximum is X = |t_m|^2_{1/w} + sum s r^2 g_m^2 + q H^-1 q', with
q = t_m diag(1/w) V' + (g_m s r^2) B'; and scaling w and s together gives

    |t|_1 <= sqrt(X sum w).

Any w and s are sound. Remainders may cancel here, as they do in a network, where a bound of each by itself adds up
their absolute values. One factor serves all outputs, which differ in t_m and g_m, and so in q, alone.

Neurons that are not kept move the row by at most `aside`, whose sum is added, and an adjoint g_j by at most slack_j;
then r_j^2 (|g_j| + slack_j)^2 <= r_j^2 (1 + h_j) g_j^2 + r_j^2 (1 + 1/h_j) slack_j^2, for any h_j > 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lipgraft.bounds.sound import guard_upper
from lipgraft.sensitivity.cholesky import cholesky, subtract_square
from lipgraft.sensitivity.expansion import Expansion

SHARPNESS = 20.0
"""How strongly the output with the largest bound leads the choice of w and s."""


@dataclass(frozen=True, eq=False)
class Form:
    """The problem as the formula needs it: e_j^2 <= freedom_j g_j^2 + extra_j, with t = rows + e V, g = adjoints + e B.

    rows: (B, K, n); adjoints, extra: (B, K, M); freedom: (B, M); V: (B, M, n); B: (B, M, M).
    """

    rows: Tensor
    adjoints: Tensor
    freedom: Tensor
    extra: Tensor
    V: Tensor
    B: Tensor
    spans: list[slice]

    @staticmethod
    def of(expansion: Expansion) -> Form:
        slack = expansion.slack
        kept = slack.shape[2]
        g, r2 = expansion.adjoints[:, :, :kept], expansion.radius[:, :kept].square()
        pushed = (slack > 0).any(1)
        ratio = (slack.mean(1) / g.abs().mean(1)).nan_to_num(nan=1.0).clamp(0.01, 1.0)
        extra = (r2 * (1 + 1 / ratio)).unsqueeze(1) * slack.square()
        freedom = torch.where(pushed, r2 * (1 + ratio), r2)
        return Form(expansion.rows, g, freedom, extra, expansion.V, expansion.B, expansion.spans)

    @property
    def connected(self) -> tuple[slice, slice]:
        """The rows and columns of B that are not zero: no neuron of the first activation has earlier ones, and none of
        the last has later ones."""
        return slice(self.spans[0].stop, None), slice(0, self.spans[-1].start)


@dataclass(frozen=True, eq=False)
class Certificate:
    """norms: (B, K), infinite where nothing was proved; point: (B, K, M), the e at the maximum."""

    norms: Tensor
    point: Tensor


def certificate(form: Form, w: Tensor, s: Tensor) -> Certificate:
    """The bound for these weights (B, n) and multipliers (B, M)."""
    V, B, t, g = form.V, form.B, form.rows, form.adjoints
    # What rounding may do to a factorisation is taken off the diagonal: a smaller H has a larger inverse.
    rounding = 4 * V.shape[1] * torch.finfo(V.dtype).eps
    H = torch.diag_embed((1 - rounding) * s)
    subtract_square(H, V / w.sqrt().unsqueeze(1))
    freedom = s * form.freedom
    rows, columns = form.connected
    subtract_square(H[:, rows, rows], B[:, rows, columns] * freedom[:, None, columns].sqrt())
    factor = cholesky(H)
    weighted, pulled = t / w.unsqueeze(1), g * freedom.unsqueeze(1)
    q = weighted @ V.mT + pulled @ B.mT
    e = factor.solve(q.mT).mT
    fixed = (t * weighted).sum(2) + (g * pulled).sum(2) + (s.unsqueeze(1) * form.extra).sum(2)
    norms = (w.sum(1, keepdim=True) * (fixed + (e * q).sum(2))).sqrt()
    return Certificate(guard_upper(torch.where(factor.proved.unsqueeze(1), norms, torch.inf)), e)


def log_gradient(form: Form, w: Tensor, s: Tensor, found: Certificate) -> Tensor:
    """The gradient of a smooth maximum over the outputs of log(X sum w), by log w and log s: (B, n + M).

    As at any maximum, e may be held: dX/dw_i = -t_i^2 / w_i^2, dX/ds_j = freedom_j g_j^2 + extra_j - e_j^2.
    """
    e, total = found.point, w.sum(1, keepdim=True)
    largest = found.norms.amax(1, keepdim=True)
    share = torch.softmax(SHARPNESS * found.norms / largest, 1) * total / found.norms.square()
    t, g = form.rows + e @ form.V, form.adjoints + e @ form.B
    by_w = w / total - torch.einsum("bk,bki->bi", share, t.square()) / w
    room = form.freedom.unsqueeze(1) * g.square() + form.extra - e.square()
    return torch.cat([by_w, s * torch.einsum("bk,bkj->bj", share, room)], 1)


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
    """The largest eigenvalue of S^-1/2 (V diag(1/w) V' + B diag(s freedom) B') S^-1/2, about: (B,).

    If all are above LARGEST, it is not asked how far.
    """
    root = s.sqrt().unsqueeze(2)
    rows, columns = form.connected
    B = form.B[:, rows, columns]
    inverse, freedom = (1 / w).unsqueeze(2), (s * form.freedom)[:, columns].unsqueeze(2)

    def product(v: Tensor) -> Tensor:
        u = v / root
        out = form.V @ (inverse * (form.V.mT @ u))
        out[:, rows] += B @ (freedom * (B.mT @ u[:, rows]))
        return out / root

    return _largest(product, s, enough=LARGEST)


def _largest(product: Callable[[Tensor], Tensor], like: Tensor, enough: float | None = None) -> Tensor:
    """The largest eigenvalue of a positive semidefinite matrix by power steps, or less. like: (B, M) -> (B,).

    enough: no more steps are taken once all are above it; each step could only raise them. To look would make a GPU
    wait, so it is for CPUs.
    """
    v = torch.ones_like(like).unsqueeze(2)
    size: Tensor = torch.linalg.vector_norm(v, dim=1, keepdim=True)
    for _ in range(POWER_STEPS):
        v = product(v / size.clamp(min=1e-30))
        size = torch.linalg.vector_norm(v, dim=1, keepdim=True)
        if enough is not None and size.device.type == "cpu" and bool((size > enough).all()):
            break
    return size.view(-1)
