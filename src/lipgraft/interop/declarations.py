"""The variables that a VNNLIB file declares: single numbers X_0, Y_0 in version 1.0, tensors X[0, 3] in version 2.0."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from lipgraft.interop.errors import VnnlibError
from lipgraft.interop.linear import Variable, variable
from lipgraft.interop.sexpr import NUMBER, Expression, show

_PLACE = re.compile(r"([^\[\]]+)(\[[^\[\]]*\])?", re.ASCII)
# Whole numbers between commas, or none at all; more digits than these are no size of anything.
_WHOLE = re.compile(r"\[(?:\s*\d{1,9}\s*(?:,\s*\d{1,9}\s*)*|\s*)\]", re.ASCII)
TYPES = ("real", "float32", "float64")
MOST = 1 << 28  # numbers in a tensor


@dataclass(frozen=True)
class TensorName:
    """A tensor as a file of version 2.0 declares it. letter: "X" for the input, "Y" for the output."""

    letter: str
    name: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def label(self, number: int) -> str:
        """The file's own word for a number of the flat tensor."""
        places = []
        for size in reversed(self.shape):
            number, place = divmod(number, size)
            places.append(str(place))
        return f"{self.name}[{','.join(reversed(places))}]" if places else self.name


@dataclass
class Declarations:
    """What is declared so far, in either version. where: the file's name; second: whether it says that it is 2.0."""

    where: str
    second: bool = False
    single: dict[Variable, None] = field(default_factory=dict)
    tensors: dict[str, TensorName] = field(default_factory=dict)

    def names(self, word: str) -> Variable | None:
        """The variable that a word stands for."""
        if not (self.second or self.tensors):
            return variable(word)
        match = _PLACE.fullmatch(word)
        tensor = self.tensors.get(match[1]) if match is not None else None
        if tensor is None and NUMBER.fullmatch(word):
            return None
        if match is None or tensor is None:
            first = "" if self.tensors else " before this assertion"
            raise VnnlibError(
                f"{self.where}: {show(word)!r} is neither a number nor a variable: no network declares it{first}."
            )
        at = _whole_numbers(match[2] or "[]")
        if at is None or len(at) != len(tensor.shape) or any(n >= m for n, m in zip(at, tensor.shape, strict=True)):
            raise VnnlibError(
                f"{self.where}: {show(word)} is not an index of {tensor.name}, whose shape is {tensor.shape}."
            )
        number = 0
        for n, size in zip(at, tensor.shape, strict=True):
            number = number * size + n
        return (tensor.letter, number)

    def declare(self, command: list[Expression]) -> None:
        """(declare-const X_0 Real) or (declare-fun X_0 () Real)."""
        sort: list[Expression] = ["Real"] if command[0] == "declare-const" else [[], "Real"]
        name = variable(command[1]) if len(command) > 1 and isinstance(command[1], str) else None
        if name is None or command[2:] != sort:
            raise VnnlibError(f"{self.where}: {show(command)} must declare a real variable X_i or Y_i.")
        if name in self.single:
            raise VnnlibError(f"{self.where} declares {name[0]}_{name[1]} twice.")
        self.single[name] = None

    def declare_network(self, command: list[Expression]) -> None:
        """(declare-network N (declare-input X float32 [1, 5]) (declare-output Y float32 [1, 2]))."""
        if self.tensors:
            raise VnnlibError(f"{self.where} speaks of several networks; only properties of one can be decided.")
        letters = {"declare-input": "X", "declare-output": "Y"}
        for part in command[2:]:
            match part:
                case [str(kind), str(name), str(sort), str(shape)] if kind in letters:
                    if sort.lower() not in TYPES:
                        raise VnnlibError(f"{self.where}: {show(part)}: only {', '.join(TYPES)} are supported.")
                    sizes = _whole_numbers(shape)
                    if sizes is None:
                        raise VnnlibError(
                            f"{self.where}: {show(part)}: {show(shape)} is not a shape; one is written as in [1, 5]."
                        )
                    tensor = TensorName(letters[kind], name, sizes)
                    if name in self.tensors or not 0 < tensor.count <= MOST:
                        raise VnnlibError(f"{self.where}: {show(part)} declares no tensor, or one of a name twice.")
                    self.tensors[name] = tensor
                case _:
                    raise VnnlibError(
                        f"{self.where}: {show(part)} is not supported; a network declares one input and one output."
                    )
        if sorted(tensor.letter for tensor in self.tensors.values()) != ["X", "Y"]:
            raise VnnlibError(f"{self.where}: {show(command)} must declare one input and one output.")

    def tensor(self, letter: str) -> TensorName | None:
        """The input ("X") or output ("Y") of a file of version 2.0."""
        return next((tensor for tensor in self.tensors.values() if tensor.letter == letter), None)

    def count(self, letter: str) -> int:
        """How many inputs or outputs there are."""
        tensor = self.tensor(letter)
        if tensor is not None:
            return tensor.count
        numbers = {number for kind, number in self.single if kind == letter}
        missing = next((i for i in range(len(numbers)) if i not in numbers), None)
        if not numbers or missing is not None:
            raise VnnlibError(
                f"{self.where} does not declare {letter}_{missing or 0}; variables are numbered from 0 without gaps."
            )
        return len(numbers)


def _whole_numbers(text: str) -> tuple[int, ...] | None:
    """Those of an index or a shape, as in [0, 3]; None where it is written otherwise."""
    if not _WHOLE.fullmatch(text):
        return None
    return tuple(int(n) for n in text[1:-1].split(",")) if text[1:-1].strip() else ()
