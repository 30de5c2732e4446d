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

from dataclasses import dataclass

import torch
from torch import Tensor

from lipgraft.bounds.numerics import guard_upper
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
    # No neuron of the first activation has earlier ones, and none of the last has later ones.
    rows, columns = slice(form.spans[0].stop, None), slice(0, form.spans[-1].start)
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
