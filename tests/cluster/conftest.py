"""One Ray for all tests here, and two workers that wait for whoever asks: each would take seconds to import PyTorch."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

import deadly
from lipgraft.cluster import Cluster
from workers import Workers


@pytest.fixture(scope="package")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a cluster with four CPUs, to which this process is connected. `workers` has two of them."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install ray")
    token = tmp_path_factory.mktemp("ray") / "token"  # else Ray would put one into the user's home
    token.write_text(secrets.token_hex(32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("PYTHONPATH", str(Path(deadly.__file__).parent), prepend=os.pathsep)
        context = ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        yield context.address_info["gcs_address"]
        ray.shutdown()


@pytest.fixture(scope="package")
def hired(address: str) -> Iterator[Workers]:
    notices = list[str]()
    with Cluster(workers=2, device="cpu", notice=notices.append) as cluster:
        yield Workers(cluster, notices)


@pytest.fixture
def workers(hired: Workers) -> Workers:
    """Two, whose dead are replaced."""
    hired.notices.clear()
    return hired
