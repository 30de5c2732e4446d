"""The command line's frame: data commands, shared options, and errors as one line with the right exit code."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import typer

import lipgraft
from command_line import every_command, failure
from lipgraft.cli import app, execute, main
from lipgraft.cli.common import (
    DeviceOption,
    EpsOption,
    SeedOption,
    example,
    parse_set,
    print_json,
    read_yaml,
    resolve_device,
)
from lipgraft.data import CATALOGUE
from lipgraft.errors import CheckpointError, SettingsError, counted
from lipgraft.models import build, load, save

# The frame


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"lipgraft {lipgraft.__version__}\n"


def test_no_arguments_and_help_print_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    for line in ([], ["--help"]):
        assert main(line) == 0
        assert "Usage: lipgraft" in capsys.readouterr().out


def test_python_m_lipgraft_is_the_same_command() -> None:
    done = subprocess.run([sys.executable, "-m", "lipgraft", "data", "check", "x"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: unknown data set 'x'.")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("path", every_command(typer.main.get_command(app)), ids=" ".join)
def test_every_command_has_help_with_an_example(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*path, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Example" in text
    assert f"lipgraft {' '.join(path)}" in text.split("Example", 1)[1]


@pytest.mark.parametrize(
    "line", [["bogus"], ["--bogus"], ["data"], ["data", "check"], ["data", "check", "digits", "x"]]
)
def test_a_wrong_usage_is_one_line_and_exit_code_2(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line) == 2
    assert "--help" in failure(capsys)


def test_debug_anywhere_on_the_line_shows_the_trace(capsys: pytest.CaptureFixture[str]) -> None:
    for line in (["--debug", "data", "check", "x"], ["data", "check", "x", "--debug"]):
        assert main(line) == 1
        error = capsys.readouterr().err
        assert "Traceback" in error
        assert error.splitlines()[-1].startswith("error: unknown data set 'x'.")


def test_ctrl_c_ends_with_130_and_a_hint_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    commands = typer.Typer()

    @commands.command()
    def wait() -> None:
        raise KeyboardInterrupt

    assert execute(commands, []) == 130
    error = capsys.readouterr().err
    assert "run the same command again to continue" in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize("line", [["check", "proofs"], ["zoo", "list"], ["attack"], ["data", "check", "digits"]])
def test_ctrl_c_promises_nothing_where_nothing_is_kept(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    commands = typer.Typer()

    @commands.command(context_settings={"ignore_unknown_options": True})
    def wait(rest: list[str]) -> None:
        raise KeyboardInterrupt

    assert execute(commands, line) == 130
    assert capsys.readouterr().err == "interrupted.\n"


def test_a_device_that_fails_is_one_line_with_a_hint_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    commands = typer.Typer()

    @commands.command()
    def fail() -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nSearch for it.")

    assert execute(commands, []) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: the device failed: CUDA error: an illegal memory access was encountered. ")
    assert "run the same command again to continue" in error
    assert len(error.strip().splitlines()) == 1


def test_an_error_that_is_not_the_users_keeps_its_trace() -> None:
    commands = typer.Typer()

    @commands.command()
    def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        execute(commands, [])


# Shared options, on a command of the test's own


@pytest.fixture
def commands() -> typer.Typer:
    commands = typer.Typer()

    @commands.command(epilog=example("lipgraft probe --eps 2/255"))
    def probe(eps: EpsOption = 0.1, seed: SeedOption = 1, device: DeviceOption = "auto") -> None:
        print_json({"eps": eps, "seed": seed, "device": resolve_device(device).type})

    @commands.command()
    def read(path: Path) -> None:
        print_json({"name": load(path).spec.name})

    return commands


@pytest.mark.parametrize(("text", "value"), [("2/255", 2 / 255), ("0", 0.0), ("0.3", 0.3), ("1", 1.0)])
def test_eps_is_a_number_or_a_fraction(
    text: str, value: float, commands: typer.Typer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(commands, ["probe", "--eps", text, "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out) == {"eps": value, "seed": 1, "device": "cpu"}


def test_options_left_out_have_their_defaults(commands: typer.Typer, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(commands, ["probe"]) == 0
    assert json.loads(capsys.readouterr().out)["eps"] == 0.1


@pytest.mark.parametrize("text", ["-1", "-2/255", "nan", "inf", "two", "1/0", "", "8", "1.01"])
def test_a_wrong_eps_is_one_line_and_exit_code_1(
    text: str, commands: typer.Typer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(commands, ["probe", f"--eps={text}"]) == 1
    failure(capsys)


def test_a_wrong_seed_is_one_line(commands: typer.Typer, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(commands, ["probe", "--seed", "-1"]) == 2
    assert "--seed" in failure(capsys)


@pytest.mark.parametrize("device", ["tpu", "meta", "cuda:99"])
def test_a_device_that_is_not_there_is_a_settings_error(device: str) -> None:
    with pytest.raises(SettingsError):
        resolve_device(device)


def test_auto_takes_the_gpu_exactly_when_there_is_one() -> None:
    assert (resolve_device("auto").type == "cuda") == torch.cuda.is_available()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda c: c[:-100], "truncated"),
        (lambda c: c.replace(b"digits-cnn", b"dogs-cnn"), "unknown architecture"),
        (lambda c: pickle.dumps({"weight": np.ones(3)}), "is a pickle"),
    ],
)
def test_a_wrong_checkpoint_is_one_line_and_exit_code_1(
    damage: object, words: str, tmp_path: Path, commands: typer.Typer, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.safetensors"
    save(build("digits-cnn", "digits", seed=0), path)
    content = path.read_bytes()
    broken: bytes = damage(content)  # type: ignore[operator]
    if words == "unknown architecture":  # the header became shorter
        length = int.from_bytes(content[:8], "little") - 2
        broken = length.to_bytes(8, "little") + broken[8:]
    path.write_bytes(broken)
    assert execute(commands, ["read", str(path)]) == 1
    assert words in failure(capsys)


def test_of_a_folder_a_checkpoint_that_is_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"such as .*/model\.safetensors\."):
        load(tmp_path)
    for name in ("last", "best"):
        save(build("digits-cnn", "digits", seed=0), tmp_path / "checkpoints" / f"{name}.safetensors")
    with pytest.raises(CheckpointError, match=r"such as .*/checkpoints/best\.safetensors\."):
        load(tmp_path)


@pytest.mark.parametrize(("count", "words"), [(0, "0 leaves"), (1, "1 leaf"), (1200, "1,200 leaves")])
def test_one_is_not_many(count: int, words: str) -> None:
    assert counted(count, "leaf", "leaves") == words


def test_json_has_null_where_a_number_is_not_finite(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": float("nan"), "b": [1.0, float("inf")], "c": ("x",)})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [1.0, None], "c": ["x"]}


@pytest.mark.parametrize("content", ["a: [", "- 1\n- 2\n", "", "\t: x", b"\xff\xfe\x00", "a: &a [*a]", "a: &a {b: *a}"])
def test_a_file_that_is_no_mapping_in_yaml_is_a_settings_error(content: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SettingsError, match=r"recipe\.yaml") as caught:
        read_yaml(path)
    assert "\n" not in str(caught.value)


def test_a_missing_recipe_is_a_settings_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        read_yaml(tmp_path / "none.yaml")


def test_yaml_runs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("a: !!python/object/apply:os.system ['true']")
    with pytest.raises(SettingsError, match="not valid YAML"):
        read_yaml(path)


# lipgraft data


def test_data_list_names_every_data_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(rows) == set(CATALOGUE)
    assert rows["digits"] == {
        "name": "digits",
        "input_shape": [1, 8, 8],
        "classes": 10,
        "train": 1437,
        "test": 360,
        "present": True,
    }
    assert not rows["cifar10"]["present"]
    assert main(["data", "list"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in CATALOGUE)


def test_data_where_names_the_root_and_the_files(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "train_32x32.mat").write_bytes(b"")
    assert main(["data", "where", "svhn", "--data-root", str(root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "root": str(root),
        "datasets": {"svhn": {"files": ["train_32x32.mat", "test_32x32.mat"], "missing": ["test_32x32.mat"]}},
    }
    assert main(["data", "where", "--data-root", str(root)]) == 0
    text = capsys.readouterr().out
    assert text.startswith(str(root))
    assert "svhn: test_32x32.mat (missing)" in text
    assert "digits: comes with scikit-learn" in text


def test_data_check_says_how_missing_files_come(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LIPGRAFT_OFFLINE", raising=False)
    assert main(["data", "check", "cifar10", "--data-root", str(root)]) == 1
    assert "--download fetches it" in failure(capsys)


def test_data_check_reports_what_it_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "digits", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert sum(report["train"]) == 1437
    assert main(["data", "check", "digits"]) == 0
    assert "1437 training, 360 test" in capsys.readouterr().out


def test_missing_data_is_one_line_that_says_what_to_put_where(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "mnist", "--data-root", str(root)]) == 1
    line = failure(capsys)
    assert "MNIST/raw/train-images-idx3-ubyte" in line
    assert str(root) in line
    assert "LIPGRAFT_DATA" in line


def test_an_unknown_data_set_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "cifar11"]) == 1
    assert "Did you mean 'cifar10'?" in failure(capsys)


# --set


def test_set_reads_values_as_yaml_and_names_with_either_dash() -> None:
    pairs = ["pool=0.9", "lr-root = [2, 0]", "start=a=b", "eps=2/255", "off=false", "pool=0.8"]
    expected = {"pool": 0.8, "lr_root": [2, 0], "start": "a=b", "eps": "2/255", "off": False}
    assert parse_set(pairs) == expected
    assert parse_set(None) == {}


@pytest.mark.parametrize("pair", ["pool", "", "pool=[", "pool={"])
def test_set_refuses_what_is_no_pair(pair: str) -> None:
    with pytest.raises(SettingsError, match="--set") as caught:
        parse_set([pair])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        ["verify", "MODEL", "--eps", "0.1", "--out", "OUT"],
        ["attack", "MODEL", "--eps", "0.1"],
        ["graft", "MODEL", "--eps", "0.1", "--show"],
        ["lipschitz", "MODEL", "--eps", "0.1"],
        ["export", "MODEL", "--eps", "0.1", "--out", "OUT"],
        ["train", "finetune-short", "--start", "MODEL", "--out", "OUT"],
        ["bench", "verify", "MODEL", "--eps", "0.1"],
    ],
)
def test_a_checkpoint_for_other_data_is_refused_in_words(
    line: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "cnn-b.safetensors"
    save(build("cnn-b", "cifar10"), model)
    places = {"MODEL": str(model), "OUT": str(tmp_path / "out")}
    assert main([places.get(word, word) for word in (*line, "--data", "digits")]) == 1
    message = failure(capsys)
    assert "cnn-b for cifar10, images of 3x32x32 in 10 classes, but digits has images of 1x8x8" in message


def test_bench_verify_prints_speed_and_the_curve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, file = tmp_path / "digits.safetensors", tmp_path / "figures.json"
    save(build("digits-cnn", "digits", seed=1), model)  # untrained: right by chance, and then within a tiny radius
    line = ["bench", "verify", str(model), "--data", "digits", "--eps", "1e-5", "--count", "40", "--device", "cpu"]
    assert main([*line, "--timeout", "5", "--total-seconds", "60", "--json", str(file), "--set", "images=7"]) == 0
    out = capsys.readouterr().out
    assert json.loads(file.read_text())["settings"]["set"] == ["images=7"]
    figures = json.loads(file.read_text())["results"]
    assert figures["verified"] > 0
    assert f"{figures['verified']} after " in out.replace("\n", " ")
    for name in ("verified_of_survivors", "ms_without_branching", "subproblems_per_second"):
        assert name in out
