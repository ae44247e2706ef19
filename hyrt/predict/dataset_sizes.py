"""Dataset sizes: published, from the law of a generator, or of an open graph."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hyrt_perfmodel.sizes.datasets import PublishedSizes
from hyrt_perfmodel.sizes.degrees import DegreeDistribution

if TYPE_CHECKING:
    import numpy as np

    from hyrt.graph.graph import Graph
    from hyrt.graph.topology import Topology

_ID_BYTES = 4
_OFFSET_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSizes:
    """Dataset sizes that determine the work and the memory of a run."""

    features: int
    classes: int
    targets: int
    """`features`, `classes` and `targets`: width of a feature row, number of classes, number of training
    vertices."""
    value_bytes: int
    """Bytes per feature value during computation: as stored, unless rows have a quantized format."""
    row_bytes: float | None = None
    """Bytes of a dense row in a quantized format; None for other formats, whose bytes follow from the
    values."""
    feature_bytes: float
    graph_bytes: float
    """`feature_bytes` and `graph_bytes`: bytes of the feature matrix and of the topology in memory, without
    memory-mapped files, which are left to the page cache."""
    degrees: DegreeDistribution | None = None
    """Vertices, edges and their degree distribution; None for an open graph, whose mini-batches are
    sampled."""
    edge_value_bytes: float = 0.0
    """Bytes of an edge's weight and features."""
    transpose_bytes: float = 0.0
    """Bytes of the edges sorted by source, which full-graph training needs for graphs that are not
    symmetric."""
    mapped_bytes: float = 0.0
    """Bytes that are memory-mapped instead."""
    is_mapped: bool = False
    """Whether an open graph's dense rows are in a memory-mapped file."""
    row_entries: float | None = None
    """Mean number of stored values per sparse row; None if rows are dense."""
    found: str = ""
    """Location of the dataset, for display."""

    @classmethod
    def in_memory(
        cls,
        degrees: DegreeDistribution,
        *,
        features: int,
        classes: int,
        targets: int,
        value_bytes: int,
        found: str = "",
    ) -> DatasetSizes:
        """Return the sizes of a dataset that is held in memory completely, with dense rows."""
        vertices, edges = float(degrees.num_vertices), float(degrees.num_edges)
        graph_bytes = edges * _ID_BYTES + vertices * _OFFSET_BYTES
        return cls(
            features=features,
            classes=classes,
            targets=targets,
            value_bytes=value_bytes,
            feature_bytes=vertices * features * value_bytes,
            graph_bytes=graph_bytes,
            transpose_bytes=0.0 if degrees.reciprocity == 1 else graph_bytes,
            degrees=degrees,
            found=found,
        )


def in_format(sizes: DatasetSizes, rows: str) -> DatasetSizes:
    """Return the sizes of a dataset after quantizing its dense rows.

    Parameters
    ----------
    sizes
        Sizes of the stored dataset.
    rows
        Value of the setting `data.rows`; `auto` is treated like `stored` until it is resolved.
    """
    if rows in ("stored", "auto") or sizes.row_entries is not None:
        return sizes
    from hyrt.graph.narrow.row_format import ROW_FORMATS

    row_bytes = float(ROW_FORMATS[rows].row_bytes(sizes.features))
    stored = sizes.features * sizes.value_bytes if sizes.row_bytes is None else sizes.row_bytes
    return replace(
        sizes,
        value_bytes=4,
        row_bytes=row_bytes,
        # Memory-mapped rows keep their format.
        feature_bytes=sizes.feature_bytes * row_bytes / stored,
    )


def published_sizes(known: PublishedSizes, *, symmetrized: bool = False, found: str = "") -> DatasetSizes:
    """Return the published sizes of a dataset, with log-normal degrees.

    Parameters
    ----------
    known
        Published figures.
    symmetrized
        Whether to count edges in both directions, as opening the dataset stores them, instead of as
        published.
    found
        Location of the dataset, for display.
    """
    edges, reciprocity = known.edges, float(known.symmetric)
    if symmetrized:
        edges, reciprocity = edges if known.symmetric else 2 * edges, 1.0
    return DatasetSizes.in_memory(
        DegreeDistribution.assumed(known.vertices, edges, num_targets=known.targets, reciprocity=reciprocity),
        features=known.features,
        classes=known.classes,
        targets=known.targets,
        value_bytes=known.value_bytes,
        found=found,
    )


def generated_sizes(source: str) -> DatasetSizes:
    """Return the sizes of a generated dataset, with degrees from the generator's law.

    Parameters
    ----------
    source
        `synthetic:PRESET[,key=value,...]`.

    Raises
    ------
    DataError
        If there is no such preset or key.
    """
    from hyrt.graph.synthetic.degree_law import synthetic_degrees
    from hyrt.graph.synthetic.spec import parse_spec

    spec = parse_spec(source)
    return DatasetSizes.in_memory(
        synthetic_degrees(spec),
        features=spec.features,
        classes=spec.classes,
        targets=spec.train,
        value_bytes=2 if spec.dtype == "float16" else 4,
        found=f"{source}, which is generated when the run starts",
    )


def graph_sizes(graph: Graph, targets: np.ndarray) -> DatasetSizes:
    """Return the sizes of an open graph; if a rank has only part of the rows, they represent all rows."""
    from hyrt.fullgraph.mapped_rows import memory_map
    from hyrt.graph.narrow.narrow_features import NarrowFeatures
    from hyrt.graph.narrow.row_format import FLOAT16, FLOAT32
    from hyrt.graph.row_source import DenseFeatures, NarrowSource, SparseFeatures

    features = graph.features
    sparse = features if isinstance(features, SparseFeatures) else None
    row_bytes = None
    if isinstance(features, NarrowSource) and features.row_format not in (FLOAT32, FLOAT16):
        row_bytes = float(features.row_format.row_bytes(features.width))
    rows_bytes = float(graph.num_vertices) * graph.num_features * features.value_bytes
    if isinstance(features, NarrowFeatures):
        rows_bytes = float(features.nbytes)
    return DatasetSizes(
        features=graph.num_features,
        classes=graph.num_outputs,
        targets=len(targets),
        value_bytes=features.value_bytes if row_bytes is None else 4,
        row_bytes=row_bytes,
        feature_bytes=rows_bytes if sparse is None else float(sparse.nbytes),
        graph_bytes=float(graph.topology.nbytes),
        edge_value_bytes=4.0 * edge_columns(graph.topology),
        is_mapped=isinstance(features, DenseFeatures) and memory_map(features.values) is not None,
        row_entries=None if sparse is None else len(sparse.columns) / (len(sparse.indptr) - 1),
    )


def edge_columns(topology: Topology) -> int:
    """Return the number of four-byte values per edge besides its source."""
    weights, features = topology.edge_weights, topology.edge_features
    return (weights is not None) + (0 if features is None else int(features.shape[1]))
