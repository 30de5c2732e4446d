"""Ctrl-C, wherever it comes."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from lipgraft.cluster.interrupts import Interrupts


@pytest.fixture(autouse=True)
def _usual() -> Iterator[None]:
    """Python's own handler, whatever cluster other tests have open in this process."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_python_drops_in_a_destructor_still_ends_the_work() -> None:
    class Interrupted:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    with Interrupts() as interrupts:
        interrupts.check()
        Interrupted()
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()


def test_an_interrupt_elsewhere_is_what_it_always_is_and_the_handler_goes_with_the_block() -> None:
    with pytest.raises(KeyboardInterrupt), Interrupts():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
