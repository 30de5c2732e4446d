"""Starting up: what answers without PyTorch, and what brings it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable

import pytest

from lipgraft import grafting, runs, sensitivity, training
from lipgraft.attacks import ATTACKS
from lipgraft.cli import names

SLOW = {"torch", "numpy", "scipy", "onnx", "onnxruntime", "sklearn", "matplotlib"}


def loaded(statement: str) -> set[str]:
    """The slow ones among the modules that a fresh process has imported after a statement."""
    code = f"import sys\n{statement}\nprint('|', *({SLOW} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("|")[2].split())


def test_importing_the_package_and_its_command_line_brings_nothing_slow() -> None:
    assert not loaded("import lipgraft, lipgraft.cli; lipgraft.__version__, lipgraft.LipgraftError, dir(lipgraft)")


LINES = {
    "": 0,
    "--help": 0,
    "--version": 0,
    "verify --help": 0,
    "graft --help": 0,
    "bench train --help": 0,
    "nonsense": 2,
    "verify": 2,
    "verify --nonsense": 2,
    "verify net.safetensors --data digits --eps 0.1 --count many": 2,
    "verify net.safetensors --data digits --eps -1": 1,
}


def test_help_and_wrong_usage_are_answered_without_anything_slow() -> None:
    """One process for all: what one line brought would still be there at the end."""
    calls = (f"assert lipgraft.cli.main({line.split()}) == {code}, {line!r}" for line, code in LINES.items())
    assert not loaded("\n".join(["import lipgraft.cli", *calls]))


def test_shells_complete_commands_and_options_without_anything_slow() -> None:
    environment = "{'_LIPGRAFT_COMPLETE': 'complete_bash', 'COMP_WORDS': 'lipgraft veri', 'COMP_CWORD': '1'}"
    code = f"import os, sys; os.environ.update({environment}); import lipgraft.cli, atexit\n"
    code += f"atexit.register(lambda: print('|', *({SLOW} & set(sys.modules)))); lipgraft.cli.main([])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["verify", "|"]


@pytest.mark.long
def test_a_verb_brings_pytorch_whose_threads_wait_asleep() -> None:
    asleep = "import os; assert os.environ['OMP_WAIT_POLICY'] == 'PASSIVE'"
    clean = "import os; os.environ.pop('OMP_WAIT_POLICY', None)"
    assert "torch" in loaded(f"{clean}; import lipgraft; {asleep}; assert 'torch' not in sys.modules; lipgraft.bound")


@pytest.mark.long
def test_verifying_leaves_alone_what_few_properties_need() -> None:
    assert loaded("from lipgraft.interop import verify_vnnlib") == {"torch", "numpy"}


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    assert loaded("import lipgraft; assert not hasattr(lipgraft, 'nonsense')") == set()


@pytest.mark.long
def test_onnx_files_are_known_to_whoever_imports_only_the_models() -> None:
    loaded(
        "from lipgraft.models import build, load, save; import tempfile, pathlib\n"
        "assert 'lipgraft.interop' not in sys.modules\n"
        "file = pathlib.Path(tempfile.mkdtemp()) / 'net.onnx'\n"
        "save(build('digits-cnn', 'digits'), file); load(file); file.unlink(); file.parent.rmdir()"
    )


@pytest.mark.parametrize(
    ("listed", "registry"),
    [
        (names.ATTACKS, sorted(ATTACKS)),
        (names.CRITERIA, sorted(grafting.CRITERIA)),
        (names.NOTIONS, sorted(sensitivity.NOTIONS)),
        (names.PRESETS, training.PRESETS),
        (names.RECIPES, runs.recipe_names()),
        (names.UNITS, sorted(sensitivity.UNITS)),
    ],
)
def test_help_lists_the_names_of_the_registry(listed: tuple[str, ...], registry: Iterable[str]) -> None:
    assert listed == tuple(registry)
