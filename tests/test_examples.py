"""The examples run, on a smaller scale than they show, and the notebook from top to bottom."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL = {"EPOCHS": 1, "IMAGES": 3, "RATIOS": (0.0, 0.3), "EPS": 0.01}


@pytest.mark.sampled(2, first=1)
@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_a_script_runs(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(str(script))
    main = names["main"]
    for name, value in SMALL.items():
        if name in names:
            monkeypatch.setitem(main.__globals__, name, value)
    main()


@pytest.mark.long
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((EXAMPLES / "tour.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) > 5
    names: dict[str, Any] = {}
    for number, cell in enumerate(cells):
        exec(compile(cell, f"tour.ipynb, cell {number}", "exec"), names)
        if number == 0:
            names.update(SMALL)


def test_every_file_is_in_the_table() -> None:
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for file in EXAMPLES.iterdir():
        assert file.name in table or file.suffix not in (".py", ".ipynb"), file.name
