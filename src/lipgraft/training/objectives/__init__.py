"""Objectives, each with its own settings; a row and a base class for each here."""

from __future__ import annotations

from dataclasses import dataclass

from lipgraft.errors import SettingsError, unknown_name
from lipgraft.training.objectives.adversarial import fat, pgd, standard
from lipgraft.training.objectives.expressive import ExpressiveSettings, cc_ibp, exp_ibp, mtl_ibp
from lipgraft.training.objectives.fgsm_mep import MepSettings, fgsm_mep, reset_sometimes
from lipgraft.training.objectives.fgsm_pco import fgsm_pco, reset_once
from lipgraft.training.objectives.ibp import crown_ibp, ibp
from lipgraft.training.objectives.sabr import SabrSettings, sabr
from lipgraft.training.objectives.trades import TradesSettings, trades
from lipgraft.training.task import Objective

OBJECTIVES: dict[str, Objective] = {
    "standard": Objective(standard),
    "fat": Objective(fat),
    "pgd": Objective(pgd),
    "trades": Objective(trades),
    "fgsm-mep": Objective(fgsm_mep, memory=("delta", "momentum"), begin_epoch=reset_sometimes),
    "fgsm-pco": Objective(fgsm_pco, memory=("delta",), begin_epoch=reset_once),
    "ibp": Objective(ibp, bounds=True),
    "crown-ibp": Objective(crown_ibp, bounds=True),
    "mtl-ibp": Objective(mtl_ibp, bounds=True),
    "cc-ibp": Objective(cc_ibp, bounds=True),
    "exp-ibp": Objective(exp_ibp, bounds=True),
    "sabr": Objective(sabr, bounds=True),
}


@dataclass(frozen=True)
class ObjectiveSettings(TradesSettings, MepSettings, ExpressiveSettings, SabrSettings):
    """The settings of all objectives."""


def objective_named(name: str) -> Objective:
    if name not in OBJECTIVES:
        raise SettingsError(unknown_name("objective", name, list(OBJECTIVES)))
    return OBJECTIVES[name]


__all__ = ["OBJECTIVES", "ObjectiveSettings", "objective_named"]
