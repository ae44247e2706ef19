"""Input rows of mini-batches whose models visit the ranks that have them (HopGNN section 3.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.distributed.first_layer.every_rank import EveryRank
from hyrt.distributed.rank_group import RankGroup
from hyrt.distributed.rows.own_rows import OwnRows
from hyrt.distributed.strategies.naive_migration import first_visits
from hyrt.flow.channel import ChannelClosed
from hyrt.machine.workers import Workers
from hyrt.nn.aggregation import Aggregation
from hyrt.nn.inputs import Aggregated
from hyrt.nn.operators.aggregate import aggregate_into, scales
from hyrt.quantities import one_line
from hyrt.sampling.block import Block
from hyrt.sampling.minibatch import MiniBatch


@dataclass(frozen=True, slots=True, eq=False)
class Tour:
    """The tour of one model in a step: what it needs, and at which stop it meets what."""

    block: Block
    """The input's block of its mini-batch."""
    stops: NDArray[np.int64]
    """[num_src] int64, the stop at which it meets each source, counted from the rank where it begins."""
    first: NDArray[np.int64]
    """[n] int64, the stop from which each of the rows that it carries is not zero any more."""

    __repr__ = one_line

    def visits(self, stop: int) -> bool:
        """Whether any source is there."""
        return bool((self.stops == stop).any())


class TouringModels:
    """Gives a model its input rows, or what they aggregate to, from a tour of the ranks that have them.

    At each stop the rows that are there are added to what the model carries, and in the end it is back where
    it began. Every rank can sample every model's mini-batch, so that edges need not travel. The bytes of the
    models travel, and not their values: when the rows of a step are fetched, its weights are not there yet,
    and then they are equal at every rank.

    Parameters
    ----------
    own
        The rows of this rank.
    aggregation
        What the first layer does to rows before any weight, a sum over edges; None where it reads the rows.
    model_bytes
        The bytes of a model with the sums of its gradients.
    sampled
        Samples the mini-batches of all ranks.
    group
        The ranks, for the thread that loads.
    """

    matrix = None

    def __init__(
        self,
        own: OwnRows,
        aggregation: Aggregation | None,
        model_bytes: int,
        sampled: EveryRank,
        group: RankGroup,
    ) -> None:
        self.width = own.rows.width
        self.value_bytes = own.rows.value_bytes
        self.nbytes = own.rows.nbytes
        self._own = own
        self._aggregation = aggregation
        self._carried = self.width if aggregation is None else aggregation.width(self.width)
        self._model_bytes = model_bytes
        self._sampled = sampled
        self._group = group
        self._kept: dict[int, NDArray[np.float32]] = {}

    def fetch(self, step: int, ids: Sequence[NDArray[Any]], workers: Workers) -> None:
        if step in self._kept:
            return
        batches = self._sampled.batches(step, workers)
        values = self._toured({rank: self._tour(rank, batch) for rank, batch in batches.items()}, workers)
        for batch in batches.values():
            batch.release()
        if ids:
            self._kept[step] = values

    def release(self, step: int) -> None:
        self._kept.pop(step, None)

    def end(self) -> None:
        self._group.give_up(ChannelClosed("no more rows are fetched"))

    def rows(self, ids: NDArray[Any], out: NDArray[np.float32], workers: Workers) -> None:
        raise TypeError("with strategy naive-migration, input rows are there for whole mini-batches only")

    def inputs(self, batch: MiniBatch, workers: Workers) -> Aggregated | torch.Tensor:
        values = torch.from_numpy(self._kept[batch.step])
        return values if self._aggregation is None else Aggregated(values)

    def _tour(self, model: int, batch: MiniBatch) -> Tour:
        block, homes = batch.blocks[0], self._own.homes
        assert block.sources is not None
        stops = (homes[block.sources].astype(np.int64) - model) % self._group.size
        if self._aggregation is None:
            return Tour(block, stops, stops)
        return Tour(block, stops, first_visits(block, homes, model, self._group.size))

    def _toured(self, tours: Mapping[int, Tour], workers: Workers) -> NDArray[np.float32]:
        """What this rank's model has when it is back."""
        rank, size = self._group.rank, self._group.size
        there = {model: model for model in tours}
        here = {}
        if rank in tours:
            here[rank] = np.zeros((len(tours[rank].first), self._carried), np.float32)
            self._add(tours[rank], 0, here[rank], workers)
        for stop in range(1, size):
            moves = {model: (model + stop) % size for model, tour in tours.items() if tour.visits(stop)}
            for model in self._move(moves, there, stop, tours, here):
                self._add(tours[model], stop, here[model], workers)
        self._move({model: model for model in tours if there[model] != model}, there, size, tours, here)
        return here.get(rank, np.empty((0, self._carried), np.float32))

    def _move(
        self,
        moves: Mapping[int, int],
        there: dict[int, int],
        stop: int,
        tours: Mapping[int, Tour],
        here: dict[int, NDArray[np.float32]],
    ) -> list[int]:
        """Send models to other ranks with what they carry; gives those that have come here."""
        rank, size = self._group.rank, self._group.size
        leaving = sorted((to, model) for model, to in moves.items() if there[model] == rank)
        coming = sorted((there[model], model) for model, to in moves.items() if to == rank)
        there.update(moves)
        if not moves:
            return []
        met = {model: tours[model].first < stop for _, model in (*leaving, *coming)}
        given_counts, taken_counts = [0] * size, [0] * size
        models_to, models_from = [0] * size, [0] * size
        for to, model in leaving:
            given_counts[to] += int(met[model].sum())
            models_to[to] += 1
        for source, model in coming:
            taken_counts[source] += int(met[model].sum())
            models_from[source] += 1
        none = np.empty((0, self._carried), np.float32)
        given = np.concatenate([none, *(here.pop(model)[met[model]] for _, model in leaving)])
        taken = np.empty((sum(taken_counts), self._carried), np.float32)
        self._group.exchange(
            torch.from_numpy(given), given_counts, torch.from_numpy(taken), taken_counts, "partials"
        )
        sent = torch.zeros(len(leaving), self._model_bytes, dtype=torch.uint8)
        arrived = torch.empty(len(coming), self._model_bytes, dtype=torch.uint8)
        self._group.exchange(sent, models_to, arrived, models_from, "models")
        start = 0
        for _, model in coming:
            rows = met[model]
            here[model] = np.zeros((len(rows), self._carried), np.float32)
            here[model][rows] = taken[start : start + rows.sum()]
            start += int(rows.sum())
        return [model for _, model in coming]

    def _add(self, tour: Tour, stop: int, values: NDArray[np.float32], workers: Workers) -> None:
        """Add the rows of this rank to what a model carries."""
        block, is_here = tour.block, tour.stops == stop
        assert block.sources is not None
        places = np.flatnonzero(is_here)
        rows = np.empty((len(places), self.width), np.float32)
        self._own.rows.rows(self._own.places[block.sources[places]], rows, workers)
        what = self._aggregation
        if what is None:
            values[places] = rows
            return
        factors = scales(what, block, np.dtype(np.float32))
        start, own_start = what.columns(self.width)
        sums = np.empty((block.num_dst, self.width), np.float32)
        source = None if factors.source is None else factors.source[places]
        edge = None if factors.edge is None else factors.edge[is_here[block.columns]]
        aggregate_into(
            Aggregation(what.reduce, "none", weighted=what.weighted),
            _edges_from(block, is_here, len(places)),
            rows,
            sums,
            replace(factors, source=source, own=None, edge=edge),
            workers,
        )
        values[:, start : start + self.width] += sums
        if what.self_path == "none":
            return
        own = places[: np.searchsorted(places, block.num_dst)]
        scaled = rows[: len(own)] if factors.own is None else rows[: len(own)] * factors.own[own, None]
        at = start if own_start is None else own_start
        values[own, at : at + self.width] += scaled


def _edges_from(block: Block, is_here: NDArray[np.bool_], num_src: int) -> Block:
    """The edges of a block from some sources, which are numbered anew."""
    kept = is_here[block.columns]
    ends = np.concatenate([[0], np.cumsum(kept)])
    numbers = np.cumsum(is_here) - 1
    return replace(
        block,
        indptr=ends[block.indptr].astype(block.indptr.dtype),
        columns=numbers[block.columns[kept]].astype(block.columns.dtype),
        num_src=num_src,
        weights=None if block.weights is None else block.weights[kept],
        edge_weights=None if block.edge_weights is None else block.edge_weights[kept],
        _transposed=None,
    ).trusted()
