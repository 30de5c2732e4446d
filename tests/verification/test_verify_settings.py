"""The verifier's settings: their groups, the flat names of older versions, and what results are recorded by."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest

from lipgraft.bounds import AlphaSettings
from lipgraft.errors import SettingsError
from lipgraft.interop.instances import _settings_mark
from lipgraft.runs.recipe import CertifySettings
from lipgraft.settings import build, to_mapping
from lipgraft.training import TrainSettings
from lipgraft.verification import AttackSettings, BranchSettings, Limits, OptimiseSettings, VerifySettings
from lipgraft.verification.settings import FLAT_NAMES, flat, grouped
from lipgraft.version import __version__

CHANGED: dict[str, Any] = {
    "timeout": 7.0,
    "total_seconds": 90.0,
    "max_subproblems": 12,
    "images": 3,
    "attack": "pgd",
    "attack_steps": 4,
    "attack_restarts": 1,
    "refine": "all",
    "refine_iterations": 5,
    "alpha_iterations": 6,
    "lr_root": 0.3,
    "bab_iterations": 8,
    "lr_alpha": 0.4,
    "lr_beta": 0.5,
    "decay": 0.9,
    "branching": "babsr",
    "candidates": 9,
    "batch": 10,
    "pool_gigabytes": 0.5,
    "spill_gigabytes": 0.25,
    "capture": False,
    "search_every": 11,
    "search_steps": 13,
    "leaf_iterations": 14,
    "lp_size": 15,
    "seed": 16,
    "recheck": "none",
}
"""Every setting of the versions without groups, in their order, with a value that is not its default."""


def test_every_flat_name_of_older_versions_still_sets_its_setting() -> None:
    settings = build(VerifySettings, grouped(CHANGED)).changed(arithmetic="fast")
    assert settings == VerifySettings(
        Limits(7.0, 90.0, 12, pool_gigabytes=0.5, spill_gigabytes=0.25),
        AttackSettings("pgd", 4, 1, search_every=11, search_steps=13, seed=16),
        OptimiseSettings("all", 5, 6, lr=0.3, decay=0.9),
        BranchSettings("babsr", 9, 8, 0.4, 0.5, 10, leaf_iterations=14, lp_size=15, capture=False),
        images=3,
        arithmetic="fast",
    )
    assert list(flat(settings).items()) == list(CHANGED.items())
    assert not set(CHANGED.items()) & set(flat(VerifySettings()).items())


def test_sound_results_are_not_taken_for_older_fast_ones() -> None:
    recorded = flat(VerifySettings())
    assert recorded["arithmetic"] == "sound"
    assert recorded["speaks_of"] == "real"
    fast = VerifySettings(arithmetic="fast")
    assert flat(fast).keys() == CHANGED.keys()
    assert flat(fast.changed(branch={"neuron_splits": 3})) == {**flat(fast), "branch.neuron_splits": 3}


def test_every_flat_name_leads_to_a_setting_of_its_own() -> None:
    paths = [f"{f.name}.{g.name}" for f in fields(VerifySettings()) for g in inner(getattr(VerifySettings(), f.name))]
    paths += [f.name for f in fields(VerifySettings()) if not is_dataclass(getattr(VerifySettings(), f.name))]
    assert len(set(FLAT_NAMES.values())) == len(FLAT_NAMES)
    assert set(FLAT_NAMES.values()) <= set(paths)


def inner(value: Any) -> tuple[Any, ...]:
    return fields(value) if is_dataclass(value) else ()


def test_groups_paths_and_flat_names_may_be_mixed() -> None:
    given = {"timeout": 5, "attack.steps": 3, "attack": {"method": "pgd"}, "branch": {"batch": 2}, "images": 4}
    assert grouped(given) == {
        "limits": {"timeout": 5},
        "attack": {"steps": 3, "method": "pgd"},
        "branch": {"batch": 2},
        "images": 4,
    }
    settings = build(VerifySettings, grouped(CHANGED))
    assert grouped(to_mapping(settings)) == to_mapping(settings)
    assert build(VerifySettings, grouped({"limits": {}})) == VerifySettings()


@pytest.mark.parametrize(
    "given", [{"timeout": 5, "limits": {"timeout": 5}}, {"attack.steps": 3, "attack_steps": 4}], ids=str
)
def test_a_setting_given_by_two_names_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="is given twice"):
        grouped(given)


def test_changed_leaves_the_rest_of_a_group_as_it_was() -> None:
    before = build(VerifySettings, grouped(CHANGED))
    after = before.changed(limits={"timeout": 1.0}, attack={"seed": 2}, images=5)
    assert after == replace(
        before, limits=replace(before.limits, timeout=1.0), attack=replace(before.attack, seed=2), images=5
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"branch": {"foo": 1}}, r"unknown setting 'branch\.foo'.* Known: branch\.batch"),
        ({"foo": 1}, "unknown setting 'foo'"),
        ({"branch": 3}, "branch must be a mapping of settings, got 3"),
        ({"branch": {"iterations": 2.5}}, "branch.iterations must be a whole number, got 2.5"),
        ({"limits": {"timeout": -1}}, "limits.timeout must be a finite number > 0"),
    ],
    ids=str,
)
def test_a_change_that_cannot_be_made_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        VerifySettings().changed(**changes)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: BranchSettings(iterations=2.5), "branch.iterations must be a whole number, got 2.5"),
        (lambda: BranchSettings(iterations="2"), "branch.iterations must be a whole number, got '2'"),
        (lambda: AlphaSettings(iterations=2.5), "alpha.iterations must be a whole number, got 2.5"),
        (lambda: TrainSettings(epochs=2.5), "epochs must be a whole number, got 2.5"),
        (lambda: VerifySettings(images=True), "images must be a whole number, got True"),
        (lambda: VerifySettings(limits=3), "limits must be a mapping of settings, got 3"),
    ],
)
def test_settings_of_the_wrong_type_are_refused_when_they_are_made(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        make()


def test_settings_made_from_numbers_of_numpy_have_plain_ones() -> None:
    assert repr(BranchSettings(iterations=np.int64(3), lr_beta=np.float64(0.5))) == repr(
        BranchSettings(iterations=3, lr_beta=0.5)
    )


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"limits.timeout": float("inf")}, "limits.timeout must be a finite number > 0"),
        ({"limits.total_seconds": 0.0}, "limits.total_seconds must be > 0 or none"),
        ({"limits.max_subproblems": -1}, "limits.max_subproblems must be at least 0"),
        ({"limits.pool_gigabytes": 0.0}, "limits.pool_gigabytes must be"),
        ({"limits.spill_gigabytes": -1.0}, "limits.spill_gigabytes must be"),
        ({"attack.steps": 0}, "attack.steps must be at least 1"),
        ({"attack.restarts": -1}, "attack.restarts must be at least 0"),
        ({"attack.seed": -1}, "seed must be a whole number"),
        ({"optimise.decay": -1.0}, "optimise.decay must be"),
        ({"optimise.refine": "some"}, "optimise.refine.*vectors"),
        ({"branch.batch": 1}, "branch.batch must be at least 2"),
        ({"branch.lp_size": -1}, "branch.lp_size must be at least 0"),
        ({"branch.lr_beta": float("nan")}, "branch.lr_beta must be"),
        ({"images": 0}, "images must be at least 1"),
        ({"recheck": "twice"}, "recheck is no longer a setting"),
        ({"arithmetic": "slow"}, "unknown arithmetic.*fast, sound"),
        ({"arithmetic": "fast", "speaks_of": "float32"}, "needs arithmetic: sound"),
    ],
    ids=str,
)
def test_a_setting_out_of_range_is_refused_by_its_full_name(bad: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        build(VerifySettings, grouped(bad))


def test_groups_check_themselves_in_python_too() -> None:
    with pytest.raises(SettingsError, match=r"optimise\.refine must be one of none, vectors, all"):
        OptimiseSettings(refine="some")
    with pytest.raises(SettingsError, match="speaks_of must be one of real, float32"):
        VerifySettings(speaks_of="truth")


def test_results_are_recorded_as_before_settings_had_groups() -> None:
    settings = build(VerifySettings, grouped(CHANGED)).changed(arithmetic="fast")
    assert CertifySettings(verifier=settings).record() == {"count": 1000, "verifier": CHANGED, "margins": "crown"}
    text = ", ".join(f"{name}={value!r}" for name, value in {**CHANGED, "timeout": 1.0, "total_seconds": None}.items())
    mark = hashlib.sha256(f"{__version__} VerifySettings({text})".encode()).hexdigest()[:8]
    assert _settings_mark(settings) == mark
