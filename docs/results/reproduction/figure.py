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
TABLES = ("table1", "table2", "tradeoff", "published-settings")
COLOURS = {"Baseline": "#7b8594", "LG": "#d97706", "Ours": "#2563eb", "slope": "#0d9488"}

Point = tuple[float, float]


def colour(title: str) -> str:
    """By method; whatever is neither the baseline nor plain grafting has the slope loss."""
    plain = next((kind for kind in COLOURS if title.lower().startswith(kind.lower())), "slope")
    return COLOURS["slope" if "slope" in title.lower() else plain]


def full_length() -> dict[str, tuple[Point, Point | None]]:
    """{title: (ours, the paper's)} of the rows of the tables, in per cent."""
    found: dict[str, tuple[Point, Point | None]] = {}
    for name in TABLES:
        file = HERE / f"{name}.json"
        for model in rows(json.loads(file.read_text())) if file.exists() else []:
            paper = model["published"]
            theirs = (paper["sa"], paper["va"]) if paper and paper["va"] is not None else None
            title = model["title"] + (", published settings" if name == "published-settings" else "")
            found[title] = (100 * model["sa"], 100 * model["va"]), theirs
    return found


def rows(results: dict[str, Any]) -> list[dict[str, Any]]:
    return [model for run in results["runs"] if run["network"] == "cnn-b" for model in run["models"]]


def main() -> None:
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "lipgraft", "font.family": "sans-serif"})
    figure, axes = plt.subplots(figsize=(7.6, 4.8))
    for row in json.loads((HERE / "sweeps.json").read_text()):
        axes.plot(row["sa"], row["va"], ".", color=colour(row["model"]), alpha=0.45, markersize=7)
    for title, (ours, theirs) in full_length().items():
        axes.plot(*ours, "o", color=colour(title), markersize=8)
        axes.annotate(title, ours, xytext=(7, -3), textcoords="offset points", fontsize=8)
        if theirs:
            axes.plot(*theirs, "o", color=colour(title), markerfacecolor="none", markersize=10)
            axes.annotate(
                f"paper: {title}", theirs, xytext=(8, 4), textcoords="offset points", fontsize=8, color="#59616c"
            )
    axes.set(xlabel="standard accuracy, %", ylabel="verified accuracy, %", title="CNN-B, CIFAR-10, eps 2/255")
    axes.grid(color="#e2e5ea")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(TARGET, bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    main()
