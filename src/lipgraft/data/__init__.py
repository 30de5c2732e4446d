"""Data sets by name -> tensors that live on the device; augmentation."""

from __future__ import annotations

from lipgraft.data import augment
from lipgraft.data.catalogue import CATALOGUE, Entry, entry
from lipgraft.data.dataset import Dataset, images, load
from lipgraft.data.files import data_root, missing_files
from lipgraft.data.integrity import CheckReport, check

__all__ = [
    "CATALOGUE",
    "CheckReport",
    "Dataset",
    "Entry",
    "augment",
    "check",
    "data_root",
    "entry",
    "images",
    "load",
    "missing_files",
]
