"""A benchmark's figures from its instances, and one row where several records asked the same benchmark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from lipgraft.errors import SettingsError

DECIDED = ("sat", "unsat")
Record = Mapping[str, Any]
Row = Mapping[str, Any]


def figures(
    name: str, size: tuple[int, int], every: int, instances: Sequence[Row], overheads: Mapping[str, float]
) -> dict[str, Any]:
    """The row of a benchmark. size: lines of its table, and how many of them have their files. overheads: by tool."""
    mine = [row["seconds"] for row in instances if row["status"] in DECIDED]
    return {
        "name": name,
        "instances": size[0],
        "here": size[1],
        "every": every,
        "asked": len(instances),
        "solved": len(mine),
        "wrong": sum(row["status"] in DECIDED and row["truth"] in DECIDED and row["status"] != row["truth"]
                     for row in instances),
        "disputed": sum(row["truth"] == "disputed" for row in instances),
        "counts": dict(Counter(row["status"] for row in instances)),
        "median": median(mine) if mine else None,
        "tools": {tool: _tool(tool, overhead, instances) for tool, overhead in overheads.items()},
        "errors": dict(Counter(row["reason"] for row in instances if row["status"] == "error").most_common(3)),
        "results": list(instances),
    }  # fmt: skip


def _tool(tool: str, overhead: float, instances: Sequence[Row]) -> dict[str, Any]:
    """Solved by a tool within the competition's limit, and within ours; seconds less its start-up."""
    seen = [(row["limit"], *row["tools"][tool]) for row in instances if tool in row["tools"]]
    solved = [(limit, max(seconds - overhead, 0.0)) for limit, status, seconds in seen if status in DECIDED]
    return {
        "asked": len(seen),
        "solved": len(solved),
        "in_limit": sum(seconds <= limit for limit, seconds in solved),
        "median": median(seconds for _, seconds in solved) if solved else None,
        "overhead": overhead,
    }


def joined(records: Sequence[Record]) -> list[dict[str, Any]]:
    """The same records with each benchmark of a repository in one row, where the first of them has it.

    Of an instance that several asked, the answer counts, else the longest try. Every row gets the limits of all its
    records as "limits"; an empty list among them is the competition's own.
    """
    found: dict[tuple[str, str], list[tuple[Row, list[float]]]] = {}
    for record in records:
        for row in record["results"]:
            found.setdefault(_key(record, row), []).append((row, record["settings"]["limits"]))
    kept = []
    for record in records:
        keys = dict.fromkeys(_key(record, row) for row in record["results"])
        rows = [_one_row(found.pop(key)) for key in keys if key in found]
        kept.append({**record, "results": rows})
    return kept


def _key(record: Record, row: Row) -> tuple[str, str]:
    return record["settings"]["title"], row["name"]


def _one_row(found: Sequence[tuple[Row, list[float]]]) -> dict[str, Any]:
    limits = list(dict.fromkeys(tuple(some) for _, some in found))
    rows = [row for row, _ in found]
    widest = max(rows, key=lambda row: row["instances"])  # a later record may be of a part of the table
    if len(rows) == 1:
        return {**widest, "limits": limits}
    instances: dict[tuple[str, str], Row] = {}
    for row in (widest, *(row for row in rows if row is not widest)):
        for one in row["results"]:
            key = one["onnx"], one["vnnlib"]
            instances[key] = _better(row["name"], instances[key], one) if key in instances else one
    overheads = {tool: known["overhead"] for row in rows for tool, known in row["tools"].items()}
    order = [tool for row in (widest, *rows) for tool in row["tools"]]
    size = widest["instances"], widest["here"]
    whole = figures(
        widest["name"], size, widest["every"], list(instances.values()),
        {tool: overheads[tool] for tool in dict.fromkeys(order)},
    )  # fmt: skip
    return {**whole, "limits": limits}


def _better(name: str, one: Row, other: Row) -> Row:
    """What counts of two answers to one question; the first, if they are as good."""
    if one["status"] in DECIDED and other["status"] in DECIDED and one["status"] != other["status"]:
        raise SettingsError(
            f"{name}: {one['vnnlib']} is {one['status']} in one record and {other['status']} in another; "
            "one of them is wrong."
        )
    return max(one, other, key=lambda row: (_rank(row), 0.0 if row["status"] in DECIDED else row["seconds"]))


def _rank(row: Row) -> int:
    return 2 if row["status"] in DECIDED else 0 if row["status"] == "error" else 1
