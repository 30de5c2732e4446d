"""Data sets by name -> tensors that live on the device; augmentation."""

from __future__ import annotations

from lipgraft.data.catalogue import CATALOGUE, Entry, entry
from lipgraft.data.dataset import AUGMENT, Dataset, images
from lipgraft.data.files import data_root, missing_files
from lipgraft.data.integrity import CheckReport, check
from lipgraft.data.loading import load
from lipgraft.data.own import check_name, from_arrays, is_own

__all__ = [
    "AUGMENT",
    "CATALOGUE",
    "CheckReport",
    "Dataset",
    "Entry",
    "check",
    "check_name",
    "data_root",
    "entry",
    "from_arrays",
    "images",
    "is_own",
    "load",
    "missing_files",
]
