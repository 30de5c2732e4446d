"""Attacks: points near x that a model misclassifies. `attack` is the one verb; the methods live in a registry."""

from lipgraft.attacks.ascent import ascend, input_gradient, project, random_start
from lipgraft.attacks.methods import ATTACKS, Method, fgsm_steps, pgd_steps
from lipgraft.attacks.search import Search, attack, search

__all__ = [
    "ATTACKS",
    "Method",
    "Search",
    "ascend",
    "attack",
    "fgsm_steps",
    "input_gradient",
    "pgd_steps",
    "project",
    "random_start",
    "search",
]
