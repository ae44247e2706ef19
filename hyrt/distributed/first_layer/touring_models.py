"""Input rows of mini-batches whose models migrate to the ranks that own the rows (HopGNN section 3.2)."""

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
    """Migration route of one model in a step, with the stops at which it reaches its input rows."""

    block: Block
    """Input block of the model's mini-batch."""
    stops: NDArray[np.int64]
    """[num_src] int64, the stop that owns each source, counted from the rank where the model starts."""
    first: NDArray[np.int64]
    """[n] int64, the first stop after which each row that the model carries is nonzero."""

    __repr__ = one_line

    def visits(self, stop: int) -> bool:
        """Return whether a stop owns any of the sources."""
        return bool((self.stops == stop).any())


class TouringModels:
    """Collects a model's input rows, or their aggregates, along a route over the ranks that own the rows.

    At each stop the local rows are added to the values that the model carries; finally the model returns to
    its
    first rank. Every rank can sample every model's mini-batch, so edges are not sent. Models are sent as
    placeholder bytes, without their weights: when the rows of a step are fetched, its weights do not exist
    yet,
    and later they are equal at every rank.

    Parameters
    ----------
    own
        Rows of this rank.
    aggregation
        Sum over edges that the first layer applies to rows before any weight; None if it reads the rows.
    model_bytes
        Size of a model with its gradient sums, in bytes.
    sampled
        Samples the mini-batches of all ranks.
    group
        The ranks, for the load stage.
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
        self._local = own
        self._aggregation = aggregation
        self._carried_width = self.width if aggregation is None else aggregation.width(self.width)
        self._model_bytes = model_bytes
        self._batches = sampled
        self._group = group
        self._values: dict[int, NDArray[np.float32]] = {}

    def fetch(self, step: int, ids: Sequence[NDArray[Any]], workers: Workers) -> None:
        if step in self._values:
            return
        batches = self._batches.batches(step, workers)
        values = self._migrate({rank: self._route(rank, batch) for rank, batch in batches.items()}, workers)
        for batch in batches.values():
            batch.release()
        if ids:
            self._values[step] = values

    def release(self, step: int) -> None:
        self._values.pop(step, None)

    def end(self) -> None:
        self._group.give_up(ChannelClosed("no more rows are fetched"))

    def rows(self, ids: NDArray[Any], out: NDArray[np.float32], workers: Workers) -> None:
        raise TypeError("with strategy naive-migration, input rows are available for whole mini-batches only")

    def inputs(self, batch: MiniBatch, workers: Workers) -> Aggregated | torch.Tensor:
        values = torch.from_numpy(self._values[batch.step])
        return values if self._aggregation is None else Aggregated(values)

    def _route(self, model: int, batch: MiniBatch) -> Tour:
        block, owners = batch.blocks[0], self._local.homes
        assert block.sources is not None
        stops = (owners[block.sources].astype(np.int64) - model) % self._group.size
        if self._aggregation is None:
            return Tour(block, stops, stops)
        return Tour(block, stops, first_visits(block, owners, model, self._group.size))

    def _migrate(self, routes: Mapping[int, Tour], workers: Workers) -> NDArray[np.float32]:
        """Migrate all models; return the values of this rank's model after its return."""
        rank, size = self._group.rank, self._group.size
        locations = {model: model for model in routes}
        carried = {}
        if rank in routes:
            carried[rank] = np.zeros((len(routes[rank].first), self._carried_width), np.float32)
            self._add(routes[rank], 0, carried[rank], workers)
        for stop in range(1, size):
            moves = {model: (model + stop) % size for model, route in routes.items() if route.visits(stop)}
            for model in self._move(moves, locations, stop, routes, carried):
                self._add(routes[model], stop, carried[model], workers)
        self._move(
            {model: model for model in routes if locations[model] != model}, locations, size, routes, carried
        )
        return carried.get(rank, np.empty((0, self._carried_width), np.float32))

    def _move(
        self,
        moves: Mapping[int, int],
        locations: dict[int, int],
        stop: int,
        routes: Mapping[int, Tour],
        carried: dict[int, NDArray[np.float32]],
    ) -> list[int]:
        """Send models and their carried values to other ranks; return the models that arrive here."""
        rank, size = self._group.rank, self._group.size
        leaving = sorted((target, model) for model, target in moves.items() if locations[model] == rank)
        arriving = sorted((locations[model], model) for model, target in moves.items() if target == rank)
        locations.update(moves)
        if not moves:
            return []
        nonzero = {model: routes[model].first < stop for _, model in (*leaving, *arriving)}
        send_counts, receive_counts = [0] * size, [0] * size
        models_to, models_from = [0] * size, [0] * size
        for target, model in leaving:
            send_counts[target] += int(nonzero[model].sum())
            models_to[target] += 1
        for source, model in arriving:
            receive_counts[source] += int(nonzero[model].sum())
            models_from[source] += 1
        no_rows = np.empty((0, self._carried_width), np.float32)
        sent_rows = np.concatenate([no_rows, *(carried.pop(model)[nonzero[model]] for _, model in leaving)])
        received_rows = np.empty((sum(receive_counts), self._carried_width), np.float32)
        self._group.exchange(
            torch.from_numpy(sent_rows),
            send_counts,
            torch.from_numpy(received_rows),
            receive_counts,
            "partials",
        )
        sent_models = torch.zeros(len(leaving), self._model_bytes, dtype=torch.uint8)
        received_models = torch.empty(len(arriving), self._model_bytes, dtype=torch.uint8)
        self._group.exchange(sent_models, models_to, received_models, models_from, "models")
        start = 0
        for _, model in arriving:
            rows = nonzero[model]
            carried[model] = np.zeros((len(rows), self._carried_width), np.float32)
            carried[model][rows] = received_rows[start : start + rows.sum()]
            start += int(rows.sum())
        return [model for _, model in arriving]

    def _add(self, route: Tour, stop: int, values: NDArray[np.float32], workers: Workers) -> None:
        """Add the rows of this rank to the values that a model carries."""
        block, is_here = route.block, route.stops == stop
        assert block.sources is not None
        positions = np.flatnonzero(is_here)
        rows = np.empty((len(positions), self.width), np.float32)
        self._local.rows.rows(self._local.places[block.sources[positions]], rows, workers)
        aggregation = self._aggregation
        if aggregation is None:
            values[positions] = rows
            return
        factors = scales(aggregation, block, np.dtype(np.float32))
        start, self_start = aggregation.columns(self.width)
        sums = np.empty((block.num_dst, self.width), np.float32)
        source = None if factors.source is None else factors.source[positions]
        edge = None if factors.edge is None else factors.edge[is_here[block.columns]]
        aggregate_into(
            Aggregation(aggregation.reduce, "none", weighted=aggregation.weighted),
            _edges_from(block, is_here, len(positions)),
            rows,
            sums,
            replace(factors, source=source, own=None, edge=edge),
            workers,
        )
        values[:, start : start + self.width] += sums
        if aggregation.self_path == "none":
            return
        self_positions = positions[: np.searchsorted(positions, block.num_dst)]
        scaled = (
            rows[: len(self_positions)]
            if factors.own is None
            else rows[: len(self_positions)] * factors.own[self_positions, None]
        )
        column = start if self_start is None else self_start
        values[self_positions, column : column + self.width] += scaled


def _edges_from(block: Block, is_here: NDArray[np.bool_], num_src: int) -> Block:
    """Select the edges of a block from some sources, which are renumbered."""
    keep = is_here[block.columns]
    ends = np.concatenate([[0], np.cumsum(keep)])
    numbers = np.cumsum(is_here) - 1
    return replace(
        block,
        indptr=ends[block.indptr].astype(block.indptr.dtype),
        columns=numbers[block.columns[keep]].astype(block.columns.dtype),
        num_src=num_src,
        weights=None if block.weights is None else block.weights[keep],
        edge_weights=None if block.edge_weights is None else block.edge_weights[keep],
        _transposed=None,
    ).trusted()
