"""Rows of a table that are in memory together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.quantities import one_line


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that is no row of the table."""

    place: int
    """The number of its line, from 1."""
    problem: str
    """What is wrong, as the end of a sentence."""


@dataclass(frozen=True, slots=True)
class TablePiece:
    """Consecutive rows of a file."""

    name: str
    """The file's name for messages."""
    num_rows: int
    columns: Mapping[str, Any]
    """Arrow arrays [n] by name of the column: numbers, or texts as they stand in the file."""
    unit: str
    """`line` or `row`: what places count."""
    places: Callable[[], NDArray[np.int64]]
    """[n] the number of each row's line or row in its file, from 1."""
    bad: Sequence[BadRow] = ()
    """Rows that are left out here, as they cannot be read."""
    padded: int = 0
    """Around how many values of text there were spaces or tabs, which are removed."""
    as_written: Mapping[str, Any] = field(default_factory=dict)
    """Texts [n] with what counts as missing, by name of the column; only of columns that have some."""

    __repr__ = one_line
