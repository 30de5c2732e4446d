"""Reading VNNLIB 1.0 and 2.0: declarations and assertions become boxes with forbidden outputs."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from lipgraft.interop.clauses import Clause, ClauseReader, cases, check, regions_of
from lipgraft.interop.declarations import Declarations
from lipgraft.interop.errors import VnnlibError
from lipgraft.interop.packed import read_packed
from lipgraft.interop.sexpr import Expression, commands, show
from lipgraft.interop.specification import Region, Specification

# Commands of the underlying SMT language that say nothing about the property.
IGNORED = ("set-logic", "set-info", "set-option", "check-sat", "get-model", "exit")
LARGEST = 1 << 30  # bytes, unpacked


def read_vnnlib(path: str | os.PathLike[str], *, deadline: float = math.inf) -> Specification:
    """The specification in a .vnnlib file, or in a gzip of one. deadline: see parse_vnnlib."""
    file = Path(path)
    data = read_packed(file, LARGEST, VnnlibError)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise VnnlibError(f"{file} is not a text file in UTF-8.") from None
    return parse_vnnlib(text, str(file), deadline=deadline)


def parse_vnnlib(text: str, where: str = "the specification", *, deadline: float = math.inf) -> Specification:
    """The specification in a text. Everything that is not understood is an error: nothing is left out silently.

    deadline: by time.monotonic; after it, OutOfTime is raised.
    """
    declared = Declarations(where)
    whole, reader = Clause(), ClauseReader(where, deadline, declared.names)
    over = False
    for command in commands(text, where, deadline):
        if isinstance(command, str) or not command or not isinstance(command[0], str):
            raise VnnlibError(f"{where}: {show(command)} is not a command such as (assert ...).")
        if over:
            raise VnnlibError(f"{where}: {show(command)} comes after (exit), where nothing counts.")
        match command[0]:
            case "vnnlib-version":
                reader.equal = declared.second = _is_second(command, where)
                if declared.second and (reader.highest or declared.single):  # in names that 2.0 does not have
                    raise VnnlibError(f"{where}: {show(command)} comes after commands of version 1.0.")
            case "declare-network" if reader.equal:
                declared.declare_network(command)
            case "declare-const" | "declare-fun" if not reader.equal:
                declared.declare(command)
            case "assert":
                if len(command) != 2:
                    raise VnnlibError(f"{where}: {show(command)} must assert one formula.")
                reader.add(command[1], whole)
            case known if known not in IGNORED:
                version = "2.0" if reader.equal else "1.0"
                raise VnnlibError(f"{where}: the command {show(command)} is not part of VNNLIB {version}.")
        over = command[0] == "exit"
    inputs, outputs = declared.count("X"), declared.count("Y")
    _check_names(reader, whole, inputs, outputs)
    check(whole, inputs, where)

    def expand(until: float) -> Iterator[Region]:
        return regions_of(cases(whole, inputs, until), outputs, where)

    return Specification(inputs, outputs, expand, declared.tensor("X"), declared.tensor("Y"))


def _is_second(command: list[Expression], where: str) -> bool:
    """(vnnlib-version <2.0>): whether it is version 2, and not 1."""
    version = str(command[1]).strip("<>") if len(command) == 2 else ""
    if version not in ("1.0", "2.0"):
        raise VnnlibError(f"{where}: {show(command)}: only versions <1.0> and <2.0> are supported.")
    return version == "2.0"


def _check_names(reader: ClauseReader, whole: Clause, inputs: int, outputs: int) -> None:
    """What is bounded must be declared; and a file about inputs alone has probably lost its end."""
    for letter, count, verb in (("X", inputs, "bounds"), ("Y", outputs, "constrains")):
        highest = reader.highest.get(letter, -1)
        if highest >= count:
            raise VnnlibError(f"{reader.where} {verb} {letter}_{highest}, which it does not declare.")
    if "Y" not in reader.highest and whole.is_possible:
        raise VnnlibError(f"{reader.where} says nothing about the outputs, so every input would violate it.")
