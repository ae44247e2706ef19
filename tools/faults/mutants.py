"""Measure how many small errors in the code the tests find: the kill rate of random mutants per package.

    python tools/faults/mutants.py hyrt/config hyrt/graph/formats hyrt/sampling
    python tools/faults/mutants.py hyrt/config --count 12 --seed 1 --results /tmp/mutants.jsonl

A mutant is the code with one change: a flipped comparison, `and` for `or`, a removed `not`, `+` for `-`, an
integer that is one larger, `min` for `max`, another default, or a removed statement. The tests that mirror
the changed package run on a copy of the source tree, after the tests named like the changed module. A mutant
is killed if a test fails or if the tests take too long. Each package gets an equal part of `--count`.

Text, messages, annotations, decorators and logging are not changed. A survivor is an error that no test finds
or an equivalent program: read its diff. 200 mutants take a night. Results are appended to a file, so a
stopped run continues; a mutant is tried again only if its module has changed.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "bench"))

from source_tree import ROOT, environment_of

# The longest time of a mutant's tests, in times of the unchanged code's tests, and in addition.
LIMIT, LIMIT_S = 3, 60
FLIPPED: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq},
    **{ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In},
    **{ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add},
}
SWAPPED = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}
# Calls whose arguments are messages.
MESSAGES = re.compile(r"warn|log|print|echo|report|note|Error$|Exception$|^error$")
# Fields that hold no computation.
SKIPPED = {"annotation", "returns", "decorator_list", "bases", "keywords", "type_params"}


@dataclass(frozen=True, order=True)
class Mutant:
    """Change to one module: `text` replaces the bytes from `start` to `end`."""

    path: str
    line: int
    kind: str
    start: int
    end: int
    text: str

    def apply(self, code: bytes) -> bytes:
        return code[: self.start] + self.text.encode() + code[self.end :]


def find_mutants(code: bytes, path: str) -> list[Mutant]:
    """Return all mutants of a module."""
    lines = [0]
    for line in code.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    found = []
    for node, kind, replacement in _find_changes(ast.parse(code)):
        start = lines[node.lineno - 1] + node.col_offset
        end = lines[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        # An operator may bind less tightly than the one that it replaces.
        text = f"({replacement})" if isinstance(node, ast.BoolOp | ast.BinOp | ast.UnaryOp) else replacement
        found.append(Mutant(path, node.lineno, kind, start, end, text))
    return sorted(set(found))


def _find_changes(node: ast.AST, in_class: bool = False) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    """Yield the changed nodes below a node, the kind of each change, and the new code."""
    match node:
        case ast.Compare(ops=ops):
            for place, op in enumerate(ops):
                flipped = [*ops[:place], FLIPPED[type(op)](), *ops[place + 1 :]]
                yield node, "comparison", _unparse(node, ops=flipped)
        case ast.BoolOp(op=op):
            yield node, "and/or", _unparse(node, op=FLIPPED[type(op)]())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, "not", ast.unparse(operand)
        case ast.BinOp(op=ast.Add() | ast.Sub() as op) if not _is_text(node):
            yield node, "+/-", _unparse(node, op=FLIPPED[type(op)]())
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            yield node, "constant", str(value + 1)
        case ast.Name(id=name) if name in SWAPPED:
            yield node, "min/max", SWAPPED[name]
        case ast.Attribute(attr=name) if name in SWAPPED:
            yield node, "min/max", _unparse(node, attr=SWAPPED[name])
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise():
            yield node, "statement", "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, "statement", "pass"
        case ast.arguments(defaults=defaults, kw_defaults=more):
            yield from _change_defaults([*defaults, *more])
        case ast.AnnAssign(value=value) if in_class:
            yield from _change_defaults([value])
    for name, field in ast.iter_fields(node):
        if name in SKIPPED and not (name == "keywords" and isinstance(node, ast.Call)):
            continue
        for child in field if isinstance(field, list) else [field]:
            if isinstance(child, ast.AST) and not _is_skipped(child):
                yield from _find_changes(child, isinstance(node, ast.ClassDef))


def _change_defaults(values: Sequence[ast.expr | None]) -> Iterator[tuple[ast.expr, str, str]]:
    for value in values:
        if isinstance(value, ast.Constant) and isinstance(value.value, bool):
            yield value, "default", str(not value.value)


def _unparse(node: ast.AST, **changes: object) -> str:
    fields = {**dict(ast.iter_fields(node)), **changes}
    return ast.unparse(type(node)(**fields))


def _is_text(node: ast.AST) -> bool:
    """Return whether an expression contains text, which may only be part of a message."""
    return any(
        isinstance(child, ast.JoinedStr) or (isinstance(child, ast.Constant) and isinstance(child.value, str))
        for child in ast.walk(node)
    )


def _is_skipped(node: ast.AST) -> bool:
    """Return whether a node only has text, types or messages; its removal and its parts are no mutants."""
    match node:
        case ast.JoinedStr() | ast.Assert():
            return True
        case ast.Expr(value=value) | ast.Await(value=value):
            return isinstance(value, ast.Constant) or _is_skipped(value)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return bool(MESSAGES.search(name))
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
            return True
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name.startswith("__")
        case ast.keyword(arg=name):
            return name in ("strict", "help", "metavar", "stacklevel")
    return False


def choose_mutants(root: Path, packages: Sequence[str], count: int, seed: int) -> dict[str, list[Mutant]]:
    """Return random mutants per package, an equal number of each."""
    chosen = {}
    for number, package in enumerate(packages):
        files = sorted((root / package).rglob("*.py")) or [root / package]
        paths = [str(file.relative_to(root)) for file in files]
        every = [mutant for path in paths for mutant in find_mutants((root / path).read_bytes(), path)]
        share = count // len(packages) + (number < count % len(packages))
        chosen[package] = random.Random(f"{seed} {package}").sample(every, min(share, len(every)))
    return chosen


def find_tests(root: Path, path: str) -> list[str]:
    """Return the tests that mirror a module: those named after it, then those of its package."""
    names = [name for name in Path(path).parts[:-1] if name != "devices" and not name.startswith("hyrt")]
    while names and not root.joinpath("tests", "unit", *names).is_dir():
        names.pop()
    if not names:
        raise SystemExit(f"tests/unit has no folder for {path}: choose a package that has one")
    folder = root.joinpath("tests", "unit", *names)
    named = sorted(folder.rglob(f"test_*{Path(path).stem.strip('_')}*.py"))
    return [str(file.relative_to(root)) for file in (*named, folder)]


class MutantTests:
    """Runs tests in a folder with a copy of a source tree, which itself is never changed."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._copy = folder / "tree"
        command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        for name in subprocess.run(command, capture_output=True, check=True, text=True).stdout.split("\0"):
            if name and (root / name).is_file():
                (self._copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, self._copy / name)
        self._environment = {**environment_of(self._copy, folder / "declared"), "HYPOTHESIS_PROFILE": "ci"}
        self._limits: dict[tuple[str, ...], float] = {}
        # Python compares times of whole seconds to find out whether compiled code is up to date.
        self._modified = int(time.time())

    def try_mutant(self, mutant: Mutant) -> str:
        """Run the tests of a mutant; return `killed`, `timed out` or `survived`."""
        tests = find_tests(self._copy, mutant.path)
        if (key := tuple(tests[-1:])) not in self._limits:
            start = time.monotonic()
            if self._run(tests[-1:], None) != "survived":
                raise SystemExit(f"tests of {tests[-1]} fail without a mutant: correct them first")
            self._limits[key] = LIMIT * (time.monotonic() - start) + LIMIT_S
        file = self._copy / mutant.path
        code = file.read_bytes()
        try:
            self._write(file, mutant.apply(code))
            return self._run(tests, self._limits[key])
        finally:
            self._write(file, code)

    def _write(self, file: Path, code: bytes) -> None:
        file.write_bytes(code)
        self._modified += 2
        os.utime(file, (self._modified, self._modified))

    def _run(self, tests: Sequence[str], limit_s: float | None) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
        # A process group of its own does not get Ctrl-C and can be killed with its children.
        with subprocess.Popen(
            command,
            cwd=self._copy,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                return "killed" if process.wait(limit_s) else "survived"
            except subprocess.TimeoutExpired:
                return "timed out"
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def difference(mutant: Mutant, code: bytes) -> str:
    """Return the diff of a mutant, without its header."""
    old, new = (text.decode().splitlines() for text in (code, mutant.apply(code)))
    lines = list(difflib.unified_diff(old, new, lineterm="", n=0))
    return "\n".join(f"    {line}" for line in lines[3:])


def main(words: Sequence[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packages", nargs="+", help="folders or modules, such as hyrt/config")
    parser.add_argument("--count", type=int, default=200, help="number of mutants over all packages")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=root / "build" / "mutants.jsonl")
    options = parser.parse_args(words)
    chosen = choose_mutants(root, options.packages, options.count, options.seed)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.touch()
    lines = map(json.loads, options.results.read_text().splitlines())
    known = {line["key"]: line["outcome"] for line in lines}
    outcomes: dict[Mutant, str] = {}
    every = list(chain.from_iterable(chosen.values()))
    code = {mutant.path: (root / mutant.path).read_bytes() for mutant in every}
    stopped = False
    with tempfile.TemporaryDirectory(prefix="hyrt-mutants-") as folder, options.results.open("a") as results:
        try:
            tests: MutantTests | None = None
            for mutant in every:
                name = (hashlib.sha256(code[mutant.path]).hexdigest()[:16], *asdict(mutant).values())
                key = " ".join(map(str, name))
                if key not in known:
                    tests = tests or MutantTests(root, Path(folder))
                    known[key] = tests.try_mutant(mutant)
                    results.write(json.dumps({"key": key, "outcome": known[key]}) + "\n")
                    results.flush()
                outcomes[mutant] = known[key]
                print(f"{known[key]}: {mutant.path}:{mutant.line} {mutant.kind}", flush=True)
        except KeyboardInterrupt:
            stopped = True
            print("stopped: the same command continues", file=sys.stderr)
    for mutant, outcome in outcomes.items():
        if outcome == "survived":
            print(f"\nsurvivor {mutant.path}:{mutant.line} ({mutant.kind})")
            print(difference(mutant, code[mutant.path]))
    print()
    for package, mutants in chosen.items():
        tried = [outcomes[mutant] for mutant in mutants if mutant in outcomes]
        killed = len(tried) - tried.count("survived")
        rate = f", {killed / len(tried):.0%}" if tried else ""
        print(f"{package}: killed {killed} of {len(tried)}{rate} ({tried.count('timed out')} timed out)")
    return 128 + signal.SIGINT if stopped else 0


if __name__ == "__main__":
    sys.exit(main())
