"""The command `hyrt` with its subcommands."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import warnings
from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Annotated, Any, NoReturn, TextIO

import typer
from typer.main import get_command

from hyrt import __version__
from hyrt.cli.options import Command, Group, RankCommand
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
    printable,
    system_error_text,
)
from hyrt.report.printed_lines import install_encoding_fallback
from hyrt.runtime.process_setup import check_compiler
from hyrt.runtime.shutdown import STOP_SIGNALS, exit_cleanly, report_os_exit

_HYRT_WARNINGS = (DataWarning, MachineWarning, RunWarning, SettingWarning)
_TERMINATION_SIGNALS = tuple(number for number in STOP_SIGNALS if number != signal.SIGINT)
_COMMAND_ALIASES = {
    **dict.fromkeys(("train", "fit", "start", "resume"), "run"),
    **dict.fromkeys(("evaluate", "test", "validate"), "eval"),
    **{word: f"data {word}" for word in ("convert", "generate", "import", "info")},
    "inference": "infer",
    "save": "export",
    "benchmark": "calibrate",
}


@contextlib.contextmanager
def _report_interruption() -> Iterator[None]:
    """Handle Ctrl-C, and a KeyboardInterrupt of a plug-in, with a one-line message and an exit code."""
    try:
        yield
    except Interrupted:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except KeyboardInterrupt as error:
        # This KeyboardInterrupt is not due to SIGINT: a library may have raised it.
        _end(
            error,
            f"KeyboardInterrupt was raised at {_source_line(error)} without Ctrl-C: raise a "
            "different exception there, or run without that package",
            1,
        )


# Function or group below hyrt.cli, and summary, of each command. `hyrt --help` prints the summaries without
# importing the commands, which would take longer than everything else.
_COMMANDS = {
    "run": ("run.run", "Train a model."),
    "init": ("init.init", "Write a settings file for your data, which you can then edit."),
    "eval": ("eval_infer.evaluate", "Evaluate the weights of a run."),
    "infer": ("eval_infer.infer", "Compute scores, classes or embeddings of vertices or links."),
    "export": ("export.export", "Write a trained model as a plain PyTorch module."),
    "partition": ("partition.partition", "Partition a graph, with one part for each rank of a run."),
    "devices": ("devices.devices", "Show the devices that can train, and why others cannot."),
    "doctor": ("doctor.doctor", "Check that this machine has what a run needs."),
    "calibrate": ("calibrate.calibrate", "Measure how fast this machine is."),
    "predict": ("predict.predict", "Predict how long training takes."),
    "report": ("report.report", "Write the report of a run, or compare several runs."),
    "plot": ("plot.plot", "Plot charts of a run, or compare several runs in each chart."),
    "data": ("data.data_app", "Inspect, import, convert and generate datasets."),
    "fpga": ("fpga.fpga_app", "Choose a trainer for an FPGA card and write its build files."),
}


class _LazyCommands(MutableMapping[str, Any]):
    """Commands by name, each of which is imported and built when it is first looked up."""

    def __init__(self) -> None:
        self._built: dict[str, Any] = dict.fromkeys(_COMMANDS)

    def __getitem__(self, name: str) -> Any:
        if self._built[name] is None:
            module, _, attribute = _COMMANDS[name][0].partition(".")
            definition = getattr(import_module(f"hyrt.cli.{module}"), attribute)
            if not isinstance(definition, typer.Typer):
                function, definition = definition, typer.Typer(add_completion=False, rich_markup_mode=None)
                definition.command(name, cls=RankCommand if name == "run" else Command)(function)
            definition.pretty_exceptions_enable = False
            self._built[name] = get_command(definition)
            self._built[name].name = name
        return self._built[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._built[name] = command

    def __delitem__(self, name: str) -> None:
        del self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._built)

    def __len__(self) -> int:
        return len(self._built)


class _Commands(Group):
    """Root command group, which imports commands lazily and replaces Click's handling of Ctrl-C.

    Click itself would exit without a message.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.commands = _LazyCommands()

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the names and summaries of all commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in _COMMANDS.items()])

    def invoke(self, ctx: Any) -> Any:
        with _report_interruption():
            return super().invoke(ctx)

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _report_interruption():
            return super().make_context(*args, **kwargs)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command named by the first argument. For names of other programs, suggest
        hyrt's name.
        """
        alias = _COMMAND_ALIASES.get(args[0]) if args else None
        if alias is not None and self.get_command(ctx, args[0]) is None:
            raise ConfigError(f"unknown command {args[0]!r}: use hyrt {alias}")
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


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"hyrt {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Handle the options that precede the command."""


def main() -> NoReturn:
    """Run the command line. Print a user error as one line, and exit with the error's exit code.

    With HYRT_TRACEBACK=1 in the environment, such errors are shown with their traceback.
    """
    _occupy_closed_streams()
    install_encoding_fallback()
    # On a crash in a driver or plug-in, report the Python line and not only the signal.
    faulthandler.enable()
    # Convert the signals, so that `finally` blocks remove temporary files. Under nohup, SIGHUP stays ignored.
    for number in _TERMINATION_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, Terminated.handle_signal)
    warnings.showwarning = _show_warning
    for kind in _HYRT_WARNINGS:
        # Set this even with `-W error`, which would turn warnings into tracebacks.
        warnings.simplefilter("default", kind)
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, Interrupted.handle_signal)
    with exit_cleanly(), report_os_exit():
        _run_command()


def _run_command() -> NoReturn:
    try:
        with _report_interruption():
            _check_current_folder()
            check_compiler()
            app(prog_name="hyrt")
    except HyrtError as error:
        _end(error, str(error), error.exit_code)
    except OSError as error:
        subject = os.fsdecode(error.filename) if error.filename else "the output cannot be written"
        if error.errno is None:
            # For example, a library has run out of memory.
            subject = "a resource of this machine cannot be used"
        _end(error, f"{subject}: {one_line(system_error_text(error))}", 1)
    except MemoryError as error:
        detail = one_line(str(error))
        _end(
            error,
            f"memory ran out{f' ({detail})' if detail else ''}: free memory, allow more "
            "(ulimit -v), or use a smaller dataset or model",
            1,
        )
    except RuntimeError as error:
        if "can't start new thread" not in str(error):
            raise
        _end(
            error,
            "no more threads can be started: raise the limits (ulimit -u, ulimit -v), or stop other programs",
            1,
        )
    except ImportError as error:
        name = (error.name or "a package").partition(".")[0]
        _end(error, f"{name} cannot be imported ({one_line(str(error))}): see the output of `hyrt doctor`", 1)
    finally:
        # Cleanup is done: from now on, an exception in the handler would only print a second error.
        for number in _TERMINATION_SIGNALS:
            if signal.getsignal(number) == Terminated.handle_signal:
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
    """Print warnings of hyrt as one line, like its errors, and other warnings with their source location."""
    text = warnings.formatwarning(message, category, filename, lineno, line)
    print(f"warning: {message}" if category in _HYRT_WARNINGS else text.rstrip(), file=file or sys.stderr)


def _check_current_folder() -> None:
    """Check that the current folder exists and is accessible.

    Otherwise libraries that load other libraries would exit with unhelpful errors, and relative paths would
    fail.
    """
    for access, problem in ((os.getcwd, "no longer exists"), (lambda: os.stat("."), "cannot be accessed")):
        try:
            access()
        except OSError as error:
            raise ConfigError(
                f"the current folder {problem} ({error.strerror}): change to another folder"
            ) from None


def _occupy_closed_streams() -> None:
    """Reopen closed standard streams on /dev/null.

    Otherwise (`hyrt ... >&-`) a file that hyrt opens would get the stream's descriptor and receive printed
    output.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # Leave it open until the process ends, like a standard stream.
            descriptor = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def _source_line(error: BaseException) -> str:
    """Return the file and the line in which an error was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return (
        "an unknown location" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
    )


def _end(error: BaseException, message: str, exit_code: int) -> NoReturn:
    if os.environ.get("HYRT_TRACEBACK"):
        raise error
    for note in getattr(error, "__notes__", ()):
        print(f"warning: {note}", file=sys.stderr)
    # Only reports have several lines. Any other error is one line, even if a file name contains a newline.
    has_lines = isinstance(error, HyrtError) and error.is_multiline
    message = "\n".join(printable(line) for line in (message.split("\n") if has_lines else [message]))
    prefix = rank_prefix()
    is_whole = message.startswith("error in ") and not prefix
    print(message if is_whole else f"error: {prefix}{message}", file=sys.stderr)
    if prefix:
        sys.stdout.flush()
        sys.stderr.flush()
        if isinstance(error, HyrtError) and error.peers_wait:
            from hyrt.distributed.rendezvous import report_join_failure

            # A user who presses Ctrl-C now does not want to wait.
            with contextlib.suppress(KeyboardInterrupt, SystemExit):
                report_join_failure(error)
        # A regular exit of the interpreter would wait for operations with lost ranks.
        os._exit(exit_code)
    sys.exit(exit_code)
