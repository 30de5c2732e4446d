"""The page in a real browser: what the pointer, the keyboard and a screen reader find.

Screenshots go to pytest's folder: `pytest tests/report/test_page_in_browser.py --basetemp=build/screenshots`.
Needs Chromium on the PATH (Debian: apt-get install chromium); without it these tests are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from browser import CHROMIUM, Page, browser
from lipgraft.report import Example, ExampleVerdict, RunResults, render
from report_results import model, results

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH (Debian: apt-get install chromium)"),
    pytest.mark.xdist_group("browser"),  # one browser for all
]

LIST = ".images[data-run='0'] "
ROWS = (
    f"[...document.querySelectorAll({LIST + 'tbody tr'!r})].map(row => Number(row.querySelector('button').textContent))"
)
STATUS = f"document.querySelector({LIST + '[role=status]'!r}).textContent"
TOLD = "document.querySelector('#compare > [role=status]').textContent"
FOCUS = "document.activeElement.textContent"


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser() as found:
        yield found


def pictured() -> RunResults:
    """Ten images, two of them with pictures; the last one is broken in both models; margins of all but the first."""
    clean, broken = (np.full((8, 8, 1), shade, dtype=np.float32) for shade in (0.5, 0.6))
    both = tuple(ExampleVerdict(name, "falsified", "pgd", broken, "seven") for name in ("baseline", "ours"))
    proved = tuple(ExampleVerdict(name, "verified", "bab") for name in ("baseline", "ours"))
    found = results(
        examples=(Example(0, "zero", clean, proved), Example(9, "zero", clean, both)), classes=("zero", "one", "two")
    )
    models = tuple(
        replace(m, images=tuple(replace(i, margin=None if i.index == 0 else 0.5 - 0.1 * i.index) for i in m.images))
        for m in found.models
    )
    return replace(found, models=models)


@pytest.fixture
def opened(page: Page, tmp_path: Path) -> Page:
    """The page of `pictured`, on a desktop."""
    path = tmp_path / "report.html"
    path.write_text(render(pictured()))
    page.open(path, 1400)
    return page


def test_filters_by_verdict_model_and_class_show_the_images_they_name(opened: Page) -> None:
    assert opened.ask(ROWS) == list(range(10))
    model_, verdict, kind = (f"{LIST}label:nth-of-type({i}) select" for i in (1, 2, 3))
    opened.choose(verdict, "verified")
    assert opened.ask(ROWS) == list(range(6))  # of either model
    assert opened.ask(STATUS) == "6 of 10 images"
    opened.choose(model_, "0")
    assert opened.ask(ROWS) == [0, 1]  # of the first
    opened.choose(verdict, "differ")
    assert opened.ask(ROWS) == [2, 3, 4, 5]
    opened.choose(kind, "2")
    assert opened.ask(ROWS) == [2, 5]
    opened.choose(verdict, "falsified")
    assert opened.ask(STATUS) == "0 of 10 images"


def test_the_cards_follow_the_filter_and_the_order(opened: Page) -> None:
    cards = (
        "[...document.querySelectorAll('article')].filter(e => e.checkVisibility()).map(e => Number(e.dataset.index))"
    )
    assert opened.ask(cards) == [0, 9]
    opened.click(f"{LIST}th:nth-child(1) button")
    assert opened.ask(cards) == [9, 0]
    opened.choose(f"{LIST}label:nth-of-type(2) select", "verified")
    assert opened.ask(cards) == [0]


def test_a_head_sorts_by_what_the_cells_show_and_says_so(opened: Page) -> None:
    opened.choose(f"{LIST}label:nth-of-type(4) select", "margin")
    head = f"{LIST}th:nth-child(3)"
    opened.click(f"{head} button")
    assert opened.ask(f"document.querySelector({head!r}).ariaSort") == "ascending"
    assert opened.ask(ROWS) == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]  # what has no margin stands last
    opened.click(f"{head} button")
    assert opened.ask(f"document.querySelector({head!r}).ariaSort") == "descending"
    assert opened.ask(ROWS) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    assert opened.ask("document.querySelectorAll(\".images[data-run='0'] [aria-sort]\").length") == 1


def test_numbers_appear_under_the_pointer_and_go_with_escape(opened: Page) -> None:
    hint = "document.getElementById('hint').checkVisibility() && document.getElementById('hint').textContent"
    opened.point(f"{LIST}tbody tr:nth-child(3) td:nth-child(3)")
    assert opened.ask(hint) == "Baseline: unknown by bab, 0.09 s, margin 0.3"
    opened.press("Escape")
    assert opened.ask(hint) is False
    opened.point("#accuracy svg rect")
    assert opened.ask(hint) == "Baseline: standard accuracy 90.0 %"


def test_numbers_of_a_figure_are_a_list_for_those_without_a_pointer(opened: Page) -> None:
    opened.click("#accuracy summary")
    items = "[...document.querySelectorAll('#accuracy details[open] li')].map(e => e.textContent)"
    assert "Ours: verified accuracy 60.0 %" in opened.ask(items)


def test_a_click_shows_every_counterexample_of_an_image(opened: Page) -> None:
    opened.click("article[data-index='9'] .pictures img")
    assert opened.ask("document.querySelector('dialog').open")
    captions = "[...document.querySelectorAll('dialog .pictures')].map(e => e.innerText.split('\\n').filter(Boolean))"
    assert opened.ask(captions) == [
        ["original", "perturbation, enlarged", "taken for seven", "Counterexample for Baseline."],
        ["perturbation, enlarged", "taken for seven", "Counterexample for Ours."],
    ]
    opened.click(".bar button:last-child")
    assert not opened.ask("document.querySelector('dialog').open")


def test_the_keyboard_alone_reaches_an_image_steps_on_and_comes_back(opened: Page) -> None:
    opened.ask(f"document.querySelector({LIST + 'thead tr th:last-child button'!r}).focus()")
    opened.press("Tab")
    assert opened.ask(FOCUS) == "0"
    opened.press("Enter")
    assert opened.ask(FOCUS) == "Image 0: zero"
    opened.press("ArrowRight")
    assert opened.ask(FOCUS) == "Image 1: one"
    opened.press("ArrowLeft")
    opened.press("ArrowLeft")  # nothing stands before the first
    assert opened.ask(FOCUS) == "Image 0: zero"
    opened.press("Escape")
    assert not opened.ask("document.querySelector('dialog').open")
    assert opened.ask(FOCUS) == "0"


def test_a_screen_reader_finds_a_name_for_everything_it_can_use(opened: Page) -> None:
    opened.click("article[data-index='9'] h3 button")
    assert ("dialog", "Image 9: zero") in opened.names()
    opened.press("Escape")
    found = opened.names()
    roles = {"button", "combobox", "image", "img", "region", "columnheader", "rowheader", "heading"}
    assert [role for role, name in found if role in roles and not name.strip()] == []
    for one in [
        ("combobox", "Verdict"),
        ("button", "Image 3, zero: pictures and numbers"),
        ("region", "All images"),
        ("heading", "Compare two models or runs"),
    ]:
        assert one in found


def test_two_models_of_a_run_are_compared_by_figures_and_images(opened: Page) -> None:
    assert opened.ask(TOLD) == "Both at eps 0.1. 4 of 10 common images have different verdicts."
    rows = "[...document.querySelectorAll('#compare table')].slice(0, 2).map(t => [...t.rows].map(r => r.innerText))"
    figures, tally = opened.ask(rows)
    assert "VA %\t20.0\t60.0\t+40.0" in figures
    assert tally[1:] == ["verified\t2\t0\t0", "falsified\t0\t1\t0", "unknown\t4\t0\t3"]


def test_another_report_is_read_from_its_file_and_compared(opened: Page, tmp_path: Path) -> None:
    other = results(model("third", va=0.0), title="<b>Other</b>", eps=0.15)
    path = tmp_path / "other.html"
    path.write_text(render(other))
    opened.give_file("#compare input", path)
    _until(opened, f"{TOLD}.startsWith('The first')")
    assert opened.ask(TOLD) == (
        "The first at eps 0.1, the second at eps 0.15. 2 of 10 common images have different verdicts."
    )
    assert "Third, <b>Other</b> (added: other.html)" in opened.ask("document.querySelector('#compare').innerText")
    path.write_text(render(replace(other, data="cifar10", eps=0.1)))
    opened.give_file("#compare input", path)
    _until(opened, f"{TOLD}.startsWith('Both')")
    assert "no image in common" in opened.ask(TOLD)
    assert opened.ask("document.querySelectorAll('#compare .list').length") == 0


@pytest.mark.parametrize("content", ["<p>bread", "<p id=data>bread", '<p id=data>{"format": 0}'])
def test_a_file_that_is_no_report_is_refused_in_a_sentence(content: str, opened: Page, tmp_path: Path) -> None:
    path = tmp_path / "shopping.html"
    path.write_text(content)
    opened.give_file("#compare input", path)
    _until(opened, f"{TOLD}.startsWith('shopping')")
    assert opened.ask(TOLD).startswith("shopping.html: no report of this version of lipgraft")
    assert opened.troubles() == []


def test_a_long_list_grows_on_demand_and_the_focus_goes_to_what_is_new(page: Page, tmp_path: Path) -> None:
    one = model("baseline")
    many = replace(one, images=tuple(replace(one.images[0], index=i) for i in range(300)))
    path = tmp_path / "report.html"
    path.write_text(render(results(many)))
    page.open(path, 1400)
    assert page.ask(STATUS) == "300 of 300 images, the first 25 of them shown"
    page.click(".images[data-run='0'] > button")
    assert len(page.ask(ROWS)) == 125
    assert page.ask(FOCUS) == "25"


def test_without_scripts_the_pictures_and_verdicts_are_there_and_no_dead_control(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(render(pictured()))
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    page.open(path, 1400)
    page.call("Emulation.setScriptExecutionDisabled", value=False)
    assert page.ask("document.querySelectorAll('article img').length") == 6
    assert page.ask("[...document.querySelectorAll('button, select, input')].length") == 0
    assert page.ask("document.querySelector('noscript').checkVisibility()")


def _sweep() -> str:
    """More models than colours, with titles longer than their column."""
    return render(results(*(model(f"a model with a long title, number {i}", va=i / 30) for i in range(27))))


@pytest.mark.parametrize("make", [lambda: render(pictured()), _sweep], ids=["run", "sweep"])
@pytest.mark.parametrize("width", [1400, 390])
def test_the_page_fits_its_window_complains_of_nothing_and_asks_for_nothing(
    make: object, width: int, page: Page, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    path.write_text(make())  # type: ignore[operator]
    page.open(path, width)
    page.picture(tmp_path / f"page-{width}.png")
    assert page.ask("document.documentElement.scrollWidth") <= width
    page.click(".images[data-run='0'] tbody button")
    box = page.ask(
        "(() => { const b = document.querySelector('dialog').getBoundingClientRect(); return [b.left, b.right]; })()"
    )
    assert 0 <= box[0] < box[1] <= width
    page.picture(tmp_path / f"image-{width}.png", whole=False)
    assert page.troubles() == []


def _until(page: Page, condition: str) -> None:
    """Wait until something holds that a file, once read, sets off."""
    wait = "await new Promise(done => setTimeout(done, 20))"
    page.ask(f"(async () => {{ for (let i = 0; i < 500 && !({condition}); i++) {wait}; }})()")
