"""Data of one's own: .npz files and functions, and what is wrong with them in words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lipgraft.data import check_name, from_arrays, load
from lipgraft.errors import DataError, SettingsError
from lipgraft.models import build, save
from lipgraft.models import load as load_model

X = np.arange(20 * 8 * 6, dtype=np.uint8).reshape(20, 8, 6, 1)
Y = np.arange(20) % 3


def test_an_npz_file_is_a_data_set(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, x_train=X, y_train=Y, x_test=X[:4, ..., 0], y_test=Y[:4], classes=["a", "b", "c"], val_size=5)
    data = load(str(path))
    assert (data.name, data.input_shape, data.classes, data.val_size) == ("mine", (1, 8, 6), ("a", "b", "c"), 5)
    assert torch.equal(data.x_test, torch.from_numpy(X[:4]))
    assert data.y_train.dtype == torch.int64
    assert (data.mean, data.std) == ((0.0,), (1.0,))


def test_floats_that_are_grey_levels_are_taken_without_change() -> None:
    assert torch.equal(from_arrays(X.astype("float32") / 255, Y).x_test, torch.from_numpy(X))


def test_a_network_by_name_for_data_of_ones_own_is_read_back_without_them(tmp_path: Path) -> None:
    data = from_arrays(np.zeros((9, 12, 12, 3), np.uint8), np.arange(9), mean=[0.1, 0.2, 0.3], std=[1, 2, 3])
    model = build("cnn-b", data, seed=0).eval()
    save(model, tmp_path / "net.safetensors")
    x = torch.rand(2, 3, 12, 12)
    torch.testing.assert_close(load_model(tmp_path / "net.safetensors")(x), model(x))
    assert model(x).shape == (2, 9)


def test_a_function_in_a_file_or_a_module_makes_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_arrays.py").write_text(
        "import numpy as np\n\n\ndef both():\n    x = np.zeros((3, 4, 4), np.uint8)\n"
        "    return {'x_test': x, 'y_test': np.array([0, 1, 1])}\n\n\ndef number():\n    return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    for name in ("own_arrays:both", "own_arrays.py:both", f"{tmp_path}/own_arrays.py:both"):
        assert load(name).classes == ("0", "1")
    with pytest.raises(DataError, match=r"must return a lipgraft\.data\.Dataset or a mapping"):
        load("own_arrays:number")
    with pytest.raises(SettingsError, match="no function 'nothing'"):
        load("own_arrays:nothing")
    with pytest.raises(SettingsError, match="no module 'elsewhere'"):
        load("elsewhere:both")
    with pytest.raises(SettingsError, match=r"no file elsewhere\.py"):
        load("elsewhere.py:both")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"x_test": X.transpose(0, 3, 1, 2)}, "channels first"),
        ({"x_test": X.astype("float32") / 256}, "(255 * x).round()"),
        ({"x_test": X.astype("int64")}, "must be uint8 pixels"),
        ({"x_test": X[0, 0]}, "(images, rows, columns, channels)"),
        ({"y_test": Y[:3]}, "a label for every image"),
        ({"y_test": Y - 1}, "classes from 0 on"),
        ({"y_test": Y + 0.5}, "one whole number per image"),
        ({"x_train": X}, "without the other"),
        ({"x_train": X[:, :4], "y_train": Y}, "must be alike"),
        ({"classes": ["a"]}, "names 1 classes"),
        ({"std": [0.0]}, "above 0"),
        ({"mean": [0.0, 1.0]}, "a number per channel"),
        ({"augment": "shake"}, "unknown augmentation"),
        ({"x_test": np.full((20, 8, 6, 1), "a")}, "x_test must be an array of numbers"),
        ({"y_test": np.full(20, "a")}, "y_test must be an array of numbers"),
        ({"y_test": np.full(20, 2**63, np.uint64)}, "classes from 0 on"),
        ({"y_test": np.where(Y == 2, 2**31, Y)}, "number them anew"),
        ({"classes": 10}, "classes must be their names"),
        ({"classes": [["a", "b", "c"]]}, "classes must be their names"),
        ({"mean": "a"}, "mean must be a number per channel"),
        ({"val_size": [1, 2]}, "val_size must be"),
        ({"val_size": 1.5}, "val_size must be"),
        ({"val_size": -1}, "val_size must be"),
        ({"augment": ["none", "none"]}, "unknown augmentation"),
        ({"x_tests": X}, "Did you mean 'x_test'?"),
        ({"y_test": None}, "has no y_test"),
    ],
)
def test_wrong_arrays_are_refused_in_words(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    arrays = {"x_test": X, "y_test": Y, **changes}
    np.savez(tmp_path / "mine.npz", **{key: value for key, value in arrays.items() if value is not None})
    with pytest.raises(DataError, match=re.escape(sentence)):
        load(str(tmp_path / "mine.npz"))


@pytest.mark.parametrize("kind", [">i4", ">i8", "u1", "u2", "u4", "u8", "i2"])
def test_labels_of_every_kind_and_byte_order_are_taken(kind: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x_test=X, y_test=Y.astype(kind))
    assert torch.equal(load(str(tmp_path / "mine.npz")).y_test, torch.from_numpy(Y))


def test_pixels_of_another_byte_order_and_mirrored_ones_are_taken() -> None:
    assert torch.equal(from_arrays((X / 255).astype(">f4"), Y).x_test, torch.from_numpy(X))
    assert torch.equal(from_arrays(X[:, ::-1], Y).x_test, torch.from_numpy(X).flip(1))


def test_a_file_that_is_none_and_a_pickle_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file"):
        load(str(tmp_path / "mine.npz"))
    np.savez(tmp_path / "mine.npz", x_test=np.array([{}], dtype=object), y_test=Y)
    with pytest.raises(DataError, match="plain arrays"):
        load(str(tmp_path / "mine.npz"))
    (tmp_path / "mine.npz").write_bytes(b"nothing")
    with pytest.raises(DataError, match="plain arrays"):
        load(str(tmp_path / "mine.npz"))


def test_an_unknown_name_is_answered_with_the_known_ones_and_with_ones_own() -> None:
    with pytest.raises(DataError, match=r"Did you mean 'mnist'.*Your own: an \.npz file"):
        check_name("mnst")
