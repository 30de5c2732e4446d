"""What is said of one instance, in the words of the verification competition."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from lipgraft.errors import LipgraftError
from lipgraft.files import atomic_write_text
from lipgraft.interop.declarations import TensorName
from lipgraft.interop.replay import Counterexample

Word = Literal["unsat", "sat", "unknown", "timeout", "error"]


@dataclass(frozen=True, eq=False)
class VnnResult:
    """status: "unsat" only with a proof, "sat" only with a counterexample that onnxruntime confirmed.

    reason: why it is "unknown" or "error". method: the stage that decided, or the last one that ran. seconds: of wall
    time, reading the files included. note: what was done to the question that a reader should know. names: of the
    input and the output, where the property gives them other names than X_0 .. and Y_0 ..
    """

    status: Word
    counterexample: Counterexample | None = None
    reason: str | None = None
    method: str | None = None
    seconds: float = 0.0
    note: str | None = None
    names: tuple[TensorName | None, TensorName | None] = (None, None)

    def text(self) -> str:
        """The content of a results file: the word, and for "sat" the values of all variables."""
        if self.counterexample is None:
            return f"{self.status}\n"
        (x, y), point = self.names, self.counterexample
        pairs = [*_pairs("X", x, point.x), *_pairs("Y", y, point.y)]
        return f"{self.status}\n(" + "\n ".join(pairs) + ")\n"


def write_result(path: str | os.PathLike[str], text: str) -> None:
    """Write a results file; a disk that does not take it is a LipgraftError."""
    try:
        atomic_write_text(path, text)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise LipgraftError(f"the results cannot be written to {path}: {reason}.") from None


def _pairs(letter: str, tensor: TensorName | None, values: Tensor) -> list[str]:
    """(X_0 0.5), ...: with all digits, so that reading gives the same number."""
    numbers = enumerate(values.double().tolist())
    return [f"({f'{letter}_{i}' if tensor is None else tensor.label(i)} {value!r})" for i, value in numbers]
