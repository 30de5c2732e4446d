"""Training: objectives and regularisers by name, one loop for pre-training and fine-tuning, and its measures."""

from lipgraft.training.evaluate import RobustAccuracy, accuracy, interval_accuracy, robust_accuracy
from lipgraft.training.loop import TrainResult, train
from lipgraft.training.objectives import OBJECTIVES
from lipgraft.training.regularisers import REGULARISERS
from lipgraft.training.schedule import SCHEDULES
from lipgraft.training.settings import PRESETS, TrainSettings, preset

__all__ = [
    "OBJECTIVES",
    "PRESETS",
    "REGULARISERS",
    "SCHEDULES",
    "RobustAccuracy",
    "TrainResult",
    "TrainSettings",
    "accuracy",
    "interval_accuracy",
    "preset",
    "robust_accuracy",
    "train",
]
