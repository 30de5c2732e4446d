"""`lipgraft reproduce all --scale smoke`: every experiment runs, shares, resumes; its page holds up in a browser."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from browser import CHROMIUM, browser
from lipgraft import runs
from lipgraft.cli import main
from lipgraft.report.charts import FIGURES
from lipgraft.runs import chosen, experiment_names, load_experiment, reproduce, workload
from lipgraft.runs.reproduction import SHARED

pytestmark = pytest.mark.xdist_group("smoke")  # one process makes the fixture, and runs all tests on it

NAMES = experiment_names()
LONG = ["certified-cnn5", "certified-grafting", "controls", "criteria"]  # others train and graft as they do
FIRST = [name for name in NAMES if name not in LONG]
CASES = [*FIRST, *(pytest.param(name, marks=pytest.mark.long) for name in LONG)]
FLAGS = ("--scale", "smoke", "--device", "cpu")


class Heard:
    """What stages said of themselves."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.kept: list[str] = []

    def __call__(self, what: str, done: bool) -> None:
        (self.kept if done else self.made).append(what)


def again(name: str, out: Path, heard: Heard, **changes: Any) -> dict[str, Any]:
    """Reproduce an experiment in a folder; its results."""
    reproduce(load_experiment(name, "smoke", changes), out, announce=heard)
    return results(out, name)


def results(out: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / name / "results.json").read_text())
    return content


def figures(content: dict[str, Any]) -> list[Any]:
    """The measured values without times, and without what branch and bound decides: it is cut off by the clock."""
    keys = ("name", "sa", "ra", "lipschitz", "margin", "unr", "grafted")
    return [[{key: model[key] for key in keys} for model in run["models"]] for run in content["runs"]]


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Heard]:
    """The folder of the experiments that are not long, and what their stages said."""
    out, heard = tmp_path_factory.mktemp("reproduce"), Heard()
    for name in FIRST:
        reproduce(load_experiment(name, "smoke"), out, announce=heard)
    return out, heard


@pytest.fixture(scope="module")
def long(everything: tuple[Path, Heard]) -> tuple[Path, Heard]:
    """The same folder with the long ones too, and what the stages of all said."""
    out, heard = everything[0], Heard()
    for name in LONG:
        reproduce(load_experiment(name, "smoke"), out, announce=heard)
    heard.made = everything[1].made + heard.made
    return out, heard


@pytest.fixture
def folder(name: str, request: pytest.FixtureRequest) -> Path:
    """Where the experiment of that name is, whichever it is."""
    made: tuple[Path, Heard] = request.getfixturevalue("long" if name in LONG else "everything")
    return made[0]


@pytest.fixture
def copy(everything: tuple[Path, Heard], tmp_path: Path) -> Callable[..., Path]:
    """A copy of some experiments and of what they share, to be tampered with."""

    def copied(*names: str) -> Path:
        for name in (*names, SHARED):
            shutil.copytree(everything[0] / name, tmp_path / "copy" / name)
        return tmp_path / "copy"

    return copied


@pytest.mark.parametrize("name", CASES)
def test_every_row_of_every_experiment_is_measured(name: str, folder: Path) -> None:
    experiment, content = load_experiment(name, "smoke"), results(folder, name)
    assert content["missing"] == []
    assert [run["name"] for run in content["runs"]] == [run.recipe.name for run in experiment.runs]
    for run, asked in zip(content["runs"], experiment.runs, strict=True):
        assert [model["name"] for model in run["models"]] == [model.name for model in asked.recipe.models]
        for model, row in zip(run["models"], asked.recipe.models, strict=True):
            assert 0 <= model["ra"] <= model["sa"] <= 1
            assert 0 <= model["va"] <= 1
            assert sum(model["verdicts"].values()) == asked.recipe.certify.count
            assert "error" not in model["verdicts"]
            assert set(model["lipschitz"]) == set(asked.recipe.lipschitz.notions)
            assert all(value > 0 for value in model["lipschitz"].values())
            assert (model["grafted"] > 0) == (row.graft is not None)
            assert model["paper"] == row.paper
            assert (model["published"] is None) == (row.paper is None)
            assert all(made in content["made"] for made in model["made"])


@pytest.mark.parametrize("name", CASES)
def test_results_are_small_and_say_where_they_come_from(name: str, folder: Path) -> None:
    file = folder / name / "results.json"
    content = json.loads(file.read_text())
    assert file.stat().st_size < 60_000
    assert content["command"] == f"lipgraft reproduce {name} --scale smoke"
    assert content["seed"] == 0
    assert content["scale"] == "smoke"
    assert content["seconds"] > 0
    assert all(made["device"] for made in content["made"])
    table = (folder / name / "table.md").read_text()
    assert table.startswith(f"# {content['title']}\n")
    assert content["command"] in table
    for run in content["runs"]:
        for model in run["models"]:
            assert f"| {model['title']} | {100 * model['sa']:.1f}" in table


def test_what_experiments_share_is_made_once(everything: tuple[Path, Heard]) -> None:
    assert_made_once(everything[1].made, FIRST, pretrainings=12)


@pytest.mark.long
def test_what_all_experiments_share_is_made_once(long: tuple[Path, Heard]) -> None:
    assert_made_once(long[1].made, NAMES, pretrainings=18)


def assert_made_once(made: list[str], names: list[str], pretrainings: int) -> None:
    total = workload([load_experiment(name, "smoke") for name in names])
    trained = ("adversarial training", "certified training")
    assert sum(what.startswith(trained) for what in made) == total.pretrainings == pretrainings
    # Two rows may even come to the same mask and be one from there on.
    assert 30 < sum("fine-tuning" in what for what in made) <= total.finetunings
    assert sum("certifying" in what for what in made) <= total.models


def test_a_finished_experiment_is_not_done_again(copy: Callable[..., Path]) -> None:
    out, heard = copy("lipschitz"), Heard()
    before = results(out, "lipschitz")
    assert again("lipschitz", out, heard)["runs"] == before["runs"]
    assert heard.made == []
    assert len(heard.kept) > 8


def test_an_experiment_that_only_repeats_others_needs_no_work_of_its_own(
    everything: tuple[Path, Heard], copy: Callable[..., Path]
) -> None:
    out, heard = copy(), Heard()  # nothing but what was shared
    assert figures(again("table2", out, heard)) == figures(results(everything[0], "table2"))
    assert set(heard.made) == {"images to look at"}


def test_another_setting_redoes_what_depends_on_it_and_nothing_else(copy: Callable[..., Path]) -> None:
    out, heard = copy("lipschitz"), Heard()
    content = again("lipschitz", out, heard, **{"certify.count": 5})
    assert content["changes"] == {"certify.count": 5}
    assert content["runs"][0]["counts"]["certified"] == 5
    words = {what.rpartition(": ")[2] for what in heard.made}
    assert words == {"certifying 5 images", "unstable neurons and margins", "images to look at"}


@pytest.mark.long
def test_another_seed_has_a_table_of_its_own_beside_the_first(copy: Callable[..., Path]) -> None:
    out, heard = copy("lipschitz"), Heard()
    before = (out / "lipschitz/results.json").read_bytes()
    experiment = chosen([load_experiment("lipschitz", "smoke", {"seed": 1})], ["baseline"])[0]
    reproduce(experiment, out, announce=heard)
    assert (out / "lipschitz/results.json").read_bytes() == before
    content = results(out, "lipschitz-seed1")
    assert content["seed"] == 1
    assert content["command"].endswith("--set seed=1")
    assert heard.kept == []  # nothing of another seed is taken for it


def test_some_rows_first_and_the_others_later_give_the_whole_table(
    everything: tuple[Path, Heard], copy: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    out = copy()
    line = ["reproduce", "lipschitz", *FLAGS, "--out", str(out)]
    assert main([*line, "--only", "cnn-b/ours-slope"]) == 0
    assert [model["name"] for model in results(out, "lipschitz")["runs"][0]["models"]] == ["ours-slope"]
    capsys.readouterr()
    assert main(line) == 0
    shown, said = capsys.readouterr()
    assert figures(results(out, "lipschitz")) == figures(results(everything[0], "lipschitz"))
    assert "fine-tuning, 1 epoch, done before" in said
    assert "(66)" in shown  # the paper's Lipschitz constant of the baseline
    assert "(20.8)" in shown  # and that of certified training
    assert main([*line, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["experiment"] == "lipschitz"


@pytest.mark.long
def test_rows_that_were_finished_before_stay_in_the_table(
    everything: tuple[Path, Heard], copy: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    out = copy()
    line = ["reproduce", "table1", *FLAGS, "--out", str(out)]
    whole = results(everything[0], "table1")
    first, second = (run.name for run in load_experiment("table1", "smoke").runs[:2])
    rows = ["baseline", "lg", "ours"]
    assert main([*line, "--only", f"{first}/ours"]) == 0
    assert main([*line, "--only", f"{second}/lg", "--only", f"{first}/baseline"]) == 0
    content = results(out, "table1")
    assert table_of(content) == [["baseline", "ours"], ["lg"]]
    assert content["missing"] == []
    asked = f"--only {second}/lg --only {first}/baseline --only {first}/ours"
    assert content["command"] == f"lipgraft reproduce table1 --scale smoke {asked}"
    assert content["command"] in (out / "table1/table.md").read_text()
    assert figures(content)[0] == [figures(whole)[0][0], figures(whole)[0][2]]
    capsys.readouterr()
    assert main(["report", str(out / "table1" / first)]) == 0
    assert "Not finished: lg" in capsys.readouterr().out
    # The last row completes its run, whose images to look at are now chosen among all its models.
    assert main([*line, "--only", f"{first}/lg"]) == 0
    assert table_of(results(out, "table1")) == [rows, ["lg"]]
    assert figures(results(out, "table1"))[0] == figures(whole)[0]
    assert main(["report", str(out / "table1" / first)]) == 0
    assert "Not finished" not in capsys.readouterr().out
    # Rows with other settings do not mix.
    assert main([*line, "--only", f"{first}/ours", "--set", "certify.count=5"]) == 0
    assert table_of(results(out, "table1")) == [["ours"]]
    assert main(line) == 0
    assert results(out, "table1")["command"] == "lipgraft reproduce table1 --scale smoke"
    assert figures(results(out, "table1")) == figures(whole)


def test_a_finished_network_in_place_of_a_row_is_measured_like_the_row_and_the_table_says_so(
    everything: tuple[Path, Heard], tmp_path: Path
) -> None:
    file = next((everything[0] / "table2").glob("cnn-b*/checkpoints/ours-slope.safetensors"))
    row = "cnn-b/ours-slope"
    line = ["reproduce", "table2", *FLAGS, "--out", str(tmp_path), "--only", row, "--network", f"{row}={file}"]
    assert main(line) == 0
    now, before = (results(out, "table2") for out in (tmp_path, everything[0]))
    trained = next(model for model in before["runs"][0]["models"] if model["name"] == "ours-slope")
    (run,) = now["runs"]
    (measured,) = run["models"]
    for key in ("sa", "ra", "lipschitz", "margin", "grafted", "neurons", "published"):
        assert measured[key] == trained[key]
    assert now["changes"] == {f"{row}.network": str(file)}
    assert f"--network {row}={file}" in now["command"]
    assert f"{row}.network" in (tmp_path / "table2" / "table.md").read_text()


def test_a_run_of_an_older_version_with_chosen_rows_alone_is_taken_up(copy: Callable[..., Path]) -> None:
    """Their config.yaml held the chosen rows only."""
    out, experiment = copy(), load_experiment("table1", "smoke")
    one = experiment.runs[0]
    older = replace(one.recipe, models=one.recipe.models[:1])
    runs.run(older, out / "table1" / one.name, shared=out / SHARED)
    reproduce(chosen([experiment], [f"{one.name}/ours"])[0], out)
    assert table_of(results(out, "table1")) == [["baseline", "ours"]]


def table_of(content: dict[str, Any]) -> list[list[str]]:
    return [[model["name"] for model in run["models"]] for run in content["runs"]]


def test_a_killed_run_goes_on_where_it_was(everything: tuple[Path, Heard], tmp_path: Path) -> None:
    """SIGKILL, as from a machine that is taken away."""
    out = tmp_path / "killed"
    line = [sys.executable, "-m", "lipgraft", "reproduce", "lipschitz", *FLAGS, "--out", str(out)]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_environment()) as process:
        while process.poll() is None and len(list((out / SHARED).glob("*.json"))) < 3:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    kept = len(list((out / SHARED).glob("*.json")))
    heard = Heard()
    content = again("lipschitz", out, heard)
    assert len(heard.kept) >= kept >= 3
    assert heard.kept[0].startswith("adversarial training")
    assert figures(content) == figures(results(everything[0], "lipschitz"))


def test_a_row_that_is_finished_is_in_the_table_before_the_run_ends(tmp_path: Path, copy: Callable[..., Path]) -> None:
    out = copy()

    def cut(what: str, done: bool) -> None:
        if what == "Ours + slope loss: Lipschitz constants":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce(load_experiment("lipschitz", "smoke"), out, announce=cut)
    content = results(out, "lipschitz")
    assert [model["name"] for model in content["runs"][0]["models"]] == ["baseline"]
    assert content["missing"] == ["cnn-b/ours-slope", "ibp/ibp"]
    assert "Not finished: cnn-b/ours-slope, ibp/ibp." in (out / "lipschitz/table.md").read_text()


# --- the pages


@pytest.mark.parametrize("name", CASES)
def test_every_page_has_its_figures_filled_and_its_rows(name: str, folder: Path) -> None:
    page = (folder / name / "report.html").read_text()
    content = results(folder, name)
    assert not re.search(r"https?://|@import|url\(|<script src|<link", page)
    ids = re.findall(r'id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    drawings = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert len(drawings) >= (len(FIGURES) - 3) * len(content["runs"])  # without a proof three are left out
    for drawing in drawings:
        root = ElementTree.fromstring(drawing)
        assert sum(element.tag in ("rect", "circle", "path") for element in root.iter()) >= 1
        assert "nan" not in drawing
    for run in content["runs"]:
        for model in run["models"]:
            assert html.escape(model["title"]) in page
    for literature in (entry["title"] for run in content["runs"] for entry in run["literature"]):
        assert literature in page


WIDTHS = (1400, 390)
MEASURE = """(() => {
  const width = document.documentElement.clientWidth;
  const kept = e => e.closest('.scroll, pre, svg') && !e.matches('.scroll');
  const wide = e => e.getBoundingClientRect().right > width + 1;
  const overflowing = [...document.querySelectorAll('body *')].filter(e => !kept(e) && wide(e));
  const outside = [...document.querySelectorAll('svg text')].filter(t => {
    const frame = t.closest('svg').getBoundingClientRect(), box = t.getBoundingClientRect();
    return box.left < frame.left - 2 || box.right > frame.right + 2 || box.bottom > frame.bottom + 2;
  });
  return {
    scroll: document.documentElement.scrollWidth, width,
    overflowing: overflowing.map(e => e.tagName + '.' + e.className),
    outside: outside.map(t => t.closest('figure').id + ': ' + t.textContent),
    flat: [...document.querySelectorAll('svg')].filter(s => s.getBoundingClientRect().height < 60).length,
    broken: [...document.images].filter(i => !i.naturalWidth).length,
    figures: document.querySelectorAll('figure svg').length,
  };
})()"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH (Debian: apt-get install chromium)")
def test_pages_fit_a_desktop_and_a_phone_in_a_real_browser(everything: tuple[Path, Heard]) -> None:
    with browser() as page:
        for name in ("table1", "tradeoff", "lipschitz", "activations"):
            for width in WIDTHS:
                page.open(everything[0] / name / "report.html", width)
                seen = page.ask(MEASURE)
                assert seen["width"] == width, name
                assert seen["scroll"] <= width, name
                assert seen["overflowing"] == seen["outside"] == [], name
                assert seen["flat"] == seen["broken"] == 0, name
                assert seen["figures"] >= (len(FIGURES) - 3) * len(results(everything[0], name)["runs"]), name
                assert page.troubles() == []


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
