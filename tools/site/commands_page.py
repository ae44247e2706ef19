"""Page of all commands, generated from the definitions behind `hyrt --help`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer.main

_HEAD = """# Commands

This page is generated from the command definitions: `hyrt COMMAND --help` prints the same text.
"""


def commands_page() -> str:
    """Return every command with its description, examples, arguments and options."""
    from hyrt.cli.commands import app

    group = typer.main.get_command(app)
    lines = [_HEAD, *_options(group)]
    for path, command in _commands(group, "hyrt"):
        lines += ["", f"## {path}", "", *_description(command), "", *_options(command)]
    return "\n".join(lines) + "\n"


def _commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        inner = f"{path} {name}"
        if hasattr(command, "commands"):
            yield from _commands(command, inner)
        else:
            yield inner, command


def _description(command: Any) -> list[str]:
    """Format the help text; paragraphs marked as unwrapped become code blocks."""
    lines: list[str] = []
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b"):
            title, *body = paragraph.removeprefix("\b").strip("\n").splitlines()
            lines += [title, "", *(f"    {line.strip()}" for line in body), ""]
        else:
            lines += [" ".join(paragraph.split()), ""]
    return lines


def _options(command: Any) -> list[str]:
    rows = []
    for parameter in command.params:
        if parameter.name == "help":
            continue
        is_argument = parameter.param_type_name == "argument"
        names = parameter.metavar or parameter.name.upper() if is_argument else ", ".join(parameter.opts)
        value = "" if is_argument or parameter.is_flag or not parameter.metavar else f" {parameter.metavar}"
        default = ""
        if not is_argument and parameter.default not in (None, False) and not callable(parameter.default):
            default = f" By default `{parameter.default}`."
        meaning = " ".join((parameter.help or "").split())
        rows.append(f"| `{_cell(names + value)}` | {_cell(meaning)}{_cell(default)} |")
    return ["| argument or option | meaning |", "| --- | --- |", *rows] if rows else []


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
