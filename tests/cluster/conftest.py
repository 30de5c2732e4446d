"""One Ray for all tests here."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

import deadly


@pytest.fixture(scope="package")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a cluster with two CPUs, to which this process is connected."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install ray")
    token = tmp_path_factory.mktemp("ray") / "token"  # else Ray would put one into the user's home
    token.write_text(secrets.token_hex(32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("PYTHONPATH", str(Path(deadly.__file__).parent), prepend=os.pathsep)
        context = ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        yield context.address_info["gcs_address"]
        ray.shutdown()
