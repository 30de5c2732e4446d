"""Recipes: from YAML to settings, and every way a recipe can be wrong."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from lipgraft.errors import LipgraftError, SettingsError
from lipgraft.runs import explain, load_experiment, load_recipe, recipe_names, resolve
from lipgraft.settings import to_mapping
from lipgraft.training import preset

DOCS = Path(__file__).parents[2] / "docs"


def written(folder: Path, name: str = "mine.yaml", **settings: Any) -> Path:
    path = folder / name
    path.write_text(yaml.safe_dump({"name": "mine", "models": [{"name": "baseline"}], **settings}))
    return path


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_that_comes_with_lipgraft_resolves(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert len(recipe.models) > 1


@pytest.mark.parametrize("key", ["certify", "certify.verifier"])
def test_a_whole_group_is_not_reset_by_an_empty_value(key: str, tmp_path: Path) -> None:
    path = written(tmp_path, certify={"count": 7, "verifier": {"limits": {"timeout": 3}}})
    with pytest.raises(SettingsError, match=rf"{key} is a group of settings.*{key}\.NAME=VALUE"):
        load_recipe(path, {key: None})


@pytest.mark.parametrize("name", recipe_names())
def test_a_resolved_recipe_resolves_to_itself_also_through_yaml(name: str) -> None:
    recipe = load_recipe(name)
    text = yaml.safe_dump(to_mapping(recipe))
    assert resolve(yaml.safe_load(text)) == recipe


def test_the_radius_and_the_seed_reach_every_stage_unless_a_stage_has_its_own(tmp_path: Path) -> None:
    models = [{"name": "a", "graft": {}}, {"name": "b", "graft": {}, "finetune": {"eps": 0.3}}]
    recipe = load_recipe(written(tmp_path, eps="2/10", seed=7, models=models))
    assert recipe.eps == recipe.pretrain.eps == 0.2
    assert [model.finetune and model.finetune.eps for model in recipe.models] == [0.2, 0.3]
    assert recipe.certify.verifier.attack.seed == 7


def test_trainings_start_from_their_presets(tmp_path: Path) -> None:
    models = [{"name": "a", "graft": {}, "finetune": {"lr": 0.5}}]
    recipe = load_recipe(written(tmp_path, models=models, pretrain={"preset": "pretrain-short", "batch": 7}))
    assert recipe.pretrain == dataclasses.replace(preset("pretrain-short"), batch=7)
    assert recipe.models[0].finetune == dataclasses.replace(preset("finetune"), lr=0.5)


def test_models_take_the_shared_defaults_and_may_change_them(tmp_path: Path) -> None:
    defaults = {"graft": {"ratio": 0.2, "slope": 0.1}, "finetune": {"preset": "finetune-short", "epochs": 3}}
    models = [
        {"name": "plain"},
        {"name": "a", "graft": {"criterion": "lg"}},
        {"name": "b", "graft": {"ratio": 0.4}, "finetune": {"epochs": 5}},
        {"name": "c", "graft": {}, "finetune": None},
    ]
    plain, a, b, c = load_recipe(written(tmp_path, defaults=defaults, models=models)).models
    assert plain.graft is None
    assert plain.finetune is None
    assert a.graft is not None
    assert (a.graft.criterion, a.graft.ratio, a.graft.slope) == ("lg", 0.2, 0.1)
    assert a.finetune == dataclasses.replace(preset("finetune-short"), epochs=3)
    assert b.graft is not None
    assert b.graft.ratio == 0.4
    assert b.finetune == dataclasses.replace(preset("finetune-short"), epochs=5)
    assert c.graft is not None
    assert c.finetune is None


def test_a_recipe_may_extend_another_by_name_or_by_file(tmp_path: Path) -> None:
    written(tmp_path, "base.yaml", eps=0.3, attack={"steps": 9, "restarts": 2})
    (tmp_path / "top.yaml").write_text("extends: base.yaml\nattack: {steps: 4}\n")
    recipe = load_recipe(tmp_path / "top.yaml")
    assert (recipe.eps, recipe.attack.steps, recipe.attack.restarts) == (0.3, 4, 2)
    (tmp_path / "quick.yaml").write_text("extends: quickstart\neps: 0.01\n")
    assert load_recipe(tmp_path / "quick.yaml").pretrain.eps == 0.01
    assert len(load_recipe(tmp_path / "quick.yaml").models) == len(load_recipe("quickstart").models)


def test_the_flat_names_of_the_verifiers_settings_still_work_in_every_layer(tmp_path: Path) -> None:
    flat = {"timeout": 30, "refine": "all", "attack": "pgd", "attack_steps": 9}
    written(tmp_path, "base.yaml", certify={"verifier": flat})
    (tmp_path / "top.yaml").write_text("extends: base.yaml\ncertify: {verifier: {attack: {steps: 4}, seed: 3}}\n")
    settings = load_recipe(tmp_path / "top.yaml", {"certify.verifier.bab_iterations": 7}).certify.verifier
    assert (settings.limits.timeout, settings.optimise.refine, settings.branch.iterations) == (30, "all", 7)
    assert (settings.attack.method, settings.attack.steps, settings.attack.seed) == ("pgd", 4, 3)
    (tmp_path / "quick.yaml").write_text("extends: quickstart\ncertify: {verifier: {max_subproblems: 5}}\n")
    assert load_recipe(tmp_path / "quick.yaml").certify.verifier.limits.max_subproblems == 5
    one = {"name": "mine", "models": [{"name": "baseline"}], "certify": {"verifier": flat}}
    assert resolve(one).certify.verifier.attack.method == "pgd"
    changes = {"certify.verifier.timeout": 60, "certify.verifier.limits.total_seconds": 5}
    for run in load_experiment("table1", "smoke", changes).runs:
        assert (run.recipe.certify.verifier.limits.timeout, run.recipe.certify.verifier.limits.total_seconds) == (60, 5)


def test_the_settings_of_a_run_are_a_recipe(tmp_path: Path) -> None:
    recipe = load_recipe("quickstart")
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"recipe": to_mapping(recipe), "versions": {}, "hardware": {}}))
    assert load_recipe(path) == recipe
    (tmp_path / "top.yaml").write_text("extends: config.yaml\neps: 0.01\n")
    with pytest.raises(SettingsError, match="extend the recipe of that run"):
        load_recipe(tmp_path / "top.yaml")


def test_a_flag_goes_before_the_recipe() -> None:
    recipe = load_recipe("quickstart", {"seed": 5, "certify.count": 7, "defaults.finetune.epochs": 3})
    assert (recipe.seed, recipe.certify.count) == (5, 7)
    assert {model.finetune.epochs for model in recipe.models if model.finetune is not None} == {3}
    assert load_recipe("quickstart").seed == 0
    with pytest.raises(SettingsError, match="Did you mean 'certify\\.count'"):
        load_recipe("quickstart", {"certify.cuont": 7})


BAD: list[tuple[dict[str, Any], str]] = [
    ({"epss": 0.1}, "epss.*Did you mean 'eps'"),
    ({"data": "cifar"}, "cifar10"),
    ({"network": "cnnb"}, "cnn-b"),
    ({"eps": -0.1}, "eps must be"),
    ({"eps": float("nan")}, "eps must be"),
    ({"activation": "reul"}, "relu"),
    ({"pretrain": {"epoch": 3}}, "pretrain.epoch.*pretrain.epochs"),
    ({"pretrain": {"preset": "pretrian"}}, "pretrain"),
    ({"defaults": {"grft": {}}}, "defaults.grft.*defaults.graft"),
    ({"models": []}, "at least one model"),
    ({"models": {"name": "x"}}, "must be a list"),
    ({"models": ["x"]}, "mapping"),
    ({"models": [{"name": "x"}, {"name": "x"}]}, "two models"),
    ({"models": [{"name": "../x"}]}, "lowercase letters"),
    ({"models": [{"title": "x"}]}, "name"),
    ({"models": [{"name": "x", "graft": {"criterion": "lgg"}}]}, "Did you mean 'lg'"),
    ({"models": [{"name": "x", "graft": {"ratio": 1.5}}]}, "ratio"),
    ({"models": [{"name": "x", "graft": {"options": {"pol": 1}}}]}, "pool"),
    ({"models": [{"name": "x", "paper": "cnn-b/cifar10/our"}]}, "cnn-b/cifar10/ours"),
    ({"models": [{"name": "x", "network": "cnn-b"}]}, "must be a file or a function"),
    ({"models": [{"name": "x", "network": "cnn"}]}, "cnn-b"),
    ({"models": [{"name": "x", "network": "x.onnx", "graft": {}}]}, "leave out graft and finetune"),
    ({"models": [{"name": "x", "network": "x.onnx", "finetune": {}}]}, "leave out graft and finetune"),
    ({"calibration": {"bounds": "crwn"}}, "crown"),
    ({"calibration": {"count": 0}}, "at least 1"),
    ({"attack": {"method": "pdg"}}, "pgd"),
    ({"certify": {"verifier": {"timeot": 3}}}, "Did you mean 'certify.verifier.limits.timeout'"),
    ({"certify": {"verifier": {"limits": {"timeot": 3}}}}, "Did you mean 'certify.verifier.limits.timeout'"),
    ({"certify": {"verifier": {"limits": {"timeout": -3}}}}, "limits.timeout must be a finite number > 0"),
    ({"certify": {"verifier": {"attack": {"steps": 3}, "attack_steps": 4}}}, "attack.steps is given twice"),
    ({"certify": {"margins": "cron"}}, "crown"),
    ({"lipschitz": {"notions": ["jacobain"]}}, "jacobian"),
    ({"lipschitz": {"units": "metres"}}, "pixel"),
]


@pytest.mark.parametrize(("settings", "hint"), BAD, ids=lambda value: str(value)[:40])
def test_a_wrong_recipe_is_refused_with_one_sentence_that_names_the_right_word(
    settings: dict[str, Any], hint: str, tmp_path: Path
) -> None:
    with pytest.raises(LipgraftError, match=hint) as caught:
        load_recipe(written(tmp_path, **settings))
    assert "\n" not in str(caught.value)


def test_recipes_that_are_not_there_or_not_yaml_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="Did you mean 'quickstart'"):
        load_recipe("quickstrat")
    with pytest.raises(SettingsError, match=r"there is no recipe at .*none\.yaml"):
        load_recipe(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("a: [1, 2")
    with pytest.raises(SettingsError, match="not valid YAML"):
        load_recipe(tmp_path / "bad.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(SettingsError, match="mapping"):
        load_recipe(tmp_path / "list.yaml")
    (tmp_path / "round.yaml").write_text("extends: round.yaml\n")
    with pytest.raises(SettingsError, match="extends itself"):
        load_recipe(tmp_path / "round.yaml")


def test_the_documentation_ends_with_every_key_of_every_group_as_the_code_describes_it() -> None:
    """If it does not: put the output of `lipgraft run --explain` at the end of docs/recipes.md."""
    assert (DOCS / "recipes.md").read_text(encoding="utf-8").endswith(explain().strip() + "\n")


# Recipes from anybody


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../../x", "/tmp/x", "a/b", "a\\b", ".hidden", "x" * 300, "red\x1b[31m", "two\nlines"]
)
def test_a_recipes_name_stays_inside_the_folder_of_runs(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match="must be a plain name") as error:
        load_recipe(written(tmp_path, name="mine.yaml").parent / "mine.yaml", {"name": name})
    assert len(str(error.value)) < 500


def test_the_name_of_a_model_is_short(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="at most 100") as error:
        load_recipe(written(tmp_path, models=[{"name": "x" * 300}]))
    assert len(str(error.value)) < 500


def test_the_name_of_a_run_of_an_experiment_stays_inside_its_folder(tmp_path: Path) -> None:
    run = {"name": "../../x", "network": "digits-cnn", "data": "digits", "models": [{"name": "baseline"}]}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"title": "T", "about": "A", "runs": [run]}))
    with pytest.raises(SettingsError, match="must be a plain name"):
        load_experiment(path)


@pytest.mark.parametrize("content", ["root:x:0:0:secret:/root", "a: [secret", "- secret\n- more"])
@pytest.mark.parametrize("name", ["passwd", "other.yaml"])
def test_a_file_that_is_no_recipe_is_not_printed(tmp_path: Path, content: str, name: str) -> None:
    (tmp_path / name).write_text(content)
    path = tmp_path / "mine.yaml"
    path.write_text(f"extends: {name}\nname: mine\n")
    with pytest.raises(SettingsError) as error:
        load_recipe(path)
    assert "secret" not in str(error.value)


def test_a_key_given_twice_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\neps: 0.1\nmodels: [{name: a}]\neps: 0.3\n")
    with pytest.raises(SettingsError, match=r"'eps' is given twice \(line 4"):
        load_recipe(path)
    path.write_text("name: mine\nmodels: [{name: a}]\nattack: {steps: 1, steps: 2}\n")
    with pytest.raises(SettingsError, match=r"'steps' is given twice \(line 3"):
        load_recipe(path)


def test_a_recipe_nested_beyond_reason_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    for text in ("[" * 200 + "]" * 200, "- " * 200 + "x"):
        path.write_text(f"models: {text}" if text[0] == "[" else text)
        with pytest.raises(SettingsError, match="nested more than 100 deep"):
            load_recipe(path)


@pytest.mark.parametrize(
    "change",
    [{"threads": 100_000}, {"threads": 0}, {"seed": 2**70}, {"seed": -1}, {"certify.verifier.attack.seed": 2**70}],
    ids=str,
)
def test_threads_and_seeds_have_limits(tmp_path: Path, change: dict[str, int]) -> None:
    with pytest.raises(SettingsError, match="must be a whole number from"):
        load_recipe(written(tmp_path), change)
