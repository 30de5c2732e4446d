"""The rows of a table of the paper, one at a time to each worker.

A worker makes a row in a folder of its own. Every stage that it finishes goes to the folder of shared stages, as ever,
and from there the driver takes it into the table, as if another experiment had made it. A stage that one worker is at,
such as a training that several rows begin with, is waited for by the others.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path

import torch

from lipgraft import runs
from lipgraft.cluster.connection import ClusterError
from lipgraft.cluster.driver import Cluster
from lipgraft.cluster.tasks import Died
from lipgraft.errors import SettingsError
from lipgraft.locking import held
from lipgraft.report import ExperimentResults
from lipgraft.runs.reproduction import SHARED, found

WAITS, RUNS, DONE = "waits", "runs", "done"

ROWS = "rows"
"""The folder, beside those of the experiments, of rows that workers are at."""


def reproduce_rows(
    cluster: Cluster,
    experiment: runs.Experiment,
    out: str | Path,
    *,
    data_root: str | Path | None = None,
    told: Callable[[str, str], None] = lambda row, state: None,
) -> ExperimentResults:
    """`runs.reproduce` with the rows spread over workers, which have to see `out` and the data by the same paths.

    told: called with a row, as cnn-b/ours, and what has become of it: WAITS, RUNS or DONE.
    """
    check_rows(experiment)
    home = Path(out).absolute()
    place = torch.device("cuda" if cluster.on_gpu and torch.cuda.is_available() else "cpu")
    root = None if data_root is None else Path(data_root).absolute()
    lost: list[str] = []
    with held(home):
        todo = interleaved(found(experiment, home).missing)
        for row in todo:
            told(row, WAITS)
        for row, answer in cluster.each(partial(RowMaker, experiment, home, root), _begun(todo, told)):
            if isinstance(answer, Died):
                lost.append(f"{row} ({answer.reason})")
                continue
            [one] = runs.chosen([experiment], [row])
            runs.reproduce(one, home, device=place, data_root=root)
            shutil.rmtree(_folder(home, experiment, row), ignore_errors=True)
            told(row, DONE)
        if lost:
            raise ClusterError(f"these rows are missing: {', '.join(lost)}.")
        return runs.reproduce(experiment, home, device=place, data_root=root)


def check_rows(experiment: runs.Experiment) -> None:
    """Refuse what workers cannot do."""
    if any(one.recipe.certify.certificates for one in experiment.runs if one.asked):
        raise SettingsError(
            "runs with certificates cannot use a cluster, because the certificates would stay in the "
            "worker's folder; leave out --cluster."
        )


class RowMaker:
    """Makes rows of an experiment on one device, so that all of their stages are among the shared ones."""

    def __init__(self, experiment: runs.Experiment, out: Path, data_root: Path | None, device: str) -> None:
        self.experiment, self.out, self.data_root, self.device = experiment, out, data_root, device

    def __call__(self, row: str) -> None:
        name, model = row.split("/")
        [one] = (one for one in self.experiment.runs if one.name == name)
        runs.run(
            one.recipe,
            _folder(self.out, self.experiment, row),
            device=self.device,
            data_root=self.data_root,
            shared=self.out / SHARED,
            rows=[model],
        )


def interleaved(rows: Sequence[str]) -> list[str]:
    """The first rows of all runs, then the second ones, ...: rows of one run begin with the same training."""
    by_run: dict[str, list[str]] = {}
    for row in rows:
        by_run.setdefault(row.split("/")[0], []).append(row)
    return [row for rank in zip_longest(*by_run.values()) for row in rank if row is not None]


def _begun(rows: Iterable[str], told: Callable[[str, str], None]) -> Iterator[str]:
    """The rows, each told of when a worker takes it."""
    for row in rows:
        told(row, RUNS)
        yield row


def _folder(out: Path, experiment: runs.Experiment, row: str) -> Path:
    return out / ROWS / experiment.folder / row
