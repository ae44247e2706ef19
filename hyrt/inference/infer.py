"""Scores and embeddings of vertices from all their neighbours, layer by layer, or from sampled ones."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.graph.graph import Graph
from hyrt.graph.narrow.narrow_rows import NarrowRows
from hyrt.graph.row_source import NarrowSource, RowSource, SparseFeatures
from hyrt.graph.typed.typed_rows import TypedRows
from hyrt.inference.infer_memory import (
    ENTRY_BYTES,
    ROW_BYTES,
    SPARSE_ROW_BYTES,
    Cost,
    chunks,
    layer_cost,
)
from hyrt.machine.workers import Workers, working
from hyrt.nn.aggregation import Aggregation
from hyrt.nn.inputs import Aggregated, InPlace, Multiplied, Rows
from hyrt.nn.model import GNN
from hyrt.nn.operators.narrow.aggregate_narrow import aggregate_narrow_into
from hyrt.nn.operators.sparse import SparseRows, sparse_linear
from hyrt.pipeline.load import Loader
from hyrt.pipeline.trainer import InputPlan
from hyrt.sampling.block import Block, Ids
from hyrt.sampling.kernels import count_neighbors, draw_neighbors, prefix_sum, relabel
from hyrt.sampling.neighbor import NeighborSampler
from hyrt.sampling.relations.relation_sampler import RelationSampler


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
    """Apply a model to vertices with all their neighbours, one layer at a time over all vertices it needs.

    Each vertex's hidden row is computed once, so the cost grows with layers, not with neighbourhoods; so is
    each product of a sparse feature row, except before a maximum, which multiplies last.

    Parameters
    ----------
    model
        A model of `hyrt.nn`.
    graph
        Topology and features.
    vertices
        [n] whose rows are wanted.
    workers
        The team of threads that computes.
    memory_bytes
        Bound on what this keeps in memory: matrices above a third of it (there are two at a time) go to a
        file, and a chunk's arrays take a quarter. Not in it are a byte a vertex and layer, the numbers of
        `vertices` in order, what the graph keeps (degrees), and what a single vertex needs whose edges alone
        exceed a chunk.
    scratch
        Folder for temporary files; the system's by default.
    layers
        How many layers to apply; all by default. One less gives the embeddings before the last layer.
    between_chunks
        Called before each chunk; what it raises ends the work.

    Returns
    -------
    [n, width] float32 in the order of `vertices`: scores, or with fewer layers the hidden rows. A memory map
    where they exceed a third of the budget.
    """
    depth = len(model.layers) if layers is None else layers
    increasing = bool(np.all(vertices[1:] > vertices[:-1]))
    order = None if increasing else np.argsort(vertices, kind="stable")
    ordered = vertices if order is None else vertices[order]
    chunk_bytes = memory_bytes // 4
    was_training = model.training
    model.eval()
    with ExitStack() as stack, torch.no_grad(), working(workers):
        stack.callback(model.train, was_training)
        needed = needed_vertices(graph, vertices, depth, chunk_bytes)
        step = _first_step(model, graph, needed[0], workers, memory_bytes, scratch, between_chunks)
        for i in range(depth):
            last = i == depth - 1
            height = len(vertices) if last else graph.num_vertices
            out = _matrix((height, model.widths[i + 1]), memory_bytes, scratch)
            for part in chunks(graph, needed[i], step.cost, chunk_bytes):
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
                # The matrix that the step before read goes with it.
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
    """Apply any model to vertices through sampled mini-batches (all neighbours where a fan-out is -1).

    Neighbours are drawn uniformly whichever sampler trains. A sampler chooses what is learned from, and may
    have no mini-batch of given vertices, as one of subgraphs; the scores of a model must not depend on it.

    Returns
    -------
    [n, classes] float32 in the order of `vertices`.
    """
    distinct, places = np.unique(vertices, return_inverse=True)
    if len(distinct) < len(vertices):
        given: Any = {"fanouts": fanouts, "batch_size": batch_size, "seed": seed, "plan": plan}
        # A mini-batch has each of its targets once.
        scores = infer_sampled(model, graph, distinct, workers, between_chunks=between_chunks, **given)
        return scores[places]
    sampler: NeighborSampler | RelationSampler
    if graph.types is None:
        sampler = NeighborSampler(graph, vertices, fanouts, batch_size, seed)
    else:
        # Fan-outs of single relations are the training's.
        of_relations = [[fanout] * len(graph.types.relations) for fanout in fanouts]
        sampler = RelationSampler(graph, vertices, of_relations, batch_size, seed)
    loader = Loader(graph.features)
    parts = []
    was_training = model.training
    model.eval()
    with ExitStack() as stack, torch.no_grad(), working(workers):
        stack.callback(model.train, was_training)
        for start in range(0, len(vertices), batch_size):
            between_chunks()
            units: Ids = vertices[start : start + batch_size].astype(sampler.ids)
            # Steps below zero are never trained: evaluation draws from streams of its own.
            batch = sampler.sample(-1, units, workers, in_place=plan.in_place)
            loader.load(batch, plan, workers)
            parts.append(model(batch.blocks, batch.inputs).float().numpy())
            batch.release()
    return np.concatenate(parts) if parts else np.empty((0, graph.num_outputs), np.float32)


@dataclass(frozen=True, slots=True)
class _Step:
    """One layer over parts of the graph: what a part costs, and the layer's rows of it."""

    cost: Cost
    apply: Callable[[NDArray[np.int64]], NDArray[np.float32]]


def _step(model: GNN, i: int, cost: Cost, given: Callable[[NDArray[np.int64]], tuple[Block, Rows]]) -> _Step:
    """Layer i (from 0) over the block and the rows that `given` makes of a part."""

    def apply(part: NDArray[np.int64]) -> NDArray[np.float32]:
        result: NDArray[np.float32] = model.layer(i, *given(part)).numpy()
        return result

    return _Step(cost, apply)


def _dense_step(model: GNN, graph: Graph, i: int, rows: NDArray[Any], workers: Workers) -> _Step:
    """Layer i (from 0) over a matrix of rows, read in place."""
    cost = layer_cost(graph, model.footprint(i))
    return _step(model, i, cost, lambda part: (full_block(graph, part, i, workers), InPlace(rows)))


def _first_step(
    model: GNN,
    graph: Graph,
    destinations: NDArray[np.bool_],
    workers: Workers,
    memory_bytes: int,
    scratch: Path | None,
    between_chunks: Callable[[], None],
) -> _Step:
    """The first layer over the features, in the way that suits their form."""
    features = graph.features
    if graph.types is not None:
        return _typed_step(model, graph, workers)
    if features.matrix is not None:
        return _dense_step(model, graph, 0, features.matrix, workers)
    if isinstance(features, NarrowSource) and features.all_rows is not None:
        what = model.input_aggregation
        if what is not None:
            return _aggregated_step(model, graph, features.all_rows, what, workers)
    if not isinstance(features, SparseFeatures):
        return _gathered_step(model, graph, features, workers)
    weight = model.source_weight()
    if weight is None:
        if graph.num_vertices * graph.num_features * 4 > memory_bytes // 3:
            return _gathered_step(model, graph, features, workers)
        rows = SparseRows.of(features)
        return _dense_step(model, graph, 0, rows.dense().numpy(), workers)
    products = _matrix((graph.num_vertices, len(weight)), memory_bytes, scratch)
    sources = _with_neighbors(graph, destinations, memory_bytes // 4)
    cost = Cost(SPARSE_ROW_BYTES + 4 * len(weight), 0, ENTRY_BYTES)
    for part in chunks(graph, sources, cost, memory_bytes // 4):
        between_chunks()
        products[part] = sparse_linear(SparseRows.of(features.take(part, workers)), weight).numpy()

    def given(part: NDArray[np.int64]) -> tuple[Block, Rows]:
        own = SparseRows.of(features.take(part, workers))
        return full_block(graph, part, 0, workers), Multiplied(products, own)

    of_layer = layer_cost(graph, model.footprint(0, multiplied=True))
    return _step(model, 0, replace(of_layer, row=of_layer.row + SPARSE_ROW_BYTES, entry=ENTRY_BYTES), given)


def _aggregated_step(
    model: GNN, graph: Graph, rows: NarrowRows, what: Aggregation, workers: Workers
) -> _Step:
    """The first layer over rows in a narrow format, read in place."""

    def given(part: NDArray[np.int64]) -> tuple[Block, Rows]:
        block = full_block(graph, part, 0, workers)
        out = np.empty((len(part), what.width(graph.num_features)), np.float32)
        aggregate_narrow_into(what, block, rows, out, workers)
        return block, Aggregated(torch.from_numpy(out))

    return _step(model, 0, layer_cost(graph, model.footprint(0)), given)


def _gathered_step(model: GNN, graph: Graph, features: RowSource, workers: Workers) -> _Step:
    """The first layer over gathered rows, dense or sparse; these it makes dense, as a maximum needs."""
    local = np.full(graph.num_vertices, -1, np.int32)

    def given(part: NDArray[np.int64]) -> tuple[Block, Rows]:
        block, sources = with_own_sources(graph, full_block(graph, part, 0, workers), local)
        if isinstance(features, SparseFeatures):
            return block, SparseRows.of(features.take(sources, workers))
        rows = np.empty((len(sources), features.width), np.float32)
        features.rows(sources, rows, workers)
        return block, torch.from_numpy(rows)

    cost = layer_cost(graph, model.footprint(0))
    # Every edge may have a source of its own, and a row may be full.
    source = SPARSE_ROW_BYTES + (4 + ENTRY_BYTES) * graph.num_features
    return _step(model, 0, Cost(cost.row + source, cost.edge + source), given)


def _typed_step(model: GNN, graph: Graph, workers: Workers) -> _Step:
    """The first layer over gathered rows of each type."""
    local = np.full(graph.num_vertices, -1, np.int32)
    loader = Loader(graph.features)

    def given(part: NDArray[np.int64]) -> tuple[Block, Rows]:
        block, sources = with_own_sources(graph, full_block(graph, part, 0, workers), local)
        return block, loader.typed_rows(sources, workers)

    cost = layer_cost(graph, model.footprint(0))
    # Every edge may have a source of its own: its row, and what it is mapped to.
    assert isinstance(graph.features, TypedRows)
    source = 4 * (graph.features.width + 2 * model.widths[0])
    return _step(model, 0, Cost(cost.row + source, cost.edge + source), given)


def needed_vertices(
    graph: Graph,
    vertices: Ids,
    depth: int,
    chunk_bytes: int,
    together: Callable[[NDArray[np.bool_]], NDArray[np.bool_]] = lambda grown: grown,
) -> list[NDArray[np.bool_]]:
    """[V] per layer: the vertices whose rows it must give; the last layer's are the wanted ones.

    Where several processes have edges each, `together` joins what they find.
    """
    wanted = np.zeros(graph.num_vertices, np.bool_)
    wanted[vertices] = True
    needed = [wanted]
    for _ in range(depth - 1):
        needed.insert(0, together(_with_neighbors(graph, needed[0], chunk_bytes)))
    return needed


def _with_neighbors(graph: Graph, marked: NDArray[np.bool_], chunk_bytes: int) -> NDArray[np.bool_]:
    """[V]: the marked vertices and all sources of their edges."""
    grown = marked.copy()
    # Three arrays of positions, and the neighbours.
    cost = Cost(ROW_BYTES, 24 + graph.topology.indices.itemsize)
    for part in chunks(graph, marked, cost, chunk_bytes):
        counts = graph.topology.indptr[part + 1] - graph.topology.indptr[part]
        ends = np.cumsum(counts)
        positions = np.repeat(graph.topology.indptr[part] - (ends - counts), counts)
        positions += np.arange(len(positions))
        grown[graph.topology.indices[positions]] = True
    return grown


def full_block(graph: Graph, destinations: Ids, i: int, workers: Workers) -> Block:
    """All edges into the destinations for layer i (from 0), with sources left in place."""
    num = len(destinations)
    degrees = np.empty(num, np.int32)
    counts = np.empty(num, np.int32)
    # In the integers that samplers give: the loops over a block that training compiled serve here, too.
    destinations = destinations.astype(graph.topology.indices.dtype)
    count_neighbors(graph.topology.indptr, destinations, -1, 0, num, degrees, counts)
    edges = int(counts.sum(dtype=np.int64))
    offsets: Ids = np.empty(num + 1, np.int32 if edges < 2**31 else np.int64)
    prefix_sum(counts, offsets)
    neighbors = np.empty(edges, graph.topology.indices.dtype)
    positions = np.empty(edges, np.int64)
    types, weights = graph.topology.edge_types, graph.topology.edge_weights
    features = graph.topology.edge_features
    of_runs = graph.topology.run_weights if graph.types is not None and weights is not None else None
    key = np.uint64(0)
    workers.run(
        lambda start, stop: draw_neighbors(
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
        run_weights=None if of_runs is None else of_runs[positions],
        weighted_degrees=None if weights is None else graph.topology.weighted_degrees[destinations],
        source_weighted_degrees=None if weights is None else graph.topology.weighted_degrees,
    ).trusted()


def with_own_sources(graph: Graph, block: Block, local: NDArray[np.int32]) -> tuple[Block, Ids]:
    """A block that is read in place, over rows of its sources alone instead.

    Parameters
    ----------
    graph
        The graph that it is applied to.
    block
        The block.
    local
        [V] int32 of -1, which it is again afterwards.

    Returns
    -------
    The block, and its sources.
    """
    room = np.empty(block.num_dst + block.num_edges, block.destinations.dtype)
    columns = np.empty(block.num_edges, np.int32)
    num_src = relabel(block.destinations, block.columns, local, room, columns)
    sources = room[:num_src]
    own = replace(
        block,
        columns=columns,
        sources=sources,
        num_src=num_src,
        source_degrees=graph.topology.in_degrees[sources],
        source_scale=None,
        source_weighted_degrees=_of(block.source_weighted_degrees, sources),
    ).trusted()
    return own, sources


def _of(values: NDArray[np.float32] | None, rows: Ids) -> NDArray[np.float32] | None:
    return None if values is None else values[rows]


def _matrix(shape: tuple[int, int], memory_bytes: int, scratch: Path | None) -> NDArray[np.float32]:
    size_bytes = shape[0] * shape[1] * 4
    if size_bytes <= memory_bytes // 3:
        return np.empty(shape, np.float32)
    # The name goes at once: the pages live until the array does, whatever happens to the process.
    with tempfile.TemporaryFile(dir=scratch, prefix="hyrt-hidden-") as file:
        # A full disk is an error here, and not a SIGBUS at some later write.
        os.posix_fallocate(file.fileno(), 0, size_bytes)
        return np.memmap(file, np.float32, "r+", shape=shape)
