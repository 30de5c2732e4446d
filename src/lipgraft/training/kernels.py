"""Triton kernels of `intervals` and `regularisers.ibp_reg`: element by element, in the order of memory.

Imported only where Triton is.
"""

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


@triton.jit
def signed_sums(centre, radius, out, size, programs, BLOCK: tl.constexpr):
    """out: (8, programs), sums over the elements of each program; see `ibp_reg._Sums`."""
    program = tl.program_id(0)
    k = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    c = tl.load(centre + k, mask=k < size, other=0.0)
    r = tl.load(radius + k, mask=k < size, other=0.0)
    on = tl.where(c > r, 1.0, 0.0)
    off = tl.where(c < -r, 1.0, 0.0)
    tl.store(out + program, tl.sum(r, axis=0))
    tl.store(out + programs + program, tl.sum(c, axis=0))
    tl.store(out + 2 * programs + program, tl.sum(on, axis=0))
    tl.store(out + 3 * programs + program, tl.sum(on * c, axis=0))
    tl.store(out + 4 * programs + program, tl.sum(on * c * c, axis=0))
    tl.store(out + 5 * programs + program, tl.sum(off, axis=0))
    tl.store(out + 6 * programs + program, tl.sum(off * c, axis=0))
    tl.store(out + 7 * programs + program, tl.sum(off * c * c, axis=0))


@triton.jit
def signed_sums_backward(centre, radius, by, to_centre, size, BLOCK: tl.constexpr):
    """by: (8,), the gradient of each sum."""
    k = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = k < size
    c = tl.load(centre + k, mask=here, other=0.0)
    r = tl.load(radius + k, mask=here, other=0.0)
    on = tl.where(c > r, tl.load(by + 3) + 2.0 * tl.load(by + 4) * c, 0.0)
    off = tl.where(c < -r, tl.load(by + 6) + 2.0 * tl.load(by + 7) * c, 0.0)
    tl.store(to_centre + k, tl.load(by + 1) + on + off, mask=here)
