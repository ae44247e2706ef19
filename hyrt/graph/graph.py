"""The graph every part of hyrt works on: a topology, and a table of its vertices."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.links.link_split import LinkGraph
from hyrt.graph.names.data_names import NO_NAMES, DataNames, Scalings
from hyrt.graph.row_source import RowSource, SparseFeatures
from hyrt.graph.topology import Topology
from hyrt.graph.typed.graph_types import GraphTypes
from hyrt.graph.typed.typed_rows import TypedRows
from hyrt.graph.vertex_table import VertexTable
from hyrt.machine.workers import current_workers
from hyrt.quantities import counted

# Vertices whose feature rows tell datasets apart.
_LOOKED_AT = 16


@dataclass(frozen=True, eq=False)
class Graph:
    """A graph of one vertex type and one relation, or of several where it has `types`.

    Graphs are equal (`==`) where they are the same object: nobody means to compare gigabytes of arrays.
    """

    name: str
    """The source of the graph, for messages and reports."""
    topology: Topology
    """The edges."""
    vertices: VertexTable
    """Features, labels and splits of its vertices."""
    links: LinkGraph | None = None
    """Which of its edges are predicted; None where vertices are."""
    types: GraphTypes | None = None
    """Which types its vertices have, and which relations its edges belong to; None where all are of one
    kind. With them, `features` is a `TypedRows`, only vertices of the target type have labels, and the
    topology's `edge_types` are numbers of relations."""
    names: DataNames = NO_NAMES
    """The names that its dataset has for classes, columns and types of edges."""
    scalings: Scalings = field(default_factory=dict)
    """The scalings that its features have got, by vertex type ('' if there is one type)."""
    num_loops_left_out: int = 0
    """How many self loops of its data are not among the edges, because a model adds self loops of its own."""

    def __repr__(self) -> str:
        if self.types is not None:
            return (
                f"Graph({self.name!r}: {counted(self.num_vertices, 'vertex', 'vertices')} of "
                f"{counted(len(self.types.vertex_types), 'type')}, {counted(self.num_edges, 'edge')} of "
                f"{counted(len(self.types.relations), 'relation')}, {self.vertices.labels_in_words})"
            )
        kind = "sparse" if isinstance(self.features, SparseFeatures) else "dense"
        return (
            f"Graph({self.name!r}: {counted(self.num_vertices, 'vertex', 'vertices')}, "
            f"{counted(self.num_edges, 'edge')}, {counted(self.num_features, f'{kind} feature')}, "
            f"{self.vertices.labels_in_words})"
        )

    @classmethod
    def of_arrays(
        cls,
        name: str,
        indptr: NDArray[np.int64],
        indices: NDArray[Any],
        features: RowSource,
        labels: NDArray[Any],
        masks: dict[str, NDArray[np.bool_]],
        vertex_ids: NDArray[Any] | None = None,
        edge_types: NDArray[Any] | None = None,
        edge_weights: NDArray[np.float32] | None = None,
        edge_features: NDArray[np.float32] | None = None,
        edge_times: NDArray[Any] | None = None,
    ) -> Self:
        """A graph of the arrays that `Topology` and `VertexTable` describe; nothing is checked or copied."""
        topology = Topology(indptr, indices, edge_types, edge_weights, edge_features, edge_times)
        return cls(name, topology, VertexTable(features, labels, masks, vertex_ids))

    def with_features(self, features: RowSource) -> Graph:
        """The same graph with other feature rows."""
        return replace(self, vertices=replace(self.vertices, features=features))

    @property
    def num_vertices(self) -> int:
        return self.topology.num_vertices

    @property
    def num_edges(self) -> int:
        return self.topology.num_edges

    @property
    def features(self) -> RowSource:
        return self.vertices.features

    @property
    def labels(self) -> NDArray[Any]:
        return self.vertices.labels

    @property
    def masks(self) -> dict[str, NDArray[np.bool_]]:
        return self.vertices.masks

    @property
    def num_features(self) -> int:
        return self.features.width

    @property
    def num_classes(self) -> int:
        """Classes, or labels of 0 and 1; 0 where labels are numbers."""
        return self.vertices.num_classes

    @property
    def num_outputs(self) -> int:
        """How many scores a model gives a vertex: one a class, a label of 0 and 1, a number, or a column."""
        return self.vertices.num_outputs if self.links is None else self.links.width

    @property
    def checksum(self) -> int:
        """Of labels and training vertices (`VertexTable.checksum`), and of links where they are predicted."""
        return (
            self.vertices.checksum
            if self.links is None
            else self.vertices.checksum ^ self.links.split.checksum
        )

    @cached_property
    def row_sums(self) -> NDArray[np.float64]:
        """[n, 2] float64: a weighted sum of the feature row of a few vertices, and that row's size.

        In a typed graph, these are a few of each type that has features. The sums tell feature rows apart
        that the `checksum` does not look at. All rows must be in this process.
        """
        if not isinstance(self.features, TypedRows):
            return self._sums_of(self.features, self.num_vertices)
        counts = np.diff(self.features.types.starts).tolist()
        tables = [
            self._sums_of(table, count)
            for table, count in zip(self.features.tables, counts, strict=True)
            if table is not None
        ]
        return np.concatenate([np.empty((0, 2)), *tables])

    def _sums_of(self, table: RowSource, count: int) -> NDArray[np.float64]:
        num_looked_at = min(_LOOKED_AT, count)
        vertices = np.linspace(0, count - 1, num_looked_at).astype(self.topology.indices.dtype)
        rows = np.empty((num_looked_at, table.width), np.float32)
        table.rows(vertices, rows, current_workers())
        weights = np.cos(np.arange(table.width, dtype=np.float64))
        return np.stack([rows @ weights, np.abs(rows) @ np.abs(weights)], axis=1)

    @property
    def num_splits(self) -> int:
        """How many alternative train/val/test splits the dataset has."""
        return self.vertices.num_splits

    def split(self, name: str, column: int = 0) -> NDArray[np.int64]:
        """The vertices of one split, sorted; see `VertexTable.split`."""
        return self.vertices.split(name, column, self.name)
