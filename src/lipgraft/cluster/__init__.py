"""Many workers for one verification: images are dealt out over the machines of a Ray cluster. See docs/cluster.md.

Ray is optional and is imported in `lipgraft.cluster.connection` alone, when a cluster is asked for.
"""

from lipgraft.cluster.connection import ClusterError
from lipgraft.cluster.driver import Cluster
from lipgraft.cluster.queue import Queue

__all__ = ["Cluster", "ClusterError", "Queue"]
