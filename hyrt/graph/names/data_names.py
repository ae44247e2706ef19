"""Names of a dataset's classes, feature columns, edge types and edge columns, and the fitted scalings of its
features.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hyrt.errors import DataError
from hyrt.graph.names.name_files import (
    CLASSES,
    COLUMNS,
    EDGE_COLUMNS,
    EDGE_TYPES,
    IDS,
    SCALING,
    add_names,
    copy_member,
    read_member,
    read_names,
    read_rows,
    write_names,
)
from hyrt.graph.reuse.scaling import Scaling
from hyrt.quantities import one_line

Scalings = Mapping[str, tuple[Scaling, ...]]
"""Scalings that were applied to the features, in order of application, per vertex type ('' if there is one
type)."""


@dataclass(frozen=True, slots=True)
class DataNames:
    """Names for the numbered items of a dataset. Items without a name are identified by their number."""

    classes: tuple[str, ...] | None = None
    """The name of each class, or of each column of labels."""
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of the feature columns, per vertex type ('' if there is one type)."""
    edge_types: tuple[str, ...] | None = None
    """The name of each edge type."""
    edge_columns: tuple[str, ...] | None = None
    """The name of each edge feature."""
    files: Path | None = None
    """The dataset that may contain a file of vertex ids. The ids are not held in memory."""

    __repr__ = one_line

    @contextmanager
    def read_ids(self) -> Iterator[Iterator[list[str]] | None]:
        """Read the id of each vertex in the order of the original numbers; (type, id) in a heterogeneous
        graph.

        Yields None if the dataset has no ids.
        """
        if self.files is None:
            yield None
            return
        with read_rows(self.files, IDS) as rows:
            yield rows


NO_NAMES = DataNames()
"""Names of data in which everything is identified by its number."""


def read_data_names(source: Path) -> DataNames:
    """Read the names stored in a dataset folder or .npz file.

    Raises
    ------
    DataError
        If a name file is damaged.
    """
    columns: dict[str, list[str]] = {}
    with read_rows(source, COLUMNS) as rows:
        for row in rows or ():
            columns.setdefault(row[0], []).append(row[-1])
    named = {name: tuple(column_names) for name, column_names in columns.items()}
    return DataNames(
        _names(source, CLASSES), named, _names(source, EDGE_TYPES), _names(source, EDGE_COLUMNS), source
    )


def read_scalings(source: Path) -> Scalings:
    """Read the scalings that were applied to the features when the dataset was written.

    Raises
    ------
    DataError
        If the file is damaged.
    """
    with read_member(source, SCALING) as file:
        if file is None:
            return {}
        try:
            saved: dict[str, list[dict[str, Any]]] = json.load(file)
            return {name: tuple(Scaling.from_dict(step) for step in steps) for name, steps in saved.items()}
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise DataError(f"{source}: {SCALING} is damaged ({error}): make the dataset again") from error


def save_names(names: DataNames, scalings: Scalings, dataset: Path, scratch: Path) -> None:
    """Add names, vertex ids and scalings to a dataset that was just written."""
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
