"""Honest certificates are accepted, and what the checker computes is true."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import certificates
from certificates import Case, packed, unpacked
from lipgraft import interop
from lipgraft.checker import check_file, read_network
from lipgraft.checker.bounds import Forward, Lines
from lipgraft.checker.certificate import Certificate
from lipgraft.checker.check import bound_layers, leaf_bounds, leaf_inputs, refine_layers
from lipgraft.checker.exact import exact_bound
from lipgraft.checker.network import Activation, Network
from lipgraft.grafting import GraftedActivation
from onnx_networks import FAMILIES, least, network


def cases(folder: Path, family: str, count: int, radius: float, refine: bool = False) -> list[Case]:
    made = (certificates.case(folder, family, seed, radius, refine) for seed in range(count))
    return [case for case in made if case is not None]


def written(case: Case, folder: Path) -> Path:
    path = folder / "000000.npz"
    np.savez(path, **case.arrays)
    return path


@pytest.mark.sampled(3)
@pytest.mark.parametrize("refine", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_honest_certificates_are_accepted_also_in_exact_arithmetic(tmp_path: Path, family: str, refine: bool) -> None:
    found = cases(tmp_path, family, 6, 0.2 if family == "grouped" else 0.5, refine)
    assert found
    for case in found:
        outcome = check_file(written(case, tmp_path), case.file, exact=4)
        assert outcome.accepted, outcome.reason
        assert outcome.leaves == len(case.arrays["leaf_row"])
        assert outcome.exact == min(4, outcome.leaves)
        assert outcome.margin > 0


@pytest.mark.long
def test_some_of_these_certificates_split_and_refine(tmp_path: Path) -> None:
    found = [case for family in ("dense", "deep", "leaky") for case in cases(tmp_path, family, 6, 0.5)]
    assert sum(int(case.arrays["leaf_depth"].sum()) for case in found) > 50
    assert any((case.arrays["leaf_beta"] > 0).any() for case in found)
    refined = [case for family in ("dense", "deep") for case in cases(tmp_path, family, 4, 0.5, refine=True)]
    assert any(name.startswith("refined") for case in refined for name in case.arrays)


@pytest.mark.parametrize("family", FAMILIES)
def test_bounds_of_every_neuron_hold_at_sampled_points(tmp_path: Path, family: str) -> None:
    for case in cases(tmp_path, family, 3, 0.2, refine=True):
        forward = bound_layers(Certificate(case.arrays), read_network(case.file.read_bytes()))
        low, high = (case.arrays[end].reshape(-1).astype(float) for end in ("lower", "upper"))
        x = np.random.default_rng(0).uniform(low, high, (500, len(low)))
        x[:100] = np.where(np.random.default_rng(1).random((100, len(low))) < 0.5, low, high)
        values = np.zeros((len(x), case.net.variables))
        values[:, : x.shape[1]] = x
        nodes = [i for i, node in enumerate(forward.network.nodes) if isinstance(node, Activation)]
        for stage, i in zip(case.net.stages, nodes, strict=True):
            z = values @ stage.z.matrix.T + stage.z.offset
            bound = forward.values[forward.network.nodes[i].inputs[0]]
            assert (bound.low - 1e-12 <= z).all()
            assert (z <= bound.high + 1e-12).all()
            assert (abs(z) <= bound.mag * (1 + 1e-12)).all()
            values[:, stage.first : stage.first + z.shape[1]] = np.maximum(z, stage.left * z)
        y, out = case.net(x), forward.values[forward.network.output]
        assert ((out.low - 1e-12 <= y) & (y <= out.high + 1e-12)).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_bound_in_double_precision_is_below_the_exact_one_and_not_by_much(tmp_path: Path, family: str) -> None:
    for case in cases(tmp_path, family, 3, 0.3, refine=True):
        certificate, net = Certificate(case.arrays), read_network(case.file.read_bytes())
        plain = bound_layers(certificate, net)
        refined = refine_layers(certificate, plain)
        rows, offset = certificate.claim(3)
        table = certificate.fractions("alpha", plain.given)
        leaves = certificate.leaves(len(rows), len(table), plain.given)
        for leaf in range(min(4, len(leaves.row))):
            forward, members = plain if leaves.alpha[leaf] < 0 else refined, np.array([leaf])
            (rounded,) = leaf_bounds(forward, rows, offset, table, leaves, members)
            splits, slopes = leaf_inputs(forward, table, leaves, members)
            exact = exact_bound(forward, rows[leaves.row[leaf]], 0.0, slopes[0], splits)
            assert 0 < exact - float(rounded) < 1e-9


def test_an_accepted_class_is_the_largest_by_a_mixed_integer_program(tmp_path: Path) -> None:
    for case in cases(tmp_path, "dense", 6, 0.5) + cases(tmp_path, "graft", 3, 0.5):
        label = unpacked(case.arrays)["label"]
        ends = [case.arrays[end].reshape(-1).astype(float) for end in ("lower", "upper")]
        outcome = check_file(written(case, tmp_path), case.file)
        exact = min(least(case.net, *ends, row) for row in certificates.claim(label, 3))
        assert outcome.margin <= exact + 1e-6


def test_crowns_own_slopes_go_with_the_bounds_before_they_were_refined(tmp_path: Path) -> None:
    seen = 0
    for case in cases(tmp_path, "deep", 8, 0.15, refine=True):
        refined = [name for name in case.arrays if name.startswith("refined")]
        case.arrays["leaf_alpha"][:] = -1
        first = check_file(written(case, tmp_path), case.file)
        case.arrays = {name: array for name, array in case.arrays.items() if name not in refined}
        assert check_file(written(case, tmp_path), case.file).margin == first.margin
        seen += first.accepted and bool(refined)
    assert seen > 0


def test_slopes_in_two_bytes_are_the_same_as_in_one(tmp_path: Path) -> None:
    """x / 255 = 257 x / 65535."""
    for case in cases(tmp_path, "deep", 4, 0.4, refine=True):
        margin = check_file(written(case, tmp_path), case.file).margin
        for name in [name for name in case.arrays if name == "alpha" or name.endswith("_alpha")]:
            if case.arrays[name].dtype == np.uint8:
                case.arrays[name] = case.arrays[name].astype(np.uint16) * np.uint16(257)
        assert check_file(written(case, tmp_path), case.file).margin == pytest.approx(margin)


def test_rows_with_offsets_are_a_claim_too(tmp_path: Path) -> None:
    (case, *_) = cases(tmp_path, "dense", 4, 0.3)
    label = unpacked(case.arrays)["label"]
    rows = certificates.claim(label, 3)
    case.arrays |= {"meta": packed({**unpacked(case.arrays), "claim": "rows"}), "rows": rows, "offset": np.zeros(2)}
    assert check_file(written(case, tmp_path), case.file).accepted
    case.arrays["offset"] = np.array([0.0, -100.0])
    assert "not proved" in check_file(written(case, tmp_path), case.file).reason


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "double"])
def test_honest_certificates_of_float32_hardware_are_accepted(tmp_path: Path, family: str) -> None:
    for seed in range(4):
        case = certificates.case(tmp_path, family, seed, 0.2, True, spare=1e-4, speaks_of="float32")
        if case is not None:
            outcome = check_file(written(case, tmp_path), case.file, exact=2)
            assert outcome.accepted, outcome.reason
            case.arrays["meta"] = packed({**unpacked(case.arrays), "speaks_of": "real"})
            assert check_file(written(case, tmp_path), case.file).margin > outcome.margin + 1e-8


def test_a_proof_of_float32_hardware_needs_a_larger_margin(tmp_path: Path) -> None:
    """Where an offset leaves less than the hardware's error, the real claim stands and the other does not."""
    case = certificates.case(tmp_path, "deep", 1, 0.2, spare=1e-4)
    assert case is not None
    margin = check_file(written(case, tmp_path), case.file).margin
    rows, facts = certificates.claim(unpacked(case.arrays)["label"], 3), unpacked(case.arrays)
    for spoken, left, accepted in (("real", 1e-8, True), ("float32", 1e-8, False), ("float32", 1e-3, True)):
        case.arrays["meta"] = packed({**facts, "claim": "rows", "speaks_of": spoken})
        case.arrays |= {"rows": rows, "offset": np.full(2, left - margin)}
        outcome = check_file(written(case, tmp_path), case.file)
        assert outcome.accepted is accepted, (spoken, left, outcome.reason)


def test_double_weights_that_no_float32_has_allow_no_proof_of_float32_hardware(tmp_path: Path) -> None:
    case = certificates.case(tmp_path, "double", 0, 0.2, spare=1e-4, speaks_of="float32")
    assert case is not None
    assert "float32 numbers" in check_file(written(case, tmp_path), case.file).reason


@pytest.mark.parametrize("left", [0.0, 0.1])
def test_float32_evaluation_in_any_order_stays_within_the_intervals(left: float) -> None:
    """Of a point: the interval of each logit is as wide as what the hardware may be off."""
    random, net = np.random.default_rng(0), network("leaky" if left else "deep", 3)
    for _ in range(50):
        x = random.uniform(-1, 1, 3).astype(np.float32)
        forward, values = interval_pass(read_network(net.onnx()), x.astype(float), x.astype(float), True), x
        for node, bound in zip(forward.network.nodes[1:], forward.values[1:], strict=True):
            if isinstance(node, Activation):
                values = np.where(values > 0, values, np.float32(left) * values)
            else:
                weight, total = node.weight.astype(np.float32), node.bias.astype(np.float32)
                for j in random.permutation(len(values)):
                    total = total + weight[:, j] * values[j]
                values = total
            assert values.dtype == np.float32
            assert ((bound.low <= values) & (values <= bound.high)).all()
        assert (bound.high - bound.low > 0).all()
        assert (bound.high - bound.low < 1e-4).all()


def interval_pass(net: Network, low: np.ndarray, high: np.ndarray, hardware: bool = False) -> Forward:
    """Bounds of every node by intervals alone."""
    forward = Forward(net, low, high, hardware)
    for node in net.nodes[1:]:
        if isinstance(node, Activation):
            z = forward.values[node.inputs[0]]
            at = np.flatnonzero((z.low < 0) & (z.high > 0))
            lines = Lines.of(forward.given, node.slope, z.low >= 0, at, z.low[at], z.high[at])
            forward.activation(node, lines, z.low, z.high)
        else:
            forward.affine(node)
    return forward


class Skips(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1, groups=2)
        self.last = nn.Linear(4 * 6 * 5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.first(x))
        return self.last((h - torch.relu(self.second(h))).flatten(1))


def grafted(*shape: int) -> nn.Module:
    return GraftedActivation(nn.ReLU(), torch.rand(shape) < 0.5, torch.randn(shape), torch.randn(shape))


MODELS = {
    "padded": lambda: nn.Sequential(
        nn.ZeroPad2d((1, 2, 0, 3)), nn.Conv2d(2, 3, (3, 2), stride=2), grafted(3, 4, 4), nn.Flatten(), nn.Linear(48, 3)
    ),
    "dilated": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 2, dilation=2, padding=1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(90, 3)
    ),
    "transposed": lambda: nn.Sequential(
        nn.ConvTranspose2d(2, 4, 3, stride=2, padding=1, output_padding=1, groups=2),
        nn.ReLU(),
        nn.ConvTranspose2d(4, 1, (2, 3), dilation=2, bias=False),
        nn.Flatten(),
        nn.Linear(14 * 14, 3),
    ),
    "averages": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, 3)
    ),
    "skips": Skips,
}


@pytest.mark.parametrize("name", MODELS)
def test_what_lipgraft_exports_is_read_as_the_same_function(tmp_path: Path, name: str) -> None:
    model = MODELS[name]().eval()
    interop.export_onnx(model, tmp_path / "net.onnx", (2, 6, 5))
    net = read_network((tmp_path / "net.onnx").read_bytes())
    for x in torch.rand(5, 2, 6, 5):
        flat = x.reshape(-1).double().numpy()
        out = (forward := interval_pass(net, flat, flat)).values[net.output]
        with torch.no_grad():
            expected = model.double()(x[None].double())[0].numpy()
        assert (out.high - out.low < 1e-9).all()
        assert (abs((out.low + out.high) / 2 - expected) < 1e-5).all()
        for target, node in enumerate(net.nodes[1:], 1):  # going back is the transpose of going forward
            if not isinstance(node, Activation):
                rows = np.random.default_rng(0).normal(size=(3, node.size))
                inputs = [np.random.default_rng(1 + i).normal(size=(1, net.nodes[i].size)) for i in node.inputs]
                there = (rows @ node.linear(*inputs).T)[:, 0]
                back = sum((part @ x_.T)[:, 0] for part, x_ in zip(node.back(rows), inputs, strict=True))
                assert np.allclose(there, back)
                picked = [np.vstack(part) for part in zip(*(node.picked(np.array([j])) for j in range(3)), strict=True)]
                assert all(
                    np.array_equal(a, b) for a, b in zip(picked, node.back(np.eye(node.size)[:3]), strict=True)
                ), target
        assert forward.given == 0 or name == "dilated"


def test_counterexamples_are_evaluated_and_must_lie_in_the_box(tmp_path: Path) -> None:
    net = network("dense", 0)
    file = tmp_path / "net.onnx"
    file.write_bytes(net.onnx())
    x = np.array([0.25, -0.5, 0.125], np.float32)
    wrong = int(net(x[None].astype(float)).argmin())
    facts = {"format": "lipgraft-counterexample", "network": hashlib.sha256(file.read_bytes()).hexdigest()}
    arrays = {"lower": x - np.float32(0.1), "upper": x + np.float32(0.1), "x": x}

    def outcome(label: int, **changed: np.ndarray) -> str:
        path = tmp_path / "000003.counterexample.npz"
        np.savez(path, **{"meta": packed({**facts, "label": label}), **arrays, **changed})
        found = check_file(path, file)
        assert found.kind == "counterexample"
        assert found.accepted is not bool(found.reason)
        return found.reason

    assert outcome(wrong) == ""
    assert "no row" in outcome(int(net(x[None].astype(float)).argmax()))
    assert "not in the box" in outcome(wrong, x=x + np.float32(0.2))
    assert "not finite" in outcome(wrong, x=np.full(3, np.nan, np.float32))
