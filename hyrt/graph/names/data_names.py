"""The names in a dataset: classes, feature columns, types and columns of edges; and fitted scalings."""

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
"""By vertex type ('' if there is one type), the scalings that features have got, first to last."""


@dataclass(frozen=True, slots=True)
class DataNames:
    """The names that a dataset has for its numbers; without a name, a thing is known by its number."""

    classes: tuple[str, ...] | None = None
    """The name of each class, or of each column of labels."""
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By vertex type ('' if there is one type), the names of its feature columns."""
    edge_types: tuple[str, ...] | None = None
    """The name of each type of edges."""
    edge_columns: tuple[str, ...] | None = None
    """The name of each feature of edges."""
    files: Path | None = None
    """The dataset that may have a file of vertex ids, which are not held in memory."""

    __repr__ = one_line

    @contextmanager
    def read_ids(self) -> Iterator[Iterator[list[str]] | None]:
        """Read the id of each vertex, by its original number; of a heterogeneous graph, type and id.

        Gives None if the dataset has no ids.
        """
        if self.files is None:
            yield None
            return
        with read_rows(self.files, IDS) as rows:
            yield rows


NO_NAMES = DataNames()
"""Those of data that know everything by its number."""


def read_data_names(source: Path) -> DataNames:
    """Read the names of a dataset: of its folder, or of its .npz file.

    Raises
    ------
    DataError
        If a file of names is damaged.
    """
    columns: dict[str, list[str]] = {}
    with read_rows(source, COLUMNS) as rows:
        for row in rows or ():
            columns.setdefault(row[0], []).append(row[-1])
    named = {name: tuple(found) for name, found in columns.items()}
    return DataNames(
        _names(source, CLASSES), named, _names(source, EDGE_TYPES), _names(source, EDGE_COLUMNS), source
    )


def read_scalings(source: Path) -> Scalings:
    """Read the scalings that the features of a dataset got when it was written.

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
    """Give a dataset that was just written its names, the ids of the vertices too, and its scalings."""
    found: dict[str, Path] = {}
    lists = ((CLASSES, "class", names.classes), (EDGE_TYPES, "type", names.edge_types))
    for file, header, some in (*lists, (EDGE_COLUMNS, "column", names.edge_columns)):
        if some:
            found[file] = scratch / file
            write_names(found[file], [header], ([name] for name in some))
    if names.columns:
        found[COLUMNS] = scratch / COLUMNS
        rows = ([kind, name] for kind, some in names.columns.items() for name in some)
        write_names(found[COLUMNS], ["type", "column"], rows)
    steps = {name: [step.to_dict() for step in some] for name, some in scalings.items() if some}
    if steps:
        found[SCALING] = scratch / SCALING
        found[SCALING].write_text(json.dumps(steps) + "\n", encoding="utf-8")
    if names.files is not None and copy_member(names.files, IDS, scratch / IDS):
        found[IDS] = scratch / IDS
    add_names(dataset, found)


def _names(source: Path, name: str) -> tuple[str, ...] | None:
    with read_names(source, name) as found:
        return None if found is None else tuple(found)
