"""The experiments' files: what they ask for at both scales, and every way a file can be wrong."""

from __future__ import annotations

import fnmatch
import itertools
import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from lipgraft.cli import main
from lipgraft.errors import LipgraftError, SettingsError
from lipgraft.report import PUBLISHED, published
from lipgraft.runs import (
    SCALES,
    ModelRecipe,
    Recipe,
    chosen,
    experiment_names,
    load_experiment,
    with_networks,
    workload,
)
from lipgraft.settings import to_mapping

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "src/lipgraft/experiments"


def rows(scale: str = "full") -> Iterator[tuple[str, Recipe, ModelRecipe]]:
    """(experiment/run, recipe, row) of all experiments."""
    for name in experiment_names():
        for run in load_experiment(name, scale).runs:
            for model in run.recipe.models:
                yield f"{name}/{run.name}", run.recipe, model


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", experiment_names())
def test_every_experiment_parses_and_resolves_at_both_scales(name: str, scale: str) -> None:
    experiment = load_experiment(name, scale)
    assert experiment.name == name
    assert experiment.about.endswith(".")
    assert experiment.runs
    assert len({run.name for run in experiment.runs}) == len(experiment.runs)
    for run in experiment.runs:
        assert run.recipe.data == ("digits" if scale == "smoke" else run.recipe.data)
        assert len({model.title for model in run.recipe.models}) == len(run.recipe.models)


def test_the_tables_of_the_paper_are_known_by_their_numbers() -> None:
    numbered = [load_experiment(name).number for name in experiment_names()]
    assert numbered[:14] == list(range(1, 15))
    assert not any(numbered[14:])
    assert load_experiment("3").name == "lipschitz"
    assert load_experiment("1").name == "table1"


def test_every_published_row_is_shown_by_an_experiment() -> None:
    shown = {model.paper for _, _, model in rows()}
    shown |= {
        key for name in experiment_names() for run in load_experiment(name).runs for key in run.literature.values()
    }
    assert shown - {None} == set(PUBLISHED)


def test_published_rows_stand_beside_the_network_and_data_that_they_are_of() -> None:
    for where, recipe, model in rows():
        if model.paper is not None:
            network, data, _ = model.paper.split("/")
            activation = "" if recipe.activation == "relu" else f"-{recipe.activation}"
            assert network == f"{recipe.network}{activation}", where
            assert data.split("-")[0] == recipe.data, where
            assert ("8-255" in data) == (recipe.eps == 8 / 255), where


def _distinct(recipe: Recipe, model: ModelRecipe) -> dict[str, Any]:
    """What makes a row another one: everything but sizes, schedules and data."""
    tuned = {} if model.finetune is None else to_mapping(model.finetune)
    terms = ("objective", "grad_align", "slope", "slope_form", "slope_k", "slope_scope", "rs", "l1", "prune")
    graft = None if model.graft is None else (model.graft.criterion, model.graft.ratio, model.graft.options)
    return {
        "activation": recipe.activation,
        "objective": (recipe.pretrain.objective, recipe.pretrain.grad_align),
        "graft": graft,
        "finetune": {term: tuned.get(term) for term in terms},
        "notions": recipe.lipschitz.notions,
    }


def test_the_smoke_scale_keeps_what_distinguishes_the_rows() -> None:
    full = {f"{where}/{model.name}": _distinct(recipe, model) for where, recipe, model in rows("full")}
    smoke = {f"{where}/{model.name}": _distinct(recipe, model) for where, recipe, model in rows("smoke")}
    named = {row for row in smoke if not row.startswith("calibration/")}  # there the sizes are the names
    assert named <= set(full)
    assert {row: smoke[row] for row in named} == {row: full[row] for row in named}
    left_out = {row for row in full if not row.startswith("calibration/")} - named
    kept = {_without_numbers(row) for row in named}
    assert {_without_numbers(row) for row in left_out} <= kept  # numbers between the ends of a grid, and nothing else
    assert load_experiment("eps-8", "smoke").runs[0].recipe.eps > load_experiment("table1", "smoke").runs[0].recipe.eps


def _without_numbers(row: str) -> str:
    """The row of a grid without the value in its name."""
    where, _, name = row.rpartition("/")
    return f"{where}/{re.sub('-[0-9-]+$', '', name)}"


def test_a_smoke_table_says_in_its_titles_what_it_was_really_run_on() -> None:
    experiment = load_experiment("table1", "smoke")
    assert experiment.title.endswith("(smoke test on small stand-ins, not the paper's data)")
    for run in experiment.runs:
        assert run.recipe.title.startswith(f"{run.recipe.network} on {run.recipe.data}, a smoke test in place of ")


def test_tables_share_their_pretraining_and_the_rows_that_both_show() -> None:
    same = [
        recipe.pretrain
        for where, recipe, _ in rows()
        if (recipe.network, recipe.data, recipe.activation, recipe.eps) == ("cnn-b", "cifar10", "relu", 2 / 255)
        and not where.endswith(("-l1", "-published"))  # runs about the pre-training itself
        and recipe.pretrain.objective == "fat"  # certified training has its own
    ]
    assert len(same) > 40
    assert len(set(same)) == 1
    first, second = (load_experiment(name) for name in ("table1", "table2"))
    assert workload([first]).pretrainings == workload([first, second]).pretrainings == 6
    assert workload([first, second]).finetunings == 24
    assert workload([first, second]).models == 30  # the six baselines are in both
    lipschitz, certified = load_experiment("lipschitz"), load_experiment("certified-training")
    assert workload([second, replace(lipschitz, runs=lipschitz.runs[:1])]) == workload([second])
    assert workload([certified, replace(lipschitz, runs=lipschitz.runs[1:])]) == workload([certified])


def test_the_controls_differ_from_ours_with_the_slope_loss_in_what_their_titles_say() -> None:
    models = {model.name: model for model in load_experiment("controls").runs[0].recipe.models}
    ours = models["slope-0-3"]
    assert models["no-lines-slope"].graft is None
    assert models["no-lines"].graft is None
    assert models["no-lines"].finetune == models["ours"].finetune
    slope = [name for name in models if "slope" in name]
    assert len(slope) == 9
    assert {models[name].finetune for name in slope} == {ours.finetune}
    assert {(g.criterion, g.ratio, g.lines) for name in slope if (g := models[name].graft)} == {
        *(("weighted-interval", ratio, "fitted") for ratio in (0.05, 0.1, 0.3, 0.5)),
        *(("random", ratio, "fitted") for ratio in (0.3, 0.5)),
        ("lg", 0.5, "fitted"),
        ("weighted-interval", 0.3, "constant"),
    }


def test_criteria_are_compared_over_the_same_ratios_with_the_same_fine_tuning() -> None:
    models = [model for model in load_experiment("criteria").runs[0].recipe.models if model.graft is not None]
    pairs = [(model.graft.criterion, model.graft.ratio) for model in models if model.graft is not None]
    assert pairs == list(itertools.product(("lg", "weighted-interval"), (0.2, 0.35, 0.5, 0.65)))
    assert len({model.finetune for model in models}) == 1
    (table,) = (run for run in load_experiment("table1").runs if run.name == "cnn-b")
    assert models[-2] == replace(table.recipe.models[-1], name="ours-0-5", title="Ours 50%", paper=None)


def test_settings_given_on_top_go_first_and_rows_can_be_chosen() -> None:
    experiment = load_experiment("table1", changes={"certify.count": 7, "defaults.finetune.epochs": 2, "seed": 4})
    recipe = experiment.runs[0].recipe
    assert (recipe.certify.count, recipe.seed, recipe.certify.verifier.attack.seed) == (7, 4, 4)
    assert [model.finetune and model.finetune.epochs for model in recipe.models] == [None, 2, 2]
    (one,) = chosen([experiment], ["cnn-b/ours", "resnet4b"])
    assert {run.name: run.asked for run in one.runs if run.asked} == {
        "cnn-b": ("ours",),
        "resnet4b": ("baseline", "lg", "ours"),
    }
    assert [run.recipe for run in one.runs] == [run.recipe for run in experiment.runs]
    assert [e.name for e in chosen([experiment, load_experiment("lipschitz")], ["ours-slope"])] == ["lipschitz"]
    with pytest.raises(SettingsError, match="Did you mean 'cnn-b'"):
        chosen([experiment], ["cnnb"])


def test_a_finished_network_takes_the_place_of_the_row_that_is_named_and_of_no_other() -> None:
    tables = [load_experiment("table1"), load_experiment("table2")]
    first, second = with_networks(tables, {"cnn-b/ours-slope": "mine.safetensors"})
    assert first == tables[0]
    changed = {
        f"{run.name}/{new.name}": new
        for run, was in zip(second.runs, tables[1].runs, strict=True)
        for new, old in zip(run.recipe.models, was.recipe.models, strict=True)
        if new != old
    }
    assert changed.keys() == {"cnn-b/ours-slope"}
    row = changed["cnn-b/ours-slope"]
    assert (row.network, row.graft, row.finetune) == ("mine.safetensors", None, None)
    assert row.paper == "cnn-b/cifar10/ours-slope"
    assert workload([first, second]).finetunings == workload(tables).finetunings - 1
    with pytest.raises(SettingsError, match="Did you mean 'cnn-b/ours-slope'"):
        with_networks(tables, {"cnnb/ours-slope": "mine.safetensors"})


def test_other_seeds_and_other_images_have_folders_of_their_own() -> None:
    changes = {"seed": 1, "measured_on": "held-out", "certify.start": 1000}
    folders = [load_experiment("table1", changes={key: changes[key]}).folder for key in changes]
    assert folders == ["table1-seed1", "table1-held-out", "table1-from1000"]
    assert load_experiment("table1", changes=changes).folder == "table1-seed1-held-out-from1000"


def test_a_grid_makes_one_row_for_each_combination(tmp_path: Path) -> None:
    grid = {"graft.ratio": [0.2, 0.5], "graft.options.last_layer": ["pool", "cap", "quota"], "finetune.l1": [0.0, 1e-4]}
    row = {"like": "ours", "name": "r-{ratio}-{last_layer}-{l1}", "title": "{ratio} {last_layer}", "grid": grid}
    models = load_experiment(experiment_file(tmp_path, {"models": [row]})).runs[0].recipe.models
    assert len(models) == 2 * 3 * 2
    last = models[-1]
    assert (last.name, last.title) == ("r-0-5-quota-0-0001", "0.5 quota")
    assert last.graft is not None
    assert (last.graft.ratio, last.graft.options) == (0.5, {"last_layer": "quota"})
    assert last.finetune is not None
    assert last.finetune.l1 == 1e-4


def test_the_smoke_scale_takes_the_first_and_last_number_of_a_grid_and_every_name(tmp_path: Path) -> None:
    grid = {"graft.ratio": [0.2, 0.3, 0.4, 0.5], "graft.options.last_layer": ["pool", "cap", "quota"]}
    row = {"like": "ours", "name": "{ratio}-{last_layer}", "grid": grid}
    experiment = load_experiment(experiment_file(tmp_path, {"models": [row]}), "smoke")
    names = {model.name for model in experiment.runs[0].recipe.models}
    assert names == {f"{ratio}-{layer}" for ratio in ("0-2", "0-5") for layer in ("pool", "cap", "quota")}


def experiment_file(folder: Path, run: dict[str, Any] | None = None, **top: Any) -> Path:
    """A correct experiment, with changes to its run and to its top level."""
    runs = [{"name": "a", "network": "cnn-b", "models": ["ours"], **(run or {})}]
    content = {"title": "T", "about": "A.", "models": {"ours": {"graft": {}}}, "runs": runs, **top}
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_a_file_of_ones_own_works_and_may_extend_the_shared_one(tmp_path: Path) -> None:
    assert load_experiment(experiment_file(tmp_path)).runs[0].recipe.name == "mine-a"
    path = experiment_file(tmp_path, extends=str(FOLDER / "shared.yaml"))
    assert load_experiment(path, "smoke").runs[0].recipe.data == "digits"


BAD: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"titel": "x"}, "titel.*Did you mean 'title'"),
    ({}, {"runs": []}, "at least one run"),
    ({}, {"smok": {}}, "smoke"),
    ({"netwrk": "cnn-b"}, {}, "mine, run a.*Did you mean 'network'"),
    ({"network": "cnnb"}, {}, "cnn-b"),
    ({"certify": {"cout": 3}}, {}, "certify.cout.*certify.count"),
    ({"models": ["our"]}, {}, "Did you mean 'ours'"),
    ({"models": [{"like": "our"}]}, {}, "Did you mean 'ours'"),
    ({"models": [{"like": "ours", "grft": {}}]}, {}, "grft.*graft"),
    ({"models": [{"like": "ours", "finetune": {"slop": 1}}]}, {}, "slop.*slope"),
    ({"models": [{"like": "ours", "smoke": 3}]}, {}, "smoke must be a mapping"),
    ({"models": [3]}, {}, "a name or a mapping"),
    ({"models": [{"like": "ours", "grid": {"graft.ratio": 0.5}}]}, {}, "list of values"),
    ({"models": [{"like": "ours", "name": "{ratoi}", "grid": {"graft.ratio": [0.5]}}]}, {}, "may name {ratio}"),
    ({"models": [{"like": "ours", "grid": {"graft.ratoi": [0.5]}}]}, {}, "ratoi.*ratio"),
    ({"paper": "cnn-b/cifar"}, {}, "cnn-b/cifar10/ours"),
    ({"literature": {"IBP": "cnn-b/cifar10/ipb"}}, {}, "cnn-b/cifar10/ibp"),
    ({}, {"settings": {"epps": 1}}, "epps.*eps"),
    ({}, {"settings": {"defaults": {"finetun": {}}}}, "finetune"),
]


@pytest.mark.parametrize(("run", "top", "hint"), BAD, ids=[hint for _, _, hint in BAD])
def test_a_wrong_experiment_is_refused_with_one_sentence_that_names_the_right_word(
    run: dict[str, Any], top: dict[str, Any], hint: str, tmp_path: Path
) -> None:
    with pytest.raises(LipgraftError, match=hint) as caught:
        load_experiment(experiment_file(tmp_path, run, **top))
    assert "\n" not in str(caught.value)


def test_mistakes_on_the_command_line_are_answered_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for line, hint in (
        (["tabel1"], "Did you mean 'table1'"),
        (["99"], "unknown experiment"),
        ([], "name a table"),
        (["table1", "--scale", "smok"], "smoke"),
        (["table1", "--only", "cnnb"], "cnn-b"),
        (["table1", "--set", "certify.cuont=3"], "certify.count"),
        (["table1", "--network", "cnn-b/our=x.onnx"], "cnn-b/ours"),
        (["table1", "--network", "x.onnx"], "ROW=FILE"),
        (["table1", "--network", "cnn-b/ours=resnet4b"], "must be a file or a function"),
    ):
        assert main(["reproduce", *line]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert hint in err


def test_the_list_has_one_line_for_each_experiment_and_one_for_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*experiment_names(), "all"]
    assert "6 pre-trainings and 12 fine-tunings, 2,400 epochs; 18,000 images to certify" in lines[0]


def test_the_experiments_are_package_data_and_lie_at_the_top_of_the_repository_too() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["lipgraft"]
    files = sorted(FOLDER.glob("*.yaml"))
    assert len(files) == len(experiment_names()) + 1
    assert all(any(fnmatch.fnmatch(f"experiments/{file.name}", p) for p in patterns) for file in files)
    link = ROOT / "experiments"
    if link.is_symlink():  # not every file system and not every copy has links
        assert link.resolve() == FOLDER.resolve()


def test_published_figures_of_the_same_row_agree_between_tables() -> None:
    """Where the paper repeats a row, so do we; its two slips are kept as printed."""
    table = published("conv-big/cifar10/ours-slope")
    for key in ("conv-big/cifar10-slope/beta-5e-5-k-2", "conv-big/cifar10-score/pool-80-share-15"):
        assert (published(key).sa, published(key).ra, published(key).va) == (table.sa, table.ra, table.va)
    assert published("conv-big/cifar10-ablation/ours-slope").sa == 69.14 != table.sa


def test_the_documentation_names_every_experiment_and_its_example_loads(tmp_path: Path) -> None:
    text = (ROOT / "docs/reproduction.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in experiment_names())
    (example,) = re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)
    (tmp_path / "mine.yaml").write_text(example.replace("shared.yaml", str(FOLDER / "shared.yaml"), 1))
    models = load_experiment(tmp_path / "mine.yaml").runs[0].recipe.models
    assert [model.name for model in models] == ["baseline", "ours-slope-lowest", "ratio-0-2", "ratio-0-5"]
