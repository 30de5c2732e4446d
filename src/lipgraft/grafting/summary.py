"""What a selection did: counts per layer, the unstable neurons that remain, overlap with another selection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from lipgraft.display import table
from lipgraft.errors import SettingsError
from lipgraft.grafting.activation import GraftedActivation
from lipgraft.grafting.scores import Scores

Masks = Mapping[str, Tensor]


@dataclass(frozen=True)
class Row:
    """One layer, or the whole network. UNR: unstable (neuron, image) pairs over all pairs, grafted neurons included.

    unr_after counts the neurons that are not grafted under the same bounds: what is left before any fine-tuning.
    """

    name: str
    neurons: int
    grafted: int
    unr_before: float
    unr_after: float

    @property
    def share(self) -> float:
        """Grafted neurons over all."""
        return self.grafted / self.neurons

    @property
    def remaining(self) -> float:
        """The part of the unstable pairs that is left; 0 when there were none."""
        return self.unr_after / self.unr_before if self.unr_before else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "share": self.share, "remaining": self.remaining}


@dataclass(frozen=True)
class Summary:
    """What masks do to a network, layer by layer and in total."""

    layers: tuple[Row, ...]
    total: Row

    def to_dict(self) -> dict[str, Any]:
        return {"layers": [row.to_dict() for row in self.layers], "total": self.total.to_dict()}

    def __repr__(self) -> str:
        total = self.total
        return f"<Summary: {total.grafted:,} of {total.neurons:,} neurons grafted ({total.share:.1%})>"

    def _repr_html_(self) -> str:
        columns = ("layer", "neurons", "grafted", "share", "unstable before", "after")
        rows = [
            (r.name, r.neurons, r.grafted, f"{r.share:.1%}", f"{r.unr_before:.2%}", f"{r.unr_after:.2%}")
            for r in (*self.layers, self.total)
        ]
        return table(repr(self)[1:-1], columns, rows)


def summarise(masks: Masks, scores: Scores) -> Summary:
    """Per-layer counts, and the share of unstable neurons before and after."""
    if list(masks) != list(scores.layers):
        raise SettingsError(f"masks of {', '.join(masks)} do not fit scores of {', '.join(scores.layers)}.")
    rows, unstable, left = [], 0, 0
    for name, layer in scores.layers.items():
        mask = masks[name].to(layer.s_u.device)
        before, after = int(layer.s_u.sum()), int(layer.s_u[~mask].sum())
        pairs = mask.numel() * scores.count
        rows.append(Row(name, mask.numel(), int(mask.sum()), before / pairs, after / pairs))
        unstable, left = unstable + before, left + after
    neurons = sum(row.neurons for row in rows)
    pairs = neurons * scores.count
    return Summary(tuple(rows), Row("total", neurons, sum(row.grafted for row in rows), unstable / pairs, left / pairs))


@dataclass(frozen=True)
class Overlap:
    """Two selections A and B. jaccard: |A and B| / |A or B|; share: |A and B| / |A|. Both 1 when A and B are empty."""

    both: int
    either: int
    first: int

    @property
    def jaccard(self) -> float:
        return self.both / self.either if self.either else 1.0

    @property
    def share(self) -> float:
        return self.both / self.first if self.first else float(self.either == 0)


def overlap(first: Masks, second: Masks) -> Overlap:
    """How far two selections of the same network agree."""
    if {name: mask.shape for name, mask in first.items()} != {name: mask.shape for name, mask in second.items()}:
        raise SettingsError("the two masks belong to different networks: their layers or shapes differ.")
    pairs = [(mask, second[name].to(mask.device)) for name, mask in first.items()]
    return Overlap(
        both=sum(int((a & b).sum()) for a, b in pairs),
        either=sum(int((a | b).sum()) for a, b in pairs),
        first=sum(int(a.sum()) for a, _ in pairs),
    )


def masks_of(model: nn.Module) -> dict[str, Tensor]:
    """The masks of a grafted model, by the names of its grafted activations."""
    return {name: m.mask for name, m in model.named_modules() if isinstance(m, GraftedActivation)}
