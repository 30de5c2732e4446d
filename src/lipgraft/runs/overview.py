"""From the results of experiments, as files, to the overview of the whole paper."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lipgraft.errors import SettingsError
from lipgraft.files import atomic_write_text
from lipgraft.report.dumbbells import overview_figure
from lipgraft.report.overview import (
    FIGURE,
    MARK,
    Finding,
    Overview,
    PaperRow,
    PaperRun,
    PaperTable,
    overview_page,
)
from lipgraft.report.published import published
from lipgraft.report.results import readable_eps
from lipgraft.runs.experiment import FULL, Experiment, ExperimentRun, experiment_names, load_experiment
from lipgraft.settings import to_mapping

PAGE = "README.md"


def write_overview(folder: str | Path) -> Overview:
    """Set the results in folder/*/*.json beside the paper, in folder/README.md with folder/overview.svg."""
    folder = Path(folder)
    page = folder / PAGE
    if page.exists() and not page.read_text(encoding="utf-8").startswith(MARK):
        raise SettingsError(
            f"{page} is not an overview, so it is left unchanged; choose a folder without another {PAGE}."
        )
    found = overview(folder)
    atomic_write_text(folder / FIGURE, overview_figure(found))
    atomic_write_text(page, overview_page(found))
    return found


def overview(folder: str | Path) -> Overview:
    """Every row of the paper's tables with what folder/*/*.json have on it.

    Of a row that was trained in several ways, the one with the fewest changes from its experiment counts, with all its
    seeds. Of several files for one seed it is the one with the most images certified, then that which leaves the
    fewest of them open, then the one with the fewest changes, then the last by name. What was measured for a row counts
    for every row with the same recipe.
    """
    experiments = [one for one in map(load_experiment, experiment_names()) if one.number is not None]
    findings = _with_twins(_findings(Path(folder)), experiments)
    tables, seen = [], set[str]()
    for experiment in experiments:
        runs = []
        for run in experiment.runs:
            rows = tuple(row for row in _rows(run, findings) if row.key not in seen)
            seen |= {row.key for row in rows}
            if rows:
                runs.append(PaperRun(f"{run.recipe.title}, eps {readable_eps(run.recipe.eps)}", rows))
        if runs:
            tables.append(PaperTable(experiment.title, tuple(runs)))
    return Overview(tuple(tables))


def _with_twins(
    findings: Mapping[str, list[Finding]], experiments: Iterable[Experiment]
) -> Mapping[str, list[Finding]]:
    """The paper has some networks in several tables, with other figures in one or two columns: one measurement does."""
    twins: dict[str, set[str]] = defaultdict(set)
    for run in (run for experiment in experiments for run in experiment.runs):
        shared = to_mapping(replace(run.recipe, name="-", title="", models=run.recipe.models[:1]))
        for model in run.recipe.models:
            if model.paper is not None:
                own = to_mapping(replace(model, name="row", title="", paper=None))
                twins[_text({**shared, "models": own})].add(model.paper)
    merged = dict(findings)
    for keys in twins.values():
        together = [one for key in sorted(keys) for one in findings.get(key, [])]
        merged |= dict.fromkeys(keys, together)
    return merged


def _rows(run: ExperimentRun, findings: Mapping[str, list[Finding]]) -> Iterable[PaperRow]:
    for model in run.recipe.models:
        if model.paper is not None:
            found = _chosen(findings.get(model.paper, []))
            yield PaperRow(model.paper, model.title, published(model.paper), found)
    for title, key in run.literature.items():
        yield PaperRow(key, title, published(key), cited=True)


def _chosen(found: list[Finding]) -> tuple[Finding, ...]:
    """One finding for each seed, all trained alike."""
    trainings: dict[str, dict[int, Finding]] = defaultdict(dict)
    for one in sorted(found, key=_weight):
        trainings[_text(one.trained_otherwise)][one.seed] = one  # the last one stays
    if not trainings:
        return ()
    least = min(trainings, key=lambda text: (len(json.loads(text)), -len(trainings[text]), text))
    return tuple(one for _, one in sorted(trainings[least].items()))


def _weight(one: Finding) -> tuple[int, int, int, Path]:
    """Largest for the file that tells most of a training and a seed."""
    return one.certified, -one.open, -len(one.changes), Path(one.source).with_suffix("")


def _text(changes: Mapping[str, Any]) -> str:
    return json.dumps(changes, sort_keys=True)


def _findings(folder: Path) -> dict[str, list[Finding]]:
    """What was measured for each row of the paper, by its key."""
    found: dict[str, list[Finding]] = defaultdict(list)
    files = 0
    for path in sorted(folder.glob("*/*.json")):
        content = _read(path)
        if not isinstance(content, dict) or "experiment" not in content or content.get("scale") != FULL:
            continue
        files += 1
        for run in filter(_as_published, content["runs"]):
            for model in run["models"]:
                if model.get("paper") is not None:
                    found[model["paper"]].append(_finding(content, run, model, _readable(path, folder)))
    if not files:
        raise SettingsError(
            f"no results of experiments at full scale in {folder}/*/*.json; `lipgraft reproduce` makes them."
        )
    return found


def _as_published(run: Mapping[str, Any]) -> bool:
    """Whether a run speaks of the first test images, as the paper does, and not of others."""
    return not {"measured on", "first of them"} & set(run.get("protocol", {}))


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SettingsError(f"{path} is not JSON: {error}.") from None


def _finding(content: Mapping[str, Any], run: Mapping[str, Any], model: Mapping[str, Any], source: str) -> Finding:
    """content: of the whole file. Older files name commit and device for all rows together."""
    sa, ra, va = (None if model[key] is None else 100 * model[key] for key in ("sa", "ra", "va"))
    return Finding(
        sa=sa,
        ra=ra,
        va=va,
        seed=content["seed"],
        tested=run["counts"]["tested"],
        certified=run["counts"]["certified"],
        open=model["verdicts"].get("unknown", 0),
        grafted=bool(model["grafted"]),
        seconds=sum(model["seconds"].values()),
        made=tuple(model.get("made", content["made"])),
        changes=content["changes"],
        source=source,
        note=content.get("note", ""),
    )


def _readable(path: Path, folder: Path) -> str:
    """The table beside the file, where there is one, else the file; relative to the page."""
    tables = (path.with_suffix(".md"), path.with_name("table.md"))
    return next((table for table in tables if table.exists()), path).relative_to(folder).as_posix()
