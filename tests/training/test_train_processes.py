"""One run in several processes: the same result as one process, and a rank that is killed loses no epoch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from shutil import copytree

import pytest
import torch
from torch import Tensor

from lipgraft import models
from lipgraft.attacks.ascent import random_start
from lipgraft.cli import main
from lipgraft.data.dataset import crop_flip
from lipgraft.draws import PartGenerator
from lipgraft.errors import SettingsError
from lipgraft.training.processes import Processes

TOLERANCE = 1e-3
"""Of weights up to about 1 and losses up to about 2: the mean of two halves of a batch is rounded otherwise than the
mean of the whole.
"""


def epochs_done(run: Path) -> int:
    file = run / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def assert_like(run: Path, alone: Path) -> None:
    start = models.build("digits-cnn", "digits", seed=0).state_dict()
    one, two = (models.load(folder / "checkpoints" / "last.safetensors").state_dict() for folder in (alone, run))
    assert max(float((one[name] - start[name]).abs().max()) for name in start) > 10 * TOLERANCE
    torch.testing.assert_close(two, one, rtol=0, atol=TOLERANCE)
    first, second = (
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()] for folder in (alone, run)
    )
    assert [record["epoch"] for record in first] == [record["epoch"] for record in second]
    losses = (torch.tensor([record["loss"] for record in side]) for side in (first, second))
    torch.testing.assert_close(*losses, rtol=0, atol=TOLERANCE)


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks up torchrun's children in /proc")
def test_two_processes_one_of_which_is_killed_train_as_one_does_whoever_resumes(tmp_path: Path) -> None:
    """With what is drawn at random, and what is remembered of every image, on the way."""
    settings = ("eps=0.05", "epochs=4", "batch=64", "lr=0.02", "objective=fgsm-pco", "grad_align=0.2")
    sets = [word for setting in settings for word in ("--set", setting)]
    line = ["train", "pretrain-short", "--model", "digits-cnn", "--data", "digits", "--device", "cpu", "--json", *sets]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "lipgraft", *line]

    assert main([*line, "--out", str(tmp_path / "alone")]) == 0
    both = tmp_path / "both"
    process = subprocess.Popen([*torchrun, "--out", str(both)], stderr=subprocess.PIPE, text=True)
    while epochs_done(both) < 1 and process.poll() is None:
        time.sleep(0.01)
    ranks = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(ranks[-1]), signal.SIGKILL)
    error = process.communicate(timeout=60)[1]
    assert process.returncode != 0, error
    assert 1 <= epochs_done(both) < 4

    copytree(both, tmp_path / "one")
    assert main([*line, "--out", str(tmp_path / "one"), "--resume"]) == 0
    assert_like(tmp_path / "one", tmp_path / "alone")
    done = subprocess.run([*torchrun, "--out", str(both), "--resume"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["epochs"] == 4  # said once, by the first process
    assert_like(both, tmp_path / "alone")


def part(number: int) -> PartGenerator:
    generator = PartGenerator()
    generator.part, generator.parts = number, 3
    generator.manual_seed(0)
    return generator


def start(x: Tensor, generator: torch.Generator) -> Tensor:
    return random_start(x, 0.1, x - 1, x + 1, generator)


@pytest.mark.parametrize("draw", [crop_flip, start])
def test_the_parts_of_a_batch_draw_what_the_whole_batch_draws(draw) -> None:  # type: ignore[no-untyped-def]
    x = torch.rand(12, 1, 8, 8)
    whole = draw(x, torch.Generator().manual_seed(0))
    assert torch.equal(torch.cat([draw(x[4 * i : 4 * i + 4], part(i)) for i in range(3)]), whole)


def test_the_parts_of_a_batch_are_all_of_it_and_must_be_equal() -> None:
    numbers = list(range(12))
    assert [n for rank in range(3) for n in numbers[Processes(rank, 3).part(12)]] == numbers
    with pytest.raises(SettingsError, match="a batch of 16 cannot be shared by 3 processes"):
        Processes(0, 3).part(16)
