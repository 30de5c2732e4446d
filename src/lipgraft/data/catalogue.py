"""What is known of each data set before a file is opened: shapes, splits, normalisation, files, published figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lipgraft.errors import DataError, unknown_name

Augment = Literal["none", "crop-flip"]


@dataclass(frozen=True)
class Remote:
    """A file to download: its address, its MD5 checksum, and where under the data root it goes.

    An archive is unpacked in the data root.
    """

    url: str
    md5: str
    path: str
    archive: bool = False


@dataclass(frozen=True)
class Published:
    """A correct copy: images per class, and the mean of each channel of the training images in [0, 1]."""

    train: tuple[int, ...]
    test: tuple[int, ...]
    mean: tuple[float, ...]


@dataclass(frozen=True)
class Entry:
    """One data set. input_shape is (C, H, W); mean and std are those of the `Normalise` layer, per channel.

    files: the paths under the data root that the reader opens (idx files may also be gzipped).
    val_size: how many of the last training images are held out for validation.
    """

    name: str
    input_shape: tuple[int, int, int]
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: Augment
    val_size: int
    files: tuple[str, ...]
    remotes: tuple[Remote, ...]
    published: Published
    names: tuple[str, ...] = ()


DIGITS = tuple("0123456789")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)

IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def _idx_remotes(base: str, folder: str, md5s: tuple[str, str, str, str]) -> tuple[Remote, ...]:
    return tuple(Remote(f"{base}/{f}.gz", m, f"{folder}/{f}.gz") for f, m in zip(IDX, md5s, strict=True))


_ENTRIES = (
    Entry(
        name="digits",
        input_shape=(1, 8, 8),
        classes=10,
        mean=(0.0,),
        std=(1.0,),
        augment="none",
        val_size=144,
        files=(),
        remotes=(),
        published=Published(  # of the fixed split that the reader makes; scikit-learn publishes only the sum of both
            train=(147, 147, 138, 150, 137, 153, 141, 139, 146, 139),
            test=(31, 35, 39, 33, 44, 29, 40, 40, 28, 41),
            mean=(0.3054,),
        ),
        names=DIGITS,
    ),
    Entry(
        name="mnist",
        input_shape=(1, 28, 28),
        classes=10,
        mean=(0.0,),
        std=(1.0,),
        augment="none",
        val_size=6000,
        files=tuple(f"MNIST/raw/{f}" for f in IDX),
        remotes=_idx_remotes(
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            "MNIST/raw",
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
        ),
        published=Published(
            train=(5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
            test=(980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
            mean=(0.1307,),
        ),
        names=DIGITS,
    ),
    Entry(
        name="fashion-mnist",
        input_shape=(1, 28, 28),
        classes=10,
        mean=(0.0,),
        std=(1.0,),
        augment="none",
        val_size=6000,
        files=tuple(f"FashionMNIST/raw/{f}" for f in IDX),
        remotes=_idx_remotes(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            "FashionMNIST/raw",
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
        ),
        published=Published(train=(6000,) * 10, test=(1000,) * 10, mean=(0.2860,)),
        names=FASHION,
    ),
    Entry(
        name="svhn",
        input_shape=(3, 32, 32),
        classes=10,
        mean=(0.4377, 0.4438, 0.4728),
        std=(0.1201, 0.1231, 0.1052),
        augment="none",
        val_size=5000,
        files=("train_32x32.mat", "test_32x32.mat"),
        remotes=(
            Remote(
                "http://ufldl.stanford.edu/housenumbers/train_32x32.mat",
                "e26dedcc434d2e4c54c9b2d4a06d8373",
                "train_32x32.mat",
            ),
            Remote(
                "http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
                "eb5a983be6a315427106f1b164d9cef3",
                "test_32x32.mat",
            ),
        ),
        published=Published(
            train=(4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659),
            test=(1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595),
            mean=(0.4377, 0.4438, 0.4728),
        ),
        names=DIGITS,
    ),
    Entry(
        name="cifar10",
        input_shape=(3, 32, 32),
        classes=10,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
        augment="crop-flip",
        val_size=5000,
        files=(*(f"cifar-10-batches-py/data_batch_{i}" for i in range(1, 6)), "cifar-10-batches-py/test_batch"),
        remotes=(
            Remote(
                "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
                "c58f30108f718f92721af3b95e74349a",
                "cifar-10-python.tar.gz",
                archive=True,
            ),
        ),
        published=Published(train=(5000,) * 10, test=(1000,) * 10, mean=(0.4914, 0.4822, 0.4465)),
        names=CIFAR10,
    ),
    Entry(
        name="cifar100",
        input_shape=(3, 32, 32),
        classes=100,
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        augment="crop-flip",
        val_size=5000,
        files=tuple(f"cifar-100-python/{f}" for f in ("train", "test", "meta")),
        remotes=(
            Remote(
                "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
                "eb9058c3a382ffc7106e4002c42a8d85",
                "cifar-100-python.tar.gz",
                archive=True,
            ),
        ),
        published=Published(train=(500,) * 100, test=(100,) * 100, mean=(0.5071, 0.4865, 0.4409)),
        # The names of the hundred classes are in the file `meta`.
    ),
)

CATALOGUE: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}


def entry(name: str) -> Entry:
    """The entry of a data set; an unknown name is a DataError that lists the known ones."""
    if name not in CATALOGUE:
        raise DataError(unknown_name("data set", name, list(CATALOGUE)))
    return CATALOGUE[name]
