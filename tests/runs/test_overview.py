"""The overview: every row of the paper beside what files of results have on it, as a page and as a figure."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from lipgraft.cli import main
from lipgraft.errors import SettingsError
from lipgraft.report import PUBLISHED
from lipgraft.report.dumbbells import overview_figure
from lipgraft.report.overview import MARK, PaperRow, overview_page
from lipgraft.runs import write_overview
from lipgraft.runs.overview import overview
from lipgraft.svg import LETTER

ROOT = Path(__file__).parents[2]
OURS = "cnn-b/cifar10/ours"
SVG = "{http://www.w3.org/2000/svg}"


def put(
    folder: Path,
    name: str,
    va: float,
    *,
    seed: int = 0,
    paper: str = OURS,
    protocol: Any = None,
    left: int = 100,
    grafted: int = 500,
    **top: Any,
) -> Path:
    """A file of results with one row. left: images neither proved nor refuted; grafted: neurons."""
    model = {
        "name": "ours",
        "sa": 0.75,
        "ra": 0.575,
        "va": va,
        "verdicts": {"unknown": left},
        "grafted": grafted,
        "seconds": {"pretrain": 90.0, "finetune": 150.0},
        "made": [{"commit": "0123456789", "device": "a GPU"}],
        "paper": paper,
    }
    changes = {"seed": seed} if seed else {}
    results = {"experiment": "table1", "scale": "full", "seed": seed, "changes": changes, "made": [], **top}
    path = folder / "tables" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    run = {"models": [model], "counts": {"tested": 10000, "certified": 1000}, "protocol": protocol or {}}
    path.write_text(json.dumps({**results, "runs": [run]}))
    return path


def row(folder: Path, key: str = OURS) -> PaperRow:
    (found,) = (one for one in overview(folder).rows if one.key == key)
    return found


def test_every_published_row_is_there_once_and_says_when_it_was_not_run(tmp_path: Path) -> None:
    put(tmp_path, "table1", 0.52)
    found = overview(tmp_path)
    keys = [one.key for table in found.tables for run in table.runs for one in run.rows]
    assert sorted(keys) == sorted(PUBLISHED)
    assert sum(map(len, (panel.rows for panel in found.panels))) == len(found.rows)
    page = overview_page(found)
    assert page.count("not run yet") == len(found.rows) - 1
    assert page.count("not run here") == len(PUBLISHED) - len(found.rows) == 0
    assert f"Of {len(found.rows)} published rows 1 are measured." in page


def test_a_measured_row_has_its_figures_images_time_seed_commit_and_hardware(tmp_path: Path) -> None:
    put(tmp_path, "table1", 0.52)
    (line,) = (line for line in overview_page(overview(tmp_path)).splitlines() if "a GPU" in line)
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    shown = ["Ours", "73.2 / 57.2 / 51.6", "75.0 / 57.5 / 52.0", "+0.4", "10,000, 1,000", "240"]
    assert cells[1:] == [*shown, "[0](tables/table1.json)", "`0123456`", "a GPU"]


def test_several_seeds_give_their_mean_and_their_range(tmp_path: Path) -> None:
    put(tmp_path, "table1", 0.50)
    put(tmp_path, "table1-seed1", 0.54, seed=1)
    put(tmp_path, "table1-seed2", 0.49, seed=2, changes={"seed": 2, "certify.verifier.total_seconds": 60})
    assert row(tmp_path).ours("va") == pytest.approx((51.0, 49.0, 54.0))
    assert [one.seed for one in row(tmp_path).found] == [0, 1, 2]
    page = overview_page(overview(tmp_path))
    assert "75.0 / 57.5 / 51.0 (49.0 to 54.0) |" in page
    assert "[0](tables/table1.json); [1](tables/table1-seed1.json); [2](tables/table1-seed2.json)" in page
    assert "`certify.verifier.total_seconds=60`" in page
    (band,) = ElementTree.fromstring(overview_figure(overview(tmp_path))).iterfind(f"{SVG}rect[@class='r']")
    assert "49.0 to 54.0 over 3 seeds" in "".join(band.itertext())


@pytest.mark.long
def test_the_training_nearest_to_the_experiment_counts_whatever_it_proves(tmp_path: Path) -> None:
    put(tmp_path, "short", 0.60, changes={"defaults.finetune.epochs": 40})
    put(tmp_path, "short-seed1", 0.60, seed=1, changes={"seed": 1, "defaults.finetune.epochs": 40})
    assert row(tmp_path).ours("va") == pytest.approx((60.0, 60.0, 60.0))
    assert "/ 60.0 * |" in overview_page(overview(tmp_path))  # marked: trained otherwise
    put(tmp_path, "whole", 0.51, changes={"attack.restarts": 1, "certify.count": 1000, "lipschitz.count": 10})
    assert row(tmp_path).ours("va") == pytest.approx((51.0, 51.0, 51.0))
    assert "/ 51.0 |" in overview_page(overview(tmp_path))
    put(tmp_path, "fewer-changes", 0.50, changes={"attack.restarts": 1})
    assert row(tmp_path).ours("va") == pytest.approx((50.0, 50.0, 50.0))


def test_of_one_training_the_certification_that_leaves_fewest_images_open_counts(tmp_path: Path) -> None:
    put(tmp_path, "long", 0.50, left=40, changes={"certify.verifier.limits.total_seconds": 600, "lipschitz.count": 10})
    put(tmp_path, "short", 0.45, left=90, changes={"certify.verifier.limits.total_seconds": 60})
    assert row(tmp_path).ours("va") == pytest.approx((50.0, 50.0, 50.0))


@pytest.mark.parametrize("grafted", [0, 500])
def test_changes_that_make_no_other_network_are_not_marked(tmp_path: Path, grafted: int) -> None:
    put(tmp_path, "saved-rarely", 0.5, grafted=grafted, changes={"pretrain.checkpoint_every": 25})
    assert "/ 50.0 |" in overview_page(overview(tmp_path))
    put(tmp_path, "saved-rarely", 0.5, grafted=grafted, changes={"defaults.finetune.epochs": 40})
    assert ("/ 50.0 * |" if grafted else "/ 50.0 |") in overview_page(overview(tmp_path))


def test_what_a_file_says_of_itself_stands_in_the_list_of_files(tmp_path: Path) -> None:
    put(tmp_path, "table1", 0.5, note="The figures are those that were printed.")
    assert "| nothing. The figures are those that were printed. |" in overview_page(overview(tmp_path))


def test_what_was_measured_for_a_row_counts_for_all_rows_with_its_recipe(tmp_path: Path) -> None:
    put(tmp_path, "table2", 0.53, paper="conv-big/cifar10/lg-rs")
    put(tmp_path, "table2-ours", 0.51, paper="conv-big/cifar10/ours-slope")
    assert row(tmp_path, "conv-big/cifar10-ablation/lg-rs").ours("va") == pytest.approx((53.0, 53.0, 53.0))
    for key in ("conv-big/cifar10-slope/beta-5e-5-k-2", "conv-big/cifar10-score/pool-80-share-15"):
        assert row(tmp_path, key).ours("va") == pytest.approx((51.0, 51.0, 51.0))
    others = ("conv-big/cifar10-ablation/ours-slope", "conv-big/cifar10-slope/beta-1e-4-k-2", "conv-big/svhn/lg-rs")
    assert not any(row(tmp_path, key).found for key in others)


def test_what_is_no_result_at_full_scale_or_lies_deeper_takes_no_part(tmp_path: Path) -> None:
    put(tmp_path, "smoke", 0.9, scale="smoke")
    (tmp_path / "tables/list.json").write_text("[1]")
    with pytest.raises(SettingsError, match="no results of experiments at full scale"):
        overview(tmp_path)
    put(tmp_path, "table1", 0.52)
    put(tmp_path / "tables", "deeper", 0.9)
    assert len(row(tmp_path).found) == 1
    (tmp_path / "tables/broken.json").write_text("{")
    with pytest.raises(SettingsError, match=r"broken\.json is not JSON"):
        overview(tmp_path)


def test_held_out_images_and_later_ones_are_not_the_papers(tmp_path: Path) -> None:
    put(tmp_path, "held-out", 0.6, protocol={"measured on": "held-out training images"})
    put(tmp_path, "second", 0.6, protocol={"first of them": 1000})
    assert row(tmp_path).found == ()
    put(tmp_path, "test", 0.5, protocol={"certified images": 1000}, changes={"attack.restarts": 1})
    assert row(tmp_path).ours("va") == pytest.approx((50.0, 50.0, 50.0))


def test_a_row_without_a_figure_is_shown_as_such(tmp_path: Path) -> None:
    file = put(tmp_path, "table1", 0.52)
    file.write_text(file.read_text().replace('"va": 0.52', '"va": null'))
    assert row(tmp_path).ours("va") is None
    assert "75.0 / 57.5 / – |" in overview_page(overview(tmp_path))


def test_one_command_writes_page_and_figure_and_leaves_other_pages_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, "table1", 0.52)
    for _ in range(2):  # a second time over its own page
        assert main(["reproduce", "--overview", str(tmp_path)]) == 0
        assert "1 of 66 published rows are measured." in capsys.readouterr().out
    assert (tmp_path / "README.md").read_text().startswith(MARK)
    assert (tmp_path / "overview.svg").exists()
    assert main(["reproduce", "--overview", str(tmp_path), "--json"]) == 0
    rows = {one["key"]: one["findings"] for one in json.loads(capsys.readouterr().out)["rows"]}
    assert rows[OURS][0]["va"] == pytest.approx(52.0)
    (tmp_path / "README.md").write_text("# Mine\n")
    with pytest.raises(SettingsError, match="is not an overview"):
        write_overview(tmp_path)
    assert (tmp_path / "README.md").read_text() == "# Mine\n"


def test_the_figure_has_a_mark_for_each_figure_and_nothing_outside_its_frame(tmp_path: Path) -> None:
    put(tmp_path, "table1", 0.52)
    put(tmp_path, "mnist", 1.0, paper="conv-big/mnist/ours")
    found = overview(tmp_path)
    root = ElementTree.fromstring(overview_figure(found))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    published, ours = root.findall(f"{SVG}circle"), root.findall(f"{SVG}path")
    assert (len(published), len(ours)) == (len(found.rows) + 1, 2 + 1)  # one of each in the legend
    for circle in published:
        assert 0 < float(circle.attrib["cx"]) < width
        assert 0 < float(circle.attrib["cy"]) < height
    for words in root.findall(f"{SVG}text"):
        wide = LETTER * len("".join(words.itertext()))
        start = float(words.attrib["x"]) - {"start": 0.0, "middle": 0.5, "end": 1.0}[words.attrib["text-anchor"]] * wide
        assert start >= 0
        assert start + wide <= width
        assert 0 < float(words.attrib["y"]) < height
    assert len({one.title for one in found.panels}) == len(found.panels)


def test_the_figure_is_drawn_for_both_colour_schemes_and_needs_no_other_file(tmp_path: Path) -> None:
    put(tmp_path, "table1", 0.52)
    figure = overview_figure(overview(tmp_path))
    light, dark = re.fullmatch(r".*<style>(.*)@media \(prefers-color-scheme:dark\){(.*)}</style>.*\n", figure).groups()  # type: ignore[union-attr]
    for name in ("page", "h", "o", "k", "m"):
        assert f".{name}{{" in light
        assert f".{name}{{" in dark
    assert not re.search(r"url\(|@import|href", figure)


def test_the_overview_in_the_documentation_is_that_of_the_results_there() -> None:
    """If not: lipgraft reproduce --overview docs/results."""
    folder = ROOT / "docs/results"
    found = overview(folder)
    assert (folder / "README.md").read_text(encoding="utf-8") == overview_page(found)
    assert (folder / "overview.svg").read_text(encoding="utf-8") == overview_figure(found)
    links = re.findall(r"\]\(([^)#]+)\)", overview_page(found))
    assert all((folder / link).exists() for link in links)
