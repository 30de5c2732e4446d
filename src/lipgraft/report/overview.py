"""The whole paper beside ours on one page: every published row, what was measured for it, and by what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from lipgraft.report.results import Published
from lipgraft.svg import number

MARK = "<!-- Written by `lipgraft reproduce --overview`; changes by hand are lost. -->"
"""The first line of the page, by which the command knows that it may be written anew."""
FIGURE = "overview.svg"
ACCURACIES = "sa", "ra", "va"
MEASURING = "attack", "certify", "lipschitz", "examples", "seed", "threads"
"""Settings of a recipe that do not change its networks."""
GRAFTING = "calibration", "defaults"
"""Settings that do not change a network without lines: how neurons are scored, grafted and fine-tuned."""
HEADLINE = "ours-slope"
"""The paper's final method, the last part of its rows' keys."""


@dataclass(frozen=True)
class Finding:
    """One seed of a row. sa, ra, va: in per cent, as the paper has them; None where there is no figure.

    tested, certified: images behind SA and RA, and behind VA; open: of these, neither proved nor refuted. grafted:
    whether it has lines. seconds: of all its stages. made: commits and devices. changes: settings that differ from the
    experiment's own. source: the file, relative to the page. note: what the file says of itself.
    """

    sa: float | None
    ra: float | None
    va: float | None
    seed: int
    tested: int
    certified: int
    open: int
    grafted: bool
    seconds: float
    made: tuple[Mapping[str, str], ...]
    changes: Mapping[str, Any]
    source: str
    note: str = ""

    @property
    def trained_otherwise(self) -> dict[str, Any]:
        """The changes that make another network, and do not only measure it otherwise."""
        without = MEASURING if self.grafted else MEASURING + GRAFTING
        return {
            key: value
            for key, value in self.changes.items()
            if key.partition(".")[0] not in without and not key.endswith(".checkpoint_every")
        }


@dataclass(frozen=True)
class PaperRow:
    """A row of the paper. found: one finding for each seed, all with the same training; cited: never run here."""

    key: str
    title: str
    published: Published
    found: tuple[Finding, ...] = ()
    cited: bool = False

    def ours(self, measure: str) -> tuple[float, float, float] | None:
        """Mean, smallest and largest value over the seeds; None where nothing was measured."""
        values = [value for one in self.found if (value := getattr(one, measure)) is not None]
        return (fmean(values), min(values), max(values)) if values else None

    def reaches(self, measure: str) -> bool:
        """Whether our mean, as the table shows it, is at or above the published figure."""
        ours, paper = self.ours(measure), getattr(self.published, measure)
        return ours is not None and paper is not None and round(ours[0], 1) >= round(paper, 1)


@dataclass(frozen=True)
class PaperRun:
    """The rows of one network on one data set in one table."""

    title: str
    rows: tuple[PaperRow, ...]


@dataclass(frozen=True)
class PaperTable:
    title: str
    runs: tuple[PaperRun, ...]


@dataclass(frozen=True)
class Overview:
    """The tables of the paper in their order, each row in the first one that has it."""

    tables: tuple[PaperTable, ...]

    @property
    def rows(self) -> list[PaperRow]:
        """All that can be run."""
        return [row for table in self.tables for run in table.runs for row in run.rows if not row.cited]

    @property
    def panels(self) -> list[PaperRun]:
        """What the figure shows together: the rows of a network and data set, from all tables."""
        found: dict[str, PaperRun] = {}
        for table, run in ((one, run) for one in self.tables for run in one.runs):
            for row in (row for row in run.rows if not row.cited):
                place = row.key.rpartition("/")[0]
                if place not in found:
                    taken = any(run.title == other.title for other in found.values())
                    title = f"{run.title}, {table.title.partition(':')[0]}" if taken else run.title
                    found[place] = PaperRun(title, ())
                found[place] = PaperRun(found[place].title, (*found[place].rows, row))
        return list(found.values())


def overview_page(overview: Overview) -> str:
    """Markdown, with the figure beside it under the name FIGURE."""
    parts = [
        MARK,
        "# The whole paper beside ours",
        _verdict(overview),
        f"![Published and our verified accuracy of every row]({FIGURE})",
        "SA, RA, VA: standard, robust and verified accuracy in per cent. With several seeds: the mean, and from the "
        "smallest to the largest. Images: tested for SA and RA, certified for VA. Seconds: of all stages of the row, "
        "mean over seeds; rows of one network share the pre-training. *: trained otherwise than the experiment says, "
        "as the [list of files](#files) tells. A row that the paper repeats stands in the first table that has it; "
        "where it repeats one with other figures, ours are those of the one network.",
    ]
    for table in overview.tables:
        parts += [f"## {table.title}", _table(table)]
    files = _files(overview)
    if files:
        parts += ["## Files", files]
    return "\n\n".join(parts) + "\n"


def _verdict(overview: Overview) -> str:
    rows = overview.rows
    measured = [row for row in rows if row.found]
    above = [row for row in measured if row.reaches("va")]
    both = [row for row in above if row.reaches("sa")]
    pairs = overview.tables[1].runs  # Table 2 has the final method on each network and data set
    final = [row for run in pairs for row in run.rows if row.key.endswith(f"/{HEADLINE}")]
    good = [row for row in final if row.reaches("va") and row.reaches("sa")]
    return (
        f"Of {len(rows)} published rows {len(measured)} are measured. Verified accuracy is at or above the published "
        f"one in {len(above)} of them, in {len(both)} at no lower standard accuracy. For ours with the slope loss "
        f"(Table 2) that is so in {len(good)} of {len(final)} pairs of network and data set."
    )


def _table(table: PaperTable) -> str:
    heads = ("network and data", "model", "paper SA / RA / VA", "ours SA / RA / VA", "VA", "images", "seconds")
    lines = [_line((*heads, "seed", "commit", "hardware")), "|---|---|---|---|---:|---|---:|---|---|---|"]
    for run in table.runs:
        for i, row in enumerate(run.rows):
            lines.append(_line(("" if i else run.title, _plain(row.title), _paper(row.published), *_ours(row))))
    return "\n".join(lines)


def _paper(published: Published) -> str:
    figures = [getattr(published, measure) for measure in ACCURACIES]
    return " / ".join("–" if value is None else f"{value:.1f}" for value in figures)


def _ours(row: PaperRow) -> tuple[str, ...]:
    """The cells from `ours` on."""
    if not row.found:
        return ("not run here" if row.cited else "not run yet", *("" for _ in range(6)))
    ours, paper = row.ours("va"), row.published.va
    return (
        " / ".join(_spread(row.ours(measure)) for measure in ACCURACIES) + (" *" if _changed(row) else ""),
        "" if ours is None or paper is None else f"{ours[0] - paper:+.1f}".replace("-", "−"),
        _joined(f"{one.tested:,}, {one.certified:,}" for one in row.found),
        number(fmean(one.seconds for one in row.found)),
        _joined(f"[{one.seed}]({one.source})" for one in row.found),
        _made(row.found, "commit", lambda commit: f"`{commit[:7]}`"),
        _made(row.found, "device", lambda device: device),
    )


def _spread(values: tuple[float, float, float] | None) -> str:
    if values is None:
        return "–"
    mean, low, high = (f"{value:.1f}" for value in values)
    return mean if low == high else f"{mean} ({low} to {high})"


def _changed(row: PaperRow) -> bool:
    return any(one.trained_otherwise for one in row.found)


def _made(found: Sequence[Finding], what: str, shown: Callable[[str], str]) -> str:
    return _joined(shown(made[what]) for one in found for made in one.made if what in made)


def _joined(words: Iterable[str]) -> str:
    """Each once, in order."""
    return "; ".join(dict.fromkeys(words))


def _files(overview: Overview) -> str:
    """What each file that the tables draw on changes from its experiment."""
    found = {one.source: one for row in overview.rows for one in row.found}
    lines = [_line(("file", "seed", "changed from the experiment")), "|---|---|---|"]
    for source, one in sorted(found.items()):
        changes = ", ".join(f"`{key}={value}`" for key, value in one.changes.items() if key != "seed")
        told = f"{changes or 'nothing'}. {one.note}" if one.note else changes or "nothing"
        lines.append(_line((f"[{source}]({source})", str(one.seed), told)))
    return "\n".join(lines) if found else ""


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _plain(title: str) -> str:
    return title.replace("|", "\\|")
