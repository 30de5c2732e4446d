"""Data of one's own: an .npz file, or a function that makes the arrays."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipgraft.data.catalogue import CATALOGUE, Augment
from lipgraft.data.dataset import AUGMENT, Dataset
from lipgraft.errors import DataError, unknown_name
from lipgraft.source import is_source, made_by

_EXACT = 1e-3  # of a grey level: how far floats may lie off the 256 levels that images are stored in
MOST_CLASSES = 1_000_000
"""Labels beyond are numbers of something else."""
_KEYS = ("x_train", "y_train", "x_test", "y_test", "mean", "std", "classes", "augment", "val_size")


def from_arrays(
    x_test: Any,
    y_test: Any,
    x_train: Any = None,
    y_train: Any = None,
    *,
    name: str = "own",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    classes: Sequence[str] | None = None,
    augment: Augment = "none",
    val_size: int | None = None,
) -> Dataset:
    """A data set of your own arrays.

    x_test, x_train: (N, H, W, C) or (N, H, W), uint8, or floats that are the 256 grey levels divided by 255.
    y_test, y_train: (N,), classes from 0 on. Without training images a network can be attacked and verified, but not
    trained or grafted. mean, std: per channel, for networks that are built by name; by default pixels stay as they are.
    classes: their names. augment: what training applies. val_size: how many of the last training images are held out
    for validation; by default a tenth.

    Examples:
        >>> import numpy as np
        >>> import lipgraft as lg
        >>> lg.data.from_arrays(np.zeros((5, 8, 8), np.uint8), np.arange(5) % 2, name="blank")
        <Dataset blank: 0 training and 5 test images of 1x8x8 in 2 classes>
    """
    images, labels = _images(name, "x_test", x_test), _labels(name, "y_test", y_test)
    if (x_train is None) != (y_train is None):
        raise DataError(f"{name} has x_train or y_train without the other; give both.")
    seen = images[:0] if x_train is None else _images(name, "x_train", x_train)
    known = labels[:0] if y_train is None else _labels(name, "y_train", y_train)
    if len(images) == 0 or len(images) != len(labels) or len(seen) != len(known):
        raise DataError(
            f"{name} must have a label for every image, and a test image at least, got {len(images)} test images with "
            f"{len(labels)} labels and {len(seen)} training images with {len(known)}."
        )
    if images.shape[1:] != seen.shape[1:]:
        raise DataError(
            f"{name} has test images of {tuple(images.shape[1:])} and training images of {tuple(seen.shape[1:])}; "
            "they must be alike."
        )
    count, channels = int(torch.cat([labels, known]).max()) + 1, images.shape[3]
    if count > MOST_CLASSES:
        raise DataError(
            f"{name} has a label {count - 1}; labels are classes from 0 on, so number them anew, with "
            "numpy.unique(y, return_inverse=True)."
        )
    names = tuple(map(str, range(count) if classes is None else _names(name, classes)))
    if len(names) < count:
        raise DataError(f"{name} names {len(names)} classes, but has labels up to {count - 1}.")
    if not isinstance(augment, str) or augment not in AUGMENT:
        raise DataError(unknown_name("augmentation", augment, list(AUGMENT)))
    return Dataset(
        name=name,
        x_train=seen,
        y_train=known,
        x_test=images,
        y_test=labels,
        mean=_per_channel(name, "mean", mean, channels, 0.0),
        std=_per_channel(name, "std", std, channels, 1.0),
        classes=names,
        augment=augment,
        val_size=len(seen) // 10 if val_size is None else _size(name, val_size),
    )


def is_own(name: str) -> bool:
    """Whether the name is that of an .npz file or of a function, and not of a data set that lipgraft knows."""
    return name.endswith(".npz") or is_source(name)


def check_name(name: str) -> None:
    """Refuse a name that is none of the known data sets, nor an .npz file, nor a function."""
    if name not in CATALOGUE and not is_own(name):
        known = unknown_name("data set", name, list(CATALOGUE))
        raise DataError(f"{known} Your own: an .npz file, or module:function.")


def load_own(name: str) -> Dataset:
    """The data set in an .npz file, or that a function returns: a `Dataset`, or a mapping as in the .npz file."""
    found = _read(Path(name)) if name.endswith(".npz") else made_by(name)
    if isinstance(found, Dataset):
        return found
    if not isinstance(found, Mapping):
        raise DataError(
            f"{name} must return a lipgraft.data.Dataset or a mapping with x_train, y_train, x_test and y_test, got "
            f"{type(found).__name__}."
        )
    for key in found:
        if key not in _KEYS:
            raise DataError(f"{name}: {unknown_name('array', key, list(_KEYS))}")
    missing = [key for key in ("x_test", "y_test") if key not in found]
    if missing:
        raise DataError(f"{name} has no {missing[0]}; it needs x_test and y_test, and x_train and y_train to train.")
    plain = {key: _plain(value) if key in ("augment", "val_size") else value for key, value in found.items()}
    return from_arrays(**plain, name=Path(name).stem if name.endswith(".npz") else name)


def _read(path: Path) -> dict[str, Any]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except FileNotFoundError:
        raise DataError(f"there is no file {path}; give an .npz file with x_test, y_test, x_train, y_train.") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is not an .npz file of plain arrays ({error}); write it with numpy.savez.") from None


def _plain(value: Any) -> Any:
    """A number or word, also as an array of one."""
    return value.item() if isinstance(value, np.ndarray | np.generic) and value.size == 1 else value


def _names(name: str, classes: Any) -> Sequence[Any]:
    if isinstance(classes, str) or np.ndim(classes) != 1:
        raise DataError(
            f"{name}: classes must be their names, one for each class, got {classes!r:.80}; or leave it out."
        )
    return list(classes)


def _size(name: str, value: Any) -> int:
    try:
        size = int(value)
    except (TypeError, ValueError, OverflowError):
        size = -1
    if size < 0 or size != value:
        raise DataError(f"{name}: val_size must be how many training images are held out, got {value!r:.80}.")
    return size


def _tensor(name: str, key: str, value: Any) -> Tensor:
    """Numbers as PyTorch takes them: in this machine's order of bytes, and forwards in memory."""
    if isinstance(value, Tensor):
        return value
    try:
        array = np.asarray(value)
        if not array.dtype.isnative or min(array.strides, default=0) < 0:
            array = array.astype(array.dtype.newbyteorder("="), order="C")
        return torch.as_tensor(array)
    except (TypeError, ValueError):
        kind = getattr(value, "dtype", type(value).__name__)
        raise DataError(f"{name}: {key} must be an array of numbers, got {kind}; convert it first.") from None


def _images(name: str, key: str, value: Any) -> Tensor:
    pixels = _tensor(name, key, value)
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    if pixels.ndim != 4 or 0 in pixels.shape[1:]:
        raise DataError(f"{name}: {key} must be (images, rows, columns, channels), got shape {tuple(pixels.shape)}.")
    if pixels.shape[1] in (1, 3) and pixels.shape[3] not in (1, 3):
        raise DataError(
            f"{name}: {key} has shape {tuple(pixels.shape)}, channels first; store it as (images, rows, columns, "
            "channels), with x.transpose(0, 2, 3, 1)."
        )
    if pixels.is_floating_point():
        levels = pixels.double() * 255
        whole = levels.round()
        if not bool(((levels - whole).abs() <= _EXACT).all()) or not bool(((whole >= 0) & (whole <= 255)).all()):
            raise DataError(
                f"{name}: {key} must be pixels in 256 levels, as uint8 or as floats k/255 in [0, 1]; scale and round "
                "them yourself, because this changes the images: (255 * x).round().astype('uint8')."
            )
        pixels = whole.to(torch.uint8)
    if pixels.dtype != torch.uint8:
        raise DataError(f"{name}: {key} must be uint8 pixels from 0 to 255, got {pixels.dtype}; use .astype('uint8').")
    return pixels.contiguous()


def _labels(name: str, key: str, value: Any) -> Tensor:
    labels = _tensor(name, key, value)
    if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise DataError(f"{name}: {key} must be one whole number per image, got {labels.dtype} {tuple(labels.shape)}.")
    labels = labels.to(torch.int64)
    if len(labels) and int(labels.min()) < 0:
        raise DataError(f"{name}: {key} must be classes from 0 on, got {int(labels.min())}.")
    return labels


def _per_channel(name: str, key: str, value: Any, channels: int, default: float) -> tuple[float, ...]:
    try:
        numbers = (default,) * channels if value is None else tuple(float(n) for n in np.asarray(value).reshape(-1))
    except (TypeError, ValueError):
        raise DataError(f"{name}: {key} must be a number per channel, got {value!r:.80}.") from None
    if len(numbers) != channels:
        raise DataError(f"{name}: {key} must have a number per channel, {channels}, got {len(numbers)}.")
    if not np.isfinite(numbers).all() or (key == "std" and min(numbers) <= 0):
        raise DataError(f"{name}: {key} must be finite{', and above 0' if key == 'std' else ''}, got {numbers}.")
    return numbers
