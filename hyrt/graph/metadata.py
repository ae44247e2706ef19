"""Scalings and names of a dataset (classes, feature columns, vertex ids, edge types), in small files next to
its arrays.
"""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.formatting import short_repr

Array = NDArray[Any]
ScalingKind = Literal["row", "length", "standard"]

# Relative tolerance, because sums of the same rows in another order differ by rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Scaling:
    """Scaling of feature rows, with statistics that also apply to later data."""

    kind: ScalingKind
    """Kind of scaling: `row` divides rows by their sum, `length` by their length; `standard` scales columns.
    """
    mean: NDArray[np.float64] | None = None
    """Values that `standard` subtracts from the columns, [F]."""
    deviation: NDArray[np.float64] | None = None
    """Values by which `standard` divides the columns, [F]; infinite for constant columns."""

    __repr__ = short_repr

    @property
    def is_known(self) -> bool:
        """Whether rows can be scaled. Earlier versions did not store the statistics of `standard`."""
        return self.kind != "standard" or self.mean is not None

    @property
    def squared(self) -> bool:
        """Whether rows are divided by the square root of a sum of squares."""
        return self.kind == "length"

    def apply(self, block: Array) -> Array:
        """Scale dense rows [n, F] without changing their dtype."""
        assert self.is_known, "the statistics of the scaling are unknown"
        if self.mean is not None and self.deviation is not None:
            scaled: Array = (block - self.mean) / self.deviation
        else:
            values = np.square(block, dtype=np.float64) if self.squared else block
            sums = values.sum(axis=1, dtype=np.float64, keepdims=True)
            scaled = block / divisors(sums, squared=self.squared)
        return scaled.astype(block.dtype)

    def take(self, columns: NDArray[np.int64]) -> Self:
        """Return the scaling of the given columns, in this order."""
        if self.mean is None or self.deviation is None:
            return self
        return type(self)(self.kind, self.mean[columns], self.deviation[columns])

    def equals(self, other: Scaling) -> bool:
        """Return whether two scalings are equal up to the rounding of their statistics."""
        if self.kind != other.kind or (self.mean is None) != (other.mean is None):
            return False
        if self.mean is None or other.mean is None:
            return True
        assert self.deviation is not None
        assert other.deviation is not None
        if self.mean.shape != other.mean.shape:
            return False
        spread = np.where(np.isfinite(self.deviation), self.deviation, 0) + np.abs(self.mean)
        moved = np.abs(self.mean - other.mean) > _ROUNDING * spread
        same = np.isclose(self.deviation, other.deviation, rtol=_ROUNDING, atol=0)
        return not moved.any() and bool(same.all())

    def to_dict(self) -> dict[str, Any]:
        """Return JSON data, in which an infinite deviation is null."""
        if self.mean is None or self.deviation is None:
            return {"kind": self.kind}
        deviation = [value if math.isfinite(value) else None for value in self.deviation.tolist()]
        return {"kind": self.kind, "mean": self.mean.tolist(), "deviation": deviation}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        if "mean" not in saved:
            return cls(saved["kind"])
        deviation = [math.inf if value is None else value for value in saved["deviation"]]
        return cls(saved["kind"], np.array(saved["mean"], np.float64), np.array(deviation, np.float64))


def divisors(sums: Array, *, squared: bool) -> Array:
    """Return the divisor of each row: its sum, or the root of its sum of squares; 1 instead of 0."""
    found = np.sqrt(sums) if squared else sums
    return np.where(found == 0, 1.0, found)


def remaining_steps(applied: Sequence[Scaling], required: Sequence[Scaling]) -> tuple[Scaling, ...] | None:
    """Return the scalings that remain to be applied; None if other scalings have been applied."""
    if len(applied) > len(required):
        return None
    if not all(done.equals(step) for done, step in zip(applied, required, strict=False)):
        return None
    return tuple(required[len(applied) :])


def describe_scaling(steps: Sequence[Scaling]) -> str:
    """Return the names of scalings in the order in which they are applied."""
    return " then ".join(f"'{step.kind}'" for step in steps) or "'none'"


ENDPOINT_COLUMN_NAMES = (
    ("source", "target"),
    ("src", "dst"),
    ("src", "dest"),
    ("from", "to"),
    ("source", "destination"),
    ("sourceid", "targetid"),
    ("srcid", "dstid"),
    ("fromid", "toid"),
    ("fromnodeid", "tonodeid"),
    ("fromnode", "tonode"),
    ("u", "v"),
    ("head", "tail"),
    ("start", "end"),
    ("startid", "endid"),
    ("node1", "node2"),
    ("id1", "id2"),
    ("von", "nach"),
    ("quelle", "ziel"),
)
"""Pairs of column names for the source and target of an edge, in the form of `normalize_name`."""


def normalize_name(name: str) -> str:
    """Reduce a name to lower-case letters and digits: `Source ID` becomes `sourceid`."""
    return "".join(letter for letter in name.casefold() if letter.isalnum())


IDS = "ids.csv"
"""File with the id of each vertex in the original order; in a heterogeneous graph, type and id."""
CLASSES = "classes.csv"
"""File with the name of each class or label column."""
COLUMNS = "columns.csv"
"""File with the vertex type ('' if there is one type) and the name of each feature column."""
EDGE_TYPES = "edge_types.csv"
"""File with the name of each edge type."""
EDGE_COLUMNS = "edge_columns.csv"
"""File with the name of each edge feature."""
SCALING = "scaling.json"
"""File with the scalings of the features and their parameters."""
NAME_FILES = (IDS, CLASSES, COLUMNS, EDGE_TYPES, EDGE_COLUMNS, SCALING)


def write_names(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a file of names with a header line."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def add_names(dataset: Path, files: Mapping[str, Path]) -> None:
    """Add files of names to a dataset folder or `.npz` file that has just been written."""
    if dataset.is_dir():
        for name, file in files.items():
            shutil.copyfile(file, dataset / name)
    elif files:
        with zipfile.ZipFile(dataset, "a", zipfile.ZIP_DEFLATED) as archive:
            for name, file in files.items():
                info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
                info.compress_type = zipfile.ZIP_DEFLATED
                info.external_attr = 0o644 << 16
                with file.open("rb") as source, archive.open(info, "w", force_zip64=True) as target:
                    shutil.copyfileobj(source, target)


def copy_member(source: Path, name: str, target: Path) -> bool:
    """Copy a file of names from a dataset; return False if it is missing."""
    with read_member(source, name) as file:
        if file is None:
            return False
        with target.open("wb") as copy:
            shutil.copyfileobj(file, copy)
    return True


@contextmanager
def read_rows(source: Path, name: str) -> Iterator[Iterator[list[str]] | None]:
    """Open a file of names in a dataset; yield an iterator over its rows, or None if the file is missing.

    Raises DataError if the file is damaged.
    """
    with read_member(source, name) as file:
        if file is None:
            yield None
            return
        try:
            rows = csv.reader(io.TextIOWrapper(file, encoding="utf-8", newline=""))
            next(rows, None)
            # For an empty name, csv.reader returns an empty list.
            yield (row or [""] for row in rows)
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{source}: {name} is damaged ({error}): write the dataset again") from error


@contextmanager
def read_names(source: Path, name: str) -> Iterator[Iterator[str] | None]:
    """Open a file of names like `read_rows`, but with the fields of each row joined by spaces."""
    with read_rows(source, name) as rows:
        yield None if rows is None else (" ".join(row) for row in rows)


@contextmanager
def read_member(source: Path, name: str) -> Iterator[IO[bytes] | None]:
    """Open a file of names in a dataset; yield None if it is missing."""
    if source.is_dir() and (source / name).is_file():
        with (source / name).open("rb") as file:
            yield file
    elif source.is_file() and zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as archive:
            if name in archive.namelist():
                with archive.open(name) as member:
                    yield member
            else:
                yield None
    else:
        yield None


Scalings = Mapping[str, tuple[Scaling, ...]]
"""Scalings of the features by vertex type ('' if there is one type), in the order of their application."""


@dataclass(frozen=True, slots=True)
class DataNames:
    """Names of numbered items in a dataset. Items without a name are identified by their number."""

    classes: tuple[str, ...] | None = None
    """Name of each class or label column."""
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of the feature columns by vertex type ('' if there is one type)."""
    edge_types: tuple[str, ...] | None = None
    edge_columns: tuple[str, ...] | None = None
    files: Path | None = None
    """Dataset that may have a file of vertex ids. The ids are not in memory."""

    __repr__ = short_repr

    @contextmanager
    def read_ids(self) -> Iterator[Iterator[list[str]] | None]:
        """Read the vertex ids in the original order (in a heterogeneous graph, type and id); yield None if
        there are none.
        """
        if self.files is None:
            yield None
            return
        with read_rows(self.files, IDS) as rows:
            yield rows

    @property
    def has_ids(self) -> bool:
        """Whether the dataset has vertex ids."""
        with self.read_ids() as rows:
            return rows is not None


NO_NAMES = DataNames()


def read_data_names(source: Path) -> DataNames:
    """Read the names in a dataset folder or `.npz` file. Raises DataError if a file of names is damaged."""
    columns: dict[str, list[str]] = {}
    with read_rows(source, COLUMNS) as rows:
        for row in rows or ():
            columns.setdefault(row[0], []).append(row[-1])
    named = {name: tuple(column_names) for name, column_names in columns.items()}
    return DataNames(
        _names(source, CLASSES), named, _names(source, EDGE_TYPES), _names(source, EDGE_COLUMNS), source
    )


def read_scalings(source: Path) -> Scalings:
    """Read the scalings in a dataset. Raises DataError if their file is damaged."""
    with read_member(source, SCALING) as file:
        if file is None:
            return {}
        try:
            saved: dict[str, list[dict[str, Any]]] = json.load(file)
            return {name: tuple(Scaling.from_dict(step) for step in steps) for name, steps in saved.items()}
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise DataError(f"{source}: {SCALING} is damaged ({error}): write the dataset again") from error


def save_names(names: DataNames, scalings: Scalings, dataset: Path, scratch: Path) -> None:
    """Add names, vertex ids and scalings to a dataset that has just been written."""
    found: dict[str, Path] = {}
    lists = ((CLASSES, "class", names.classes), (EDGE_TYPES, "type", names.edge_types))
    for file, header, values in (*lists, (EDGE_COLUMNS, "column", names.edge_columns)):
        if values:
            found[file] = scratch / file
            write_names(found[file], [header], ([name] for name in values))
    if names.columns:
        found[COLUMNS] = scratch / COLUMNS
        rows = ([kind, name] for kind, values in names.columns.items() for name in values)
        write_names(found[COLUMNS], ["type", "column"], rows)
    steps = {name: [step.to_dict() for step in values] for name, values in scalings.items() if values}
    if steps:
        found[SCALING] = scratch / SCALING
        found[SCALING].write_text(json.dumps(steps) + "\n", encoding="utf-8")
    if names.files is not None and copy_member(names.files, IDS, scratch / IDS):
        found[IDS] = scratch / IDS
    add_names(dataset, found)


def _names(source: Path, name: str) -> tuple[str, ...] | None:
    with read_names(source, name) as rows:
        return None if rows is None else tuple(rows)
