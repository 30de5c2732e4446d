"""Settings are frozen dataclasses with a sentence per field; recipes and command-line flags fill the same objects."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from functools import cache
from numbers import Integral, Real
from typing import Any, TypeVar

from lipgraft.errors import SettingsError, unknown_name

T = TypeVar("T")
REQUIRED: Any = dataclasses.MISSING
MOST_SEED = 2**32 - 1
"""What every source of random numbers in use takes."""
MOST_THREADS = 256
"""More than a network of this kind can use; PyTorch crashes with far more."""


def setting(default: Any = REQUIRED, help: str = "", *, choices: tuple[str, ...] | None = None) -> Any:
    """A dataclass field with its sentence. A dataclass, list or dict as default is copied for each instance.

    Without a default the field must be given; with `choices` only those names are accepted by `build`.
    """
    metadata: dict[str, Any] = {"help": help}
    if choices is not None:
        metadata["choices"] = choices
    if isinstance(default, list | dict | set):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    if dataclasses.is_dataclass(default) and not isinstance(default, type):
        # Frozen, so sharing would be safe; the factory is there because dataclasses refuse unhashable defaults.
        return dataclasses.field(default_factory=lambda: default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def parse_number(text: str | float) -> float:
    """A number, written as such or as a fraction: "2/255" -> 0.00784..."""
    if isinstance(text, bool):
        raise SettingsError(f"expected a number such as 0.1 or 2/255, got {text!r}.")
    if isinstance(text, int | float):
        return float(text)
    above, slash, below = text.partition("/")
    try:
        return float(above) / float(below) if slash else float(above)
    except ValueError:
        raise SettingsError(f"expected a number such as 0.1 or 2/255, got {text!r}.") from None
    except ZeroDivisionError:
        raise SettingsError(f"the fraction {text!r} divides by zero.") from None


def check_eps(eps: float | str) -> float:
    """A perturbation radius: finite and >= 0, given as a number or a fraction."""
    value = parse_number(eps)
    if not math.isfinite(value) or value < 0:
        raise SettingsError(f"eps must be a finite number >= 0, such as 0.1 or 2/255, got {eps}.")
    return value


def check_seed(seed: int) -> int:
    """A seed that every random generator takes."""
    if not 0 <= seed <= MOST_SEED:
        raise SettingsError(f"seed must be a whole number from 0 to {MOST_SEED}, got {_short(seed)}.")
    return seed


def check_threads(threads: int | None) -> int | None:
    """A number of CPU threads; None: PyTorch's choice."""
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise SettingsError(f"threads must be a whole number from 1 to {MOST_THREADS}, got {_short(threads)}.")
    return threads


def build(cls: type[T], mapping: Mapping[str, Any] | None, where: str = "recipe") -> T:
    """An instance of the dataclass `cls` from a mapping; nested dataclasses from nested mappings.

    where: what the error messages call the place the mapping came from. Unknown keys, wrong types and missing
    required keys are SettingsErrors that name the key with its full dotted path.
    """
    return typing.cast(T, _build(cls, {} if mapping is None else mapping, where, ""))


def converted(settings: Any, group: str = "") -> None:
    """Give the fields of new settings their annotated types, as `build` does: to be called first in __post_init__.

    group: what stands before their names in an error, such as "branch.".
    """
    for name, kind in _hints(type(settings)).items():  # type: ignore[arg-type]  # as in `_build`
        value = _convert(kind, getattr(settings, name), "settings", f"{group}{name}")
        object.__setattr__(settings, name, value)


def to_mapping(obj: Any) -> dict[str, Any]:
    """A settings object as plain dicts, lists, numbers and strings, ready for YAML or JSON; `build` reads it back."""
    return {field.name: _plain(getattr(obj, field.name)) for field in dataclasses.fields(obj)}


def nested(key: str, value: Any) -> dict[str, Any]:
    """{"a": {"b": value}} of "a.b"."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


def over(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """`top` laid over `base`: mappings are merged, everything else is replaced."""
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        merged[key] = over(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_mapping(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def _build(cls: type[Any], mapping: Any, where: str, path: str) -> Any:
    if isinstance(mapping, cls):
        return mapping
    if not isinstance(mapping, Mapping):
        raise SettingsError(
            f"{where}: {path.rstrip('.') or 'the top level'} must be a mapping of settings, got {_show(mapping)}."
        )
    hints = _hints(cls)  # type: ignore[arg-type]  # mypy takes a class of any kind for unhashable
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    values: dict[str, Any] = {}
    for key, value in mapping.items():
        if key not in fields:
            known, inner = [f"{path}{k}" for k in fields], [f"{path}{k}" for k in _inner_names(hints)]
            raise SettingsError(f"{where}: {unknown_name('setting', f'{path}{key}', known, inner)}")
        values[key] = _convert(hints[key], value, where, f"{path}{key}")
        choices = fields[key].metadata.get("choices")
        if choices is not None and values[key] not in choices:
            raise SettingsError(f"{where}: {unknown_name(f'{path}{key}', values[key], list(choices))}")
    for name, field in fields.items():
        if name not in values and field.default is REQUIRED and field.default_factory is REQUIRED:
            raise SettingsError(f"{where}: the setting {path + name!r} is required; please give it.")
    try:
        return cls(**values)
    except SettingsError as error:  # raised by a __post_init__, which does not know where the value came from
        raise SettingsError(f"{where}: {error}") from None


@cache
def _hints(cls: type[Any]) -> dict[str, Any]:
    """The types of the fields; once for each class, since to evaluate them takes longer than all the rest."""
    return typing.get_type_hints(cls)


def _inner_names(hints: Mapping[str, Any]) -> list[str]:
    """The settings one group further in, such as `limits.timeout`, for people who left the group out."""
    groups = {name: kind for name, kind in hints.items() if dataclasses.is_dataclass(kind)}
    return [f"{name}.{field.name}" for name, kind in groups.items() for field in dataclasses.fields(kind)]


def _convert(kind: Any, value: Any, where: str, path: str) -> Any:
    """The value as the annotated type, or a SettingsError."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if isinstance(value, Real) and not isinstance(value, int | float):  # of NumPy
        value = int(value) if isinstance(value, Integral) else float(value)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(args, value, where, path)
    if origin is typing.Literal:
        if value not in args:
            raise SettingsError(f"{where}: {unknown_name(path, value, [str(a) for a in args])}")
        return value
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _build(kind, value, where, f"{path}.")
    if origin in (list, tuple) and isinstance(value, list | tuple):
        return _convert_sequence(origin, args, value, where, path)
    if origin is dict and isinstance(value, Mapping):
        return {_convert(args[0], k, where, path): _convert(args[1], v, where, f"{path}.{k}") for k, v in value.items()}
    if kind is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        return _number(value, where, path)
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)  # YAML reads 1e3 as a float
    if kind is types.NoneType and value is None:
        return None
    if (
        isinstance(kind, type)
        and origin is None
        and isinstance(value, kind)
        and (kind is bool or not isinstance(value, bool))
    ):
        return value
    raise SettingsError(f"{where}: {path} must be {_name(kind)}, got {_show(value)}.")


def _convert_union(args: tuple[Any, ...], value: Any, where: str, path: str) -> Any:
    """The first member that takes the value; an exact type goes before a conversion ("a" for `float | str`)."""
    exact = [a for a in args if isinstance(a, type) and type(value) is a]
    problems: list[SettingsError] = []
    for kind in [*exact, *args]:
        try:
            return _convert(kind, value, where, path)
        except SettingsError as error:
            problems.append(error)
    others = [a for a in args if a is not types.NoneType]
    if len(others) == 1:
        raise problems[[*exact, *args].index(others[0])]
    raise SettingsError(f"{where}: {path} must be {' or '.join(_name(a) for a in args)}, got {_show(value)}.")


def _convert_sequence(origin: Any, args: tuple[Any, ...], value: Any, where: str, path: str) -> Any:
    if origin is tuple and args[-1:] != (Ellipsis,):
        if len(value) != len(args):
            raise SettingsError(f"{where}: {path} must have {len(args)} entries, got {_show(value)}.")
        kinds = list(args)
    else:
        kinds = [args[0]] * len(value)
    return origin(_convert(k, v, where, f"{path}[{i}]") for i, (k, v) in enumerate(zip(kinds, value, strict=True)))


def _number(value: float | str, where: str, path: str) -> float:
    try:
        return parse_number(value)
    except SettingsError as error:
        raise SettingsError(f"{where}: {path}: {error}") from None


def _show(value: Any) -> str:
    return f"{_short(value)} ({type(value).__name__})" if value is not None else "nothing"


def _short(value: Any) -> str:
    """A value for a sentence: a whole file read by mistake does not belong there."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:80]}..."


def _name(kind: Any) -> str:
    words = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", types.NoneType: "nothing"}
    return words.get(kind, getattr(kind, "__name__", str(kind)))
