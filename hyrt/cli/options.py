"""Arguments and options that several commands share, and error messages for invalid ones."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from hyrt_perfmodel.suggestions import nearest_name
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from hyrt_perfmodel.workload import TrainingWorkload

# Base class of all parser errors, which typer imports from click or defines itself.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
_RENAMED_OPTIONS = {
    "--homes": "--partition-map",
    "--most-vertices": "--max-vertices",
    "--rows": "--feature-dtype",
    "--what": "--output-kind",
}
# Click raises this error, but only to print the help.
_HELP_ERROR = "NoArgsIsHelpError"

Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CONFIG.yaml] [key.path=value ...]",
        help="A settings file, and changes to settings, such as train.epochs=5 model.hidden=256.",
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        metavar="SOURCE",
        help="The dataset: a .npz file, a folder of .npy files, or a name such as ogbn-products.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="KIND",
        help="The model: graphsage, gcn, gin, gat, ggcn, ggnn, commnet, deepgcn, gnn-film; "
        "gine, edge-gat for edge features; rgcn, rsage, rgat, hgt for heterogeneous "
        "graphs; or a model of an installed package.",
    ),
]
Devices = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="The training devices, such as cpu,cuda:0; with shares, such as cpu=1,cuda:0=3; "
        "or auto. See hyrt devices.",
    ),
]
FullGraph = Annotated[
    bool,
    typer.Option(
        "--full-graph",
        help="Train on the whole graph in each step, with exact gradients and one step per epoch.",
    ),
]
Epochs = Annotated[str | None, typer.Option(metavar="N", help="Short for train.epochs=N.")]
LearningRate = Annotated[str | None, typer.Option("--lr", metavar="X", help="Short for train.lr=X.")]
Hidden = Annotated[str | None, typer.Option(metavar="N", help="Short for model.hidden=N.")]
Layers = Annotated[str | None, typer.Option(metavar="N", help="Short for model.layers=N.")]
BatchSize = Annotated[str | None, typer.Option(metavar="N", help="Short for data.batch_size=N.")]
Seed = Annotated[str | None, typer.Option(metavar="N", help="Short for seed=N.")]
Output = Annotated[
    Path, typer.Option(metavar="FOLDER", help="The folder in which the run folder is created.")
]
Workload = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.yaml", help="A workload file with all sizes, instead of a dataset and a model."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the output if it exists.")]


def load_workload_option(
    file: Path, arguments: Sequence[str], options: Mapping[str, object]
) -> TrainingWorkload:
    """Return the workload of `--workload`, which no other description of the workload may accompany.

    Raises
    ------
    ConfigError
        If there are settings or options that also describe the workload.
    """
    from hyrt_perfmodel.workload import load_workload

    from hyrt.errors import ConfigError

    used_options = [f"--{name}" for name, value in options.items() if value is not None]
    if arguments or used_options:
        raise ConfigError(
            f"--workload already sets all sizes: remove {', '.join([*used_options, *arguments])}"
        )
    return load_workload(file)


class Group(TyperGroup):
    """Command group that converts parser errors to one-line errors of hyrt."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments up to the command.

        Raises
        ------
        ConfigError
            If an option does not exist.
        """
        try:
            return super().parse_args(ctx, args)
        except _UsageError as error:
            if type(error).__name__ == _HELP_ERROR:
                raise
            raise _parser_error(ctx, error) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command named by the first argument.

        Raises
        ------
        ConfigError
            If it does not exist; the message suggests the nearest name.
        """
        from hyrt.errors import ConfigError

        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            near = nearest_name(name, self.list_commands(ctx))
            hint = f"did you mean {ctx.command_path} {near}?" if near else f"see {ctx.command_path} --help"
            raise ConfigError(f"unknown command {f'{ctx.command_path} {name}'!r}: {hint}")
        return super().resolve_command(ctx, args)


class Command(TyperCommand):
    """Command that rejects repeated options and explains settings that are written as options.

    Its help shows the arguments' metavars without Python types.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for argument in self._arguments():
            argument.get_help_record = partial(_record_without_type, argument.get_help_record)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line that follow the command."""
        return ["[OPTIONS]", *(str(argument.metavar or argument.name) for argument in self._arguments())]

    def _arguments(self) -> list[Any]:
        return [parameter for parameter in self.params if parameter.param_type_name == "argument"]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments after the command.

        Raises
        ------
        ConfigError
            If an option is repeated, empty, missing, unknown or has an invalid value; the message says what
            to write.
        """
        from hyrt.errors import ConfigError, join_names

        args = self._rename_old_options(args)
        try:
            values, _, used_options = self.make_parser(ctx).parse_args(args=list(args))
        except _UsageError as error:
            name = str(getattr(error, "option_name", ""))
            if hasattr(error, "possibilities"):
                raise ConfigError(
                    f"{name} is not an option of {ctx.command_path}: {self._suggestion(name, args)}"
                ) from None
            raise _parser_error(ctx, error) from None
        for option in used_options:
            if used_options.count(option) > 1 and getattr(option, "is_flag", None) is False:
                names = " or ".join(option.opts)
                join = ", with names separated by commas" if "--devices" in option.opts else ""
                raise ConfigError(f"{names} is specified more than once: specify it once{join}")
        self._check_empty(values)
        try:
            remaining = super().parse_args(ctx, args)
        except typer.BadParameter as error:
            from pydantic import ValidationError

            if error.param is None or hasattr(error, "param_type"):
                raise _parser_error(ctx, error) from None
            match = re.search(r"'(.*)' is not one of (.*)", error.message)
            if match is not None:
                choices = re.findall(r"'([^']+)'", match[2])
                raise ConfigError(
                    f"{error.param.opts[0]} {match[1]} must be {join_names(choices, 'or')}"
                ) from None
            if isinstance(error.__cause__, ValidationError):
                from hyrt.config.validation import expected_value, name_value

                first = error.__cause__.errors()[0]
                raise ConfigError(
                    name_value(f"{error.param.opts[0]} {first['input']}", expected_value(first))
                ) from None
            raise _parser_error(ctx, error) from None
        except _UsageError as error:
            raise _parser_error(ctx, error) from None
        for key, value in ctx.params.items():
            # The shell does not expand the tilde in `--output=~/runs`, so expand it here.
            if isinstance(value, Path):
                ctx.params[key] = _expand_home(value)
            elif isinstance(value, list):
                ctx.params[key] = [_expand_home(item) if isinstance(item, Path) else item for item in value]
        return remaining

    def _rename_old_options(self, args: Sequence[str]) -> list[str]:
        """Replace former names of options by the present names, with a warning."""
        options = {option for parameter in self.params for option in parameter.opts}
        renamed = []
        for word in args:
            name, equals, value = word.partition("=")
            new_name = _RENAMED_OPTIONS.get(name)
            if new_name in options and name not in options:
                from hyrt.errors import SettingWarning, warn_user

                warn_user(f"{name} was renamed: use {new_name}", SettingWarning)
                word = f"{new_name}{equals}{value}"
            renamed.append(word)
        return renamed

    def _check_empty(self, values: Mapping[str, Any]) -> None:
        """Reject empty values, for example from an unset shell variable.

        An empty path would mean the current folder.
        """
        from hyrt.errors import ConfigError

        for parameter in self.params:
            value = values.get(str(parameter.name))
            if value == "" or (isinstance(value, list | tuple) and "" in value):
                is_option = parameter.param_type_name == "option"
                name = (
                    " or ".join(parameter.opts)
                    if is_option
                    else f"the argument {parameter.metavar or parameter.name}"
                )
                omit = "" if parameter.required else ", or remove it"
                raise ConfigError(f"{name} is empty: set a value{omit}")

    def _suggestion(self, name: str, args: Sequence[str]) -> str:
        """Suggest a replacement for an option that does not exist."""
        from hyrt.errors import join_names

        file = next((word for word in args if word.startswith("-") and os.path.lexists(word)), None)
        if file is not None:
            return f"to name the file, write {shlex.quote(f'./{file}')}"
        options = [
            option for parameter in self.params for option in parameter.opts if option.startswith("--")
        ]
        if not name.startswith("--"):
            candidates = [option for option in options if option[2] == name[1]]
            return (
                f"did you mean {join_names(candidates, 'or')}?"
                if candidates
                else "use --help to list the options"
            )
        takes_settings = any(parameter.name == "arguments" for parameter in self.params)
        near = nearest_name(name, options, 0.75)
        word = name.removeprefix("--").replace("-", "_")
        setting = None
        if takes_settings:
            from hyrt.config.load import nearest_setting

            setting = nearest_setting(word)
        # `--seed` is exactly the name of a setting, and only similar to `--seeds`.
        is_setting = setting is not None and setting.rpartition(".")[2] == word
        if near and not is_setting:
            return f"did you mean {near}?"
        if takes_settings:
            if setting is not None:
                value = _presumed_value(name, args)
                return f"write {setting}={shlex.quote(value if ',' not in value else f'[{value}]')}"
        settings = ", and `hyrt run --print-config` to list the settings" if takes_settings else ""
        return f"use --help to list the options{settings}"


class RankCommand(Command):
    """Command of several ranks. If one rank cannot parse its arguments, all ranks report it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments after the command.

        Raises
        ------
        ConfigError
            The same as for `Command`.
        """
        from hyrt.distributed.launch import report_join_failures

        with report_join_failures():
            return super().parse_args(ctx, args)


def _expand_home(path: Path) -> Path:
    return Path(os.path.expanduser(path))


def _record_without_type(record: Callable[[Any], tuple[str, str] | None], ctx: Any) -> tuple[str, str] | None:
    """Return an argument's name without its type, and its help."""
    name_and_help = record(ctx)
    return name_and_help and (re.sub(r" <[^<>]*>$", "", name_and_help[0]), name_and_help[1])


def _parser_error(ctx: Any, error: Any) -> Exception:
    """Convert a parser error to a one-line error of hyrt."""
    from hyrt.errors import ConfigError

    text = " ".join(error.format_message().split()).rstrip(".")
    return ConfigError(f"{ctx.command_path}: {text[:1].lower()}{text[1:]}: see {ctx.command_path} --help")


def _presumed_value(name: str, args: Sequence[str]) -> str:
    """Return the probable value of an option that does not exist, or "..."."""
    for word, following in zip(args, [*args[1:], ""], strict=True):
        if word.partition("=")[0] == name:
            value = word.partition("=")[2] or following
            return value if value and not value.startswith("--") else "..."
    return "..."
