"""Every key of a recipe with its sentence, from the dataclasses themselves."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

from lipgraft.runs.recipe import Recipe


def explain() -> str:
    """Markdown: one table per group of settings."""
    groups = _groups()
    return "\n\n".join(_section(cls, path, groups) for cls, path in groups.items())


def _groups() -> dict[type[Any], str]:
    """Recipe and the dataclasses inside it, outer ones first, each with the dotted path where it occurs first."""
    groups: dict[type[Any], str] = {Recipe: ""}
    waiting: list[type[Any]] = [Recipe]
    while waiting:
        cls = waiting.pop(0)
        for field in dataclasses.fields(cls):
            inner, many = _inside(cls, field.name)
            if inner is not None and inner not in groups:
                groups[inner] = ".".join(filter(None, (groups[cls], field.name + ("[]" if many else ""))))
                waiting.append(inner)
    return groups


def _section(cls: type[Any], path: str, groups: dict[type[Any], str]) -> str:
    title = f"### `{path}`" if path else "### The top level"
    summary = (cls.__doc__ or "").strip().splitlines()[0]
    lines = [title, "", summary, "", "| key | default | meaning |", "|---|---|---|"]
    for field in dataclasses.fields(cls):
        inner, _ = _inside(cls, field.name)
        choices = field.metadata.get("choices")
        meaning = field.metadata["help"] + (f" One of: {', '.join(choices)}." if choices else "")
        meaning += f" Keys: see `{groups[inner]}`." if inner is not None else ""
        lines.append(f"| `{field.name}` | {_default(field)} | {meaning.replace('|', chr(92) + '|')} |")
    return "\n".join(lines)


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
        return "required"
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    if dataclasses.is_dataclass(value):
        return "its own"
    if value is None or value in ("", {}):
        return "none"
    if value == 2 / 255:
        return "`2/255`"
    return f"`{list(value) if isinstance(value, tuple) else value}`"


def _inside(cls: type[Any], name: str) -> tuple[type[Any] | None, bool]:
    """The dataclass in a field of type `X`, `X | None` or `tuple[X, ...]`, and whether there may be many."""
    hint = typing.get_type_hints(cls)[name]
    kinds = (kind for kind in (hint, *typing.get_args(hint)) if isinstance(kind, type))
    return next(filter(dataclasses.is_dataclass, kinds), None), typing.get_origin(hint) is tuple
