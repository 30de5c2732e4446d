"""Errors meant for people: each says what is wrong and what to do next. The command line prints them as one line."""

from collections.abc import Sequence
from difflib import get_close_matches


class LipgraftError(Exception):
    """Base of every error that a user can cause and repair."""


class SettingsError(LipgraftError):
    """A setting is unknown, of the wrong type or out of range."""


class DataError(LipgraftError):
    """A data set is unknown, missing or damaged."""


class CheckpointError(LipgraftError):
    """A model file is missing, truncated, foreign or does not fit the architecture."""


class UnsupportedOperationError(LipgraftError):
    """A network contains an operation that the bound engine does not know."""


class FileError(LipgraftError):
    """A file or folder cannot be made, written or held: no space, no permission, the wrong kind, or in use."""


class NumericalError(LipgraftError):
    """NaN or infinity where only finite numbers make sense."""


def counted(count: int, one: str, many: str = "") -> str:
    """How many, in words: "1 image", "2 images". many: the plural, where it is not one with an s."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def unknown_name(kind: str, name: object, known: list[str], inner: Sequence[str] = ()) -> str:
    """The sentence for a name that is not in a registry: names the nearest known one and lists all.

    inner: dotted names further in that may have been meant, too many to be listed; the last parts are compared first.
    """
    ends = {one.rpartition(".")[2]: one for one in (*inner, *known)} if inner else {}
    near = [ends[end] for end in get_close_matches(str(name).rpartition(".")[2], ends, n=1)]
    near = near or get_close_matches(str(name), known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"unknown {kind} {name!r}.{hint} Known: {', '.join(sorted(known))}."
