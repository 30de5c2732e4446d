"""Grafting: score the neurons, choose which become lines, and replace them."""

from lipgraft.grafting.activation import GraftedActivation
from lipgraft.grafting.apply import apply
from lipgraft.grafting.calibration import calibration_set, calibration_size
from lipgraft.grafting.criteria import CRITERIA
from lipgraft.grafting.lines import LINES, Line, check_lines, chosen_lines, fit_lines
from lipgraft.grafting.score import score
from lipgraft.grafting.scores import LayerScores, Scores
from lipgraft.grafting.select import check_selection, select
from lipgraft.grafting.sequence import Plan, graft, plan
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
