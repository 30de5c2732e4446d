"""What stands around the code: one version everywhere, extras that exist, files that people look for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

import lipgraft

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_version_stands_in_one_place_and_the_citation_follows() -> None:
    assert "version" not in PROJECT["project"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "lipgraft.version.__version__"}
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == lipgraft.__version__
    assert f"\n## {lipgraft.__version__}\n" in (ROOT / "CHANGELOG.md").read_text()


def test_every_dependency_is_pinned_in_the_lock() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lock.splitlines() if "==" in line}
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [*PROJECT["project"]["dependencies"], *extras["onnx"], *extras["docs"], *extras["dev"]]
    names = {re.split(r"[\[<>=;]", one)[0].strip().lower().replace("_", "-") for one in wanted}
    assert names <= pinned


def test_hints_name_packages_that_exist() -> None:
    """lipgraft is on no index: `pip install lipgraft` finds nothing, whatever the extra."""
    told = [file for file in (ROOT / "docs").rglob("*.md") if "results" not in file.parts]  # what it said before
    for file in (*(ROOT / "src").rglob("*.py"), *told, ROOT / "README.md"):
        assert not re.search(r"pip install [\"']?lipgraft", file.read_text(encoding="utf-8")), file


def test_the_files_that_people_look_for_are_there() -> None:
    for name in ("README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CITATION.cff"):
        assert (ROOT / name).is_file(), name
