"""YAML in and out, by the C library where PyYAML has it: a sweep's settings are thousands of lines."""

from __future__ import annotations

from typing import Any

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def load(text: str) -> Any:
    """What the text says; plain values alone, no objects."""
    return yaml.load(text, Loader=_LOADER)


def dump(value: Any) -> str:
    """In the order of the keys as they are."""
    text: str = yaml.dump(value, Dumper=_DUMPER, sort_keys=False, allow_unicode=True)
    return text
