"""Migration of models between ranks: gradient sums between time steps (HopGNN section 5.1), and models that
collect input rows at their owners (section 3.2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.distributed.local_rows import LocalRows
from hyrt.distributed.process_group import RankGroup
from hyrt.distributed.sampling import AllRankBatches
from hyrt.distributed.strategies.naive_migration import first_visits
from hyrt.distributed.strategies.strategy import Ranks
from hyrt.formatting import short_repr
from hyrt.nn.architecture import Aggregation
from hyrt.nn.layer import AggregatedFeatures
from hyrt.nn.operators.aggregate import aggregate_into, compute_scales
from hyrt.pipeline.synchronize import StepTotals
from hyrt.runtime.stage_threads import ChannelClosedError
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block
from hyrt.sampling.minibatch import MiniBatch


class ModelMigration:
    """Exchange of the model at this rank for another one between two time steps (HopGNN section 5.1).

    As in the paper, weights are sent as well. They have the same bits at every rank, so received weights are
    ignored. `group` belongs to the thread that adds gradients. `moves_of` returns the rank of each model in a
    completed time step of a step, and in the next time step.
    """

    def __init__(
        self,
        group: RankGroup,
        parameters: Sequence[torch.Tensor],
        moves_of: Callable[[int, int], tuple[Ranks, Ranks]],
    ) -> None:
        self._group = group
        self._parameters = list(parameters)
        self._move = moves_of

    def __call__(self, step: int, time: int, totals: StepTotals) -> StepTotals:
        """Return the gradient sums of the received model. Losses and counts stay at their rank."""
        rank, size = self._group.rank, self._group.size
        now, then = self._move(step, time)
        target, source = int(then[np.flatnonzero(now == rank)[0]]), int(now[np.flatnonzero(then == rank)[0]])
        gradients = totals.gradients or [torch.zeros_like(parameter) for parameter in self._parameters]
        sent = torch.cat([_tensor_bytes(tensor) for tensor in (*self._parameters, *gradients)])[None]
        received = torch.empty_like(sent)
        send_counts, receive_counts = [0] * size, [0] * size
        send_counts[target] = receive_counts[source] = 1
        self._group.all_to_all(sent, send_counts, received, receive_counts, "models")
        return replace(totals, gradients=self._gradients(received[0]))

    def _gradients(self, model: torch.Tensor) -> list[torch.Tensor]:
        sizes = [parameter.nbytes for parameter in self._parameters]
        parts = torch.split(model[sum(sizes) :], sizes)
        return [
            part.clone().view(parameter.dtype).view_as(parameter)
            for part, parameter in zip(parts, self._parameters, strict=True)
        ]


def _tensor_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class MigrationRoute:
    """Route of one model in a step, with the stops at which it collects its input rows."""

    block: Block
    """Input block of the model's mini-batch."""
    stops: NDArray[np.int64]
    """Index of the stop that owns each source, [num_src] int64; stop 0 is the rank where the model starts."""
    first: NDArray[np.int64]
    """Index of the first stop after which each row that the model carries is nonzero, int64 [n]."""

    __repr__ = short_repr

    def visits(self, stop: int) -> bool:
        """Return whether a stop owns any of the sources."""
        return bool((self.stops == stop).any())


class MigratingModelInputs:
    """Collector of a model's input rows or their aggregates along a route over the owner ranks.

    At each stop, the local rows are added to the values that the model carries. At the end, the model returns
    to its first rank. Every rank can sample every model's mini-batch, so edges are not sent. Models are sent
    as `model_bytes` placeholder bytes instead of weights: when the rows of a step are fetched, its weights do
    not exist yet, and later they are equal at every rank.

    `aggregation` is the sum over edges that the first layer applies to rows before any weight; None if it
    reads the rows. `batches` samples the mini-batches of all ranks. `group` belongs to the load stage.
    """

    matrix = None

    def __init__(
        self,
        local_rows: LocalRows,
        aggregation: Aggregation | None,
        model_bytes: int,
        batches: AllRankBatches,
        group: RankGroup,
    ) -> None:
        self.width = local_rows.rows.width
        self.value_bytes = local_rows.rows.value_bytes
        self.nbytes = local_rows.rows.nbytes
        self._local = local_rows
        self._aggregation = aggregation
        self._carried_width = self.width if aggregation is None else aggregation.width(self.width)
        self._model_bytes = model_bytes
        self._batches = batches
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
        self._group.abort(ChannelClosedError("no more rows are fetched"))

    def rows(self, ids: NDArray[Any], out: NDArray[np.float32], workers: Workers) -> None:
        raise TypeError("with strategy naive-migration, input rows are available for whole mini-batches only")

    def inputs(self, batch: MiniBatch, workers: Workers) -> AggregatedFeatures | torch.Tensor:
        values = torch.from_numpy(self._values[batch.step])
        return values if self._aggregation is None else AggregatedFeatures(values)

    def _route(self, model: int, batch: MiniBatch) -> MigrationRoute:
        block, owners = batch.blocks[0], self._local.owners
        assert block.sources is not None
        stops = (owners[block.sources].astype(np.int64) - model) % self._group.size
        if self._aggregation is None:
            return MigrationRoute(block, stops, stops)
        return MigrationRoute(block, stops, first_visits(block, owners, model, self._group.size))

    def _migrate(self, routes: Mapping[int, MigrationRoute], workers: Workers) -> NDArray[np.float32]:
        """Migrate all models; return the values that this rank's model has collected."""
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
        routes: Mapping[int, MigrationRoute],
        carried: dict[int, NDArray[np.float32]],
    ) -> list[int]:
        """Send models and the values that they carry to other ranks; return the received models."""
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
        self._group.all_to_all(
            torch.from_numpy(sent_rows),
            send_counts,
            torch.from_numpy(received_rows),
            receive_counts,
            "partials",
        )
        sent_models = torch.zeros(len(leaving), self._model_bytes, dtype=torch.uint8)
        received_models = torch.empty(len(arriving), self._model_bytes, dtype=torch.uint8)
        self._group.all_to_all(sent_models, models_to, received_models, models_from, "models")
        start = 0
        for _, model in arriving:
            rows = nonzero[model]
            carried[model] = np.zeros((len(rows), self._carried_width), np.float32)
            carried[model][rows] = received_rows[start : start + rows.sum()]
            start += int(rows.sum())
        return [model for _, model in arriving]

    def _add(self, route: MigrationRoute, stop: int, values: NDArray[np.float32], workers: Workers) -> None:
        """Add the rows of this rank to the values that a model carries."""
        block, is_here = route.block, route.stops == stop
        assert block.sources is not None
        positions = np.flatnonzero(is_here)
        rows = np.empty((len(positions), self.width), np.float32)
        self._local.rows.rows(self._local.local_ids[block.sources[positions]], rows, workers)
        aggregation = self._aggregation
        if aggregation is None:
            values[positions] = rows
            return
        factors = compute_scales(aggregation, block, np.dtype(np.float32))
        start, self_start = aggregation.columns(self.width)
        sums = np.empty((block.num_dst, self.width), np.float32)
        source = None if factors.source is None else factors.source[positions]
        edge = None if factors.edge is None else factors.edge[is_here[block.columns]]
        aggregate_into(
            Aggregation(aggregation.reduce, "none", weighted=aggregation.weighted),
            _edges_from(block, is_here, len(positions)),
            rows,
            sums,
            replace(factors, source=source, self_loop=None, edge=edge),
            workers,
        )
        values[:, start : start + self.width] += sums
        if aggregation.self_path == "none":
            return
        self_positions = positions[: np.searchsorted(positions, block.num_dst)]
        scaled = (
            rows[: len(self_positions)]
            if factors.self_loop is None
            else rows[: len(self_positions)] * factors.self_loop[self_positions, None]
        )
        column = start if self_start is None else self_start
        values[self_positions, column : column + self.width] += scaled


def _edges_from(block: Block, is_here: NDArray[np.bool_], num_src: int) -> Block:
    """Return the edges of a block whose sources are marked in `is_here`; these sources are renumbered."""
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
