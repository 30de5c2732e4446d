"""Draw the trade-off between accuracy and proof on CNN-B, and the controls, from the JSON files beside this one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
IMAGES = HERE.parents[1] / "images"
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
    "no or random lines": "#7c6f9c",
}
GREY = "#59616c"

Point = tuple[float, float]


def colour(title: str) -> str:
    """By method."""
    low = title.lower()
    if "no lines" in low or "alone" in low or "random" in low:
        return COLOURS["no or random lines"]
    kind = "baseline" if "baseline" in low else "LG" if "lg" in low else "ours"
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


def tradeoff() -> None:
    """Standard against verified accuracy, of all that was run."""
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
    for at, (label, value) in enumerate(list(COLOURS.items())[:-1]):
        axes.text(0.015, 0.32 - 0.05 * at, label, color=value, transform=axes.transAxes, fontsize=10, weight="bold")
    axes.legend(loc="lower left", bbox_to_anchor=(0.42, 0.02), fontsize=8, frameon=False)
    axes.set(xlabel="standard accuracy, %", ylabel="verified accuracy, %", title="CNN-B, CIFAR-10, eps 2/255")
    axes.grid(color="#e2e5ea")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(IMAGES / "tradeoff.svg", bbox_inches="tight", metadata={"Date": None})


def controls() -> None:
    """What was proved, what was left open, and the accuracies: row by row, and of ours and LG for each seed."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11.5, 4.4), width_ratios=(1.7, 1))
    found = rows("controls")[::-1]
    for at, model in enumerate(found):
        proved, remaining = 100 * model["va"], 100 * model["unknown"].get("timeout", 0) / model["over"]["va"]
        left.barh(at, proved, color=colour(model["title"]), height=0.62)
        left.barh(at, remaining, left=proved, color=colour(model["title"]), alpha=0.2, height=0.62)
        left.text(proved - 0.8, at, f"{proved:.1f}", va="center", ha="right", color="white", fontsize=8)
        left.plot(100 * model["ra"], at, "|", color="black", markersize=11)
        left.plot(100 * model["sa"], at, "D", color="black", markersize=4)
    left.barh([0], [0], color=GREY, label="proved")
    left.barh([0], [0], color=GREY, alpha=0.2, label="open after 20 s")
    left.plot([], [], "|", color="black", markersize=11, linestyle="none", label="RA")
    left.plot([], [], "D", color="black", markersize=4, linestyle="none", label="SA")
    left.set_yticks(range(len(found)), [model["title"] for model in found])
    left.set(xlim=(0, 84), xlabel="per cent", title="The controls, seed 0")
    left.legend(loc="lower center", bbox_to_anchor=(0.45, -0.3), ncol=4, fontsize=8, frameon=False)
    for seed, (file, marker) in enumerate({"controls": "o", "controls-seed1": "D", "controls-seed2": "s"}.items()):
        right.plot([], [], marker, color=GREY, label=f"seed {seed}", linestyle="none")
        for model in rows(file):
            if model["name"] in ("ours", "lg"):
                shade = COLOURS["LG" if model["name"] == "lg" else "ours"]
                top = 100 * model["va"] + 100 * model["unknown"]["timeout"] / model["over"]["va"]
                right.plot(*point(model), marker, color=shade, markersize=8)
                right.plot([100 * model["sa"]] * 2, [100 * model["va"], top], color=shade, alpha=0.35)
    for at, name in enumerate(("ours", "LG")):
        right.text(0.03, 0.93 - 0.06 * at, name, color=COLOURS[name], transform=right.transAxes, weight="bold")
    right.set(xlabel="standard accuracy, %", ylabel="verified accuracy, %", title="Lines on 50 %, no loss")
    right.legend(loc="center", fontsize=8, frameon=False)
    for axes in (left, right):
        axes.grid(color="#e2e5ea", axis="x" if axes is left else "both")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(IMAGES / "controls.svg", bbox_inches="tight", metadata={"Date": None})


def main() -> None:
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "lipgraft", "font.family": "sans-serif"})
    tradeoff()
    controls()


if __name__ == "__main__":
    main()
