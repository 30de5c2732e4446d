"""Nothing false is accepted: changed certificates, changed networks, damaged files, arithmetic that underflows."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import onnx
import pytest

import certificates
from certificates import Case, packed, unpacked
from forged import model
from lipgraft.checker import Outcome, Rejected, check_file, check_folder, read_network
from lipgraft.checker.certificate import Certificate
from lipgraft.checker.check import judge
from onnx_networks import Net, least, network
from prover import Arrays

pytestmark = pytest.mark.xdist_group("hostile")  # one process makes the fixture, and runs all tests on it

Random = np.random.Generator


def write(path: Path, arrays: Arrays) -> Path:
    np.savez(path, **arrays)
    return path


def meta(arrays: Arrays, **changed: object) -> Arrays:
    return {**arrays, "meta": packed({**unpacked(arrays), **changed})}


@pytest.fixture(scope="module")
def splitting(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    """Certificates with splits, multipliers, slopes and refined bounds."""
    folder = tmp_path_factory.mktemp("cases")
    found = []
    of_float32 = {"spare": 1e-4, "speaks_of": "float32"}
    for family, seed, refine, facts in [
        ("dense", 8, False, {}),
        ("deep", 1, True, {}),
        ("leaky", 8, False, of_float32),
        ("graft", 3, True, of_float32),
    ]:
        for more in range(60):
            case = certificates.case(folder, family, seed + more, 0.55, refine, **facts)
            if case is None or case.arrays["leaf_depth"].max() == 0 or not len(case.arrays["unstable_1"]):
                continue
            if any(name.startswith("refined") for name in case.arrays) == refine:
                found.append(case)
                break
    assert len(found) == 4
    return found


class Truth:
    """Whether a claim holds, by mixed-integer programs; each is solved once."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, bytes, int], float] = {}

    def margin(self, net: Net, arrays: Arrays) -> float:
        label = unpacked(arrays)["label"]
        low, high = (arrays[end].reshape(-1).astype(float) for end in ("lower", "upper"))
        key = id(net), low.tobytes() + high.tobytes(), label
        if key not in self.known:
            self.known[key] = min(least(net, low, high, row) for row in certificates.claim(label, 3))
        return self.known[key]


def pick(random: Random, array: np.ndarray) -> int:
    return int(random.integers(len(array)))


def with_change(arrays: Arrays, name: str, random: Random, change: Callable[[np.ndarray, int], object]) -> Arrays:
    if len(arrays.get(name, ())) == 0:
        return arrays
    changed = arrays[name].copy()
    flat = changed.reshape(-1)
    at = pick(random, flat)
    flat[at] = change(flat, at)
    return {**arrays, name: changed}


def without_leaf(arrays: Arrays, random: Random, twice: bool = False) -> Arrays:
    leaf = pick(random, arrays["leaf_row"])
    counts = np.ones(len(arrays["leaf_row"]), int)
    counts[leaf] = 2 if twice else 0
    depth = arrays["leaf_depth"]
    order = np.repeat(np.arange(len(depth)), counts)
    starts = np.cumsum(depth) - depth
    splits = np.concatenate([np.arange(starts[i], starts[i] + depth[i]) for i in order] + [np.empty(0, int)])
    splits %= max(1, len(arrays["leaf_split"]))  # depths may be wrong already
    parts = {name: arrays[name][order] for name in ("leaf_row", "leaf_alpha", "leaf_depth")}
    return {**arrays, **parts, **{name: arrays[name][splits] for name in ("leaf_split", "leaf_beta")}}


def moved_box(arrays: Arrays, random: Random) -> Arrays:
    scale = np.float32(10.0 ** random.uniform(-4, 0))
    shift = random.normal(size=arrays["lower"].shape).astype(np.float32) * scale
    return {**arrays, "lower": arrays["lower"] + shift, "upper": arrays["upper"] + abs(shift)}


def some_layer(arrays: Arrays, random: Random, kind: str) -> str:
    names = [name for name in sorted(arrays) if name.startswith(kind) and len(arrays[name])]
    return names[pick(random, np.array(names))] if names else kind


MUTATIONS: dict[str, Callable[[Arrays, Random], Arrays]] = {
    "sign": lambda a, r: with_change(a, "leaf_split", r, lambda s, i: -s[i]),
    "neuron": lambda a, r: with_change(a, "leaf_split", r, lambda s, i: r.integers(1, a["alpha"].shape[1] + 1)),
    "slope": lambda a, r: with_change(a, "alpha", r, lambda s, i: r.integers(256)),
    "which slopes": lambda a, r: with_change(a, "leaf_alpha", r, lambda s, i: r.integers(-1, len(a["alpha"]))),
    "multiplier": lambda a, r: with_change(a, "leaf_beta", r, lambda b, i: r.exponential(2.0)),
    "negative multiplier": lambda a, r: with_change(a, "leaf_beta", r, lambda b, i: -r.exponential(2.0)),
    "row": lambda a, r: with_change(a, "leaf_row", r, lambda s, i: r.integers(-1, 3)),
    "depth": lambda a, r: with_change(a, "leaf_depth", r, lambda d, i: d[i] + r.integers(-1, 2)),
    "missing leaf": without_leaf,
    "leaf twice": lambda a, r: without_leaf(a, r, twice=True),
    "box": moved_box,
    "label": lambda a, r: meta(a, label=int(r.integers(-1, 4))),
    "lower": lambda a, r: with_change(a, some_layer(a, r, "lower_"), r, lambda s, i: s[i] * r.uniform(-0.2, 2)),
    "upper": lambda a, r: with_change(a, some_layer(a, r, "upper_"), r, lambda s, i: s[i] * r.uniform(-0.2, 2)),
    "unstable": lambda a, r: with_change(a, some_layer(a, r, "unstable_"), r, lambda s, i: r.integers(0, 5)),
    "refined": lambda a, r: with_change(
        a, next((n for n in sorted(a) if n.endswith("_bound")), ""), r, lambda s, i: s[i] + r.normal() * 0.1
    ),
    "refined side": lambda a, r: with_change(
        a, next((n for n in sorted(a) if n.endswith("_side")), ""), r, lambda s, i: -s[i]
    ),
    "refined slopes": lambda a, r: with_change(
        a, next((n for n in sorted(a) if n.startswith("refined") and "alpha" in n), ""), r, lambda s, i: r.integers(256)
    ),
    "left out": lambda a, r: {n: v for n, v in a.items() if n != sorted(a)[pick(r, np.array(sorted(a)))]},
}


@pytest.mark.long
def test_two_thousand_changed_certificates_are_rejected_or_still_proofs(splitting: list[Case]) -> None:
    random, truth, accepted, rejected = np.random.default_rng(0), Truth(), 0, 0
    networks = {case.digest: read_network(case.file.read_bytes()) for case in splitting}
    for number in range(2000):
        case = splitting[number % len(splitting)]
        arrays = case.arrays
        for _ in range(int(random.integers(1, 3))):
            arrays = MUTATIONS[sorted(MUTATIONS)[random.integers(len(MUTATIONS))]](arrays, random)
            if len(arrays) < len(case.arrays):
                break
        try:
            judge(Certificate(arrays), case.digest, networks[case.digest])
        except Rejected:
            rejected += 1
        else:
            accepted += 1
            assert truth.margin(case.net, arrays) > -1e-7
    assert accepted > 100
    assert rejected > 800


# Changes that leave no proof at all, each with a word of the reason.
ALWAYS_REJECTED: dict[str, tuple[Callable[[Arrays, Random], Arrays], str]] = {
    "missing leaf": (without_leaf, "missing|no leaf"),
    "leaf twice": (lambda a, r: without_leaf(a, r, twice=True), "same part|part at different"),
    "sign": (MUTATIONS["sign"], "missing|same part|part at different"),
    "negative multiplier": (MUTATIONS["negative multiplier"], "negative"),
    "another network": (lambda a, r: meta(a, network="0" * 64), "another network"),
    "another version": (lambda a, r: meta(a, version=3), "version"),
    "another format": (lambda a, r: meta(a, format="x"), "neither"),
    "another claim": (lambda a, r: meta(a, claim="any-row"), "claim"),
    "another arithmetic": (lambda a, r: meta(a, speaks_of="bfloat16"), "float32"),
    "no class": (lambda a, r: meta(a, label=3), "label"),
    "a class that is a truth value": (lambda a, r: meta(a, label=True), "label"),
    "an empty box": (lambda a, r: {**a, "lower": a["upper"] + np.float32(1)}, "empty"),
    "a box of another shape": (lambda a, r: {**a, "lower": a["lower"][:2]}, "shape"),
    "a box of integers": (lambda a, r: {**a, "lower": a["lower"].astype(int)}, "type"),
    "NaN in the box": (lambda a, r: {**a, "upper": a["upper"] * np.nan}, "finite"),
    "infinity in a bound": (lambda a, r: {**a, "lower_1": a["lower_1"] - np.inf}, "finite"),
    "NaN in a multiplier": (lambda a, r: {**a, "leaf_beta": a["leaf_beta"] * np.nan}, "finite"),
    "a multiplier of the largest double": (
        lambda a, r: {**a, "leaf_beta": np.full(len(a["leaf_beta"]), 1e308)},
        "not proved",
    ),
    "a split of no neuron": (lambda a, r: {**a, "leaf_split": a["leaf_split"] * 0}, "zero"),
    "a split beyond the last": (lambda a, r: {**a, "leaf_split": a["leaf_split"] * 1000}, "range"),
    "slopes of another width": (lambda a, r: {**a, "alpha": a["alpha"][:, 1:]}, "shape"),
    "tight bounds": (lambda a, r: {**a, "upper_1": a["upper_1"] * np.float32(0.5)}, "do not hold"),
    "bounds of one sign": (lambda a, r: {**a, "lower_1": -a["lower_1"]}, "does not hold"),
    "unstable neurons unlisted": (
        lambda a, r: {n: v for n, v in a.items() if not n.endswith("_1")},
        "not listed",
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ALWAYS_REJECTED)
def test_a_change_that_leaves_no_proof_is_rejected_with_its_reason(
    name: str, splitting: list[Case], tmp_path: Path
) -> None:
    change, reason = ALWAYS_REJECTED[name]
    for case in splitting:
        assert len(case.arrays["unstable_1"]) > 0
        outcome = check_file(write(tmp_path / "a.npz", change(case.arrays, np.random.default_rng(0))), case.file)
        assert not outcome.accepted
        assert any(word in outcome.reason for word in reason.split("|")), outcome.reason


def test_a_refined_bound_that_its_slopes_do_not_show_is_rejected(tmp_path: Path) -> None:
    tried = 0
    for seed in range(8):
        case = certificates.case(tmp_path, "deep", seed, 0.3, refine=True)
        names = [] if case is None else [name for name in case.arrays if name.endswith("_bound")]
        for name in names:
            assert case is not None
            side = case.arrays[name.replace("bound", "side")]
            changed = {**case.arrays, name: case.arrays[name] + side * np.float32(0.01)}
            assert "do not hold" in check_file(write(tmp_path / "a.npz", changed), case.file).reason
            tried += 1
    assert tried > 5


def test_a_refined_neuron_must_be_listed_as_unstable(tmp_path: Path) -> None:
    tried = 0
    for seed in range(12):
        case = certificates.case(tmp_path, "dense", seed, 0.3, refine=True)
        stable = [] if case is None else np.setdiff1d(np.arange(5), case.arrays["unstable_1"])
        if case is not None and len(stable) and "refined_1_neuron" in case.arrays:
            case.arrays["refined_1_neuron"][0] = stable[0]
            assert "listed" in check_file(write(tmp_path / "a.npz", case.arrays), case.file).reason
            tried += 1
    assert tried > 0


@pytest.mark.long
def test_a_certificate_carried_over_to_a_changed_network_proves_it_or_nothing(tmp_path: Path) -> None:
    """The fingerprint is forged, too: the proof must stand on the numbers of the network it is shown."""
    truth, verdicts = Truth(), []
    for family in ("dense", "conv", "graft", "residual"):
        for seed in range(6):
            case = certificates.case(tmp_path, family, seed, 0.3)
            if case is None:
                continue
            assert "another network" in carried(case, network(family, seed, bump=0), tmp_path, forged=False).reason
            for bump in range(4):
                changed = network(family, seed, bump)
                outcome = carried(case, changed, tmp_path, forged=True)
                verdicts.append(outcome.accepted)
                if outcome.accepted:
                    assert truth.margin(changed, case.arrays) > -1e-7
    assert any(verdicts)
    assert not all(verdicts)


def carried(case: Case, changed: Net, folder: Path, forged: bool) -> Outcome:
    data = changed.onnx()
    file = folder / f"{hashlib.sha256(data).hexdigest()}.onnx"
    file.write_bytes(data)
    arrays = meta(case.arrays, network=hashlib.sha256(data).hexdigest()) if forged else case.arrays
    return check_file(write(folder / "carried.npz", arrays), file)


def test_damaged_files_are_rejected_with_a_sentence(splitting: list[Case], tmp_path: Path) -> None:
    random, case, truth = np.random.default_rng(0), splitting[0], Truth()
    path = tmp_path / "000000.npz"
    np.savez_compressed(path, **case.arrays)
    whole = path.read_bytes()
    for number in range(500):
        data = bytearray(whole)
        if number % 5 == 0:
            data = data[: random.integers(len(data))]
        else:
            for at in random.integers(0, len(data), random.integers(1, 6)):
                data[at] = random.integers(256)
        path.write_bytes(data)
        outcome = check_file(path, case.file)
        assert outcome.accepted or outcome.reason.endswith(".")
        if outcome.accepted:
            assert truth.margin(case.net, case.arrays) > 0


def test_damaged_networks_are_refused_with_a_sentence(splitting: list[Case]) -> None:
    random, whole = np.random.default_rng(0), splitting[0].file.read_bytes()
    refused = 0
    for _ in range(300):
        data = bytearray(whole)
        for at in random.integers(0, len(data), random.integers(1, 4)):
            data[at] = random.integers(256)
        try:
            read_network(bytes(data))
        except Rejected:  # and nothing else
            refused += 1
    assert refused > 30


def test_pickles_are_never_loaded(splitting: list[Case], tmp_path: Path) -> None:
    case, path = splitting[0], tmp_path / "pickled.npz"
    np.savez(path, **{**case.arrays, "leaf_row": np.array([{"a": 1}], dtype=object)})
    assert "cannot be read" in check_file(path, case.file).reason
    path.write_bytes(b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00]\x94.")
    assert "cannot be read" in check_file(path, case.file).reason


def test_nothing_is_written_whatever_names_a_file_has_inside(splitting: list[Case], tmp_path: Path) -> None:
    case, path = splitting[0], tmp_path / "inner" / "names.npz"
    path.parent.mkdir()
    write(path, case.arrays)
    with zipfile.ZipFile(path, "a") as parts:
        parts.writestr("../../outside.npy", b"\x93NUMPY")
        parts.writestr("/outside.npy", b"")
    assert not check_file(path, case.file).accepted
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == ["names.npz"]


def test_meta_that_is_deep_or_no_object_is_rejected(splitting: list[Case], tmp_path: Path) -> None:
    case = splitting[0]
    for text in ("[" * 100_000, "[]", "1", "", "{", json.dumps({"format": ["x"]})):
        arrays = {**case.arrays, "meta": np.frombuffer(text.encode(), np.uint8)}
        assert not check_file(write(tmp_path / "a.npz", arrays), case.file).accepted


def test_a_folder_without_certificates_or_network_is_an_error(tmp_path: Path, splitting: list[Case]) -> None:
    with pytest.raises(Rejected, match="no certificates"):
        check_folder(tmp_path)
    write(tmp_path / "000000.npz", splitting[0].arrays)
    with pytest.raises(Rejected, match="cannot be read"):
        check_folder(tmp_path)


# ---------------------------------------------------------------- networks that are not read


make = onnx.helper.make_node
EYE = np.eye(2, dtype=np.float32)
REFUSED = {
    "Sigmoid is not known": model(make("Sigmoid", ["x"], ["y"])),
    "LeakyRelu must have": model(make("LeakyRelu", ["x"], ["y"], alpha=1.5)),
    "not finite": model(make("MatMul", ["x", "w"], ["y"]), w=EYE + np.inf),
    "neither float nor double": model(make("MatMul", ["x", "w"], ["y"]), w=EYE.astype(np.float16)),
    "does not fit": model(make("MatMul", ["x", "w"], ["y"]), w=np.ones((3, 2), np.float32)),
    "alpha = beta = 1": model(make("Gemm", ["x", "w"], ["y"], alpha=2.0), w=EYE),
    "unknown attribute": model(make("Relu", ["x"], ["y"], alpha=2.0)),
    "given twice": model(make("Relu", ["x"], ["y"]), make("Relu", ["x"], ["y"])),
    "is not computed": model(make("Relu", ["q"], ["y"])),
    "output is not computed": model(make("Relu", ["x"], ["z"])),
    "foreign|not known": model(make("Relu", ["x"], ["y"], domain="com.else")),
    "more axes": model(make("Add", ["x", "c"], ["y"]), c=np.ones((1, 1, 2), np.float32)),
    "do not fit": model(make("Add", ["x", "c"], ["y"]), c=np.ones(3, np.float32)),
    "no constant|not computed": model(make("Mul", ["x", "x"], ["y"])),
    "keep the batch axis": model(make("Flatten", ["x"], ["y"], axis=0)),
    "number of elements": model(make("Reshape", ["x", "s"], ["y"]), s=np.array([-1, 3])),
    "pad with zeros": model(make("Pad", ["x", "p"], ["y"], mode="reflect"), p=np.array([0, 1, 0, 1])),
    "not explicit": model(
        make("Conv", ["x", "w"], ["y"], auto_pad="SAME_UPPER"), shape=(1, 2, 2), w=np.ones((1, 1, 2, 2), np.float32)
    ),
    "larger than its input": model(
        make("Conv", ["x", "w"], ["y"]), shape=(1, 2, 2), w=np.ones((1, 1, 5, 5), np.float32)
    ),
    "no readable ONNX": b"not a network",
    "must name its opset": b"",
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_a_network_that_is_not_understood_is_refused(sentence: str) -> None:
    with pytest.raises(Rejected, match=sentence):
        read_network(REFUSED[sentence])


# ---------------------------------------------------------------- arithmetic


def forged(net: Net, folder: Path, low: np.ndarray, high: np.ndarray, label: int, **more: np.ndarray) -> Outcome:
    """The plainest certificate there is: nothing unstable, one leaf per row."""
    file = folder / "net.onnx"
    data = net.onnx()
    file = folder / f"{hashlib.sha256(data).hexdigest()}.onnx"
    file.write_bytes(data)
    assert net.out is not None
    rows = len(net.out.offset) - 1
    facts = {"format": "lipgraft-certificate", "version": 1, "network": hashlib.sha256(data).hexdigest()}
    arrays = {
        "meta": packed({**facts, "speaks_of": "real", "claim": "class", "label": label}),
        "lower": low,
        "upper": high,
        "leaf_row": np.arange(rows, dtype=np.int32),
        "leaf_alpha": np.full(rows, -1, np.int32),
        "leaf_depth": np.zeros(rows, np.int32),
        **more,
    }
    return check_file(write(folder / "forged.npz", arrays), file)


@pytest.mark.parametrize(("small", "large", "kind"), [(1e-23, 1e37, np.float32), (1e-200, 1e200, np.float64)])
@pytest.mark.parametrize("shift", [0.0, 1.0])
@pytest.mark.parametrize("given", ["nothing", "tiny", "wide", "tiny with planes", "wide with planes"])
def test_underflow_proves_nothing(
    tmp_path: Path, small: float, large: float, kind: type, shift: float, given: str
) -> None:
    """The second logit is (x + shift) times 1e28 or so, or exactly x + shift: never below the first one's 0.5."""
    net = Net((1,), np.random.default_rng(0), kind)
    h = net.start
    for k, weight in enumerate((small, small, large, large)):
        bias = np.array([shift * small if k == 0 else 0.0], kind)
        h = net.act(net.dense(h, 1, np.array([[weight]], kind), bias))
    out = net.finish(net.dense(h, 2, np.array([[0.0], [1.0]], kind), np.array([0.5, 0.0], kind)))
    sizes = {"nothing": 0.0, "tiny": 1e-300, "wide": 1e30}
    more = {}
    if given != "nothing":
        size = sizes[given.split()[0]]
        for k in range(4):
            more |= {f"unstable_{k}": np.array([0], np.int32), f"lower_{k}": np.array([-size])}
            more |= {f"upper_{k}": np.array([size])}
    for share in (0, 128, 255) if "planes" in given else ():
        for k in range(4):
            more |= {f"plane_{k}_neuron": np.array([0], np.int32), f"plane_{k}_source": np.array([k - 1], np.int32)}
            more |= {f"plane_{k}_{name}": np.full((1, 1), share, np.uint8) for name in ("low", "high")}
            more |= {f"plane_{k}_share": np.full((1, 1, 1), share, np.uint8), f"plane_{k}_used": np.ones((1, 1), int)}
        more |= {"alpha": np.full((1, 4), share, np.uint8), "leaf_alpha": np.zeros(1, np.int32)}
        more |= {"leaf_plane": np.zeros(1, np.int32)}
        assert not forged(out, tmp_path, np.array([0.75]), np.array([1.0]), 0, **more).accepted
    assert not forged(out, tmp_path, np.array([0.75]), np.array([1.0]), 0, **more).accepted


@pytest.mark.long
def test_biases_that_cancel_prove_nothing_false(tmp_path: Path) -> None:
    """64 active neurons with large biases: the margin is affine, and its least value is known as a fraction."""
    random, verdicts = np.random.default_rng(0), []
    for number in range(200):
        size = 10.0 ** random.uniform(0, 8)
        net = Net((2,), random, np.float64)
        w, c = random.normal(size=(64, 2)), random.normal(size=64)
        b = np.full(64, 100.0) + size * random.uniform(1, 2, 64)
        wanted = 10.0 ** random.uniform(-9, 2) * random.choice([-1, 1]) * size * 1e-8
        h = net.act(net.dense(net.start, 64, w, b))
        low, high = np.full(2, -1.0), np.full(2, 1.0)
        slope = [sum(Fraction(float(c[i])) * Fraction(float(w[i, j])) for i in range(64)) for j in range(2)]
        constant = sum(Fraction(float(c[i])) * Fraction(float(b[i])) for i in range(64)) - sum(map(abs, slope))
        last = float(constant - Fraction(wanted))
        net.finish(net.dense(h, 2, np.stack([c, 0 * c]), np.array([0.0, last])))
        outcome = forged(net, tmp_path, low, high, 0)
        exact = constant - Fraction(last)
        assert exact > 0 or not outcome.accepted, number
        verdicts.append((exact > 0, outcome.accepted))
    assert 60 < sum(holds for holds, _ in verdicts) < 140
    assert sum(accepted for _, accepted in verdicts) > 20


def test_neurons_that_are_zero_by_their_weights_are_stable(tmp_path: Path) -> None:
    """Pruned neurons see exactly zero; a bound on underflow must not make them unstable."""
    net = Net((2,), np.random.default_rng(0))
    h = net.act(net.dense(net.start, 3, np.zeros((3, 2), np.float32), np.zeros(3, np.float32)))
    h = net.act(net.dense(h, 3, np.ones((3, 3), np.float32), np.zeros(3, np.float32)))
    net.finish(net.dense(h, 2, np.ones((2, 3), np.float32), np.array([1e-30, 0.0], np.float32)))
    assert forged(net, tmp_path, np.zeros(2), np.ones(2), 0).accepted


def test_numbers_that_overflow_prove_nothing(tmp_path: Path) -> None:
    """Forward all numbers are finite, and the claim is false; going back, 1e300 meets 1e300."""
    net = Net((1,), np.random.default_rng(0), np.float64)
    h = net.start
    for weight in (1e-300, 1e300, 1e300):
        h = net.dense(h, 1, np.array([[weight]]), np.full(1, 1e-300))
    net.finish(net.dense(h, 2, np.array([[1.0], [0.0]]), np.array([-1e301, 0.0])))
    assert "bound after rounding is nan" in forged(net, tmp_path, np.array([0.5]), np.array([1.0]), 0).reason
