"""Products, quotients and powers of results: their planes hold them, and nothing is proved that is not so."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from interop_cases import Case, Graph, products_of_results, vnnlib, waves_and_steps
from lipgraft import Box, grafting, lipschitz
from lipgraft.bounds import METHODS, bound
from lipgraft.bounds.alpha_crown import LowerBound
from lipgraft.bounds.crown import prepare, specification_bounds
from lipgraft.bounds.layout import Layout, NeuronBounds
from lipgraft.errors import SettingsError, UnsupportedOperationError
from lipgraft.interop import OnnxRuntime, export_onnx, load_onnx, parse_vnnlib, splitting, verify_vnnlib
from lipgraft.interop.splitting import split_inputs
from lipgraft.interop.verify import Subject
from lipgraft.network import Cosine, Floor, Planar, Power, Product, Quotient, Sign, Sine, evaluate, trace
from lipgraft.verification import Limits, VerifySettings, verify

NODES: dict[str, Planar] = {
    "product": Product("p", (0, 1), ()),
    "quotient": Quotient("q", (0, 1), ()),
    **{f"power {n}": Power("n", (0,), (), n) for n in (-3, -2, -1, 2, 3, 4, 7)},
    "sine": Sine("s", (0,), ()),
    "cosine": Cosine("c", (0,), ()),
    "floor": Floor("f", (0,), ()),
    "sign": Sign("s", (0,), ()),
}


def intervals(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Of many sizes and places, narrow and wide, some around zero, some a point."""
    generator = torch.Generator().manual_seed(seed)
    middle = torch.randn(count, generator=generator).double() * 10 ** (torch.rand(count, generator=generator) * 6 - 3)
    width = middle.abs() * 10 ** (1 - 17 * torch.rand(count, generator=generator).double())
    width[::7] = 0.0
    return middle - width, middle + width


def value(node: Planar, numbers: list[Fraction]) -> Fraction:
    if isinstance(node, Power):
        return numbers[0] ** node.exponent
    if isinstance(node, Sign):
        return Fraction((numbers[0] > 0) - (numbers[0] < 0))
    if isinstance(node, Sine | Floor):  # sines are right to the last digit, about, which planes have room for
        functions = {Sine: math.sin, Cosine: math.cos, Floor: math.floor}
        return Fraction(functions[type(node)](float(numbers[0])))
    return numbers[0] * numbers[1] if isinstance(node, Product) else numbers[0] / numbers[1]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NODES)
def test_the_planes_hold_the_function_in_exact_arithmetic(name: str) -> None:
    node, count = NODES[name], 300
    ends = [intervals(count, seed) for seed, _ in enumerate(node.inputs)]
    *slopes, constant, error = node.plane(*ends).unbind(1)
    low, high = node.interval(*ends)
    shares = torch.rand(12, len(ends), count, generator=torch.Generator().manual_seed(9)).double()
    shares[:8] = shares[:8].round()  # mostly corners
    closed = 0
    for i in range(count):
        if not math.isfinite(error[i]):
            continue
        closed += 1
        for share in shares:
            x = [(lb + s * (ub - lb)).clamp(lb, ub)[i] for s, (lb, ub) in zip(share, ends, strict=True)]
            exact = [Fraction(float(part)) for part in x]
            true = value(node, exact)
            plane = sum((Fraction(float(s[i])) * part for s, part in zip(slopes, exact, strict=True)), Fraction(0))
            assert abs(true - plane - Fraction(float(constant[i]))) <= Fraction(float(error[i]))
            assert Fraction(float(low[i])) * (1 - Fraction(1, 10**12)) <= true or low[i] <= 0
    assert closed > count / 2
    assert bool((low <= high).all())


@pytest.mark.parametrize("name", [name for name in NODES if name not in ("floor", "sign")])
def test_planes_come_close_as_intervals_shrink(name: str) -> None:
    node = NODES[name]
    errors = []
    for radius in (0.2, 0.1, 0.05):
        ends = (torch.tensor([1.5 - radius]).double(), torch.tensor([1.5 + radius]).double())
        errors.append(float(node.plane(*[ends] * len(node.inputs))[:, -1]))
    assert errors[1] < errors[0] / 3
    assert errors[2] < errors[1] / 3


@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize("ends", [(-torch.inf, 1.0), (torch.nan, 1.0), (-1.0, torch.inf)])
def test_what_is_not_finite_has_no_plane(name: str, ends: tuple[float, float]) -> None:
    node = NODES[name]
    lower, upper = (torch.tensor([end]).double() for end in ends)
    assert bool((node.plane(*[(lower, upper)] * len(node.inputs))[:, -1] == torch.inf).all())


@pytest.mark.parametrize("name", ["quotient", "power -1", "power -2"])
@pytest.mark.parametrize("ends", [(-1.0, 1.0), (0.0, 1.0), (-1.0, 0.0), (0.0, 0.0)])
def test_a_divisor_that_may_be_zero_leaves_no_bound(name: str, ends: tuple[float, float]) -> None:
    node = NODES[name]
    lower, upper = (torch.tensor([end]).double() for end in ends)
    before = [(lower, upper)] * len(node.inputs)
    assert bool((node.plane(*before)[:, -1] == torch.inf).all())
    assert [float(end) for end in node.interval(*before)] == [-math.inf, math.inf]


def test_a_factor_that_is_fixed_leaves_the_other_as_it_is() -> None:
    """As a mask does."""
    one, zero = torch.ones(1).double(), torch.zeros(1).double()
    wide = (-one * 1e3, one * 1e3)
    for mask in (zero, one):
        *slopes, constant, error = (float(part) for part in NODES["product"].plane(wide, (mask, mask))[0])
        assert slopes == [float(mask), 0.0]
        assert constant == 0.0
        assert error < 1e-9


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", [products_of_results, waves_and_steps])
@pytest.mark.parametrize("sound", [False, True])
@pytest.mark.parametrize("eps", [0.0, 0.01, 0.3])
def test_bounds_hold_for_points_in_the_box(eps: float, sound: bool, case: Case, tmp_path: Path) -> None:
    network = Subject.read(case(tmp_path / "net.onnx", 13)).exact
    generator = torch.Generator().manual_seed(0)
    box = Box.linf(torch.rand(6, 6, generator=generator).double() - 0.5, eps, low=None, high=None)
    C = torch.cat([torch.eye(3), -torch.eye(3)]).double().expand(6, 1, 6, 3)
    with torch.no_grad():
        prepared = prepare(network, box, sound_for=torch.float32 if sound else None)
        lower = specification_bounds(prepared, C)[:, 0]
        bounds = NeuronBounds.of(Layout.of(network, network.output), prepared.intervals, prepared.rounding)
        function = LowerBound(bounds, torch.arange(6), C[:, :, :1])
        alpha = torch.rand(function.start().shape, generator=generator).double()
        beta = function.no_splits()
        free = function.sound_value(alpha, beta) if sound else function.value(alpha, beta)[0]
        share = torch.rand(200, *box.lower.shape, generator=generator).double()
        share[::2] = share[::2].round()
        for points in box.lower + share * (box.upper - box.lower):
            y = evaluate(network, points)
            off = 0.0 if sound else 1e-9
            assert bool((torch.cat([y[network.output], -y[network.output]], 1) >= lower - off).all())
            assert bool((y[network.output][:, 0] >= free - off).all())
            for node, (low, high) in zip(y, prepared.intervals, strict=True):
                assert bool(((node >= low - 1e-9) & (node <= high + 1e-9)).all())
    assert bool(lower.isfinite().all())


@pytest.mark.parametrize("method", METHODS)
def test_every_method_bounds_a_network_with_products(method: str, tmp_path: Path) -> None:
    path = products_of_results(tmp_path / "net.onnx", 13)
    model, runtime = load_onnx(path), OnnxRuntime(path)
    generator = torch.Generator().manual_seed(1)
    box = Box.linf(torch.rand(2, 6, generator=generator), 0.05)
    bounds = bound(model, box, method)
    for share in torch.rand(50, 2, 6, generator=generator):
        y = runtime(box.lower + share * (box.upper - box.lower))
        assert bool(((y >= bounds.lower - 1e-5) & (y <= bounds.upper + 1e-5)).all())


def saddle(path: Path, inputs: int) -> Path:
    """y = (x_0 x_1, relu(x_0)), whatever the other inputs are."""
    g = Graph([1, inputs])
    x = g.last
    picks = [g.number(np.eye(inputs, dtype=np.float32)[:, i : i + 1]) for i in (0, 1)]
    one, other = (g.add("MatMul", x, pick) for pick in picks)
    product = g.add("Mul", one, other)
    g.add("Concat", product, g.add("Relu", one), axis=1)
    return g.save(path, [1, 2])


@pytest.mark.parametrize("inputs", [2, 25])
@pytest.mark.parametrize(("limit", "word"), [(1.01, "unsat"), (0.99, "sat")])
def test_a_property_of_a_product_is_decided_both_ways(inputs: int, limit: float, word: str, tmp_path: Path) -> None:
    """x_0 x_1 is at most 1 on the square, and it is 1 at two corners alone. 25 inputs are too many to halve boxes."""
    net, spec = saddle(tmp_path / "net.onnx", inputs), tmp_path / "spec.vnnlib"
    spec.write_text(vnnlib([-1.0] * inputs, [1.0] * inputs, 2, f"(>= Y_0 {limit})"))
    assert verify_vnnlib(net, spec, 30.0).status == word


def test_a_violation_next_to_a_saddle_is_never_proved_away(tmp_path: Path) -> None:
    """The values of x_0 x_1 near the corner are reached there alone."""
    subject = Subject.read(saddle(tmp_path / "net.onnx", 2))
    text = vnnlib([-1.0, -1.0], [1.0, 1.0], 2, "(>= Y_0 0.9999999)", "(<= Y_1 0.0)")
    split = split_inputs(subject.exact, parse_vnnlib(text).expand(math.inf), subject.judge, math.inf, sound=True)
    assert split.status != "unsat"


@pytest.mark.parametrize("speaks_of", ["real", "float32"])
def test_verified_images_of_a_network_with_products_have_no_counterexample(speaks_of: str, tmp_path: Path) -> None:
    path = products_of_results(tmp_path / "net.onnx", 13)
    model = load_onnx(path)
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(12, 6, generator=generator) - 0.5
    with torch.no_grad():
        y = model(x).argmax(1)
    settings = VerifySettings(speaks_of=speaks_of, limits=Limits(timeout=1.0))
    verdicts = verify(model, x, y, 0.1, low=None, high=None, settings=settings)
    statuses = [verdict.status for verdict in verdicts]
    assert "error" not in statuses
    if speaks_of == "real":
        assert "verified" in statuses
    with torch.no_grad():
        for share in torch.rand(300, 12, 6, generator=generator) * 2 - 1:
            right = model(x + 0.1 * share).argmax(1) == y
            assert all(bool(right[i]) for i, status in enumerate(statuses) if status == "verified")


@pytest.mark.parametrize("case", [products_of_results, waves_and_steps])
def test_a_network_with_products_survives_export(case: Case, tmp_path: Path) -> None:
    model = load_onnx(case(tmp_path / "net.onnx", 13))
    export_onnx(model, tmp_path / "again.onnx", input_shape=(6,))
    again = load_onnx(tmp_path / "again.onnx")
    kinds = [
        [type(node) for node in trace(m, (6,), products=True).nodes if isinstance(node, Planar)] for m in (model, again)
    ]
    assert kinds[0] == kinds[1]
    x = torch.rand(5, 6)
    with torch.no_grad():
        torch.testing.assert_close(again(x), model(x), rtol=1e-5, atol=1e-6)


def test_what_cannot_deal_with_products_says_so_in_one_sentence(tmp_path: Path) -> None:
    model = load_onnx(products_of_results(tmp_path / "net.onnx", 13))
    x = torch.rand(4, 6)
    with pytest.raises(UnsupportedOperationError, match="multiplies results of the network"):
        lipschitz(model, x, 0.1)
    with pytest.raises(UnsupportedOperationError, match="multiplies results of the network"):
        grafting.score(model, x, 0.1)
    with pytest.raises(SettingsError, match="certificates can be written"):
        verify_vnnlib_with_certificates(tmp_path)


def test_the_plane_of_a_product_sees_what_its_factors_share() -> None:
    """x times x lies above its tangent, and x times -x below: one side of the plane's error is gone."""
    ends = (torch.tensor([1.0]).double(), torch.tensor([3.0]).double())
    product = NODES["product"]
    assert isinstance(product, Product)
    u, v = product.mixed(ends, ends)
    assert bool((u[:, 0] == u[:, 1]).all())
    assert bool((v[:, 0] == -v[:, 1]).all())
    wide, nothing = (torch.tensor([-2.0]).double(), torch.tensor([2.0]).double()), (torch.zeros(1).double(),) * 2
    plain, better = product.plane(ends, ends), product.plane(ends, ends, mixtures=[wide, nothing])
    assert float(plain[0, -1]) == pytest.approx(1.0)
    assert float(better[0, -1]) == pytest.approx(0.5)


def verify_vnnlib_with_certificates(folder: Path) -> None:
    spec = folder / "spec.vnnlib"
    spec.write_text(vnnlib([0.0] * 6, [0.01] * 6, 3, "(>= Y_0 1000.0)"))
    verify_vnnlib(folder / "net.onnx", spec, 30.0, certificates=folder / "proofs")


@pytest.mark.parametrize("exponent", [0.5, 0.0, 30.0])
def test_other_powers_are_refused(exponent: float, tmp_path: Path) -> None:
    g = Graph([1, 3])
    g.add("Pow", g.last, g.number(np.float32(exponent)))
    with pytest.raises(UnsupportedOperationError, match="its exponent is not one whole number"):
        load_onnx(g.save(tmp_path / "net.onnx", [1, 3]))


def test_zero_over_zero_at_some_points_is_no_reason_to_refuse_a_network(tmp_path: Path) -> None:
    """Imports are compared at zero, too."""
    g = Graph([1, 2])
    x = g.last
    g.add("Div", x, g.add("MatMul", x, g.number(np.ones((2, 1), np.float32))))
    model = load_onnx(g.save(tmp_path / "net.onnx", [1, 2]))
    torch.testing.assert_close(model(torch.tensor([[1.0, 3.0]])), torch.tensor([[0.25, 0.75]]))


def test_infinity_on_both_sides_is_no_reason_either(tmp_path: Path) -> None:
    g = Graph([1, 2])
    g.add("Div", g.number(np.array([-2.0, 3.0], np.float32)), g.last)
    model = load_onnx(g.save(tmp_path / "net.onnx", [1, 2]))
    torch.testing.assert_close(model(torch.tensor([[4.0, 6.0]])), torch.tensor([[-0.5, 0.5]]))


def test_a_network_that_is_no_number_anywhere_is_refused(tmp_path: Path) -> None:
    g = Graph([1, 2])
    nothing = g.add("Mul", g.last, g.number(np.float32(0.0)))
    g.add("Div", nothing, nothing)
    with pytest.raises(UnsupportedOperationError, match="differs from onnxruntime"):
        load_onnx(g.save(tmp_path / "net.onnx", [1, 2]))


def test_no_batch_of_boxes_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all that is left of a batch is too narrow to cut; some kernels of GPUs do not take empty arrays."""
    subject, sizes = Subject.read(saddle(tmp_path / "net.onnx", 2)), []
    bounded = splitting._bounded

    def watched(network, boxes, *rest):  # type: ignore[no-untyped-def]
        sizes.append(len(boxes.asked))
        return bounded(network, boxes, *rest)

    monkeypatch.setattr(splitting, "_bounded", watched)
    monkeypatch.setattr(splitting, "NARROW", 2.0)
    text = vnnlib([-0.5, -0.5], [1.0, 1.0], 2, "(<= Y_0 -0.5001)")
    split = split_inputs(subject.exact, parse_vnnlib(text).expand(math.inf), subject.judge, math.inf, sound=True)
    assert split.status == "unknown"
    assert min(sizes) > 0


def signs(path: Path, inputs: int) -> Path:
    """y = (mean of the signs of x - 1/2, 0)."""
    g = Graph([1, inputs])
    g.add("Sign", g.add("Sub", g.last, g.number(np.float32(0.5))))
    g.add("MatMul", g.last, g.number(np.array([[1 / inputs, 0.0]] * inputs, np.float32)))
    return g.save(path, [1, 2])


@pytest.mark.parametrize("inputs", [3, 40])
@pytest.mark.parametrize(("limit", "word"), [(1.001, "unsat"), (0.99, "sat")])
def test_a_property_of_signs_is_decided_both_ways(inputs: int, limit: float, word: str, tmp_path: Path) -> None:
    """All of 40 signs are 1 in one corner in 2 ** 40, and gradients lead there."""
    net, spec = signs(tmp_path / "net.onnx", inputs), tmp_path / "spec.vnnlib"
    spec.write_text(vnnlib([0.0] * inputs, [1.0] * inputs, 2, f"(>= Y_0 {limit})"))
    assert verify_vnnlib(net, spec, 60.0).status == word


def test_a_sign_that_is_zero_at_the_edge_of_the_box_alone_is_never_proved_away(tmp_path: Path) -> None:
    subject = Subject.read(signs(tmp_path / "net.onnx", 1))
    for low, high, formula in ((0.5, 1.0, "(<= Y_0 0.5)"), (0.0, 0.5, "(>= Y_0 -0.5)")):
        regions = parse_vnnlib(vnnlib([low], [high], 2, formula)).expand(math.inf)
        assert split_inputs(subject.exact, regions, subject.judge, math.inf, sound=True).status != "unsat"


def test_signs_of_sums_that_nearly_cancel_lie_within_their_bounds(tmp_path: Path) -> None:
    """Sums of 8 products and their opposite, rounded to double precision: only exact arithmetic knows their signs."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((8, 50))
    x = rng.standard_normal(8)
    constants = -(x @ weights)
    g = Graph([1, 8], dtype=np.float64)
    g.add("Sign", g.add("Add", g.add("MatMul", g.last, g.number(weights)), g.number(constants)))
    network = Subject.read(g.save(tmp_path / "net.onnx", [1, 50])).exact
    point = torch.from_numpy(x)[None]
    lower, upper = prepare(network, Box(point, point), sound_for=torch.float64).intervals[network.output]
    for column, constant, low, high in zip(weights.T, constants, lower[0].tolist(), upper[0].tolist(), strict=True):
        total = sum((Fraction(w) * Fraction(v) for w, v in zip(column, x, strict=True)), Fraction(constant))
        assert total != 0
        assert low <= (1 if total > 0 else -1) <= high
    assert bool((upper - lower > 0).any())


def test_no_number_has_no_sign() -> None:
    node, nothing = NODES["sign"], torch.tensor([torch.nan]).double()
    assert bool(node.forward(nothing).isnan().all())
    assert [float(end) for end in node.interval((nothing, nothing))] == [-math.inf, math.inf]


def test_gradients_of_signs_are_those_of_every_row_alone_and_largest_close_to_the_jump() -> None:
    node = NODES["sign"]
    x = torch.tensor([[0.1, -1.0, 4.0], [0.0, 0.0, 0.0], [10.0, -20.0, 0.5]], requires_grad=True)
    (together,) = torch.autograd.grad(node.forward(x).sum(), x)
    alone = [torch.autograd.grad(node.forward(row[None]).sum(), row)[0] for row in x.detach().requires_grad_()]
    assert torch.equal(together, torch.stack(alone))
    assert bool((together > 0).all())
    assert together.argmax(1).tolist()[::2] == [0, 2]
