"""Name files next to the arrays of a dataset, with one line per vertex, class, column or type."""

from __future__ import annotations

import csv
import io
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from hyrt.errors import DataError

IDS = "ids.csv"
"""The id of each vertex, by its number before the dataset was reordered; type and id in a heterogeneous
graph."""
CLASSES = "classes.csv"
"""The name of each class, or of each column of labels."""
COLUMNS = "columns.csv"
"""The vertex type ('' if there is one type) and the name of each feature column."""
EDGE_TYPES = "edge_types.csv"
"""The name of each edge type."""
EDGE_COLUMNS = "edge_columns.csv"
"""The name of each edge feature."""
SCALING = "scaling.json"
"""The scalings that were applied to features, with their parameters."""
NAME_FILES = (IDS, CLASSES, COLUMNS, EDGE_TYPES, EDGE_COLUMNS, SCALING)


def write_names(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a name file with a header line."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def add_names(dataset: Path, files: Mapping[str, Path]) -> None:
    """Add name files to a dataset that was just written, a folder or a .npz file."""
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
    """Copy a name file out of a dataset. Return False if the dataset does not have it."""
    with read_member(source, name) as file:
        if file is None:
            return False
        with target.open("wb") as copy:
            shutil.copyfileobj(file, copy)
    return True


@contextmanager
def read_rows(source: Path, name: str) -> Iterator[Iterator[list[str]] | None]:
    """Open one of a dataset's name files and yield an iterator over its rows, or None if the file is missing.

    Raises
    ------
    DataError
        If the file is damaged.
    """
    with read_member(source, name) as file:
        if file is None:
            yield None
            return
        try:
            rows = csv.reader(io.TextIOWrapper(file, encoding="utf-8", newline=""))
            next(rows, None)
            # csv.reader returns an empty list for the line of an empty name.
            yield (row or [""] for row in rows)
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{source}: {name} is damaged ({error}): make the dataset again") from error


@contextmanager
def read_names(source: Path, name: str) -> Iterator[Iterator[str] | None]:
    """Open one of a dataset's name files like `read_rows`, with the fields of each row joined by spaces."""
    with read_rows(source, name) as rows:
        yield None if rows is None else (" ".join(row) for row in rows)


@contextmanager
def read_member(source: Path, name: str) -> Iterator[IO[bytes] | None]:
    """Open one of a dataset's name files; yield None if it is missing."""
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
