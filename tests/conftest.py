"""What every test shares: one thread, no network, no data of the user's, property tests that repeat exactly."""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# One thread, here and in the programs that tests start: the networks are so small that threads cost more than they
# give, and while all cores are busy they wait for one another. NumPy and PyTorch read it when they are imported.
os.environ["OMP_NUM_THREADS"] = "1"

import torch
from hypothesis import settings

from tiers import TIERS

# No deadline: how fast the machine is says nothing of whether the code is right.
settings.register_profile("lipgraft", deadline=None, derandomize=True)
settings.load_profile("lipgraft")

# A shell that runs the suite in the background makes it ignore Ctrl-C, which some tests send to programs of their own.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Cases of a sampled test are long, but for one in n; groups come first, which hold the tests that take longest."""
    counts = Counter[str]()
    for item in items:
        if (sampled := item.get_closest_marker("sampled")) is not None:
            function = item.nodeid.partition("[")[0]
            if counts[function] % sampled.args[0] != sampled.kwargs.get("first", 0):
                item.add_marker("long")
            counts[function] += 1
    config.stash[TIERS] = tiers = defaultdict(set)
    for item in items:
        tiers[item.path].add(item.get_closest_marker("long") is not None)
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


def pytest_collection_finish(session: pytest.Session) -> None:
    """A group that pytest-xdist does not see, as 3.8 with pytest 9.2, would make its fixture in every process."""
    if getattr(session.config.option, "loadgroup", False):
        groups = [item.nodeid for item in session.items if item.get_closest_marker("xdist_group")]
        if not all("@" in name for name in groups):
            raise pytest.UsageError("pytest-xdist ignores xdist_group with this version of pytest; see pyproject.toml.")
    # Thousands of tests and all that they import stay to the end; a collection of garbage need not look through them.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, without which all tests run in one process
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """All cases of a test function go to one process, as a group does.

    What they share is then made once, and pytest-xdist, which goes through all groups it has handed out whenever a test
    is done, has some hundreds of them instead of thousands.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class LoadFunctionScheduling(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return super()._split_scope(nodeid).partition("[")[0]

    return LoadFunctionScheduling(config, log)


def pytest_runtest_setup() -> None:
    """Weights that a test does not choose are the same in every run, whatever ran before."""
    torch.default_generator.manual_seed(0)  # torch.manual_seed notes for absent GPUs, too, who asked: a stack each time


@pytest.fixture(autouse=True, scope="session")
def _offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test downloads anything or reads the user's data."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIPGRAFT_OFFLINE", "1")
        patch.setenv("LIPGRAFT_DATA", str(tmp_path_factory.getbasetemp() / "no-data"))
        yield


@pytest.fixture
def generator() -> torch.Generator:
    """A seeded generator on the CPU."""
    return torch.Generator().manual_seed(0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty data root."""
    folder = tmp_path / "data"
    folder.mkdir()
    return folder
