"""A verification run over test images of a data set: into a store, as images end, and resumable."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lipgraft.data import Dataset, images
from lipgraft.errors import SettingsError
from lipgraft.interop import CertificateFolder
from lipgraft.network import full_precision, trace
from lipgraft.runs.fingerprint import Identity
from lipgraft.runs.store import RESULTS, ResultStore, Row
from lipgraft.verification import VerifySettings, verify_stream
from lipgraft.verification.job import Job
from lipgraft.verification.settings import flat
from lipgraft.verification.verdict import Decided, Verdict


class Stream(Protocol):
    """What verifies a batch of images: `verify_stream` here, or that of a cluster."""

    def __call__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        eps: float | Tensor,
        *,
        settings: VerifySettings,
        watch: Callable[[int], None] | None = None,
        certificates: bool = False,
    ) -> Iterator[Decided]: ...


def verify_run(
    model: nn.Module,
    data: Dataset,
    eps: float,
    out: str | os.PathLike[str],
    *,
    start: int = 0,
    count: int | None = None,
    settings: VerifySettings | None = None,
    started: Callable[[int, list[Row]], None] | None = None,
    decided: Callable[[Row], None] | None = None,
    watch: Callable[[int], None] | None = None,
    certificates: str | os.PathLike[str] | None = None,
    stream: Stream = verify_stream,
    again: bool = False,
) -> list[Row]:
    """Verify `count` test images (all by default) from number `start` on, and return their rows, in order.

    out: the run's folder, which gets `results.sqlite`; what it holds already is not done again. started(total, rows) is
    called once with the rows found there, decided(row) for every new one, watch as in `verify_stream`. Where a run goes
    on, the clock of `ended` goes on too, with the last row found there.
    certificates: a folder that gets a file for every proof and counterexample. An image that was verified before is
    proved again if its file is not there; a counterexample that was found before is written as it is.
    stream: what verifies the images.
    again: images that an earlier run left unknown are tried once more, and limits may differ from that run's.
    """
    chosen = settings or VerifySettings()
    size = len(data.x_test)
    wanted = range(start, size if count is None else min(start + count, size))
    if start < 0 or not wanted:
        raise SettingsError(
            f"there are no images to verify; of {size} test images, start must be one and count at least 1."
        )
    folder = None if certificates is None else CertificateFolder(certificates)
    identity = identity_of(model, data, eps, chosen)
    with ResultStore(Path(out) / RESULTS, identity, again=again) as store:
        known = {row.image: row for row in store.rows() if row.image in wanted}
        if folder is not None:
            _write_counterexamples(folder, known.values(), model, data, eps, chosen)
        open_ = {image: row.verdict for image, row in known.items() if again and row.verdict.status == "unknown"}
        before = [row for image, row in known.items() if image not in open_ and (folder is None or _kept(row, folder))]
        if started is not None:
            started(len(wanted), before)
        done = {row.image for row in before}
        earlier = max((row.verdict.ended or 0.0 for row in known.values()), default=0.0)
        todo = [index for index in wanted if index not in done]
        if todo:
            index = torch.tensor(todo, device=data.x_test.device)
            x, y = images(data.x_test[index]), data.y_test[index]
            labels = y.tolist()
            verdicts = stream(model, x, y, eps, settings=chosen, watch=watch, certificates=certificates is not None)
            for place, verdict in verdicts:
                later = None if verdict.ended is None else earlier + verdict.ended
                row = Row(todo[place], labels[place], replace(verdict, ended=later))
                if row.image in open_:
                    row = replace(row, verdict=_in_all(open_[row.image], row.verdict))
                if folder is not None and verdict.certificate is not None:  # before the verdict that rests on it
                    folder.put(row.image, verdict.certificate, **_facts(row, data, eps))
                store.put(row)
                if decided is not None:
                    decided(row)
        if folder is not None:
            folder.settle()
        return [row for row in store.rows() if row.image in wanted]


def _in_all(first: Verdict, second: Verdict) -> Verdict:
    """The verdict of a second try, with what the first, which left the image unknown, took and knew."""
    margins = [verdict.margin for verdict in (first, second) if verdict.margin is not None]
    unknown = second.status == "unknown"
    return replace(
        second,
        seconds=first.seconds + second.seconds,
        subproblems=first.subproblems + second.subproblems,
        margin=max(margins, default=None) if unknown else second.margin,
        method=second.method or first.method,
        unstable=first.unstable if second.unstable is None else second.unstable,
        correct=first.correct if second.correct is None else second.correct,
        attacked=first.attacked or second.attacked,
    )


def _kept(row: Row, folder: CertificateFolder) -> bool:
    return row.verdict.status != "verified" or folder.has(row.image)


def _facts(row: Row, data: Dataset, eps: float) -> dict[str, Any]:
    """What a certificate says for people."""
    return {"data": data.name, "image": row.image, "eps": eps, "margin": row.verdict.margin}


def _write_counterexamples(
    folder: CertificateFolder,
    rows: Iterable[Row],
    model: nn.Module,
    data: Dataset,
    eps: float,
    settings: VerifySettings,
) -> None:
    """The files of counterexamples that were found without them: the point is known, and is not searched for again."""
    found = [
        (row, row.verdict.counterexample)
        for row in rows
        if row.verdict.counterexample is not None and not folder.has_counterexample(row.image)
    ]
    if not found:
        return
    index = torch.tensor([row.image for row, _ in found], device=data.x_test.device)
    x, y = images(data.x_test[index]), data.y_test[index]
    drafts = Job.of(model, x, y, eps, 0.0, 1.0, settings, certificates=True).ledger.drafts
    assert drafts is not None
    for place, (row, point) in enumerate(found):
        folder.put(row.image, drafts.counterexample(place, point), **_facts(row, data, eps))


def identity_of(model: nn.Module, data: Dataset, eps: float, settings: VerifySettings) -> Identity:
    """What the verdicts on test images of a data set depend on."""
    with full_precision():
        network = trace(model, data.input_shape, check=False)  # whoever verifies compares it with the model
    return Identity.of(network, data.x_test, data.y_test, eps, flat(settings), data.name)
