"""Everything that another verifier needs: net.onnx, one .vnnlib per image, instances.csv, a configuration."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from torch import Tensor, nn

from lipgraft.box import Box
from lipgraft.errors import SettingsError
from lipgraft.files import atomic_write_text
from lipgraft.interop.export import export_onnx

NETWORK, TABLE, CONFIG = "net.onnx", "instances.csv", "abcrown.yaml"


@dataclass(frozen=True)
class Bundle:
    """Where everything is. folder: holds the other files; properties: one .vnnlib per image."""

    folder: Path
    network: Path
    instances: Path
    config: Path
    properties: tuple[Path, ...]


def export_bundle(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    eps: float,
    out: str | os.PathLike[str],
    *,
    names: Sequence[str] | None = None,
    timeout: float = 300.0,
    low: float | None = 0.0,
    high: float | None = 1.0,
) -> Bundle:
    """Export the question "is the class of each image certain within eps?".

    x: (B, *shape), y: (B,), the labels; names: of the images' files, by default their places in the batch. low, high:
    the valid range of x. timeout: seconds per image, in instances.csv.
    """
    labels = [f"{i:05d}" for i in range(len(x))] if names is None else list(names)
    if len(labels) != len(x) or len(y) != len(x):
        raise SettingsError(f"there are {len(x)} images, {len(y)} labels and {len(labels)} names; each needs one.")
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    outputs = export_onnx(model, folder / NETWORK, tuple(x.shape[1:])).output_shape[0]
    if not bool(((y >= 0) & (y < outputs)).all()):
        raise SettingsError(f"the labels must lie in 0..{outputs - 1}, the model's classes.")
    box = Box.linf(x, eps, low=low, high=high)
    properties = tuple(folder / "vnnlib" / f"{label}.vnnlib" for label in labels)
    for i, path in enumerate(properties):
        atomic_write_text(path, robustness_vnnlib(box.lower[i], box.upper[i], int(y[i]), outputs))
    lines = [f"{NETWORK},vnnlib/{path.name},{timeout:g}" for path in properties]
    atomic_write_text(folder / TABLE, "\n".join(lines) + "\n")
    atomic_write_text(folder / CONFIG, _config(folder, len(properties), outputs))
    return Bundle(folder, folder / NETWORK, folder / TABLE, folder / CONFIG, properties)


def robustness_vnnlib(lower: Tensor, upper: Tensor, label: int, outputs: int) -> str:
    """The violation of robustness: some other output reaches the label's. lower, upper: of any shape.

    Numbers are written with all their digits: reading gives the very same box.
    """
    lows, highs = (end.detach().double().flatten().tolist() for end in (lower, upper))
    lines = [f"; Outputs other than Y_{label} must stay below it for every input in the box."]
    lines += [f"(declare-const X_{i} Real)" for i in range(len(lows))]
    lines += [f"(declare-const Y_{i} Real)" for i in range(outputs)]
    for i, (low, high) in enumerate(zip(lows, highs, strict=True)):
        lines += [f"(assert (>= X_{i} {low!r}))", f"(assert (<= X_{i} {high!r}))"]
    wrong = "\n".join(f"  (and (>= Y_{i} Y_{label}))" for i in range(outputs) if i != label)
    return "\n".join([*lines, f"(assert (or\n{wrong}\n))", ""])


def _config(folder: Path, count: int, outputs: int) -> str:
    """Settings for alpha-beta-CROWN, which reads the timeouts from instances.csv."""
    settings = {
        "general": {
            "device": "cuda",
            "conv_mode": "matrix",
            "root_path": str(folder.resolve()),
            "csv_name": TABLE,
            "results_file": str(folder.resolve() / "abcrown_results.txt"),
        },
        "data": {"start": 0, "end": count, "num_outputs": outputs},
        "attack": {"pgd_order": "before", "pgd_steps": 100, "pgd_restarts": 30},
        "solver": {"batch_size": 512, "alpha-crown": {"iteration": 100}, "beta-crown": {"iteration": 20}},
        "bab": {"branching": {"method": "kfsb", "candidates": 3, "reduceop": "min"}},
    }
    text: str = yaml.safe_dump(settings, sort_keys=False)
    return (
        f"# Run: python abcrown.py --config {CONFIG}   (--root_path if this folder has moved)\n"
        "# conv_mode must be matrix: grafted neurons bring constants per neuron, which patches cannot hold.\n"
        "# For a network without grafted neurons, patches is faster.\n" + text
    )
