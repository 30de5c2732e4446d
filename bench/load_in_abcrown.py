"""Does an exported network load in alpha-beta-CROWN as it is written? Export it, convert it, bound it there.

    python bench/load_in_abcrown.py grafted.safetensors --data cifar10 --eps 2/255

Needs auto_LiRPA and onnx2pytorch, which alpha-beta-CROWN loads ONNX files with; without them it says so. Fails if the
converted network differs from the model by more than 1e-4, or if the bounds of one image are not around its outputs.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import onnx
import torch

from lipgraft import data, models
from lipgraft.interop import export_onnx
from lipgraft.settings import parse_number

OUTPUTS = 1e-4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--data", default="cifar10", help="name of the data set")
    parser.add_argument("--data-root", type=Path, help="folder with the data sets")
    parser.add_argument("--eps", type=parse_number, required=True, help="radius in raw pixels, such as 2/255")
    parser.add_argument("--conv-mode", default="matrix", choices=["matrix", "patches"])
    options = parser.parse_args()
    try:
        from auto_LiRPA import BoundedModule, BoundedTensor, PerturbationLpNorm
        from onnx2pytorch import ConvertModel
    except ImportError as error:
        print(f"{error.name} is not installed; nothing was tried.")
        return 0
    model = models.load(options.checkpoint).eval()
    x = data.images(data.load(options.data, options.data_root).x_test[:1])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "net.onnx"
        export_onnx(model, file, tuple(x.shape[1:]))
        network = ConvertModel(onnx.load(file), experimental=True).eval()
    with torch.no_grad():
        expected, got = model(x), network(x)
    bounded = BoundedModule(network, x, bound_opts={"conv_mode": options.conv_mode}, device="cpu")
    ball = PerturbationLpNorm(eps=options.eps, norm=float("inf"))
    lower, upper = bounded.compute_bounds((BoundedTensor(x, ball),), method="CROWN")
    difference = float((got - expected).abs().max())
    around = bool(((lower <= expected + OUTPUTS) & (expected <= upper + OUTPUTS)).all())
    print(f"outputs differ by {difference:.2g}; bounds are {'' if around else 'not '}around them")
    return 0 if difference <= OUTPUTS and around else 1


if __name__ == "__main__":
    raise SystemExit(main())
