"""Whether the model makes the calls that tracing has seen: once by its own forward, once by the fx graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

from lipgraft.errors import UnsupportedOperationError
from lipgraft.network.calls import Traced, flat

# What they answer is the same for all inputs of a shape, and fx puts them where their answers are first used.
_QUESTIONS = frozenset({
    "__get__", "size", "dim", "ndimension", "numel", "nelement", "stride", "is_contiguous", "is_floating_point",
    "is_complex", "element_size", "get_device", "__len__", "__repr__", "__format__",
})  # fmt: skip
_COMPARED = (bool, int, float, str, slice, type(None))


class _Of(int):
    """Stands for a tensor that depends on the input: its number among them, in the order in which calls show them."""


class _Constant:
    """A tensor that does not depend on the input, as it is when a call takes it: the model may change it later."""

    def __init__(self, tensor: Tensor) -> None:
        self.value = tensor.detach().clone()


class _Recorder(TorchFunctionMode):
    """calls: (name of the function, its arguments and results, flat) of every call that the input takes part in.

    Questions for shapes and the like are left out, and so are calls that return their own argument as it was.
    """

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.calls: list[tuple[str, list[object]]] = []
        self._depends = {id(x): x}  # kept, so that no other tensor gets their ids
        self._numbers: dict[int, _Of] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = list(flat((args, kwargs)))
        before = [_version(value) for value in given]
        result = func(*args, **kwargs)
        if any(id(value) in self._depends for value in given):
            tensors = [value for value in flat(result) if isinstance(value, Tensor)]
            self._depends.update((id(tensor), tensor) for tensor in tensors)
            name = getattr(func, "__name__", str(func))
            same = any(value is result and _version(value) == then for value, then in zip(given, before, strict=True))
            if not same and (tensors or name not in _QUESTIONS):
                # An attribute's name is known by its descriptor alone.
                what = str(getattr(func, "__self__", name)) if name == "__get__" else name.strip("_")
                self.calls.append((what, self._entries((args, sorted(kwargs), kwargs, tensors))))
        return result

    def ends_in(self, result: object) -> None:
        """What the forward returns."""
        self.calls.append(("its result", self._entries(result)))

    def _entries(self, values: object) -> list[object]:
        return [self._entry(value) for value in flat(values)]

    def _entry(self, value: object) -> object:
        if id(value) in self._depends:
            return self._numbers.setdefault(id(value), _Of(len(self._numbers)))
        return _Constant(value) if isinstance(value, Tensor) else value


def _version(value: object) -> object:
    """How often a tensor was written to. In inference mode nobody counts: such a tensor may be another each time."""
    if not isinstance(value, Tensor):
        return None
    return object() if value.is_inference() else value._version


def check_calls(traced: Traced, x: Tensor) -> Tensor:
    """What the model returns at x (1, *input_shape); refused unless the fx graph makes the same calls there.

    They differ where the forward asks for the type of its tensors, or whether it is being traced, because fx puts
    other objects in the place of tensors. On the same numbers both may agree almost everywhere.
    """
    inputs = x.clone(), x.clone()
    with _Recorder(inputs[0]) as own:
        result: Tensor = traced.root(inputs[0])
    own.ends_in(result)
    with _Recorder(inputs[1]) as seen:
        end = _replay(traced, inputs[1])
    seen.ends_in(end)
    if len(own.calls) != len(seen.calls) or not all(map(_alike, own.calls, seen.calls)):
        pairs = zip(own.calls, seen.calls, strict=False)
        first = next((mine[0] for mine, other in pairs if not _alike(mine, other)), "one more or less at its end")
        raise UnsupportedOperationError(
            f"the forward of {type(traced.root).__name__} makes other calls than tracing it sees (the first: {first}). "
            "It must not depend on the type of its tensors, on whether it is being traced, or on what it has kept from "
            "an earlier call."
        )
    return result


def _alike(one: tuple[str, list[object]], other: tuple[str, list[object]]) -> bool:
    """Whether two calls are of the same function, with the same constants and the same other arguments."""
    same = one[0] == other[0] and len(one[1]) == len(other[1])
    return same and all(map(_alike_values, one[1], other[1]))


def _alike_values(one: object, other: object) -> bool:
    if isinstance(one, _Constant) and isinstance(other, _Constant):
        a, b = one.value, other.value
        same = a.shape == b.shape and a.dtype == b.dtype
        return same and bool(((a == b) | (a.isnan() & b.isnan())).all())
    kinds = (*_COMPARED, _Constant)
    if isinstance(one, kinds) or isinstance(other, kinds):
        return type(one) is type(other) and one == other
    return True


def _replay(traced: Traced, x: Tensor) -> Any:
    """Make the calls of the fx graph; what it returns."""
    values: dict[fx.Node, Any] = {}
    for node in traced.graph.nodes:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        target: Any = node.target
        if node.op == "placeholder":
            values[node] = args[0] if values else x
        elif node.op == "get_attr":
            values[node] = traced.attribute(str(target))
        elif node.op == "output":
            return args[0]
        else:
            if node.op == "call_module":
                target = traced.root.get_submodule(target)
            elif node.op == "call_method":
                target, args = getattr(args[0], target), args[1:]
            values[node] = target(*args, **kwargs)
    return None
