"""lipgraft.settings: dataclasses from mappings, with errors that name the key."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lipgraft.errors import SettingsError
from lipgraft.settings import build, check_eps, parse_number, setting, to_mapping


@dataclass(frozen=True)
class Inner:
    steps: int = setting(10, "How many steps.")
    alpha: float | None = setting(None, "Step size; none means eps / 4.")


@dataclass(frozen=True)
class Outer:
    name: str = setting(help="A name without default.")
    eps: float = setting(2 / 255, "Radius.")
    fast: bool = setting(False, "Whether to hurry.")
    inner: Inner = setting(Inner(), "Nested.")
    rates: tuple[float, ...] = setting((0.1, 0.2), "Any number of rates.")
    pair: tuple[int, str] = setting((1, "a"), "Exactly two.")
    table: dict[str, float] = setting({}, "Numbers by name.")
    mode: Literal["slow", "quick"] = setting("slow", "One of two words.")
    objective: str = setting("fat", "A registry key.", choices=("fat", "trades"))
    layers: list[Inner] = setting([], "A list of nested settings.")


def test_defaults_fill_what_the_mapping_leaves_out() -> None:
    assert build(Outer, {"name": "x"}) == Outer(name="x")


def test_every_field_is_taken_from_the_mapping() -> None:
    built = build(
        Outer,
        {
            "name": "x",
            "eps": "8/255",
            "fast": True,
            "inner": {"steps": 3, "alpha": "1/2"},
            "rates": [1, "1/4"],
            "pair": [2, "b"],
            "table": {"a": 1},
            "mode": "quick",
            "objective": "trades",
            "layers": [{"steps": 1}],
        },
    )
    assert built == Outer(
        "x", 8 / 255, True, Inner(3, 0.5), (1.0, 0.25), (2, "b"), {"a": 1.0}, "quick", "trades", [Inner(1)]
    )


def test_to_mapping_survives_yaml_and_json_and_builds_the_same_object() -> None:
    original = build(Outer, {"name": "x", "inner": {"alpha": 0.3}, "layers": [{"steps": 4}]})
    for copy in (yaml.safe_load(yaml.safe_dump(to_mapping(original))), json.loads(json.dumps(to_mapping(original)))):
        assert build(Outer, copy) == original


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"name": "x", "epps": 1}, ["unknown setting 'epps'", "Did you mean 'eps'?"]),
        ({"name": "x", "inner": {"stepps": 1}}, ["unknown setting 'inner.stepps'", "Did you mean 'inner.steps'?"]),
        ({}, ["'name'", "required"]),
        ({"name": 3}, ["name must be a text", "3 (int)"]),
        ({"name": "x", "eps": "two"}, ["eps", "'two'"]),
        ({"name": "x", "eps": True}, ["eps must be a number"]),
        ({"name": "x", "fast": 1}, ["fast must be true or false"]),
        ({"name": "x", "inner": 3}, ["inner must be a mapping"]),
        ({"name": "x", "inner": {"steps": 1.5}}, ["inner.steps must be a whole number", "1.5"]),
        ({"name": "x", "inner": {"steps": True}}, ["inner.steps must be a whole number"]),
        ({"name": "x", "inner": {"alpha": "?"}}, ["inner.alpha", "'?'"]),
        ({"name": "x", "rates": 3}, ["rates must be"]),
        ({"name": "x", "rates": [1, "z"]}, ["rates[1]", "'z'"]),
        ({"name": "x", "pair": [1]}, ["pair must have 2 entries"]),
        ({"name": "x", "mode": "quik"}, ["unknown mode 'quik'", "Did you mean 'quick'?"]),
        ({"name": "x", "objective": "trads"}, ["unknown objective 'trads'", "Did you mean 'trades'?"]),
        ({"name": None}, ["name must be a text, got nothing"]),
        ([1], ["the top level must be a mapping"]),
    ],
)
def test_a_wrong_mapping_is_answered_with_the_place_and_the_key(mapping: object, words: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        build(Outer, mapping, where="my.yaml")  # type: ignore[arg-type]
    message = str(caught.value)
    assert message.startswith("my.yaml: ")
    assert "\n" not in message
    for word in words:
        assert word in message


def test_a_check_in_post_init_is_reported_with_the_place() -> None:
    @dataclass(frozen=True)
    class Checked:
        eps: float = setting(0.1, "Radius.")

        def __post_init__(self) -> None:
            check_eps(self.eps)

    with pytest.raises(SettingsError, match=r"^recipe: eps must be a finite number >= 0"):
        build(Checked, {"eps": -1})


def test_whole_floats_are_whole_numbers_because_yaml_reads_1e3_so() -> None:
    assert build(Inner, {"steps": 1e3}).steps == 1000


def test_settings_are_frozen_and_carry_their_sentence() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Inner().steps = 4  # type: ignore[misc]
    assert {f.name: f.metadata["help"] for f in dataclasses.fields(Inner)}["steps"] == "How many steps."


def test_mutable_defaults_are_not_shared() -> None:
    assert Outer(name="a").table is not Outer(name="b").table


@pytest.mark.parametrize(("text", "value"), [("2/255", 2 / 255), ("0.1", 0.1), (3, 3.0), (" 8 / 255 ", 8 / 255)])
def test_numbers_may_be_fractions(text: str | float, value: float) -> None:
    assert parse_number(text) == value


@pytest.mark.parametrize("text", ["", "a", "1/0", "1/2/3", "1/", True])
def test_what_is_not_a_number_is_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        parse_number(text)


@pytest.mark.parametrize("eps", [-1.0, "-2/255", math.nan, "nan", math.inf, "inf", -math.inf, "1e400"])
def test_eps_must_be_finite_and_not_negative(eps: float | str) -> None:
    with pytest.raises(SettingsError, match="eps must be a finite number >= 0"):
        check_eps(eps)


@given(st.floats(min_value=0, allow_nan=False, allow_infinity=False))
def test_every_finite_radius_is_accepted_unchanged(eps: float) -> None:
    assert check_eps(eps) == eps
    assert check_eps(repr(eps)) == eps
