"""S-expressions: the brackets and words of a VNNLIB file as nested lists."""

from __future__ import annotations

import re
from typing import TypeAlias

from lipgraft.interop.errors import VnnlibError

Expression: TypeAlias = "str | list[Expression]"

DEEPEST = 100
_TOKEN = re.compile(r"[()]|[^\s()]+")


def parse(text: str, where: str) -> list[Expression]:
    """The top-level expressions of a text without comments. where: the file's name, for errors."""
    stack: list[list[Expression]] = [[]]
    for token in _TOKEN.findall(text):
        if token == "(":
            if len(stack) > DEEPEST:
                raise VnnlibError(f"{where} nests more than {DEEPEST} brackets.")
            stack.append([])
        elif token == ")":
            if len(stack) == 1:
                raise VnnlibError(f"{where} closes a bracket that was never opened.")
            done = stack.pop()
            stack[-1].append(done)
        else:
            stack[-1].append(token)
    if len(stack) > 1:
        raise VnnlibError(f"{where} ends inside {len(stack) - 1} open brackets; it may be truncated.")
    return stack[0]


def show(expression: Expression, limit: int = 80) -> str:
    """An expression as text, cut to one short line, for error messages."""
    text = expression if isinstance(expression, str) else f"({' '.join(show(part, limit) for part in expression[:9])})"
    return text if len(text) <= limit else text[: limit - 3] + "..."
