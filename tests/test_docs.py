"""The documentation: what is public is in the reference, with an example that runs; tutorials run; links hold."""

from __future__ import annotations

import doctest
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lipgraft as lg
from lipgraft.cli import main
from lipgraft.runs import load_recipe

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
REFERENCE = "\n".join(page.read_text(encoding="utf-8") for page in sorted((DOCS / "reference").glob("*.md")))
PAGES = sorted(DOCS.rglob("*.md"))
GENERATED = {DOCS / "zoo.md", DOCS / "reference" / "cli.md"}
"""Pages that are made when the site is built."""
BLOCK = r'^```(\w+)(?: title="(.*?)")?\n(.*?)^```'

# The functions that the public interface promises.
PUBLIC: dict[str, Callable[..., Any]] = {
    "lipgraft.data.load": lg.data.load,
    "lipgraft.data.from_arrays": lg.data.from_arrays,
    "lipgraft.data.images": lg.data.images,
    "lipgraft.models.build": lg.models.build,
    "lipgraft.Box.linf": lg.Box.linf,
    "lipgraft.bound": lg.bound,
    "lipgraft.attack": lg.attack,
    "lipgraft.verify": lg.verify,
    "lipgraft.lipschitz": lg.lipschitz,
    "lipgraft.graft": lg.graft,
    "lipgraft.grafting.score": lg.grafting.score,
    "lipgraft.grafting.select": lg.grafting.select,
    "lipgraft.grafting.apply": lg.grafting.apply,
    "lipgraft.train": lg.train,
    "lipgraft.load": lg.load,
    "lipgraft.save": lg.save,
    "lipgraft.progress.bar": lg.progress.bar,
}


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_function_has_an_example_that_runs(name: str) -> None:
    function = PUBLIC[name]
    function = getattr(function, "__wrapped__", function)
    examples = doctest.DocTestParser().get_examples(function.__doc__ or "")
    assert examples, f"{name} has no example"
    test = doctest.DocTest(examples, {}, name, None, None, None)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    said: list[str] = []
    runner.run(test, out=said.append)
    assert runner.failures == 0, "".join(said)


def test_every_promised_function_is_in_the_reference() -> None:
    for name, function in PUBLIC.items():
        place = getattr(function, "__wrapped__", function)
        path = f"{place.__module__}.{place.__qualname__.removesuffix('.linf')}"
        assert f"::: {path}\n" in REFERENCE, name


def test_every_verb_setting_and_result_at_the_top_is_in_the_reference() -> None:
    for name in lg.__all__:
        found = getattr(lg, name)
        if callable(found):
            assert f"::: {found.__module__}.{found.__qualname__}\n" in REFERENCE, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target, anchor in re.findall(r"\]\((?!https?:|mailto:)([^)#\s]*)#?([^)\s]*)\)", text):
        file = page if not target else (page.parent / target).resolve()
        assert file.exists() or file in GENERATED, target
        if anchor and file.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{target}#{anchor}"


@pytest.mark.long
def test_the_tutorials_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files are written under their titles; commands and Python run in order. The sweep's recipe is only read."""
    monkeypatch.chdir(tmp_path)
    for name in ("own-model", "graft-it", "counterexample", "check-a-certificate"):
        names: dict[str, Any] = {}
        text = (DOCS / "tutorials" / f"{name}.md").read_text(encoding="utf-8")
        for kind, title, block in re.findall(BLOCK, text, re.MULTILINE | re.DOTALL):
            if title:
                Path(title).write_text(block)
            elif kind == "python":
                exec(compile(block, name, "exec"), names)
            else:
                for line in block.splitlines():
                    _run(line)
    assert "->" in capsys.readouterr().out


def _run(line: str) -> None:
    command, *rest = shlex.split(line)
    if rest[:1] == ["run"]:
        assert load_recipe(rest[1]).data == "mine.npz"
    elif command == "lipgraft":
        assert main(rest) == 0, line
    else:
        assert subprocess.run([sys.executable, *rest]).returncode == 0, line
