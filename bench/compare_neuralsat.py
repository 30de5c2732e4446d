"""Compare lipgraft with NeuralSAT, an independent verifier, on an exported instances.csv.

    lipgraft export model.safetensors --data digits --eps 0.1 --indices 0:30 --out exported
    python -m venv /tmp/neuralsat && /tmp/neuralsat/bin/pip install neuralsat
    python bench/compare_neuralsat.py exported/instances.csv --python /tmp/neuralsat/bin/python --timeout 60

NeuralSAT wants an environment of its own: it pins packages that lipgraft does not, and its top-level module is called
`src`. Both verifiers run on the CPU, one instance after the other. Verdicts of which one is "sat" and the other "unsat"
contradict each other, and make this script fail; where one of them does not decide, there is nothing to compare.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from lipgraft.errors import LipgraftError
from lipgraft.interop import read_instances, verify_instances

DECIDED = ("sat", "unsat")
FIND = (
    "import importlib.metadata as m, importlib.util as u\n"
    "print(m.version('neuralsat')); print(list(u.find_spec('src').submodule_search_locations)[0])"
)


@dataclass(frozen=True)
class Row:
    """One instance, as both verifiers see it."""

    vnnlib: str
    lipgraft: str
    lipgraft_seconds: float
    neuralsat: str
    neuralsat_seconds: float

    @property
    def both_decide(self) -> bool:
        return self.lipgraft in DECIDED and self.neuralsat in DECIDED


def find_neuralsat(python: str) -> tuple[str, Path] | None:
    """NeuralSAT's version and its main script in that environment; None if it is not there."""
    try:
        found = subprocess.run([python, "-c", FIND], capture_output=True, text=True, check=False)
    except OSError:
        return None
    lines = found.stdout.split("\n")
    main = Path(lines[1]) / "main.py" if found.returncode == 0 and len(lines) > 1 else None
    return (lines[0], main) if main is not None and main.is_file() else None


def neuralsat(python: str, main: Path, onnx: Path, vnnlib: Path, timeout: float) -> tuple[str, float]:
    """NeuralSAT's word for one instance, and its seconds, starting up included."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.txt"
        line = [python, str(main), "--net", str(onnx), "--spec", str(vnnlib), "--device", "cpu", "--verbosity", "0"]
        line += ["--timeout", f"{timeout:g}", "--result_file", str(result)]
        began = time.perf_counter()
        try:
            subprocess.run(line, capture_output=True, check=False, timeout=2 * timeout + 120)
        except subprocess.TimeoutExpired:
            return "timeout", time.perf_counter() - began
        seconds = time.perf_counter() - began
        word = result.read_text().split(maxsplit=1)[0].lower() if result.exists() else "error"
    return word, seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("instances", type=Path, help="an instances.csv, as `lipgraft export` writes it")
    parser.add_argument("--python", default=sys.executable, help="interpreter of an environment with NeuralSAT")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds per instance, for both")
    parser.add_argument("--json", type=Path, help="also write the table here")
    options = parser.parse_args()
    found = find_neuralsat(options.python)
    if found is None:
        print(f"NeuralSAT is not installed for {options.python}: nothing was compared.")
        print("Install it where it can be (`pip install neuralsat`, in an environment of its own); then give --python.")
        return 2
    version, script = found
    folder = options.instances.parent
    try:
        instances = read_instances(options.instances)
        ours = verify_instances(options.instances, timeout=options.timeout).results
    except LipgraftError as error:
        print(f"error: {error}")
        return 1
    rows = []
    for instance, own in zip(instances, ours, strict=True):
        files = folder / instance.onnx, folder / instance.vnnlib
        word, seconds = neuralsat(options.python, script, *files, options.timeout)
        rows.append(Row(instance.vnnlib, own.status, own.seconds, word, round(seconds, 2)))
        print(
            f"{rows[-1].vnnlib:28} lipgraft {own.status:8} {own.seconds:7.2f} s   neuralsat {word:8} {seconds:7.2f} s"
        )
        sys.stdout.flush()
    compared = [row for row in rows if row.both_decide]
    against = [row for row in compared if row.lipgraft != row.neuralsat]
    print(
        f"NeuralSAT {version}: {len(rows)} instances, both decide {len(compared)}, agree on "
        f"{len(compared) - len(against)}, contradict each other on {len(against)}"
    )
    if options.json is not None:
        options.json.write_text(json.dumps({"neuralsat": version, "rows": [asdict(row) for row in rows]}, indent=2))
    return 1 if against else 0


if __name__ == "__main__":
    raise SystemExit(main())
