"""Mini-batches of a generated heterogeneous graph, to measure models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hyrt_perfmodel.workloads.typed_workload import typed_workload
from hyrt_perfmodel.workloads.workload import Workload

from hyrt.graph.graph import Graph
from hyrt.graph.row_source import DenseFeatures
from hyrt.graph.typed.typed_rows import TypedRows
from hyrt.graph.vertex_table import VertexTable
from hyrt.predict.typed.typed_sizes import relation_sizes, typed_graph_sizes
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.relations.relation_sampler import RelationSampler


def of_widths(graph: Graph, features: int, classes: int) -> Graph:
    """Return a heterogeneous graph with other widths: `features` columns for its first type, halved for each
    further type.

    Types without features stay without features.
    """
    types, rows = graph.types, graph.features
    assert types is not None
    assert isinstance(rows, TypedRows)
    tables = [
        None
        if table is None
        else DenseFeatures(np.ones((types.count(name), max(1, features >> number)), np.float32))
        for number, (name, table) in enumerate(zip(types.vertex_types, rows.tables, strict=True))
    ]
    labels = np.where(graph.labels < 0, graph.labels, graph.labels % classes)
    return replace(graph, vertices=VertexTable(TypedRows(types, tuple(tables)), labels, graph.masks))


def relation_sampler(graph: Graph, fanouts: tuple[int, ...], targets: int) -> RelationSampler:
    """Create a sampler with the same fan-outs along all relations."""
    assert graph.types is not None
    by_relation = [[fanout] * len(graph.types.relations) for fanout in fanouts]
    return RelationSampler(graph, graph.split("train"), by_relation, targets, 0)


def typed_work(kind: str, batch: MiniBatch, graph: Graph, **widths: Any) -> Workload:
    """Return the work of a heterogeneous mini-batch, for a model with the widths that `typed_workload`
    takes.
    """
    assert graph.types is not None
    sizes = relation_sizes(batch, graph.types)
    return typed_workload(kind, sizes, typed_graph_sizes(graph, batch.targets).widths, **widths)
