"""S-expressions: the brackets and words of a VNNLIB file as nested lists."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TypeAlias

from lipgraft.interop.clock import check_time
from lipgraft.interop.errors import VnnlibError

Expression: TypeAlias = "str | list[Expression]"

NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)
DEEPEST = 100
# A comment, a string, a quoted symbol, a bracket, a word; a quote that is never closed comes out alone. What stands in
# square brackets is a part of its word, as in X[0, 1].
_TOKEN = re.compile(r""";[^\r\n]*|"[^"]*"|\|[^|]*\||[()]|(?:\[[^\]();"|\r\n]*\]|[^\s();"|\[])+|["|\[]""", re.ASCII)
_SYMBOL = re.compile(r"[\w~!@$%^&*+=<>.?/-]+", re.ASCII)
_NAMES = {'"': "string", "|": "quoted symbol", "[": "pair of square brackets"}
_BETWEEN_LOOKS = 1 << 14  # tokens between two looks at the clock


def commands(text: str, where: str, deadline: float = math.inf) -> Iterator[Expression]:
    """The top-level expressions of a text, one by one. where: the file's name, for errors.

    Strings keep their quotes, so that they are never taken for words; a quoted symbol is the word between its bars.
    deadline: by time.monotonic; after it, OutOfTime is raised.
    """
    stack: list[list[Expression]] = []
    words: dict[str, str] = {}  # most words occur many times: one copy of each is kept
    for number, match in enumerate(_TOKEN.finditer(text)):
        if number % _BETWEEN_LOOKS == 0:
            check_time(deadline)
        token = match[0]
        if token == "(":
            if len(stack) == DEEPEST:
                raise VnnlibError(f"{where} nests more than {DEEPEST} brackets.")
            stack.append([])
            continue
        expression: Expression
        if token == ")":
            if not stack:
                raise VnnlibError(f"{where} closes a bracket that was never opened.")
            expression = stack.pop()
        elif token[0] == ";":
            continue
        elif token in _NAMES:
            kind = _NAMES[token]
            raise VnnlibError(f"{where} ends inside a {kind}; it may be truncated.")
        else:
            word = _unquoted(token) if token[0] == "|" else token
            expression = words.setdefault(word, word)
        if stack:
            stack[-1].append(expression)
        else:
            yield expression
    if stack:
        raise VnnlibError(f"{where} ends inside {len(stack)} open brackets; it may be truncated.")


def _unquoted(token: str) -> str:
    """|X_0| means X_0; what would be no symbol without its bars, such as |0.5|, keeps them."""
    inner = token[1:-1]
    return inner if _SYMBOL.fullmatch(inner) and not NUMBER.fullmatch(inner) else token


def show(expression: Expression, limit: int = 80) -> str:
    """An expression as text, cut to one short line, for error messages."""
    text = expression if isinstance(expression, str) else f"({' '.join(show(part, limit) for part in expression[:9])})"
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 3] + "..."
