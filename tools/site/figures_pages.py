"""Index page of the benchmark results."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_HEAD = """# Benchmarks

Benchmark results, newest first. Each page has the commands, the machine, and the accuracy next to every time.
The commands run from a checkout of the repository, which has these pages in `benchmarks/`.

| date | benchmark |
| --- | --- |
"""


def figures_index(pages: Sequence[Path]) -> str:
    """Return a table of the pages in the given order, with the date of the file name and the first heading.

    Raises
    ------
    ValueError
        If a page has no heading or no date.
    """
    lines = []
    for path in pages:
        date = re.match(r"\d{4}-\d\d-\d\d", path.name)
        title = re.match(r"# (.+)\n", path.read_text(encoding="utf-8"))
        if date is None or title is None:
            raise ValueError(
                f"{path}: a benchmark page must begin with a heading, and its file name with a date"
            )
        # Remove the date, which has a separate column.
        named = re.sub(r"(, )?(on )?(\d{4}-\d\d-\d\d|\d+ \w+ \d{4})(: )?", "", title[1]).strip(" ,:")
        lines.append(f"| {date[0]} | [{named[:1].upper()}{named[1:]}]({path.name}) |")
    return _HEAD + "\n".join(lines) + "\n"
