"""Consecutive table rows that are in memory together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.quantities import one_line


@dataclass(frozen=True, slots=True)
class BadRow:
    """A line that is not a row of the table."""

    place: int
    """Line number, from 1."""
    problem: str
    """The problem, as the end of a sentence."""


@dataclass(frozen=True, slots=True)
class TablePiece:
    """Consecutive rows of a file."""

    name: str
    """Name of the file, for messages."""
    num_rows: int
    columns: Mapping[str, Any]
    """Arrow arrays [n] by column name: numbers, or strings as written in the file."""
    unit: str
    """Unit of `places`: `line` or `row`."""
    places: Callable[[], NDArray[np.int64]]
    """Return [n] the line or row number of each row in its file, from 1."""
    bad: Sequence[BadRow] = ()
    """Rows that were dropped because they cannot be parsed."""
    padded: int = 0
    """Number of values from which surrounding spaces or tabs were removed."""
    as_written: Mapping[str, Any] = field(default_factory=dict)
    """Strings [n] before missing values became null, by column name; only for columns with missing values."""

    __repr__ = one_line
