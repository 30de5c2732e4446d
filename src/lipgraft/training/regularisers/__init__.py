"""One file per regulariser; importing this package fills the registry."""

from lipgraft.training.regularisers import grad_align, l1, rs, slope

__all__ = ["grad_align", "l1", "rs", "slope"]
