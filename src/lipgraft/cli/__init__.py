"""The command line: one thin command per verb. This file registers them and turns errors into one line.

Commands import PyTorch, and the rooms that need it, when they run: help and wrong usage are answered without.
"""

from __future__ import annotations

import atexit
import gc
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from lipgraft.cli import (
    attack,
    bench,
    check,
    data,
    export,
    graft,
    lipschitz,
    report,
    reproduce,
    run,
    train,
    verify,
    vnnlib,
    watch,
    zoo,
)
from lipgraft.cli.common import say
from lipgraft.errors import LipgraftError
from lipgraft.version import __version__

ERROR, USAGE, INTERRUPTED = 1, 2, 130  # exit codes
GO_ON = "What was finished is kept; run the same command again to continue (`train`: with --resume)."
KEEP_NOTHING = ("attack", "check", "data", "export", "graft", "lipschitz", "report", "watch", "zoo")
"""Commands that begin anew when they are given again."""

app = typer.Typer(
    name="lipgraft",
    help="Make an adversarially trained PyTorch network provably robust, and prove it.",
    epilog="Example:\n\nlipgraft run quickstart",
    pretty_exceptions_enable=False,
)

# One line per verb.
app.command("run", epilog=run.EPILOG)(run.run)
app.command("train", epilog=train.EPILOG)(train.train)
app.command("graft", epilog=graft.EPILOG)(graft.graft)
app.command("verify", epilog=verify.EPILOG)(verify.verify)
app.command("check", epilog=check.EPILOG)(check.check)
app.command("vnnlib", epilog=vnnlib.EPILOG)(vnnlib.vnnlib)
app.command("attack", epilog=attack.EPILOG)(attack.attack)
app.command("lipschitz", epilog=lipschitz.EPILOG)(lipschitz.lipschitz)
app.command("export", epilog=export.EPILOG)(export.export)
app.command("reproduce", epilog=reproduce.EPILOG)(reproduce.reproduce)
app.command("report", epilog=report.EPILOG)(report.report)
app.command("watch", epilog=watch.EPILOG)(watch.watch)
app.add_typer(bench.app, name="bench")
app.add_typer(data.app, name="data")
app.add_typer(zoo.app, name="zoo")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lipgraft {__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; may appear anywhere on the command line.")
    ] = False,
) -> None:
    """Options of every command; --debug is taken off the line by `main`, and stands here for the help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 1 for an error, 2 for a wrong usage, 130 for Ctrl-C."""
    if arguments is None:  # the process ends with the command
        atexit.register(gc.freeze)  # Python would look for garbage among all of PyTorch's objects, which takes 0.3 s
    line = list(sys.argv[1:] if arguments is None else arguments)
    rest = [argument for argument in line if argument != "--debug"]
    if any(not argument or re.fullmatch("--[a-z-]+=", argument) for argument in rest):
        say(
            "error: an argument is empty, perhaps by an unset variable of the shell; give it or leave it out.",
            err=True,
        )
        return USAGE
    return execute(app, rest or ["--help"], debug=len(rest) < len(line))


def execute(commands: typer.Typer, line: list[str], *, debug: bool = False) -> int:
    """Run a command line; a LipgraftError or a failure of the GPU becomes one line on standard error."""
    go_on = "" if line[:1] and line[0] in KEEP_NOTHING else GO_ON
    usage_error: Any = typer.BadParameter.__mro__[1]  # click's UsageError, which newer Typer versions carry inside
    try:
        code = commands(args=line, prog_name="lipgraft", standalone_mode=False)
    except LipgraftError as error:
        return _fail(error, str(error), ERROR, debug)
    except OSError as error:  # a disk, a folder or a name that the system refuses; nothing here can repair it
        place = f"{error.filename}: " if error.filename is not None else ""
        return _fail(error, f"{place}{error.strerror or error}. {go_on}", ERROR, debug)
    except usage_error as error:
        context = getattr(error, "ctx", None)
        hint = f"; try `{context.command_path} --help`." if context is not None else "."
        message: str = error.format_message()
        return _fail(error, message.rstrip(".") + hint, USAGE, debug)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except RuntimeError as error:
        if not _of_device(error):
            raise
        reason = str(error).partition("\n")[0]
        return _fail(error, f"the device failed: {reason}. {go_on}", ERROR, debug)
    if code == INTERRUPTED:  # some Typer versions turn Ctrl-C into this exit code themselves
        typer.echo(f"interrupted. {go_on}".rstrip(), err=True)
    return code if isinstance(code, int) else 0


def _of_device(error: RuntimeError) -> bool:
    import torch

    return isinstance(error, torch.AcceleratorError)


def _fail(error: BaseException, message: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    say(f"error: {' '.join(message.split())}", err=True)
    return code
