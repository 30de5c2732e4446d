"""Is a network the same after a trip through ONNX? Export it, read it back, and compare outputs, bounds and verdicts.

    python bench/onnx_round_trip.py grafted.safetensors --data cifar10 --eps 2/255 --count 20

The images' classes are those that the network gives them. Verdicts come from the attack, CROWN and alpha-CROWN, without
branching, so that the clock decides nothing. Fails if outputs differ by more than 1e-5, bounds by more than 1e-4, or
any verdict.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path

import torch

from lipgraft import Box, bound, data, models
from lipgraft.interop import OnnxRuntime, export_onnx, load_onnx
from lipgraft.settings import parse_number
from lipgraft.verification import Limits, VerifySettings, verify

OUTPUTS, BOUNDS = 1e-5, 1e-4
SETTINGS = VerifySettings(limits=Limits(timeout=1e-6))  # branch and bound never starts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--data", default="cifar10", help="name of the data set")
    parser.add_argument("--data-root", type=Path, help="folder with the data sets")
    parser.add_argument("--eps", type=parse_number, required=True, help="radius in raw pixels, such as 2/255")
    parser.add_argument("--count", type=int, default=20, help="first so many test images")
    options = parser.parse_args()
    model = models.load(options.checkpoint).eval()
    x = data.images(data.load(options.data, options.data_root).x_test[: options.count])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "net.onnx"
        export_onnx(model, file, tuple(x.shape[1:]))
        again, runtime = load_onnx(file), OnnxRuntime(file)(x)
    with torch.no_grad():
        expected, got = model(x), again(x)
    y = expected.argmax(1)
    outputs = float(torch.stack([got, runtime]).sub(expected).abs().max())
    box = Box.linf(x, options.eps)
    before, after = bound(model, box, "crown"), bound(again, box, "crown")
    bounds = max(float((a - b).abs().max()) for a, b in ((before.lower, after.lower), (before.upper, after.upper)))
    words = [[v.status for v in verify(net, x, y, options.eps, settings=SETTINGS)] for net in (model, again)]
    same = sum(a == b for a, b in zip(*words, strict=True))
    print(f"{options.checkpoint.name}, {len(x)} images of {options.data}, eps {options.eps:.5g}")
    print(f"outputs differ by {outputs:.2g}, bounds by {bounds:.2g}; {same} of {len(x)} verdicts are the same")
    print(", ".join(f"{count} {word}" for word, count in sorted(Counter(words[0]).items())))
    return 0 if outputs <= OUTPUTS and bounds <= BOUNDS and same == len(x) else 1


if __name__ == "__main__":
    raise SystemExit(main())
