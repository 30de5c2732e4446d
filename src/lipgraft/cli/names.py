"""Names that help texts list.

The registries that they come from stand beside code that needs PyTorch, which help does not wait for;
tests/cli/test_startup.py holds the two against each other.
"""

from __future__ import annotations

ATTACKS = ("apgd-ce", "apgd-dlr", "apgd-targeted", "fgsm", "pgd", "pgd-targeted", "pgd-wide")
CRITERIA = (
    "average-sensitivity",
    "gain-aware",
    "gradient",
    "instability",
    "lg",
    "lowest-weighted-interval",
    "magnitude",
    "random",
    "weighted-interval",
)
NOTIONS = ("interval-jacobian", "jacobian", "output-width", "sampled")
PRESETS = (
    "pretrain",
    "finetune",
    "pretrain-short",
    "finetune-short",
    "ibp",
    "mtl-ibp",
    "mtl-ibp-short",
    "ctbench",
    "sabr",
    "mtl-ibp-finetune",
)
RECIPES = ("quickstart",)
UNITS = ("normalised", "pixel")
