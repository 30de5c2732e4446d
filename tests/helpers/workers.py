"""The workers that tests of the cluster share."""

from __future__ import annotations

from dataclasses import dataclass

from lipgraft.cluster import Cluster


@dataclass(frozen=True)
class Workers:
    """notices: what the cluster has said in this test."""

    cluster: Cluster
    notices: list[str]
