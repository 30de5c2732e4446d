"""Grafting: score the neurons, choose which become lines, and replace them."""

from lipgraft.graft.activation import GraftedActivation
from lipgraft.graft.apply import apply
from lipgraft.graft.calibration import calibration_set, calibration_size
from lipgraft.graft.criteria import CRITERIA
from lipgraft.graft.lines import LINES, Line, check_lines, chosen_lines, fit_lines
from lipgraft.graft.score import score
from lipgraft.graft.scores.table import LayerScores, Scores
from lipgraft.graft.select import check_selection, select
from lipgraft.graft.summary import Overlap, Summary, masks_of, overlap, summarise

__all__ = [
    "CRITERIA",
    "LINES",
    "GraftedActivation",
    "LayerScores",
    "Line",
    "Overlap",
    "Scores",
    "Summary",
    "apply",
    "calibration_set",
    "calibration_size",
    "check_lines",
    "check_selection",
    "chosen_lines",
    "fit_lines",
    "masks_of",
    "overlap",
    "score",
    "select",
    "summarise",
]
