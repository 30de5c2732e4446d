"""What tests of commands ask: the line on standard error, the commands there are."""

from __future__ import annotations

import pytest


def failure(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on standard error."""
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return captured.err


def every_command(group: object, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    commands = getattr(group, "commands", None)
    if commands is None:
        return [path]
    return [leaf for name, command in commands.items() for leaf in every_command(command, (*path, name))]
