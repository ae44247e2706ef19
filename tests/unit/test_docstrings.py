"""The form of every docstring: sections that tools can read, parameters that exist, no damaged text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOMES = ("hyrt", "devices/hyrt_devices", "perfmodel/hyrt_perfmodel", "hls/hyrt_hls", "tools")
FILES = [path for home in HOMES for path in sorted((ROOT / home).rglob("*.py"))]
SECTIONS = {"Parameters", "Returns", "Yields", "Raises", "Attributes", "Notes", "Examples"}

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring, those below fields and constants included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                yield node.lineno, node.value.value


def sections(text: str) -> dict[str, list[str]]:
    """The lines below each heading."""
    found: dict[str, list[str]] = {"": []}
    lines, name = text.splitlines(), ""
    for number, line in enumerate(lines):
        below = lines[number + 1] if number + 1 < len(lines) else ""
        if line in SECTIONS and below and set(below) == {"-"}:
            name = line
            found[name] = []
        elif not (name and line and set(line) == {"-"}):
            found[name].append(line)
    return found


def parameters(node: Documented) -> set[str]:
    """Names that a Parameters section may have."""
    if isinstance(node, ast.ClassDef):
        fields = {
            below.target.id
            for below in node.body
            if isinstance(below, ast.AnnAssign) and isinstance(below.target, ast.Name)
        }
        for below in node.body:
            if isinstance(below, ast.FunctionDef) and below.name == "__init__":
                fields |= parameters(below)
        return fields
    if isinstance(node, ast.Module):
        return set()
    given = node.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    return {each.arg for each in [*named, given.vararg, given.kwarg] if each is not None}


@dataclass(frozen=True)
class Text:
    """A docstring, where it is, and the parameters that it may name."""

    where: str
    text: str
    parameters: set[str]


@cache
def docstrings() -> list[Text]:
    """Those of all modules, classes and functions."""
    found = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = ast.get_docstring(node) if isinstance(node, Documented) else None
            if isinstance(node, Documented) and text:
                found.append(Text(f"{path}:{getattr(node, 'lineno', 1)}", text, parameters(node)))
    return found


def test_no_reflow_has_damaged_a_docstring() -> None:
    for path in FILES:
        for line, text in texts(ast.parse(path.read_text(encoding="utf-8"))):
            where = f"{path}:{line}"
            assert not re.search(r'["\'] *\n *[fr]?["\']', text), (
                f"{where}: quotes of a broken string are in it"
            )
            assert not re.search(r"\w -{4,}|-{4,} \w", text), f"{where}: a heading runs into the text"


def test_sections_are_well_formed() -> None:
    for each in docstrings():
        lines, where = each.text.splitlines(), each.where
        for number, line in enumerate(lines):
            if line in SECTIONS:
                rule = lines[number + 1] if number + 1 < len(lines) else ""
                assert rule == "-" * len(line), f"{where}: {line} has no rule of its length below it"
                assert not lines[number - 1], f"{where}: no empty line above {line}"
        found = sections(each.text)
        for name in found.keys() - {""}:
            assert any(found[name]), f"{where}: {name} is empty"
        names = [line for line in found.get("Parameters", []) if line and not line.startswith(" ")]
        for entry in names:
            for name in entry.split(", "):
                assert name.lstrip("*") in each.parameters, f"{where}: it has no parameter {name!r}"
        for section in ("Parameters", "Raises"):
            entries = found.get(section, [])
            for number, line in enumerate(entries):
                if line and not line.startswith(" "):
                    below = entries[number + 1] if number + 1 < len(entries) else ""
                    assert below.startswith("    "), f"{where}: nothing is said of {line!r}"


def test_what_is_said_of_a_parameter_has_a_noun() -> None:
    """`Of the dataset.` says nothing to a reader who has not just written the name above it."""
    fragment = re.compile(r"(Of|To|As|That)\b|(Its \w+|It|Any|None|[A-Z])\.$")
    for each in docstrings():
        for name, said in pairwise(sections(each.text).get("Parameters", [])):
            if name and not name.startswith(" "):
                assert not fragment.match(said.strip()), (
                    f"{each.where}: {name} is said to be {said.strip()!r}"
                )
