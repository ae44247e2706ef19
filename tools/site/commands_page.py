"""The page of commands, from what `hyrt --help` is made of."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer.main

_HEAD = """# Commands

This page is generated from the commands themselves: `hyrt COMMAND --help` says the same.
"""


def commands_page() -> str:
    """Every command with its description, its examples, its arguments and its options."""
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
    """The help text; what is not to be wrapped becomes a block of code."""
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
    for each in command.params:
        if each.name == "help":
            continue
        is_argument = each.param_type_name == "argument"
        names = each.metavar or each.name.upper() if is_argument else ", ".join(each.opts)
        value = "" if is_argument or each.is_flag or not each.metavar else f" {each.metavar}"
        default = ""
        if not is_argument and each.default not in (None, False) and not callable(each.default):
            default = f" By default `{each.default}`."
        meaning = " ".join((each.help or "").split())
        rows.append(f"| `{_cell(names + value)}` | {_cell(meaning)}{_cell(default)} |")
    return ["| argument or option | meaning |", "| --- | --- |", *rows] if rows else []


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
