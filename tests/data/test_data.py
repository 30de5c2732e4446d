"""lipgraft.data: splits, pixels to floats, checks against published figures, downloads, augmentation."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lipgraft.data import CATALOGUE, Dataset, check, entry, images, load
from lipgraft.data.catalogue import Remote
from lipgraft.data.dataset import AUGMENT, crop_flip
from lipgraft.data.files import ensure
from lipgraft.data.integrity import compare, describe
from lipgraft.errors import DataError


def tiny(count: int = 8, val_size: int = 2) -> Dataset:
    x = torch.arange(count * 4 * 5 * 3, dtype=torch.int64).remainder(256).to(torch.uint8).reshape(count, 4, 5, 3)
    y = torch.arange(count).remainder(2)
    return Dataset("tiny", x, y, x[:2], y[:2], (0.0,) * 3, (1.0,) * 3, ("a", "b"), "none", val_size)


# Splits and pixels


@pytest.mark.parametrize(
    ("name", "train", "val"),
    [("cifar10", 45000, 5000), ("cifar100", 45000, 5000), ("mnist", 54000, 6000), ("svhn", 68257, 5000)],
)
def test_the_last_training_images_are_held_out_as_many_as_the_reference_says(name: str, train: int, val: int) -> None:
    facts = entry(name)
    assert facts.val_size == val
    assert sum(facts.published.train) - facts.val_size == train


def test_a_split_is_the_front_and_the_tail() -> None:
    train, val = tiny().split()
    assert train.tolist() == [0, 1, 2, 3, 4, 5]
    assert val.tolist() == [6, 7]


def test_held_out_images_take_the_place_of_the_test_images_and_nothing_else_changes() -> None:
    data = tiny()
    held = data.held_out()
    assert torch.equal(held.x_test, data.x_train[6:])
    assert torch.equal(held.y_test, data.y_train[6:])
    assert vars(held) | {"x_test": data.x_test, "y_test": data.y_test} == vars(data)


def test_another_number_of_images_may_be_held_out_also_none() -> None:
    data = tiny()
    assert [len(part) for part in data.holding_out(1).split()] == [7, 1]
    assert [len(part) for part in data.holding_out(0).split()] == [8, 0]
    assert data.holding_out(None) is data
    with pytest.raises(DataError, match="held out, so there is nothing to measure on"):
        data.holding_out(0).held_out()


def test_without_training_images_the_error_says_what_to_add() -> None:
    data = tiny()
    with pytest.raises(DataError, match=r"has no training images.*add x_train and y_train"):
        dataclasses.replace(data, x_train=data.x_train[:0], y_train=data.y_train[:0]).split()


def test_too_few_images_to_split_is_an_error() -> None:
    with pytest.raises(DataError, match="too few to hold out 8"):
        tiny(val_size=8).split()


def test_images_are_channels_first_in_0_1() -> None:
    data = tiny()
    x = images(data.x_train)
    assert x.shape == (8, *data.input_shape) == (8, 3, 4, 5)
    assert x.dtype == torch.float32
    assert x.is_contiguous()
    for c in range(3):
        assert torch.equal(x[:, c], data.x_train[..., c].float() / 255)


def test_images_refuses_floats_which_would_be_scaled_twice() -> None:
    with pytest.raises(DataError, match="uint8"):
        images(torch.zeros(1, 4, 5, 3))


def test_to_moves_every_tensor() -> None:
    moved = tiny().to("meta")
    assert {t.device.type for t in (moved.x_train, moved.y_train, moved.x_test, moved.y_test)} == {"meta"}


def test_normalisation_and_augmentation_are_those_of_the_reference() -> None:
    assert (entry("cifar10").mean, entry("cifar10").std) == ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
    assert (entry("svhn").mean, entry("svhn").std) == ((0.4377, 0.4438, 0.4728), (0.1201, 0.1231, 0.1052))
    assert (entry("mnist").mean, entry("mnist").std) == ((0.0,), (1.0,))
    assert {name for name, facts in CATALOGUE.items() if facts.augment == "crop-flip"} == {"cifar10", "cifar100"}


@pytest.mark.parametrize("facts", CATALOGUE.values(), ids=lambda e: e.name)
def test_the_catalogue_agrees_with_itself(facts: Any) -> None:
    channels = facts.input_shape[0]
    assert len(facts.mean) == len(facts.std) == len(facts.published.mean) == channels
    assert len(facts.published.train) == len(facts.published.test) == facts.classes
    assert len(facts.names) in (0, facts.classes)
    assert all(len(remote.md5) == 32 for remote in facts.remotes)


# Checks


def test_the_digits_pass_the_check() -> None:
    report = check("digits")
    assert sum(report.train) == 1437
    assert sum(report.test) == 360


def test_the_measured_moments_are_those_of_the_pixels() -> None:
    data = tiny()
    report = describe(data)
    x = images(data.x_train).double()
    assert report.mean == pytest.approx(x.mean((0, 2, 3)).tolist())
    assert report.std == pytest.approx(x.std((0, 2, 3), correction=0).tolist())
    assert report.train == (4, 4)


def test_each_difference_from_the_published_figures_is_named() -> None:
    data = load("digits")
    published = entry("digits").published
    fewer = dataclasses.replace(data, x_train=data.x_train[1:], y_train=data.y_train[1:])
    with pytest.raises(DataError, match="1436 training images where 1437 are published"):
        compare(describe(fewer), published)
    labels = data.y_test.clone()
    labels[labels == 3] = 4
    with pytest.raises(DataError, match="0 test images of class 3 where 33 are published"):
        compare(describe(dataclasses.replace(data, y_test=labels)), published)
    with pytest.raises(DataError, match=r"channel means .* where 0\.3054 are published"):
        compare(describe(dataclasses.replace(data, x_train=255 - data.x_train)), published)


# Downloads, from a server on this machine


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a web server and the folder it serves."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(folder))

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}", folder
        http.shutdown()
        thread.join()


def archive_entry(address: str, folder: Path, *, md5: str | None = None) -> Any:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        info = tarfile.TarInfo("set/a")
        info.size = 5
        archive.addfile(info, io.BytesIO(b"hello"))
    content = buffer.getvalue()
    (folder / "set.tar.gz").write_bytes(content)
    remote = Remote(f"{address}/set.tar.gz", md5 or hashlib.md5(content).hexdigest(), "set.tar.gz", archive=True)
    return dataclasses.replace(entry("cifar10"), files=("set/a",), remotes=(remote,))


def test_a_missing_archive_is_downloaded_checked_and_unpacked(
    server: tuple[str, Path], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIPGRAFT_OFFLINE", "0")
    ensure(archive_entry(*server), root)
    assert (root / "set" / "a").read_bytes() == b"hello"


def test_a_download_with_another_checksum_is_refused(
    server: tuple[str, Path], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIPGRAFT_OFFLINE", "0")
    with pytest.raises(DataError, match=r"the wrong checksum\); put set/a there"):
        ensure(archive_entry(*server, md5="0" * 32), root)
    assert not (root / "set").exists()


def test_without_a_network_one_sentence_says_what_to_put_where(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIPGRAFT_OFFLINE", "0")
    nowhere = Remote("http://127.0.0.1:1/a", "0" * 32, "set/a")
    with pytest.raises(DataError, match="ConnectionError while fetching") as caught:
        ensure(dataclasses.replace(entry("svhn"), files=("set/a",), remotes=(nowhere,)), root)
    assert "put set/a there" in str(caught.value)
    assert "\n" not in str(caught.value)


# Augmentation


def every_crop(x: Tensor, pad: int, mode: str = "constant") -> list[Tensor]:
    """All crops of one padded image (C, H, W), mirrored and not."""
    _, h, w = x.shape
    padded = torch.nn.functional.pad(x[None], (pad,) * 4, mode)[0]
    crops = [padded[:, i : i + h, j : j + w] for i in range(2 * pad + 1) for j in range(2 * pad + 1)]
    return crops + [crop.flip(2) for crop in crops]


@pytest.mark.parametrize("edge", [False, True])
def test_every_augmented_image_is_a_crop_of_its_own_and_every_crop_occurs(
    edge: bool, generator: torch.Generator
) -> None:
    x = torch.rand(3, 2, 5, 6, generator=generator)
    many = torch.stack([crop_flip(x, generator, pad=1, edge=edge) for _ in range(300)])
    for i in range(3):
        crops = torch.stack(every_crop(x[i], 1, "replicate" if edge else "constant"))
        equal = (many[:, i, None] == crops[None]).flatten(2).all(2)  # (300, 18)
        assert bool(equal.any(1).all())
        assert bool(equal.any(0).all())


def test_images_of_a_batch_are_moved_independently(generator: torch.Generator) -> None:
    x = torch.rand(1, 3, 32, 32, generator=generator).expand(64, -1, -1, -1)
    assert len(torch.unique(crop_flip(x, generator).flatten(1), dim=0)) > 32


def test_the_same_generator_state_gives_the_same_augmentation() -> None:
    x = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    first, second = (crop_flip(x, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(first, second)


def test_no_augmentation_changes_nothing_and_draws_nothing(generator: torch.Generator) -> None:
    before = generator.get_state()
    x = torch.ones(2, 1, 3, 3)
    assert torch.equal(AUGMENT["none"](x, generator), x)
    assert torch.equal(generator.get_state(), before)


def test_digits_are_read_anew_whoever_has_written_into_them() -> None:
    first = load("digits")
    pixels, labels = first.x_train.clone(), first.y_test.clone()
    first.x_train.zero_()
    first.y_test.zero_()
    again = load("digits")
    assert torch.equal(again.x_train, pixels)
    assert torch.equal(again.y_test, labels)
