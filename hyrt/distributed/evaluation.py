"""Distributed evaluation: each rank scores its vertices, layer by layer or in a full-graph forward pass."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.distributed.distributed_rows import DistributedRows, DistributedSparseRows
from hyrt.distributed.local_rows import LocalRows
from hyrt.distributed.process_group import RankGroup
from hyrt.distributed.rank_grid import RankGrid
from hyrt.distributed.sampling import RemoteNeighborSampler
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import DenseFeatures, PrefetchedRowSource, SparseFeatures, SparseSource
from hyrt.inference.evaluate import Metrics, ScoresAt
from hyrt.inference.infer import (
    ChunkCost,
    compact_sources,
    full_block,
    layer_cost,
    needed_vertices,
    split_into_chunks,
)
from hyrt.nn.layer import Rows
from hyrt.nn.model import GNN
from hyrt.nn.operators.sparse import SparseRows
from hyrt.runtime.workers import Workers, use_workers
from hyrt.sampling.block import Ids
from hyrt.sampling.neighbor_sampler import NeighborSampler

_PURPOSE = "evaluation"


class OwnerRankScorer:
    """Scorer in which each rank scores the vertices whose feature rows it owns; rank 0 gathers the scores.

    `group` belongs to the evaluation thread. `memory_bytes` is the memory budget; the arrays for a chunk of
    vertices use at most a quarter of it. If `fanouts` is None, scores are computed layer by layer over all
    neighbours, otherwise from sampled mini-batches of `batch_size` targets. All ranks call `agree` before
    each chunk. With `has_partitioned_topology`, the graph has only the edges into this rank's vertices.
    """

    def __init__(
        self,
        graph: Graph,
        local_rows: LocalRows,
        group: RankGroup,
        *,
        memory_bytes: int,
        fanouts: list[int] | None,
        batch_size: int,
        seed: int,
        agree: Callable[[], None],
        has_partitioned_topology: bool = False,
    ) -> None:
        self._graph = graph
        self._local = local_rows
        self._owners = local_rows.owners
        self._group = group
        self._chunk_bytes = memory_bytes // 4
        self._sampled = fanouts
        self._batch_size = batch_size
        self._seed = seed
        self._agree = agree
        self._is_local = local_rows.owners == group.rank
        self._hops = None
        if has_partitioned_topology:
            self._hops = RemoteNeighborSampler(graph.topology, local_rows.owners, group, fanouts or [], seed)

    def compute_scores(
        self,
        model: torch.nn.Module,
        vertices: Ids,
        workers: Workers,
        check: Callable[[], None],
        scores_at: ScoresAt = lambda vertices: None,
    ) -> NDArray[np.float32] | None:
        local_vertices = vertices[self._is_local[vertices]]

        def before_chunk() -> None:
            self._agree()
            check()

        was_training = model.training
        model.eval()
        with ExitStack() as stack, torch.no_grad(), use_workers(workers):
            stack.callback(model.train, was_training)
            if self._sampled is None and isinstance(model, GNN):
                local_scores = self._score_layerwise(model, local_vertices, vertices, workers, before_chunk)
            else:
                local_scores = self._score_batches(model, local_vertices, workers, before_chunk)
        return gather_scores(local_scores, self._owners[vertices], self._group)

    def broadcast_metrics(self, metrics: Metrics | None) -> dict[str, dict[str, float]]:
        text = json.dumps(metrics).encode()
        length = torch.tensor([len(text)])
        self._group.broadcast_from_first(length, "control")
        sent = np.zeros(int(length), np.uint8)
        if metrics is not None:
            sent[:] = np.frombuffer(text, np.uint8)
        self._group.broadcast_from_first(torch.from_numpy(sent), "control")
        received: dict[str, dict[str, float]] = json.loads(sent.tobytes())
        return received

    def _score_layerwise(
        self,
        model: GNN,
        local_vertices: Ids,
        vertices: Ids,
        workers: Workers,
        before_chunk: Callable[[], None],
    ) -> NDArray[np.float32]:
        """Return the scores of local vertices over all neighbours, [n, C]."""
        depth = len(model.layers)
        needed = needed_vertices(self._graph, vertices, depth, self._chunk_bytes, self._merge_marks)
        rows = self._row_source(self._local.rows, self._local.local_ids, self._local.same_host_rows)
        local_ids = np.zeros(self._graph.num_vertices, np.int32 if len(self._owners) < 2**31 else np.int64)
        index_map = np.full(self._graph.num_vertices, -1, np.int32)
        out = np.empty((0, 0), np.float32)
        for i in range(depth):
            needed_local = np.flatnonzero(needed[i] & self._is_local)
            out = np.empty((len(needed_local), model.widths[i + 1]), np.float32)
            footprint = layer_cost(self._graph, model.footprint(i))
            # In the worst case, every edge has a different source.
            cost = ChunkCost(footprint.row + 4 * rows.width, footprint.edge + 4 * rows.width)
            parts = list(split_into_chunks(self._graph, needed[i] & self._is_local, cost, self._chunk_bytes))
            done = 0
            for part in self._pad_rounds(parts, before_chunk):
                whole = full_block(self._graph, part, i, workers)
                block, sources = compact_sources(self._graph, whole, index_map)
                inputs = self._fetch_rows(rows, sources, workers)
                if len(part):
                    out[done : done + len(part)] = model.layer(i, block, inputs).numpy()
                    done += len(part)
            local_ids[:] = 0
            # Every rank orders its vertices by id, so all ranks can compute the row index of any vertex.
            for rank in range(self._group.size):
                rank_vertices = np.flatnonzero(needed[i] & (self._owners == rank))
                local_ids[rank_vertices] = np.arange(len(rank_vertices))
            rows = self._row_source(DenseFeatures(out), local_ids)
        scores: NDArray[np.float32] = out[local_ids[local_vertices]]
        return scores

    def _merge_marks(self, grown: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Merge the vertex marks of all ranks; needed only if each rank has only its local edges."""
        if self._hops is None:
            return grown
        marks = torch.from_numpy(grown.astype(np.int32))
        self._group.all_reduce(marks, _PURPOSE)
        return marks.numpy() > 0

    def _score_batches(
        self, model: torch.nn.Module, local_vertices: Ids, workers: Workers, before_chunk: Callable[[], None]
    ) -> NDArray[np.float32]:
        """Return the scores of local vertices from sampled mini-batches, [n, C]."""
        assert self._sampled is not None
        sampler = NeighborSampler(self._graph, local_vertices, self._sampled, self._batch_size, self._seed)
        rows = self._row_source(self._local.rows, self._local.local_ids, self._local.same_host_rows)
        scores = [np.empty((0, self._graph.num_outputs), np.float32)]
        starts = range(0, len(local_vertices), self._batch_size)
        for units in self._pad_rounds(
            [local_vertices[start : start + self._batch_size] for start in starts], before_chunk
        ):
            # Training never uses negative step numbers, so evaluation has separate random streams.
            units = units.astype(sampler.ids)
            hops = None if self._hops is None else self._hops.sample_step(-1, units, workers)
            batch = sampler.sample(-1, units, workers, in_place=False, hops=hops)
            sources = batch.blocks[0].sources
            assert sources is not None
            inputs = self._fetch_rows(rows, sources, workers)
            if len(units):
                scores.append(model(batch.blocks, inputs).float().numpy())
            batch.release()
        return np.concatenate(scores[1:] or scores)

    def _pad_rounds(
        self, parts: list[NDArray[Any]], before_chunk: Callable[[], None]
    ) -> Iterator[NDArray[Any]]:
        """Yield the parts, then empty parts while other ranks may still request this rank's rows."""
        group = self._group
        rounds = max(group.exchange_counts([len(parts)] * group.size, "control"))
        for number in range(rounds):
            before_chunk()
            yield parts[number] if number < len(parts) else np.empty(0, np.int64)

    def _row_source(
        self,
        rows: DenseFeatures | SparseFeatures,
        local_ids: NDArray[Any],
        same_host: Mapping[int, DenseFeatures] | None = None,
    ) -> PrefetchedRowSource:
        if isinstance(rows, SparseFeatures):
            return DistributedSparseRows(rows, local_ids, self._owners, self._group, _PURPOSE)
        return DistributedRows(
            rows, local_ids, self._owners, self._group, purpose=_PURPOSE, same_host_rows=same_host
        )

    def _fetch_rows(self, rows: PrefetchedRowSource, sources: NDArray[Any], workers: Workers) -> Rows:
        rows.fetch(-1, [sources], workers)
        if isinstance(rows, SparseSource):
            fetched: Rows = SparseRows.from_features(rows.take(sources, workers))
        else:
            out = np.empty((len(sources), rows.width), np.float32)
            rows.rows(sources, out, workers)
            fetched = torch.from_numpy(out)
        rows.release(-1)
        return fetched


def gather_scores(
    local_scores: NDArray[np.float32], owners: NDArray[Any], group: RankGroup
) -> NDArray[np.float32] | None:
    """Gather the scores of vertices, [n, C], at rank 0; return None at the other ranks.

    `owners` [n] has the owner rank of each vertex. `local_scores` [m, C] are the scores of this rank's
    vertices, in the same order.
    """
    send_counts = [len(local_scores), *[0] * (group.size - 1)]
    counts = np.bincount(owners, minlength=group.size).tolist()
    receive_counts = [0] * group.size if group.rank else counts
    width = max(
        group.exchange_counts([local_scores.shape[1] if len(local_scores) else 0] * group.size, "control")
    )
    receive_buffer = np.empty((sum(receive_counts), width), np.float32)
    send_buffer = np.ascontiguousarray(local_scores.reshape(len(local_scores), width))
    group.all_to_all(
        torch.from_numpy(send_buffer), send_counts, torch.from_numpy(receive_buffer), receive_counts, _PURPOSE
    )
    if group.rank:
        return None
    scores = np.empty_like(receive_buffer)
    scores[np.argsort(owners, kind="stable")] = receive_buffer
    return scores


class FullGraphScorer:
    """`hyrt.inference.evaluate.DistributedScorer` that runs one full-graph forward pass on all ranks.

    The `owners` of `local_rows` are blocks. `group` belongs to the evaluation thread. `fallback` is used if
    the graph is not on the devices yet, or if neighbours are sampled. All ranks call `agree` before each
    pass.
    """

    def __init__(
        self,
        grid: RankGrid,
        local_rows: LocalRows,
        group: RankGroup,
        fallback: OwnerRankScorer,
        agree: Callable[[], None],
    ) -> None:
        self._grid = grid
        self._local = local_rows
        self._group = group
        self._fallback = fallback
        self._agree = agree

    def compute_scores(
        self,
        model: torch.nn.Module,
        vertices: Ids,
        workers: Workers,
        check: Callable[[], None],
        scores_at: ScoresAt,
    ) -> NDArray[np.float32] | None:
        blocks = self._local.owners[vertices]
        self._agree()
        check()
        local_ids = self._local.local_ids[vertices[blocks == self._grid.row]]
        # All replicas of a block compute its scores, but only one of them sends the scores.
        scores = scores_at(local_ids)
        if scores is None:
            return self._fallback.compute_scores(model, vertices, workers, check)
        sent = scores if self._grid.column == 0 else scores[:0]
        return gather_scores(sent, blocks.astype(np.int64) * self._grid.replication, self._group)

    def broadcast_metrics(self, metrics: Metrics | None) -> dict[str, dict[str, float]]:
        return self._fallback.broadcast_metrics(metrics)
