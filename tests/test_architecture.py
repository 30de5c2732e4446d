"""The order of the rooms: who may import whom, what engines leave to others; and the walks through them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import lipgraft

PACKAGE = Path(lipgraft.__file__).parent

# A room imports its own floor and the floors above it, whatever the kind of import: plain, inside a function, or under
# TYPE_CHECKING.
ORDER: tuple[tuple[str, ...], ...] = (
    (
        "version",
        "errors",
        "settings",
        "files",
        "locking",
        "yaml_text",
        "rounding",
        "cuda_graph",
        "source",
        "interrupts",
        "svg",
        "display",
        "draws",
    ),
    ("checker",),
    ("activations",),
    ("network",),
    ("inputs", "box"),
    ("bounds",),
    ("sensitivity",),
    ("data",),
    ("attacks",),
    ("grafting",),
    ("models",),
    ("training",),
    ("verification",),
    ("interop",),
    ("report",),
    ("progress",),
    ("runs",),
    ("bench",),
    ("cluster",),
    ("cli",),
)
FLOOR = {room: floor for floor, rooms in enumerate(ORDER) for room in rooms}
ENGINES = ("activations", "network", "bounds", "sensitivity", "attacks", "grafting", "training", "verification")
START = ("__init__", "__main__")
"""The package's own front, which sees every room."""


def sources(*rooms: str) -> list[Path]:
    """The files of these rooms, or of all."""
    return [file for file in sorted(PACKAGE.rglob("*.py")) if not rooms or room_of(file) in rooms]


def short(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def room_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def imports(file: Path) -> list[tuple[str, int]]:
    """(dotted module, line) of everything that a file imports; names out of a package count as its modules."""
    found = []
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno} is a relative import"
            assert node.module is not None
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            found.append((ast.unparse(node.args[0]).strip("'"), node.lineno))
    return found


def test_every_room_has_its_place_in_the_order() -> None:
    assert {room_of(file) for file in sources()} - set(FLOOR) == set(START)


@pytest.mark.parametrize("room", FLOOR)
def test_a_room_imports_only_what_is_above_it(room: str) -> None:
    wrong = []
    for file in sources(room):
        for module, line in imports(file):
            package, _, rest = module.partition(".")
            if package == "lipgraft" and FLOOR[rest.partition(".")[0]] > FLOOR[room]:
                wrong.append(f"{short(file)}:{line} imports {module}")
    assert not wrong


def test_the_checker_shares_no_code_with_what_it_checks() -> None:
    mine = {module for file in sources("checker") for module, _ in imports(file)}
    shared = {
        module for module in mine if module.startswith("lipgraft.") and not module.startswith("lipgraft.checker.")
    }
    assert shared == {"lipgraft.errors.LipgraftError"}
    assert {module.partition(".")[0] for module in mine} - set(sys.stdlib_module_names) == {
        "lipgraft",
        "numpy",
        "onnx",
        "google",
    }
    users = {
        room_of(file) for file in sources() for module, _ in imports(file) if module.startswith("lipgraft.checker")
    }
    assert users == {"checker", "cli", "runs"}


def test_engines_call_back_instead_of_printing() -> None:
    printing = [
        f"{short(file)}:{node.lineno} prints"
        for file in sources(*ENGINES)
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print"
    ]
    drawing = [
        f"{short(file)}:{line} imports {module}"
        for file in sources(*ENGINES)
        for module, line in imports(file)
        if module.partition(".")[0] in ("rich", "tqdm", "typer")
    ]
    assert not printing + drawing


def test_nothing_is_read_from_the_repository() -> None:
    """The package is whole in itself: no path leads from one of its files to a folder above it."""
    assert not [
        f"{short(file)}:{node.lineno}"
        for file in sources()
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.Attribute) and node.attr == "parents" and "__file__" in ast.unparse(node)
    ]


def test_only_the_cluster_knows_of_ray() -> None:
    users = {short(file) for file in sources() for module, _ in imports(file) if module.partition(".")[0] == "ray"}
    assert users == {"cluster/connection.py"}


def test_the_public_face_leaves_the_optional_and_the_slow_alone() -> None:
    heavy = {"onnx", "onnxruntime", "matplotlib", "ray", "sklearn", "pooch", "rich"}
    code = "import sys, lipgraft as lg; lg.data.load, lg.models.build, lg.Box, lg.interop"
    code += f"; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


WALKS = {"Walk 1": 20, "Walk 2": 10, "Walk 3": 5}
"""At most so many files on the way: half of what they were before the rooms were laid out."""


def told(walk: str) -> str:
    """What docs/architecture.md says of a walk."""
    text = (Path(__file__).parents[1] / "docs/architecture.md").read_text(encoding="utf-8")
    return text.partition(f"### {walk}:")[2].partition("\n#")[0]


def steps_of(walk: str) -> dict[str, list[str]]:
    """The files of a walk, each with the functions that it names there."""
    rows = re.findall(r"^\| \d+ \| (.+?) \| `([\w/]+\.py)` \|", told(walk), re.MULTILINE)
    assert len(rows) == len(re.findall(r"^\| \d", told(walk), re.MULTILINE)), "a step has no file"
    return {file: re.findall(r"`([\w.]+)`", functions) for functions, file in rows}


def defined(file: Path) -> set[str]:
    """Functions, classes and annotated constants of a file, and `Class.method`."""
    found = set()
    for node in parsed(file).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_passes_few_files_and_its_functions_are_there(walk: str) -> None:
    steps = steps_of(walk)
    assert all(steps.values())
    assert not [(name, file) for file, names in steps.items() for name in set(names) - defined(PACKAGE / file)]
    assert 0 < len(steps) <= WALKS[walk]
    assert f"\n{len(steps)} files. " in told(walk)
