"""Evaluation on several ranks: each computes the rows of its own vertices, layer by layer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.distributed.rank_group import RankGroup
from hyrt.distributed.rows.distributed_rows import DistributedRows
from hyrt.distributed.rows.distributed_sparse_rows import DistributedSparseRows
from hyrt.distributed.rows.own_rows import OwnRows
from hyrt.distributed.split_edges.asked_hops import AskedHops
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import DenseFeatures, FetchedRows, SparseFeatures, SparseSource
from hyrt.inference.infer import full_block, needed_vertices, with_own_sources
from hyrt.inference.infer_memory import Cost, chunks, layer_cost
from hyrt.inference.shared_scores import Metrics, ScoresAt
from hyrt.machine.workers import Workers, working
from hyrt.nn.inputs import Rows
from hyrt.nn.model import GNN
from hyrt.nn.operators.sparse import SparseRows
from hyrt.sampling.block import Ids
from hyrt.sampling.neighbor import NeighborSampler

_PURPOSE = "evaluation"


class ScoresByHome:
    """Scores vertices on the ranks that have their rows; rank 0 gets them all.

    Parameters
    ----------
    graph
        The topology.
    own
        The feature rows of this rank.
    group
        The ranks, for the thread that evaluates.
    memory_bytes
        Bound on the arrays of a chunk of vertices, of which a quarter is taken.
    sampled
        Fan-outs of mini-batches by which to score; None scores layer by layer over all neighbours.
    batch_size, seed
        The targets and the seed of those mini-batches.
    agree
        Called before each chunk, by all ranks.
    edges_are_split
        Whether the graph has the edges into this rank's vertices alone.
    """

    def __init__(
        self,
        graph: Graph,
        own: OwnRows,
        group: RankGroup,
        *,
        memory_bytes: int,
        sampled: list[int] | None,
        batch_size: int,
        seed: int,
        agree: Callable[[], None],
        edges_are_split: bool = False,
    ) -> None:
        self._graph = graph
        self._own = own
        self._homes = own.homes
        self._group = group
        self._chunk_bytes = memory_bytes // 4
        self._sampled = sampled
        self._batch_size = batch_size
        self._seed = seed
        self._agree = agree
        self._is_own = own.homes == group.rank
        self._hops = None
        if edges_are_split:
            self._hops = AskedHops(graph.topology, own.homes, group, sampled or [], seed)

    def scores(
        self,
        model: torch.nn.Module,
        vertices: Ids,
        workers: Workers,
        check: Callable[[], None],
        scores_at: ScoresAt = lambda vertices: None,
    ) -> NDArray[np.float32] | None:
        mine = vertices[self._is_own[vertices]]

        def before_chunk() -> None:
            self._agree()
            check()

        was_training = model.training
        model.eval()
        with ExitStack() as stack, torch.no_grad(), working(workers):
            stack.callback(model.train, was_training)
            if self._sampled is None and isinstance(model, GNN):
                own = self._layer_by_layer(model, mine, vertices, workers, before_chunk)
            else:
                own = self._by_batches(model, mine, workers, before_chunk)
        return at_first(own, self._homes[vertices], self._group)

    def tell(self, metrics: Metrics | None) -> dict[str, dict[str, float]]:
        text = json.dumps(metrics).encode()
        length = torch.tensor([len(text)])
        self._group.from_first(length, "control")
        sent = np.zeros(int(length), np.uint8)
        if metrics is not None:
            sent[:] = np.frombuffer(text, np.uint8)
        self._group.from_first(torch.from_numpy(sent), "control")
        told: dict[str, dict[str, float]] = json.loads(sent.tobytes())
        return told

    def _layer_by_layer(
        self,
        model: GNN,
        mine: Ids,
        vertices: Ids,
        workers: Workers,
        before_chunk: Callable[[], None],
    ) -> NDArray[np.float32]:
        """[n, C], of own vertices with all their neighbours."""
        depth = len(model.layers)
        needed = needed_vertices(self._graph, vertices, depth, self._chunk_bytes, self._together)
        rows = self._rows_of(self._own.rows, self._own.places, self._own.beside)
        places = np.zeros(self._graph.num_vertices, np.int32 if len(self._homes) < 2**31 else np.int64)
        local = np.full(self._graph.num_vertices, -1, np.int32)
        out = np.empty((0, 0), np.float32)
        for i in range(depth):
            own = np.flatnonzero(needed[i] & self._is_own)
            out = np.empty((len(own), model.widths[i + 1]), np.float32)
            footprint = layer_cost(self._graph, model.footprint(i))
            # Every edge may have a source of its own.
            cost = Cost(footprint.row + 4 * rows.width, footprint.edge + 4 * rows.width)
            parts = list(chunks(self._graph, needed[i] & self._is_own, cost, self._chunk_bytes))
            done = 0
            for part in self._in_rounds(parts, before_chunk):
                whole = full_block(self._graph, part, i, workers)
                block, sources = with_own_sources(self._graph, whole, local)
                given = self._given(rows, sources, workers)
                if len(part):
                    out[done : done + len(part)] = model.layer(i, block, given).numpy()
                    done += len(part)
            places[:] = 0
            # Every rank counts its own vertices in order, and so knows the place of all others'.
            for rank in range(self._group.size):
                theirs = np.flatnonzero(needed[i] & (self._homes == rank))
                places[theirs] = np.arange(len(theirs))
            rows = self._rows_of(DenseFeatures(out), places)
        scores: NDArray[np.float32] = out[places[mine]]
        return scores

    def _together(self, grown: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """What any rank has marked, where each of them can only follow its own edges."""
        if self._hops is None:
            return grown
        marks = torch.from_numpy(grown.astype(np.int32))
        self._group.add(marks, _PURPOSE)
        return marks.numpy() > 0

    def _by_batches(
        self, model: torch.nn.Module, mine: Ids, workers: Workers, before_chunk: Callable[[], None]
    ) -> NDArray[np.float32]:
        """[n, C], of own vertices in mini-batches."""
        assert self._sampled is not None
        sampler = NeighborSampler(self._graph, mine, self._sampled, self._batch_size, self._seed)
        rows = self._rows_of(self._own.rows, self._own.places, self._own.beside)
        found = [np.empty((0, self._graph.num_outputs), np.float32)]
        starts = range(0, len(mine), self._batch_size)
        for units in self._in_rounds(
            [mine[start : start + self._batch_size] for start in starts], before_chunk
        ):
            # Steps below zero are never trained: evaluation draws from streams of its own.
            units = units.astype(sampler.ids)
            hops = None if self._hops is None else self._hops.of_step(-1, units, workers)
            batch = sampler.sample(-1, units, workers, in_place=False, hops=hops)
            sources = batch.blocks[0].sources
            assert sources is not None
            given = self._given(rows, sources, workers)
            if len(units):
                found.append(model(batch.blocks, given).float().numpy())
            batch.release()
        return np.concatenate(found[1:] or found)

    def _in_rounds(
        self, parts: list[NDArray[Any]], before_chunk: Callable[[], None]
    ) -> Iterator[NDArray[Any]]:
        """The parts, and empty ones as long as other ranks have more: they need this rank's rows."""
        group = self._group
        rounds = max(group.exchange_counts([len(parts)] * group.size, "control"))
        for number in range(rounds):
            before_chunk()
            yield parts[number] if number < len(parts) else np.empty(0, np.int64)

    def _rows_of(
        self,
        rows: DenseFeatures | SparseFeatures,
        places: NDArray[Any],
        beside: Mapping[int, DenseFeatures] | None = None,
    ) -> FetchedRows:
        if isinstance(rows, SparseFeatures):
            return DistributedSparseRows(rows, places, self._homes, self._group, _PURPOSE)
        return DistributedRows(rows, places, self._homes, self._group, purpose=_PURPOSE, beside=beside)

    def _given(self, rows: FetchedRows, sources: NDArray[Any], workers: Workers) -> Rows:
        """The rows of a block's sources."""
        rows.fetch(-1, [sources], workers)
        if isinstance(rows, SparseSource):
            given: Rows = SparseRows.of(rows.take(sources, workers))
        else:
            out = np.empty((len(sources), rows.width), np.float32)
            rows.rows(sources, out, workers)
            given = torch.from_numpy(out)
        rows.release(-1)
        return given


def at_first(own: NDArray[np.float32], homes: NDArray[Any], group: RankGroup) -> NDArray[np.float32] | None:
    """The scores of vertices, [n, C], at rank 0; None at the others.

    Parameters
    ----------
    own
        [m, C], those of the vertices of this rank, in their order.
    homes
        [n] integers, the rank of each of the vertices.
    group
        The ranks.
    """
    given_counts = [len(own), *[0] * (group.size - 1)]
    counts = np.bincount(homes, minlength=group.size).tolist()
    taken_counts = [0] * group.size if group.rank else counts
    width = max(group.exchange_counts([own.shape[1] if len(own) else 0] * group.size, "control"))
    taken = np.empty((sum(taken_counts), width), np.float32)
    given = np.ascontiguousarray(own.reshape(len(own), width))
    group.exchange(torch.from_numpy(given), given_counts, torch.from_numpy(taken), taken_counts, _PURPOSE)
    if group.rank:
        return None
    scores = np.empty_like(taken)
    scores[np.argsort(homes, kind="stable")] = taken
    return scores
