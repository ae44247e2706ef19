"""Workloads of runs on heterogeneous graphs, and sizes of heterogeneous datasets and mini-batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from hyrt_perfmodel.degrees import PublishedHeteroSizes
from hyrt_perfmodel.expected_sizes import SizeCurves
from hyrt_perfmodel.hetero_sizes import HeteroDegrees, assumed_relations, expected_relation_sizes
from hyrt_perfmodel.model_workload import (
    AGGREGATE_FIRST_KINDS,
    HETERO_KINDS,
    HeteroWidths,
    RelationSizes,
    hetero_workload,
)
from hyrt_perfmodel.workload import TrainingWorkload, Workload

from hyrt.config import Config
from hyrt.errors import ConfigError, join_names
from hyrt.graph.hetero.graph_types import GraphTypes, Relation
from hyrt.nn.models.model_kind import EDGE_TYPES, find_model
from hyrt.predict.dataset_sizes import edge_columns, measure_sizes_by_units
from hyrt.sampling.sampler_settings import SAMPLERS
from hyrt.sampling.settings.neighbor_settings import NeighborSettings, resolve_relation_fanouts

if TYPE_CHECKING:
    import numpy as np

    from hyrt.graph.graph import Graph
    from hyrt.runtime.workers import Workers
    from hyrt.sampling.minibatch import MiniBatch
    from hyrt.sampling.sampler import Sampler


_ID_BYTES, _OFFSET_BYTES, _FLOAT_BYTES = 4, 8, 4
_HALVINGS = 12

Sizes = Callable[[float], RelationSizes]
"""Function that returns the sizes of a mini-batch with a given number of targets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeteroDatasetSizes:
    """Sizes of a heterogeneous dataset that determine the work and memory of a run."""

    widths: HeteroWidths
    relations: tuple[Relation, ...]
    counts: tuple[int, ...]
    """Number of vertices by type: [T]."""
    classes: int
    targets: int
    """Number of training vertices."""
    feature_bytes: float
    graph_bytes: float
    """Bytes of all edges; `feature_bytes` is the size of all feature rows."""
    degrees: HeteroDegrees | None = None
    """Degree distributions, or None for an open graph, whose mini-batches are sampled."""

    @property
    def num_learned(self) -> int:
        """Number of vertices with learned embeddings."""
        return sum(n for n, width in zip(self.counts, self.widths.widths, strict=True) if not width)


def hetero_graph_sizes(graph: Graph, targets: np.ndarray) -> HeteroDatasetSizes:
    """Return the sizes of an open heterogeneous graph."""
    from hyrt.graph.row_source import HeteroRows

    types, rows, topology = graph.types, graph.features, graph.topology
    assert types is not None
    assert isinstance(rows, HeteroRows)
    ends = zip(types.relation_sources.tolist(), types.relation_destinations.tolist(), strict=True)
    return HeteroDatasetSizes(
        widths=HeteroWidths(
            widths=tuple(0 if table is None else table.width for table in rows.tables),
            value_bytes=tuple(_FLOAT_BYTES if table is None else table.value_bytes for table in rows.tables),
            relations=tuple(ends),
            edge_value_bytes=float(_FLOAT_BYTES * edge_columns(topology)),
        ),
        relations=types.relations,
        counts=tuple(types.count(name) for name in types.vertex_types),
        classes=graph.num_outputs,
        targets=len(targets),
        feature_bytes=float(rows.nbytes),
        graph_bytes=float(topology.nbytes),
    )


def generated_hetero_sizes(source: str) -> HeteroDatasetSizes:
    """Return the sizes of a generated heterogeneous dataset, with the generator's degree distributions.

    Raises DataError if a preset or key does not exist.
    """
    from hyrt.graph.synthetic.degree_distribution import compute_hetero_degrees
    from hyrt.graph.synthetic.planted_partition import RELATIONS
    from hyrt.graph.synthetic.spec import parse_spec

    spec = parse_spec(source)
    value_bytes = 2 if spec.dtype == "float16" else 4
    return _sizes_from_degrees(
        compute_hetero_degrees(spec),
        RELATIONS,
        widths=list(spec.type_widths.values()),
        value_bytes=value_bytes,
        counts=list(spec.type_counts.values()),
        classes=spec.classes,
        targets=spec.train,
    )


def published_hetero_sizes(known: PublishedHeteroSizes) -> HeteroDatasetSizes:
    """Return the published sizes of a heterogeneous dataset, assuming log-normal degrees."""
    names = list(known.vertices)
    relations = [Relation(*triple) for triple in known.edges]
    degrees = assumed_relations(
        list(known.vertices.values()),
        [
            (names.index(relation.source), names.index(relation.destination), count)
            for relation, count in zip(relations, known.edges.values(), strict=True)
        ],
        target=names.index(known.target),
        num_targets=known.targets,
    )
    return _sizes_from_degrees(
        degrees,
        relations,
        widths=[known.features.get(name, 0) for name in names],
        value_bytes=known.value_bytes,
        counts=list(known.vertices.values()),
        classes=known.classes,
        targets=known.targets,
    )


def _sizes_from_degrees(
    degrees: HeteroDegrees,
    relations: list[Relation] | tuple[Relation, ...],
    *,
    widths: list[int],
    value_bytes: int,
    counts: list[int],
    classes: int,
    targets: int,
) -> HeteroDatasetSizes:
    edges, vertices = sum(degrees.num_edges), sum(counts)
    row_values = sum(n * width for n, width in zip(counts, widths, strict=True))
    # Each edge stores its source and the number of its relation.
    edge_bytes = _ID_BYTES + (1 if len(relations) <= 2**7 else 2)
    return HeteroDatasetSizes(
        widths=HeteroWidths(
            widths=tuple(widths),
            value_bytes=(value_bytes,) * len(widths),
            relations=tuple((relation.source, relation.destination) for relation in degrees.relations),
        ),
        relations=tuple(relations),
        counts=tuple(counts),
        classes=classes,
        targets=targets,
        feature_bytes=float(row_values * value_bytes),
        graph_bytes=edges * edge_bytes + float(vertices * _OFFSET_BYTES),
        degrees=degrees,
    )


def expected_hetero_sizes(config: Config, dataset: HeteroDatasetSizes) -> Sizes:
    """Return the mini-batch sizes as expected from the degrees of each relation.

    Raises ConfigError if there are fan-outs for an unknown relation.
    """
    degrees, layers = dataset.degrees, config.model.layers
    assert degrees is not None
    if config.sampler.is_full_graph:
        full_sizes = _full_graph_sizes(degrees, layers)
        return lambda units: full_sizes
    sampler = config.sampler
    assert isinstance(sampler, NeighborSettings)
    fanouts = resolve_relation_fanouts(sampler.fanouts(layers), sampler.relation_fanout, dataset.relations)
    max_targets = min(config.units_per_step, max(1, dataset.targets))
    measured = {
        count: expected_relation_sizes(degrees, fanouts, count).row
        for count in sorted({max(1.0, max_targets / 2**power) for power in range(_HALVINGS)})
    }
    return _interpolate(SizeCurves(measured), layers, len(dataset.counts))


def _full_graph_sizes(degrees: HeteroDegrees, layers: int) -> RelationSizes:
    """Return the sizes of a mini-batch in which every layer has all vertices and edges."""
    vertices = tuple(float(round(count)) for count in degrees.num_vertices)
    edges = tuple(degrees.num_edges)
    runs = tuple(
        float(degrees.counts[relation.destination] @ -np.expm1(-relation.in_degrees))
        for relation in degrees.relations
    )
    return RelationSizes(
        vertices=(vertices,) * (layers + 1), segments=(runs,) * layers, edges=(edges,) * layers
    )


def sampled_hetero_sizes(config: Config, graph: Graph, sampler: Sampler, workers: Workers) -> Sizes:
    """Sample pieces of a run's first steps, and return mini-batch sizes interpolated between them.

    Raises ConfigError, with the sampler's kind and package, if sampling fails.
    """
    types = graph.types
    assert types is not None
    layers = config.model.layers
    with SAMPLERS.wrap_errors(config.sampler.kind, "sample"):
        rows = measure_sizes_by_units(sampler, workers, lambda batch, size: relation_sizes(batch, types).row)
    return _interpolate(SizeCurves(rows), layers, len(types.vertex_types))


def _interpolate(curves: SizeCurves, layers: int, types: int) -> Sizes:
    @cache
    def at(targets: float) -> RelationSizes:
        return RelationSizes.from_row(curves.at(targets), layers, types)

    return at


def relation_sizes(batch: MiniBatch, types: GraphTypes) -> RelationSizes:
    """Return the sizes of a sampled mini-batch by type and relation."""
    from hyrt.sampling.kernels import count_runs

    num_types, num = len(types.vertex_types), len(types.relations)
    first, runs, edges = batch.blocks[0], [], []
    sources = first.sources
    if sources is None:
        sources = np.union1d(first.columns, first.destinations)
    ids = [sources, *(block.destinations for block in batch.blocks)]
    for block in batch.blocks:
        num_runs, num_edges = np.zeros(num, np.int64), np.zeros(num, np.int64)
        assert block.edge_types is not None
        count_runs(block.indptr, block.edge_types, num_runs, num_edges)
        runs.append(tuple(num_runs.astype(float).tolist()))
        edges.append(tuple(num_edges.astype(float).tolist()))
    return RelationSizes(
        vertices=tuple(
            tuple(
                np.bincount(types.vertex_type_indices(vertex_ids), minlength=num_types).astype(float).tolist()
            )
            for vertex_ids in ids
        ),
        segments=tuple(runs),
        edges=tuple(edges),
    )


_VALUE_BYTES = 4
# Number of optimizer state values per learned value.
_MOMENTS = {"Adam": 2, "AdamW": 2, "Adagrad": 1}


def expected_hetero_workload(config: Config, dataset: HeteroDatasetSizes) -> TrainingWorkload:
    """Return the work of a run from the degrees of each relation, without loading or sampling the dataset.

    Raises ConfigError if the settings do not support a heterogeneous graph or their cost is unknown.
    """
    check_hetero_costs(config)
    return _build_workload(config, dataset, expected_hetero_sizes(config, dataset))


def sampled_hetero_workload(
    config: Config, graph: Graph, targets: np.ndarray, sampler: Sampler | None = None
) -> TrainingWorkload:
    """Return the work of a run on an open heterogeneous graph from sampled mini-batches.

    `targets` contains the training vertices [n]. If `sampler` is None, the configured sampler is created.
    Raises ConfigError as `expected_hetero_workload` does.
    """
    from hyrt.runtime.workers import Workers
    from hyrt.training.setup import build_sampler

    check_hetero_costs(config)
    with Workers(1, "hyrt.predict") as workers:
        built = sampler or build_sampler(config, graph, targets)
        sizes = sampled_hetero_sizes(config, graph, built, workers)
    return _build_workload(config, hetero_graph_sizes(graph, targets), sizes)


def cost_kind(kind: str) -> str:
    """Return the model kind whose costs a kind has on a heterogeneous graph, by default the kind itself."""
    return find_model(kind).costs_like or kind


def check_hetero_costs(config: Config) -> None:
    """Raise ConfigError for a setting whose cost on a heterogeneous graph is unknown."""
    kind = config.model.kind
    if cost_kind(kind) not in HETERO_KINDS and find_model(kind).products({}) is None:
        raise ConfigError(
            f"model.kind={kind} cannot be predicted on a heterogeneous graph, because the products of its "
            f"layers are unknown: predict the most similar of {join_names(HETERO_KINDS)} with the same "
            "settings"
        )


def _build_workload(config: Config, dataset: HeteroDatasetSizes, sizes: Sizes) -> TrainingWorkload:
    model, costs = config.model, cost_kind(config.model.kind)
    options = {EDGE_TYPES: len(dataset.relations), **model.options}
    products = None if costs in HETERO_KINDS else find_model(model.kind).products(options)

    @cache
    def at(targets: float) -> Workload:
        return hetero_workload(
            costs,
            sizes(targets),
            dataset.widths,
            hidden=model.hidden,
            classes=dataset.classes,
            heads=model.heads,
            products=products,
        )

    units = config.sampler.units_per_epoch(dataset.targets)
    is_full_graph = config.sampler.is_full_graph
    arrays = 1 + _MOMENTS.get(config.train.optimizer, 0)
    # Layers that aggregate first can read the feature tables in place.
    in_place = costs in AGGREGATE_FIRST_KINDS and config.runtime.fuse_load and model.input_dropout == 0
    if (model.residual and model.layers > 1) or dataset.widths.edge_value_bytes:
        in_place = False
    return TrainingWorkload(
        at=at,
        targets_per_epoch=units,
        batch_size=min(config.units_per_step, units),
        model=costs,
        best_form="in_place" if in_place else "rows",
        feature_bytes=dataset.feature_bytes,
        graph_bytes=dataset.graph_bytes,
        learned_bytes=float(arrays * dataset.num_learned * model.hidden * _VALUE_BYTES),
        transpose_bytes=dataset.graph_bytes if is_full_graph else 0.0,
        resident=is_full_graph,
        targets=dataset.targets if is_full_graph else None,
    )
