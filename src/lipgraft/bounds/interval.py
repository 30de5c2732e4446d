"""Interval arithmetic through the graph: cheap, loose, differentiable."""

from __future__ import annotations

from lipgraft.activations import Interval
from lipgraft.box import Box
from lipgraft.network.graph import Network, Node

__all__ = ["Interval", "interval_bounds", "interval_step"]


def interval_bounds(network: Network, box: Box) -> list[Interval]:
    """(lower, upper) of every node's value over each box, by interval arithmetic. Gradients flow to the parameters.

    The pre-activation interval of an activation is that of its input node.
    """
    out: list[Interval] = []
    for node in network.nodes:
        out.append(interval_step(node, [out[i] for i in node.inputs], box))
    return out


def interval_step(node: Node, inputs: list[Interval], box: Box) -> Interval:
    """The interval of one node from those of its inputs. Each end: (B, *shape)."""
    return node.interval(*inputs) if inputs else (box.lower, box.upper)
