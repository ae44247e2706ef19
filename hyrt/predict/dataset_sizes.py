"""How large a dataset is: from published figures, from the law that generates it, or from the open graph."""

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
    """What the work of a run and the memory it takes follow from."""

    features: int
    classes: int
    targets: int
    """`features`, `classes` and `targets`: the width of a feature row, the number of classes, and the number
    of training vertices."""
    value_bytes: int
    """Bytes of a feature as it is computed with: as it is stored, unless rows have a format of their own."""
    row_bytes: float | None = None
    """Bytes of a dense row in its narrow format; None where it has none, or values alone say it."""
    feature_bytes: float
    graph_bytes: float
    """`feature_bytes` and `graph_bytes`: bytes of the feature matrix and of the topology in memory. A
    memory-mapped folder's are left to the system's page cache and do not count."""
    degrees: DegreeDistribution | None = None
    """The vertices, the edges and how these are distributed; None for an open graph, whose mini-batches are
    sampled."""
    edge_value_bytes: float = 0.0
    """Bytes of the weight and the features of an edge."""
    transpose_bytes: float = 0.0
    """Bytes of the edges by source, which training on the whole graph keeps of a graph that is not symmetric.
    """
    mapped_bytes: float = 0.0
    """Bytes that are memory-mapped instead."""
    is_mapped: bool = False
    """Whether an open graph's dense rows lie in a file, whose pages need not stay in memory."""
    row_entries: float | None = None
    """The mean number of stored values of a sparse row; None where rows are dense."""
    found: str = ""
    """The place of the dataset, for people."""

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
        """The sizes of a dataset that will be in memory as a whole, with dense rows."""
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
    """The sizes of a dataset whose dense rows are rounded.

    Parameters
    ----------
    sizes
        The sizes as it is stored.
    rows
        The setting `data.rows`; `auto` is as they are stored, until it is known what it stands for.
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
        # Rows that lie in files stay as they are.
        feature_bytes=sizes.feature_bytes * row_bytes / stored,
    )


def published_sizes(known: PublishedSizes, *, symmetrized: bool = False, found: str = "") -> DatasetSizes:
    """The sizes of a dataset as they were published, with log-normal degrees.

    Parameters
    ----------
    known
        The published figures.
    symmetrized
        Whether the edges count as opening the dataset stores them, in both directions; else as they were
        published.
    found
        The place of the dataset, for people.
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
    """The sizes of a generated dataset, with the degrees of the law that it is drawn by.

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
    """The sizes of an open graph; rows of a rank's part alone stand for all."""
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
    """How many numbers of four bytes an edge has besides its source."""
    weights, features = topology.edge_weights, topology.edge_features
    return (weights is not None) + (0 if features is None else int(features.shape[1]))
