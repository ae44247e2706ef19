"""Trials of the fault tools: folders, processes, statistics and tables."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forked_runs import ForkedRuns

from hyrt.graph.formats.convert import Conversion, convert

DATA = "synthetic:tiny,vertices=600,features=8"


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help begins with the tool's docstring."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


@contextmanager
def workplace(name: str) -> Iterator[tuple[Path, ForkedRuns]]:
    """Yield a temporary folder, and servers that start runs."""
    with tempfile.TemporaryDirectory(prefix=f"hyrt-{name}-") as folder, ForkedRuns() as runs:
        yield Path(folder), runs


def write_data(path: Path, source: str = DATA) -> Path:
    """Write the graph for the runs."""
    convert(Conversion(source, path))
    return path


class Trials:
    """Counts trials by arbitrary keys, and prints problems immediately."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.tried: Counter[Any] = Counter()
        self.held: Counter[Any] = Counter()
        self.count = 0
        self.failed = 0

    def add(self, kinds: Iterable[Any], name: str, problems: Sequence[str]) -> None:
        """Count a trial.

        Parameters
        ----------
        kinds
            Keys of the trial; each is counted.
        name
            Name of the trial in failure messages.
        problems
            Problems of the trial; empty if it passed.
        """
        for kind in kinds:
            self.tried[kind] += 1
            self.held[kind] += not problems
        self.count += 1
        self.failed += bool(problems)
        for problem in problems:
            print(f"FAILS {name}: {problem}", flush=True)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def exit_code(self) -> int:
        return 1 if self.failed else 0


def print_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a Markdown table."""
    print(f"| {' | '.join(head)} |")
    print("| --- " * len(head) + "|")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |")
