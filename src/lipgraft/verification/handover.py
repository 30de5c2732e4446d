"""Open images on their way from one search to another, with all that is left to prove of them.

An image is verified when none of its subproblems is open, so a subproblem that got lost on the way would be a hole in a
proof. Therefore an image moves as a whole, between two rounds, when all of its open subproblems are in the pool; and
`Package.open_images` counts them.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from lipgraft.bounds.layout import Layout, NeuronBounds
from lipgraft.errors import LipgraftError
from lipgraft.verification.branch_and_bound.images import Images, OpenImages
from lipgraft.verification.branch_and_bound.subproblems import Subproblems
from lipgraft.verification.job import Job


class HandoverError(LipgraftError):
    """A package cannot be used here."""


@dataclass(frozen=True, eq=False)
class Package:
    """J open images, on the CPU.

    places: of the images in the giver's batch. sub: all of their open subproblems, packed, with `image` counting from
    zero; open: how many each image has. bounds: of their neurons, all but the layout, those that proofs are made with
    where there are any. floor, first, taken, tightened: the search's own notes on each image. standing: the ledger's.
    kind: what the receiver has to be like. planes: the images' places and which margins have them.
    """

    places: list[int]
    sub: Subproblems
    open: list[int]
    bounds: dict[str, Any]
    floor: Tensor
    first: Tensor
    taken: Tensor
    tightened: list[int]
    standing: list[dict[str, Any]]
    kind: dict[str, Any]
    planes: list[Tensor | None]

    @staticmethod
    def of(job: Job, images: Images, packed: Subproblems, **notes: Any) -> Package:
        """images: those that leave; packed: their subproblems, `image` as in `images`; notes: the search's."""
        held = (images.bounds if images.proof is None else images.proof).to("cpu")
        places = images.number.tolist()
        return Package(
            places=places,
            sub=packed,
            open=torch.bincount(packed.image, minlength=len(images)).tolist(),
            bounds={field.name: getattr(held, field.name) for field in fields(held) if field.name != "layout"},
            standing=[job.ledger.standing(place) for place in places],
            kind=_kind(job),
            planes=[None if t is None else t.cpu() for t in (images.places, images.lifted)],
            **notes,
        )

    def open_images(self, job: Job) -> OpenImages:
        """The images as a search begins with them, whose job is about them alone, in this order."""
        if self.kind != _kind(job):
            raise HandoverError(f"open images of a search with {self.kind} cannot go on in one with {_kind(job)}.")
        counted = torch.bincount(self.sub.image, minlength=len(self.places)).tolist()
        if len(job.x) != len(self.places) or counted != self.open or len(self.sub) != sum(self.open):
            raise HandoverError("a package of open images does not contain as many images or subproblems as were sent.")
        device = job.x.device
        layout, proof = Layout.of(job.network, job.network.output), None
        if job.proof is None:
            bounds = NeuronBounds(layout, **self.bounds).to(device)
        else:
            proof = NeuronBounds(Layout.of(job.proof, job.proof.output), **self.bounds).to(device)
            bounds = proof.searched(layout, job.x.dtype)
        number = torch.arange(len(self.places), device=device)
        places, lifted = (None if t is None else t.to(device) for t in self.planes)
        boxes = (job.box.lower, job.box.upper), (job.inner.lower, job.inner.upper)
        images = Images(bounds, number, job.y, *boxes, proof, places, lifted)
        for place, standing in enumerate(self.standing):
            job.ledger.resume(place, standing)
        return OpenImages(images, self.sub.to(device).unpacked(), self.floor.to(device))


def _kind(job: Job) -> dict[str, Any]:
    return {
        "device": job.x.device.type,
        "numbers": str(job.x.dtype),
        "neurons": Layout.of(job.network, job.network.output).size,
        "arithmetic": job.settings.arithmetic,
        "speaks_of": job.settings.speaks_of,
    }


def leaving(images: Images, packed: Subproblems, places: list[int]) -> tuple[Images, Subproblems]:
    """Some of the images, and their subproblems with `image` counting from zero."""
    new = torch.full((len(images),), -1, dtype=packed.image.dtype)
    new[places] = torch.arange(len(places), dtype=packed.image.dtype)
    chosen = torch.tensor(places, device=images.number.device)
    return images.at(chosen), replace(packed, image=new[packed.image.long()])


class Relay:
    """Between a search and another thread that wants some of its images; the search answers between two rounds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running, self._wanted = False, False
        self._answers: queue.Queue[Package | None] = queue.Queue()

    def ask(self) -> Package | None:
        """Wait for some of the images. None: there is no search, or none that could spare any."""
        with self._lock:
            if not self._running:
                return None
            self._wanted = True
        return self._answers.get()

    @property
    def wanted(self) -> bool:
        return self._wanted

    def answer(self, package: Package | None) -> None:
        with self._lock:
            self._wanted = False
            self._answers.put(package)

    def __enter__(self) -> Relay:
        """A search begins."""
        with self._lock:
            self._running = True
        return self

    def __exit__(self, *_: object) -> None:
        """It has ended, and who still waits for its images waits no longer."""
        with self._lock:
            self._running = False
            if self._wanted:
                self._wanted = False
                self._answers.put(None)
