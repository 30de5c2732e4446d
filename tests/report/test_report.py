"""The table and the page, from plain results."""

from __future__ import annotations

import base64
import json
import math
import re
import struct
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

from lipgraft.errors import SettingsError
from lipgraft.report import (
    PUBLISHED,
    Example,
    ExampleVerdict,
    ExperimentResults,
    ImageResult,
    LayerResult,
    RunResults,
    experiment_summary,
    headline,
    markdown,
    published,
    render,
    render_experiment,
    rows,
    summary,
    undecided,
)
from lipgraft.report.charts import FIGURES, drawn
from lipgraft.report.charts.compare import front
from lipgraft.report.charts.registry import COLOURS
from lipgraft.report.png import data_uri, encode
from lipgraft.svg import Scale, apart, beside, number, tag
from report_results import model, results

VOID = {"meta", "img", "br", "hr", "link", "input"}


def example(adversarial: np.ndarray | None) -> Example:
    image = np.full((8, 8, 1), 0.5, dtype=np.float32)
    status = "verified" if adversarial is None else "falsified"
    taken_for = None if adversarial is None else "seven"
    return Example(3, "one", image, (ExampleVerdict("baseline", status, "pgd", adversarial, taken_for),))


class Checker(HTMLParser):
    """Every tag that is opened is closed, in order; collects addresses and texts."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for key, value in attrs if key in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for key, value in attrs if key in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open, tag
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def parsed(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    return checker


# --- the page


def test_the_page_is_well_formed_and_refers_to_nothing_outside_itself() -> None:
    adversarial = np.full((8, 8, 1), 0.6, dtype=np.float32)
    page = render(results(examples=(example(adversarial), example(None))))
    found = parsed(page)
    assert len(found.addresses) == 4  # three pictures of a falsified image, one of a verified one
    assert all(address.startswith("data:image/png;base64,") for address in found.addresses)
    assert not re.search(r"https?://|@import|url\(|<script src|<link", page)
    assert "default-src 'none'" in page  # and the browser holds it to that


def test_the_page_adapts_to_dark_mode_and_to_a_phone() -> None:
    page = render(results())
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page
    light, dark = (set(re.findall(r"(--\w+):", part)) for part in page.split("prefers-color-scheme: dark", 1))
    assert light == dark  # each colour has a counterpart


def test_every_figure_is_there_when_the_run_has_everything() -> None:
    assert {figure.key for figure in drawn(results())} == set(FIGURES)
    assert set(FIGURES) == {"accuracy", "tradeoff", "lipschitz", "grafted", "unstable", "margins", "time", "clock"}


def test_figures_without_data_are_left_out_not_drawn_empty() -> None:
    bare = model("bare", va=0.0, lipschitz={}, layers=(), margins=(), images=())
    assert {figure.key for figure in drawn(results(bare))} == {"accuracy", "tradeoff"}
    parsed(render(results(bare)))


def sweep(count: int = 27) -> RunResults:
    """More models than there are colours, with long titles, one of them without any measure."""
    models = [
        model(f"m{i}" if i else "baseline", va=(i % 10) / 10, grafted=i, sa=0.9 - 0.01 * i) for i in range(count - 1)
    ]
    lost = {"sa": math.nan, "ra": math.nan, "va": math.nan, "margins": (math.nan,), "images": (), "lipschitz": {}}
    layers = (LayerResult("act1", 40, 4, math.nan, math.nan), LayerResult("act2", 10, 0, math.nan))
    long = replace(model("lost", title="a title that is much longer than what fits", layers=layers), **lost)  # type: ignore[arg-type]
    return results(*models, long)


@pytest.mark.parametrize("found", [results(), sweep()], ids=["few", "sweep"])
@pytest.mark.parametrize("key", list(FIGURES))
def test_drawings_are_valid_svg_inside_their_frame_in_the_page_colours(key: str, found: RunResults) -> None:
    figure = next(figure for figure in drawn(found) if figure.key == key)
    root = ElementTree.fromstring(str(figure.drawing))
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    assert len(list(root)) > 5
    for element in root.iter():
        for name, limit in (("x", width), ("cx", width), ("x2", width), ("y", height), ("cy", height), ("y2", height)):
            assert -0.01 <= float(element.get(name, 0)) <= limit + 0.01
        assert not {"fill", "stroke", "style"} & set(element.attrib)  # a fixed colour would vanish in one scheme
        assert "nan" not in ElementTree.tostring(element, encoding="unicode")


def test_a_sweep_names_its_models_where_colours_cannot() -> None:
    found = sweep()
    assert len(found.models) > COLOURS
    figures = {figure.key: figure for figure in drawn(found)}
    assert not any(figure.legend for figure in figures.values())
    for key in ("accuracy", "margins", "unstable", "grafted"):
        assert ">M7<" in str(figures[key].drawing)
    assert "<details><summary>By model" in render(replace(found, examples=(example(None),)))
    parsed(render(found))


def test_the_front_of_a_trade_off_is_what_nothing_beats_in_both() -> None:
    one = model("a")
    points = [(one, 0.5, 0.9), (one, 0.9, 0.2), (one, 0.7, 0.5), (one, 0.6, 0.4), (one, 0.9, 0.1)]
    assert [(sa, va) for _, sa, va in front(points)] == [(0.5, 0.9), (0.7, 0.5), (0.9, 0.2)]


def test_nothing_measured_anywhere_still_gives_a_page() -> None:
    lost = model("lost", sa=math.nan, ra=math.nan, unr=math.nan, time=math.nan, margins=(math.nan,))
    lost = replace(lost, va=math.nan, lipschitz={"jacobian": math.inf})
    found = parsed(render(results(lost)))
    assert "nan" not in " ".join(found.texts).lower()


def test_names_cannot_break_out_of_the_page() -> None:
    page = render(results(model("baseline", title="<b>&\"'"), title="</script><script>alert(1)"))
    assert "<script>alert" not in page
    assert "<b>&" not in page
    parsed(page)


def test_the_data_of_the_page_has_every_verdict_and_figure() -> None:
    page = render(results(model("baseline", va=0.2, sa=math.nan), classes=("zero", "one", "two")))
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)
    assert found is not None
    (run,) = json.loads(found[1])["runs"]
    (one,) = run["models"]
    assert run["classes"] == ["zero", "one", "two"]
    assert one["values"][:3] == [None, 0.7, 0.2]
    assert one["images"][9] == [9, 0, 1, run["words"].index("pgd"), -1, 197.0, None]


def test_a_counterexample_shows_the_original_the_enlarged_perturbation_and_the_adversarial_image() -> None:
    adversarial = np.full((8, 8, 1), 0.6, dtype=np.float32)  # the image, brighter by eps
    page = render(results(examples=(example(adversarial),)))
    pictures = [_pixels(address) for address in parsed(page).addresses]
    assert [int(p.flat[0]) for p in pictures] == [128, 255, 153]
    assert "taken for seven" in page


def test_the_papers_figures_stand_beside_ours() -> None:
    ours = model("ours", published=published("cnn-b/cifar10/ours"))
    page = render(results(ours))
    assert "51.6" in page
    assert "51.6" not in render(results(model("ours")))


# --- experiments


def experiment(*runs: RunResults, **changes: object) -> ExperimentResults:
    made = ExperimentResults("trial", "A table", "What is compared.", "full", "lipgraft reproduce trial", 0, runs)
    return replace(made, **changes)  # type: ignore[arg-type]


def paired() -> ExperimentResults:
    """Two runs; the first one with a published row, a row from the literature, and its origin."""
    rows_ = (model("baseline", va=0.2), model("ours", va=0.6, grafted=20, published=published("cnn-b/cifar10/ours")))
    made = ({"commit": "abc", "device": "abacus"},)
    first = results(*rows_, name="one", title="One", made=made, literature={"IBP": published("cnn-b/cifar10/ibp")})
    return experiment(first, results(name="two", title="Two", eps=2 / 255, made=made))


def test_an_experiment_has_one_summary_and_a_part_for_each_run() -> None:
    page = render_experiment(paired())
    found = parsed(page)
    words = " ".join(found.texts)
    assert "A table" in words
    assert [address for address in found.addresses if address.startswith("#")] == ["#one-run", "#two-run"]
    assert 'id="one-run"' in page
    assert 'id="two-tradeoff"' in page
    ids = re.findall(r'id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert "IBP" in words
    assert "20.8" in words  # its published Lipschitz constant


def test_the_page_of_an_experiment_says_what_is_missing_changed_or_small() -> None:
    base = paired()
    changed = {"certify.count": 5}
    page = render_experiment(replace(base, scale="smoke", missing=("two/lg",), changes=changed))
    for words in ("only show that it runs", "Not finished: two/lg", "certify.count = 5"):
        assert words in page
        assert words not in render_experiment(base)
    assert "No row is finished yet" in render_experiment(experiment(missing=("one/lg",)))


def test_markdown_has_ours_with_the_papers_figures_in_brackets_and_the_origin() -> None:
    text = markdown(paired())
    assert "## One, eps 0.1" in text
    assert "## Two, eps 2/255" in text
    assert "| Ours | 90.0 (73.2) | 70.0 (57.2) | 60.0 (51.6) |" in text
    assert "| IBP | (61.5) | (51.8) | (49.5) |" in text
    assert "`lipgraft reproduce trial`" in text
    assert "abacus, commit abc" in text
    for line in (line for line in text.splitlines() if line.startswith("|")):
        assert line.count("|") in (11, 8)  # of the table, and of that over time


def test_markdown_names_the_time_for_all_images_and_lipschitz_only_where_it_was_measured() -> None:
    settings = {"certify": {"verifier": {"limits": {"timeout": 300.0, "total_seconds": 15.0}}}}
    without = results(settings=settings)
    text = markdown(experiment(without))
    assert "wall time for all images 15" in text
    assert "Lipschitz images" not in text
    assert "Lipschitz units" not in text
    text = markdown(experiment(results(counts={**without.counts, "lipschitz": 7})))
    assert "wall time" not in text
    assert "Lipschitz images 7; Lipschitz units pixel" in text


def test_the_summary_of_an_experiment_is_json_with_its_origin() -> None:
    content = json.loads(json.dumps(experiment_summary(paired()), allow_nan=False))
    assert content["made"] == [{"commit": "abc", "device": "abacus"}]
    assert content["runs"][0]["literature"][0]["lipschitz"] == 20.82
    assert content["runs"][0]["models"][1]["margin"] == pytest.approx(-0.5)
    assert content["runs"][1]["name"] == "two"


def test_the_page_and_the_table_say_when_the_images_are_not_the_first_test_images() -> None:
    assert "Measured on" not in render(results())
    found = results(settings={"measured_on": "held-out", "certify": {"start": 1000}})
    page = render(found)
    assert "Measured on held-out training images, not on test images. Certified from image number 1000 on." in page
    assert "Measured on held-out training images; certified images 10; first of them 1000" in markdown(
        experiment(found)
    )


# --- over time


def test_the_verified_share_grows_with_the_clock_and_is_told_as_far_as_it_is_known() -> None:
    one = model("ours", va=0.5)  # proved after 0, 2, 4, 6, 8 s, the rest open, the last image ends after 18 s
    assert [one.verified_after(at) for at in (0, 5, 8, 18)] == [0.1, 0.3, 0.5, 0.5]
    assert one.verified_after(60) == 0.5  # no image was stopped by the clock
    stopped = tuple(replace(i, reason="timeout") if i.status == "unknown" else i for i in one.images)
    assert replace(one, images=stopped).verified_after(18) == 0.5
    assert replace(one, images=stopped).verified_after(19) is None
    silent = tuple(replace(i, ended=None) for i in one.images)
    assert replace(one, images=silent).verified_after(5) is None


def test_markdown_and_summary_have_the_verified_share_after_a_while_where_it_is_known() -> None:
    late = model("late", va=0.2)
    stopped = tuple(replace(i, reason="timeout", ended=i.ended) for i in late.images)
    silent = model("silent", images=tuple(replace(i, ended=None) for i in late.images))
    found = results(model("ours"), replace(late, images=stopped), silent)
    text = markdown(experiment(found))
    assert "| model | 5 s | 10 s | 20 s | 1 min | 3 min | 10 min |" in text
    assert "| Ours | 30.0 | 50.0 | 50.0 | 50.0 | 50.0 | 50.0 |" in text
    assert "| Late | 20.0 | 20.0 |  |  |  |  |" in text
    shares = [one["verified_after"] for one in summary(found)["models"]]
    assert shares[1:] == [{"5": 0.2, "10": 0.2}, {}]
    assert "VA % by the time" not in markdown(experiment(results(silent)))
    assert "clock" not in {figure.key for figure in drawn(results(silent))}


# --- the table


def test_the_table_marks_the_best_of_each_column() -> None:
    table = rows(results())
    assert [[cell.best for cell in row.cells][2] for row in table] == [False, True]
    assert table[1].cells[2].text == "60.0"
    assert table[0].cells[4].text == "12.5"


def test_the_headline_says_what_happened_whichever_way() -> None:
    base = model("baseline", va=0.5)
    assert "raises" in headline(results(base, model("ours", va=0.6, grafted=9)))
    assert "lowers" in headline(results(base, model("ours", va=0.4, grafted=9)))
    assert "leaves" in headline(results(base, model("ours", va=0.5, grafted=9)))
    assert "Baseline is proved robust" in headline(results(base))
    among = headline(results(model("lg", va=0.4, grafted=9), model("ours", va=0.45, grafted=9)))
    assert "45.0 % by Ours" in among
    assert "Grafting" not in among


def test_the_summary_is_json_without_nan() -> None:
    text = json.dumps(summary(results(model("baseline", time=math.nan))), allow_nan=False)
    table = json.loads(text)
    assert table["models"][0]["time"] is None
    assert table["models"][0]["verdicts"] == {"falsified": 1, "unknown": 4, "verified": 5}


# --- the published figures


def test_published_rows_are_consistent_percentages() -> None:
    for key, row in PUBLISHED.items():
        assert key.count("/") == 2
        assert row.sa is not None
        assert row.va is not None
        assert 0 <= row.va <= (row.ra or 100) <= row.sa + 1e-9 or row.ra is None
        assert row.sa <= 100


def test_an_unknown_row_of_the_paper_is_answered_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match="cnn-b/cifar10/ours"):
        published("cnn-b/cifar10/our")


# --- small parts


def test_png_holds_the_pixels() -> None:
    image = np.linspace(0, 1, 5 * 3 * 3).reshape(5, 3, 3)
    assert encode(image).startswith(b"\x89PNG")
    assert np.array_equal(_pixels(data_uri(image)), np.rint(image * 255).astype(np.uint8))


def _pixels(uri: str) -> np.ndarray:
    """Decode a PNG that stores its rows unfiltered, by the format's own rules."""
    content = base64.b64decode(uri.partition(",")[2])
    place, chunks = 8, {}
    while place < len(content):
        (length,) = struct.unpack(">I", content[place : place + 4])
        kind, body = content[place + 4 : place + 8], content[place + 8 : place + 8 + length]
        (check,) = struct.unpack(">I", content[place + 8 + length : place + 12 + length])
        assert check == zlib.crc32(kind + body)
        chunks[kind] = body
        place += 12 + length
    width, height, depth, colour = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert depth == 8
    channels = {0: 1, 2: 3}[colour]
    rows_ = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), dtype=np.uint8).reshape(height, 1 + width * channels)
    assert not rows_[:, 0].any()
    return rows_[:, 1:].reshape(height, width, channels)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (0.0341, "0.034"),
        (1.25, "1.25"),
        (12.34, "12.3"),
        (3400.0, "3,400"),
        (2.1e6, "2.1e6"),
        (1e-5, "1e-5"),
    ],
)
def test_numbers_have_the_digits_a_reader_wants(value: float, shown: str) -> None:
    assert number(value) == shown


@pytest.mark.parametrize(("low", "high", "log"), [(0, 1, False), (-3.2, 7.9, False), (1e-4, 30, True), (5, 6, True)])
def test_ticks_are_inside_the_axis_and_in_order(low: float, high: float, log: bool) -> None:
    scale = Scale(low, high, 10, 200, log=log)
    ticks = scale.ticks(5)
    assert 1 <= len(ticks) <= 12
    assert ticks == sorted(set(ticks))
    assert all(low * 0.999 - 1e-9 <= t <= high * 1.001 for t in ticks)
    assert scale(low) == pytest.approx(10)
    assert scale(high) == pytest.approx(200)


def test_labels_are_moved_apart_and_keep_their_order() -> None:
    moved = apart([50.0, 51.0, 10.0], gap=15)
    assert moved == [50.0, 65.0, 10.0]


def test_labels_hide_neither_dots_nor_each_other_and_stay_inside() -> None:
    dots = [(50.0, 50.0), (65.0, 50.0), (65.0, 52.0), (95.0, 80.0)]
    places = beside([(x, y, "four") for x, y in dots], dots, (0.0, 100.0, 0.0, 100.0))
    assert None not in places[:2]
    boxes = [(x, x + 25.6, y - 11, y + 3) for x, y in filter(None, places)]
    for i, (left, right, top, bottom) in enumerate(boxes):
        assert 0 <= left < right <= 100
        assert 0 <= top < bottom <= 100
        assert not any(left < x < right and top < y < bottom for x, y in dots)
        assert all(right <= a or b <= left or bottom <= c or d <= top for a, b, c, d in boxes[:i])
    crowd = [(50.0 + i, 50.0 + j) for i in range(0, 30, 5) for j in range(0, 30, 5)]
    assert None in beside([(x, y, "a long title") for x, y in crowd], crowd, (0.0, 100.0, 0.0, 100.0))


def test_attributes_and_texts_are_escaped() -> None:
    assert str(tag("text", "a < b", class_='"')) == '<text class="&#34;">a &lt; b</text>'


def test_every_table_says_over_how_many_images_it_speaks_and_what_is_open() -> None:
    """A VA above its RA is read as a mistake unless both say of which images they are."""
    over = {"sa": 60, "ra": 60, "va": 12, "unr": 9, "time": 9, "lipschitz": 20}
    unknown = tuple(ImageResult(i, 0, "unknown", "bab", 1.0, r) for i, r in enumerate(("timeout", "timeout", "memory")))
    one = model("one", va=0.75, ra=0.7, over=over, images=unknown)
    page = texts_of(render(results(one)))
    for words in ("of 60", "of 12", "of 9", "3 of 3 (memory 1, timeout 2)"):
        assert words in page
    experiment = ExperimentResults("t", "T", "About.", "smoke", "", 0, (results(one),))
    table = markdown(experiment)
    assert (
        "| model | SA % of 60 | RA % of 60 | VA % of 12 | UNR % | Lipschitz of 20 | Time s | Reached | Open |" in table
    )
    assert "| 9 | 3 of 3 (memory 1, timeout 2) |" in table
    [found] = summary(results(one))["models"]
    assert found["over"] == over
    assert found["unknown"] == {"memory": 1, "timeout": 2}


def test_open_images_are_counted_among_all_since_not_all_of_them_reach_the_verifier() -> None:
    late = tuple(ImageResult(i, 0, "unknown", None, 0.0, "timeout") for i in range(5))
    proved = ImageResult(5, 0, "verified", "crown", 0.1)
    found = results(model("late", over={"va": 6, "time": 1}, images=(*late, proved)))
    assert undecided(found) == "Left open, neither proved nor refuted: Late 5 of 6 (timeout 5)."
    table = markdown(ExperimentResults("t", "T", "About.", "full", "", 0, (found,)))
    assert "| Reached | Open |" in table
    assert "| 1 | 5 of 6 (timeout 5) |" in table
    assert "open without having reached the verifier" in table
    assert "5 of 6 (timeout 5)" in texts_of(render(found))


def test_models_that_differ_in_their_number_of_images_say_it_one_by_one() -> None:
    models = (model("a", over={"ra": 713, "va": 1000}), model("b", over={"ra": 1000, "va": 1000}))
    table = markdown(ExperimentResults("t", "T", "About.", "full", "", 0, (results(*models),)))
    assert "| RA % | VA % of 1000 |" in table
    assert "70.0 of 713" in table
    assert "70.0 of 1000" in table


def texts_of(page: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())
