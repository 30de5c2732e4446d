"""What the rest of lipgraft asks of an activation: one class per kind, with the kind's parameters as fields."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import count
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor, nn

from lipgraft.activations.lines import Lines

Formula = str | float | tuple[Any, ...]
"""An element-wise formula in ONNX operators: "z", a number, or (operator, formula, ...)."""

Interval = tuple[Tensor, Tensor]
"""(lower, upper), of the same shape."""


class OnnxCall(Protocol):
    """A node of an ONNX file, as the importer shows it."""

    def attribute(self, name: str, default: Any = None) -> Any: ...

    def constant(self, index: int) -> Tensor | None: ...


class OnnxWriter(Protocol):
    """An ONNX graph under construction; all methods return the name of what they added."""

    def constant(self, name: str, tensor: Tensor) -> str: ...

    def per_neuron(self, name: str, tensor: Tensor) -> str: ...

    def operator(self, kind: str, inputs: list[str], name: str, **attributes: Any) -> str: ...


@dataclass(frozen=True)
class Curve(ABC):
    """An element-wise activation z -> act(z).

    A subclass describes one kind completely. Its dataclass fields are the kind's parameters, under the names that the
    PyTorch module gives them; a parameter out of range is a ValueError.

    name: unique; masks, errors and tests use it.
    modules: the nn.Module types that compute it; the first is the one to build.
    functions, methods: the PyTorch functions and tensor methods that compute it; a name that ends with "_" works in
        place. `called` takes their arguments.
    onnx: the ONNX operators that compute it; the first is the one to write.
    kinks, slopes: of a piecewise linear curve, where its slope changes and its slopes from left to right.
    bends: the points that make a neuron count as unstable when its interval holds one.
    one_sided: whether one of the two bounds can be enough to know that the curve is a line on the interval.
    through_upper: of a smooth curve, the free parameters (below, above) of lines through its point at the interval's
        upper end; one minus these are those of lines through its point at the lower end.
    """

    name: ClassVar[str]
    modules: ClassVar[tuple[type[nn.Module], ...]]
    functions: ClassVar[tuple[Callable[..., Any], ...]] = ()
    methods: ClassVar[tuple[str, ...]] = ()
    onnx: ClassVar[tuple[str, ...]] = ()
    one_sided: ClassVar[bool] = False
    through_upper: ClassVar[tuple[float, ...]] = ()

    @property
    def kinks(self) -> tuple[float, ...]:
        return ()

    @property
    def slopes(self) -> tuple[float, ...]:
        return ()

    @property
    def bends(self) -> tuple[float, ...]:
        return self.kinks or (0.0,)

    @property
    def steepest(self) -> float:
        """The largest |act'|: that of a kink's pieces, or over an interval beyond which these curves are lines."""
        if self.slopes:
            return max(abs(slope) for slope in self.slopes)
        ends = torch.tensor([-1e4, 1e4], dtype=torch.float64)
        low, high = self.derivative_range(ends[:1], ends[1:])
        return max(abs(float(low)), abs(float(high)))

    @property
    def at_zero(self) -> float:
        """|act(0)|."""
        return abs(float(self(torch.zeros(1, dtype=torch.float64))))

    @property
    def splits_at_zero(self) -> bool:
        """Whether the curve is a z left of zero and z right of it: a split at zero makes each half a line."""
        return self.kinks == (0.0,) and self.slopes[1] == 1.0

    @abstractmethod
    def __call__(self, z: Tensor) -> Tensor:
        """act(z), as PyTorch computes it. Differentiable."""

    @abstractmethod
    def derivative(self, z: Tensor) -> Tensor:
        """act'(z); at a kink the slope that PyTorch takes. Differentiable where the curve is smooth."""

    @abstractmethod
    def derivative_range(self, lb: Tensor, ub: Tensor) -> Interval:
        """The range of act' over [lb, ub]; at a kink every slope between its two (Clarke's derivative)."""

    @abstractmethod
    def image(self, lb: Tensor, ub: Tensor) -> Interval:
        """The range of act over [lb, ub]. Differentiable."""

    @abstractmethod
    def start(self, lb: Tensor, ub: Tensor) -> Tensor:
        """The free parameters of the lines that plain CROWN takes, in [0, 1]: (k, *lb.shape)."""

    def anchors(self, lb: Tensor, ub: Tensor, *, quick: bool = False) -> Tensor | None:
        """What `lines` would find out anew each time: (m, *lb.shape). It serves intervals inside [lb, ub] too.

        quick: in a few passes, for lines that are a little looser.
        """
        return None

    def halved_anchors(self, z: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
        """Those of [lb, z] and of [z, ub], from those of [lb, ub]."""
        return anchors, anchors

    @abstractmethod
    def lines(self, lb: Tensor, ub: Tensor, anchors: Tensor | None = None) -> Callable[[Tensor], Lines]:
        """Lines below and above act on [lb, ub] as a function of alpha (k, *lb.shape), differentiable in it.

        Sound for every alpha in [0, 1]. What depends on lb and ub alone is computed once. anchors: those of [lb, ub],
        or of an interval that holds it, (m, *lb.shape).
        """

    def exact(self, lb: Tensor, ub: Tensor) -> Tensor:
        """Where act is a line on [lb, ub]; such a neuron is stable. NaN compares false, so it is not exact."""
        return lb == ub

    def value_and_slope(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """act(z) and act'(z); a kind overrides this when one of them helps with the other."""
        return self(z), self.derivative(z)

    @classmethod
    def of_module(cls, module: nn.Module) -> Self:
        """The curve that a module of one of the types `modules` computes."""
        return cls(**{field.name: getattr(module, field.name) for field in fields(cls)})

    @classmethod
    def called(cls, inplace: bool = False) -> Self:
        """The curve that a call computes: the arguments after the input, under PyTorch's names."""
        return cls()

    def module(self) -> nn.Module:
        """A new module that computes the curve."""
        return self.modules[0](**{field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def of_onnx(cls, call: OnnxCall) -> Self:
        """The curve that an ONNX node of one of the operators `onnx` computes."""
        return cls()

    def onnx_attributes(self) -> dict[str, Any]:
        """The attributes with which the operator onnx[0] computes this curve."""
        return {}

    @property
    def formula(self) -> Formula | None:
        """The curve in older operators, where onnx[0] is newer than most readers: files are written so, and read."""
        return None

    @classmethod
    def with_formula(cls) -> tuple[Self, ...]:
        """The curves of this kind that have a formula."""
        return ()

    def write_onnx(self, writer: OnnxWriter, z: str, name: str) -> str:
        """Append the operators that compute the curve of the tensor z; returns the name of the result."""
        if self.formula is None:
            return writer.operator(self.onnx[0], [z], name, **self.onnx_attributes())
        numbers = count(1)

        def write(part: Formula, result: str | None = None) -> str:
            if part == "z":
                return z
            if isinstance(part, tuple):
                return writer.operator(part[0], [write(p) for p in part[1:]], result or f"{name}_part{next(numbers)}")
            return writer.constant(f"{name}_number{next(numbers)}", torch.tensor(float(part)))

        return write(self.formula, name)
