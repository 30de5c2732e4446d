"""What to do about an operation that is not supported: the two or three things that work for most people."""

from __future__ import annotations

import re

_REMEDIES = {
    r"softmax": "Leave the softmax out: the class with the largest logit is the same, and so is the verdict.",
    r"pool|amax|maximum": "Use nn.AvgPool2d or nn.MaxPool2d with windows that fit the image, or a convolution with a "
    "stride.",
    r"(layer|group|instance|rms|local_?response)_?norm(alization)?|lrn": "Use BatchNorm, which is an affine map in "
    "evaluation, or no normalisation.",
    r"conv_?(transpose)?_?[13]d": "Lay the input out as an image and use nn.Conv2d with a kernel of (k, 1).",
    r"upsample|interpolate|resize|pixel_?shuffle": "Use nn.ConvTranspose2d.",
    r"attention|bmm|einsum|lstm|gru|rnn|embedding": "Only layers that are affine, or act on each number alone, are "
    "supported: convolutions, linear layers and activations.",
    r"elu|prelu|mish|hardswish|hardsigmoid|softsign|threshold|erf|exp|log|sqrt|abs|sin|cos|pow|sign": "Use ReLU, leaky "
    "ReLU, sigmoid, tanh, GELU, SiLU or softplus.",
    r"argmax|topk|sort|where|greater|less|equal": "Let the network return its logits, and decide outside of it.",
    r"mul|matmul|div|product": "Multiply by constants and parameters only, not one result by another.",
    r"cat|concat|stack": "Add the results, or compute them by one wider layer.",
}
_GENERAL = (
    "Convolutions, linear layers, BatchNorm, average and max pooling, sums, reshaping and the usual activations are: "
    "write this part with them, or leave it out of what is verified."
)


def remedy(operation: str) -> str:
    """A sentence or two for an operation, by the name that PyTorch or ONNX gives it."""
    name = operation.lower()
    return next((advice for pattern, advice in _REMEDIES.items() if re.search(pattern, name)), _GENERAL)
