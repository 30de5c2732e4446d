"""What a function of one's own makes, by its name: `package.module:function` or `file.py:function`."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from lipgraft.errors import LipgraftError, SettingsError

_SOURCE = re.compile(r"(?P<place>[^:]+\.py|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):(?P<function>[A-Za-z_]\w*)")


def is_source(name: str) -> bool:
    """Whether the name is that of a function in a module or file."""
    return _SOURCE.fullmatch(name) is not None


def made_by(name: str) -> Any:
    """What the function of this name returns when it is called without arguments.

    Its module is looked for in the current folder first. Its code runs, so name only code that you trust. What goes
    wrong in it is one sentence.
    """
    parts = _SOURCE.fullmatch(name)
    if parts is None:
        raise SettingsError(f"{name!r} must be module:function or file.py:function.")
    place, function = parts["place"], parts["function"]
    is_file = place.endswith(".py")
    with _importable(Path(place).parent if is_file else Path()), _speaking(name):
        module = _from_file(Path(place)) if is_file else _from_module(place)
        found = getattr(module, function, None)
        if not callable(found):
            raise SettingsError(f"{place} has no function {function!r}; name one that takes no arguments.")
        return found()


@contextmanager
def _speaking(name: str) -> Iterator[None]:
    try:
        yield
    except LipgraftError:
        raise
    except (Exception, SystemExit) as error:
        raise SettingsError(f"{name} failed: {type(error).__name__}: {error}; --debug shows where.") from error


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Modules of the folder can be imported; the console script, unlike `python -m`, does not look there."""
    entry = str(folder.resolve())
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        sys.path.remove(entry)


def _from_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # something that the module itself imports
        raise SettingsError(
            f"there is no module {name!r} in this folder or environment; give file.py:function, or run in its folder."
        ) from None


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise SettingsError(f"there is no file {path}; give file.py:function.")
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses and the like look their module up
    spec.loader.exec_module(module)
    return module
