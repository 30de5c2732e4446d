"""`make test` and `make test-long`: together every test, and no area without a test in the first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiers import TIERS

ROOT = Path(__file__).parent.parent


def test_the_two_commands_choose_by_one_mark_and_continuous_integration_runs_both() -> None:
    chosen = [line.partition("-m ")[2] for line in (ROOT / "Makefile").read_text().splitlines() if "$(PYTEST)" in line]
    assert chosen == ['"not long"', "long"]
    assert {"make test", "make test-long"} <= set((ROOT / ".ci/run").read_text().splitlines())


def test_no_file_has_long_tests_alone(request: pytest.FixtureRequest) -> None:
    assert [path.name for path, tiers in request.config.stash[TIERS].items() if tiers == {True}] == []
