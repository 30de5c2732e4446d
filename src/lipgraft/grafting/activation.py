"""The grafted activation: chosen neurons become trainable lines; and how these lines start."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lipgraft.activations import curve_of
from lipgraft.errors import SettingsError, unknown_name
from lipgraft.grafting.graph import input_shape_of, traced
from lipgraft.inputs import pixels
from lipgraft.network import Builder, Graft, Ref, evaluate, like, lowers_module, subject
from lipgraft.network.graph import Shape

BATCH = 500

LINES = ("constant", "fitted")
"""How lines start: with one slope and intercept for all, or each fitted to its activation."""


class GraftedActivation(nn.Module):
    """h(z) = m (gamma z + omega) + (1 - m) base(z), neuron by neuron.

    base: the element-wise activation being grafted (nn.ReLU, nn.Sigmoid, nn.Tanh, ...).
    mask: boolean, of the activation's shape without the batch axis; True = grafted. Kept as a buffer.
    slope, intercept: initial gamma and omega, a number or a tensor of the mask's shape. Both become parameters of the
    mask's shape; entries outside the mask take no part in the output and get a zero gradient.
    """

    mask: Tensor

    def __init__(
        self, base: nn.Module, mask: Tensor, slope: float | Tensor = 0.4, intercept: float | Tensor = 0.0
    ) -> None:
        super().__init__()
        if isinstance(base, GraftedActivation):
            raise SettingsError("the activation is grafted already; pass its `base`, or use lipgraft.grafting.apply.")
        if mask.dtype != torch.bool:
            raise SettingsError(f"a mask must be a boolean tensor, got {mask.dtype}; use mask.bool().")
        self.base = _out_of_place(base)
        self.register_buffer("mask", mask.clone())
        self.gamma = nn.Parameter(_filled(mask, slope, "slope"))
        self.omega = nn.Parameter(_filled(mask, intercept, "intercept"))

    def forward(self, z: Tensor) -> Tensor:
        """z: (B, *shape) -> (B, *shape)."""
        self._check_shape(z)
        # Masking the (batch-free) line first keeps whatever stands in its unused entries out of z's gradient; the
        # outer `where` does the same for the unused branch's values and for the gradients of gamma and omega.
        # In z's own type: in mixed precision a float32 line would widen everything that it touches.
        gamma = torch.where(self.mask, self.gamma, 0.0).to(z.dtype)
        omega = torch.where(self.mask, self.omega, 0.0).to(z.dtype)
        return torch.where(self.mask, torch.addcmul(omega, gamma, z), self.base(z))

    def _check_shape(self, z: Tensor) -> None:
        # Broadcasting would hide a mask of the wrong shape. Shapes are constants while a model is being recorded.
        recording = torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
        if not recording and z.shape[1:] != self.mask.shape:
            raise SettingsError(f"grafted for activations of shape {tuple(self.mask.shape)}, got {tuple(z.shape[1:])}.")

    def extra_repr(self) -> str:
        return f"shape={tuple(self.mask.shape)}, grafted={int(self.mask.sum())}"


def _out_of_place(base: nn.Module) -> nn.Module:
    """The activation without its in-place switch: the line still needs z after the activation has been computed."""
    if not getattr(base, "inplace", False):
        return base
    base = copy.copy(base)
    base.inplace = False  # type: ignore[assignment]
    return base


def _filled(mask: Tensor, value: float | Tensor, what: str) -> Tensor:
    """A float tensor of the mask's shape, on its device, holding `value`."""
    if isinstance(value, Tensor):
        if value.shape != mask.shape:
            raise SettingsError(f"{what} must be a number or a tensor of the mask's shape {tuple(mask.shape)}.")
        filled = value.detach().to(mask.device).clone()
    else:
        filled = torch.full(mask.shape, float(value), device=mask.device)
    if not bool(torch.isfinite(filled).all()):
        raise SettingsError(f"{what} must be finite.")
    return filled


@lowers_module(GraftedActivation, activation=True)
def lower_grafted(build: Builder, module: GraftedActivation, z: Ref) -> Ref:
    return build.activation(z, curve_of(module.base), Graft(module.mask, module.gamma, module.omega))


@dataclass(frozen=True, eq=False)
class Line:
    """slope, intercept: of all neurons of an activation alike, or of each, of the activation's shape."""

    slope: float | Tensor
    intercept: float | Tensor


@torch.no_grad()
def fit_lines(model: nn.Module, x: Tensor, *, input_shape: Shape | None = None) -> dict[str, Line]:
    """{activation name: the lines h = slope z + intercept of least squares} over the images x (N, C, H, W).

    z is the pre-activation and h the activation's value there, both in the model as it is. A neuron whose z never
    changes gets slope 0 and its value. input_shape: of one input, when the model has no `spec` that says it.
    """
    shape = input_shape_of(model, input_shape) or tuple(x.shape[1:])
    if len(x) == 0:
        raise SettingsError("there are no images to fit lines to.")
    model = subject(model)
    network = traced(model, shape)
    x = pixels(x, None, None, like=like(model, x))
    sums: dict[str, Tensor] = {}
    for part in torch.split(x, BATCH):
        values = evaluate(network, part)
        for i, node in network.activations():
            z, h = values[node.inputs[0]].double(), values[i].double()
            sums[node.name] = sums.get(node.name, 0) + torch.stack([z, h, z * z, z * h]).sum(1)
    return {name: _least_squares(total / len(x), x.dtype) for name, total in sums.items()}


def check_lines(kind: str, slope: float = 0.4, intercept: float = 0.0) -> None:
    """Whether lines can start so: a name of LINES, and what float32 holds."""
    for name, value in (("slope", slope), ("intercept", intercept)):
        if not abs(value) <= torch.finfo(torch.float32).max:  # NaN neither
            raise SettingsError(f"the {name} of lines must be a finite number that float32 holds, got {value}.")
    if kind not in LINES:
        raise SettingsError(unknown_name("kind of lines", kind, list(LINES)))


def chosen_lines(kind: str, model: nn.Module, x: Tensor) -> Mapping[str, Line] | None:
    """The lines of this kind; None stands for the constant ones."""
    check_lines(kind)
    return fit_lines(model, x) if kind == "fitted" else None


def _least_squares(means: Tensor, dtype: torch.dtype) -> Line:
    """means: (4, *shape), of z, h, z^2 and z h."""
    z, h, square, product = means
    variance, covariance = square - z * z, product - z * h
    moves = variance > 1e-12 * square.clamp(min=torch.finfo(torch.float64).tiny)
    slope = torch.where(moves, covariance / torch.where(moves, variance, 1.0), 0.0)
    return Line(slope.to(dtype), (h - slope * z).to(dtype))
