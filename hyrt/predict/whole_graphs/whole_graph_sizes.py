"""Sizes of a graph for full-graph training, and its data in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from hyrt_perfmodel.sizes.degree_classes import DegreeClasses
from hyrt_perfmodel.sizes.degrees import DegreeDistribution

from hyrt.config import Config
from hyrt.predict.dataset_sizes import DatasetSizes

if TYPE_CHECKING:
    from hyrt.graph.graph import Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeGraphSizes:
    """Sizes of a graph and of its targets."""

    vertices: int
    edges: int
    targets: int
    """`vertices`, `edges` and `targets`: sizes of the graph, and number of training vertices."""
    target_edges: float
    """Edges into the targets."""
    scored: int
    """Vertices that an evaluation scores."""
    held: Mapping[str, float]
    """Bytes of the data, by array name."""
    row_entries: float | None = None
    """Mean number of stored values per sparse feature row; None if rows are dense."""
    mapped: bool = False
    """Whether the features are memory-mapped."""
    degrees: DegreeDistribution | None = None
    """Degree distribution, if it was counted."""


def expected_sizes(config: Config, dataset: DatasetSizes) -> WholeGraphSizes:
    """Return the expected sizes of a graph from its degrees.

    Parameters
    ----------
    config
        All settings.
    dataset
        Sizes of the dataset, with its degrees.
    """
    assert dataset.degrees is not None
    vertices, edges = round(dataset.degrees.num_vertices), round(dataset.degrees.num_edges)
    return WholeGraphSizes(
        vertices=vertices,
        edges=edges,
        targets=dataset.targets,
        target_edges=edges * dataset.targets / vertices,
        # All other vertices are for validation or test.
        scored=vertices - dataset.targets if config.evaluate.mode == "full" else 0,
        held=_data_arrays(config, dataset, vertices),
        row_entries=dataset.row_entries,
    )


def with_transpose(dataset: DatasetSizes, graph: Graph) -> DatasetSizes:
    """Return the sizes of an open graph, including its edges by source if they need a separate array.

    Edge values are read by edge index, which needs one more number per edge.
    """
    topology = graph.topology
    index_bytes = (
        (4.0 if graph.num_edges < 2**31 else 8.0) * graph.num_edges if topology.has_edge_values else 0.0
    )
    transpose_bytes = (
        0.0 if topology.is_symmetric else float(topology.indptr.nbytes + topology.indices.nbytes)
    )
    return replace(dataset, transpose_bytes=transpose_bytes + index_bytes)


def counted_sizes(
    config: Config, graph: Graph, dataset: DatasetSizes, targets: np.ndarray
) -> WholeGraphSizes:
    """Return the sizes of an open graph.

    Parameters
    ----------
    config
        All settings.
    graph
        The graph.
    dataset
        Its sizes, from `with_transpose`.
    targets
        Its training vertices.
    """
    topology = graph.topology
    scored = sum(len(graph.split(name, config.data.split)) for name in ("val", "test"))
    return WholeGraphSizes(
        vertices=graph.num_vertices,
        edges=graph.num_edges,
        targets=len(targets),
        target_edges=float(topology.in_degrees[targets].sum(dtype=np.int64)),
        scored=scored if config.evaluate.mode == "full" else 0,
        held=_data_arrays(config, dataset, graph.num_vertices),
        row_entries=dataset.row_entries,
        mapped=dataset.is_mapped and not _copies_rows(config, dataset),
        degrees=(
            DegreeDistribution.from_classes(DegreeClasses.of(topology.in_degrees))
            if topology.is_symmetric
            else None
        ),
    )


def _data_arrays(config: Config, dataset: DatasetSizes, vertices: int) -> dict[str, float]:
    """Return the bytes of the data in memory, per array."""
    arrays = {
        "topology": dataset.graph_bytes,
        "edges by source": dataset.transpose_bytes,
        "features": dataset.feature_bytes,
    }
    if _copies_rows(config, dataset):
        arrays["features as float32, to be dropped"] = 4.0 * vertices * dataset.features
    return arrays


def _copies_rows(config: Config, dataset: DatasetSizes) -> bool:
    """Return whether dense rows are copied before the first step: for input dropout, unless they are float32
    in memory.
    """
    if config.model.input_dropout == 0 or dataset.row_entries is not None:
        return False
    return dataset.value_bytes != 4 or dataset.is_mapped
