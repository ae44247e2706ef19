"""Remote neighbour sampling: the owners of vertices sample their neighbours in advance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.distributed.rank_group import RankGroup
from hyrt.flow.channel import ChannelClosed
from hyrt.graph.topology import Topology
from hyrt.machine.buffer_pool import BufferPool, TakenArrays
from hyrt.machine.generator import SAMPLE, stream_key
from hyrt.machine.workers import Workers
from hyrt.quantities import one_line
from hyrt.sampling.block import Ids
from hyrt.sampling.draw_hop import draw_hop
from hyrt.sampling.edges.edge_values import EdgeValues, edge_values
from hyrt.sampling.sampler import Hop

_PURPOSE = "edges"
Array = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class AskedHop:
    """Sampled neighbours of all vertices that a rank reaches in one layer of a step."""

    vertices: Ids
    """[n] vertices, sorted."""
    hop: Hop
    """Their neighbours."""

    __repr__ = one_line


class StepHops:
    """Sampled neighbours of a step, for mini-batches of any of its units; a `HopSampler`."""

    def __init__(self) -> None:
        self._by_key: dict[int, AskedHop] = {}

    def keep(self, key: np.uint64, asked: AskedHop) -> None:
        """Add the neighbours of one layer."""
        self._by_key[int(key)] = asked

    def draw(self, vertices: Ids, fanout: int, key: np.uint64, *, relabel: bool) -> Hop:
        """Look up the neighbours of some of the requested vertices."""
        layer = self._by_key[int(key)]
        positions = np.searchsorted(layer.vertices, vertices)
        starts = layer.hop.offsets[positions].astype(np.int64)
        counts = layer.hop.offsets[positions + 1] - starts
        offsets = np.concatenate([[0], np.cumsum(counts)])
        edges = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], counts)
        types, values = layer.hop.edge_types, layer.hop.values
        return Hop(
            degrees=layer.hop.degrees[positions],
            offsets=offsets.astype(np.int32),
            neighbors=layer.hop.neighbors[edges],
            edge_types=None if types is None else types[edges],
            values=None if values is None else values.of(edges),
        )

    def close(self) -> None:
        """Do nothing: no resources are held."""


class AskedHops:
    """Samples the neighbours of a step's vertices at the ranks that own their edges, hop by hop.

    Each hop is one request and one response: vertices are sent to their owners, which sample as a single
    machine
    would, and the neighbours are sent back. All ranks must request the same steps in the same order, even
    without targets, because other ranks may need their edges.

    Parameters
    ----------
    topology
        The edges into the vertices of this rank.
    homes
        [V] rank that owns the edges into each vertex.
    group
        The ranks, for the sampling thread.
    fanouts
        Neighbours per vertex for each layer, the targets' layer first; -1 takes all.
    seed
        Seed of the run.
    """

    def __init__(
        self, topology: Topology, homes: Array, group: RankGroup, fanouts: Sequence[int], seed: int
    ) -> None:
        self._topology = topology
        self._owners = homes
        self._group = group
        self._fanouts = list(fanouts)
        self._seed = seed
        self._pool = BufferPool()

    def of_step(self, step: int, units: Ids, workers: Workers) -> StepHops:
        """Sample all hops of this rank's units of a step; every rank must call it at the same time."""
        step_hops, layers, vertices = StepHops(), len(self._fanouts), np.unique(units)
        for depth, fanout in enumerate(self._fanouts):
            key = stream_key(self._seed, SAMPLE, step, layers - depth)
            layer = self._request_hop(vertices, fanout, key, workers)
            step_hops.keep(key, layer)
            if depth + 1 < layers:
                vertices = np.union1d(vertices, layer.hop.neighbors)
        return step_hops

    def end(self) -> None:
        """Stop sampling: a waiting thread raises `ChannelClosed`. Thread-safe."""
        self._group.give_up(ChannelClosed("no more neighbours are asked for"))

    def _request_hop(self, vertices: Ids, fanout: int, key: np.uint64, workers: Workers) -> AskedHop:
        group, owners = self._group, self._owners[vertices]
        by_owner = np.argsort(owners, kind="stable")
        counts = np.bincount(owners, minlength=group.size).tolist()
        request_counts = group.exchange_counts(counts, _PURPOSE)
        requested = np.empty(sum(request_counts), vertices.dtype)
        self._exchange(vertices[by_owner], counts, requested, request_counts)
        arrays = TakenArrays(self._pool)
        sampled = draw_hop(self._topology, requested, fanout, key, workers, self._pool, arrays)
        sizes = np.stack([sampled.degrees, np.diff(sampled.offsets)], axis=1)
        degrees_and_counts = np.empty((len(vertices), 2), np.int32)
        self._exchange(sizes, request_counts, degrees_and_counts, counts)
        edges_sent, edges_received = (
            _sum_per_rank(sizes[:, 1], request_counts),
            _sum_per_rank(degrees_and_counts[:, 1], counts),
        )
        neighbors = np.empty(sum(edges_received), vertices.dtype)
        self._exchange(sampled.neighbors, edges_sent, neighbors, edges_received)
        local_values = edge_values(
            self._topology, requested, sampled.offsets, sampled.neighbors, workers, arrays, sampled.edges
        )

        def exchange_values(values: Array | None) -> Array | None:
            """Exchange an array with one entry per requested edge."""
            if values is None:
                return None
            out = np.empty((len(neighbors), *values.shape[1:]), values.dtype)
            self._exchange(values, edges_sent, out, edges_received)
            return out

        types = exchange_values(sampled.edge_types)
        values = EdgeValues(exchange_values(local_values.weights), exchange_values(local_values.features))
        arrays.give_back()
        offsets = np.concatenate([[0], np.cumsum(degrees_and_counts[:, 1])])
        # Responses are grouped by owner; restore the sorted order of the vertices.
        order = np.argsort(by_owner, kind="stable")
        lengths = degrees_and_counts[order, 1].astype(np.int64)
        ends = np.cumsum(lengths)
        edges = np.arange(len(neighbors)) + np.repeat(offsets[:-1][order] - (ends - lengths), lengths)
        return AskedHop(
            vertices,
            Hop(
                degrees=degrees_and_counts[order, 0],
                offsets=np.concatenate([[0], ends]),
                neighbors=neighbors[edges],
                edge_types=None if types is None else types[edges],
                values=values.of(edges),
            ),
        )

    def _exchange(
        self, sent: Array, send_counts: Sequence[int], received: Array, receive_counts: Sequence[int]
    ) -> None:
        self._group.exchange(
            torch.from_numpy(np.ascontiguousarray(sent)),
            send_counts,
            torch.from_numpy(received),
            receive_counts,
            _PURPOSE,
        )


def _sum_per_rank(lengths: Array, counts: Sequence[int]) -> list[int]:
    """Sum consecutive groups of lengths; counts[i] is the size of group i."""
    totals = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[np.cumsum(counts)]
    sums: list[int] = np.diff(totals, prepend=0).tolist()
    return sums
