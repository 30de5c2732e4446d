"""lipgraft.models.save and load: what was saved comes back bit for bit; every wrong file has its own sentence."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lipgraft.errors import CheckpointError
from lipgraft.grafting import apply
from lipgraft.models import build, fingerprint, fold_batchnorm, load, read_metadata, save
from lipgraft.models.tensor_file import to_bytes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def small() -> nn.Module:
    return build("digits-cnn", "digits", seed=0)


def grafted(generator: torch.Generator, model: nn.Module | None = None) -> nn.Module:
    """Half of two activations are lines, each with its own slope and intercept."""
    shapes = {"act1": (16, 8, 8), "act3": (100,)}
    masks = {name: torch.rand(shape, generator=generator) < 0.5 for name, shape in shapes.items()}
    model = apply(model or small(), masks)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith((".gamma", ".omega")):
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


@pytest.mark.parametrize(
    "model",
    [
        small(),
        build("resnet4b", "mnist", activation="tanh", seed=1),
        build("conv-huge", "digits", seed=2),
        fold_batchnorm(build("conv-huge", "digits", seed=2)),
        build("digits-cnn", "digits", seed=3).double(),
    ],
    ids=["digits-cnn", "resnet4b", "conv-huge", "folded", "float64"],
)
def test_a_saved_model_comes_back_bit_for_bit_in_eval_mode(model: nn.Module, path: Path) -> None:
    save(model, path)
    again = load(path)
    assert fingerprint(again) == fingerprint(model)
    assert again.spec == model.spec
    assert not again.training


def test_a_grafted_model_comes_back_with_its_masks_and_lines(path: Path, generator: torch.Generator) -> None:
    model = grafted(generator).eval()
    save(model, path)
    again = load(path)
    x = torch.rand(5, 1, 8, 8, generator=generator)
    assert read_metadata(path)["grafted"] == ["act1", "act3"]
    assert fingerprint(again) == fingerprint(model)
    assert again.spec == model.spec
    with torch.no_grad():
        assert torch.equal(again(x), model(x))
        assert not torch.equal(again(x), small().eval()(x))


def test_the_metadata_says_what_the_model_is_and_how_it_was_made(path: Path) -> None:
    save(small(), path, extra={"eps": 0.1, "steps": [1, 2]})
    metadata = read_metadata(path)
    assert metadata["spec"] == {
        "name": "digits-cnn",
        "dataset": "digits",
        "activation": "relu",
        "batchnorm": False,
        "input_shape": [1, 8, 8],
        "classes": 10,
    }
    assert metadata["extra"] == {"eps": 0.1, "steps": [1, 2]}
    assert metadata["grafted"] == []
    assert metadata["versions"]["torch"] == torch.__version__


def test_extra_settings_that_json_cannot_hold_are_refused_before_anything_is_written(path: Path) -> None:
    with pytest.raises(CheckpointError, match="plain JSON"):
        save(small(), path, extra={"x": object()})
    assert not path.exists()


def test_saving_leaves_one_file_and_replaces_the_old_one(path: Path) -> None:
    save(small(), path)
    other = build("digits-cnn", "digits", seed=9)
    save(other, path)
    assert os.listdir(path.parent) == [path.name]
    assert fingerprint(load(path)) == fingerprint(other)


def test_the_same_model_gives_the_same_bytes(path: Path, tmp_path: Path) -> None:
    save(small(), path)
    save(small(), tmp_path / "twin.safetensors")
    assert path.read_bytes() == (tmp_path / "twin.safetensors").read_bytes()


# Modules of one's own


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(3, 4)
        self.fc2 = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc2(F.relu(self.fc1(x)))
        return y


def test_a_module_of_ones_own_is_filled_strictly(path: Path) -> None:
    model, target = Own(), Own()
    save(model, path)
    assert load(path, into=target) is target
    assert fingerprint(target) == fingerprint(model)
    with pytest.raises(CheckpointError, match=r"without its input_shape\); load it with lipgraft.load\(path, into"):
        load(path)
    with pytest.raises(CheckpointError, match=r"does not fit Linear: it lacks 'bias' and it brings 'fc1\.bias'"):
        load(path, into=nn.Linear(3, 4))


def test_a_foreign_safetensors_file_fills_a_module_of_ones_own(path: Path) -> None:
    model, target = Own(), Own()
    safetensors.torch.save_file(model.state_dict(), path)
    load(path, into=target)
    assert fingerprint(target) == fingerprint(model)


@pytest.mark.parametrize("length", [0x280, 0x380, 0x480, 0x580])
def test_a_header_whose_length_looks_like_the_start_of_a_pickle_is_read(length: int, path: Path) -> None:
    model, target = Own(), Own()
    content = safetensors.torch.save(model.state_dict())
    text = content[8 : 8 + int.from_bytes(content[:8], "little")]
    path.write_bytes(length.to_bytes(8, "little") + text.ljust(length) + content[8 + len(text) :])
    assert path.read_bytes()[0] == pickle.dumps(0, protocol=2)[0]
    load(path, into=target)
    assert fingerprint(target) == fingerprint(model)


def test_another_dtype_is_refused_not_rounded(path: Path) -> None:
    save(Own().double(), path)
    with pytest.raises(CheckpointError, match=r"torch\.float64 .* where torch\.float32"):
        load(path, into=Own())


def test_grafts_are_put_into_a_copy_of_a_module_of_ones_own(path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    mask = torch.tensor([True, False, True, False])
    save(apply(model, {"1": mask}, slope=0.7), path)
    plain = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    again = load(path, into=plain)
    assert again is not plain
    assert isinstance(plain[1], nn.ReLU)
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(again(x), apply(model, {"1": mask}, slope=0.7)(x))
    assert load(path, into=again) is again  # grafted already: filled in place


def test_grafts_of_a_functional_activation_come_back_too(path: Path) -> None:
    model = Own()
    saved = apply(model, {"relu": torch.tensor([True, False, True, False])}, slope=0.7)
    save(saved, path)
    again = load(path, into=Own())
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(again(x), saved(x))


# Wrong files


def header_of(content: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def with_metadata(content: bytes, **changes: Any) -> bytes:
    header, data = header_of(content)
    header["__metadata__"]["lipgraft"] = json.dumps(json.loads(header["__metadata__"]["lipgraft"]) | changes)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def spec(**changes: Any) -> dict[str, Any]:
    base = {"name": "digits-cnn", "dataset": "digits", "activation": "relu", "batchnorm": False}
    return {**base, "input_shape": [1, 8, 8], "classes": 10, **changes}


def as_torch_save_does(tmp_path: Path) -> bytes:
    file = tmp_path / "model.pt"
    torch.save(small().state_dict(), file)
    return file.read_bytes()


WRONG: dict[str, tuple[Callable[[bytes, Path], bytes], str]] = {
    "truncated data": (lambda c, _: c[:-100], "is truncated: .* bytes where .* are expected"),
    "truncated header": (lambda c, _: c[:50], "is truncated: its header"),
    "too long": (lambda c, _: c + b"x", "is damaged"),
    "empty": (lambda c, _: b"", "is empty"),
    "text": (lambda c, _: b"this is a text file, and a long one at that", "is not a safetensors file"),
    "few bytes": (lambda c, _: b"abc", "is not a safetensors file"),
    "broken JSON": (lambda c, _: c[:9] + b"?" + c[10:], "has a header that cannot be understood"),
    "torch.save": (lambda c, tmp: as_torch_save_does(tmp), "is a pickle, which can run code"),
    "raw pickle": (lambda c, _: pickle.dumps({"a": 1}), "is a pickle, which can run code"),
    "foreign": (lambda c, _: safetensors.torch.save({"a": torch.ones(2)}), "that lipgraft did not write"),
    "newer": (lambda c, _: with_metadata(c, format_version=99), "has format version 99"),
    "bad metadata": (lambda c, _: c.replace(b'{\\"format', b'?\\"format'), "has damaged metadata"),
    "no spec key": (lambda c, _: with_metadata(c, spec={"nam": "cnn-b"}), "unknown setting 'nam'"),
    "unknown architecture": (lambda c, _: with_metadata(c, spec=spec(name="vgg")), "unknown architecture 'vgg'"),
    "unknown data set": (lambda c, _: with_metadata(c, spec=spec(dataset="x")), "unknown data set 'x'"),
    "unknown activation": (lambda c, _: with_metadata(c, spec=spec(activation="x")), "unknown activation 'x'"),
    "inconsistent": (lambda c, _: with_metadata(c, spec=spec(classes=7)), "7 classes, but digits has"),
    "another architecture": (lambda c, _: with_metadata(c, spec=spec(name="cnn-b")), "does not fit cnn-b"),
    "other shapes": (
        lambda c, _: with_metadata(c, spec=spec(dataset="mnist", input_shape=[1, 28, 28])),
        r"fc1.weight is torch.float32 \(100, 512\) where torch.float32 \(100, 6272\)",
    ),
    "masks missing": (lambda c, _: with_metadata(c, grafted=["act1"]), "does not hold the masks"),
}


@pytest.mark.parametrize("case", WRONG)
def test_every_wrong_file_has_its_own_one_line_error(case: str, path: Path, tmp_path: Path) -> None:
    damage, words = WRONG[case]
    save(small(), path)
    path.write_bytes(damage(path.read_bytes(), tmp_path))
    with pytest.raises(CheckpointError, match=words) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("cut", [1, 7, 8, 9, 100, 1000, 5000, 50_000])
def test_a_file_cut_anywhere_never_loads(cut: int, path: Path) -> None:
    save(small(), path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CheckpointError):
        load(path)


def test_a_checkpoint_without_its_suffix_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "net-2.5.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"did you mean .*net-2\.5\.safetensors\?"):
        load(tmp_path / "net-2.5")


def test_a_missing_file_and_a_directory_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        load(tmp_path / "none.safetensors")
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        load(tmp_path / "none.onnx")
    with pytest.raises(CheckpointError, match="is a directory"):
        load(tmp_path)
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        read_metadata(tmp_path / "none.safetensors")


def test_a_mask_of_another_shape_does_not_fit(path: Path, generator: torch.Generator) -> None:
    model = grafted(generator)
    tensors = model.state_dict() | {f"act3.{key}": model.state_dict()[f"act3.{key}"][:50] for key in ("mask", "gamma")}
    save(model, path)
    metadata, _ = header_of(path.read_bytes())
    path.write_bytes(to_bytes(tensors, metadata["__metadata__"]))
    with pytest.raises(CheckpointError, match="grafts that do not fit the network"):
        load(path)


def test_a_pickle_is_not_run(path: Path, tmp_path: Path) -> None:
    class Malicious:
        def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
            return os.system, (f"touch {tmp_path / 'it-ran'}",)

    path.write_bytes(pickle.dumps(Malicious()))
    with pytest.raises(CheckpointError, match="is a pickle"):
        load(path)
    assert not (tmp_path / "it-ran").exists()
