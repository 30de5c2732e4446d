"""What grafting a neuron really changes in an interval bound."""

from __future__ import annotations

from torch import Tensor


def gain(out_width: Tensor, width: Tensor, gamma: float) -> Tensor:
    """How much narrower the neuron's output interval becomes: (act(ub) - act(lb)) - |gamma| (ub - lb).

    For an unstable ReLU this is ub - gamma (ub - lb), negative when gamma > ub / (ub - lb): the graft then widens.
    The next layer's interval changes by |w_jk| times the gain, so the score is max_k |w_jk| gain_j.
    """
    return out_width - abs(gamma) * width
