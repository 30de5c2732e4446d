"""The scoreboard of VNN-COMP instances as a page in Markdown and a cactus plot, from the records of `bench vnncomp`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from lipgraft.report.contest import DECIDED, Record, joined
from lipgraft.report.dumbbells import FONT
from lipgraft.svg import Scale, line, number, path, tag, text

MARK = "<!-- Written by `lipgraft bench vnncomp-page`; changes by hand are lost. -->"
OURS = "lipgraft"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 780.0, 380.0, 56.0, 570.0, 18.0, 330.0
FASTEST = 1e-3  # seconds; what is faster stands here
LIGHT = {"page": "#ffffff", "ink": "#16191d", "soft": "#59616c", "line": "#e2e5ea"}
DARK = {"page": "#0d1117", "ink": "#eceff3", "soft": "#a2abb7", "line": "#2c323b"}
HUES = ("#2563eb", "#c2410c", "#0f766e", "#7c3aed", "#737a85")


def tools_of(records: Sequence[Record]) -> list[str]:
    """The other verifiers, in the order in which the records name them."""
    return list(dict.fromkeys(tool for record in records for row in record["results"] for tool in row["tools"]))


def best_tool(row: Record) -> str | None:
    """Of the other verifiers the one that solved most of a benchmark's instances; of equal ones the fastest."""
    asked = {tool: found for tool, found in row["tools"].items() if found["solved"]}
    return min(asked, key=lambda tool: (-asked[tool]["solved"], asked[tool]["median"]), default=None)


def scoreboard_page(records: Sequence[Record], figure: str, note: str = "") -> str:
    """records: what `lipgraft bench vnncomp --json` wrote; those of one repository become one section, and
    those of one benchmark one row. figure: the plot's file beside it. note: a paragraph for its readers.
    """
    records = joined(records)
    tools = tools_of(records)
    parts = [
        MARK,
        "# VNN-COMP instances",
        _verdict(records, tools),
        *([note] if note else []),
        f"Solved: answered sat or unsat. Wrong: against what all of {_listed(tools)} say that answered at all; sat is "
        "confirmed by onnxruntime before it is said. Median: seconds of the instances that a tool solved, less its "
        "start-up (the least time of any of its answers; lipgraft's are measured in one process, and include reading "
        "the files). Others had the competition's own hardware and limit; in brackets what they solved within ours. "
        "Asked: of the instances whose files were at hand; 1/4 means that every fourth line of the table was chosen. "
        "Best: of the other tools the one that solved most, then the fastest. Limits: the most seconds for each "
        "instance; after the first number, for those that were still open, as far as the time for the benchmark went; "
        "the competition's, after numbers: for a few of them.",
        f"![Instances solved against seconds for each]({figure})",
    ]
    for title in dict.fromkeys(map(_title, records)):
        some = [record for record in records if _title(record) == title]
        rows = [row for record in some for row in record["results"]]
        parts += [f"## {title}", " ".join(dict.fromkeys(map(_protocol, some))), _table(rows, tools)]
        missing = [row["name"] for row in rows if not row["here"]]
        if missing:
            parts.append(f"No files at hand: {', '.join(missing)}.")
        refused = [f"{row['name']}: {reason} ({count})" for row in rows for reason, count in row["errors"].items()]
        if refused:
            parts.append("Refused:\n\n" + "\n".join(f"- {words}" for words in refused))
    return "\n\n".join(parts) + "\n"


def _title(record: Record) -> str:
    return str(record["settings"]["title"])


def _verdict(records: Sequence[Record], tools: Sequence[str]) -> str:
    rows = [row for record in records for row in record["results"]]
    asked, solved, wrong = (sum(row[key] for row in rows) for key in ("asked", "solved", "wrong"))
    words = f"Of {asked} instances, lipgraft solved {solved}; {wrong} of its answers were wrong."
    for tool in tools:
        theirs = [row["tools"][tool] for row in rows if tool in row["tools"]]
        both = [one for row in rows for one in row["results"] if tool in one["tools"]]
        ours = sum(one["status"] in DECIDED for one in both)
        words += f" {tool} solved {sum(t['solved'] for t in theirs)} of {sum(t['asked'] for t in theirs)}"
        words += f" (lipgraft {ours} of the same)."
    return words


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "the other tools"


def _protocol(record: Record) -> str:
    hardware, versions = record["hardware"], record["versions"]
    return (
        f"{hardware.get('gpu', hardware['processor'])}; "
        f"lipgraft {versions.get('lipgraft', '')}, commit {versions.get('commit', 'unknown')}."
    )


def _table(rows: Sequence[Record], tools: Sequence[str]) -> str:
    heads = [
        "benchmark",
        "instances",
        "asked",
        "solved",
        "wrong",
        "median s",
        *tools,
        "best",
        "its median s",
        "limits s",
    ]
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    for row in rows:
        if not row["asked"]:
            continue
        best = best_tool(row)
        asked = f"{row['asked']} (1/{row['every']})" if row["every"] > 1 else row["asked"]
        cells = [row["name"], row["instances"], asked, row["solved"], row["wrong"], _seconds(row["median"])]
        for tool in tools:
            found = row["tools"].get(tool)
            cells.append("–" if found is None or not found["asked"] else f"{found['solved']} ({found['in_limit']})")
        cells += [best or "–", _seconds(row["tools"][best]["median"] if best else None)]
        cells.append(_limits(row["limits"]))
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def _limits(rounds: Sequence[Sequence[float]]) -> str:
    """Of all records; one without a number had the competition's own limits."""
    numbers = sorted({seconds for some in rounds for seconds in some})
    own = ["the competition's"] if not all(rounds) else []
    return ", ".join([f"{seconds:g}" for seconds in numbers] + own)


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2g}" if value < 10 else f"{value:.0f}"


def cactus(records: Sequence[Record]) -> str:
    """How many instances each tool solves if every one may take this long. SVG, as the text of a file."""
    records = joined(records)
    curves = {OURS: _ours(records)} | {tool: _theirs(records, tool) for tool in tools_of(records)}
    longest = max((seconds for times in curves.values() for seconds in times), default=1.0)
    most = max((len(times) for times in curves.values()), default=1)
    x = Scale(FASTEST, max(longest, 1.0), LEFT, RIGHT, log=True)
    y = Scale(0, max(most, 1), BOTTOM, TOP)
    parts = [tag("rect", width=WIDTH, height=HEIGHT, class_="page")]
    for tick in y.ticks(5):
        parts += [line(LEFT, y(tick), RIGHT, y(tick), "g"), text(LEFT - 6, y(tick) + 4, number(tick), "m", "end")]
    parts += [text(x(tick), BOTTOM + 18, number(tick), "m", "middle") for tick in x.ticks(6)]
    parts.append(text((LEFT + RIGHT) / 2, BOTTOM + 38, "seconds for each instance, less start-up", "m", "middle"))
    for i, (tool, times) in enumerate(curves.items()):
        points = [(LEFT, y(0))]
        for count, seconds in enumerate(sorted(times), start=1):
            points += [(x(max(seconds, FASTEST)), points[-1][1]), (x(max(seconds, FASTEST)), y(count))]
        points.append((RIGHT, points[-1][1]))
        parts.append(path(points, f"l c{i % len(HUES)}", hint=tool))
        place = TOP + 16 + 20 * i
        parts += [line(RIGHT + 12, place - 4, RIGHT + 34, place - 4, f"l c{i % len(HUES)}")]
        parts.append(text(RIGHT + 40, place, f"{tool}, {len(times)}", "t"))
    body = Markup("").join([tag("style", Markup(_style())), *parts])
    size = {"viewBox": f"0 0 {WIDTH:.0f} {HEIGHT:.0f}", "width": WIDTH, "height": HEIGHT}
    label = "Instances solved by each verifier against seconds for each"
    return str(tag("svg", body, xmlns="http://www.w3.org/2000/svg", role="img", aria_label=label, **size)) + "\n"


def _ours(records: Sequence[Record]) -> list[float]:
    found = (one for record in records for row in record["results"] for one in row["results"])
    return [one["seconds"] for one in found if one["status"] in DECIDED]


def _theirs(records: Sequence[Record], tool: str) -> list[float]:
    times = []
    for row in (row for record in records for row in record["results"] if tool in row["tools"]):
        answers = (one["tools"].get(tool) for one in row["results"])
        overhead = row["tools"][tool]["overhead"]
        times += [max(seconds - overhead, 0.0) for status, seconds in filter(None, answers) if status in DECIDED]
    return times


def _style() -> str:
    def rules(colours: Mapping[str, str]) -> str:
        return (
            f".page{{fill:{colours['page']}}}text{{fill:{colours['ink']}}}.m{{fill:{colours['soft']}}}"
            f".g{{stroke:{colours['line']}}}"
        )

    hues = "".join(f".c{i}{{stroke:{hue}}}" for i, hue in enumerate(HUES))
    fixed = f"text{{font:12px {FONT}}}.l{{fill:none;stroke-width:2.2;stroke-linejoin:round}}{hues}"
    return f"{fixed}{rules(LIGHT)}@media (prefers-color-scheme:dark){{{rules(DARK)}}}"
