"""The paper's networks by name; load and save."""

from __future__ import annotations

# Importing a network's file registers it under its name.
from lipgraft.models import cnn5, cnn_b, conv_big, conv_huge, digits_cnn, resnet4b  # noqa: F401
from lipgraft.models.checkpoint import FORMATS, FileFormat, load, read_metadata, save
from lipgraft.models.classifier import NETWORKS, Classifier, ModelSpec, build
from lipgraft.models.fold import fold_batchnorm
from lipgraft.models.graph_model import GraphModel, graph_model
from lipgraft.models.hashing import fingerprint
from lipgraft.models.layers import ACTIVATIONS, Normalise
from lipgraft.models.own import check_name, fitting, folded, is_own, start
from lipgraft.models.zoo import zoo_card, zoo_checkpoint, zoo_names

__all__ = [
    "ACTIVATIONS",
    "FORMATS",
    "NETWORKS",
    "Classifier",
    "FileFormat",
    "GraphModel",
    "ModelSpec",
    "Normalise",
    "build",
    "check_name",
    "fingerprint",
    "fitting",
    "fold_batchnorm",
    "folded",
    "graph_model",
    "is_own",
    "load",
    "read_metadata",
    "save",
    "start",
    "zoo_card",
    "zoo_checkpoint",
    "zoo_names",
]
