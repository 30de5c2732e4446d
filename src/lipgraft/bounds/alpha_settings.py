"""How alpha-CROWN optimises."""

from __future__ import annotations

from dataclasses import dataclass

from lipgraft.settings import setting


@dataclass(frozen=True)
class AlphaSettings:
    """How the lines are optimised."""

    iterations: int = setting(20, "Steps of projected Adam.")
    lr: float = setting(0.1, "Step size of Adam.")
    intermediate: int = setting(0, "Steps for each hidden layer's own bounds before; 0 leaves them as CROWN gave them.")
    decay: float = setting(0.98, "Factor on the step size after every step.")
