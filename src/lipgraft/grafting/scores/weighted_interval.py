"""The weighted interval score and its variants: a weight factor times a width, both neuron by neuron."""

from __future__ import annotations

from torch import Tensor


def s_wi(weight: Tensor, width: Tensor) -> Tensor:
    """s_wi(j) = max_i max_{k in P} |w_jk| |ub_j - lb_j|: separable, so the two maxima are taken apart.

    weight: max (or mean) over the selected neurons k of the next layers, from `weight_factor`;
    width: max over images of ub - lb (the paper), their mean (average sensitivity), or max ub - min lb (range).
    """
    return weight * width
