"""Every line of the README runs as it stands."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from lipgraft.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
LINES = [line.partition(" #")[0].strip() for kind, block in BLOCKS if kind == "bash" for line in block.splitlines()]
COMMANDS = [shlex.split(line) for line in LINES if line.startswith("lipgraft ")]
NEEDS_DATA = {"cifar10", "mnist", "reproduce"}
"""Words of lines that need files which are not part of the repository."""


def needs_data(line: list[str]) -> bool:
    return bool(NEEDS_DATA & set(line)) and "--list" not in line


@pytest.mark.long
def test_the_commands_run_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "zoo", tmp_path / "zoo")
    monkeypatch.chdir(tmp_path)
    lines = [line for line in COMMANDS if not needs_data(line)]
    assert len(lines) > 8
    for line in lines:
        assert main(line[1:]) == 0, line


@pytest.mark.parametrize("line", [line for line in COMMANDS if needs_data(line)], ids=" ".join)
def test_lines_that_need_data_are_understood_and_say_what_is_missing(
    line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "zoo", tmp_path / "zoo")
    monkeypatch.chdir(tmp_path)
    assert main(line[1:]) == 1
    assert "is not complete" in capsys.readouterr().err


def test_the_python_example_runs_and_decides_every_image(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = [block for kind, block in BLOCKS if kind == "python"]
    exec(compile(example, "README.md", "exec"), {})
    statuses = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert sum(status in ("verified", "falsified", "unknown") for status in statuses) == 20
    assert statuses.count("verified") > 5


def test_the_other_lines_are_targets_of_make_and_the_environment_they_make() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    others = [line for line in LINES if not line.startswith("lipgraft ")]
    assert others
    for line in others:
        target = line.removeprefix("make ")
        assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE) or line == ". .venv/bin/activate", line
    assert "VENV   := .venv" in makefile


def test_links_lead_to_files() -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target
