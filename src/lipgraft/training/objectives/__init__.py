"""One file per objective; importing this package fills the registry."""

from lipgraft.training.objectives import fat, fgsm_mep, fgsm_pco, pgd, standard, trades

__all__ = ["fat", "fgsm_mep", "fgsm_pco", "pgd", "standard", "trades"]
