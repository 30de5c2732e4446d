"""What the verbs are given: images, labels, radii and seeds, checked and converted in one place."""

from __future__ import annotations

import math
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from lipgraft.errors import SettingsError
from lipgraft.network.precision import ordinary
from lipgraft.settings import check_eps

T = TypeVar("T")


def pixels(x: Any, low: float | None, high: float | None, *, like: Tensor | None = None) -> Tensor:
    """x (B, *shape), a tensor or an array, detached and of at least single precision. like: its new dtype and device.

    A pixel outside [low, high] is refused: moved into the range it would be another image. One that is not finite is
    left for the caller to judge.
    """
    low, high = valid_range(low, high)
    x = _tensor(x, "the images", "a batch of floats of shape (B, *shape)").detach()
    if not x.is_floating_point():
        raise SettingsError(
            f"the images must be floats, got {x.dtype}; lipgraft.data.images(x) turns uint8 pixels (N, H, W, C) into "
            "floats in [0, 1]."
        )
    if x.ndim < 2:
        raise SettingsError(f"the images must be a batch of shape (B, *shape), got shape {tuple(x.shape)}.")
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    _check_range(x, low, high)
    return ordinary(x if like is None else x.to(like))


def labels(y: Any, count: int, device: torch.device) -> Tensor:
    """One class per image: (count,) int64."""
    y = _tensor(y, "the labels", "one class per image").detach()
    if y.dtype == torch.bool or y.is_complex() or not bool((y == y.round()).all()):
        raise SettingsError(f"the labels must be whole numbers, the class indices, got {y.dtype} {y.tolist()[:5]}.")
    if y.shape != (count,):
        raise SettingsError(f"the labels y must be one class per image, got shape {tuple(y.shape)} for {count} images.")
    return ordinary(y.to(device, torch.int64))


def check_classes(y: Tensor, classes: int) -> None:
    """Refuse labels that the model has no output for."""
    if not bool(((y >= 0) & (y < classes)).all()):
        raise SettingsError(f"the labels must lie in 0..{classes - 1}, the model's classes.")


def radii(eps: Any, count: int, device: torch.device | None = None) -> Tensor:
    """The radius of every image in double precision: (count,), finite and >= 0.

    eps: a number, a text such as "2/255", or one number per image.
    """
    radius = _tensor(check_eps(eps) if isinstance(eps, str) else eps, "eps", "a number or one number per image")
    if radius.dtype == torch.bool or radius.is_complex():
        raise SettingsError(f"eps must be a number or one number per image, got {radius.dtype}.")
    radius = ordinary(radius.detach().to(device, torch.float64))
    if not bool((torch.isfinite(radius) & (radius >= 0)).all()):
        raise SettingsError(f"eps must be a finite number >= 0, got {eps}.")
    if radius.ndim not in (0, 1) or (radius.ndim == 1 and len(radius) != count):
        raise SettingsError(f"eps must be a number or one number per image, got shape {tuple(radius.shape)}.")
    return radius.expand(count)


def ends(lower: Any, upper: Any) -> tuple[Tensor, Tensor]:
    """The two ends of boxes, each (B, *shape), as floats of one type: the finer of the two."""
    low, high = (_tensor(end, "the ends of a box", "floats of shape (B, *shape)") for end in (lower, upper))
    for end in (low, high):
        if not end.is_floating_point():
            raise SettingsError(f"the ends of a box must be floats, got {end.dtype}; use .float() or .double().")
    if low.device != high.device:
        raise SettingsError(f"the ends of a box must be on one device, got {low.device} and {high.device}; use .to().")
    dtype = torch.promote_types(low.dtype, high.dtype)
    return low.to(dtype), high.to(dtype)


def reals(value: Any, what: str, wanted: str) -> Tensor:
    """A tensor of real numbers from a tensor, an array, or numbers."""
    tensor = _tensor(value, what, wanted)
    if tensor.is_complex():
        raise SettingsError(f"{what} must be real, got {tensor.dtype}.")
    return ordinary(tensor)


def settings_of(value: Any, kind: type[T], default: T | None, name: str = "settings") -> T:
    """Settings of this class, or the default ones in place of None."""
    value = default if value is None else value
    if not isinstance(value, kind):
        raise SettingsError(f"{name} must be {kind.__name__}(...), got {_show(value)}.")
    return value


def whole(value: Any, name: str, least: int) -> int:
    """A count: a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise SettingsError(f"{name} must be at least {least}, and a whole number, got {_show(value)}.")
    return int(value)


def device_named(name: Any) -> torch.device:
    """A device; "auto": the GPU if there is one."""
    if isinstance(name, str) and name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, TypeError, AssertionError) as error:  # the last where PyTorch was built without CUDA
        reason = str(error).partition("\n")[0]
        raise SettingsError(f"the device {_show(name)} cannot be used ({reason}); choose auto, cpu or cuda.") from error
    return device


def seconds(value: Any, name: str) -> float:
    """A limit of time: a finite number > 0."""
    return positive(value, name, ", in seconds")


def positive(value: Any, name: str, unit: str = "") -> float:
    """A finite number > 0. unit: what an error says of it."""
    try:
        number = math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise SettingsError(f"{name} must be a finite number > 0{unit}, got {value!r}.")
    return number


def shape_of_one(value: Any) -> tuple[int, ...]:
    """The shape of one input, without the batch axis: whole numbers > 0."""
    sizes = tuple(value) if isinstance(value, list | tuple | np.ndarray) else ()
    if not sizes or not all(isinstance(n, int | np.integer) and not isinstance(n, bool) and n > 0 for n in sizes):
        raise SettingsError(f"input_shape must be the positive sizes of one input, such as (1, 28, 28), got {value!r}.")
    return tuple(int(n) for n in sizes)


def seeded(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator of random numbers of its own, so that nobody else's is moved."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= int(seed) < 2**63:
        raise SettingsError(f"a seed must be a whole number from 0 to 2**63 - 1, got {seed!r}.")
    return torch.Generator(device).manual_seed(int(seed))


def valid_range(low: Any, high: Any) -> tuple[float | None, float | None]:
    """The two ends of the range of pixels, each a number or None for no limit."""
    for end in (low, high):
        if end is not None and not (isinstance(end, int | float | np.number) and math.isfinite(float(end))):
            raise SettingsError(f"low and high must be finite numbers, or None for no limit, got {end!r}.")
    if low is not None and high is not None and not low <= high:
        raise SettingsError(f"low must not be above high, got {low} and {high}.")
    return None if low is None else float(low), None if high is None else float(high)


def any_pixel(low: float | None, high: float | None) -> float:
    """The valid pixel nearest to 0, to stand where there is no number."""
    return min(max(0.0, -math.inf if low is None else low), math.inf if high is None else high)


def _check_range(x: Tensor, low: float | None, high: float | None) -> None:
    finite = torch.isfinite(x)
    # In the images' own precision, in which an end such as 0.1 has a neighbour instead.
    below = finite & (x < x.new_tensor(-math.inf if low is None else low))
    above = finite & (x > x.new_tensor(math.inf if high is None else high))
    if bool((below | above).any()):
        least, most = float(x[finite].min()), float(x[finite].max())
        raise SettingsError(
            f"the pixels must lie in [{'-inf' if low is None else low}, {'inf' if high is None else high}], and go "
            f"from {least:.6g} to {most:.6g}; scale the images, or pass their valid range as low and high."
        )


def _tensor(value: Any, what: str, wanted: str) -> Tensor:
    """A tensor from a tensor, an array, or numbers."""
    try:
        # Through an array of our own: torch would round Python's numbers to single precision.
        numbers = isinstance(value, np.ndarray | int | float | list | tuple)
        tensor = torch.as_tensor(np.array(value) if numbers else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SettingsError(f"{what} must be {wanted}, got {_show(value)} ({error}).") from error
    if tensor.is_meta:
        raise SettingsError(f"{what} are on the meta device, which holds no numbers; move them to a real device.")
    if tensor.layout != torch.strided:
        raise SettingsError(f"{what} must be dense, got {tensor.layout}; use .to_dense().")
    return tensor


def _show(value: Any) -> str:
    return repr(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
