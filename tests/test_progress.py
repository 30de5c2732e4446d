"""Progress where nobody sees a bar: a line now and then in a pipe, one line that renews itself in a notebook."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import lipgraft as lg
from lipgraft.progress import bar, duration


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_pipe_gets_few_lines_that_tell_the_cost_before_it_is_paid(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with bar("scoring", place="this CPU", hint="--count takes fewer", clock=clock) as advance:
        for done in range(1, 31):
            clock.now += 10
            advance(done, 30)
    first, *rest = capsys.readouterr().err.splitlines()
    assert first == "scoring: 1 of 30, about 5 minutes left on this CPU (--count takes fewer)"
    assert rest[0] == "scoring: 4 of 30, about 4 minutes left on this CPU"
    assert rest[-1] == "scoring: done after 5 minutes"
    assert len(rest) == 10


def test_what_was_done_before_does_not_count_as_speed(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with bar("training", clock=clock) as advance:
        for done in range(501, 511):
            clock.now += 3
            advance(done, 1000)
    assert "about 25 minutes left" in capsys.readouterr().err


def test_short_work_and_hidden_work_print_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with bar("short", clock=clock) as advance:
        clock.now += 4
        advance(1, 1)
    with bar("hidden", show=False, clock=clock) as advance:
        clock.now += 400
        advance(1, 2, {"epoch": 1, "loss": 0.5})
    assert capsys.readouterr() == ("", "")


def test_the_last_epoch_stands_in_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with bar("training", clock=clock) as advance:
        clock.now += 60
        advance(5, 10, {"epoch": 3, "loss": 0.25, "sa": 0.9, "ra": 0.8})
    assert "5 of 10, epoch 3  loss 0.250  SA 90.0%  RA 80.0%, about 60 seconds left" in capsys.readouterr().err


def test_a_notebook_gets_one_line_that_renews_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    with bar("verifying") as advance:
        lg.verify(nn.Linear(2, 2), torch.rand(3, 2), torch.zeros(3, dtype=torch.long), 0.01, progress=advance)
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert out.split("\r")[-1].startswith("verifying: 3 of 3")


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "1 second"), (40, "40 seconds"), (1380, "23 minutes"), (12600, "3.5 hours")]
)
def test_durations_are_as_exact_as_an_estimate_deserves(seconds: float, words: str) -> None:
    assert duration(seconds) == words
