"""Words for properties: "unsat" only where nothing can violate them, "sat" only with a violation that was replayed."""

from __future__ import annotations

import gzip
import re
import resource
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor

from interop_cases import CASES, Graph, two_sides, vnnlib
from lipgraft.errors import LipgraftError, SettingsError
from lipgraft.interop import (
    OnnxNetwork,
    OnnxRuntime,
    Region,
    Specification,
    VnnlibError,
    VnnResult,
    load_onnx,
    parse_vnnlib,
    read_vnnlib,
    verify_instances,
    verify_vnnlib,
)
from lipgraft.interop.importer import Importer
from lipgraft.interop.module import Shift
from lipgraft.interop.property_network import PropertyNetwork
from lipgraft.interop.verify import Subject, verify_specification
from lipgraft.rounding import inner_box, outer_ball
from lipgraft.verification import Limits, VerifySettings

FEW, MANY = 2, 24  # inputs: one halves boxes, the other goes through the verifier of images


def bump(path: Path, inputs: int, width: float) -> Path:
    """Y_0 = height of a tent of this half-width around X_0 = 0.3, from three ReLUs; zero elsewhere."""
    g = Graph([1, inputs])
    weight = np.zeros((inputs, 3), np.float32)
    weight[0] = 1 / width
    places = np.array([0.3 - width, 0.3, 0.3 + width]) / width
    g.add("Gemm", g.last, g.number(weight), g.number(-places.astype(np.float32)))
    g.add("Relu")
    g.add("MatMul", g.last, g.number(np.array([[1.0], [-2.0], [1.0]], np.float32)))
    return g.save(path, [1, 1])


def ask(net: Path, text: str, tmp_path: Path, **options: object):  # type: ignore[no-untyped-def]
    file = tmp_path / "spec.vnnlib"
    file.write_text(text)
    return verify_vnnlib(net, file, 600.0, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("inputs", [FEW, MANY])
@pytest.mark.parametrize(
    ("formulas", "word"),
    [
        (["(>= Y_0 0.5)", "(>= Y_1 0.5)"], "unsat"),  # each can hold, both cannot
        (["(>= Y_0 0.5)"], "sat"),
        (["(>= Y_1 0.5)"], "sat"),
        (["(>= Y_0 1.01)"], "unsat"),
        (["(or (>= Y_0 1.01) (>= Y_1 1.01))"], "unsat"),
        (["(or (>= Y_0 1.01) (>= Y_1 0.9))"], "sat"),
        (["(>= Y_0 0.5)", "(<= Y_0 0.6)", "(<= Y_1 0)"], "sat"),
        (["(or (and (>= Y_0 0.1) (>= Y_1 0.1)) (and (>= Y_0 0.2) (>= (- Y_1 Y_0) 0.1)))"], "unsat"),
        (["(<= (+ Y_0 Y_1) -0.1)"], "unsat"),
        (["(>= (+ (* 2 Y_0) (* 3 Y_1)) 2.9)"], "sat"),
    ],
)
def test_combinations_of_rows_get_the_right_word(inputs: int, formulas: list[str], word: str, tmp_path: Path) -> None:
    text = vnnlib([-1.0] * inputs, [1.0] * inputs, 2, *formulas)
    result = ask(two_sides(tmp_path / "net.onnx", inputs), text, tmp_path)
    assert result.status == word
    assert (result.counterexample is not None) == (word == "sat")


@pytest.mark.parametrize("seed", range(4))
def test_a_threshold_below_the_minimum_is_unsat_and_one_above_is_sat(seed: int, tmp_path: Path) -> None:
    g = Graph([1, 2])
    g.rng = np.random.default_rng(seed)
    g.add("Gemm", g.last, g.random(2, 12, scale=2.0), g.random(12))
    g.add("Relu")
    g.add("Gemm", g.last, g.random(12, 6), g.random(6))
    g.add("Relu")
    g.add("Gemm", g.last, g.random(6, 1), g.random(1))
    net = g.save(tmp_path / "net.onnx", [1, 1])
    axis = torch.linspace(-1, 1, 401)
    with torch.no_grad():
        least = float(load_onnx(net)(torch.cartesian_prod(axis, axis)).min())
    box = [-1.0, -1.0], [1.0, 1.0]
    assert ask(net, vnnlib(*box, 1, f"(<= Y_0 {least - 0.05})"), tmp_path).status == "unsat"
    assert ask(net, vnnlib(*box, 1, f"(<= Y_0 {least + 1e-4})"), tmp_path).status == "sat"


@pytest.mark.parametrize("inputs", [FEW, MANY])
def test_a_hidden_violation_is_never_called_unsat(inputs: int, tmp_path: Path) -> None:
    net = bump(tmp_path / "net.onnx", inputs, width=1e-3)
    result = ask(net, vnnlib([-1.0] * inputs, [1.0] * inputs, 1, "(>= Y_0 0.5)"), tmp_path)
    assert result.status != "unsat"
    if inputs == FEW:
        assert result.status == "sat"


@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_network_is_verified_and_falsified(name: str, tmp_path: Path) -> None:
    net = CASES[name](tmp_path / "net.onnx", 13)
    runtime = OnnxRuntime(net)
    shape = runtime.file.input_shape
    x = torch.rand(1, *shape, generator=torch.Generator().manual_seed(3))
    y = runtime(x)[0]
    low, high = (x - 0.01).flatten().double().tolist(), (x + 0.01).flatten().double().tolist()
    far = ask(net, vnnlib(low, high, len(y), f"(>= Y_0 {float(y[0]) + 20})"), tmp_path)
    near = ask(net, vnnlib(low, high, len(y), f"(>= Y_0 {float(y[0]) - 1e-3})"), tmp_path)
    assert (far.status, near.status) == ("unsat", "sat")


def test_regions_are_searched_until_one_is_violated(tmp_path: Path) -> None:
    case = "(and (>= X_0 {a}) (<= X_0 {b}) (>= X_1 {a}) (<= X_1 {b}) (>= Y_0 0.5))"
    head = "".join(f"(declare-const {name} Real)" for name in ("X_0", "X_1", "Y_0", "Y_1"))
    net = two_sides(tmp_path / "net.onnx", 2)
    harmless, harmful = case.format(a=-1, b=0), case.format(a=0, b=1)
    assert ask(net, head + f"(assert (or {harmless} {harmless}))", tmp_path).status == "unsat"
    result = ask(net, head + f"(assert (or {harmless} {harmful}))", tmp_path)
    assert result.status == "sat"
    assert bool((result.counterexample.x >= 0).all())


def boxes(inputs: int, cases: list[tuple[float, float, str]]) -> str:
    """A disjunction of boxes: (lower end, upper end, formula)."""
    names = [f"X_{i}" for i in range(inputs)]
    head = "".join(f"(declare-const {name} Real)" for name in [*names, "Y_0"])
    parts = []
    for low, high, formula in cases:
        parts.append(f"(and {' '.join(f'(>= {x} {low}) (<= {x} {high})' for x in names)} {formula})")
    return head + f"(assert (or {' '.join(parts)}))"


def hard(path: Path, inputs: int) -> Path:
    """Many random ReLUs: near its least value it is neither proved nor violated quickly."""
    g = Graph([1, inputs])
    g.rng = np.random.default_rng(5)
    for n, m in ((inputs, 60), (60, 60)):
        g.add("Gemm", g.last, g.random(n, m, scale=1.5 * n**-0.5), g.random(m, scale=0.5))
        g.add("Relu")
    g.add("Gemm", g.last, g.random(60, 1, scale=0.2), g.random(1))
    return g.save(path, [1, 1])


@pytest.mark.parametrize("inputs", [10, MANY])
def test_a_hard_region_does_not_hide_an_easy_violation(inputs: int, tmp_path: Path) -> None:
    net = hard(tmp_path / "net.onnx", inputs)
    x = 2 * torch.rand(20_000, inputs, generator=torch.Generator().manual_seed(0)) - 1
    with torch.no_grad():
        least, middle = float(load_onnx(net)(x).min()), float(load_onnx(net)(torch.full((1, inputs), 0.5)))
    text = boxes(inputs, [(-1.0, 1.0, f"(<= Y_0 {least - 3})"), (0.4, 0.6, f"(<= Y_0 {middle + 0.01})")])
    file = tmp_path / "spec.vnnlib"
    file.write_text(text)
    assert verify_vnnlib(net, file, 20.0).status == "sat"


@pytest.mark.long
def test_every_region_gets_its_share_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three regions; the first never ends. The others still get their turn, and the first then what they left over."""
    asked: list[tuple[float, float]] = []

    def decide(subject: object, region: Region, deadline: float, *_: object) -> VnnResult:
        now = time.monotonic()
        asked.append((float(region.lower[0]), deadline - now))
        if float(region.lower[0]) < 0.1:
            time.sleep(max(0.0, deadline - now))
            return VnnResult("timeout")
        return VnnResult("unsat")

    monkeypatch.setattr("lipgraft.interop.verify._decide", decide)
    monkeypatch.setattr("lipgraft.interop.verify.MOST_INPUTS", 0)  # regions are decided one after the other
    subject = Subject.read(bump(tmp_path / "net.onnx", 1, 0.1))
    specification = parse_vnnlib(boxes(1, [(k / 10, k / 10 + 0.05, "(>= Y_0 5)") for k in range(3)]))
    limit = 3.0
    assert verify_specification(subject, specification, time.monotonic() + limit).status == "timeout"
    assert [low for low, _ in asked[:4]] == [0.0, 0.1, 0.2, 0.0]
    assert asked[0][1] <= limit / 3
    assert asked[1][1] <= limit / 2


@pytest.mark.long
@pytest.mark.parametrize("kind", ["boxes", "products"])
def test_a_time_limit_holds_for_a_file_of_90000_cases(kind: str, tmp_path: Path) -> None:
    net, file = bump(tmp_path / "net.onnx", 1, 0.1), tmp_path / "spec.vnnlib"
    if kind == "boxes":
        file.write_text(boxes(1, [(k * 1e-5, (k + 1) * 1e-5, f"(>= Y_0 {5 + k})") for k in range(90_000)]))
    else:
        choices = [f"(or {' '.join(f'(>= (* {i + 2} Y_0) {100 * k + 50})' for i in range(300))})" for k in (1, 2)]
        file.write_text(vnnlib([0.0], [1.0], 1, *choices))
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    assert verify_vnnlib(net, file, 1.0).status == "timeout"
    assert time.monotonic() - started < 15  # it took 93 s; the rest is for slow machines
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2 << 20  # in KiB; it took 16 GiB


@pytest.mark.parametrize("inputs", [FEW, MANY])
@pytest.mark.parametrize(
    ("formula", "word"),
    [("(or)", "unsat"), ("(or (and) (>= Y_0 9))", "sat"), ("(or (>= Y_0 9) (and (>= Y_0 0.5) (>= X_0 7)))", "unsat")],
)
def test_empty_parts_of_a_formula_get_the_word_of_logic(formula: str, word: str, inputs: int, tmp_path: Path) -> None:
    net = two_sides(tmp_path / "net.onnx", inputs)
    text = vnnlib([-1.0] * inputs, [1.0] * inputs, 2, formula)
    assert ask(net, text, tmp_path).status == word


@pytest.mark.parametrize("inputs", [FEW, MANY])
def test_outputs_that_are_always_equal_violate_what_forbids_equality(inputs: int, tmp_path: Path) -> None:
    g = Graph([1, inputs])
    g.add("MatMul", g.last, g.number(np.ones((inputs, 2), np.float32)))
    net = g.save(tmp_path / "net.onnx", [1, 2])
    assert ask(net, vnnlib([-1.0] * inputs, [1.0] * inputs, 2, "(>= Y_1 Y_0)"), tmp_path).status == "sat"


@pytest.mark.parametrize("hidden", ['(set-info :source "{}")', "(set-info :source |{}|)"])
def test_an_assertion_in_a_string_changes_no_word(hidden: str, tmp_path: Path) -> None:
    net = two_sides(tmp_path / "net.onnx", FEW)
    text = vnnlib([-1.0] * FEW, [1.0] * FEW, 2, "(>= Y_0 0.5)") + hidden.format("(assert (<= X_0 -1.0))")
    assert ask(net, text, tmp_path).status == "sat"


def test_an_import_that_differs_inside_the_box_alone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step at 100, which no random input near 0 sees: the comparison must go where the property is."""
    g = Graph([1, 1])
    g.add("Add", g.last, g.number(np.array([-100.0], np.float32)))
    g.add("Relu")
    net = g.save(tmp_path / "net.onnx", [1, 1])
    run = Importer.run

    def damaged(importer: Importer) -> OnnxNetwork:
        network = run(importer)
        next(layer for layer in network.children() if isinstance(layer, Shift)).constant -= 0.5
        return network

    monkeypatch.setattr(Importer, "run", damaged)
    load_onnx(net)  # unseen near 0
    with pytest.raises(LipgraftError, match="differs from onnxruntime"):
        ask(net, vnnlib([99.0], [101.0], 1, "(>= Y_0 0.8)"), tmp_path)


def read_twice(path: Path) -> Path:
    """Y_0 = x + relu(x + 0.5), Y_1 = 1e6, where the bias is added to x under another name."""
    g = Graph([1, 2])
    product = g.add("MatMul", g.last, g.number(np.array([[1.0, 0.0], [0.0, 0.0]], np.float32)))
    g.add("Add", g.add("Identity", product), g.number(np.array([0.5, 0.0], np.float32)))
    g.add("Add", g.add("Relu"), product)
    g.add("Add", g.last, g.number(np.array([0.0, 1e6], np.float32)))
    return g.save(path, [1, 2])


def test_a_bias_is_not_folded_into_what_is_read_elsewhere(tmp_path: Path) -> None:
    """Y_0 <= 0.6 happens at x = 0; with the bias in both places, Y_0 >= 1 everywhere."""
    net = read_twice(tmp_path / "net.onnx")
    assert ask(net, vnnlib([0.0, 0.0], [1.0, 1.0], 2, "(<= Y_0 0.6)"), tmp_path).status == "sat"


@pytest.mark.parametrize("inputs", [FEW, MANY])
def test_the_results_file_holds_a_counterexample_that_onnxruntime_confirms(inputs: int, tmp_path: Path) -> None:
    net, lower, upper = two_sides(tmp_path / "net.onnx", inputs), [-0.7] * inputs, [0.3] * inputs
    ask(net, vnnlib(lower, upper, 2, "(>= Y_1 0.6)"), tmp_path, results=tmp_path / "out.txt")
    text = (tmp_path / "out.txt").read_text()
    pattern = r"sat\n\(" + r"\n ".join(rf"\({v}_{i} \S+\)" for v, n in (("X", inputs), ("Y", 2)) for i in range(n))
    assert re.fullmatch(pattern + r"\)\n", text)
    values = [float(value) for value in re.findall(r"_\d+ ([^\s)]+)", text)]
    x, y = torch.tensor(values[:inputs], dtype=torch.float64), torch.tensor(values[inputs:])
    assert bool(((x >= -0.7) & (x <= 0.3)).all())
    assert torch.equal(OnnxRuntime(net)(x[None].float())[0], y)
    assert y[1] >= 0.6


def test_the_results_file_of_a_proof_is_one_word(tmp_path: Path) -> None:
    text = vnnlib([0.0, 0.0], [1.0, 1.0], 2, "(>= Y_1 0.1)")
    assert ask(two_sides(tmp_path / "net.onnx", 2), text, tmp_path, results=tmp_path / "out.txt").method is not None
    assert (tmp_path / "out.txt").read_text() == "unsat\n"


def test_a_box_that_is_a_point_is_decided(tmp_path: Path) -> None:
    net = two_sides(tmp_path / "net.onnx", 2)
    assert ask(net, vnnlib([0.1, 0.1], [0.1, 0.1], 2, "(>= Y_0 0.2)"), tmp_path).status == "unsat"
    assert ask(net, vnnlib([0.1, 0.1], [0.1, 0.1], 2, "(>= Y_0 0.05)"), tmp_path).status == "sat"


@pytest.mark.parametrize("inputs", [FEW, MANY])
def test_no_time_left_is_a_timeout(inputs: int, tmp_path: Path) -> None:
    subject = Subject.read(two_sides(tmp_path / "net.onnx", inputs))
    specification = parse_vnnlib(vnnlib([0.0] * inputs, [1.0] * inputs, 2, "(>= Y_1 0.1)"))
    assert verify_specification(subject, specification, time.monotonic() - 1).status == "timeout"


def test_a_property_network_loses_exactly_where_the_property_is_violated() -> None:
    text = vnnlib([-1.0] * 3, [2.0] * 3, 3, "(or (and (<= Y_0 Y_1) (<= Y_0 Y_2) (<= Y_1 0.3)) (>= Y_2 1.5) "
                  "(and (>= Y_0 0) (>= Y_1 0) (>= Y_2 0) (<= (+ Y_0 Y_1) 1) (<= Y_2 1)))")  # fmt: skip
    [region] = parse_vnnlib(text).regions
    model = PropertyNetwork(torch.nn.Identity(), region, (3,), torch.float32)
    t = 2 * torch.rand(500, 3, generator=torch.Generator().manual_seed(0)) - 1
    out = model(t)
    assert bool((out[:, 0] == 0).all())
    y: Tensor = model.inputs(t)
    excess = torch.stack([disjunct.excess(y) for disjunct in region.disjuncts], 1)
    torch.testing.assert_close(-out[:, 1:].double(), excess, atol=1e-6, rtol=1e-6)


def test_boxes_are_rounded_outward_for_proofs_and_inward_for_counterexamples() -> None:
    generator = torch.Generator().manual_seed(0)
    lower = torch.randn(2000, generator=generator, dtype=torch.float64)
    upper = lower + 0.1 * torch.rand(2000, generator=generator, dtype=torch.float64)
    low, high = inner_box(lower, upper, torch.float32)
    centre, radius = outer_ball(lower, upper, torch.float32)
    assert bool(((lower <= low.double()) & (low <= high) & (high.double() <= upper)).all())
    assert bool((centre.double() - radius.double() <= lower).all())
    assert bool((upper <= centre.double() + radius.double()).all())


BAD = {
    "wrong number of inputs": vnnlib([0.0] * 3, [1.0] * 3, 2, "(<= Y_0 0)"),
    "wrong number of outputs": vnnlib([0.0] * 2, [1.0] * 2, 3, "(<= Y_0 0)"),
    "contradictory box": vnnlib([1.0] * 2, [0.0] * 2, 2, "(<= Y_0 0)"),
    "nonlinear constraint": vnnlib([0.0] * 2, [1.0] * 2, 2, "(<= (* Y_0 Y_1) 0)"),
    "bad syntax": "(assert (<= X_0",
}


@pytest.mark.parametrize("what", BAD)
def test_a_specification_that_does_not_fit_is_an_error_and_never_a_verdict(what: str, tmp_path: Path) -> None:
    net = two_sides(tmp_path / "net.onnx", 2)
    with pytest.raises(VnnlibError):
        ask(net, BAD[what], tmp_path, results=tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text() == "error\n"


def test_a_damaged_network_is_an_error_and_never_a_verdict(tmp_path: Path) -> None:
    net = two_sides(tmp_path / "net.onnx", 2)
    net.write_bytes(net.read_bytes()[:-9])
    with pytest.raises(LipgraftError):
        ask(net, vnnlib([0.0] * 2, [1.0] * 2, 2, "(>= Y_0 5)"), tmp_path, results=tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text() == "error\n"


def test_a_time_limit_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="timeout"):
        verify_vnnlib(tmp_path / "net.onnx", tmp_path / "a.vnnlib", 0.0)


def table(tmp_path: Path) -> Path:
    """Three instances: one holds, one is violated, one is damaged."""
    two_sides(tmp_path / "net.onnx", 2)
    texts = {"holds": "(>= Y_0 5)", "violated": "(>= Y_0 0.5)", "damaged": "(sin Y_0)"}
    for name, formula in texts.items():
        (tmp_path / f"{name}.vnnlib").write_text(vnnlib([-1.0] * 2, [1.0] * 2, 2, formula))
    path = tmp_path / "instances.csv"
    path.write_text("".join(f"net.onnx,{name}.vnnlib,600\n" for name in texts))
    return path


def test_a_table_of_instances_gets_a_word_each_and_a_summary(tmp_path: Path) -> None:
    summary = verify_instances(table(tmp_path))
    assert [result.status for result in summary.results] == ["unsat", "sat", "error"]
    assert summary.counts == {"unsat": 1, "sat": 1, "unknown": 0, "timeout": 0, "error": 1}
    assert "3 instances: 1 unsat, 1 sat, 1 error" in str(summary)
    assert "sin" in summary.results[2].reason
    words = [path.read_text().split()[0] for path in sorted((tmp_path / "results").glob("*.txt"))]
    assert words == ["unsat", "sat", "error"]


def test_a_second_run_repeats_only_errors_and_changed_files(tmp_path: Path) -> None:
    path = table(tmp_path)
    first = verify_instances(path)
    second = verify_instances(path)
    assert (first.reused, second.reused) == (0, 2)
    assert [result.status for result in second.results] == ["unsat", "sat", "error"]
    (tmp_path / "damaged.vnnlib").write_text((tmp_path / "violated.vnnlib").read_text())
    (tmp_path / "violated.vnnlib").write_text((tmp_path / "holds.vnnlib").read_text())
    third = verify_instances(path)
    assert third.reused == 1
    assert [result.status for result in third.results] == ["unsat", "unsat", "sat"]


def test_a_killed_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = table(tmp_path)

    def stop(done: int, total: int, result: object) -> None:
        assert (done, total) == (1, 3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify_instances(path, progress=stop)
    store = tmp_path / "results" / "results.csv"
    assert len(store.read_text().splitlines()) == 2
    store.write_text(store.read_text() + "net.onnx,violated.vnn")  # a line that was being written
    seen = []
    summary = verify_instances(path, progress=lambda done, total, result: seen.append((done, total, result.vnnlib)))
    assert seen == [(2, 3, "violated.vnnlib"), (3, 3, "damaged.vnnlib")]
    assert [result.status for result in summary.results] == ["unsat", "sat", "error"]
    assert verify_instances(path).reused == 2


def outside(path: Path, scale: float) -> Path:
    """Y_0 = scale X_0, the weights in weights.bin."""
    g = Graph([1, 1])
    g.add("MatMul", g.last, g.number(np.array([[scale]], np.float32), "w"))
    g.save(path, [1, 1])
    (path.parent / "weights.bin").unlink(missing_ok=True)
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def test_other_weights_in_another_file_are_another_question(tmp_path: Path) -> None:
    net, path = outside(tmp_path / "net.onnx", 1.0), tmp_path / "instances.csv"
    (tmp_path / "a.vnnlib").write_text(vnnlib([0.0], [1.0], 1, "(>= Y_0 5)"))
    path.write_text("net.onnx,a.vnnlib,600\n")
    assert verify_instances(path).results[0].status == "unsat"
    assert verify_instances(path).reused == 1
    graph = net.read_bytes()
    outside(net, 10.0)
    assert net.read_bytes() == graph
    summary = verify_instances(path)
    assert (summary.reused, summary.results[0].status) == (0, "sat")


def test_another_version_of_lipgraft_is_another_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path)
    verify_instances(path)
    monkeypatch.setattr("lipgraft.interop.instances.__version__", "0.0.0")
    assert verify_instances(path).reused == 0


LOST = {
    "no network": "none.onnx,holds.vnnlib,600",
    "no property": "net.onnx,none.vnnlib,600",
    "no weights": "outside.onnx,holds.vnnlib,600",
    "a folder": ".,holds.vnnlib,600",
    "a name too long": f"net.onnx,{'a' * 300}.vnnlib,600",
    "a name with a zero byte": "net.onnx,a\0b.vnnlib,600",
    "no text": "net.onnx,latin.vnnlib,600",
}


@pytest.mark.parametrize("what", LOST)
def test_a_lost_file_is_an_error_of_its_line_alone(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path)
    outside(tmp_path / "outside.onnx", 1.0)
    (tmp_path / "weights.bin").unlink()
    (tmp_path / "latin.vnnlib").write_bytes("; ein Maß\n".encode("latin-1"))
    path.write_text(f"net.onnx,violated.vnnlib,600\n{LOST[what]}\nnet.onnx,holds.vnnlib,600\n")
    monkeypatch.chdir(tmp_path)
    summary = verify_instances("instances.csv")
    assert [result.status for result in summary.results] == ["sat", "error", "unsat"]
    assert summary.results[1].reason


@pytest.mark.parametrize("content", [b"net.onnx,ma\xdf.vnnlib,5\n", b"\xff\xfe\x00", b'net.onnx,"open,5\n', b"a,,5\n"])
def test_a_table_that_is_no_text_is_one_sentence(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "instances.csv"
    path.write_bytes(content)
    with pytest.raises(VnnlibError, match=r"instances\.csv"):
        verify_instances(path)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"some,other,table\n1,2,3\n"])
def test_a_foreign_table_of_results_is_left_alone(content: bytes, tmp_path: Path) -> None:
    path, store = table(tmp_path), tmp_path / "results" / "results.csv"
    store.parent.mkdir()
    store.write_bytes(content)
    with pytest.raises(VnnlibError, match=r"results\.csv is not a table of results"):
        verify_instances(path)
    assert store.read_bytes() == content


def test_a_folder_that_is_a_file_is_one_sentence(tmp_path: Path) -> None:
    path = table(tmp_path)
    (tmp_path / "results").write_text("")
    with pytest.raises(LipgraftError, match="results"):
        verify_instances(path)
    with pytest.raises(LipgraftError, match="cannot be written"):
        verify_vnnlib(tmp_path / "net.onnx", tmp_path / "holds.vnnlib", 60.0, results=tmp_path / "results" / "a.txt")


def test_an_answer_is_kept_under_another_limit_unless_it_took_longer(tmp_path: Path) -> None:
    path = table(tmp_path)
    verify_instances(path)
    assert verify_instances(path, timeout=300.0).reused == 2
    late = verify_instances(path, timeout=1e-9)
    assert (late.reused, late.counts["timeout"]) == (0, 3)
    assert verify_instances(path, timeout=300.0).counts["timeout"] == 0


def test_other_settings_are_another_question(tmp_path: Path) -> None:
    path = table(tmp_path)
    verify_instances(path, settings=VerifySettings(limits=Limits(timeout=7.0)))
    assert verify_instances(path).reused == 2  # the seconds come from the table in any case
    summary = verify_instances(path, settings=VerifySettings(arithmetic="fast"))
    assert summary.reused == 0
    assert [result.status for result in summary.results] == ["unsat", "sat", "error"]


@pytest.mark.parametrize("content", ["", "a.onnx,b.vnnlib\n", "a.onnx,b.vnnlib,soon\n", "a.onnx,b.vnnlib,-1\n"])
def test_a_table_that_is_none_is_an_error(content: str, tmp_path: Path) -> None:
    path = tmp_path / "instances.csv"
    path.write_text(content)
    with pytest.raises(VnnlibError, match="instances"):
        verify_instances(path)


def test_files_may_be_packed_since_the_table_was_written(tmp_path: Path) -> None:
    path = table(tmp_path)
    for file in (tmp_path / "net.onnx", *tmp_path.glob("*.vnnlib")):
        file.with_name(file.name + ".gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    assert [result.status for result in verify_instances(path).results] == ["unsat", "sat", "error"]


def test_missing_files_are_errors_of_their_instances(tmp_path: Path) -> None:
    path = tmp_path / "instances.csv"
    path.write_text("none.onnx,none.vnnlib,5\n")
    [result] = verify_instances(path).results
    assert result.status == "error"
    with pytest.raises(VnnlibError, match="cannot be read"):
        verify_instances(tmp_path / "none.csv")


def test_a_file_that_fails_as_nobody_has_foreseen_is_an_error_of_its_line_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = table(tmp_path)

    def read(file: Path, **known: float) -> Specification:
        if file.name == "holds.vnnlib":
            raise KeyError("training")
        return read_vnnlib(file, **known)

    monkeypatch.setattr("lipgraft.interop.instances.read_vnnlib", read)
    summary = verify_instances(path)
    assert [result.status for result in summary.results] == ["error", "sat", "error"]
    assert summary.results[0].reason == "KeyError: 'training'"
    assert (tmp_path / "results" / "results.csv").is_file()


def test_an_index_that_is_none_is_an_error_of_its_line_alone(tmp_path: Path) -> None:
    path = table(tmp_path)
    (tmp_path / "holds.vnnlib").write_text(
        "(vnnlib-version <2.0>)(declare-network N (declare-input X real [1, 2])(declare-output Y real [1, 2]))"
        "(assert (>= Y[0 1] 5))"
    )
    results = verify_instances(path).results
    assert [result.status for result in results] == ["error", "sat", "error"]
    assert "Y[0 1] is not an index of Y" in results[0].reason
