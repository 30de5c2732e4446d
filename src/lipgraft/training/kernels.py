"""Triton kernels of `intervals`: element by element, in the order of memory. Imported only where Triton is."""

# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def relu_ball(centre, radius, to_centre, to_radius, size, BLOCK: tl.constexpr):
    k = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = k < size
    c = tl.load(centre + k, mask=here, other=0.0)
    r = tl.load(radius + k, mask=here, other=0.0)
    low = tl.where(c <= r, 0.0, c - r)  # NaN stays NaN
    high = tl.where(c <= -r, 0.0, c + r)
    tl.store(to_centre + k, (high + low) * 0.5, mask=here)
    tl.store(to_radius + k, (high - low) * 0.5, mask=here)


@triton.jit
def relu_ball_backward(centre, radius, by_centre, by_radius, to_centre, to_radius, size, BLOCK: tl.constexpr):
    """centre, radius: what the forward kernel wrote; where the lower end is zero they are the same number."""
    k = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = k < size
    c = tl.load(centre + k, mask=here, other=0.0)
    r = tl.load(radius + k, mask=here, other=0.0)
    by_c = tl.load(by_centre + k, mask=here, other=0.0)
    by_r = tl.load(by_radius + k, mask=here, other=0.0)
    by_low = tl.where(c > r, by_c - by_r, 0.0)
    by_high = tl.where(c + r > 0, by_c + by_r, 0.0)
    tl.store(to_centre + k, (by_high + by_low) * 0.5, mask=here)
    tl.store(to_radius + k, (by_high - by_low) * 0.5, mask=here)
