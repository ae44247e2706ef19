"""Scores and embeddings of vertices: layer-wise in chunks, from mini-batches, or by a full-graph pass."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.graph.graph import Graph
from hyrt.graph.quantized.rows import QuantizedRows
from hyrt.graph.row_source import HeteroRows, QuantizedRowSource, RowSource, SparseFeatures
from hyrt.nn.architecture import Aggregation
from hyrt.nn.layer import AggregatedFeatures, Footprint, InPlaceFeatures, MultipliedFeatures, Rows
from hyrt.nn.model import GNN
from hyrt.nn.model_checks import drop_replaced_loops
from hyrt.nn.operators.aggregate import aggregate_quantized_into
from hyrt.nn.operators.sparse import SparseRows, sparse_linear
from hyrt.pipeline.load import Loader
from hyrt.pipeline.trainer import InputPlan
from hyrt.runtime.workers import Workers, use_workers
from hyrt.sampling.block import Block, Ids
from hyrt.sampling.full_sampler import FullSampler
from hyrt.sampling.kernels import count_neighbors, prefix_sum, relabel, sample_neighbors
from hyrt.sampling.neighbor_sampler import NeighborSampler, RelationSampler

# Bytes per destination: id, degree, counts, offsets, scale factors and position in the result.
ROW_BYTES = 96
# Bytes per gathered sparse row (id, number, counts, offset), and per entry of the row.
SPARSE_ROW_BYTES, ENTRY_BYTES = 48, 8


@dataclass(frozen=True, slots=True)
class ChunkCost:
    """Memory that a layer needs for a chunk of destinations, in bytes."""

    row: int
    """Bytes per destination."""
    edge: int
    """Bytes per edge into a destination."""
    entry: int = 0
    """Bytes per stored value of the destinations' sparse features."""


def split_into_chunks(
    graph: Graph, marked: NDArray[np.bool_], cost: ChunkCost, budget_bytes: int
) -> Iterator[NDArray[np.int64]]:
    """Split the vertices in the mask `marked` [V] into chunks that need at most `budget_bytes` each.

    Yields vertices in ascending order. A chunk exceeds the budget only if it is a single vertex.
    """
    # Limit the temporary arrays of costs to about a sixth of a chunk.
    window = min(max(1, budget_bytes // 256), 1 << 16)
    for first in range(0, len(marked), window):
        vertices = first + np.flatnonzero(marked[first : first + window])
        bytes_each = cost.row + cost.edge * (
            graph.topology.indptr[vertices + 1] - graph.topology.indptr[vertices]
        )
        if cost.entry and isinstance(graph.features, SparseFeatures):
            pointer = graph.features.indptr
            bytes_each += cost.entry * (pointer[vertices + 1] - pointer[vertices])
        total = np.cumsum(bytes_each)
        start = 0
        while start < len(vertices):
            before = total[start - 1] if start else 0
            stop = max(start + 1, int(np.searchsorted(total, before + budget_bytes, side="right")))
            yield vertices[start:stop]
            start = stop


def layer_cost(graph: Graph, footprint: Footprint) -> ChunkCost:
    """Return the memory cost of a layer over a block that is read in place."""
    # Each edge stores its source and the position of the source.
    return ChunkCost(ROW_BYTES + 4 * footprint.row, graph.topology.indices.itemsize + 8 + 4 * footprint.edge)


def infer_layerwise(
    model: GNN,
    graph: Graph,
    vertices: Ids,
    workers: Workers,
    *,
    memory_bytes: int,
    scratch: Path | None = None,
    layers: int | None = None,
    between_chunks: Callable[[], None] = lambda: None,
) -> NDArray[np.float32]:
    """Apply a model to vertices [n] with all their neighbours, one layer at a time (layer-wise inference).

    Each hidden row of a vertex is computed only once, so the cost grows with the number of layers, not with
    the size of neighbourhoods. The product of a sparse feature row is also computed once, except with a
    maximum, where the product follows the aggregation.

    `memory_bytes` is the memory budget: matrices larger than a third of it (two exist at a time) are stored
    in files in `scratch`, and the arrays of a chunk use a quarter. It does not include a byte per vertex and
    layer, the sorted `vertices`, cached degrees of the graph, and single vertices whose edges alone exceed a
    chunk. `between_chunks` may raise an exception to stop.

    Returns [n, width] float32 in the order of `vertices`: scores, or hidden rows if fewer `layers` are
    applied. The result is a memory map if it exceeds a third of the budget.
    """
    graph = drop_replaced_loops(graph, model)
    depth = len(model.layers) if layers is None else layers
    increasing = bool(np.all(vertices[1:] > vertices[:-1]))
    order = None if increasing else np.argsort(vertices, kind="stable")
    ordered = vertices if order is None else vertices[order]
    chunk_bytes = memory_bytes // 4
    was_training = model.training
    model.eval()
    with ExitStack() as stack, torch.no_grad(), use_workers(workers):
        stack.callback(model.train, was_training)
        needed = needed_vertices(graph, vertices, depth, chunk_bytes)
        step = _first_step(model, graph, needed[0], workers, memory_bytes, scratch, between_chunks)
        for i in range(depth):
            last = i == depth - 1
            height = len(vertices) if last else graph.num_vertices
            out = _allocate_matrix((height, model.widths[i + 1]), memory_bytes, scratch)
            for part in split_into_chunks(graph, needed[i], step.cost, chunk_bytes):
                between_chunks()
                result = step.apply(part)
                if not last:
                    out[part] = result
                    continue
                start, stop = np.searchsorted(ordered, (part[0], part[-1] + 1))
                if order is None:
                    out[start:stop] = result
                else:
                    out[order[start:stop]] = result[np.searchsorted(part, ordered[start:stop])]
            if not last:
                # This assignment also frees the input matrix of the previous step.
                step = _dense_step(model, graph, i + 1, out, workers)
    return out


def infer_sampled(
    model: torch.nn.Module,
    graph: Graph,
    vertices: Ids,
    workers: Workers,
    *,
    fanouts: list[int],
    batch_size: int,
    seed: int,
    plan: InputPlan,
    between_chunks: Callable[[], None] = lambda: None,
) -> NDArray[np.float32]:
    """Apply any model to vertices in sampled mini-batches. A fan-out of -1 takes all neighbours.

    Returns [n, classes] float32 in the order of `vertices`. Neighbours are sampled uniformly, whatever the
    training sampler is: scores must not depend on it, and subgraph samplers cannot create mini-batches for
    given vertices.
    """
    distinct, positions = np.unique(vertices, return_inverse=True)
    if len(distinct) < len(vertices):
        options: Any = {"fanouts": fanouts, "batch_size": batch_size, "seed": seed, "plan": plan}
        # The targets of a mini-batch must be distinct.
        scores = infer_sampled(model, graph, distinct, workers, between_chunks=between_chunks, **options)
        return scores[positions]
    graph = drop_replaced_loops(graph, model)
    sampler: NeighborSampler | RelationSampler
    if graph.types is None:
        sampler = NeighborSampler(graph, vertices, fanouts, batch_size, seed)
    else:
        # Per-relation fan-outs apply to training only.
        relation_fanouts = [[fanout] * len(graph.types.relations) for fanout in fanouts]
        sampler = RelationSampler(graph, vertices, relation_fanouts, batch_size, seed)
    loader = Loader(graph.features)
    parts = []
    was_training = model.training
    model.eval()
    with ExitStack() as stack, torch.no_grad(), use_workers(workers):
        stack.callback(model.train, was_training)
        for start in range(0, len(vertices), batch_size):
            between_chunks()
            units: Ids = vertices[start : start + batch_size].astype(sampler.ids)
            # Use a negative step number, whose random streams are never used in training.
            batch = sampler.sample(-1, units, workers, in_place=plan.in_place)
            loader.load(batch, plan, workers)
            parts.append(model(batch.blocks, batch.inputs).float().numpy())
            batch.release()
    return np.concatenate(parts) if parts else np.empty((0, graph.num_outputs), np.float32)


@dataclass(frozen=True, slots=True)
class _Step:
    """Application of a layer to chunks of the graph: memory cost, and a function that computes the rows."""

    cost: ChunkCost
    apply: Callable[[NDArray[np.int64]], NDArray[np.float32]]


def _step(
    model: GNN, i: int, cost: ChunkCost, inputs_of: Callable[[NDArray[np.int64]], tuple[Block, Rows]]
) -> _Step:
    """Build the step of layer i (from 0); `inputs_of` returns the block and input rows of a chunk."""

    def apply(part: NDArray[np.int64]) -> NDArray[np.float32]:
        result: NDArray[np.float32] = model.layer(i, *inputs_of(part)).numpy()
        return result

    return _Step(cost, apply)


def _dense_step(model: GNN, graph: Graph, i: int, rows: NDArray[Any], workers: Workers) -> _Step:
    """Build the step of layer i (from 0), which reads the matrix `rows` in place."""
    cost = layer_cost(graph, model.footprint(i))
    return _step(model, i, cost, lambda part: (full_block(graph, part, i, workers), InPlaceFeatures(rows)))


def _first_step(
    model: GNN,
    graph: Graph,
    destinations: NDArray[np.bool_],
    workers: Workers,
    memory_bytes: int,
    scratch: Path | None,
    between_chunks: Callable[[], None],
) -> _Step:
    """Build the step of the first layer, which depends on the format of the features."""
    features = graph.features
    if graph.types is not None:
        return _hetero_step(model, graph, workers)
    if features.matrix is not None:
        return _dense_step(model, graph, 0, features.matrix, workers)
    if isinstance(features, QuantizedRowSource) and features.all_rows is not None:
        aggregation = model.input_aggregation
        if aggregation is not None:
            return _aggregated_step(model, graph, features.all_rows, aggregation, workers)
    if not isinstance(features, SparseFeatures):
        return _gathered_step(model, graph, features, workers)
    weight = model.source_weight()
    if weight is None:
        if graph.num_vertices * graph.num_features * 4 > memory_bytes // 3:
            return _gathered_step(model, graph, features, workers)
        rows = SparseRows.from_features(features)
        return _dense_step(model, graph, 0, rows.to_dense().numpy(), workers)
    products = _allocate_matrix((graph.num_vertices, len(weight)), memory_bytes, scratch)
    sources = _with_neighbors(graph, destinations, memory_bytes // 4)
    cost = ChunkCost(SPARSE_ROW_BYTES + 4 * len(weight), 0, ENTRY_BYTES)
    for part in split_into_chunks(graph, sources, cost, memory_bytes // 4):
        between_chunks()
        products[part] = sparse_linear(SparseRows.from_features(features.take(part, workers)), weight).numpy()

    def inputs_of(part: NDArray[np.int64]) -> tuple[Block, Rows]:
        destination_rows = SparseRows.from_features(features.take(part, workers))
        return full_block(graph, part, 0, workers), MultipliedFeatures(products, destination_rows)

    cost_per_layer = layer_cost(graph, model.footprint(0, multiplied=True))
    return _step(
        model,
        0,
        replace(cost_per_layer, row=cost_per_layer.row + SPARSE_ROW_BYTES, entry=ENTRY_BYTES),
        inputs_of,
    )


def _aggregated_step(
    model: GNN, graph: Graph, rows: QuantizedRows, aggregation: Aggregation, workers: Workers
) -> _Step:
    """Build the step of the first layer over quantized rows, which are read in place."""

    def inputs_of(part: NDArray[np.int64]) -> tuple[Block, Rows]:
        block = full_block(graph, part, 0, workers)
        out = np.empty((len(part), aggregation.width(graph.num_features)), np.float32)
        aggregate_quantized_into(aggregation, block, rows, out, workers)
        return block, AggregatedFeatures(torch.from_numpy(out))

    return _step(model, 0, layer_cost(graph, model.footprint(0)), inputs_of)


def _gathered_step(model: GNN, graph: Graph, features: RowSource, workers: Workers) -> _Step:
    """Build the step of the first layer over gathered rows; for a maximum, sparse rows become dense."""
    local = np.full(graph.num_vertices, -1, np.int32)

    def inputs_of(part: NDArray[np.int64]) -> tuple[Block, Rows]:
        block, sources = compact_sources(graph, full_block(graph, part, 0, workers), local)
        if isinstance(features, SparseFeatures):
            return block, SparseRows.from_features(features.take(sources, workers))
        rows = np.empty((len(sources), features.width), np.float32)
        features.rows(sources, rows, workers)
        return block, torch.from_numpy(rows)

    cost = layer_cost(graph, model.footprint(0))
    # In the worst case, each edge has a distinct source, and a sparse row is full.
    source = SPARSE_ROW_BYTES + (4 + ENTRY_BYTES) * graph.num_features
    return _step(model, 0, ChunkCost(cost.row + source, cost.edge + source), inputs_of)


def _hetero_step(model: GNN, graph: Graph, workers: Workers) -> _Step:
    """Build the step of the first layer over gathered rows of each vertex type."""
    local = np.full(graph.num_vertices, -1, np.int32)
    loader = Loader(graph.features)

    def inputs_of(part: NDArray[np.int64]) -> tuple[Block, Rows]:
        block, sources = compact_sources(graph, full_block(graph, part, 0, workers), local)
        return block, loader.hetero_rows(sources, workers)

    cost = layer_cost(graph, model.footprint(0))
    # In the worst case, each edge has a distinct source, with its row and its projections.
    assert isinstance(graph.features, HeteroRows)
    source = 4 * (graph.features.width + 2 * model.widths[0])
    return _step(model, 0, ChunkCost(cost.row + source, cost.edge + source), inputs_of)


def needed_vertices(
    graph: Graph,
    vertices: Ids,
    depth: int,
    chunk_bytes: int,
    combine: Callable[[NDArray[np.bool_]], NDArray[np.bool_]] = lambda grown: grown,
) -> list[NDArray[np.bool_]]:
    """Return a mask [V] per layer of the vertices whose rows it must compute; the last mask is `vertices`.

    If the edges are partitioned over processes, `combine` merges the masks of all processes.
    """
    targets = np.zeros(graph.num_vertices, np.bool_)
    targets[vertices] = True
    needed = [targets]
    for _ in range(depth - 1):
        needed.insert(0, combine(_with_neighbors(graph, needed[0], chunk_bytes)))
    return needed


def _with_neighbors(graph: Graph, marked: NDArray[np.bool_], chunk_bytes: int) -> NDArray[np.bool_]:
    """Return the mask [V] of the marked vertices and their in-neighbours."""
    extended = marked.copy()
    # Each edge needs three positions and the neighbour.
    cost = ChunkCost(ROW_BYTES, 24 + graph.topology.indices.itemsize)
    for part in split_into_chunks(graph, marked, cost, chunk_bytes):
        counts = graph.topology.indptr[part + 1] - graph.topology.indptr[part]
        ends = np.cumsum(counts)
        positions = np.repeat(graph.topology.indptr[part] - (ends - counts), counts)
        positions += np.arange(len(positions))
        extended[graph.topology.indices[positions]] = True
    return extended


def full_block(graph: Graph, destinations: Ids, i: int, workers: Workers) -> Block:
    """Return the block of all edges into the destinations for layer i (from 0), with sources in place."""
    num = len(destinations)
    degrees = np.empty(num, np.int32)
    counts = np.empty(num, np.int32)
    # Use the same integer type as in training, so that the compiled loops over blocks are reused.
    destinations = destinations.astype(graph.topology.indices.dtype)
    count_neighbors(graph.topology.indptr, destinations, -1, 0, num, degrees, counts)
    edges = int(counts.sum(dtype=np.int64))
    offsets: Ids = np.empty(num + 1, np.int32 if edges < 2**31 else np.int64)
    prefix_sum(counts, offsets)
    neighbors = np.empty(edges, graph.topology.indices.dtype)
    positions = np.empty(edges, np.int64)
    types, weights = graph.topology.edge_types, graph.topology.edge_weights
    features = graph.topology.edge_features
    run_weights = graph.topology.relation_weights if graph.types is not None and weights is not None else None
    key = np.uint64(0)
    workers.run(
        lambda start, stop: sample_neighbors(
            graph.topology.indptr,
            graph.topology.indices,
            destinations,
            offsets,
            key,
            start,
            stop,
            positions,
            neighbors,
        ),
        num,
        1024,
    )
    return Block(
        indptr=offsets,
        columns=neighbors,
        destinations=destinations,
        sources=None,
        num_src=graph.num_vertices,
        degrees=degrees,
        source_degrees=graph.topology.in_degrees,
        layer=i + 1,
        source_scale=lambda: graph.topology.gcn_scale,
        edge_types=None if types is None else types[positions],
        edge_weights=None if weights is None else weights[positions],
        edge_features=None if features is None else features[positions],
        run_weights=None if run_weights is None else run_weights[positions],
        weighted_degrees=None if weights is None else graph.topology.weighted_degrees[destinations],
        source_weighted_degrees=None if weights is None else graph.topology.weighted_degrees,
    ).trusted()


def compact_sources(graph: Graph, block: Block, local: NDArray[np.int32]) -> tuple[Block, Ids]:
    """Convert a block that reads all vertices in place to a block over its sources; return both.

    `local` is a work array [V] int32 filled with -1, which is restored on return.
    """
    buffer = np.empty(block.num_dst + block.num_edges, block.destinations.dtype)
    columns = np.empty(block.num_edges, np.int32)
    num_src = relabel(block.destinations, block.columns, local, buffer, columns)
    sources = buffer[:num_src]
    compact = replace(
        block,
        columns=columns,
        sources=sources,
        num_src=num_src,
        source_degrees=graph.topology.in_degrees[sources],
        source_scale=None,
        source_weighted_degrees=_take_rows(block.source_weighted_degrees, sources),
    ).trusted()
    return compact, sources


def _take_rows(values: NDArray[np.float32] | None, rows: Ids) -> NDArray[np.float32] | None:
    return None if values is None else values[rows]


def _allocate_matrix(shape: tuple[int, int], memory_bytes: int, scratch: Path | None) -> NDArray[np.float32]:
    size_bytes = shape[0] * shape[1] * 4
    if size_bytes <= memory_bytes // 3:
        return np.empty(shape, np.float32)
    # Unlink the file at once, so that its pages are freed with the array even if the process is killed.
    with tempfile.TemporaryFile(dir=scratch, prefix="hyrt-hidden-") as file:
        # Allocate the blocks now: on a full disk, this raises an error instead of a later SIGBUS.
        os.posix_fallocate(file.fileno(), 0, size_bytes)
        return np.memmap(file, np.float32, "r+", shape=shape)


def infer_full_graph(
    model: torch.nn.Module,
    graph: Graph,
    vertices: Ids,
    workers: Workers,
    *,
    layers: int,
    plan: InputPlan,
) -> NDArray[np.float32]:
    """Apply any model, a module that maps (blocks, x) to a row of scores per vertex, to the full graph.

    Returns [n, classes] float32 in the order of `vertices`. `layers` is the number of blocks that the model
    receives.
    """
    graph = drop_replaced_loops(graph, model)
    sampler = FullSampler(graph, np.unique(vertices), layers, seed=0)
    was_training = model.training
    model.eval()
    with ExitStack() as stack, torch.no_grad(), use_workers(workers):
        stack.callback(model.train, was_training)
        # Use a negative step number, whose random streams are never used in training.
        batch = sampler.sample(-1, sampler.units(-1), workers, in_place=plan.in_place)
        Loader(graph.features).load(batch, plan, workers)
        scores: NDArray[np.float32] = model(batch.blocks, batch.inputs).float().numpy()
    return scores[vertices]
