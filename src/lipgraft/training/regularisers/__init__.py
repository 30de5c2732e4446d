"""One file per regulariser, with its weight and its own settings; a row and a base class for each here."""

from __future__ import annotations

from dataclasses import dataclass

from lipgraft.training.regularisers.grad_align import GradAlignSettings, grad_align
from lipgraft.training.regularisers.ibp_reg import IbpRegSettings, ibp_reg
from lipgraft.training.regularisers.l1 import L1Settings, l1
from lipgraft.training.regularisers.rs import RsSettings, rs
from lipgraft.training.regularisers.slope import SlopeSettings, slope
from lipgraft.training.task import Regulariser

# The loss adds them up in this order. The weight of each is the setting of its name.
REGULARISERS: dict[str, Regulariser] = {
    "grad-align": grad_align,
    "slope": slope,
    "rs": rs,
    "ibp-reg": ibp_reg,
    "l1": l1,
}


@dataclass(frozen=True)
class RegulariserSettings(L1Settings, IbpRegSettings, RsSettings, SlopeSettings, GradAlignSettings):
    """The settings of all regularisers."""

    def weights(self) -> dict[str, float]:
        """The regularisers in use and their weights, by name."""
        weights = {name: float(getattr(self, name.replace("-", "_"))) for name in REGULARISERS}
        return {name: weight for name, weight in weights.items() if weight > 0}


__all__ = ["REGULARISERS", "RegulariserSettings"]
