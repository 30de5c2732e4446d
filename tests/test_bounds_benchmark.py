"""The benchmark of the bounds: the dense comparison computes the same bounds, and the rows say what was measured."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

from bounds_cases import classifier, random_box
from lipgraft import grafting, models
from lipgraft.bounds import benchmark, bound
from lipgraft.bounds.benchmark import bench_bounds
from lipgraft.bounds.measuring import environment, peak_memory
from lipgraft.cli import main
from lipgraft.errors import DataError, LipgraftError, SettingsError
from lipgraft.network import trace

CPU = torch.device("cpu")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A small network: the benchmark itself is the same for every size."""
    models.save(models.build("digits-cnn", "digits", seed=0), tmp_path / "small.safetensors")
    return tmp_path / "small.safetensors"


@pytest.mark.parametrize(
    ("name", "activation"), [("digits-cnn", "relu"), ("digits-cnn", "grafted tanh"), ("resnet4b", "grafted relu")]
)
def test_the_dense_implementation_computes_the_same_bounds(
    name: str, activation: str, generator: torch.Generator
) -> None:
    dense = benchmark._load(benchmark.DENSE)
    network = classifier(name, activation)
    box = random_box(network.input_shape, 2, generator, 0.02)
    C = torch.randn(2, 9, 10, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        lower, intervals = dense.dense_crown(network, box, C)
    want = bound(network, box, "crown", C, neurons="all")
    torch.testing.assert_close(lower, want.lower, rtol=1e-8, atol=1e-8)
    for _, node in network.activations():
        torch.testing.assert_close(intervals[node.inputs[0]], want.layers[node.name], rtol=1e-8, atol=1e-8)


def test_the_dense_implementation_knows_what_it_will_take() -> None:
    dense = benchmark._load(benchmark.DENSE)
    network = trace(models.build("cnn-b", "cifar10", seed=0), (3, 32, 32))
    # conv2 has 8,192 neurons, and the rows of each stand on 8,192 neurons of conv1.
    assert dense.bytes_per_image(network) == 4 * dense.LIVE * 8192 * 8192


def test_every_method_is_measured_plain_and_grafted(checkpoint: Path) -> None:
    rows = bench_bounds(
        ["digits-cnn"], ["ibp", "crown", "alpha-crown"], 2, repeats=1, weights={"digits-cnn": checkpoint}
    )
    assert [(row["grafted"], row["method"], row["neurons"]) for row in rows] == [
        (grafted, *rest)
        for grafted in (False, True)
        for rest in (("ibp", None), ("crown", "needed"), ("crown", "all"), ("alpha-crown", None))
    ]
    for row in rows:
        assert row["network"] == "digits-cnn"
        assert row["weights"] == str(checkpoint)
        assert row["images_per_second"] == row["batch"] / row["seconds"] > 0
        assert row["peak_bytes"] >= 0
        assert 0 <= row["unstable"] <= 1
        assert 0 <= row["verified"] <= 1
        if row["method"] == "crown":
            assert row["ratio"] == row["images_per_second"] / row["dense_images_per_second"]
    shares = {(row["grafted"], row["method"]): row["unstable"] for row in rows}
    assert shares[False, "crown"] < shares[False, "ibp"], "crown must decide neurons that intervals leave open"
    assert shares[True, "crown"] < shares[False, "crown"], "grafted neurons are never unstable"


def test_a_grafted_checkpoint_is_measured_as_it_is(checkpoint: Path) -> None:
    model = models.load(checkpoint)
    shapes = {node.name: node.shape for _, node in trace(model, (1, 8, 8)).activations()}
    models.save(
        grafting.apply(model, {name: torch.ones(shape, dtype=torch.bool) for name, shape in shapes.items()}), checkpoint
    )
    rows = bench_bounds(["digits-cnn"], ["crown"], 1, repeats=1, weights={"digits-cnn": checkpoint}, compare=False)
    assert [row["grafted"] for row in rows] == [True, True]
    assert all(row["unstable"] == 0 and "ratio" not in row for row in rows)


def test_test_images_of_a_data_set_can_be_used(checkpoint: Path) -> None:
    given = {"digits-cnn": checkpoint}
    (row, _) = bench_bounds(["digits-cnn"], ["ibp"], 3, repeats=1, weights=given, data="digits", compare=False)
    assert row["batch"] == 3
    with pytest.raises(SettingsError, match=r"digits has images of shape \(1, 8, 8\), the network takes \(3, 32, 32\)"):
        bench_bounds(["cnn-b"], ["ibp"], data="digits")
    with pytest.raises(DataError, match="svhn"):
        bench_bounds(["cnn-b"], ["ibp"], data="svhn")


def test_the_comparison_is_left_out_with_a_note(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"digits-cnn": checkpoint}
    monkeypatch.setattr(benchmark, "free_memory", lambda device: 1000)
    row = bench_bounds(["digits-cnn"], ["crown"], 1, repeats=1, weights=given, neurons=["needed"])[0]
    assert row["ratio"] is None
    assert row["note"] == "dense does not fit into memory"
    monkeypatch.setattr(benchmark, "DENSE", checkpoint.parent / "dense_crown.py")
    row = bench_bounds(["digits-cnn"], ["crown"], 1, repeats=1, weights=given, neurons=["needed"])[0]
    assert "is not there" in row["note"]


@pytest.mark.parametrize(
    ("networks", "settings", "message"),
    [
        (["cnn-b"], {"methods": ["crwon"]}, "Did you mean 'crown'"),
        (["cnn-c"], {}, "Did you mean 'cnn-b'"),
        (["cnn-b"], {"weights": {"resnet4b": "x"}}, "weights for 'resnet4b'"),
        (["cnn-b"], {"batch": 0}, "at least 1"),
        (["cnn-b"], {"weights": {"cnn-b": "/nowhere.safetensors"}}, "nowhere"),
    ],
)
def test_what_cannot_be_measured_is_refused(networks: list[str], settings: dict[str, object], message: str) -> None:
    with pytest.raises(LipgraftError, match=message):
        bench_bounds(networks, **settings)  # type: ignore[arg-type]


def test_the_growth_of_the_process_is_seen() -> None:
    with peak_memory(CPU) as peak:
        block = torch.ones(2**24)  # 64 MiB, gone before the end, but not before someone could look
        time.sleep(0.2)
        del block
    assert 2**26 * 0.9 < peak[0] < 2**26 * 1.5


def test_a_figure_names_its_circumstances() -> None:
    facts = environment("cpu")
    assert facts["torch"] == str(torch.__version__)
    assert facts["device"]
    assert facts["threads"] == torch.get_num_threads()


# --- the command -----------------------------------------------------------------------------------------------------


def run(*line: str) -> int:
    return main(["bench", *line])


def test_the_command_prints_a_table_and_writes_json(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = checkpoint.parent / "figures.json"
    options = [
        "--method",
        "crown",
        "--batch",
        "1",
        "--repeats",
        "1",
        "--device",
        "cpu",
        "--eps",
        "1/255",
        "--no-compare",
    ]
    assert run("bounds", "--weights", f"digits-cnn={checkpoint}", *options, "--json", str(target)) == 0
    printed = capsys.readouterr().out
    assert "digits-cnn grafted" in printed
    assert "crown needed" in printed
    found = json.loads(target.read_text())
    assert found["environment"]["torch"] == str(torch.__version__)
    assert found["settings"]["eps"] == 1 / 255
    assert len(found["results"]) == 4


def test_a_mistake_on_the_command_line_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bounds", "--weights", "cnn-b") == 1
    assert capsys.readouterr().err == (
        "error: --weights takes NETWORK=PATH, such as cnn-b=base.safetensors, got 'cnn-b'.\n"
    )


def test_a_training_step_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "train.json"
    options = ["--batch", "2", "--steps", "1", "--repeats", "1", "--device", "cpu"]
    assert run("train", *options, "--json", str(target)) == 0
    assert "fast_ms" in capsys.readouterr().out
    assert json.loads(target.read_text())["results"]["batch"] == 2


def test_verification_is_measured(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = checkpoint.parent / "verify.json"
    options = ["--eps", "0.001", "--count", "4", "--timeout", "2", "--device", "cpu"]
    assert run("verify", str(checkpoint), "--data", "digits", *options, "--json", str(target)) == 0
    assert "wall_seconds" in capsys.readouterr().out
    assert json.loads(target.read_text())["results"]["images"] == 4
