"""How the notions are computed."""

from __future__ import annotations

from dataclasses import dataclass

from lipgraft.settings import setting


@dataclass(frozen=True)
class LipschitzSettings:
    """Fields name the notions that they belong to."""

    bounds: str = setting("crown", "Bound method: of the output for output-width, of the neurons for the Jacobians.")
    samples: int = setting(16, "sampled: points drawn from each box, the corners among them.")
    steps: int = setting(20, "sampled: steps of the ascent from the best point, for every output.")
    together: int | None = setting(
        None, "jacobian: how many uncertain neurons of an image may be bounded together; default 4096, on a GPU 12288."
    )
    branches: int = setting(0, "jacobian: neurons to split per image, for small networks; 0 splits none.")
    iterations: int = setting(8, "jacobian: steps that improve the multipliers of neurons bounded together.")
