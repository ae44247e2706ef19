"""The command `hyrt` and its subcommands."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from typing import Annotated, Any, NoReturn, TextIO

import typer

from hyrt import __version__
from hyrt.cli.calibrate import calibrate
from hyrt.cli.datasets.data import data_app
from hyrt.cli.datasets.partition import partition
from hyrt.cli.devices import devices
from hyrt.cli.doctor import doctor
from hyrt.cli.fpga import fpga_app
from hyrt.cli.init import init
from hyrt.cli.options import Command, Group, RankCommand
from hyrt.cli.plot import plot
from hyrt.cli.predict import predict
from hyrt.cli.report import report
from hyrt.cli.run import run
from hyrt.cli.trained.eval_infer import evaluate, infer
from hyrt.cli.trained.export import export
from hyrt.distributed.launch import rank_prefix
from hyrt.errors import (
    ConfigError,
    DataWarning,
    HyrtError,
    Interrupted,
    MachineWarning,
    RunWarning,
    SettingWarning,
    Terminated,
    one_line,
    readable,
    told_of_system,
)
from hyrt.machine.kernels.kernel_cache import check_compiler
from hyrt.machine.this_process.process_end import ends_whole, exits_told
from hyrt.machine.this_process.stop_signals import STOP_SIGNALS
from hyrt.report.terminal.printed_lines import replace_letters

_OUR_WARNINGS = (DataWarning, MachineWarning, RunWarning, SettingWarning)
_ENDS = tuple(number for number in STOP_SIGNALS if number != signal.SIGINT)
_OTHER_NAMES = {
    **dict.fromkeys(("train", "fit", "start", "resume"), "run"),
    **dict.fromkeys(("evaluate", "test", "validate"), "eval"),
    **{word: f"data {word}" for word in ("convert", "generate", "import", "info")},
    "inference": "infer",
    "save": "export",
    "benchmark": "calibrate",
}


@contextlib.contextmanager
def _interruption_told() -> Iterator[None]:
    """End with a line where Ctrl-C comes, or where a plug-in raises what only Ctrl-C should."""
    try:
        yield
    except Interrupted:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except KeyboardInterrupt as error:
        # As a library's own handler, or code that means to leave: nobody has pressed Ctrl-C.
        _end(
            error,
            f"KeyboardInterrupt was raised at {_place(error)}, and no Ctrl-C has come: raise another "
            "exception there, or run without the package that it belongs to",
            1,
        )


class _Commands(Group):
    """What every command does besides.

    Click says no word of Ctrl-C.
    """

    def invoke(self, ctx: Any) -> Any:
        with _interruption_told():
            return super().invoke(ctx)

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _interruption_told():
            return super().make_context(*args, **kwargs)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first word names; what other programs call it is told in ours."""
        other = _OTHER_NAMES.get(args[0]) if args else None
        if other is not None and self.get_command(ctx, args[0]) is None:
            raise ConfigError(f"there is no command {args[0]!r}: write hyrt {other}")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Commands,
    help="Train graph neural networks on all the devices of one machine together.",
    epilog="Start with: hyrt run. Then see: hyrt run --help, hyrt run --print-config.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
_COMMANDS = (run, init, evaluate, infer, export, partition, devices, doctor, calibrate, predict, report, plot)
for command in _COMMANDS:
    kind = RankCommand if command is run else Command
    app.command("eval" if command is evaluate else None, cls=kind)(command)
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
    replace_letters()
    # What crashes in a driver or a plug-in is named with its Python line, not by the signal alone.
    faulthandler.enable()
    # So that a command's `finally` clears up its temporary files; under nohup a terminal may close.
    for number in _ENDS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, Terminated.raised)
    warnings.showwarning = _show_warning
    for kind in _OUR_WARNINGS:
        # Also where all warnings are to be errors: they would end the command in a traceback.
        warnings.simplefilter("default", kind)
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, Interrupted.raised)
    with ends_whole(), exits_told():
        _run_command()


def _run_command() -> NoReturn:
    try:
        with _interruption_told():
            _check_current_folder()
            check_compiler()
            app(prog_name="hyrt")
    except HyrtError as error:
        _end(error, str(error), error.exit_code)
    except OSError as error:
        where = os.fsdecode(error.filename) if error.filename else "the output cannot be written"
        if error.errno is None:
            # As of a library that there is no memory for.
            where = "something of this machine cannot be used"
        _end(error, f"{where}: {one_line(told_of_system(error))}", 1)
    except MemoryError as error:
        what = one_line(str(error))
        _end(
            error,
            f"memory ran out{f' ({what})' if what else ''}: free some, allow more (ulimit -v), or give a "
            "smaller dataset or model",
            1,
        )
    except RuntimeError as error:
        if "can't start new thread" not in str(error):
            raise
        _end(
            error,
            "no more threads can be started: allow more (ulimit -u, ulimit -v), or end other programs",
            1,
        )
    except ImportError as error:
        name = (error.name or "a package").partition(".")[0]
        _end(
            error, f"{name} cannot be imported ({one_line(str(error))}): see what `hyrt doctor` says of it", 1
        )
    finally:
        # All is cleared up: while the interpreter ends, an exception of the handler would only be noise.
        for number in _ENDS:
            if signal.getsignal(number) == Terminated.raised:
                signal.signal(number, signal.SIG_DFL)
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
    print(f"warning: {message}" if category in _OUR_WARNINGS else text.rstrip(), file=file or sys.stderr)


def _check_current_folder() -> None:
    """Of a folder that was deleted, libraries that load others end the process in their own words.

    In one that may not be entered, no file is found by a name that does not begin with /.
    """
    for look, what in ((os.getcwd, "is gone"), (lambda: os.stat("."), "may not be entered")):
        try:
            look()
        except OSError as error:
            raise ConfigError(f"the current folder {what} ({error.strerror}): change to another") from None


def _occupy_closed_streams() -> None:
    """Else (`hyrt ... >&-`) a file hyrt opens gets the number of one, and what is printed lands in it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # Like the streams that it stands for, it stays open to the end.
            nothing = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(nothing, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def _place(error: BaseException) -> str:
    """File and line that have raised an error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "an unknown place" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


def _printable(text: str) -> str:
    """Return text whose letters that cannot be printed are written as escapes."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in readable(text)
    )


def _end(error: BaseException, message: str, exit_code: int) -> NoReturn:
    if os.environ.get("HYRT_TRACEBACK"):
        raise error
    for note in getattr(error, "__notes__", ()):
        print(f"warning: {note}", file=sys.stderr)
    # An error is one line, also of a file whose name has two; a report has lines of its own.
    has_lines = isinstance(error, HyrtError) and error.has_lines
    message = "\n".join(_printable(line) for line in (message.split("\n") if has_lines else [message]))
    prefix = rank_prefix()
    is_whole = message.startswith("error in ") and not prefix
    print(message if is_whole else f"error: {prefix}{message}", file=sys.stderr)
    if prefix:
        sys.stdout.flush()
        sys.stderr.flush()
        if isinstance(error, HyrtError) and error.others_wait:
            from hyrt.distributed.joining.unjoined import tell_why_unjoined

            # Whoever has pressed Ctrl-C meanwhile does not want to wait.
            with contextlib.suppress(KeyboardInterrupt, SystemExit):
                tell_why_unjoined(error)
        # The interpreter's end would wait for operations with ranks that are gone.
        os._exit(exit_code)
    sys.exit(exit_code)
