"""The arguments and options that several commands have, and what is said where they are given wrong."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from hyrt_perfmodel.nearest_name import nearest_name
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from hyrt_perfmodel.workloads.workload import TrainingWorkload

# The parent of all errors that the parser raises; typer has it from click, or its own.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
# As click does, though it is an error to it: print the help.
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
        help="The model: graphsage, gcn, gin, gat, ggcn, ggnn, commnet, deepgcn, gnn-film; gine, edge-gat "
        "for features of edges; rgcn, rsage, rgat, hgt for typed graphs; or one that an installed package "
        "declares.",
    ),
]
Devices = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="The devices that train: cpu,cuda:0; with shares: cpu=1,cuda:0=3; or auto. See hyrt devices.",
    ),
]
FullGraph = Annotated[
    bool,
    typer.Option(
        "--full-graph",
        help="Train on the whole graph in each step: exact gradients, one step per epoch.",
    ),
]
Epochs = Annotated[str | None, typer.Option(metavar="N", help="Short for train.epochs=N.")]
LearningRate = Annotated[str | None, typer.Option("--lr", metavar="X", help="Short for train.lr=X.")]
Hidden = Annotated[str | None, typer.Option(metavar="N", help="Short for model.hidden=N.")]
Layers = Annotated[str | None, typer.Option(metavar="N", help="Short for model.layers=N.")]
BatchSize = Annotated[str | None, typer.Option(metavar="N", help="Short for data.batch_size=N.")]
Seed = Annotated[str | None, typer.Option(metavar="N", help="Short for seed=N.")]
Output = Annotated[Path, typer.Option(metavar="FOLDER", help="The folder in which the run folder is made.")]
Workload = Annotated[
    Path | None,
    typer.Option(metavar="FILE.yaml", help="A file with all sizes, instead of a dataset and a model."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the output if it exists.")]


def workload_alone(file: Path, arguments: Sequence[str], options: Mapping[str, object]) -> TrainingWorkload:
    """What `--workload` says, beside which nothing else may describe the work.

    Raises
    ------
    ConfigError
        Naming the settings and the options that are given too.
    """
    from hyrt_perfmodel.workloads.workload_file import load_workload

    from hyrt.errors import ConfigError

    given = [f"--{name}" for name, value in options.items() if value is not None]
    if arguments or given:
        raise ConfigError(f"--workload gives all sizes: omit {', '.join([*given, *arguments])}")
    return load_workload(file)


class Group(TyperGroup):
    """Commands under one name; what is wrong with its words is said in a line like hyrt's own errors."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words up to the command.

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
            raise _refused(ctx, error) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first word names.

        Raises
        ------
        ConfigError
            If there is none, with the nearest one.
        """
        from hyrt.errors import ConfigError

        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            near = nearest_name(name, self.list_commands(ctx))
            hint = f"did you mean {ctx.command_path} {near}?" if near else f"see {ctx.command_path} --help"
            raise ConfigError(f"there is no command {f'{ctx.command_path} {name}'!r}: {hint}")
        return super().resolve_command(ctx, args)


class Command(TyperCommand):
    """A command that keeps none of two values in silence, and knows settings that are written as options.

    Its help calls arguments what they are called, without the types that Python knows them by.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for each in self._arguments():
            each.get_help_record = partial(_without_type, each.get_help_record)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the usage line behind the command."""
        return ["[OPTIONS]", *(str(each.metavar or each.name) for each in self._arguments())]

    def _arguments(self) -> list[Any]:
        return [each for each in self.params if each.param_type_name == "argument"]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words behind the command.

        Raises
        ------
        ConfigError
            If an option is given twice or empty, is missing, does not exist or has no such choice, saying
            what to write.
        """
        from hyrt.errors import ConfigError, listed

        try:
            values, _, given = self.make_parser(ctx).parse_args(args=list(args))
        except _UsageError as error:
            name = str(getattr(error, "option_name", ""))
            if hasattr(error, "possibilities"):
                raise ConfigError(
                    f"{name} is not an option of {ctx.command_path}: {self._instead(name, args)}"
                ) from None
            raise _refused(ctx, error) from None
        for option in given:
            if given.count(option) > 1 and getattr(option, "is_flag", None) is False:
                names = " or ".join(option.opts)
                join = ", with commas between the names" if "--devices" in option.opts else ""
                raise ConfigError(f"{names} is given more than once: give it once{join}")
        self._check_empty(values)
        try:
            rest = super().parse_args(ctx, args)
        except typer.BadParameter as error:
            from pydantic import ValidationError

            if error.param is None or hasattr(error, "param_type"):
                raise _refused(ctx, error) from None
            wrong = re.search(r"'(.*)' is not one of (.*)", error.message)
            if wrong is not None:
                choices = re.findall(r"'([^']+)'", wrong[2])
                raise ConfigError(f"{error.param.opts[0]} {wrong[1]}: give {listed(choices, 'or')}") from None
            if isinstance(error.__cause__, ValidationError):
                from hyrt.config.explained import wanted

                first = error.__cause__.errors()[0]
                raise ConfigError(f"{error.param.opts[0]} {first['input']}: {wanted(first)}") from None
            raise _refused(ctx, error) from None
        except _UsageError as error:
            raise _refused(ctx, error) from None
        for key, value in ctx.params.items():
            # A shell leaves it as it is in `--output=~/runs`, and a folder named ~ is what nobody wants.
            if isinstance(value, Path):
                ctx.params[key] = _at_home(value)
            elif isinstance(value, list):
                ctx.params[key] = [_at_home(each) if isinstance(each, Path) else each for each in value]
        return rest

    def _check_empty(self, values: Mapping[str, Any]) -> None:
        """Refuse what is given and empty, as of a variable that is not set.

        As a path it would be the current folder.
        """
        from hyrt.errors import ConfigError

        for each in self.params:
            value = values.get(str(each.name))
            if value == "" or (isinstance(value, list | tuple) and "" in value):
                is_option = each.param_type_name == "option"
                name = " or ".join(each.opts) if is_option else f"the argument {each.metavar or each.name}"
                omit = "" if each.required else ", or omit it"
                raise ConfigError(f"{name} is given, but empty: give a value{omit}")

    def _instead(self, name: str, args: Sequence[str]) -> str:
        """What to write in place of an option that does not exist."""
        from hyrt.errors import listed

        file = next((word for word in args if word.startswith("-") and os.path.lexists(word)), None)
        if file is not None:
            return f"to name the file, write {shlex.quote(f'./{file}')}"
        options = [option for each in self.params for option in each.opts if option.startswith("--")]
        if not name.startswith("--"):
            same = [option for option in options if option[2] == name[1]]
            return f"did you mean {listed(same, 'or')}?" if same else "--help lists the options"
        takes_settings = any(each.name == "arguments" for each in self.params)
        near = nearest_name(name, options, 0.75)
        word = name.removeprefix("--").replace("-", "_")
        setting = None
        if takes_settings:
            from hyrt.config.build import nearest_setting

            setting = nearest_setting(word)
        # `--seed` is a setting's own name, and only near `--seeds`.
        is_setting = setting is not None and setting.rpartition(".")[2] == word
        if near and not is_setting:
            return f"did you mean {near}?"
        if takes_settings:
            if setting is not None:
                value = _value_of(name, args)
                return f"write {setting}={shlex.quote(value if ',' not in value else f'[{value}]')}"
        settings = ", and `hyrt run --print-config` lists the settings" if takes_settings else ""
        return f"--help lists the options{settings}"


class RankCommand(Command):
    """A command that several processes run together: what is wrong with one's words is told to all."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words behind the command.

        Raises
        ------
        ConfigError
            As the method of `Command`.
        """
        from hyrt.distributed.launch import unjoined

        with unjoined():
            return super().parse_args(ctx, args)


def _at_home(path: Path) -> Path:
    return Path(os.path.expanduser(path))


def _without_type(record: Callable[[Any], tuple[str, str] | None], ctx: Any) -> tuple[str, str] | None:
    """An argument's name and help."""
    found = record(ctx)
    return found and (re.sub(r" <[^<>]*>$", "", found[0]), found[1])


def _refused(ctx: Any, error: Any) -> Exception:
    """What the parser says, in a line like hyrt's own errors."""
    from hyrt.errors import ConfigError

    said = " ".join(error.format_message().split()).rstrip(".")
    return ConfigError(f"{ctx.command_path}: {said[:1].lower()}{said[1:]}: see {ctx.command_path} --help")


def _value_of(name: str, args: Sequence[str]) -> str:
    """What was given to an option that does not exist, as far as one can tell."""
    for word, following in zip(args, [*args[1:], ""], strict=True):
        if word.partition("=")[0] == name:
            value = word.partition("=")[2] or following
            return value if value and not value.startswith("--") else "..."
    return "..."
