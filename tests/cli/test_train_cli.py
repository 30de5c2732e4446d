"""lipgraft train and lipgraft attack, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
import yaml

from lipgraft import models
from lipgraft.cli import attack as attack_command
from lipgraft.cli import execute
from lipgraft.cli import train as train_command
from lipgraft.cli.train_recipe import read_recipe
from lipgraft.errors import SettingsError
from lipgraft.training import preset

app = typer.Typer()
app.command("train", epilog=train_command.EPILOG)(train_command.train)
app.command("attack", epilog=attack_command.EPILOG)(attack_command.attack)

QUICK = ["pretrain-short", "--model", "digits-cnn", "--data", "digits", "--device", "cpu"]
QUICK += ["--set", "eps=0.1", "--set", "epochs=1", "--set", "batch=256", "--set", "grad-align=0"]


def run(*line: str) -> int:
    return execute(app, list(line))


def test_a_run_leaves_its_settings_and_a_checkpoint_that_can_be_attacked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert run("train", *QUICK, "--out", str(out), "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["checkpoint"] == str(out / "checkpoints" / "best.safetensors")
    assert printed["epochs"] == 1
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert (config["train"]["eps"], config["train"]["batch"], config["data"]) == (0.1, 256, "digits")

    assert run("train", *QUICK, "--out", str(out)) == 1
    assert "--resume" in capsys.readouterr().err
    assert run("train", *QUICK, "--out", str(out), "--resume") == 0
    assert "best epoch" in capsys.readouterr().out

    line = ["attack", printed["checkpoint"], "--data", "digits", "--eps", "1/10", "--count", "40", "--steps", "3"]
    assert run(*line, "--restarts", "2", "--device", "cpu", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["images"] == 40
    assert report["sa"] >= report["ra"]["1"] >= report["ra"]["2"] == len(report["survivors"]) / 40
    assert run(*line, "--device", "cpu") == 0
    assert "RA" in capsys.readouterr().out


def test_fine_tuning_starts_at_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models.save(models.build("digits-cnn", "digits", seed=5), tmp_path / "start.safetensors")
    line = ["finetune", "--start", str(tmp_path / "start.safetensors"), "--data", "digits", "--device", "cpu"]
    assert run("train", *line, "--set", "epochs=0", "--out", str(tmp_path / "run")) == 0
    capsys.readouterr()
    end = models.load(tmp_path / "run" / "checkpoints" / "best.safetensors")
    assert models.fingerprint(end) == models.fingerprint(models.build("digits-cnn", "digits", seed=5))


def test_a_recipe_goes_on_top_of_its_preset(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "preset: finetune\ndata: mnist\nmodel: conv-big\ntrain: {epochs: 7, eps: 1/10, milestones: [3, 5]}\n"
    )
    recipe = read_recipe(str(path), {"data": "svhn"}, {"l1": "1e-4"})
    assert (recipe.data, recipe.model) == ("svhn", "conv-big")
    settings = recipe.train
    assert (settings.epochs, settings.eps, settings.milestones, settings.l1) == (7, 0.1, (3, 5), 1e-4)
    assert settings.lr == preset("finetune").lr
    path.write_text("train: {epoch: 7}\n")
    with pytest.raises(SettingsError, match=r"Did you mean 'train\.epochs'"):
        read_recipe(str(path), {}, {})


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["train", "pretrian"], "Did you mean 'pretrain'"),
        (["train", *QUICK, "--set", "lr=0"], "lr must be"),
        (["train", *QUICK, "--set", "lr=.nan"], "lr must be"),
        (["train", *QUICK, "--set", "eps=8"], "8/255, not 8"),
        (["train", *QUICK, "--set", "batch=100000"], "larger than"),
        (["train", *QUICK, "--set", "lr"], "NAME=VALUE"),
        (["train", "nowhere.yaml"], "cannot be read"),
        (["train", "{tmp}/recipe.yaml"], "looks like a recipe for `lipgraft run`"),
        (["attack", "nowhere.safetensors", "--data", "digits", "--eps", "0.1"], "there is no checkpoint"),
        (["attack", "nowhere.safetensors", "--data", "digits", "--eps", "nan"], "eps must be"),
    ],
)
def test_mistakes_are_one_line_and_an_exit_code(
    line: list[str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rest = ["--out", str(tmp_path / "run")] if line[0] == "train" else []
    (tmp_path / "recipe.yaml").write_text("name: x\nmodels: [{name: a}]\n")
    assert run(*(part.replace("{tmp}", str(tmp_path)) for part in line), *rest) != 0
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_an_attack_tells_the_steps_that_it_took(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models.save(models.build("digits-cnn", "digits", seed=0), tmp_path / "net.safetensors")
    line = ["attack", str(tmp_path / "net.safetensors"), "--data", "digits", "--eps", "0.1", "--device", "cpu"]
    assert run(*line, "--method", "fgsm", "--steps", "50", "--count", "1") == 0
    text = capsys.readouterr().out
    assert "fgsm, 1 step x 1 restart" in text
    assert "of 1 image " in text


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("train", "attack"):
        assert run(verb, "--help") == 0
        assert f"lipgraft {verb} " in capsys.readouterr().out
