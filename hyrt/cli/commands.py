"""The command `hyrt` and its subcommands."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import warnings
from typing import Annotated, Any, NoReturn, TextIO

import typer
from typer.core import TyperGroup

from hyrt import __version__
from hyrt.cli.calibrate import calibrate
from hyrt.cli.data import data_app
from hyrt.cli.devices import devices
from hyrt.cli.doctor import doctor
from hyrt.cli.eval_infer import evaluate, infer
from hyrt.cli.fpga import fpga_app
from hyrt.cli.options import Command
from hyrt.cli.predict import predict
from hyrt.cli.report import report
from hyrt.cli.run import run
from hyrt.errors import DataWarning, HyrtError
from hyrt.machine.kernel_cache import damaged_cache_named


class _Commands(TyperGroup):
    """What every command does besides: click makes of numba's EOFError the single word "Aborted!"."""

    def invoke(self, ctx: Any) -> Any:
        with damaged_cache_named():
            return super().invoke(ctx)


app = typer.Typer(
    cls=_Commands,
    help="Train graph neural networks on all the devices of one machine together.",
    epilog="Start with: hyrt run. Then see: hyrt run --help, hyrt run --print-config.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
for command in (run, evaluate, infer, devices, doctor, calibrate, predict, report):
    app.command("eval" if command is evaluate else None, cls=Command)(command)
app.add_typer(data_app, name="data")
app.add_typer(fpga_app, name="fpga")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hyrt {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Options before any command."""


def main() -> NoReturn:
    """Run the command line; a user's error is one line, its exit code that of the error.

    With HYRT_TRACEBACK=1 in the environment such errors show where they came from.
    """
    _occupy_closed_streams()
    # What crashes in a driver or a plug-in is named with its Python line, not by the signal alone.
    faulthandler.enable()
    # So that a command's `finally` clears up its temporary files.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    warnings.showwarning = _show_warning
    try:
        app(prog_name="hyrt")
    except HyrtError as error:
        _end(error, str(error), error.exit_code)
    except OSError as error:
        _end(error, f"{error.filename}: {error.strerror}" if error.filename else str(error), 1)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        # All is cleared up: while the interpreter ends, an exception of the handler would only be noise.
        if signal.getsignal(signal.SIGTERM) != signal.SIG_IGN:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.exit(0)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """What hyrt warns of, in a line like its errors; others' warnings say where they come from."""
    text = warnings.formatwarning(message, category, filename, lineno, line)
    print(f"warning: {message}" if category is DataWarning else text.rstrip(), file=file or sys.stderr)


def _occupy_closed_streams() -> None:
    """Else (`hyrt ... >&-`) a file hyrt opens gets the number of one, and what is printed lands in it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _end(error: Exception, message: str, exit_code: int) -> NoReturn:
    if os.environ.get("HYRT_TRACEBACK"):
        raise error
    for note in getattr(error, "__notes__", ()):
        print(f"warning: {note}", file=sys.stderr)
    print(f"error: {message}", file=sys.stderr)
    sys.exit(exit_code)
