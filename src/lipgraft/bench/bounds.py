"""How fast bounds are, and how much memory they take: what `lipgraft bench bounds` prints."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lipgraft import data as datasets
from lipgraft import grafting, models
from lipgraft.bench.dense_crown import bytes_per_image, dense_crown
from lipgraft.bench.resources import timed
from lipgraft.bounds.api import METHODS, bound_specification
from lipgraft.bounds.ascent import AlphaSettings
from lipgraft.bounds.crown import Neurons, Prepared, prepare
from lipgraft.bounds.margins import other_classes
from lipgraft.bounds.memory import free_bytes
from lipgraft.bounds.sound import proved
from lipgraft.box import Box
from lipgraft.errors import SettingsError, unknown_name
from lipgraft.network import Network, full_precision, trace
from lipgraft.verification.stages import unstable_share

NETWORKS = ("cnn-b", "conv-big", "conv-huge", "resnet4b")
DATASET = "cifar10"


@dataclass(frozen=True, eq=False)
class Case:
    """One network and one batch. weights: where they come from; C: (B, classes - 1, classes), the margins."""

    name: str
    weights: str
    grafted: bool
    network: Network
    box: Box
    C: Tensor


def bench_bounds(
    networks: Sequence[str] = NETWORKS,
    methods: Sequence[str] = ("ibp", "crown", "alpha-crown"),
    batch: int = 8,
    device: str | torch.device = "cpu",
    eps: float = 2 / 255,
    weights: Mapping[str, str | os.PathLike[str]] | None = None,
    *,
    data: str | None = None,
    data_root: str | os.PathLike[str] | None = None,
    neurons: Sequence[Neurons] = ("needed", "all"),
    repeats: int = 3,
    compare: bool = True,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Images per second, seconds and peak memory of each network, grafted and plain, with each method.

    The work: crown and crown-ibp, all pre-activation bounds and the margins of the nine other classes; alpha-crown, 20
    steps on those margins, with the layers' bounds computed before and not counted; ibp, one pass. Tracing is not
    counted. One run warms up, then the median of `repeats` runs is taken. weights: checkpoints by network, otherwise
    random ones; a network that is not grafted is measured as it is and with a random half of its neurons grafted.
    data: take test images of this data set instead of noise. compare: measure the plain dense implementation as well,
    where it fits into memory.
    """
    for method in methods:
        if method not in METHODS:
            raise SettingsError(unknown_name("bound method", method, list(METHODS)))
    if batch < 1 or repeats < 1:
        raise SettingsError("batch and repeats must be at least 1.")
    place, known = torch.device(device), dict(weights or {})
    for name in known:
        if name not in networks:
            raise SettingsError(f"there are weights for {name!r}, but the networks are {', '.join(networks)}.")
    source = None if data is None else datasets.load(data, data_root)
    results = []
    for name in networks:
        for case in _cases(name, known.get(name), source, batch, eps, place, seed):
            dense = _dense_speed(case, place) if compare and "crown" in methods else {}
            for method in methods:
                for which in neurons if method == "crown" else ("needed",):
                    row = _measured(case, method, which, place, repeats)
                    if method == "crown" and compare:
                        row |= dense | {"ratio": _ratio(row, dense)}
                    results.append(row)
    return results


# --- what is measured ------------------------------------------------------------------------------------------------


def _cases(
    name: str,
    weights: str | os.PathLike[str] | None,
    source: datasets.Dataset | None,
    batch: int,
    eps: float,
    device: torch.device,
    seed: int,
) -> Iterator[Case]:
    """The network as it is, and grafted if it is not."""
    model: nn.Module = models.build(name, DATASET, seed=seed) if weights is None else models.load(weights)
    model = models.fold_batchnorm(model)
    spec = getattr(model, "spec", None)
    x, y = _images(source, spec.input_shape if spec is not None else datasets.entry(DATASET).input_shape, batch, seed)
    shape = tuple(x.shape[1:])
    variants = [(bool(grafting.masks_of(model)), model)]
    if not variants[0][0]:
        generator = torch.Generator().manual_seed(seed)
        sizes = {node.name: node.shape for _, node in trace(model, shape).activations()}
        masks = {key: torch.rand(size, generator=generator) < 0.5 for key, size in sizes.items()}
        variants.append((True, grafting.apply(model, masks, input_shape=shape)))
    x = x.to(device)
    for grafted, variant in variants:
        network = trace(variant.to(device), shape).to()
        with torch.no_grad(), full_precision():
            labels = variant.eval()(x).argmax(1) if y is None else y.to(device)
        _, C = other_classes(labels, network.output_shape[0], x.dtype)
        yield Case(name, "random" if weights is None else str(weights), grafted, network, Box.linf(x, eps), C)


def _images(
    source: datasets.Dataset | None, shape: tuple[int, ...], batch: int, seed: int
) -> tuple[Tensor, Tensor | None]:
    """x (B, *shape) and labels (B,), the first test images; or noise without labels."""
    if source is None:
        return torch.rand(batch, *shape, generator=torch.Generator().manual_seed(seed)), None
    if source.input_shape != shape:
        raise SettingsError(f"{source.name} has images of shape {source.input_shape}, the network takes {shape}.")
    return datasets.images(source.x_test[:batch]), source.y_test[:batch]


def _measured(case: Case, method: str, neurons: Neurons, device: torch.device, repeats: int) -> dict[str, Any]:
    backward, specify = METHODS[method]
    rows, settings = case.C.unsqueeze(1), AlphaSettings()

    def prepared() -> Prepared:
        return prepare(case.network, case.box, backward=backward, neurons=neurons)

    def margins(ready: Prepared) -> Tensor:
        return bound_specification(ready, rows, specify, settings)[:, 0]

    work: Callable[[], Tensor]
    with torch.no_grad(), full_precision():
        ready = prepared() if method == "alpha-crown" else None
        work = partial(margins, ready) if ready is not None else lambda: margins(prepared())
        seconds, peak, lower = timed(work, device, repeats)
        share = float(unstable_share(ready if ready is not None else prepared()).mean())
    return {
        "network": case.name,
        "weights": case.weights,
        "grafted": case.grafted,
        "method": method,
        "neurons": neurons if method == "crown" else None,
        "batch": len(case.box),
        "seconds": seconds,
        "images_per_second": len(case.box) / seconds,
        "peak_bytes": peak,
        "unstable": share,
        "verified": float(proved(lower).all(1).float().mean()),
    }


# --- the plain dense implementation ----------------------------------------------------------------------------------


def _dense_speed(case: Case, device: torch.device) -> dict[str, Any]:
    """Images per second of the dense implementation, on as many images of the batch as fit; or a note why not."""
    fit = int(0.8 * free_bytes(device)) // max(bytes_per_image(case.network), 1)
    count = min(fit, len(case.box)) if device.type == "cuda" else min(fit, 1)  # one image shows enough on a CPU
    while count >= 1:
        work = partial(_dense_margins, case, count)
        try:
            with torch.no_grad(), full_precision():
                seconds, peak, _ = timed(work, device, 1, warm_up=False)
        except torch.OutOfMemoryError:  # the estimate leaves out what the allocator keeps in reserve
            count //= 2
            continue
        speed = count / seconds
        return {"dense_images_per_second": speed, "dense_batch": count, "dense_peak_bytes": peak, "note": None}
    return {"dense_images_per_second": None, "note": "dense does not fit into memory"}


def _dense_margins(case: Case, count: int) -> Tensor:
    return dense_crown(case.network, case.box[:count], case.C[:count])[0]


def _ratio(row: Mapping[str, Any], dense: Mapping[str, Any]) -> float | None:
    speed = dense.get("dense_images_per_second")
    return row["images_per_second"] / speed if speed else None
