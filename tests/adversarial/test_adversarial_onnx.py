"""The ONNX path on networks built to break it: exported, read back, and asked by VNNLIB files."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch

from families import Case, case, names, outputs
from interop_cases import vnnlib
from lipgraft.interop import VnnResult, export_onnx, verify_vnnlib
from lipgraft.verification import Limits, VerifySettings

pytestmark = pytest.mark.xdist_group("families")  # their exact answers are kept, once for all these files

EACH = 6  # questions to each network
CHOSEN = names(every=2)


def ask(one: Case, net: Path, k: int, formula: str) -> VnnResult:
    """Can the formula hold in the k-th box?"""
    outputs = one.net.model(one.x[:1]).shape[1]
    file = net.with_suffix(".vnnlib")
    file.write_text(vnnlib(one.lower[k].tolist(), one.upper[k].tolist(), outputs, formula))
    settings = VerifySettings() if one.net.complete else VerifySettings(limits=Limits(max_subproblems=64))
    return verify_vnnlib(net, file, 60.0, settings=settings)


def judge(one: Case, k: int, result: VnnResult, holds: bool) -> None:
    """unsat: the formula never holds. A counterexample lies in the box, exactly."""
    wrong = "unsat" if holds else "sat"
    assert result.status not in (wrong, "error"), (k, result)
    if one.net.complete:
        assert result.status == ("sat" if holds else "unsat"), (k, result)
    assert (result.counterexample is not None) == (result.status == "sat")
    if result.counterexample is not None:
        point = result.counterexample.x.double().flatten()
        assert bool(((point >= one.lower[k]) & (point <= one.upper[k])).all())


@pytest.fixture
def net(name: str, number: int, tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    export_onnx(case(name, number).net.model, path, case(name, number).net.shape)
    return path


@pytest.mark.long
@pytest.mark.parametrize(("name", "number"), CHOSEN)
def test_words_for_robustness_are_right(name: str, number: int, net: Path) -> None:
    one = case(name, number)
    classes = one.net.model(one.x[:1]).shape[1]
    double = deepcopy(one.net.model).double()
    for k in range(EACH):
        y = int(one.y[k])
        others = " ".join(f"(>= Y_{j} Y_{y})" for j in range(classes) if j != y)
        result = ask(one, net, k, f"(or {others})")
        judge(one, k, result, holds=float(one.margin[k]) < 0)
        if result.counterexample is not None:
            with torch.no_grad():
                logits = double(result.counterexample.x.double().reshape(1, *one.net.shape))[0]
            assert float(logits[y] - logits.max()) <= 1e-5 * one.scale


@pytest.mark.sampled(14)
@pytest.mark.parametrize(("name", "number"), CHOSEN)
def test_words_for_extremes_of_outputs_are_right(name: str, number: int, net: Path) -> None:
    """An output goes a little less far than its exact extreme, and never a little farther."""
    one = case(name, number)
    low, high = outputs(name, number)
    k = number // 2 % 2  # one network of a family is asked of its first output, the next one of its second
    room = max(1e-2 * one.scale, 0.1 * float(high[k, k] - low[k, k]))
    for beyond, holds in ((-room, True), (room, False)):
        judge(one, k, ask(one, net, k, f"(>= Y_{k} {float(high[k, k]) + beyond!r})"), holds)
        judge(one, k, ask(one, net, k, f"(<= Y_{k} {float(low[k, k]) - beyond!r})"), holds)


def test_at_least_600_words_are_compared() -> None:
    assert len(CHOSEN) * (EACH + 4) >= 600
