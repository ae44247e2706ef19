"""Sizes of heterogeneous datasets and mini-batches: expected per relation, or means of a few samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from hyrt_perfmodel.sizes.datasets import PublishedTypes
from hyrt_perfmodel.sizes.relations.relation_degrees import TypedDegrees, assumed_relations
from hyrt_perfmodel.sizes.relations.relation_growth import expected_relation_sizes
from hyrt_perfmodel.sizes.relations.relation_sizes import RelationSizes
from hyrt_perfmodel.sizes.sampled_sizes import SizeCurves
from hyrt_perfmodel.workloads.typed_workload import TypedWidths

from hyrt.config import Config
from hyrt.graph.typed.graph_types import GraphTypes, Relation
from hyrt.predict.block_sizes import measured_pieces
from hyrt.predict.dataset_sizes import edge_columns
from hyrt.sampling.neighbor_settings import NeighborSettings
from hyrt.sampling.registry import SAMPLERS
from hyrt.sampling.relations.relation_fanouts import relation_fanouts

if TYPE_CHECKING:
    from hyrt.graph.graph import Graph
    from hyrt.machine.workers import Workers
    from hyrt.sampling.minibatch import MiniBatch
    from hyrt.sampling.sampler import Sampler

_ID_BYTES, _OFFSET_BYTES, _FLOAT_BYTES = 4, 8, 4
_HALVINGS = 12

Sizes = Callable[[float], RelationSizes]
"""Function of a number of targets that returns mini-batch sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedDatasetSizes:
    """Dataset sizes that determine the work and the memory of a run on a heterogeneous graph."""

    widths: TypedWidths
    relations: tuple[Relation, ...]
    counts: tuple[int, ...]
    """[T] vertices per type."""
    classes: int
    targets: int
    """`classes` and `targets`: columns of the scores, and number of training vertices."""
    feature_bytes: float
    graph_bytes: float
    """`feature_bytes` and `graph_bytes`: bytes of all feature rows, and of the edges."""
    degrees: TypedDegrees | None = None
    """Degree distributions; None for an open graph, whose mini-batches are sampled."""

    @property
    def learned(self) -> int:
        """Number of vertices with learned embeddings."""
        return sum(n for n, width in zip(self.counts, self.widths.widths, strict=True) if not width)


def typed_graph_sizes(graph: Graph, targets: np.ndarray) -> TypedDatasetSizes:
    """Return the sizes of an open heterogeneous graph."""
    from hyrt.graph.typed.typed_rows import TypedRows

    types, rows, topology = graph.types, graph.features, graph.topology
    assert types is not None
    assert isinstance(rows, TypedRows)
    ends = zip(types.relation_sources.tolist(), types.relation_destinations.tolist(), strict=True)
    return TypedDatasetSizes(
        widths=TypedWidths(
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


def generated_typed_sizes(source: str) -> TypedDatasetSizes:
    """Return the sizes of a generated heterogeneous graph, with degrees from the generator's law.

    Raises
    ------
    DataError
        If there is no such preset or key.
    """
    from hyrt.graph.synthetic.spec import parse_spec
    from hyrt.graph.synthetic.typed_law import typed_degrees
    from hyrt.graph.synthetic.typed_planted import RELATIONS

    spec = parse_spec(source)
    value_bytes = 2 if spec.dtype == "float16" else 4
    return _sizes_from_degrees(
        typed_degrees(spec),
        RELATIONS,
        widths=list(spec.type_widths.values()),
        value_bytes=value_bytes,
        counts=list(spec.type_counts.values()),
        classes=spec.classes,
        targets=spec.train,
    )


def published_typed_sizes(known: PublishedTypes) -> TypedDatasetSizes:
    """Return the published sizes of a heterogeneous dataset, with log-normal degrees."""
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
    degrees: TypedDegrees,
    relations: list[Relation] | tuple[Relation, ...],
    *,
    widths: list[int],
    value_bytes: int,
    counts: list[int],
    classes: int,
    targets: int,
) -> TypedDatasetSizes:
    edges, vertices = sum(degrees.num_edges), sum(counts)
    row_values = sum(n * width for n, width in zip(counts, widths, strict=True))
    # Each edge stores its relation's number next to its source.
    edge_bytes = _ID_BYTES + (1 if len(relations) <= 2**7 else 2)
    return TypedDatasetSizes(
        widths=TypedWidths(
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


def expected_sizes_of(config: Config, dataset: TypedDatasetSizes) -> Sizes:
    """Return the expected sizes of mini-batches, from degrees per relation.

    Raises
    ------
    ConfigError
        If fan-outs are given for an unknown relation.
    """
    degrees, layers = dataset.degrees, config.model.layers
    assert degrees is not None
    if config.sampler.whole_graph:
        full_sizes = _full_graph_sizes(degrees, layers)
        return lambda units: full_sizes
    sampler = config.sampler
    assert isinstance(sampler, NeighborSettings)
    fanouts = relation_fanouts(sampler.fanouts(layers), sampler.relation_fanout, dataset.relations)
    max_targets = min(config.units_per_step, max(1, dataset.targets))
    measured = {
        count: expected_relation_sizes(degrees, fanouts, count).row
        for count in sorted({max(1.0, max_targets / 2**power) for power in range(_HALVINGS)})
    }
    return _interpolate(SizeCurves(measured), layers, len(dataset.counts))


def _full_graph_sizes(degrees: TypedDegrees, layers: int) -> RelationSizes:
    """Return the sizes of all layers with all vertices and edges."""
    vertices = tuple(float(round(count)) for count in degrees.num_vertices)
    edges = tuple(degrees.num_edges)
    runs = tuple(
        float(degrees.counts[relation.destination] @ -np.expm1(-relation.in_degrees))
        for relation in degrees.relations
    )
    return RelationSizes(vertices=(vertices,) * (layers + 1), runs=(runs,) * layers, edges=(edges,) * layers)


def sampled_sizes_of(config: Config, graph: Graph, sampler: Sampler, workers: Workers) -> Sizes:
    """Return mini-batch sizes of an open graph, interpolated between sampled pieces of a run's first steps.

    Raises
    ------
    ConfigError
        If the sampler fails, naming its kind and package.
    """
    types = graph.types
    assert types is not None
    layers = config.model.layers
    with SAMPLERS.blamed(config.sampler.kind, "sample"):
        rows = measured_pieces(sampler, workers, lambda batch, size: relation_sizes(batch, types).row)
    return _interpolate(SizeCurves(rows), layers, len(types.vertex_types))


def _interpolate(curves: SizeCurves, layers: int, types: int) -> Sizes:
    @cache
    def at(targets: float) -> RelationSizes:
        return RelationSizes.of_row(curves.at(targets), layers, types)

    return at


def relation_sizes(batch: MiniBatch, types: GraphTypes) -> RelationSizes:
    """Return the sizes of a sampled mini-batch, by type and relation."""
    from hyrt.sampling.relations.relation_kernels import count_runs

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
            tuple(np.bincount(types.types_of(vertex_ids), minlength=num_types).astype(float).tolist())
            for vertex_ids in ids
        ),
        runs=tuple(runs),
        edges=tuple(edges),
    )
