"""The checker reads lipgraft's checkpoints by itself: the same network, and refusals in a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lipgraft import grafting, models
from lipgraft.checker import Rejected, check_folder
from lipgraft.checker.checkpoint import ARCHITECTURES, read_checkpoint
from lipgraft.checker.network import Activation, Network
from lipgraft.interop import CertificateFolder
from lipgraft.verification import Limits, VerifySettings, verify_stream

DATA = {"digits-cnn": "digits", "conv-huge": "cifar10"}


def grafted(name: str) -> nn.Module:
    """A network by name with random weights, some of its neurons lines."""
    model = models.build(name, DATA.get(name, "cifar10"), seed=0).eval()
    if model.spec.batchnorm:
        model = models.fold_batchnorm(model)
    generator = torch.Generator().manual_seed(0)
    if name == "conv-huge":  # a plain one, too
        return model
    masks = {layer: torch.rand(mask.shape, generator=generator) < 0.5 for layer, mask in shapes(model).items()}
    return grafting.apply(model, masks, 0.4).eval()


def shapes(model: nn.Module) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    hooks = [
        module.register_forward_hook(lambda m, i, out, name=name: found.__setitem__(name, out[0] > 0))
        for name, module in model.named_modules()
        if isinstance(module, nn.ReLU)
    ]
    with torch.no_grad():
        model(torch.rand(1, *model.spec.input_shape))
    for hook in hooks:
        hook.remove()
    return found


def evaluated(network: Network, x: np.ndarray) -> np.ndarray:
    values = [x.reshape(len(x), -1)]
    for node in network.nodes[1:]:
        rows = [values[i] for i in node.inputs]
        out = np.maximum(rows[0], 0) if isinstance(node, Activation) else node.linear(*rows)
        values.append(out if node.bias is None else out + node.bias)
    return values[network.output]


@pytest.mark.long
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_checkpoint_is_the_network_that_pytorch_computes(name: str, tmp_path: Path) -> None:
    model = grafted(name)
    models.save(model, tmp_path / "net.safetensors")
    network = read_checkpoint((tmp_path / "net.safetensors").read_bytes())
    x = torch.rand(2, *model.spec.input_shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model.double()(x).numpy()
    np.testing.assert_allclose(evaluated(network, x.numpy()), expected, rtol=1e-9, atol=1e-9)


def test_proofs_hold_for_the_checkpoint_and_not_for_another_one(tmp_path: Path) -> None:
    model = grafted("digits-cnn")
    models.save(model, tmp_path / "net.safetensors")
    x = torch.rand(6, *model.spec.input_shape, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        y = model(x).argmax(1)
    folder = CertificateFolder(tmp_path / "proofs")
    settings = VerifySettings(limits=Limits(max_subproblems=20))
    for place, verdict in verify_stream(model, x, y, 0.005, settings=settings, certificates=True):
        if verdict.certificate is not None:
            folder.put(place, verdict.certificate)
    outcomes = check_folder(tmp_path / "proofs", tmp_path / "net.safetensors")
    assert all(outcome.accepted for outcome in outcomes)
    assert any(outcome.kind == "proof" for outcome in outcomes)

    models.save(models.build("digits-cnn", "digits", seed=1), tmp_path / "other.safetensors")
    other = check_folder(tmp_path / "proofs", tmp_path / "other.safetensors")
    assert not any(outcome.accepted for outcome in other)


def changed(data: bytes, **spec: object) -> bytes:
    """The checkpoint with another specification."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    facts = json.loads(header["__metadata__"]["lipgraft"])
    facts["spec"].update(spec)
    header["__metadata__"]["lipgraft"] = json.dumps(facts)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"name": "resnet50"}, "not known to the checker"),
        ({"name": "cnn-b"}, "does not fit"),
        ({"activation": "tanh"}, "not ReLU"),
        ({"batchnorm": True}, "BatchNorm"),
        ({"input_shape": "wide"}, "does not fit"),
    ],
    ids=str,
)
def test_what_is_not_understood_is_refused_in_a_sentence(spec: dict[str, object], words: str, tmp_path: Path) -> None:
    models.save(grafted("digits-cnn"), tmp_path / "net.safetensors")
    with pytest.raises(Rejected, match=words):
        read_checkpoint(changed((tmp_path / "net.safetensors").read_bytes(), **spec))


def test_damaged_checkpoints_are_refused(tmp_path: Path) -> None:
    models.save(grafted("digits-cnn"), tmp_path / "net.safetensors")
    data = (tmp_path / "net.safetensors").read_bytes()
    random = np.random.default_rng(0)
    for _ in range(100):
        cut = data[: int(random.integers(0, len(data)))]
        with pytest.raises(Rejected):
            read_checkpoint(cut)
