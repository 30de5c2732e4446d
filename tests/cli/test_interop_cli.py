"""`lipgraft vnnlib NET SPEC` and `--instances`: words, files, exit codes; never a verdict on broken input."""

from __future__ import annotations

import io
import json
import re
import runpy
import subprocess
import sys
import time
from pathlib import Path

import onnx
import pytest
import torch

from interop_cases import CASES, Graph, two_sides, vnnlib
from lipgraft import models
from lipgraft.cli import main
from lipgraft.cli import vnnlib as commands
from lipgraft.interop import OnnxRuntime
from test_run_folders import held_elsewhere

HOLDS, VIOLATED = "(>= Y_0 5)", "(>= Y_0 0.5)"
Capture = pytest.CaptureFixture[str]


def instance(tmp_path: Path, *formulas: str, inputs: int = 2) -> tuple[Path, Path, list[str]]:
    """A network, a property, and the command line that asks for it."""
    net, spec = two_sides(tmp_path / "net.onnx", inputs), tmp_path / "spec.vnnlib"
    spec.write_text(vnnlib([-1.0] * inputs, [1.0] * inputs, 2, *formulas))
    return net, spec, ["vnnlib", str(net), str(spec), "--device", "cpu"]


def one_error(capsys: Capture) -> str:
    """The one line that a failing command prints."""
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return captured.err


# One property


@pytest.mark.parametrize("inputs", [2, 24])
@pytest.mark.parametrize(("formula", "word"), [(HOLDS, "unsat"), (VIOLATED, "sat")])
def test_the_command_prints_the_word_alone(
    formula: str, word: str, inputs: int, tmp_path: Path, capsys: Capture
) -> None:
    *_, line = instance(tmp_path, formula, inputs=inputs)
    assert main(line) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{word}\n"
    assert captured.err.endswith(" s\n")


def test_the_results_file_holds_the_word_and_a_counterexample_that_replays(tmp_path: Path, capsys: Capture) -> None:
    net, _, line = instance(tmp_path, VIOLATED)
    assert main([*line, "--results", str(tmp_path / "sub" / "out.txt")]) == 0
    text = (tmp_path / "sub" / "out.txt").read_text()
    found = re.fullmatch(r"sat\n\(\(X_0 (\S+)\)\n \(X_1 (\S+)\)\n \(Y_0 (\S+)\)\n \(Y_1 (\S+)\)\)\n", text)
    assert found is not None
    x0, x1, y0, y1 = map(float, found.groups())
    assert max(abs(x0), abs(x1)) <= 1
    assert y0 >= 0.5
    assert OnnxRuntime(net)(torch.tensor([[x0, x1]]))[0].double().tolist() == [y0, y1]


def test_json_holds_the_verdict_and_the_counterexample(tmp_path: Path, capsys: Capture) -> None:
    *_, line = instance(tmp_path, VIOLATED)
    assert main([*line, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["status"] == "sat"
    assert told["counterexample"]["y"][0] >= 0.5
    *_, line = instance(tmp_path, HOLDS)
    assert main([*line, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["status"], told["counterexample"]) == ("unsat", None)


@pytest.mark.parametrize("inputs", [2, 24])
def test_proofs_can_be_repeated_in_double_precision(inputs: int, tmp_path: Path, capsys: Capture) -> None:
    *_, line = instance(tmp_path, HOLDS, inputs=inputs)
    assert main([*line, "--arithmetic", "fast"]) == 0
    assert capsys.readouterr().out == "unsat\n"


@pytest.mark.parametrize("inputs", [2, 24])
def test_too_little_time_is_a_timeout_and_no_error(inputs: int, tmp_path: Path, capsys: Capture) -> None:
    *_, line = instance(tmp_path, HOLDS, inputs=inputs)
    assert main([*line, "--timeout", "1e-9", "--results", str(tmp_path / "out.txt")]) == 0
    assert capsys.readouterr().out == (tmp_path / "out.txt").read_text() == "timeout\n"


@pytest.mark.parametrize("script", ["lipgraft", "lipgraft/__main__.py", "notebook"])
def test_the_start_of_the_process_counts_where_it_was_started_for_the_command(
    script: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lipgraft.cli.startup._age", lambda: 3600.0)
    monkeypatch.setattr(sys, "argv", [f"/usr/bin/{script}"])
    *_, line = instance(tmp_path, HOLDS)
    assert main([*line, "--timeout", "600"]) == 0
    assert capsys.readouterr().out == ("unsat\n" if script == "notebook" else "timeout\n")


def test_a_process_knows_its_age() -> None:
    command = "import time; from lipgraft.cli.startup import _age; time.sleep(0.3); print(_age())"
    began = time.monotonic()
    told = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    age = float(told.stdout)
    assert age == 0.0 or 0.2 <= age <= time.monotonic() - began + 0.1


# Broken input


def truncated(net: Path, spec: Path) -> None:
    CASES["convolutions"](net, 13)
    net.write_bytes(net.read_bytes()[:-40])


def cut_to_nothing(net: Path, spec: Path) -> None:
    net.write_bytes(b"")


def missing_network(net: Path, spec: Path) -> None:
    net.unlink()


def missing_property(net: Path, spec: Path) -> None:
    spec.unlink()


def unsupported_operator(net: Path, spec: Path) -> None:
    g = Graph([1, 2])
    g.add("Atan", name="culprit")
    g.save(net, [1, 2])


def too_many_inputs(net: Path, spec: Path) -> None:
    spec.write_text(vnnlib([0.0] * 3, [1.0] * 3, 2, HOLDS))


def too_few_outputs(net: Path, spec: Path) -> None:
    spec.write_text(vnnlib([0.0] * 2, [1.0] * 2, 1, HOLDS))


def undeclared_output(net: Path, spec: Path) -> None:
    spec.write_text(vnnlib([0.0] * 2, [1.0] * 2, 2, "(>= Y_7 5)"))


def contradictory_box(net: Path, spec: Path) -> None:
    spec.write_text(vnnlib([0.0, 0.5], [1.0, 0.4], 2, HOLDS))


def product_of_outputs(net: Path, spec: Path) -> None:
    spec.write_text(vnnlib([0.0] * 2, [1.0] * 2, 2, "(>= (* Y_0 Y_1) 5)"))


def cut_property(net: Path, spec: Path) -> None:
    spec.write_text(spec.read_text()[:-5])


def missing_weights(net: Path, spec: Path) -> None:
    model = onnx.load(net)
    onnx.save(model, net, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (net.parent / "weights.bin").unlink()


def damaged_name(net: Path, spec: Path) -> None:
    net.write_bytes(net.read_bytes().replace(b"relu1", b"rel\xff1"))


def another_message(net: Path, spec: Path) -> None:
    """A protobuf, and no model: one tensor."""
    net.write_bytes(onnx.load(net).graph.initializer[0].SerializeToString())


def no_text(net: Path, spec: Path) -> None:
    spec.write_bytes("; ein Maß\n".encode("latin-1") + spec.read_bytes())


def cut_in_a_string(net: Path, spec: Path) -> None:
    spec.write_text(spec.read_text() + '(set-info :source "cut')


BROKEN = {
    missing_weights: r"net\.onnx.*weights",
    damaged_name: r"net\.onnx is damaged",
    another_message: r"net\.onnx is not an ONNX model",
    no_text: r"spec\.vnnlib is not a text file in UTF-8",
    cut_in_a_string: r"spec\.vnnlib ends inside a string",
    truncated: r"net\.onnx.*truncated",
    cut_to_nothing: r"net\.onnx.*truncated",
    missing_network: r"net\.onnx.*No such file",
    missing_property: r"spec\.vnnlib.*No such file",
    unsupported_operator: "operator Atan of node 'culprit'",
    too_many_inputs: "declares 3 inputs and 2 outputs, but the network has 2 and 2",
    too_few_outputs: "declares 2 inputs and 1 outputs, but the network has 2 and 2",
    undeclared_output: "Y_7",
    contradictory_box: "contradict.*X_1",
    product_of_outputs: "nonlinear",
    cut_property: r"spec\.vnnlib",
}


@pytest.mark.parametrize("damage", BROKEN, ids=lambda damage: damage.__name__)
def test_broken_input_is_one_clear_line_and_never_a_verdict(damage, tmp_path: Path, capsys: Capture) -> None:  # type: ignore[no-untyped-def]
    net, spec, line = instance(tmp_path, HOLDS)  # whole, this would be "unsat"
    damage(net, spec)
    assert main([*line, "--results", str(tmp_path / "out.txt")]) == 1
    assert re.search(BROKEN[damage], one_error(capsys))
    assert (tmp_path / "out.txt").read_text() == "error\n"


@pytest.mark.parametrize("damage", BROKEN, ids=lambda damage: damage.__name__)
def test_broken_input_is_an_error_in_a_table_too(damage, tmp_path: Path, capsys: Capture) -> None:  # type: ignore[no-untyped-def]
    net, spec, _ = instance(tmp_path, HOLDS)
    damage(net, spec)
    (tmp_path / "instances.csv").write_text("net.onnx,spec.vnnlib,60\n")
    assert main(["vnnlib", "--instances", str(tmp_path / "instances.csv"), "--device", "cpu"]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("1 instance: 1 error; ")
    assert re.search(rf"^error: spec\.vnnlib: .*{BROKEN[damage]}", captured.err)
    assert captured.err.count("\n") == 1


def test_weights_that_overflow_are_an_error(tmp_path: Path, capsys: Capture) -> None:
    net, _, line = instance(tmp_path, HOLDS)
    g = Graph([1, 2])
    g.add("Mul", g.last, g.number(torch.tensor(float("inf")).numpy()))
    g.save(net, [1, 2])
    assert main([*line, "--results", str(tmp_path / "out.txt")]) == 1
    assert "net.onnx" in one_error(capsys)
    assert (tmp_path / "out.txt").read_text() == "error\n"


def test_a_number_that_the_network_cannot_hold_is_an_error(tmp_path: Path, capsys: Capture) -> None:
    *_, line = instance(tmp_path, "(<= Y_0 1e39)", HOLDS, inputs=24)
    assert main([*line, "--results", str(tmp_path / "out.txt")]) == 1
    assert "spec.vnnlib of net.onnx could not be decided" in one_error(capsys)
    assert (tmp_path / "out.txt").read_text() == "error\n"


# A table


def table(tmp_path: Path) -> tuple[Path, list[str]]:
    two_sides(tmp_path / "net.onnx", 2)
    for name, formula in {"holds": HOLDS, "violated": VIOLATED}.items():
        (tmp_path / f"{name}.vnnlib").write_text(vnnlib([-1.0] * 2, [1.0] * 2, 2, formula))
    path = tmp_path / "instances.csv"
    path.write_text("net.onnx,holds.vnnlib,60\nnet.onnx,violated.vnnlib,60\n")
    return path, ["vnnlib", "--instances", str(path), "--device", "cpu"]


def test_a_table_is_summarised_and_not_done_twice(tmp_path: Path, capsys: Capture) -> None:
    _, line = table(tmp_path)
    assert main(line) == 0
    first = capsys.readouterr()
    assert first.out.startswith("2 instances: 1 unsat, 1 sat; ")
    assert f"0 of them from before; see {tmp_path / 'results'}" in first.out
    assert first.err == ""  # the bar is for terminals
    assert main(line) == 0
    assert "2 of them from before" in capsys.readouterr().out
    words = [path.read_text().split()[0] for path in sorted((tmp_path / "results").glob("*.txt"))]
    assert words == ["unsat", "sat"]


def test_a_killed_table_goes_on_where_it_stopped(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, line = table(tmp_path)
    whole = path.read_text()
    path.write_text(whole.splitlines()[0] + "\n")
    assert main(line) == 0
    store = tmp_path / "results" / "results.csv"
    store.write_text(store.read_text() + "net.onnx,violated.vnn")  # the kill hit a line
    path.write_text(whole)
    capsys.readouterr()
    assert main([*line, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["reused"] == 1
    assert [row["status"] for row in told["instances"]] == ["unsat", "sat"]
    assert told["counts"]["sat"] == 1


def test_another_folder_and_another_time_limit_can_be_chosen(tmp_path: Path, capsys: Capture) -> None:
    _, line = table(tmp_path)
    assert main([*line, "--out", str(tmp_path / "mine"), "--timeout", "30", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["folder"] == str(tmp_path / "mine")
    assert [row["timeout"] for row in told["instances"]] == [30.0, 30.0]
    assert not (tmp_path / "results").exists()


def test_a_terminal_sees_a_bar(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    console = commands.Console
    monkeypatch.setattr(commands, "Console", lambda stderr: console(file=screen, force_terminal=True, width=100))
    _, line = table(tmp_path)
    assert main(line) == 0
    assert "2/2" in screen.getvalue()
    assert "violated.vnnlib sat" in screen.getvalue()


@pytest.mark.parametrize("content", [None, "", "net.onnx,holds.vnnlib\n"])
def test_a_table_that_is_none_is_one_line(content: str | None, tmp_path: Path, capsys: Capture) -> None:
    path, line = table(tmp_path)
    path.unlink() if content is None else path.write_text(content)
    assert main(line) == 1
    assert "instances.csv" in one_error(capsys)
    assert not (tmp_path / "results").exists()


def test_an_exported_folder_is_verified_by_the_command_that_export_suggests(tmp_path: Path, capsys: Capture) -> None:
    models.save(models.build("digits-cnn", "digits", seed=0), tmp_path / "model.safetensors")
    line = ["export", str(tmp_path / "model.safetensors"), "--data", "digits", "--eps", "1/255", "--indices", "0:3"]
    assert main([*line, "--out", str(tmp_path / "out")]) == 0
    hint = re.search(r"try `lipgraft (.*)`", capsys.readouterr().out)
    assert hint is not None
    assert main([*hint[1].split(), "--device", "cpu", "--set", "attack.restarts=1"]) == 0
    assert capsys.readouterr().out.startswith("3 instances: ")


# Which options go together


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "nothing to decide"),
        ("--results out.txt", "nothing to decide"),
        ("a.onnx", "a.onnx needs a property"),
        ("a.onnx a.vnnlib --out run", "--out is for a table"),
        ("--instances a.csv a.onnx a.vnnlib", "give one of the two"),
        ("a.safetensors a.vnnlib", "`lipgraft export`"),
        ("--instances a.csv --results out.txt", "--results is for one property"),
        ("--instances a.csv --set total_seconds=5", "total_seconds is for `lipgraft verify`"),
        ("--instances a.csv --timeout 0", "timeout must be"),
        ("a.onnx a.vnnlib --set batches=5", "batch"),
        ("a.onnx a.vnnlib --set batch", "--set takes NAME=VALUE"),
    ],
)
def test_options_that_make_no_sense_together_are_one_line(line: str, words: str, capsys: Capture) -> None:
    assert main(["vnnlib", *line.split()]) == 1
    assert words in one_error(capsys)


@pytest.mark.parametrize("line", ["--onnx a.onnx --vnnlib a.vnnlib --results a.txt", "--instances a.csv --out run"])
def test_verify_names_the_command_for_properties(line: str, capsys: Capture) -> None:
    assert main(["verify", *line.split()]) == 1
    assert "`lipgraft vnnlib NET SPEC`, or `lipgraft vnnlib --instances TABLE`" in one_error(capsys)
    assert main(["verify", "--help"]) == 0
    assert "--onnx" not in capsys.readouterr().out


def test_a_table_that_another_process_works_on_is_refused(tmp_path: Path, capsys: Capture) -> None:
    _, line = table(tmp_path)
    with held_elsewhere(tmp_path / "results"):
        assert main(line) == 1
        assert f"another process is writing to {tmp_path / 'results'}" in one_error(capsys)
    assert main(line) == 0


def test_the_comparison_with_neuralsat_says_when_it_is_not_installed(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Path(__file__).parents[2] / "bench" / "compare_neuralsat.py"
    arguments = [str(script), str(table(tmp_path)[0]), "--python", str(tmp_path / "no-python")]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(script), run_name="__main__")
    assert left.value.code == 2
    assert "NeuralSAT is not installed" in capsys.readouterr().out
