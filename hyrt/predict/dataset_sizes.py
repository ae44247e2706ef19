"""Sizes of datasets, full graphs and mini-batches, from publications, generators, open graphs or samples."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from hyrt_perfmodel.degrees import DegreeClasses, DegreeDistribution, PublishedSizes
from hyrt_perfmodel.expected_sizes import BlockSizes, SampledSizes

from hyrt.config import Config
from hyrt.errors import ConfigError
from hyrt.sampling.sampler_settings import SAMPLERS

if TYPE_CHECKING:
    import numpy as np

    from hyrt.graph.graph import Graph
    from hyrt.graph.topology import Topology
    from hyrt.runtime.workers import Workers
    from hyrt.sampling.minibatch import MiniBatch
    from hyrt.sampling.sampler import Sampler
    from hyrt.sampling.sampler_settings import SamplerSettings


_ID_BYTES = 4
_OFFSET_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSizes:
    """Sizes of a dataset that determine the work and memory of a run."""

    features: int
    classes: int
    targets: int
    """Number of training vertices."""
    value_bytes: int
    """Bytes per feature value in computations, which is the stored size unless rows are quantized."""
    row_bytes: float | None = None
    """Bytes of a dense row in a quantized format; None if each value takes `value_bytes`."""
    feature_bytes: float
    graph_bytes: float
    """Bytes of the topology in memory. This and `feature_bytes` exclude memory-mapped files."""
    degrees: DegreeDistribution | None = None
    """Degree distribution, with the numbers of vertices and edges; None if the graph has been opened, because
    its mini-batches are then sampled.
    """
    edge_value_bytes: float = 0.0
    """Bytes of one edge's weight and features."""
    transpose_bytes: float = 0.0
    """Bytes of the edges by source, which full-graph training needs unless the graph is symmetric."""
    mapped_bytes: float = 0.0
    """Bytes of the data in memory-mapped files."""
    is_mapped: bool = False
    """Whether the dense rows of an open graph are memory-mapped."""
    row_entries: float | None = None
    """Mean number of stored values per sparse row, or None for dense rows."""
    location: str = ""
    """Location of the dataset for display."""

    @classmethod
    def in_memory(
        cls,
        degrees: DegreeDistribution,
        *,
        features: int,
        classes: int,
        targets: int,
        value_bytes: int,
        location: str = "",
    ) -> DatasetSizes:
        """Return the sizes of a dataset that has dense rows and is completely in memory."""
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
            location=location,
        )


def with_row_format(sizes: DatasetSizes, rows: str) -> DatasetSizes:
    """Return the sizes of a dataset whose dense rows are quantized to `rows`.

    `rows` is the setting `data.feature_dtype`, in which an unresolved `auto` counts as `stored`.
    """
    if rows in ("stored", "auto") or sizes.row_entries is not None:
        return sizes
    from hyrt.graph.quantized.row_format import ROW_FORMATS

    row_bytes = float(ROW_FORMATS[rows].row_bytes(sizes.features))
    stored = sizes.features * sizes.value_bytes if sizes.row_bytes is None else sizes.row_bytes
    return replace(
        sizes,
        value_bytes=4,
        row_bytes=row_bytes,
        # Memory-mapped rows, which count as 0 in `feature_bytes`, are not quantized.
        feature_bytes=sizes.feature_bytes * row_bytes / stored,
    )


def published_sizes(
    published: PublishedSizes, *, symmetrized: bool = False, location: str = ""
) -> DatasetSizes:
    """Return the published sizes of a dataset, assuming log-normal degrees.

    With `symmetrized`, edges count in both directions, as in the opened dataset.
    """
    edges, reciprocity = published.edges, float(published.symmetric)
    if symmetrized:
        edges, reciprocity = edges if published.symmetric else 2 * edges, 1.0
    return DatasetSizes.in_memory(
        DegreeDistribution.assumed(
            published.vertices, edges, num_targets=published.targets, reciprocity=reciprocity
        ),
        features=published.features,
        classes=published.classes,
        targets=published.targets,
        value_bytes=published.value_bytes,
        location=location,
    )


def generated_sizes(source: str) -> DatasetSizes:
    """Return the sizes of `synthetic:PRESET[,key=value,...]`, with the degree distribution of the generator.

    Raises DataError if a preset or key does not exist.
    """
    from hyrt.graph.synthetic.degree_distribution import compute_degree_distribution
    from hyrt.graph.synthetic.spec import parse_spec

    spec = parse_spec(source)
    return DatasetSizes.in_memory(
        compute_degree_distribution(spec),
        features=spec.features,
        classes=spec.classes,
        targets=spec.train,
        value_bytes=2 if spec.dtype == "float16" else 4,
        location=f"{source}, which is generated when the run starts",
    )


def graph_sizes(graph: Graph, targets: np.ndarray) -> DatasetSizes:
    """Return the sizes of an open graph including all rows, even if this rank has only some of them."""
    from hyrt.fullgraph.input_rows import find_mmap
    from hyrt.graph.quantized.features import QuantizedFeatures
    from hyrt.graph.quantized.row_format import FLOAT16, FLOAT32
    from hyrt.graph.row_source import DenseFeatures, QuantizedRowSource, SparseFeatures

    features = graph.features
    sparse = features if isinstance(features, SparseFeatures) else None
    row_bytes = None
    if isinstance(features, QuantizedRowSource) and features.row_format not in (FLOAT32, FLOAT16):
        row_bytes = float(features.row_format.row_bytes(features.width))
    rows_bytes = float(graph.num_vertices) * graph.num_features * features.value_bytes
    if isinstance(features, QuantizedFeatures):
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
        is_mapped=isinstance(features, DenseFeatures) and find_mmap(features.values) is not None,
        row_entries=None if sparse is None else len(sparse.columns) / (len(sparse.indptr) - 1),
    )


def edge_columns(topology: Topology) -> int:
    """Return the number of four-byte values that are stored per edge besides its source."""
    weights, features = topology.edge_weights, topology.edge_features
    return (weights is not None) + (0 if features is None else int(features.shape[1]))


# Sample a step in these numbers of equal pieces, because a trainer's share may be any part of a step.
_PIECES = (16, 8, 4, 2, 1)
_STEPS = 4


class SamplerSizesUnknownError(ConfigError):
    """Error for a sampler whose mini-batch sizes cannot be derived from degrees."""


def expected_block_sizes(config: Config, dataset: DatasetSizes, units: float) -> BlockSizes:
    """Return the expected mini-batch sizes of the configured sampler.

    `units` is the number of targets, or of subgraphs for a subgraph sampler. Raises SamplerSizesUnknownError
    if the sampler has no expected sizes.
    """
    assert dataset.degrees is not None
    sampler, layers = config.sampler, config.model.layers
    sizes = sampler.expected_sizes(dataset.degrees, layers=layers, num_targets=dataset.targets, units=units)
    if sizes is None:
        raise SamplerSizesUnknownError(
            f"sampler.kind={sampler.kind} cannot be predicted without the dataset, because it does not "
            "define the expected sizes of its mini-batches"
        )
    return sizes


def sampled_block_sizes(settings: SamplerSettings, sampler: Sampler, workers: Workers) -> SampledSizes:
    """Sample pieces of a run's first steps, and return their mean sizes by number of units.

    Raises ConfigError, with the sampler's kind and package, if sampling fails.
    """
    with SAMPLERS.wrap_errors(settings.kind, "sample"):
        rows = measure_sizes_by_units(
            sampler, workers, lambda batch, size: settings.batch_sizes(batch, size).row
        )
    return SampledSizes({count: BlockSizes.from_row(row) for count, row in rows.items()})


def measure_sizes_by_units(
    sampler: Sampler, workers: Workers, sizes_of: Callable[[MiniBatch, int], tuple[float, ...]]
) -> dict[float, tuple[float, ...]]:
    """Return the mean sizes of pieces of a run's first steps by number of units.

    `sizes_of` takes a mini-batch and its number of units, and returns a fixed number of sizes.
    """
    steps = [sampler.units(step) for step in range(_STEPS)]
    # Skip the last step of each epoch, which has fewer units, without renumbering the other steps.
    full_steps = {step: units for step, units in enumerate(steps) if len(units) == len(steps[0])}
    measured = {}
    for pieces in _PIECES:
        size = len(steps[0]) // pieces
        if not size or float(size) in measured:
            continue
        rows = []
        for step, units in full_steps.items():
            for first in range(0, size * pieces, size):
                batch = sampler.sample(step, units[first : first + size], workers, in_place=False)
                rows.append(sizes_of(batch, size))
                batch.release()
        measured[float(size)] = tuple(statistics.fmean(column) for column in zip(*rows, strict=True))
    return measured


@dataclass(frozen=True, slots=True, kw_only=True)
class FullGraphSizes:
    """Sizes of a graph and its targets that determine the work and memory of full-graph training."""

    vertices: int
    edges: int
    targets: int
    """Number of training vertices."""
    target_edges: float
    """Number of edges into the targets."""
    scored: int
    """Number of vertices whose scores an evaluation computes."""
    data_bytes: Mapping[str, float]
    """Size of each data array in bytes, by name."""
    row_entries: float | None = None
    """Mean number of stored values per sparse feature row, or None for dense rows."""
    is_mapped: bool = False
    """Whether the features are memory-mapped."""
    degrees: DegreeDistribution | None = None
    """Counted degree distribution, or None if degrees were not counted."""


def expected_full_graph_sizes(config: Config, dataset: DatasetSizes) -> FullGraphSizes:
    """Return the sizes of a graph as expected from the degrees in `dataset`."""
    assert dataset.degrees is not None
    vertices, edges = round(dataset.degrees.num_vertices), round(dataset.degrees.num_edges)
    return FullGraphSizes(
        vertices=vertices,
        edges=edges,
        targets=dataset.targets,
        target_edges=edges * dataset.targets / vertices,
        # Assume that all vertices that are not targets are used for validation or test.
        scored=vertices - dataset.targets if config.evaluate.mode == "full" else 0,
        data_bytes=_data_arrays(config, dataset, vertices),
        row_entries=dataset.row_entries,
    )


def with_transpose(dataset: DatasetSizes, graph: Graph) -> DatasetSizes:
    """Add the array of edges by source to the sizes of an open graph if the graph is not symmetric.

    If edges have values, the array also contains the index of each edge.
    """
    topology = graph.topology
    index_bytes = (
        (4.0 if graph.num_edges < 2**31 else 8.0) * graph.num_edges if topology.has_edge_values else 0.0
    )
    transpose_bytes = (
        0.0 if topology.is_symmetric else float(topology.indptr.nbytes + topology.indices.nbytes)
    )
    return replace(dataset, transpose_bytes=transpose_bytes + index_bytes)


def counted_full_graph_sizes(
    config: Config, graph: Graph, dataset: DatasetSizes, targets: np.ndarray
) -> FullGraphSizes:
    """Return the sizes of an open graph and its training vertices. `dataset` is from `with_transpose`."""
    topology = graph.topology
    scored = sum(len(graph.split(name, config.data.split)) for name in ("val", "test"))
    return FullGraphSizes(
        vertices=graph.num_vertices,
        edges=graph.num_edges,
        targets=len(targets),
        target_edges=float(topology.in_degrees[targets].sum(dtype=np.int64)),
        scored=scored if config.evaluate.mode == "full" else 0,
        data_bytes=_data_arrays(config, dataset, graph.num_vertices),
        row_entries=dataset.row_entries,
        is_mapped=dataset.is_mapped and not _copies_rows(config, dataset),
        degrees=(
            DegreeDistribution.from_classes(DegreeClasses.from_degrees(topology.in_degrees))
            if topology.is_symmetric
            else None
        ),
    )


def _data_arrays(config: Config, dataset: DatasetSizes, vertices: int) -> dict[str, float]:
    """Return the size of each data array in memory in bytes, by name."""
    arrays = {
        "topology": dataset.graph_bytes,
        "edges by source": dataset.transpose_bytes,
        "features": dataset.feature_bytes,
    }
    if _copies_rows(config, dataset):
        arrays["features as float32, to be dropped"] = 4.0 * vertices * dataset.features
    return arrays


def _copies_rows(config: Config, dataset: DatasetSizes) -> bool:
    """Return whether input dropout copies the dense rows because they are not float32 in memory."""
    if config.model.input_dropout == 0 or dataset.row_entries is not None:
        return False
    return dataset.value_bytes != 4 or dataset.is_mapped
