"""What a notebook or a prompt shows of results: short, in words, as HTML that holds nothing but its own."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import lipgraft as lg
from lipgraft.display import Chart, chart, curve, table
from lipgraft.errors import SettingsError
from lipgraft.verification import Verdict, plot

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


# --- charts

SVG = "{http://www.w3.org/2000/svg}"


def drawn(found: Chart) -> dict[str, list[tuple[float, float]]]:
    """The points of each line by its hint."""
    root = ElementTree.fromstring(found.svg)
    lines = {}
    for line in root.iter(f"{SVG}polyline"):
        points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
        lines[str(line.findtext(f"{SVG}title"))] = [(x, y) for x, y in points]
    return lines


def test_the_history_plots_its_accuracies_or_what_it_is_asked_for(results: dict[str, object]) -> None:
    result = results["TrainResult"]
    assert isinstance(result, lg.training.TrainResult)
    assert sorted(hint.partition(":")[0] for hint in drawn(result.plot())) == ["accuracy", "ra", "sa"]
    (loss,) = drawn(result.plot("loss"))
    assert loss.startswith("loss: ")
    with pytest.raises(SettingsError, match="Did you mean 'loss'"):
        result.plot("los")


def test_scores_plot_a_falling_line_for_each_layer(results: dict[str, object]) -> None:
    scores = results["Scores"]
    assert isinstance(scores, lg.grafting.Scores)
    (points,) = drawn(scores.plot()).values()
    heights = [y for _, y in points]
    assert len(points) == 30
    assert heights == sorted(heights)  # downwards, in SVG


def test_verdicts_plot_how_their_shares_grow_with_time() -> None:
    verdicts = [Verdict("verified", seconds=s) for s in (0.1, 0.0, 5.0)] + [Verdict("unknown", seconds=10.0)]
    assert set(drawn(plot(verdicts))) == {"verified: 0.0 to 75.0", "unknown: 0.0 to 25.0"}


def test_a_chart_is_shown_saved_and_named_and_stays_in_its_frame(tmp_path: Path) -> None:
    found = chart("<b>", {"a & b": [(1, 2), (2, float("nan")), (3, -1)], "none": []}, across="x", up="y")
    assert "nan" not in found.svg
    assert list(drawn(found)) == ["a & b: 2 to -1"]
    many = chart("Many", {f"layer number {i}": [(0, i), (1, -i)] for i in range(30)}, across="x", up="y")
    for one in (found, many):
        root = ElementTree.fromstring(one.svg)
        width, height = (float(root.attrib[name]) for name in ("width", "height"))
        points = [point for line in drawn(one).values() for point in line]
        points += [(float(text.attrib["x"]), float(text.attrib["y"])) for text in root.iter(f"{SVG}text")]
        assert all(0 <= x <= width and 0 <= y <= height for x, y in points)
    found.save(tmp_path / "chart.svg")
    assert (tmp_path / "chart.svg").read_text() == found._repr_svg_()
    assert repr(found) == "<Chart: <b>; .save('chart.svg') writes it>"
    with pytest.raises(SettingsError, match="nothing to plot"):
        chart("Empty", {"a": [(float("inf"), 1.0)]}, across="x", up="y")
