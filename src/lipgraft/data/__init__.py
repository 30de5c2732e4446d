"""Data sets by name -> tensors that live on the device; augmentation."""

from __future__ import annotations

from lipgraft.data import augment
from lipgraft.data.catalogue import CATALOGUE, Entry, entry
from lipgraft.data.checking import CheckReport, check
from lipgraft.data.dataset import Dataset, images
from lipgraft.data.loading import load
from lipgraft.data.location import data_root, missing_files

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
