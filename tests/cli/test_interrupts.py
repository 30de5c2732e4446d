"""Ctrl-C while modules are being imported: it waits, and is one line."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from lipgraft.cli.common import loading
from lipgraft.interrupts import held_back

# A process that gets Ctrl-C when it begins to import a module, without a clock.
SCRIPT = """
import signal, sys

wanted = sys.argv.pop(1)

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Finder())
from lipgraft.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("block", [held_back, loading])
def test_ctrl_c_waits_for_the_end_of_the_block_and_is_not_lost(block: object) -> None:
    def work() -> None:
        with block():  # type: ignore[operator]
            for _ in range(2):
                signal.raise_signal(signal.SIGINT)
                steps.append("on")

    before, steps = signal.getsignal(signal.SIGINT), list[str]()
    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == ["on", "on"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_block_without_ctrl_c_leaves_everything_as_it_was() -> None:
    before = signal.getsignal(signal.SIGINT)
    with held_back():
        pass
    assert signal.getsignal(signal.SIGINT) is before


def test_another_thread_may_load_too() -> None:
    def load() -> None:
        with held_back():
            done.append(True)

    done: list[bool] = []
    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    assert done == [True]


@pytest.mark.parametrize("module", ["typer", "torch", "numpy"])
def test_ctrl_c_during_the_imports_of_a_command_is_one_line(module: str) -> None:
    line = [module, "verify", "none.safetensors", "--data", "digits", "--eps", "0.1"]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *line], capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr.startswith("interrupted.")
    assert done.stderr.count("\n") == 1
