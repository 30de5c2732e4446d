"""A name for what a network computes."""

from __future__ import annotations

import hashlib

import torch
from torch import fx, nn


def fingerprint(model: nn.Module) -> str:
    """SHA-256, as text, of the model's tensors (names, shapes, dtypes, bytes) and of its structure.

    The structure counts too, because the same weights under another activation or stride are another network. The
    device and train or eval mode do not count.
    """
    digest = hashlib.sha256()
    for name, module in sorted(model.named_modules()):
        digest.update(f"{name}|{type(module).__name__}|{module.extra_repr()}\n".encode())
        if isinstance(module, fx.GraphModule):
            digest.update(module.code.encode())
    for name, tensor in sorted(model.state_dict().items()):
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(f"{name}|{tuple(tensor.shape)}|{tensor.dtype}\n".encode())
        digest.update(data.numpy().tobytes())
    return digest.hexdigest()
