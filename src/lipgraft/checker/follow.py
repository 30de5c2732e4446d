"""Checking proofs while more of them are found: in a process of its own, which uses another core.

`python -m lipgraft.checker.follow` reads the paths of certificates, a line of JSON each, checks them with the network
beside them, and prints the outcomes when there are no more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from lipgraft.checker.folder import NETWORK, Outcome, check_file
from lipgraft.checker.network import Rejected


class Follower:
    """The process. `add` hands it a certificate, `outcomes` waits for what is left; on an error it is ended."""

    def __init__(self) -> None:
        # It finds lipgraft where this process does. Ctrl-C is for the run alone, which then ends it.
        self._process = subprocess.Popen(
            (sys.executable, "-P", "-m", __name__),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **_one_core(), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
            text=True,
        )
        self._added: set[Path] = set()

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def add(self, path: Path) -> None:
        """Check this proof too; one that was added before is not checked again."""
        if path in self._added:
            return
        self._added.add(path)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(str(path.absolute())) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise _ended() from None

    def outcomes(self) -> list[Outcome]:
        """Of all that were added, in their order."""
        printed, _ = self._process.communicate()
        if self._process.returncode != 0:
            raise _ended()
        return [Outcome(**outcome) for outcome in json.loads(printed)]


def _ended() -> Rejected:
    return Rejected(
        "the process that checks proofs was ended from outside, perhaps for want of memory; "
        "start the run again: what is decided is kept."
    )


def _one_core() -> dict[str, str]:
    return dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def main() -> None:
    """The process itself."""
    paths = (Path(json.loads(line)) for line in sys.stdin)
    json.dump([asdict(check_file(path, path.parent / NETWORK)) for path in paths], sys.stdout)


if __name__ == "__main__":
    main()
