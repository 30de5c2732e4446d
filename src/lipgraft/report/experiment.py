"""A whole experiment as text: JSON for programs, Markdown for the documentation."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from lipgraft.report.results import ExperimentResults, RunResults
from lipgraft.report.table import (
    COLUMNS,
    COUNTS,
    COUNTS_HELP,
    heads,
    held_out,
    over_time,
    published_cell,
    rows,
    summary,
    texts,
)
from lipgraft.svg import number


def experiment_summary(results: ExperimentResults) -> dict[str, Any]:
    """Figures with what they need to be judged: commit, hardware, seed, time, command, and settings that matter."""
    return {
        "experiment": results.name,
        "title": results.title,
        "scale": results.scale,
        "command": results.command,
        "seed": results.seed,
        "changes": dict(results.changes),
        "made": results.made,
        "seconds": round(results.seconds, 1),
        "missing": list(results.missing),
        "runs": [{**summary(run), "protocol": protocol(run), "literature": _literature(run)} for run in results.runs],
    }


def protocol(run: RunResults) -> dict[str, Any]:
    """The settings without which the figures say little."""
    certify = run.settings.get("certify", {})
    limits = certify.get("verifier", {}).get("limits", {})
    found: dict[str, Any] = {
        "pretrain epochs": run.settings.get("pretrain", {}).get("epochs"),
        "training images held out": run.settings.get("pretrain", {}).get("held_out"),
        "attack": _attack(run),
        "measured on": "held-out training images" if held_out(run) else None,
        "certified images": run.counts.get("certified"),
        "first of them": certify.get("start") or None,
        "timeout": limits.get("timeout"),
        "wall time for all images": limits.get("total_seconds"),
        "Lipschitz images": run.counts.get("lipschitz"),
        "Lipschitz units": run.lipschitz_units if "lipschitz" in run.counts else None,
        "margins": run.margin_method,
    }
    return {key: value for key, value in found.items() if value is not None}


def markdown(results: ExperimentResults) -> str:
    """One table per run, ours with the paper's figures in brackets, and the protocol."""
    parts = [f"# {results.title}", results.about]
    if results.scale != "full":
        parts.append(f"Scale: {results.scale}. Another network on other data: these figures only show that it runs.")
    for run in results.runs:
        parts += [f"## {run.title}, eps {run.radius}", _table(run), _sentence(run), *_over_time(run)]
    if results.missing:
        parts.append(f"Not finished: {', '.join(results.missing)}.")
    parts.append(_origin(results))
    return "\n\n".join(parts) + "\n"


def _table(run: RunResults) -> str:
    top = ["model", *heads(run), *COUNTS, "mean margin"]
    lines = ["| " + " | ".join(top) + " |", "|---" + "|---:" * (len(top) - 1) + "|"]
    for row in rows(run):
        cells = [*texts(run, row), *row.counts, number(row.model.margin)]
        lines.append("| " + " | ".join([_plain(row.model.title), *cells]) + " |")
    for title, figures in run.literature.items():
        cells = [f"({paper})" if (paper := published_cell(figures, column)) else "" for column in COLUMNS]
        lines.append("| " + " | ".join([_plain(title), *cells, *("" for _ in COUNTS), ""]) + " |")
    return "\n".join(lines)


def _over_time(run: RunResults) -> list[str]:
    """A small table of the verified share after a while, where it is known."""
    found = over_time(run)
    if not found:
        return []
    lines = ["| " + " | ".join(_plain(cell) for cell in row) + " |" for row in found]
    lines.insert(1, "|---" + "|---:" * (len(found[0]) - 1) + "|")
    return ["VA % by the time since the certification of all images began:", "\n".join(lines)]


def _sentence(run: RunResults) -> str:
    words = "; ".join(f"{key} {value}" for key, value in protocol(run).items())
    return f"In brackets: the paper. {COUNTS_HELP} {words[:1].upper()}{words[1:]}."


def _origin(results: ExperimentResults) -> str:
    """Where the figures come from."""
    made = "; ".join(
        f"{one.get('device', 'unknown device')}{', commit ' + one['commit'] if 'commit' in one else ''}"
        for one in results.made
    )
    changed = ", ".join(f"{key} = {value}" for key, value in results.changes.items())
    lines = [
        f"- Command: `{results.command}`" if results.command else "",
        f"- Made with: {made}" if made else "",
        f"- Seed {results.seed}, one run; {number(results.seconds)} s of work in all",
        f"- Changed from the experiment: {changed}" if changed else "",
    ]
    return "\n".join(line for line in lines if line)


def _literature(run: RunResults) -> list[dict[str, Any]]:
    return [{"title": title, **asdict(figures)} for title, figures in run.literature.items()]


def _attack(run: RunResults) -> str | None:
    attack = run.settings.get("attack")
    return attack and f"{attack['method']}, {attack['steps']} steps, {attack['restarts']} restarts"


def _plain(title: str) -> str:
    return title.replace("|", "\\|")
