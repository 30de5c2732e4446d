"""Training: objectives and regularisers by name, one loop for pre-training and fine-tuning, and its measures."""

from lipgraft.train import objectives, regularisers
from lipgraft.train.evaluate import RobustAccuracy, accuracy, robust_accuracy
from lipgraft.train.loop import TrainResult, train
from lipgraft.train.registry import OBJECTIVES, REGULARISERS
from lipgraft.train.schedule import SCHEDULES
from lipgraft.train.settings import PRESETS, TrainSettings, preset

__all__ = [
    "OBJECTIVES",
    "PRESETS",
    "REGULARISERS",
    "SCHEDULES",
    "RobustAccuracy",
    "TrainResult",
    "TrainSettings",
    "accuracy",
    "objectives",
    "preset",
    "regularisers",
    "robust_accuracy",
    "train",
]
