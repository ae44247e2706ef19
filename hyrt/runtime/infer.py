"""Scores and embeddings of vertices from all their neighbours, layer by layer, or from sampled ones."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.graph.graph import DenseFeatures, Graph, SparseFeatures
from hyrt.nn.layers import InPlace, Rows
from hyrt.nn.model import GNN
from hyrt.runtime.load import InputPlan, Loader, feature_rows, gather_sparse
from hyrt.sampling.block import Block, Ids
from hyrt.sampling.kernels import count_neighbors, pick_neighbors, prefix_sum, relabel
from hyrt.sampling.neighbor import NeighborSampler
from hyrt.workers import Workers, working


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

    Each vertex's hidden row is computed once, so the cost grows with layers, not with neighbourhoods. Hidden
    matrices that do not fit the budget go to a temporary file.

    Parameters
    ----------
    model
        A model of `hyrt.nn`.
    graph
        Topology and features.
    vertices
        [n] whose rows are wanted.
    workers
        Who computes.
    memory_bytes
        Bound on hidden matrices and on one chunk's arrays.
    scratch
        Folder for temporary files; the system's by default.
    layers
        How many layers to apply; all by default. One less gives the embeddings before the last layer.
    between_chunks
        Called before each chunk; what it raises ends the work.

    Returns
    -------
    [n, width] float32 in the order of `vertices`: scores, or with fewer layers the hidden rows.
    """
    depth = len(model.layers) if layers is None else layers
    needed = _needed(graph, vertices, depth)
    was_training = model.training
    model.eval()
    with ExitStack() as stack, torch.no_grad(), working(workers):
        stack.callback(model.train, was_training)
        rows: NDArray[Any] | SparseFeatures = (
            feature_rows(graph.features) if isinstance(graph.features, DenseFeatures) else graph.features
        )
        for i in range(depth):
            width = _width(model, i)
            destinations = needed[i]
            last = i == depth - 1
            out = _matrix(
                stack, (len(destinations) if last else graph.num_vertices, width), memory_bytes, scratch
            )
            for start, stop in _chunks(graph, destinations, _row_bytes(rows) + 4 * width, memory_bytes):
                between_chunks()
                part = destinations[start:stop]
                block, x = _full_block(graph, part, rows, i + 1, workers)
                result = model.layer(i, block, x).numpy()
                if last:
                    out[start:stop] = result
                else:
                    out[part] = result
            rows = out
    assert not isinstance(rows, SparseFeatures)
    if np.array_equal(needed[-1], vertices):
        return np.asarray(rows)  # Not copied: they may be a file's pages.
    order = np.searchsorted(needed[-1], vertices)
    return np.asarray(rows[order], np.float32)


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

    Returns
    -------
    [n, classes] float32 in the order of `vertices`.
    """
    sampler = NeighborSampler(graph, vertices, fanouts, batch_size, seed)
    loader = Loader(graph)
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
    return np.concatenate(parts) if parts else np.empty((0, graph.num_classes), np.float32)


def _needed(graph: Graph, vertices: Ids, depth: int) -> list[NDArray[np.int64]]:
    """Per layer the vertices whose rows it must give, sorted; the last is the wanted ones."""
    wanted = np.unique(vertices).astype(np.int64)
    needed = [wanted]
    for _ in range(depth - 1):
        mark = np.zeros(graph.num_vertices, np.bool_)
        mark[wanted] = True
        for start in range(0, len(wanted), 1 << 16):
            part = wanted[start : start + (1 << 16)]
            counts = graph.in_degrees[part].astype(np.int64)
            ends = np.cumsum(counts)
            positions = np.repeat(graph.indptr[part] - (ends - counts), counts) + np.arange(counts.sum())
            mark[graph.indices[positions]] = True
        wanted = np.flatnonzero(mark)
        needed.insert(0, wanted)
    return needed


def _chunks(
    graph: Graph, destinations: NDArray[np.int64], row_bytes: int, memory_bytes: int
) -> Iterator[tuple[int, int]]:
    """Cut destinations so that a chunk's rows and edges stay within a quarter of the budget."""
    cost = np.cumsum(graph.in_degrees[destinations].astype(np.int64) * 12 + 3 * row_bytes)
    budget = max(1, memory_bytes // 4)
    start = 0
    while start < len(destinations):
        base = cost[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(cost, base + budget, side="right")))
        yield start, stop
        start = stop


def _full_block(
    graph: Graph, destinations: NDArray[np.int64], rows: Any, layer: int, workers: Workers
) -> tuple[Block, Rows]:
    """All edges into the destinations: read in place, or relabelled with gathered rows where they are sparse."""
    num = len(destinations)
    degrees = np.empty(num, np.int32)
    counts = np.empty(num, np.int32)
    count_neighbors(graph.indptr, destinations, -1, 0, num, degrees, counts)
    offsets = np.empty(num + 1, np.int64)
    prefix_sum(counts, offsets)
    edges = int(offsets[-1])
    neighbors = np.empty(edges, graph.indices.dtype)
    positions = np.empty(edges, np.int64)
    workers.run(
        lambda start, stop: pick_neighbors(
            graph.indptr,
            graph.indices,
            destinations,
            offsets,
            np.uint64(0),
            start,
            stop,
            positions,
            neighbors,
        ),
        num,
        1024,
    )
    if not isinstance(rows, SparseFeatures):
        block = Block(
            offsets, neighbors, destinations, None, graph.num_vertices, degrees, graph.in_degrees, layer
        )
        return block, InPlace(rows)
    local = np.full(graph.num_vertices, -1, np.int32)
    room = np.empty(num + edges, np.int64)
    columns = np.empty(edges, np.int32)
    num_src = relabel(destinations, neighbors, local, room, columns)
    sources = room[:num_src]
    block = Block(offsets, columns, destinations, sources, num_src, degrees, graph.in_degrees[sources], layer)
    return block, gather_sparse(rows, sources, workers)


def _matrix(
    stack: ExitStack, shape: tuple[int, int], memory_bytes: int, scratch: Path | None
) -> NDArray[np.float32]:
    if shape[0] * shape[1] * 4 <= memory_bytes // 2:
        return np.empty(shape, np.float32)
    # The name goes at once: the pages live until the array does, whatever happens to the process.
    file = stack.enter_context(tempfile.TemporaryFile(dir=scratch, prefix="hyrt-hidden-"))  # noqa: SIM115
    # A full disk is an error here, and not a SIGBUS at some later write.
    os.posix_fallocate(file.fileno(), 0, shape[0] * shape[1] * 4)
    return np.memmap(file, np.float32, "w+", shape=shape)


def _width(model: GNN, i: int) -> int:
    a = model.architecture
    return a.num_classes if i == a.layers - 1 else a.hidden


def _row_bytes(rows: Any) -> int:
    return 64 if isinstance(rows, SparseFeatures) else 2 * 4 * int(rows.shape[1])
