"""Steps of branch and bound as CUDA graphs, one for each shape that is used often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lipgraft.cuda_graph import CapturedCall, capture
from lipgraft.verification.branch_and_bound.branching import Children
from lipgraft.verification.branch_and_bound.subproblems import Subproblems

Shape = tuple[int, ...]

# A capture costs a few plain steps; a shape that is used this often is worth it. They also warm the libraries up.
USES_BEFORE_CAPTURE = 3
SMALLEST = 32  # parents in the smallest captured batch; the next ones are four times as large


@dataclass(frozen=True, eq=False)
class _Captured:
    """parents: what the call reads."""

    parents: Subproblems
    call: CapturedCall[Children]


class Replayed:
    """Calls `function` on subproblems; on a GPU, from its fourth use of a shape on, by replaying a graph.

    The children of a replay live in the graph's memory: they are valid until the next call.
    """

    def __init__(self, function: Callable[[Subproblems], Children], device: torch.device, enabled: bool) -> None:
        self.function, self.device = function, device
        self.enabled = enabled and device.type == "cuda"
        self.uses: dict[Shape, int] = {}
        self.graphs: dict[Shape, _Captured] = {}
        self.memory: Any = None  # a handle; its type changes between versions of PyTorch

    def __call__(self, parents: Subproblems) -> Children:
        if not self.enabled:
            return self.function(parents)
        shape = (*parents.alpha.shape, parents.neuron.shape[1])
        self.uses[shape] = self.uses.get(shape, 0) + 1
        if self.uses[shape] <= USES_BEFORE_CAPTURE:
            return self.function(parents)
        if shape not in self.graphs:
            self.graphs[shape] = self._capture(parents)
        captured = self.graphs[shape]
        _copy(parents, captured.parents)
        return captured.call.replay()

    def filled_up(self, parents: Subproblems, most: int) -> Children:
        """Both halves of every parent. On a GPU the batch is filled up to one of a few sizes, `most` at most."""
        count = size = len(parents)
        if self.enabled:
            size = SMALLEST
            while size < count:
                size *= 4
            size = max(count, min(size, most))
        out = self(parents.filled_up(size) if size > count else parents)
        if size == count:
            return out
        real = torch.arange(count, device=out.leaf.device)
        real = torch.cat([real, real + size])
        return Children(out.sub.at(real), out.leaf[real], out.point[real], out.margin[real], out.risen[real])

    def give_up(self) -> bool:
        """Go on without graphs and free their memory; whether there were any to give up."""
        before, self.enabled, self.memory = self.enabled, False, None
        self.graphs.clear()
        return before

    def forget(self) -> None:
        """The function has changed: capture it anew."""
        self.memory = None
        self.uses.clear()
        self.graphs.clear()

    def _capture(self, parents: Subproblems) -> _Captured:
        static = Subproblems(**{name: t.clone() for name, t in parents.tensors().items()})
        if self.memory is None:
            self.memory = torch.cuda.graph_pool_handle()
        step = partial(self.function, static)
        # Graphs are replayed one at a time and their results used before the next: they can share their memory.
        return _Captured(static, capture(step, self.device, warm_up=step, memory=self.memory))


def _copy(source: Subproblems, to: Subproblems) -> None:
    into: dict[str, Tensor] = to.tensors()
    for name, tensor in source.tensors().items():
        into[name].copy_(tensor)
