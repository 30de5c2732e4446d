"""YAML in and out, by the C library where PyYAML has it: a sweep's settings are thousands of lines."""

from __future__ import annotations

from collections.abc import Hashable
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, cast

import yaml

from lipgraft.errors import SettingsError

DEEPEST = 100
"""Lists within lists; with very many more the C library crashes."""

_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """Plain values alone, no objects; a key given twice is an error, where YAML would quietly take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[str, yaml.Node] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value[:100]!r} is given twice", key.start_mark
                    )
                seen[key.value] = key
        found: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        return found


def load(text: str) -> Any:
    """What the text says; plain values alone, no objects."""
    _check_nesting(text)
    return yaml.load(text, Loader=_Loader)


def read(file: Path | Traversable, name: str) -> Any:
    """What a file says. name: what errors call it; they never quote the file, which may be another than was meant."""
    try:
        text = file.read_text(encoding="utf-8")
        return load(text)
    except OSError as error:
        raise SettingsError(f"{name} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{name} is not valid YAML: it is not UTF-8 text.") from None
    except yaml.YAMLError as error:
        raise SettingsError(f"{name} is not valid YAML: {problem(error)}.") from None


def problem(error: yaml.YAMLError) -> str:
    """What is wrong, and where, without the text itself."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return "it has characters that YAML does not allow"
    mark = error.problem_mark or error.context_mark
    where = "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"
    return f"{error.problem or error.context or 'it cannot be understood'}{where}"


def _check_nesting(text: str) -> None:
    """Refuse what is nested too deeply, or in itself; the parser's events, other than its results, take no stack."""
    names: list[str | None] = []  # of the lists and mappings that are open
    for event in yaml.parse(text, Loader=_Base):
        if isinstance(event, yaml.CollectionStartEvent):
            names.append(event.anchor)
        elif isinstance(event, yaml.CollectionEndEvent):
            names.pop()
        elif isinstance(event, yaml.AliasEvent) and event.anchor in names:
            problem, mark = f"*{event.anchor} is part of itself", cast(yaml.Mark, event.start_mark)
            raise yaml.constructor.ConstructorError(None, None, problem, mark)
        if len(names) > DEEPEST:
            raise yaml.constructor.ConstructorError(
                None, None, f"it is nested more than {DEEPEST} deep", event.start_mark
            )


def dump(value: Any) -> str:
    """In the order of the keys as they are."""
    text: str = yaml.dump(value, Dumper=_DUMPER, sort_keys=False, allow_unicode=True)
    return text
