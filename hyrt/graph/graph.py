"""Graph, which consists of a topology and a table of vertices."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hyrt.checks import check_int, show
from hyrt.errors import DataError
from hyrt.formatting import pluralize, short_repr
from hyrt.graph.hetero.graph_types import GraphTypes
from hyrt.graph.labels import LabelKind, convert_for_training, count_outputs, describe_labels, get_label_kind
from hyrt.graph.links.link_split import LinkGraph, LinkSplit
from hyrt.graph.metadata import NO_NAMES, DataNames, Scalings
from hyrt.graph.row_source import HeteroRows, RowSource, SparseFeatures
from hyrt.graph.topology import Topology
from hyrt.runtime.workers import current_workers

SPLITS = ("train", "val", "test")
_PIECE = 1 << 20


def _find_checksum(*arrays: NDArray[Any]) -> int:
    """Return the CRC-32 of arrays, which does not depend on integer dtypes."""
    found = 0
    for array in arrays:
        wide = np.int64 if array.dtype.kind in "iu" else array.dtype
        for start in range(0, len(array), _PIECE):
            found = zlib.crc32(np.ascontiguousarray(array[start : start + _PIECE], wide).tobytes(), found)
    return found


@dataclass(frozen=True, eq=False)
class VertexTable:
    """Features, labels and splits of all vertices."""

    features: RowSource
    labels: NDArray[Any]
    """Labels, which are classes, flags or numbers; see `hyrt.graph.labels.LabelKind`."""
    masks: dict[str, NDArray[np.bool_]]
    """Masks `train`, `val` and `test`: bool [V], or [V, K] with K alternative splits."""
    vertex_ids: NDArray[Any] | None = None
    """Original index of each vertex, [V] integers, if the dataset was reordered; otherwise None."""
    outputs: int | None = None
    """Number of outputs per vertex that the run has fixed; None to infer it from the labels."""

    __repr__ = short_repr

    @property
    def label_kind(self) -> LabelKind:
        return get_label_kind(self.labels)

    @cached_property
    def num_outputs(self) -> int:
        return count_outputs(self.labels) if self.outputs is None else self.outputs

    @property
    def label_description(self) -> str:
        """Description such as `7 classes`, `112 labels of 0 and 1` or `1 number`."""
        return describe_labels(self.label_kind, self.num_outputs)

    @property
    def num_classes(self) -> int:
        """Number of classes or of binary labels; 0 if labels are numbers."""
        return 0 if self.label_kind == "numbers" else self.num_outputs

    def select_labels(self, vertices: NDArray[Any]) -> NDArray[Any]:
        """Return the labels of vertices as in a mini-batch (see `convert_for_training`)."""
        return convert_for_training(self.labels[vertices])

    @cached_property
    def positions(self) -> NDArray[Any] | None:
        """Current index of each original vertex, [V] integers; None if the dataset was not reordered."""
        if self.vertex_ids is None:
            return None
        positions = np.empty_like(self.vertex_ids)
        positions[self.vertex_ids] = np.arange(len(positions), dtype=positions.dtype)
        return positions

    @cached_property
    def checksum(self) -> int:
        """CRC-32 of the labels and the training mask, which identifies a dataset.

        It does not depend on the storage (file, folder or partition) or on integer dtypes. Features are not
        included, because a rank has only part of the rows.
        """
        return _find_checksum(self.labels, self.masks["train"])

    @property
    def num_splits(self) -> int:
        """Number of alternative train/val/test splits."""
        mask = self.masks["train"]
        return 1 if mask.ndim == 1 else int(mask.shape[1])

    def split(self, name: str, column: int, source: str) -> NDArray[np.int64]:
        """Return the sorted vertex ids [n] int64 of a split. If there are alternative splits, `column` is the
        mask column.

        Raises DataError if there is no such split or column; `source` is the graph's name in the message.
        """
        check_int("the split number", column, -(2**63))
        if not isinstance(name, str) or name not in self.masks:
            raise DataError(f"{source} has no split {show(name)}: use one of {', '.join(self.masks)}")
        mask = self.masks[name]
        if column < 0 or column >= self.num_splits:
            raise DataError(
                f"{source} has no split {column}, only {pluralize(self.num_splits, 'split')}: number splits "
                "from 0"
            )
        return np.flatnonzero(mask if mask.ndim == 1 else mask[:, column])


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Identity of a dataset, apart from its features, of which a rank has only some rows."""

    labels: int
    """CRC-32 of labels, training vertices and, if there are any, links to predict."""
    edges: int | None
    """CRC-32 of edges with their types, weights and features, and of the names of vertex types and relations;
    None if it is unknown."""

    def to_state(self) -> dict[str, int | None]:
        """Return the entries of a checkpoint."""
        return {"graph": self.labels, "edges": self.edges}

    def find_changes(self, state: Mapping[str, Any]) -> list[str]:
        """Return which of `labels` and `edges` differ from those in a checkpoint.

        Entries that are unknown, as in checkpoints of earlier versions, count as equal.
        """
        saved = {"labels": state.get("graph"), "edges": state.get("edges")}
        mine = {"labels": self.labels, "edges": self.edges}
        return [name for name in mine if None not in (mine[name], saved[name]) and mine[name] != saved[name]]


# Number of feature rows to compare when datasets are distinguished.
_NUM_COMPARED = 16


@dataclass(frozen=True, eq=False)
class Graph:
    """Graph with one vertex type and one relation, or heterogeneous graph if it has `types`.

    Graphs are equal (`==`) only if they are the same object, because comparing gigabytes of arrays is slow.
    """

    name: str
    """Source of the graph for messages and reports."""
    topology: Topology
    vertices: VertexTable
    links: LinkGraph | None = None
    """Edges and split for link prediction; None for predictions about vertices."""
    types: GraphTypes | None = None
    """Vertex types and relations of a heterogeneous graph, otherwise None. In a heterogeneous graph,
    `features` are `HeteroRows`, only vertices of the target type have labels, and the `edge_types` of the
    topology are relation indices.
    """
    names: DataNames = NO_NAMES
    """Names of classes, feature columns and edge types."""
    scalings: Scalings = field(default_factory=dict)
    """Scalings that have been applied to the features."""
    num_loops_left_out: int = 0
    """Number of self-loops that were removed because the model adds a self-loop to each vertex."""

    def __repr__(self) -> str:
        if self.types is not None:
            return (
                f"Graph({self.name!r}: {pluralize(self.num_vertices, 'vertex', 'vertices')} of "
                f"{pluralize(len(self.types.vertex_types), 'type')}, {pluralize(self.num_edges, 'edge')} of "
                f"{pluralize(len(self.types.relations), 'relation')}, {self.vertices.label_description})"
            )
        kind = "sparse" if isinstance(self.features, SparseFeatures) else "dense"
        return (
            f"Graph({self.name!r}: {pluralize(self.num_vertices, 'vertex', 'vertices')}, "
            f"{pluralize(self.num_edges, 'edge')}, {pluralize(self.num_features, f'{kind} feature')}, "
            f"{self.vertices.label_description})"
        )

    @classmethod
    def from_arrays(
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
        """Return a copy of the graph with other feature rows."""
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
        """Number of model outputs per vertex: classes, binary labels, numbers, or embedding columns."""
        return self.vertices.num_outputs if self.links is None else self.links.width

    @property
    def fingerprint(self) -> Fingerprint:
        """Identity of the dataset with its link split, if it has one."""
        return self.fingerprint_with(None if self.links is None else self.links.split)

    def fingerprint_with(self, split: LinkSplit | None) -> Fingerprint:
        """Return the identity of the dataset with a link split."""
        edges, types = self.topology.checksum, self.types
        if edges is not None and types is not None:
            names = (types.vertex_types, types.starts.tolist(), list(map(str, types.relations)), types.target)
            edges = zlib.crc32(repr(names).encode(), edges)
        return Fingerprint(self.vertices.checksum ^ (0 if split is None else split.checksum), edges)

    @cached_property
    def positions(self) -> NDArray[Any] | None:
        """Current index of each original vertex, [V] integers; None if the vertices were not reordered.

        In a heterogeneous graph, the original numbers count from the first vertex of each type, so they do
        not depend on the order in which the dataset has the types.
        """
        if self.vertices.vertex_ids is None:
            return None
        ids, types = self.vertices.vertex_ids.copy(), self.types
        for low, high in map(types.interval, types.vertex_types) if types else ():
            if low == high:
                continue
            first = ids[low:high].min()
            if ids[low:high].max() - first != high - low - 1:
                # Original numbers of different types are mixed.
                return self.vertices.positions
            ids[low:high] -= first - low
        positions = np.empty_like(ids)
        positions[ids] = np.arange(len(ids), dtype=ids.dtype)
        return positions

    def describe_vertices(self, column: int) -> dict[str, Any]:
        """Return the number of vertices (`count`), the packed bits of the training vertices (`train`), and
        checksums of the labels and of the other masks, all independent of the order of the vertices.

        `column` is the split.
        """

        def sort(array: NDArray[Any]) -> NDArray[Any]:
            return array if self.positions is None else array[self.positions]

        train = sort(self.masks["train"])
        return {
            "count": len(train),
            "train": np.packbits(train if train.ndim == 1 else train[:, column]),
            "labels": _find_checksum(sort(self.labels)),
            "held_out": _find_checksum(sort(self.masks["val"]), sort(self.masks["test"])),
        }

    @cached_property
    def row_sums(self) -> NDArray[np.float64]:
        """Weighted sum and weighted absolute sum of a few feature rows per vertex type, [n, 2] float64.

        These sums distinguish feature rows, which the fingerprint ignores. This process must have all rows.
        """
        if not isinstance(self.features, HeteroRows):
            return self._sums_of(self.features, self.num_vertices)
        counts = np.diff(self.features.types.starts).tolist()
        tables = [
            self._sums_of(table, count)
            for table, count in zip(self.features.tables, counts, strict=True)
            if table is not None
        ]
        return np.concatenate([np.empty((0, 2)), *tables])

    def has_row_sums(self, saved: Sequence[Sequence[float]]) -> bool:
        """Return whether the row sums equal those of a checkpoint up to rounding."""
        mine, other = self.row_sums, np.array(saved)
        # Normalization may add in a different order.
        return mine.shape == other.shape and bool(np.all(np.abs(mine - other) <= 1e-5 * other[:, 1:]))

    def _sums_of(self, table: RowSource, count: int) -> NDArray[np.float64]:
        num_compared = min(_NUM_COMPARED, count)
        vertices = np.linspace(0, count - 1, num_compared).astype(self.topology.indices.dtype)
        rows = np.empty((num_compared, table.width), np.float32)
        table.rows(vertices, rows, current_workers())
        weights = np.cos(np.arange(table.width, dtype=np.float64))
        return np.stack([rows @ weights, np.abs(rows) @ np.abs(weights)], axis=1)

    @property
    def num_splits(self) -> int:
        """Number of alternative train/val/test splits."""
        return self.vertices.num_splits

    def split(self, name: str, column: int = 0) -> NDArray[np.int64]:
        """Return the sorted vertex ids [n] int64 of a split: `train`, `val` or `test`.

        `column` selects one of several alternative splits. Raises DataError if there is no such split or
        column.
        """
        return self.vertices.split(name, column, self.name)
