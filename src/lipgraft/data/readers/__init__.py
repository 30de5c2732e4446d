"""One reader per file format: the files under the data root -> arrays. `READERS` maps a data set to its reader."""

from __future__ import annotations

from lipgraft.data.readers.arrays import READERS, Arrays
from lipgraft.data.readers.cifar import read_cifar10, read_cifar100
from lipgraft.data.readers.digits import read_digits
from lipgraft.data.readers.idx import read_idx_set
from lipgraft.data.readers.svhn import read_svhn

__all__ = ["READERS", "Arrays", "read_cifar10", "read_cifar100", "read_digits", "read_idx_set", "read_svhn"]
