"""lipgraft verify CHECKPOINT: proofs and counterexamples for the test images of a data set."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lipgraft.cli.cluster import ClusterOption, WorkersOption, check_workers, workers_of
from lipgraft.cli.common import (
    ArithmeticOption,
    DataOption,
    DataRootOption,
    DeviceOption,
    EpsOption,
    JsonOption,
    SeedOption,
    SpeaksOfOption,
    ThreadsOption,
    VerifierOption,
    check_own,
    example,
    loading,
    print_json,
    print_table,
    resolve_device,
    say,
    verifier_settings,
)
from lipgraft.errors import SettingsError
from lipgraft.files import atomic_write_text, check_folder
from lipgraft.settings import build, to_mapping

if TYPE_CHECKING:
    import torch

    from lipgraft.runs import Row
    from lipgraft.verification import Measures, VerifySettings

EPILOG = example(
    "lipgraft verify model.safetensors --data cifar10 --eps 2/255 --count 1000 --timeout 300",
    "lipgraft verify model.safetensors --data digits --eps 0.05 --out runs/digits --arithmetic fast --json",
    "lipgraft verify model.safetensors --data digits --eps 0.05 --certificates proofs && lipgraft check proofs",
    "lipgraft verify model.safetensors --data cifar10 --eps 2/255 --count 1000 --timeout 3000 --again",
    "lipgraft verify model.safetensors --data cifar10 --eps 2/255 --cluster local --workers 4",
)


def _moved(value: str | None) -> None:
    """Options of an older version; their answer is where the question belongs now."""
    if value is not None:
        raise SettingsError(
            "ONNX networks and VNNLIB properties have their own command: `lipgraft vnnlib NET SPEC`, or "
            "`lipgraft vnnlib --instances TABLE`."
        )


def verify(
    checkpoint: Annotated[Path, typer.Argument(help="The network to verify: a file, or module:function.")],
    data: DataOption,
    eps: EpsOption,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Folder of the run; an existing run is continued. Default: a folder in runs/ named after "
            "checkpoint, data and eps.",
        ),
    ] = None,
    start: Annotated[int, typer.Option(min=0, help="Number of the first test image.")] = 0,
    count: Annotated[int | None, typer.Option(min=1, help="Number of test images; default all that follow.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds per image; default 300.")] = None,
    total_seconds: Annotated[float | None, typer.Option(help="Wall time for the whole run; default no limit.")] = None,
    again: Annotated[
        bool,
        typer.Option("--again", help="Try images that the run left unknown once more; other limits are allowed."),
    ] = False,
    arithmetic: ArithmeticOption = None,
    speaks_of: SpeaksOfOption = None,
    certificates: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for a file per proof and counterexample, for `lipgraft check`."),
    ] = None,
    set_: VerifierOption = None,
    data_root: DataRootOption = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    cluster: ClusterOption = None,
    workers: WorkersOption = None,
    seed: SeedOption = 0,
    json: JsonOption = False,
    moved: Annotated[
        str | None,
        typer.Option("--onnx", "--vnnlib", "--instances", "--results", hidden=True, is_eager=True, callback=_moved),
    ] = None,
) -> None:
    """Prove or refute, for each image, that no input within eps changes the class; print SA, RA, VA, UNR and Time.

    Every verdict is saved at once: after Ctrl-C or a crash, the same command continues where it stopped.
    """
    with loading():
        from lipgraft import data as datasets
        from lipgraft.cli.model import load_model
        from lipgraft.runs import RESULTS, verify_run
        from lipgraft.runs.progress import VerifyProgress
        from lipgraft.verification import VerifySettings, measure, verify_stream

    check_workers(cluster, workers)
    limits = {"limits.timeout": timeout, "limits.total_seconds": total_seconds}
    chosen = verifier_settings({**limits, "arithmetic": arithmetic, "speaks_of": speaks_of, "attack.seed": seed}, set_)
    settings = build(VerifySettings, chosen, where="verify")
    where = resolve_device(device if cluster is None else "cpu")
    run = out or default_run(checkpoint, data, eps)
    if again and not (run / RESULTS).is_file():
        raise SettingsError(f"there is no run in {run} to try again; leave out --again to start one.")
    folders = [run] if certificates is None else [run, certificates]
    for folder in folders:
        check_own(folder, proofs=folder == certificates)
    dataset = datasets.load(data, root=data_root).to(where)
    model = load_model(checkpoint, dataset, where)
    for folder in folders:  # only now: misspelt names leave no folder behind
        check_folder(folder)
    with (
        workers_of(cluster, workers, device, threads) as crew,
        VerifyProgress(settings=settings, workers=None if crew is None else crew.states) as progress,
    ):

        def started(total: int, before: list[Row]) -> None:
            """The store has accepted the settings: they are those of the run."""
            _write_config(run, checkpoint, data, eps, settings, where, again)
            progress.started(total, before)

        rows = verify_run(
            model,
            dataset,
            eps,
            run,
            start=start,
            count=count,
            settings=settings,
            started=started,
            decided=progress.decided,
            watch=progress.bounded,
            certificates=certificates,
            stream=verify_stream if crew is None else crew.verify_stream,
            again=again,
        )
    measures = measure([row.verdict for row in rows])
    if json:
        print_json(
            {
                "measures": {**asdict(measures), "over": measures.over},
                "images": [_plain(row) for row in rows],
                "run": str(run),
            }
        )
    else:
        _print(measures, rows, f"{checkpoint.name} on {data}, eps {eps:.5g}")
        say(f"Run: {run.resolve()}")
        if certificates is not None:
            command = f"lipgraft check {shlex.quote(str(certificates))}"
            say(f"Certificates: {certificates.resolve()}; `{command}` checks them.")
    if measures.error == measures.count:
        raise typer.Exit(1)


def default_run(checkpoint: Path, data: str, eps: float) -> Path:
    """A folder under runs/ that the same question finds again, such as runs/verify-base-best-cifar10-2-255.

    Every training calls its checkpoints best and last; the run that they are of tells them apart.
    """
    from lipgraft.report.results import readable_eps

    model = checkpoint.name.removesuffix(".safetensors")
    if checkpoint.parent.name == "checkpoints":
        model = f"{checkpoint.resolve().parent.parent.name}-{model}"
    name = f"verify-{model}-{Path(data).name.removesuffix('.npz')}-{readable_eps(eps)}"
    return Path("runs") / re.sub(r"[^\w.-]+", "-", name)


def _write_config(
    run: Path, checkpoint: Path, data: str, eps: float, settings: VerifySettings, device: torch.device, again: bool
) -> None:
    """What the run was started with, for people; the results file itself refuses other settings.

    again: a second try, whose limits are those of the run from now on.
    """
    from lipgraft import yaml_text
    from lipgraft.runs.provenance import hardware, versions

    file = run / "config.yaml"
    if file.exists() and not again:
        return
    asked = {"checkpoint": str(checkpoint), "data": data, "eps": eps, "verify": to_mapping(settings)}
    atomic_write_text(file, yaml_text.dump({**asked, "versions": versions(), "hardware": hardware(device)}))


def _plain(row: Row) -> dict[str, Any]:
    """A row for JSON; the counterexample stays in the results file."""
    v = row.verdict
    facts = {
        name: getattr(v, name)
        for name in (
            "status",
            "reason",
            "method",
            "margin",
            "seconds",
            "ended",
            "subproblems",
            "unstable",
            "correct",
            "attacked",
        )
    }
    return {"image": row.image, "label": row.label, **facts, "counterexample": v.counterexample is not None}


def _print(m: Measures, rows: Sequence[Row], title: str) -> None:
    shares = ("-" if share is None else f"{share:.2%}" for share in (m.sa, m.ra, m.va, m.unr))
    time = "-" if m.time is None else f"{m.time:.3g} s"
    print_table(("", "SA", "RA", "VA", "UNR", "Time"), [("", *shares, time), ("of images", *m.over.values())], title)
    errors = Counter(row.verdict.reason for row in rows if row.verdict.status == "error")
    unknown, error = f"unknown {m.unknown}{_reasons(m.reasons)}", f"error {m.error}{_reasons(errors)}"
    say(f"verified {m.verified}, falsified {m.falsified}, {unknown}, {error}")


def _reasons(counts: Mapping[Any, int]) -> str:
    parts = ", ".join(f"{reason} {count}" for reason, count in counts.items())
    return f" ({parts})" if parts else ""
