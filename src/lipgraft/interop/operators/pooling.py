"""Average and max pooling."""

from __future__ import annotations

from torch import nn

from lipgraft.interop.importer import Call, Value, imports
from lipgraft.interop.operators.affine import padded, padding, pair


@imports("AveragePool")
def average_pool(call: Call) -> Value:
    image = call.image(call.value())
    kernel, stride = pair(call, "kernel_shape", False, 1), pair(call, "strides", False, 1)
    if any(n != 1 for n in call.attribute("dilations", [1])):
        raise call.unsupported("its window is dilated")
    sides = padding(call, image.laid[1:], kernel, stride, False)
    counts = bool(call.attribute("count_include_pad", 0))
    if sides[:2] != sides[2:]:
        if not counts:
            raise call.unsupported("its padding differs from side to side and is not counted")
        image, sides = padded(call, image, sides), (0, 0, 0, 0)
    if any(n + 2 * p < k for n, p, k in zip(image.laid[1:], sides[:2], kernel, strict=True)):
        raise call.unsupported(f"its window does not fit into an input of shape {image.shape}")
    if any(p > k // 2 for p, k in zip(sides[:2], kernel, strict=True)):
        raise call.unsupported("its padding is more than half of its window")
    ceil = bool(call.attribute("ceil_mode", 0))
    return call.emit(nn.AvgPool2d(kernel, stride, sides[:2], ceil_mode=ceil, count_include_pad=counts), image)


@imports("GlobalAveragePool")
def global_average_pool(call: Call) -> Value:
    return call.emit(nn.AdaptiveAvgPool2d(1), call.image(call.value()))


@imports("MaxPool")
def max_pool(call: Call) -> Value:
    image = call.image(call.value())
    kernel, stride, dilation = (pair(call, name, False, 1) for name in ("kernel_shape", "strides", "dilations"))
    reach = (dilation[0] * (kernel[0] - 1) + 1, dilation[1] * (kernel[1] - 1) + 1)
    sides = padding(call, image.laid[1:], reach, stride, False)
    if sides[:2] != sides[2:]:
        raise call.unsupported("its padding differs from side to side; export it with even padding")
    if any(n + 2 * p < r for n, p, r in zip(image.laid[1:], sides[:2], reach, strict=True)):
        raise call.unsupported(f"its window does not fit into an input of shape {image.shape}")
    if any(p > k // 2 for p, k in zip(sides[:2], kernel, strict=True)):
        raise call.unsupported("its padding is more than half of its window")
    return call.emit(
        nn.MaxPool2d(kernel, stride, sides[:2], dilation, ceil_mode=bool(call.attribute("ceil_mode", 0))), image
    )
