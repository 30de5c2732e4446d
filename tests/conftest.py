"""What every test shares: one thread, no network, no data of the user's, property tests that repeat exactly."""

from __future__ import annotations

import gc
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# No deadline: how fast the machine is says nothing of whether the code is right.
settings.register_profile("lipgraft", deadline=None, derandomize=True)
settings.load_profile("lipgraft")

# A shell that runs the suite in the background makes it ignore Ctrl-C, which some tests send to programs of their own.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

torch.set_num_threads(1)  # the networks here are so small that threads cost more than they give


def pytest_collection_finish(session: pytest.Session) -> None:
    """A group that pytest-xdist does not see, as 3.8 with pytest 9.2, would make its fixture in every process."""
    if getattr(session.config.option, "loadgroup", False):
        groups = [item.nodeid for item in session.items if item.get_closest_marker("xdist_group")]
        if not all("@" in name for name in groups):
            raise pytest.UsageError("pytest-xdist ignores xdist_group with this version of pytest; see pyproject.toml.")
    # Thousands of tests and all that they import stay to the end; a collection of garbage need not look through them.
    gc.collect()
    gc.freeze()


def pytest_runtest_setup() -> None:
    """Weights that a test does not choose are the same in every run, whatever ran before."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test downloads anything or reads the user's data."""
    monkeypatch.setenv("LIPGRAFT_OFFLINE", "1")
    monkeypatch.setenv("LIPGRAFT_DATA", str(tmp_path_factory.getbasetemp() / "no-data"))


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
