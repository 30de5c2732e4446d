"""The calls of a model's forward, as torch.fx records them."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import fx, nn


@dataclass(frozen=True, eq=False)
class Traced:
    """root: the module in which calls find what they name; constants: what fx hung on it while it was traced."""

    root: nn.Module
    graph: fx.Graph
    constants: Mapping[str, Any]

    @staticmethod
    def of(root: nn.Module, graph: fx.Graph) -> Traced:
        """To be made while the constants are still there."""
        names = {str(call.target) for call in graph.nodes if call.op == "get_attr"}
        return Traced(root, graph, {name: getattr(root, name) for name in names if "." not in name})

    def attribute(self, name: str) -> Any:
        """The parameter, buffer or constant of this dotted name."""
        return self.constants[name] if name in self.constants else operator.attrgetter(name)(self.root)


def flat(value: Any) -> Iterator[Any]:
    """The values inside tuples, lists and dictionaries; of a dictionary in the order of its keys."""
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from flat(part)
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from flat(value[key])
    else:
        yield value
