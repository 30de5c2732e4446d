"""Does an exported network load in alpha-beta-CROWN as it is written? Export it, load it there, bound it there.

    python bench/load_in_abcrown.py zoo/cnn-b-cifar10-2-255.safetensors --abcrown alpha-beta-CROWN/complete_verifier

Needs a checkout of alpha-beta-CROWN with what it requires (auto_LiRPA, onnx2pytorch); without one of them it says so.
The image is noise. Fails if the network that alpha-beta-CROWN's own loader makes of the file differs from the model by
more than 1e-4, or if the bounds of the image's surroundings are not around its outputs.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from lipgraft import models
from lipgraft.interop import export_onnx
from lipgraft.settings import parse_number

OUTPUTS = 1e-4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", type=Path, nargs="+")
    parser.add_argument("--abcrown", type=Path, required=True, help="the folder complete_verifier of a checkout")
    parser.add_argument("--eps", type=parse_number, default=0.5 / 255, help="radius in raw pixels, such as 2/255")
    parser.add_argument("--conv-mode", default="matrix", choices=["matrix", "patches"])
    options = parser.parse_args()
    sys.path.insert(0, str(options.abcrown))
    try:
        config = importlib.import_module("arguments").Config
        config.parse_config(["--device", "cpu"], verbose=False)
        config["general"]["conv_mode"] = options.conv_mode
        load = importlib.import_module("load_model").load_model_onnx
    except ImportError as error:
        print(f"{error.name} cannot be imported; nothing was tried.")
        return 0
    return max(tried(load, checkpoint, options.eps, options.conv_mode) for checkpoint in options.checkpoints)


def tried(load: Callable[[str], tuple[nn.Module, object]], checkpoint: Path, eps: float, conv_mode: str) -> int:
    """0 if the network is the same there, and its bounds hold."""
    from auto_LiRPA import BoundedModule, BoundedTensor, PerturbationLpNorm

    model = models.load(checkpoint).eval()
    x = torch.rand(1, *model.spec.input_shape, generator=torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "net.onnx"
        export_onnx(model, file, tuple(x.shape[1:]))
        network, _ = load(str(file))
    with torch.no_grad():
        expected, got = model(x), network.eval()(x)
    bounded = BoundedModule(network, x, bound_opts={"conv_mode": conv_mode}, device="cpu")
    ball = PerturbationLpNorm(eps=eps, norm=float("inf"))
    lower, upper = bounded.compute_bounds((BoundedTensor(x, ball),), method="CROWN")
    difference = float((got - expected).abs().max())
    around = bool(((lower <= expected + OUTPUTS) & (expected <= upper + OUTPUTS)).all())
    print(f"{checkpoint}: outputs differ by {difference:.2g}; bounds are {'' if around else 'not '}around them")
    return 0 if difference <= OUTPUTS and around else 1


if __name__ == "__main__":
    raise SystemExit(main())
