"""Schema of a training run: everything that training fits to a graph and that a model needs to score other
data.

It is built when a run starts, and stored in checkpoints and exported models; `hyrt.graph.conform` applies it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.formatting import short_repr
from hyrt.graph.graph import Graph
from hyrt.graph.labels import LabelKind, describe_labels
from hyrt.graph.metadata import Scaling
from hyrt.graph.row_source import HeteroRows, QuantizedRowSource, RowSource


@dataclass(frozen=True, slots=True, eq=False)
class TableSchema:
    """Schema of the feature rows of one vertex type."""

    width: int | None
    """Number of columns; None if the model learned one row per vertex."""
    columns: tuple[str, ...] | None = None
    """Column names; None if the dataset had none."""
    scaling: tuple[Scaling, ...] = ()
    """Scalings in order of application."""
    column_scales: NDArray[np.float32] | None = None
    """[F] scales of int8 columns; None for other formats."""
    count: int | None = None
    """Number of vertices, if the model learned one row per vertex."""
    ids: tuple[str, ...] | None = None
    """Ids of the vertices in row order, if the model learned rows and the dataset had ids."""

    __repr__ = short_repr

    def to_dict(self) -> dict[str, Any]:
        """Return JSON data."""
        scales = self.column_scales
        return {
            "width": self.width,
            "columns": None if self.columns is None else list(self.columns),
            "scaling": [step.to_dict() for step in self.scaling],
            "column_scales": None if scales is None else scales.astype(np.float64).tolist(),
            "count": self.count,
            "ids": None if self.ids is None else list(self.ids),
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        """Create the schema from the result of `to_dict`."""
        scales = saved["column_scales"]
        return cls(
            width=saved["width"],
            columns=_names(saved["columns"]),
            scaling=tuple(Scaling.from_dict(step) for step in saved["scaling"]),
            column_scales=None if scales is None else np.array(scales, np.float32),
            count=saved["count"],
            ids=_names(saved["ids"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunSchema:
    """Schema of the data that a run's model takes."""

    labels: LabelKind
    outputs: int
    """Number of classes, flags or numbers."""
    classes: tuple[str, ...] | None
    """Name of each class or label column; None if the dataset had none."""
    tables: Mapping[str, TableSchema]
    """Table schemas by vertex type ('' if there is only one), in type order."""
    relations: tuple[tuple[str, str, str], ...] = ()
    """Source type, name and destination type of each relation of a heterogeneous graph."""
    target: str = ""
    """Vertex type with labels, in a heterogeneous graph."""
    edge_types: tuple[str, ...] | None = None
    """Edge type names of a homogeneous graph; None if it has no types, or no names for them."""
    predicts_links: bool = False
    """Whether the run predicts links, which need no labels."""
    has_edge_types: bool = False
    has_edge_weights: bool = False
    """Whether edges of a homogeneous graph had weights."""
    edge_width: int = 0
    """Number of edge feature columns."""
    edge_columns: tuple[str, ...] | None = None

    __repr__ = short_repr

    @property
    def is_hetero(self) -> bool:
        """Whether the training graph was heterogeneous."""
        return bool(self.relations) or "" not in self.tables

    @property
    def label_description(self) -> str:
        """Description such as `7 classes`, `112 labels of 0 and 1` or `1 number`."""
        return describe_labels(self.labels, self.outputs)

    def class_name(self, number: int) -> str:
        """Return the name of a class, or its number if it has no name."""
        return str(number) if self.classes is None else self.classes[number]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON data."""
        return {
            "labels": self.labels,
            "outputs": self.outputs,
            "classes": None if self.classes is None else list(self.classes),
            "tables": {name: table.to_dict() for name, table in self.tables.items()},
            "relations": [list(relation) for relation in self.relations],
            "target": self.target,
            "edge_types": None if self.edge_types is None else list(self.edge_types),
            "predicts_links": self.predicts_links,
            "has_edge_types": self.has_edge_types,
            "has_edge_weights": self.has_edge_weights,
            "edge_width": self.edge_width,
            "edge_columns": None if self.edge_columns is None else list(self.edge_columns),
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        """Create the schema from the result of `to_dict`."""
        return cls(
            labels=saved["labels"],
            outputs=saved["outputs"],
            classes=_names(saved["classes"]),
            tables={name: TableSchema.from_dict(table) for name, table in saved["tables"].items()},
            relations=tuple((r[0], r[1], r[2]) for r in saved["relations"]),
            target=saved["target"],
            edge_types=_names(saved["edge_types"]),
            predicts_links=saved["predicts_links"],
            has_edge_types=saved["has_edge_types"],
            has_edge_weights=saved["has_edge_weights"],
            edge_width=saved["edge_width"],
            edge_columns=_names(saved["edge_columns"]),
        )


def build_run_schema(graph: Graph) -> RunSchema:
    """Return the schema of a run on a graph whose features are scaled and rounded as in training."""
    names, topology, types = graph.names, graph.topology, graph.types
    labels, outputs = graph.vertices.label_kind, graph.vertices.num_outputs
    classes = names.classes
    if classes is not None and len(classes) != outputs:
        # Extra class names at the end belong to classes without vertices. After any other mismatch, the names
        # do not describe the labels.
        classes = classes[:outputs] if labels == "classes" and len(classes) > outputs else None
    edges: dict[str, Any] = {
        "predicts_links": graph.links is not None,
        "has_edge_weights": topology.edge_weights is not None,
        "edge_width": 0 if topology.edge_features is None else int(topology.edge_features.shape[1]),
        "edge_columns": names.edge_columns,
    }
    if types is None:
        tables = {"": _table_schema(graph, "", graph.features)}
        edges |= {"has_edge_types": topology.edge_types is not None, "edge_types": names.edge_types}
    else:
        assert isinstance(graph.features, HeteroRows)
        rows = zip(types.vertex_types, graph.features.tables, strict=True)
        tables = {name: _table_schema(graph, name, table) for name, table in rows}
        edges["relations"] = tuple((r.source, r.name, r.destination) for r in types.relations)
        edges["target"] = types.target
    return RunSchema(labels=labels, outputs=outputs, classes=classes, tables=tables, **edges)


def _table_schema(graph: Graph, name: str, rows: RowSource | None) -> TableSchema:
    if rows is None:
        assert graph.types is not None
        return TableSchema(None, count=graph.types.count(name), ids=read_type_ids(graph, name))
    columns = graph.names.columns.get(name)
    scales = rows.column_scales if isinstance(rows, QuantizedRowSource) else None
    return TableSchema(
        rows.width,
        columns if columns is not None and len(columns) == rows.width else None,
        graph.scalings.get(name, ()),
        None if scales is None else np.array(scales, np.float32),
    )


def read_type_ids(graph: Graph, vertex_type: str) -> tuple[str, ...] | None:
    """Return the ids of a type's vertices in the graph's order; None if the dataset has no ids.

    A reordered dataset without ids has the original numbers within the type as ids. Raises DataError if ids
    are duplicated or their number is wrong.
    """
    assert graph.types is not None
    low, high = graph.types.interval(vertex_type)
    order = graph.vertices.vertex_ids
    with graph.names.read_ids() as rows:
        if rows is None:
            if order is None or low == high:
                return None
            return tuple(map(str, (order[low:high] - order[low:high].min()).tolist()))
        found = [row[-1] for row in rows if row[0] == vertex_type]
    if len(set(found)) != high - low or len(found) != high - low:
        raise DataError(
            f"{graph.name} has {len(set(found)):,} ids for {high - low:,} vertices of type {vertex_type!r}: "
            "write the dataset again"
        )
    if order is None or low == high:
        return tuple(found)
    numbers = order[low:high]
    return tuple(found[number] for number in (numbers - numbers.min()).tolist())


def _names(saved: list[str] | None) -> tuple[str, ...] | None:
    return None if saved is None else tuple(saved)
