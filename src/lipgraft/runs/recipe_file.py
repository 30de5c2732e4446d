"""From a recipe's name or YAML file to a Recipe with every setting filled in."""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from lipgraft import yaml_text
from lipgraft.errors import SettingsError, unknown_name
from lipgraft.runs.recipe import Recipe
from lipgraft.settings import build, nested, over, to_mapping
from lipgraft.training import preset
from lipgraft.verification.settings import grouped

SHARED = ("graft", "finetune")
"""What `defaults` may hold: settings that all models start from."""


def recipe_names() -> list[str]:
    """The recipes that come with lipgraft."""
    return sorted(file.name.removesuffix(".yaml") for file in _built_in().iterdir() if file.name.endswith(".yaml"))


def load_recipe(source: str | Path, changes: Mapping[str, Any] | None = None) -> Recipe:
    """A recipe by name, from a YAML file, or from the config.yaml of a run.

    changes: settings by dotted key, such as {"certify.count": 100}, that go first.
    """
    return resolve(changed(read(str(source)), changes or {}), where=str(source))


def changed(mapping: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping with these settings, by dotted key, laid over it."""
    out = dict(mapping)
    for key, value in changes.items():
        if value is None and isinstance(_inside(out, key), Mapping):  # which would quietly bring all defaults back
            raise SettingsError(f"{key} is a group of settings; give one of them a value, such as {key}.NAME=VALUE.")
        out = over(out, with_groups(nested(key, value), key))
    return out


def _inside(mapping: Mapping[str, Any], key: str) -> Any:
    """What a dotted key stands for in a mapping; None where it is not there."""
    found: Any = mapping
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def with_groups(content: Any, where: str) -> Any:
    """Part of a recipe or an experiment, where every `verifier` has its settings in groups.

    Each file and each change on top is brought to this form before they are merged: some may name settings as before.
    """
    if isinstance(content, list | tuple):
        return [with_groups(item, where) for item in content]
    if not isinstance(content, Mapping):
        return content
    return {
        key: grouped(value, where) if key == "verifier" and isinstance(value, Mapping) else with_groups(value, where)
        for key, value in content.items()
    }


def resolve(mapping: Mapping[str, Any], where: str = "recipe") -> Recipe:
    """Fill in what a recipe leaves out: presets, the radius and the seed everywhere, the models' shared defaults.

    A resolved recipe, as `to_mapping` writes it, resolves to itself.
    """
    full = with_groups(mapping, where)
    defaults = _mapping(full.pop("defaults", None), where, "defaults")
    for key in defaults:
        if key not in SHARED:
            raise SettingsError(
                f"{where}: {unknown_name('setting', f'defaults.{key}', [f'defaults.{k}' for k in SHARED])}"
            )
    common = {"eps": full["eps"]} if "eps" in full else {}
    full["pretrain"] = _training(where, "pretrain", common, full.get("pretrain"))
    full["certify"] = _seeded(full, where)
    models = full.get("models")
    if not isinstance(models, list | tuple):
        raise SettingsError(f"{where}: models must be a list, such as `- name: baseline`.")
    full["models"] = [_model(model, defaults, common, where) for model in models]
    return build(Recipe, full, where=where)


def _model(model: Any, defaults: Mapping[str, Any], common: Mapping[str, Any], where: str) -> dict[str, Any]:
    """One model's settings over the shared ones. A grafted model is fine-tuned unless it says `finetune: null`."""
    own = dict(_mapping(model, where, "a model"))
    if own.get("graft") is not None:
        own["graft"] = {**_mapping(defaults.get("graft"), where, "graft"), **_mapping(own["graft"], where, "graft")}
    if "finetune" not in own and own.get("graft") is not None:
        own["finetune"] = {}
    if own.get("finetune") is not None:
        own["finetune"] = _training(where, "finetune", common, defaults.get("finetune"), own["finetune"])
    return own


def _training(where: str, kind: str, *layers: Any) -> dict[str, Any]:
    """Training settings: those of the preset, then each layer on top of the one before."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged.update(_mapping(layer, where, kind))
    return {**to_mapping(preset(str(merged.pop("preset", kind)))), **merged}


def _seeded(full: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The settings of certification, whose attack draws from the recipe's seed unless it has its own."""
    certify = dict(_mapping(full.get("certify"), where, "certify"))
    own = _mapping(certify.get("verifier"), where, "certify.verifier")
    certify["verifier"] = over({"attack": {"seed": full.get("seed", 0)}}, own)
    return certify


def read(source: str, seen: tuple[str, ...] = ()) -> dict[str, Any]:
    """The mapping of a recipe, over the one it `extends`."""
    if source in seen:
        raise SettingsError(f"{source} extends itself, by way of {' -> '.join(seen)}.")
    file = _find(source)
    mapping = dict(_parse(file, source))
    if isinstance(mapping.get("recipe"), Mapping):  # the config.yaml of a run
        if seen:  # every setting is given there, so that a new eps or preset on top would not reach the others
            raise SettingsError(f"{seen[-1]} extends the settings of a run, {source}; extend the recipe of that run.")
        mapping = dict(mapping["recipe"])
    if "extends" not in mapping:
        return mapping
    base = str(mapping.pop("extends"))
    if base not in recipe_names():
        if not _is_yaml(base):
            raise SettingsError(
                f"{source}: extends must name a recipe ({', '.join(recipe_names())}) or a .yaml file, got {base!r}."
            )
        base = str(Path(source).parent / base)
    return over(read(base, (*seen, source)), mapping)


def _is_yaml(source: str) -> bool:
    return Path(source).suffix in (".yaml", ".yml")


def _find(source: str) -> Path | Traversable:
    if source in recipe_names():
        return _built_in() / f"{source}.yaml"
    if Path(source).is_file():
        return Path(source)
    if _is_yaml(source):
        raise SettingsError(f"there is no recipe at {source}; check the path.")
    raise SettingsError(f"{unknown_name('recipe', source, recipe_names())} A YAML file of your own works too.")


def _parse(file: Path | Traversable, source: str) -> Mapping[str, Any]:
    return _mapping(with_groups(yaml_text.read(file, source), source), source, "the top level")


def _mapping(value: Any, where: str, what: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise SettingsError(f"{where}: {what} must be a mapping of settings, got a {type(value).__name__}.")
    return value


def _built_in() -> Traversable:
    return importlib.resources.files("lipgraft") / "recipes"
