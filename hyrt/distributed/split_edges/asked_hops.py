"""Neighbours that the owners of vertices draw, for all hops of a step, before it is sampled."""

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
    """The neighbours of all vertices that a rank meets in one layer of a step."""

    vertices: Ids
    """[n] the vertices, sorted."""
    hop: Hop
    """Their neighbours."""

    __repr__ = one_line


class StepHops:
    """A step's neighbours, for mini-batches of any of its units; a `HopSampler`."""

    def __init__(self) -> None:
        self._by_key: dict[int, AskedHop] = {}

    def keep(self, key: np.uint64, asked: AskedHop) -> None:
        """Add those of one layer."""
        self._by_key[int(key)] = asked

    def draw(self, vertices: Ids, fanout: int, key: np.uint64, *, relabel: bool) -> Hop:
        """The neighbours of some of the vertices that were asked for."""
        asked = self._by_key[int(key)]
        at = np.searchsorted(asked.vertices, vertices)
        starts = asked.hop.offsets[at].astype(np.int64)
        counts = asked.hop.offsets[at + 1] - starts
        offsets = np.concatenate([[0], np.cumsum(counts)])
        edges = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], counts)
        types, values = asked.hop.edge_types, asked.hop.values
        return Hop(
            degrees=asked.hop.degrees[at],
            offsets=offsets.astype(np.int32),
            neighbors=asked.hop.neighbors[edges],
            edge_types=None if types is None else types[edges],
            values=None if values is None else values.of(edges),
        )

    def close(self) -> None:
        """Nothing is held."""


class AskedHops:
    """Asks, hop by hop, the ranks that have the edges into a step's vertices.

    Each hop is one exchange: vertices go to their owners, which draw as any machine would, and neighbours
    come back. All ranks ask for the same steps in the same order, also where they train nothing, because
    others may need their edges.

    Parameters
    ----------
    topology
        The edges into the vertices of this rank.
    homes
        [V] the rank that has the edges into each vertex.
    group
        The ranks, for the thread that asks.
    fanouts
        Neighbours of each vertex per layer, the targets' layer first; -1 takes all.
    seed
        The seed of the run.
    """

    def __init__(
        self, topology: Topology, homes: Array, group: RankGroup, fanouts: Sequence[int], seed: int
    ) -> None:
        self._topology = topology
        self._homes = homes
        self._group = group
        self._fanouts = list(fanouts)
        self._seed = seed
        self._pool = BufferPool()

    def of_step(self, step: int, units: Ids, workers: Workers) -> StepHops:
        """The neighbours that mini-batches of this rank's units of a step need; every rank asks at once."""
        found, layers, vertices = StepHops(), len(self._fanouts), np.unique(units)
        for depth, fanout in enumerate(self._fanouts):
            key = stream_key(self._seed, SAMPLE, step, layers - depth)
            asked = self._ask(vertices, fanout, key, workers)
            found.keep(key, asked)
            if depth + 1 < layers:
                vertices = np.union1d(vertices, asked.hop.neighbors)
        return found

    def end(self) -> None:
        """Nothing more is asked for: a thread that waits raises `ChannelClosed`. Any thread may call it."""
        self._group.give_up(ChannelClosed("no more neighbours are asked for"))

    def _ask(self, vertices: Ids, fanout: int, key: np.uint64, workers: Workers) -> AskedHop:
        group, owners = self._group, self._homes[vertices]
        by_owner = np.argsort(owners, kind="stable")
        counts = np.bincount(owners, minlength=group.size).tolist()
        given_counts = group.exchange_counts(counts, _PURPOSE)
        given = np.empty(sum(given_counts), vertices.dtype)
        self._exchange(vertices[by_owner], counts, given, given_counts)
        arrays = TakenArrays(self._pool)
        drawn = draw_hop(self._topology, given, fanout, key, workers, self._pool, arrays)
        sizes = np.stack([drawn.degrees, np.diff(drawn.offsets)], axis=1)
        taken = np.empty((len(vertices), 2), np.int32)
        self._exchange(sizes, given_counts, taken, counts)
        edges_given, edges_taken = _sums(sizes[:, 1], given_counts), _sums(taken[:, 1], counts)
        neighbors = np.empty(sum(edges_taken), vertices.dtype)
        self._exchange(drawn.neighbors, edges_given, neighbors, edges_taken)
        own = edge_values(self._topology, given, drawn.offsets, drawn.neighbors, workers, arrays, drawn.edges)

        def answered(values: Array | None) -> Array | None:
            """What the edges that were asked for have."""
            if values is None:
                return None
            out = np.empty((len(neighbors), *values.shape[1:]), values.dtype)
            self._exchange(values, edges_given, out, edges_taken)
            return out

        types = answered(drawn.edge_types)
        values = EdgeValues(answered(own.weights), answered(own.features))
        arrays.give_back()
        offsets = np.concatenate([[0], np.cumsum(taken[:, 1])])
        # Of the vertices by owner; back in their own order they are sorted.
        place = np.argsort(by_owner, kind="stable")
        lengths = taken[place, 1].astype(np.int64)
        ends = np.cumsum(lengths)
        edges = np.arange(len(neighbors)) + np.repeat(offsets[:-1][place] - (ends - lengths), lengths)
        return AskedHop(
            vertices,
            Hop(
                degrees=taken[place, 0],
                offsets=np.concatenate([[0], ends]),
                neighbors=neighbors[edges],
                edge_types=None if types is None else types[edges],
                values=values.of(edges),
            ),
        )

    def _exchange(
        self, given: Array, given_counts: Sequence[int], taken: Array, taken_counts: Sequence[int]
    ) -> None:
        self._group.exchange(
            torch.from_numpy(np.ascontiguousarray(given)),
            given_counts,
            torch.from_numpy(taken),
            taken_counts,
            _PURPOSE,
        )


def _sums(lengths: Array, counts: Sequence[int]) -> list[int]:
    """The sums of consecutive groups of so many lengths."""
    totals = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[np.cumsum(counts)]
    sums: list[int] = np.diff(totals, prepend=0).tolist()
    return sums
