"""What a worker does: verify the images it is handed, and send back each verdict as soon as it is there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from lipgraft.network import Network
from lipgraft.verification import Certificate, Verdict, VerifySettings, verify_stream
from lipgraft.verification.certificate import Array
from lipgraft.verification.handover import Package, Relay


@dataclass(frozen=True, eq=False)
class Question:
    """What is asked of every image; it travels once to each worker. model: on the CPU."""

    model: nn.Module
    eps: float | Tensor
    settings: VerifySettings
    certificates: bool


@dataclass(frozen=True, eq=False)
class Proof:
    """A certificate without its network, which is as large as the model and the same for all."""

    arrays: dict[str, Array]
    label: int
    speaks_of: str

    def of(self, network: Network) -> Certificate:
        return Certificate(self.arrays, self.label, self.speaks_of, network)


@dataclass(frozen=True, eq=False)
class Finding:
    """place: in the chunk; verdict: without its certificate; bounded: subproblems since the last finding.

    network: the one that proofs speak of, on the CPU; it comes with a worker's first proof alone.
    """

    place: int
    verdict: Verdict
    bounded: int
    proof: Proof | None = None
    network: Network | None = None


class Share:
    """A worker's copy of the model, on its device."""

    def __init__(self, question: Question, device: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self.question, self.device = question, torch.device(device)
        self.model = question.model.to(self.device)
        self._sent = False
        # The proof of a certificate is a record of the whole search, so those images stay where they are.
        self._relay = None if question.certificates else Relay()

    def give(self) -> tuple[list[int], Package | None]:
        """Some of the images that are being branched on, for another worker: their places in the chunk, and the rest.

        To be called from another thread than `verify`, whose findings have none of these images.
        """
        package = None if self._relay is None else self._relay.ask()
        return ([], None) if package is None else (package.places, package)

    def verify(
        self, x: Tensor, y: Tensor, eps: float | Tensor, seconds_left: float | None, package: Package | None
    ) -> Iterator[Finding]:
        """x: (B, *shape), y: (B,), eps: of these images; seconds_left: of the whole run's time, if it is limited.

        package: what another worker has done of them.
        """
        with self._relay or nullcontext():
            yield from self._findings(x, y, eps, seconds_left, package)

    def _findings(
        self, x: Tensor, y: Tensor, eps: float | Tensor, seconds_left: float | None, package: Package | None
    ) -> Iterator[Finding]:
        settings, rounds = self.question.settings, list[int]()
        if seconds_left is not None:
            settings = settings.changed(limits={"total_seconds": seconds_left})
        stream = verify_stream(
            self.model,
            x.to(self.device),
            y.to(self.device),
            eps,
            settings=settings,
            watch=rounds.append,
            certificates=self.question.certificates,
            relay=self._relay,
            package=package,
        )
        for place, verdict in stream:
            bounded = sum(rounds)
            rounds.clear()
            made = verdict.certificate
            if made is None:
                yield Finding(place, verdict, bounded)
                continue
            network = None if self._sent else made.network.to(device="cpu")
            self._sent = True
            proof = Proof(made.arrays, made.label, made.speaks_of)
            yield Finding(place, replace(verdict, certificate=None), bounded, proof, network)
