"""lipgraft.data.load on tiny files in torchvision's layout: what was written comes back; damage is reported."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lipgraft.data import load
from lipgraft.data.catalogue import CATALOGUE, IDX
from lipgraft.data.readers import digits
from lipgraft.data.readers.idx import read_idx
from lipgraft.data.restricted_pickle import load_arrays
from lipgraft.errors import DataError

Pixels = NDArray[np.uint8]


def pixels(count: int, *shape: int, seed: int) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def idx_bytes(array: Pixels) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">i4").tobytes() + array.tobytes()


def write_idx_set(folder: Path, *, compress: bool = False) -> tuple[Pixels, Pixels]:
    """Six training and four test images with the labels 0, 1, 2, ..."""
    folder.mkdir(parents=True)
    train, test = pixels(6, 28, 28, seed=0), pixels(4, 28, 28, seed=1)
    arrays = (train, np.arange(6, dtype=np.uint8), test, np.arange(4, dtype=np.uint8))
    for file, array in zip(IDX, arrays, strict=True):
        content = idx_bytes(array)
        path = folder / (f"{file}.gz" if compress else file)
        path.write_bytes(gzip.compress(content) if compress else content)
    return train, test


def planar(x: Pixels) -> Pixels:
    return x.transpose(0, 3, 1, 2).reshape(len(x), -1)


def write_cifar10(root: Path, dump: Callable[[dict[str, Any]], bytes] = pickle.dumps) -> tuple[Pixels, Pixels]:
    """Two images per batch, labelled 2i and 2i + 1 in batch i."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    train, test = pixels(10, 32, 32, 3, seed=2), pixels(2, 32, 32, 3, seed=3)
    for i in range(5):
        rows = slice(2 * i, 2 * i + 2)
        (folder / f"data_batch_{i + 1}").write_bytes(dump({"data": planar(train[rows]), "labels": [2 * i, 2 * i + 1]}))
    (folder / "test_batch").write_bytes(dump({"data": planar(test), "labels": [9, 0]}))
    return train, test


def write_svhn(root: Path) -> tuple[Pixels, Pixels]:
    from scipy.io import savemat

    train, test = pixels(10, 32, 32, 3, seed=4), pixels(3, 32, 32, 3, seed=5)
    for file, x in (("train", train), ("test", test)):
        y = np.arange(1, len(x) + 1, dtype=np.uint8)[:, None]
        savemat(root / f"{file}_32x32.mat", {"X": x.transpose(1, 2, 3, 0), "y": y}, do_compression=True)
    return train, test


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_idx_files_plain_and_gzipped_come_back_as_written(root: Path, name: str, folder: str, compress: bool) -> None:
    train, test = write_idx_set(root / folder / "raw", compress=compress)
    data = load(name, root)
    assert torch.equal(data.x_train, torch.from_numpy(train)[..., None])
    assert torch.equal(data.x_test, torch.from_numpy(test)[..., None])
    assert data.y_train.tolist() == list(range(6))
    assert data.y_test.tolist() == list(range(4))
    assert data.input_shape == (1, 28, 28)
    assert (data.mean, data.std, data.augment) == ((0.0,), (1.0,), "none")


def as_python_2_did(content: dict[str, Any]) -> bytes:
    """The official files: protocol 2 with bytes for text."""
    return pickle.dumps({key.encode(): value for key, value in content.items()}, protocol=2)


@pytest.mark.parametrize(
    "dump",
    [pickle.dumps, as_python_2_did, lambda c: pickle.dumps(c, protocol=5)],
    ids=["default", "python 2", "protocol 5"],
)
def test_cifar10_batches_come_back_as_written(root: Path, dump: Callable[[dict[str, Any]], bytes]) -> None:
    train, test = write_cifar10(root, dump)
    data = load("cifar10", root)
    assert torch.equal(data.x_train, torch.from_numpy(train))
    assert torch.equal(data.x_test, torch.from_numpy(test))
    assert data.y_train.tolist() == list(range(10))
    assert data.y_test.tolist() == [9, 0]
    assert data.classes[0] == "airplane"
    assert data.augment == "crop-flip"


def test_numpy_1_names_in_a_pickle_are_understood(root: Path) -> None:
    train, _ = write_cifar10(root, lambda c: pickle.dumps(c, protocol=2).replace(b"numpy._core", b"numpy.core"))
    assert b"cnumpy.core.multiarray\n" in (root / "cifar-10-batches-py" / "test_batch").read_bytes()
    assert torch.equal(load("cifar10", root).x_train, torch.from_numpy(train))


def test_cifar100_has_the_fine_labels_and_the_names_of_the_classes(root: Path) -> None:
    folder = root / "cifar-100-python"
    folder.mkdir()
    train, test = pixels(3, 32, 32, 3, seed=6), pixels(2, 32, 32, 3, seed=7)
    names = [f"class {i}" for i in range(100)]
    batches = {"train": (train, [0, 99, 50]), "test": (test, [7, 8])}
    for file, (x, y) in batches.items():
        (folder / file).write_bytes(pickle.dumps({"data": planar(x), "fine_labels": y, "coarse_labels": [0] * len(y)}))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": names}))
    data = load("cifar100", root)
    assert torch.equal(data.x_train, torch.from_numpy(train))
    assert data.y_train.tolist() == [0, 99, 50]
    assert data.y_test.tolist() == [7, 8]
    assert data.classes == tuple(names)


def test_svhn_calls_the_digit_10_zero(root: Path) -> None:
    train, test = write_svhn(root)
    data = load("svhn", root)
    assert torch.equal(data.x_train, torch.from_numpy(train))
    assert torch.equal(data.x_test, torch.from_numpy(test))
    assert data.y_train.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]


def test_digits_are_split_the_same_way_every_time_and_no_image_is_lost() -> None:
    from sklearn.datasets import load_digits

    first, second = load("digits"), load("digits")
    assert torch.equal(first.x_train, second.x_train)
    assert torch.equal(first.y_test, second.y_test)
    assert (len(first.x_train), len(first.x_test)) == (1437, 360)
    together = torch.cat([first.x_train, first.x_test]).flatten(1).double() * (16 / 255)
    original = torch.from_numpy(load_digits().data)

    def rows(x: torch.Tensor) -> list[tuple[int, ...]]:
        return sorted(tuple(r) for r in x.round().int().tolist())

    assert rows(together) == rows(original)


@pytest.mark.long
def test_digits_come_without_importing_scikit_learn_which_would_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys; from lipgraft import data; data.load('digits'); print('sklearn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    ours = digits._raw()
    monkeypatch.setattr(digits, "find_spec", lambda name: None)
    for one, other in zip(ours, digits._raw(), strict=True):
        assert np.array_equal(one, other)


def test_the_root_is_the_argument_else_the_environment(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_svhn(root)
    monkeypatch.setenv("LIPGRAFT_DATA", str(root))
    assert len(load("svhn").x_train) == 10
    with pytest.raises(DataError, match="not complete"):
        load("svhn", root / "elsewhere")


@pytest.mark.parametrize("name", sorted(set(CATALOGUE) - {"digits"}))
def test_missing_files_are_named_with_the_place_to_put_them(root: Path, name: str) -> None:
    with pytest.raises(DataError) as caught:
        load(name, root)
    message = str(caught.value)
    assert CATALOGUE[name].files[0] in message
    assert str(root) in message
    assert "--data-root" in message
    assert "LIPGRAFT_DATA" in message
    assert "\n" not in message


def test_an_unknown_data_set_is_answered_with_the_known_ones() -> None:
    with pytest.raises(DataError, match=r"unknown data set 'cifar-10'\. Did you mean 'cifar10'\? Known: .*svhn"):
        load("cifar-10")


class Malicious:
    """A pickle of this runs a shell command when read by an ordinary unpickler."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.target}",)


def test_a_malicious_pickle_is_refused_and_not_run(root: Path, tmp_path: Path) -> None:
    write_cifar10(root)
    evidence = tmp_path / "it-ran"
    payload = pickle.dumps({"data": Malicious(evidence), "labels": []})
    pickle.loads(payload)
    assert evidence.exists()  # an ordinary reader does run it
    evidence.unlink()
    (root / "cifar-10-batches-py" / "data_batch_3").write_bytes(payload)
    with pytest.raises(DataError, match=r"names .*system, which no CIFAR file does"):
        load("cifar10", root)
    assert not evidence.exists()


@pytest.mark.parametrize(
    "payload",
    [
        b"cbuiltins\neval\n(S'1+1'\ntR.",
        b"cbuiltins\ngetattr\n.",
        b"\x80\x04\x8c\x08builtins\x8c\x04exec\x93.",
        b"cnumpy\nload\n.",
        b"cnumpy\nndarray.__class__\n.",
        b"c_codecs\ndecode\n.",
    ],
)
def test_every_name_outside_plain_arrays_is_refused(root: Path, payload: bytes) -> None:
    write_cifar10(root)
    (root / "cifar-10-batches-py" / "test_batch").write_bytes(payload)
    with pytest.raises(DataError, match="which no CIFAR file does"):
        load("cifar10", root)


def test_only_latin1_is_encoded_from_a_pickle(root: Path) -> None:
    write_cifar10(root)
    (root / "cifar-10-batches-py" / "test_batch").write_bytes(b"c_codecs\nencode\n(S'x'\nS'rot13'\ntR.")
    with pytest.raises(DataError, match="damaged"):
        load("cifar10", root)


def truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


@pytest.mark.parametrize(
    "damage",
    [truncated, lambda _: b"", lambda _: b"not a pickle", lambda _: pickle.dumps([1, 2]), lambda _: pickle.dumps({})],
    ids=["truncated", "empty", "text", "a list", "no data"],
)
def test_a_damaged_cifar_file_is_a_data_error_that_names_it(root: Path, damage: Callable[[bytes], bytes]) -> None:
    write_cifar10(root)
    file = root / "cifar-10-batches-py" / "data_batch_2"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(DataError, match="data_batch_2"):
        load("cifar10", root)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"data": np.zeros((2, 3072), np.float32), "labels": [0, 1]}, "float32"),
        ({"data": np.zeros((2, 3000), np.uint8), "labels": [0, 1]}, "rows of 3072"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [0]}, "2 images and labels of shape"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [0, 10]}, "labels outside 0..9"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": ["a", "b"]}, "labels of shape"),
    ],
)
def test_arrays_of_the_wrong_kind_are_refused(root: Path, content: dict[str, Any], words: str) -> None:
    write_cifar10(root)
    (root / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps(content))
    with pytest.raises(DataError, match=words):
        load("cifar10", root)


@pytest.mark.parametrize(
    "damage",
    [truncated, lambda c: c + b"x", lambda _: b"", lambda c: b"\0\0\x0d" + c[3:], lambda c: c[:6]],
    ids=["truncated", "longer", "empty", "of floats", "half a header"],
)
def test_a_damaged_idx_file_is_a_data_error_that_names_it(root: Path, damage: Callable[[bytes], bytes]) -> None:
    write_idx_set(root / "MNIST" / "raw")
    file = root / "MNIST" / "raw" / IDX[2]
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(DataError, match=IDX[2]):
        load("mnist", root)


def test_a_truncated_gzip_file_is_a_data_error(root: Path) -> None:
    write_idx_set(root / "MNIST" / "raw", compress=True)
    file = root / "MNIST" / "raw" / f"{IDX[0]}.gz"
    file.write_bytes(truncated(file.read_bytes()))
    with pytest.raises(DataError, match="cannot be read"):
        load("mnist", root)


@pytest.mark.parametrize("damage", [truncated, lambda _: b"", lambda _: b"text" * 100], ids=["half", "empty", "text"])
def test_a_damaged_mat_file_is_a_data_error_that_names_it(root: Path, damage: Callable[[bytes], bytes]) -> None:
    write_svhn(root)
    file = root / "test_32x32.mat"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(DataError, match=r"test_32x32\.mat"):
        load("svhn", root)


def test_a_gzip_bomb_is_refused_without_unpacking_it(tmp_path: Path) -> None:
    """Ten images are promised, and 64 MiB of zeros follow."""
    file = tmp_path / "bomb.gz"
    file.write_bytes(gzip.compress(b"\0\0\x08\x03" + struct.pack(">III", 10, 28, 28) + bytes(2**26), 1))
    tracemalloc.start()
    with pytest.raises(DataError, match="more than the bytes of values"):
        read_idx(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**23


def test_an_idx_file_that_promises_more_than_any_data_set_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "huge"
    file.write_bytes(b"\0\0\x08\x03" + struct.pack(">III", 2**31, 2**31, 2**31))
    with pytest.raises(DataError, match="more than any data set"):
        read_idx(file)


def test_a_pickle_that_asks_for_more_memory_than_there_is_is_a_data_error(tmp_path: Path) -> None:
    file = tmp_path / "batch"
    file.write_bytes(b"cnumpy\nndarray\n((L144115188075855872L\nttR.")  # numpy.ndarray((2 ** 57,))
    with pytest.raises(DataError, match="batch"):
        load_arrays(file)
