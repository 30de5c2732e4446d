"""The benchmark of the bounds: the dense comparison computes the same bounds, and the rows say what was measured."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

import lipgraft as lg
from bounds_cases import classifier, random_box
from lipgraft import grafting, models
from lipgraft.bench import bench_bounds, dense_crown
from lipgraft.bench import bounds as benchmark
from lipgraft.bench.resources import peak_memory
from lipgraft.bounds import bound
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
    network = classifier(name, activation)
    box = random_box(network.input_shape, 2, generator, 0.02)
    C = torch.randn(2, 9, 10, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        lower, intervals = dense_crown.dense_crown(network, box, C)
    want = bound(network, box, "crown", C, neurons="all")
    torch.testing.assert_close(lower, want.lower, rtol=1e-8, atol=1e-8)
    for _, node in network.activations():
        torch.testing.assert_close(intervals[node.inputs[0]], want.layers[node.name], rtol=1e-8, atol=1e-8)


def test_the_dense_implementation_knows_what_it_will_take() -> None:
    network = trace(models.build("cnn-b", "cifar10", seed=0), (3, 32, 32))
    # conv2 has 8,192 neurons, and the rows of each stand on 8,192 neurons of conv1.
    assert dense_crown.bytes_per_image(network) == 4 * dense_crown.LIVE * 8192 * 8192


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
        assert row["images_per_second"] > 0
        assert ("ratio" in row) == (row["method"] == "crown")
    shares = {(row["grafted"], row["method"]): row["unstable"] for row in rows}
    assert shares[False, "crown"] < shares[False, "ibp"], "crown must decide neurons that intervals leave open"
    assert shares[True, "crown"] < shares[False, "crown"], "grafted neurons are never unstable"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", ["ibp", "crown"])
def test_the_shares_in_a_row_are_those_of_the_bounds(method: str, checkpoint: Path) -> None:
    eps, weights = 0.02, {"digits-cnn": checkpoint}
    row = bench_bounds(["digits-cnn"], [method], 20, "cpu", eps, weights, data="digits", repeats=1, compare=False)[0]
    digits = lg.data.load("digits")
    y = digits.y_test[:20]
    rows = torch.eye(10)[y].unsqueeze(1) - torch.eye(10).expand(20, -1, -1)  # the label's own row is zero
    found = bound(models.load(checkpoint), lg.Box.linf(lg.data.images(digits.x_test[:20]), eps), method, rows)
    assert found.lower is not None
    others = torch.arange(10) != y.unsqueeze(1)
    assert row["verified"] == pytest.approx(float(((found.lower > 0) | ~others).all(1).float().mean()))
    loose = [((lower < 0) & (upper > 0)).flatten() for lower, upper in found.layers.values()]
    assert row["unstable"] == pytest.approx(float(torch.cat(loose).double().mean()))


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
    monkeypatch.setattr(benchmark, "free_bytes", lambda device: 1000)
    row = bench_bounds(["digits-cnn"], ["crown"], 1, repeats=1, weights=given, neurons=["needed"])[0]
    assert row["ratio"] is None
    assert row["note"] == "dense does not fit into memory"


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
    assert found["versions"]["torch"] == str(torch.__version__)
    assert found["hardware"]["device"] == "cpu"
    assert found["hardware"]["threads"] == str(torch.get_num_threads())
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
