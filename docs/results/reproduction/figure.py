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
TABLES = ("table1", "baseline", "table2", "tradeoff")
COLOURS = {"Baseline": "#7b8594", "LG": "#d97706", "Ours": "#2563eb", "slope": "#0d9488"}

SHORT = {"Ours + slope loss": "", "Slope loss, ratio 0.2": "Ours + slope loss, ratios 0.3 (left) and 0.2"}
"""Other labels, of points that lie side by side."""
KEY = (
    "circles: 100 epochs of fine-tuning; squares: the same with published settings;\nrings: the paper; small: the sweep"
)
LABEL = {"fontsize": 8, "color": "#59616c"}

Point = tuple[float, float]


def colour(title: str) -> str:
    """By method; whatever is neither the baseline nor plain grafting has the slope loss."""
    plain = next((kind for kind in COLOURS if title.lower().startswith(kind.lower())), "slope")
    return COLOURS["slope" if "slope" in title.lower() else plain]


def full_length() -> dict[str, tuple[Point, Point | None]]:
    """{title: (ours, the paper's)} of the rows of the tables, in per cent; a later table replaces a row."""
    found: dict[str, tuple[Point, Point | None]] = {}
    for before, after in (("published-settings-", ", published settings"), ("", "")):
        for table in TABLES:
            file = HERE / f"{before}{table}.json"
            for model in rows(json.loads(file.read_text())) if file.exists() else []:
                paper = model["published"] if not before else None
                theirs = (paper["sa"], paper["va"]) if paper and paper["va"] is not None else None
                found[model["title"] + after] = (100 * model["sa"], 100 * model["va"]), theirs
    return found


def rows(results: dict[str, Any]) -> list[dict[str, Any]]:
    return [model for run in results["runs"] if run["network"] == "cnn-b" for model in run["models"]]


def main() -> None:
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "lipgraft", "font.family": "sans-serif"})
    figure, axes = plt.subplots(figsize=(7.6, 4.8))
    for row in json.loads((HERE / "sweeps.json").read_text()):
        axes.plot(row["sa"], row["va"], ".", color=colour(row["model"]), alpha=0.45, markersize=7)
    for title, (ours, theirs) in full_length().items():
        published = title.endswith("published settings")
        axes.plot(*ours, "s" if published else "o", color=colour(title), markersize=6 if published else 9)
        if not published:
            axes.annotate(SHORT.get(title, title), ours, xytext=(8, 3), textcoords="offset points", fontsize=8)
        if theirs:
            axes.plot(*theirs, "o", color=colour(title), markerfacecolor="none", markersize=10)
            axes.annotate(
                f"paper: {title}",
                theirs,
                xytext=(-8, -12 if title == "Ours" else 5),
                textcoords="offset points",
                ha="right",
                **LABEL,
            )
    axes.text(0.01, 0.02, KEY, transform=axes.transAxes, **LABEL)
    axes.set(xlabel="standard accuracy, %", ylabel="verified accuracy, %", title="CNN-B, CIFAR-10, eps 2/255")
    axes.grid(color="#e2e5ea")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(TARGET, bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    main()
