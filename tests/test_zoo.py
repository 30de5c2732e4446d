"""The model zoo: the cards are true of the files, and the networks prove what they promise."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import lipgraft as lg
from lipgraft.cli import main
from lipgraft.errors import CheckpointError
from lipgraft.settings import check_eps
from lipgraft.verification import AttackSettings, Limits, OptimiseSettings, VerifySettings

ROOT = Path(__file__).parents[1]
NAMES = sorted(card.stem for card in (ROOT / "zoo").glob("*.yaml"))
LIMIT = 12 * 2**20  # bytes of one checkpoint; all together 60 MiB


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIPGRAFT_ZOO", raising=False)
    monkeypatch.chdir(ROOT)


def images(data: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The first ten test images of a data set, and their labels."""
    with np.load(ROOT / "tests" / "images" / f"{data}-test-0-9.npz") as file:
        return lg.data.images(torch.from_numpy(file["x"])), torch.from_numpy(file["y"]).long()


def test_there_is_a_network_of_each_kind_and_none_is_large() -> None:
    kinds = {"cnn-b-cifar10-2-255", "conv-big-cifar10-2-255", "resnet4b-cifar10-2-255"}
    assert kinds | {"conv-big-mnist-0.1", "conv-big-svhn-2-255"} <= set(NAMES)
    sizes = [file.stat().st_size for file in (ROOT / "zoo").glob("*.safetensors")]
    assert len(sizes) == len(NAMES)
    assert max(sizes) < LIMIT
    assert sum(sizes) < 5 * LIMIT


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", NAMES)
def test_ten_images_of_each_network_get_verdicts_that_fit_its_card(name: str) -> None:
    card = lg.models.zoo_card(name)
    model = lg.models.load(f"zoo/{name}")
    x, y = images(card.data)
    eps = check_eps(card.eps)
    settings = VerifySettings(
        limits=Limits(max_subproblems=8),
        attack=AttackSettings(steps=10, restarts=1),
        optimise=OptimiseSettings(refine="none"),
    )
    verdicts = lg.verify(model, x, y, eps, settings=settings)
    proved = [v.status == "verified" for v in verdicts]
    assert sum(proved) >= (4 if "conv-big" in name else 3), [(v.status, v.reason) for v in verdicts]
    assert not any(v.status == "error" for v in verdicts)
    wrong = [v.method == "misclassified" for v in verdicts]
    assert wrong == (model(x).argmax(1) != y).tolist()
    noise = torch.empty(20, *x.shape).uniform_(-eps, eps, generator=torch.Generator().manual_seed(0))
    answers = model((x + noise).clamp(0, 1).flatten(0, 1)).argmax(1).view(20, -1)
    assert bool((answers == y)[:, torch.tensor(proved)].all())


def test_a_damaged_checkpoint_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for suffix in (".yaml", ".safetensors"):
        shutil.copy(ROOT / "zoo" / f"resnet4b-cifar10-2-255{suffix}", tmp_path)
    monkeypatch.setenv("LIPGRAFT_ZOO", str(tmp_path))
    lg.models.load("zoo/resnet4b-cifar10-2-255")
    weights = tmp_path / "resnet4b-cifar10-2-255.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(CheckpointError, match="not the file that its card describes"):
        lg.models.load("zoo/resnet4b-cifar10-2-255")


def test_unknown_names_and_a_missing_zoo_are_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CheckpointError, match=r"conv-big-mnist-0\.1"):
        lg.models.load("zoo/conv-big-mnist")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIPGRAFT_ZOO", str(tmp_path / "nowhere"))
    assert main(["zoo", "list"]) == 0
    assert f"LIPGRAFT_ZOO is {tmp_path / 'nowhere'}, which holds no networks." in capsys.readouterr().out
    with pytest.raises(CheckpointError, match="LIPGRAFT_ZOO"):
        lg.models.load("zoo/conv-big-mnist-0.1")


def test_the_command_lists_and_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in listed] == NAMES
    assert main(["zoo", "list"]) == 0
    assert "zoo/cnn-b-cifar10-2-255" in capsys.readouterr().out
    assert main(["zoo", "show", "zoo/conv-big-mnist-0.1"]) == 0
    assert "lipgraft verify zoo/conv-big-mnist-0.1 --data mnist --eps 0.1" in capsys.readouterr().out
