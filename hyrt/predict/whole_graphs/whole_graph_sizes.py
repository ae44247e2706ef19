"""What a whole graph that is trained on is known by: its sizes, and the data that is in memory."""

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
    """What is known of a graph and of the vertices that count in it."""

    vertices: int
    edges: int
    targets: int
    """`vertices`, `edges` and `targets`: of the graph, and training vertices."""
    target_edges: float
    """Edges into the targets."""
    scored: int
    """Vertices that an evaluation scores."""
    held: Mapping[str, float]
    """Bytes of the data itself, by the names of its arrays."""
    row_entries: float | None = None
    """The mean number of stored values of a sparse feature row; None where rows are dense."""
    mapped: bool = False
    """Whether the features are memory-mapped."""
    degrees: DegreeDistribution | None = None
    """How many edges its vertices have, where they were counted."""


def expected_sizes(config: Config, dataset: DatasetSizes) -> WholeGraphSizes:
    """The sizes of a graph of which degrees alone are known.

    Parameters
    ----------
    config
        All settings.
    dataset
        The sizes of the dataset, with its degrees.
    """
    assert dataset.degrees is not None
    vertices, edges = round(dataset.degrees.num_vertices), round(dataset.degrees.num_edges)
    return WholeGraphSizes(
        vertices=vertices,
        edges=edges,
        targets=dataset.targets,
        target_edges=edges * dataset.targets / vertices,
        # All others are validated or tested.
        scored=vertices - dataset.targets if config.evaluate.mode == "full" else 0,
        held=_held(config, dataset, vertices),
        row_entries=dataset.row_entries,
    )


def with_transpose(dataset: DatasetSizes, graph: Graph) -> DatasetSizes:
    """The sizes of an open graph with its edges by source, where these are an array of their own.

    What edges have of their own is read by their numbers: one more for each edge.
    """
    topology = graph.topology
    numbers = (4.0 if graph.num_edges < 2**31 else 8.0) * graph.num_edges if topology.has_edge_values else 0.0
    turned = 0.0 if topology.is_symmetric else float(topology.indptr.nbytes + topology.indices.nbytes)
    return replace(dataset, transpose_bytes=turned + numbers)


def counted_sizes(
    config: Config, graph: Graph, dataset: DatasetSizes, targets: np.ndarray
) -> WholeGraphSizes:
    """The sizes of an open graph.

    Parameters
    ----------
    config
        All settings.
    graph
        The graph.
    dataset
        Its sizes, `with_transpose`.
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
        held=_held(config, dataset, graph.num_vertices),
        row_entries=dataset.row_entries,
        mapped=dataset.is_mapped and not _copies_rows(config, dataset),
        degrees=(
            DegreeDistribution.from_classes(DegreeClasses.of(topology.in_degrees))
            if topology.is_symmetric
            else None
        ),
    )


def _held(config: Config, dataset: DatasetSizes, vertices: int) -> dict[str, float]:
    """The data in memory, array by array."""
    held = {
        "topology": dataset.graph_bytes,
        "edges by source": dataset.transpose_bytes,
        "features": dataset.feature_bytes,
    }
    if _copies_rows(config, dataset):
        held["features as float32, to be dropped"] = 4.0 * vertices * dataset.features
    return held


def _copies_rows(config: Config, dataset: DatasetSizes) -> bool:
    """Whether dense rows are copied before the first step: those to be dropped, unless they are floats."""
    if config.model.input_dropout == 0 or dataset.row_entries is not None:
        return False
    return dataset.value_bytes != 4 or dataset.is_mapped
