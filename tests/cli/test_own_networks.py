"""A network and data of one's own go through every command, by file and by function."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import lipgraft as lg
from command_line import failure
from lipgraft.cli import main

NET = """
import torch


def build():
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 24), torch.nn.BatchNorm1d(24), torch.nn.ReLU(), torch.nn.Linear(24, 10)
    )
"""
TRAIN = ["--set", "eps=0.02", "--set", "epochs=1", "--set", "batch=128", "--set", "grad-align=0", "--device", "cpu"]
RECIPE = """
name: own
data: mine.npz
network: mynet:build
eps: 0.02
pretrain: {preset: pretrain-short, epochs: 1, batch: 128, grad_align: 0}
calibration: {count: 40}
models:
  - name: ours
    graft: {ratio: 0.3}
attack: {steps: 2}
certify: {count: 5, verifier: {limits: {max_subproblems: 5}}}
lipschitz: {count: 3}
examples: 1
threads: 1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """mine.npz, mynet.py and flat.onnx, a network over vectors, in the current folder."""
    digits = lg.data.load("digits")
    arrays = {key: getattr(digits, key)[:400].numpy() for key in ("x_train", "y_train", "x_test", "y_test")}
    np.savez(tmp_path / "mine.npz", **arrays)
    (tmp_path / "mynet.py").write_text(NET)
    flat = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    lg.save(flat, tmp_path / "flat.onnx", input_shape=(64,))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*line: str) -> None:
    assert main(list(line)) == 0, line


@pytest.mark.sampled(2)
@pytest.mark.parametrize("network", ["mynet:build", "flat.onnx"])
def test_train_graft_train_verify_lipschitz_attack_and_export_take_ones_own(
    network: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about = ["--data", "mine.npz", "--eps", "0.02"]
    run("train", "pretrain-short", "--model", network, "--data", "mine.npz", *TRAIN, "--out", "base")
    run("graft", "base/checkpoints/best.safetensors", *about, "--count", "50", "--out", "g.safetensors")
    (folder / "mynet.py").unlink()  # from here on, the source is not needed
    run("train", "finetune-short", "--start", "g.safetensors", "--data", "mine.npz", *TRAIN, "--out", "tuned")
    tuned = "tuned/checkpoints/best.safetensors"
    run("verify", tuned, *about, "--count", "4", "--certificates", "proofs", "--device", "cpu")
    run("check", "proofs")
    run("lipschitz", tuned, *about, "--count", "3", "--method", "jacobian", "--device", "cpu")
    run("attack", tuned, *about, "--count", "5", "--steps", "2", "--device", "cpu")
    run("export", tuned, *about, "--indices", "0:2", "--out", "exported")
    assert "grafted" in capsys.readouterr().out
    assert (folder / "exported" / "net.onnx").is_file()


@pytest.mark.long
def test_a_recipe_takes_ones_own_and_notices_when_it_changes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "own.yaml").write_text(RECIPE)
    run("run", "own.yaml", "--device", "cpu")
    assert "adversarial training" in capsys.readouterr().err
    data = dict(np.load("mine.npz"))
    np.savez("mine.npz", **{**data, "x_train": 255 - data["x_train"]})
    run("run", "own.yaml", "--device", "cpu")
    first = next(line for line in capsys.readouterr().err.splitlines() if "adversarial training" in line)
    assert "done before" not in first


def test_a_graft_is_written_as_onnx_where_its_name_says_so(folder: Path) -> None:
    line = ["graft", "flat.onnx", "--data", "mine.npz", "--eps", "0.02", "--count", "20", "--out"]
    run(*line, "g.onnx")
    run(*line, "g.safetensors")
    x = torch.rand(3, 1, 8, 8)
    torch.testing.assert_close(lg.load("g.onnx")(x), lg.load("g.safetensors")(x), rtol=1e-4, atol=1e-5)


def test_what_scoring_will_cost_is_told_before_it_is_paid(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["graft", "flat.onnx", "--data", "mine.npz", "--eps", "0.02", "--count", "20", "--device", "cpu", "--show"]
    run(*line)
    assert "scoring neurons on" not in capsys.readouterr().err  # a second is not worth a word
    monkeypatch.setattr("lipgraft.cli.graft.DEAR", 0.0)
    run(*line)
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith("scoring neurons on 20 images: about 1 second on this CPU, or less")


def test_what_scoring_will_cost_counts_only_the_images_that_are_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lipgraft.cli.graft.DEAR", 0.0)
    run(*["graft", "flat.onnx", "--data", "mine.npz", "--eps", "0.02", "--count", "99999", "--device", "cpu", "--show"])
    assert "scoring neurons on 360 images" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            ["graft", "flat.onnx", "--data", "mine.npz", "--eps", "0.1", "--show", "--compare", "flat.onnx"],
            "flat.onnx is not grafted",
        ),
        (["graft", "flat.onnx", "--data", "test.npz", "--eps", "0.1", "--show"], "add x_train and y_train"),
        (["train", "pretrain", "--model", "flat.onnx", "--data", "test.npz"], "add x_train and y_train"),
        (["graft", "flat.onnx", "--data", "mine.npz", "--eps", "0.1", "--out", "g.pt"], "must end in .safetensors"),
        (["verify", "mynet:build", "--data", "cifar10.npz", "--eps", "0.1"], "there is no file cifar10.npz"),
        (
            ["verify", "big.onnx", "--data", "mine.npz", "--eps", "0.1"],
            "the images of mine are 1x8x8, but big.onnx takes inputs of 65",
        ),
        (["verify", "few.onnx", "--data", "mine.npz", "--eps", "0.1"], "has 2 classes, but mine has 10"),
        (["train", "finetune", "--start", "digits.safetensors", "--model", "cnn-b", "--data", "digits"], "contradict"),
        (["train", "pretrain", "--model", "cnn-bb", "--data", "mine.npz"], "Did you mean 'cnn-b'"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(
    line: list[str], sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrays = dict(np.load("mine.npz"))
    np.savez("test.npz", x_test=arrays["x_test"], y_test=arrays["y_test"])
    lg.save(nn.Linear(65, 10), "big.onnx", input_shape=(65,))
    lg.save(nn.Linear(64, 2), "few.onnx", input_shape=(64,))
    lg.save(lg.models.build("digits-cnn", "digits", seed=0), "digits.safetensors")
    assert main(line) == 1
    assert sentence in failure(capsys)


@pytest.mark.parametrize(
    ("network", "sentence"),
    [
        (
            "torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10), torch.nn.Softmax(1))",
            "Leave the softmax out",
        ),
        ("torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)).double()", "give model.float()"),
    ],
)
@pytest.mark.parametrize("option", ["--model", "--start"])
def test_what_cannot_be_trained_or_verified_is_refused_before_the_first_epoch(
    option: str, network: str, sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "wrong.py").write_text(f"import torch\n\n\ndef build():\n    return {network}\n")
    assert (
        main(["train", "pretrain-short", option, "wrong.py:build", "--data", "mine.npz", *TRAIN, "--out", "out"]) == 1
    )
    assert sentence in failure(capsys)
    assert not (folder / "out" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("def build(:\n", "SyntaxError"),
        ("import nowhere_to_be_found\n\n\ndef build():\n    pass\n", "No module named 'nowhere_to_be_found'"),
        ("def build(depth):\n    pass\n", "missing 1 required positional argument: 'depth'"),
        ("def build():\n    raise KeyError('x')\n", "KeyError: 'x'"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
    ],
)
@pytest.mark.parametrize("option", ["network", "data"])
def test_what_goes_wrong_in_ones_own_function_is_one_line(
    option: str, source: str, sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "wrong.py").write_text(source)
    about = (
        ["wrong.py:build", "--data", "mine.npz"] if option == "network" else ["flat.onnx", "--data", "wrong.py:build"]
    )
    assert main(["attack", *about, "--eps", "0.02"]) == 1
    told = failure(capsys)
    assert told.startswith("error: wrong.py:build failed: ")
    assert sentence in told
    assert main(["--debug", "attack", *about, "--eps", "0.02"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--slope", "--intercept"])
@pytest.mark.parametrize("value", ["1e39", "nan", "inf"])
def test_a_line_that_float32_cannot_hold_is_refused(
    value: str, option: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["graft", "flat.onnx", "--data", "mine.npz", "--eps", "0.02", "--count", "20", "--show", option, value]
    assert main(line) == 1
    assert f"the {option[2:]} of lines must be a finite number" in failure(capsys)


def test_test_images_need_not_show_every_class_of_the_network(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lg.save(lg.models.build("digits-cnn", "digits", seed=0), "digits.safetensors")
    data = dict(np.load("mine.npz"))
    few = data["y_test"] < 9
    np.savez("few.npz", x_test=data["x_test"][few], y_test=data["y_test"][few])
    run("attack", "digits.safetensors", "--data", "few.npz", "--eps", "0.02", "--count", "3", "--steps", "1")
    np.savez("more.npz", x_test=data["x_test"], y_test=data["y_test"] + 1)
    capsys.readouterr()
    assert main(["attack", "digits.safetensors", "--data", "more.npz", "--eps", "0.02", "--count", "3"]) == 1
    assert "in 11 classes" in failure(capsys)


def test_the_name_of_the_network_in_the_checkpoint_is_no_contradiction(folder: Path) -> None:
    lg.save(lg.models.build("digits-cnn", "digits", seed=0), "digits.safetensors")
    line = ["train", "finetune", "--start", "digits.safetensors", "--model", "digits-cnn", "--data", "digits"]
    run(*line, "--set", "epochs=0", "--device", "cpu")


def test_the_graph_in_a_checkpoint_is_plain_json(folder: Path) -> None:
    lg.save(lg.load("mynet:build"), "own.safetensors", input_shape=(1, 8, 8))
    nodes = lg.models.read_metadata("own.safetensors")["graph"]["nodes"]
    assert [node["kind"] for node in json.loads(json.dumps(nodes))] == [
        "Input",
        "Reshape",
        "Linear",
        "Activation",
        "Linear",
    ]


def test_a_module_with_a_shape_of_its_own_making_is_taken_by_what_it_does(folder: Path) -> None:
    (folder / "odd.py").write_text(
        "import torch\n\n\nclass Odd(torch.nn.Sequential):\n    @property\n    def input_shape(self):\n"
        "        return (8, 8)\n\n\ndef build():\n    return Odd(torch.nn.Flatten(), torch.nn.Linear(64, 10), "
        "torch.nn.ReLU(), torch.nn.Linear(10, 10))\n"
    )
    run("graft", "odd.py:build", "--data", "mine.npz", "--eps", "0.02", "--count", "20", "--out", "g.safetensors")
    assert lg.load("g.safetensors").input_shape == (1, 8, 8)
