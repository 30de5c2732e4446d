"""Planes above neurons in certificates: what the checker makes of them is true, whatever numbers a file has."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import certificates
from certificates import Case, packed, unpacked
from lipgraft.checker import Rejected, check_file, read_network
from lipgraft.checker.certificate import Certificate
from lipgraft.checker.check import PlaneSets, bound_layers, judge, leaf_bounds, leaf_inputs, refine_layers
from lipgraft.checker.exact import exact_bound
from lipgraft.checker.planes import Choice, Reads
from onnx_networks import Net, least
from prover import Arrays, Prover

pytestmark = pytest.mark.xdist_group("planes")  # one process makes the fixture, and runs all tests on it

Random = np.random.Generator
FAMILIES = [("dense", 0.5), ("deep", 0.5), ("grouped", 0.2), ("graft", 0.5), ("residual", 0.5)]


@pytest.fixture(scope="module")
def lifted(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    """Certificates in which some leaf has planes."""
    folder, found = tmp_path_factory.mktemp("lifted"), []
    for family, radius in FAMILIES:
        for seed in range(6):
            case = certificates.case(folder, family, seed, radius, seed % 2 == 1, lift=True)
            if case is not None and (case.arrays["leaf_plane"] >= 0).any():
                found.append(case)
    assert len(found) >= 8
    assert {case.file.name.split("-")[0] for case in found} >= {"dense", "deep", "grouped", "graft"}
    assert any(name.startswith("refined") for case in found for name in case.arrays)
    return found


def outcome(case: Case, arrays: Arrays, folder: Path, exact: int = 0) -> tuple[float, str]:
    """The margin and the reason, one of which is nothing."""
    np.savez(folder / "a.npz", **arrays)
    found = check_file(folder / "a.npz", case.file, exact=exact)
    assert found.accepted is not bool(found.reason)
    return found.margin, found.reason


def test_honest_certificates_are_accepted_also_in_exact_arithmetic(lifted: list[Case], tmp_path: Path) -> None:
    for case in lifted:
        margin, reason = outcome(case, case.arrays, tmp_path, exact=6)
        assert not reason
        label = unpacked(case.arrays)["label"]
        ends = [case.arrays[end].reshape(-1).astype(float) for end in ("lower", "upper")]
        assert 0 < margin <= min(least(case.net, *ends, row) for row in certificates.claim(label, 3)) + 1e-6


def test_some_leaves_are_proved_by_their_planes_alone(lifted: list[Case], tmp_path: Path) -> None:
    plain = [{name: array for name, array in case.arrays.items() if name != "leaf_plane"} for case in lifted]
    reasons = [outcome(case, arrays, tmp_path)[1] for case, arrays in zip(lifted, plain, strict=True)]
    assert any("not proved" in reason for reason in reasons)


def test_planes_in_two_bytes_are_the_same_as_in_one(lifted: list[Case], tmp_path: Path) -> None:
    """x / 255 = 257 x / 65535."""
    for case in lifted[:4]:
        names = [name for name in case.arrays if name.endswith(("_share", "_low", "_high"))]
        wide = {name: case.arrays[name].astype(np.uint16) * np.uint16(257) for name in names}
        margin, _ = outcome(case, case.arrays, tmp_path)
        assert outcome(case, case.arrays | wide, tmp_path)[0] == pytest.approx(margin)


# ---------------------------------------------------------------- the planes themselves


def values_at(net: Net, x: list[Fraction]) -> list[Fraction]:
    """All variables at a point, without rounding."""
    values = list(x)
    for stage in net.stages:
        for row, offset in zip(stage.z.matrix, stage.z.offset, strict=True):
            z = Fraction(float(offset)) + sum(Fraction(float(w)) * v for w, v in zip(row, values, strict=False) if w)
            values.append(max(z, Fraction(stage.left) * z))
    return values


def points(low: np.ndarray, high: np.ndarray, count: int) -> list[list[Fraction]]:
    """Corners and others."""
    random = np.random.default_rng(0)
    x = random.uniform(low, high, (count, len(low)))
    x[::2] = np.where(random.random((len(x[::2]), len(low))) < 0.5, low, high)
    return [[Fraction(float(part)) for part in point] for point in x]


def test_every_plane_lies_above_its_neuron_at_every_point_in_exact_arithmetic(lifted: list[Case]) -> None:
    seen = 0
    for case in lifted:
        certificate = Certificate(case.arrays)
        refined = refine_layers(certificate, bound_layers(certificate, read_network(case.file.read_bytes())))
        sets = PlaneSets.of(certificate, refined)
        ends = [case.arrays[end].reshape(-1).astype(float) for end in ("lower", "upper")]
        exact = [values_at(case.net, x) for x in points(*ends, 12)]
        stages = dict(zip(refined.lines, case.net.stages, strict=True))
        for number in range(sets.count):
            for v, above in sets.lifted(number, refined).planes.items():
                slopes = np.concatenate(list(above.slope.values()), axis=1)
                for place, slope, const in zip(above.place, slopes, above.const, strict=True):
                    neuron = stages[v].first + refined.lines[v].index[place]
                    for values in exact:
                        plane = sum(Fraction(float(s)) * x for s, x in zip(slope, values, strict=False))
                        assert values[neuron] <= plane + Fraction(float(const))
                        seen += 1
    assert seen > 1000


def formula(reads: Reads, choice: Choice, weight: np.ndarray, bias: float, j: int) -> Fraction:
    """The constant of plane j, without rounding. weight: of all values that the neuron reads."""
    p, q, b, lower, upper = (
        Fraction(float(x)) for x in (choice.low[j], choice.high[j], bias, reads.lower[j], reads.upper[j])
    )
    below, over = p * (b - lower), q * upper + (1 - q) * b
    for w, c, *ends in zip(weight, choice.share[j], reads.low, reads.high, strict=True):
        w, c, low, high = (Fraction(float(x)) for x in (w, c, *ends))
        below += max((p - c) * w * low, (p - c) * w * high)
        over += max((1 - q - c) * w * low, (1 - q - c) * w * high)
    return max(below, over)


def test_constants_are_those_of_the_formula_and_hardly_more(lifted: list[Case]) -> None:
    seen = 0
    for case in lifted:
        if case.file.name.startswith(("graft", "residual")):
            continue  # weights that are sums
        certificate = Certificate(case.arrays)
        refined = refine_layers(certificate, bound_layers(certificate, read_network(case.file.read_bytes())))
        sets = PlaneSets.of(certificate, refined)
        stages = dict(zip(refined.lines, case.net.stages, strict=True))
        for number in range(sets.count):
            reads, choices = sets.one(number)
            for v, above in sets.lifted(number, refined).planes.items():
                for j, neuron in enumerate(refined.lines[v].index[above.place]):
                    z = stages[v].z
                    weight = z.matrix[neuron, : len(reads[v].low)]
                    exact = formula(reads[v], choices[v], weight, z.offset[neuron], j)
                    assert exact < Fraction(float(above.const[j])) < exact + Fraction(1e-9)
                    seen += 1
    assert seen > 50


def test_a_bound_in_double_precision_is_below_the_exact_one_and_not_by_much(lifted: list[Case]) -> None:
    seen = 0
    for case in lifted:
        certificate = Certificate(case.arrays)
        plain = bound_layers(certificate, read_network(case.file.read_bytes()))
        refined = refine_layers(certificate, plain)
        rows, offset = certificate.claim(3)
        table, sets = certificate.fractions("alpha", plain.given), PlaneSets.of(certificate, refined)
        leaves = certificate.leaves(len(rows), len(table), plain.given, sets.count)
        for leaf in np.flatnonzero(leaves.plane >= 0)[:3]:
            forward, members = sets.lifted(int(leaves.plane[leaf]), refined), np.array([leaf])
            (rounded,) = leaf_bounds(forward, rows, offset, table, leaves, members)
            splits, slopes = leaf_inputs(forward, table, leaves, members)
            exact = exact_bound(forward, rows[leaves.row[leaf]], 0.0, slopes[0], splits)
            assert 0 < exact - float(rounded) < 1e-9
            seen += 1
    assert seen > 8


def cancelling(random: Random) -> Net:
    """Neurons in pairs that nearly cancel, with large weights behind them: what is left is mostly rounding."""
    net = Net((4,), random, np.float64)
    w, b = np.repeat(random.normal(size=(4, 4)), 2, axis=0), np.repeat(random.normal(size=4) / 4, 2)
    h = net.act(net.dense(net.start, 8, w, b * np.tile([1, 1 + 2.0**-18], 4)))
    w = np.repeat(random.normal(size=(4, 4)), 2, axis=1) * np.tile([1, -1], 4) * 2.0**20
    h = net.act(net.dense(h, 4, w, random.normal(size=4) / 4))
    return net.finish(net.dense(h, 2, random.normal(size=(2, 4)), random.normal(size=2)))


def test_rounding_never_lifts_a_bound_with_planes_above_a_true_value() -> None:
    seen = 0
    for seed in range(12):
        random = np.random.default_rng(seed)
        net = cancelling(random)
        centre = random.uniform(-1, 1, 4)
        low, high = centre - 0.05, centre + 0.05
        prover = Prover(net, low, high, 1e-4)
        rows = certificates.claim(0, 2)
        arrays: Arrays = prover.lift(rows) | {"lower": low, "upper": high}
        facts = {"format": "lipgraft-certificate", "version": 2, "label": 0}
        arrays |= {"meta": packed(facts), "alpha": random.integers(0, 256, (1, int(prover.first[-1]))).astype(np.uint8)}
        for k, layer in enumerate(prover.plain):
            arrays |= {f"unstable_{k}": layer.unstable, f"lower_{k}": layer.lower, f"upper_{k}": layer.upper}
        arrays |= {name: np.zeros(1, np.int32) for name in ("leaf_row", "leaf_alpha", "leaf_depth")}
        certificate = Certificate(arrays)
        refined = bound_layers(certificate, read_network(net.onnx()))
        sets = PlaneSets.of(certificate, refined)
        table, claim = certificate.fractions("alpha", refined.given), certificate.claim(2)
        assert net.out is not None
        out = rows[0] @ net.out.matrix, rows[0] @ net.out.offset
        true = []
        for x in points(low, high, 16):
            values = values_at(net, x)
            logits = [
                Fraction(float(c)) + sum(Fraction(float(w)) * v for w, v in zip(row, values, strict=True))
                for row, c in zip(net.out.matrix, net.out.offset, strict=True)
            ]
            true.append(logits[0] - logits[1])
        for number in range(sets.count):
            leaves = certificate.leaves(1, 1, refined.given, sets.count)
            forward = sets.lifted(number, refined)
            (bound,) = leaf_bounds(forward, *claim, table, leaves, np.zeros(1, int))
            assert Fraction(float(bound)) < min(true)
            assert bound > prover.bound(*out, table[0], planes=number) - 1e-3
            seen += len(forward.planes)
    assert seen > 40


# ---------------------------------------------------------------- changed files


def some(arrays: Arrays, random: Random, end: str) -> str:
    names = [name for name in sorted(arrays) if name.startswith("plane_") and name.endswith(end)]
    return names[int(random.integers(len(names)))]


def changed(arrays: Arrays, name: str, random: Random, low: int, high: int, share: float = 0.0) -> Arrays:
    """One number, or a share of all, made anew."""
    array = arrays[name].copy()
    where = random.random(array.size) < share
    where[random.integers(array.size)] = True
    array.reshape(-1)[where] = random.integers(low, high, int(where.sum()))
    return {**arrays, name: array}


def moved_box(arrays: Arrays, random: Random) -> Arrays:
    scale = np.float32(10.0 ** random.uniform(-4, -1))
    shift = abs(random.normal(size=arrays["lower"].shape)).astype(np.float32) * scale
    return {**arrays, "lower": arrays["lower"] - shift, "upper": arrays["upper"] + shift}


MUTATIONS: list[Callable[[Arrays, Random], Arrays]] = [
    lambda a, r: changed(a, some(a, r, "_share"), r, 0, 256),
    lambda a, r: changed(a, some(a, r, "_share"), r, 0, 256, 0.3),
    lambda a, r: changed(a, some(a, r, "_low"), r, 0, 256, 0.3),
    lambda a, r: changed(a, some(a, r, "_high"), r, 0, 256, 0.3),
    lambda a, r: changed(a, some(a, r, "_neuron"), r, 0, 5),
    lambda a, r: changed(a, some(a, r, "_used"), r, 0, 2, 0.2),
    lambda a, r: changed(a, some(a, r, "_source"), r, -3, 3),
    lambda a, r: changed(a, "leaf_plane", r, -1, 4, 0.5),
    lambda a, r: changed(a, "leaf_alpha", r, -1, len(a["alpha"])),
    moved_box,
]


@pytest.mark.long
def test_a_thousand_changed_certificates_are_rejected_or_still_proofs(lifted: list[Case]) -> None:
    random, known, accepted, rejected = np.random.default_rng(0), {}, 0, 0
    networks = {case.digest: read_network(case.file.read_bytes()) for case in lifted}
    for number in range(1000):
        case = lifted[number % len(lifted)]
        arrays = case.arrays
        for _ in range(int(random.integers(1, 3))):
            arrays = MUTATIONS[int(random.integers(len(MUTATIONS)))](arrays, random)
        try:
            judge(Certificate(arrays), case.digest, networks[case.digest])
        except Rejected:
            rejected += 1
            continue
        accepted += 1
        low, high = (arrays[end].reshape(-1).astype(float) for end in ("lower", "upper"))
        key = case.digest, low.tobytes() + high.tobytes()
        if key not in known:
            label = unpacked(arrays)["label"]
            known[key] = min(least(case.net, low, high, row) for row in certificates.claim(label, 3))
        assert known[key] > -1e-7
    assert accepted > 100
    assert rejected > 200


def last(arrays: Arrays, end: str) -> str:
    return max(name for name in arrays if name.startswith("plane_") and name.endswith(end))


def put(arrays: Arrays, end: str, change: Callable[[np.ndarray], np.ndarray]) -> Arrays:
    name = last(arrays, end)
    return {**arrays, name: change(arrays[name])}


# Changes that leave no proof at all, each with a word of the reason.
ALWAYS_REJECTED: dict[str, tuple[Callable[[Arrays], Arrays], str]] = {
    "shares that are no fractions": (lambda a: put(a, "_share", lambda s: s / 255), "type"),
    "NaN": (lambda a: put(a, "_low", lambda s: s * np.nan), "type"),
    "shares above one": (lambda a: put(a, "_share", lambda s: s.astype(np.int16) + 256), "type"),
    "shares of four bytes": (lambda a: put(a, "_share", lambda s: s.astype(np.uint32)), "bytes"),
    "a set less": (lambda a: put(a, "_share", lambda s: s[1:]), "do not fit"),
    "a neuron less": (lambda a: put(a, "_neuron", lambda s: s[1:]), "shape"),
    "a value less": (lambda a: put(a, "_share", lambda s: s[:, :, 1:]), "shape"),
    "no multipliers": (lambda a: {n: v for n, v in a.items() if not n.endswith("_high")}, "do not fit"),
    "no neurons": (lambda a: {n: v for n, v in a.items() if not n.endswith("_neuron") or "refined" in n}, "missing"),
    "a neuron twice": (lambda a: put(a, "_neuron", lambda s: np.append(s, s[-1])), "order"),
    "a neuron that there is not": (lambda a: put(a, "_neuron", lambda s: s + 10_000), "range"),
    "a plane that is neither there nor not": (lambda a: put(a, "_used", lambda s: s + 1), "range"),
    "nobody knows who has planes": (lambda a: {n: v for n, v in a.items() if not n.endswith("_used")}, "missing"),
    "the input twice": (lambda a: put(a, "_source", lambda s: np.append(s, -1)), "twice"),
    "a source less": (lambda a: put(a, "_source", lambda s: s[:-1]), "shape|more than the sources"),
    "a source that comes later": (lambda a: put(a, "_source", lambda s: s + 1), "before|range|twice"),
    "a set that there is not": (lambda a: {**a, "leaf_plane": a["leaf_plane"] + 4}, "range"),
    "planes for fewer leaves": (lambda a: {**a, "leaf_plane": a["leaf_plane"][1:]}, "shape"),
    "no planes at all": (lambda a: {n: v for n, v in a.items() if not n.startswith("plane_")}, "range"),
    "CROWN's own slopes": (lambda a: {**a, "leaf_alpha": np.full_like(a["leaf_alpha"], -1)}, "slopes of its own"),
    "another version": (lambda a: {**a, "meta": packed({**unpacked(a), "version": 3})}, "version"),
    "a version that is a truth value": (lambda a: {**a, "meta": packed({**unpacked(a), "version": True})}, "version"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ALWAYS_REJECTED)
def test_a_change_that_leaves_no_proof_is_rejected_with_its_reason(
    name: str, lifted: list[Case], tmp_path: Path
) -> None:
    change, words = ALWAYS_REJECTED[name]
    for case in lifted:
        reason = outcome(case, change(case.arrays), tmp_path)[1]
        assert any(word in reason for word in words.split("|")), reason


def test_a_neuron_with_a_plane_must_be_listed_as_unstable(lifted: list[Case], tmp_path: Path) -> None:
    tried = 0
    for case in lifted:
        name = last(case.arrays, "_neuron")
        listed, k = case.arrays[name], int(name.split("_")[1])
        others = np.setdiff1d(np.arange(len(case.net.stages[k].z.offset)), listed)
        if len(others):
            moved = np.sort(np.append(listed[1:], others[0])).astype(np.int32)
            assert "not listed" in outcome(case, {**case.arrays, name: moved}, tmp_path)[1]
            tried += 1
    assert tried > 2


def test_a_sum_of_two_activations_is_one_source_by_whatever_name(tmp_path: Path) -> None:
    """What a neuron reads would count twice: max(x, 0) + max(-x, 0) - 1.5 seen as 2 |x| - 1.5."""
    net = Net((1,), np.random.default_rng(0), np.float64)
    h = [net.act(net.dense(net.start, 1, np.array([[sign]]), np.zeros(1))) for sign in (1.0, -1.0)]
    h_last = net.act(net.dense(net.add(*h), 1, np.ones((1, 1)), np.array([-1.5])))
    net.finish(net.dense(h_last, 2, np.array([[0.0], [1.0]]), np.array([0.25, 0.0])))
    low, high = np.array([-2.0]), np.array([2.0])
    assert least(net, low, high, np.array([1.0, -1.0])) == pytest.approx(-0.25)
    prover = Prover(net, low, high)
    (tmp_path / "net.onnx").write_bytes(net.onnx())
    digest = hashlib.sha256(net.onnx()).hexdigest()
    facts = {"format": "lipgraft-certificate", "version": 2, "network": digest, "label": 0}
    arrays: Arrays = {"meta": packed(facts), "lower": low, "upper": high, "alpha": np.zeros((1, 3), np.uint8)}
    arrays |= {name: np.zeros(1, np.int32) for name in ("leaf_row", "leaf_alpha", "leaf_plane", "leaf_depth")}
    for k, layer in enumerate(prover.plain):
        arrays |= {f"unstable_{k}": layer.unstable, f"lower_{k}": layer.lower, f"upper_{k}": layer.upper}
    arrays |= {"plane_2_neuron": np.zeros(1, np.int32), "plane_2_used": np.ones((1, 1), np.uint8)}
    arrays |= {f"plane_2_{end}": np.zeros((1, 1), np.uint8) for end in ("low", "high")}
    case = Case(net, tmp_path / "net.onnx", digest, arrays)
    for names, reason in (([-2], "not proved"), ([-3], "not proved"), ([0, 1], "not proved"), ([-2, -3], "twice")):
        for share in (0, 100, 255):
            arrays["plane_2_source"] = np.array(names, np.int32)
            arrays["plane_2_share"] = np.full((1, 1, len(names)), share, np.uint8)
            assert reason in outcome(case, arrays, tmp_path)[1]


def test_planes_are_above_relus_alone(tmp_path: Path) -> None:
    case = next(c for s in range(6) if (c := certificates.case(tmp_path, "leaky", s, 0.5, lift=True)) is not None)
    neurons = len(case.arrays["unstable_0"])
    forged = {"plane_0_neuron": case.arrays["unstable_0"], "plane_0_source": np.array([-1], np.int32)}
    forged |= {"plane_0_share": np.zeros((1, neurons, 3), np.uint8), "plane_0_low": np.zeros((1, neurons), np.uint8)}
    forged |= {f"plane_0_{name}": np.zeros((1, neurons), np.uint8) for name in ("high", "used")}
    assert "no ReLU" in outcome(case, case.arrays | forged, tmp_path)[1]


def test_planes_prove_nothing_about_float32(tmp_path: Path) -> None:
    facts = {"spare": 1e-4, "lift": True, "speaks_of": "float32"}
    case = next(c for s in range(6) if (c := certificates.case(tmp_path, "deep", s, 0.3, **facts)) is not None)
    assert "real numbers alone" in outcome(case, case.arrays, tmp_path)[1]
    plain = {name: array for name, array in case.arrays.items() if "plane" not in name}
    case.arrays["leaf_plane"][:] = -1
    assert "real numbers alone" in outcome(case, case.arrays, tmp_path)[1]
    assert "real numbers" not in outcome(case, plain, tmp_path)[1]
