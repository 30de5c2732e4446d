"""Draw the trade-off between accuracy and proof on CNN-B from the JSON files beside this one: python figure.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
TARGET = HERE.parents[1] / "images" / "tradeoff.svg"
GROUPS = {  # what is drawn alike: marker, files
    "100 epochs of fine-tuning": ("o", ("baseline", "cnn-b", "slope-20")),
    "the same, second seed": ("D", ("seed-1",)),
    "40 epochs": ("^", ("no-loss-40", "slope-vs-rs")),
    "published settings": (
        "s",
        ("published-settings/table1", "published-settings/table2", "published-settings/tradeoff"),
    ),
}
COLOURS = {
    "baseline": "#7b8594",
    "LG": "#d97706",
    "ours": "#2563eb",
    "ours with slope or RS loss": "#0d9488",
    "LG with slope or RS loss": "#be185d",
}
GREY = "#59616c"

Point = tuple[float, float]


def colour(title: str) -> str:
    """By method."""
    low = title.lower()
    kind = "baseline" if "baseline" in low else "LG" if low.startswith("lg") else "ours"
    if "slope" in low or "rs loss" in low:
        kind += " with slope or RS loss"
    return COLOURS[kind]


def rows(name: str) -> list[dict[str, Any]]:
    results = json.loads((HERE / f"{name}.json").read_text())
    return [model for run in results["runs"] if run["network"] == "cnn-b" for model in run["models"]]


def point(model: dict[str, Any]) -> Point:
    return 100 * model["sa"], 100 * model["va"]


def best(points: list[Point]) -> list[Point]:
    """Those that no other beats in both accuracies, in order."""
    return sorted(p for p in points if not any(q[0] >= p[0] and q[1] >= p[1] and q != p for q in points))


def main() -> None:
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "lipgraft", "font.family": "sans-serif"})
    figure, axes = plt.subplots(figsize=(8.4, 5.4))
    for row in json.loads((HERE / "sweeps.json").read_text()):
        axes.plot(row["sa"], row["va"], ".", color=colour(row["model"]), alpha=0.4, markersize=6)
    points: list[Point] = []
    for label, (marker, files) in GROUPS.items():
        axes.plot([], [], marker, color=GREY, label=label, markersize=7)
        for model in (model for file in files for model in rows(file)):
            axes.plot(*point(model), marker, color=colour(model["title"]), markersize=9 if marker == "o" else 7)
            points.append(point(model))
    axes.plot([], [], ".", color=GREY, alpha=0.5, label="other readings")
    axes.plot([], [], "o", color=GREY, markerfacecolor="none", markersize=10, label="the paper")
    axes.plot(*zip(*best(points), strict=True), "--", color=GREY, linewidth=1, zorder=0, label="best trade-off")
    for model in [*rows("published-settings/table1"), *rows("published-settings/table2")]:
        theirs = model["published"]
        where = (theirs["sa"], theirs["va"])
        axes.plot(*where, "o", color=colour(model["title"]), markerfacecolor="none", markersize=11)
    for at, (label, value) in enumerate(COLOURS.items()):
        axes.text(0.015, 0.32 - 0.05 * at, label, color=value, transform=axes.transAxes, fontsize=10, weight="bold")
    axes.legend(loc="lower left", bbox_to_anchor=(0.42, 0.02), fontsize=8, frameon=False)
    axes.set(xlabel="standard accuracy, %", ylabel="verified accuracy, %", title="CNN-B, CIFAR-10, eps 2/255")
    axes.grid(color="#e2e5ea")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(TARGET, bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    main()
