"""What a notebook or a prompt shows of results: short, in words, as HTML that holds nothing but its own."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import lipgraft as lg
from lipgraft.display import curve, table

DIGITS = lg.data.load("digits")
X, Y = lg.data.images(DIGITS.x_test[:6]), DIGITS.y_test[:6]


@pytest.fixture(scope="module")
def results() -> dict[str, object]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 30), nn.ReLU(), nn.Linear(30, 10))
    settings = replace(lg.training.preset("pretrain-short"), eps=0.01, epochs=2, batch=256)
    plan = lg.grafting.plan(model, DIGITS, 0.02, count=20)
    return {
        "Verdict": lg.verify(model, X, Y, 0.3, timeout=1.0)[0],
        "Bounds": lg.bound(model, lg.Box.linf(X, 0.02)),
        "Scores": plan.scores,
        "Summary": plan.summary,
        "TrainResult": lg.train(model, DIGITS, settings, device="cpu"),
        "Dataset": DIGITS,
    }


KINDS = ("Verdict", "Bounds", "Scores", "Summary", "TrainResult", "Dataset")


@pytest.mark.parametrize("kind", KINDS)
def test_a_repr_is_one_short_line(kind: str, results: dict[str, object]) -> None:
    text = repr(results[kind])
    assert re.fullmatch(rf"<{kind}\b.{{10,150}}>", text)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "Dataset"])
def test_the_html_is_a_small_well_formed_table(kind: str, results: dict[str, object]) -> None:
    html = results[kind]._repr_html_()  # type: ignore[attr-defined]
    root = ElementTree.fromstring(html)
    assert root.tag == "table"
    assert len(root.findall("./tbody/tr")) >= 1
    assert len(html) < 5000


def test_the_texts_say_what_matters(results: dict[str, object]) -> None:
    assert str(results["Verdict"]) in repr(results["Verdict"])
    assert "10 outputs over 6 boxes" in repr(results["Bounds"])
    assert "30 neurons in 1 layer over 20 images" in repr(results["Scores"])
    assert "2 epochs" in repr(results["TrainResult"])
    assert repr(DIGITS) == "<Dataset digits: 1,437 training and 360 test images of 1x8x8 in 10 classes>"


def test_names_cannot_bring_markup_of_their_own() -> None:
    html = table("<b>", ("<i>",), [("<script>",)])
    assert "<b>" not in html
    assert "<script>" not in html


def test_a_curve_leaves_out_what_is_not_finite() -> None:
    assert "nan" not in curve([1.0, float("nan"), 2.0, float("inf"), 3.0])
    assert curve([1.0]) == curve([]) == ""
    assert ElementTree.fromstring(curve([2.0, 2.0])).tag == "svg"
