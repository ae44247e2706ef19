"""The graph that every part of hyrt works on: a topology and a table of its vertices."""

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

# Number of vertices whose feature rows are compared to distinguish datasets.
_NUM_COMPARED = 16


@dataclass(frozen=True, eq=False)
class Graph:
    """Graph with one vertex type and one relation, or a heterogeneous graph if it has `types`.

    Graphs are equal (`==`) only if they are the same object, because comparing gigabytes of arrays is slow.
    """

    name: str
    """Source of the graph, for messages and reports."""
    topology: Topology
    """The edges."""
    vertices: VertexTable
    """Features, labels and splits of the vertices."""
    links: LinkGraph | None = None
    """Links that are predicted; None if vertices are predicted."""
    types: GraphTypes | None = None
    """Vertex types and relations of a heterogeneous graph, otherwise None. In a heterogeneous graph,
    `features` is a `TypedRows`, only vertices of the target type have labels, and the `edge_types` of the
    topology are relation indices."""
    names: DataNames = NO_NAMES
    """Names of classes, feature columns and edge types in the dataset."""
    scalings: Scalings = field(default_factory=dict)
    """Scalings that were applied to the features, by vertex type ('' if there is one type)."""
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
        """Build a graph from the arrays of `Topology` and `VertexTable`, without checks or copies."""
        topology = Topology(indptr, indices, edge_types, edge_weights, edge_features, edge_times)
        return cls(name, topology, VertexTable(features, labels, masks, vertex_ids))

    def with_features(self, features: RowSource) -> Graph:
        """Return the graph with other feature rows."""
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
        """Number of classes or of binary labels; 0 if labels are numbers."""
        return self.vertices.num_classes

    @property
    def num_outputs(self) -> int:
        """Number of outputs per vertex: classes, binary labels, numbers, or columns of an embedding."""
        return self.vertices.num_outputs if self.links is None else self.links.width

    @property
    def checksum(self) -> int:
        """CRC-32 of labels and training vertices (`VertexTable.checksum`), and of the links to predict."""
        return (
            self.vertices.checksum
            if self.links is None
            else self.vertices.checksum ^ self.links.split.checksum
        )

    @cached_property
    def row_sums(self) -> NDArray[np.float64]:
        """[n, 2] float64: weighted sum and weighted absolute sum of the feature rows of a few vertices.

        In a heterogeneous graph, a few vertices of each type that has features are used. The sums
        distinguish feature rows, which `checksum` does not cover. All rows must be in this process.
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
        num_compared = min(_NUM_COMPARED, count)
        vertices = np.linspace(0, count - 1, num_compared).astype(self.topology.indices.dtype)
        rows = np.empty((num_compared, table.width), np.float32)
        table.rows(vertices, rows, current_workers())
        weights = np.cos(np.arange(table.width, dtype=np.float64))
        return np.stack([rows @ weights, np.abs(rows) @ np.abs(weights)], axis=1)

    @property
    def num_splits(self) -> int:
        """Number of alternative train/val/test splits of the dataset."""
        return self.vertices.num_splits

    def split(self, name: str, column: int = 0) -> NDArray[np.int64]:
        """Return the sorted vertices of one split; see `VertexTable.split`."""
        return self.vertices.split(name, column, self.name)
