"""Grafting: score the neurons, choose which become lines, and replace them."""

from lipgraft.grafting.activation import LINES, GraftedActivation, Line, check_lines, chosen_lines, fit_lines
from lipgraft.grafting.apply import apply
from lipgraft.grafting.criteria import CRITERIA
from lipgraft.grafting.scores import LayerScores, Scores, score
from lipgraft.grafting.sequence import Plan, calibration_set, calibration_size, check_selection, graft, plan, select
from lipgraft.grafting.summary import Overlap, Summary, masks_of, overlap, summarise

__all__ = [
    "CRITERIA",
    "LINES",
    "GraftedActivation",
    "LayerScores",
    "Line",
    "Overlap",
    "Plan",
    "Scores",
    "Summary",
    "apply",
    "calibration_set",
    "calibration_size",
    "check_lines",
    "check_selection",
    "chosen_lines",
    "fit_lines",
    "graft",
    "masks_of",
    "overlap",
    "plan",
    "score",
    "select",
    "summarise",
]
