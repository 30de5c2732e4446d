"""lipgraft lipschitz, on the digits that come with scikit-learn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import typer

from lipgraft import data, models
from lipgraft.cli import execute
from lipgraft.cli import lipschitz as verb
from lipgraft.sensitivity import NOTIONS, lipschitz


@pytest.fixture
def commands() -> typer.Typer:
    app = typer.Typer()
    app.command("lipschitz", epilog=verb.EPILOG)(verb.lipschitz)
    app.callback()(lambda: None)
    return app


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    models.save(models.build("digits-cnn", "digits", seed=0), path)
    return path


def test_the_table_has_every_notion_in_both_units(
    commands: typer.Typer, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["lipschitz", str(checkpoint), "--data", "digits", "--eps", "0.01", "--count", "2", "--device", "cpu"]
    assert execute(commands, line) == 0
    shown = capsys.readouterr().out
    assert all(shown.count(f" {name} ") == 2 for name in NOTIONS)
    assert shown.count(" pixel ") == shown.count(" normalised ") == len(NOTIONS)


def test_the_json_holds_what_the_function_returns(
    commands: typer.Typer, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["lipschitz", str(checkpoint), "--data", "digits", "--eps", "0.02", "--count", "4", "--method", "jacobian"]
    assert execute(commands, [*line, "--units", "normalised", "--bounds", "ibp", "--json", "--device", "cpu"]) == 0
    shown = json.loads(capsys.readouterr().out)
    (result,) = shown["results"]
    x = data.images(data.load("digits").x_test[:4])
    expected = lipschitz(models.load(checkpoint), x, 0.02, units="normalised", bounds="ibp")
    assert result["values"] == pytest.approx(expected.tolist(), rel=1e-5)
    assert result["mean"] == pytest.approx(expected.mean().item(), rel=1e-5)
    assert result["median"] == pytest.approx(expected.double().quantile(0.5).item(), rel=1e-5)
    assert result["max"] == pytest.approx(expected.max().item(), rel=1e-5)
    assert shown["indices"] == [0, 1, 2, 3]


def test_only_correctly_classified_images_count_when_asked(
    commands: typer.Typer, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digits, model = data.load("digits"), models.load(checkpoint)
    with torch.no_grad():
        right = model(data.images(digits.x_test[:100])).argmax(1) == digits.y_test[:100]
    assert 0 < int(right.sum()) < 100
    line = ["lipschitz", str(checkpoint), "--data", "digits", "--eps", "0", "--count", "100", "--correct", "--json"]
    assert execute(commands, [*line, "--method", "interval-jacobian", "--units", "pixel", "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["indices"] == right.nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("options", "message"), [(["--method", "jacobi"], "'jacobian'"), (["--units", "pixels"], "'pixel'")]
)
def test_an_unknown_name_is_one_line(
    commands: typer.Typer, checkpoint: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert execute(commands, ["lipschitz", str(checkpoint), "--data", "digits", "--eps", "0.1", *options]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: unknown")
    assert message in error
    assert error.count("\n") == 1
