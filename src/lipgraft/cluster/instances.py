"""The instances of a VNNLIB table, one at a time to each worker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from lipgraft.cluster.driver import Cluster
from lipgraft.cluster.tasks import Died
from lipgraft.interop.instances import Decide, Decider, Task
from lipgraft.interop.result import VnnResult
from lipgraft.verification import VerifySettings


def deciding(cluster: Cluster, settings: VerifySettings | None) -> Decide:
    """What decides instances, for `verify_instances`. Workers read the files themselves, by the same paths as here."""

    def decide(tasks: Iterable[Task]) -> Iterator[tuple[Task, VnnResult]]:
        for task, answer in cluster.each(partial(Decider, settings=settings), tasks):
            yield task, VnnResult("error", reason=answer.reason) if isinstance(answer, Died) else answer

    return decide
