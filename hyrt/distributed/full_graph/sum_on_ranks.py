"""Distributed SpMM: weighted sums of source rows, which overlap the halo exchange with local products."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.distributed.full_graph.spread_edges import GRADIENTS, ROWS, SpreadEdges
from hyrt.fullgraph.destinations import Destinations, GatheringPass
from hyrt.fullgraph.gathering import Arrays, LinearGathering, scale_rows
from hyrt.machine.workers import Workers
from hyrt.nn.aggregation import Aggregation
from hyrt.nn.whole_graph.spmm import spmm_into

Array = NDArray[Any]


class SumOnRanks:
    """Sum, mean and GCN normalization over the edges of all ranks; a `hyrt.fullgraph.gathering.Gathering`.

    A row's sum is computed in a fixed order: the local block, then the rows of each exchange round. In the
    backward pass, each rank computes the contributions of its rows to the gradients of remote rows and sends
    them
    to their owners. Directed graphs therefore need no special case.

    Parameters
    ----------
    spread
        The edges.
    what
        The aggregation, which determines the factors.
    dtype
        Dtype of the messages.
    """

    reads_messages_back = False
    parameters: tuple[torch.nn.Parameter, ...] = ()

    def __init__(self, spread: SpreadEdges, what: Aggregation, dtype: np.dtype[Any]) -> None:
        self._spread = spread
        edges = spread.edges
        factors = LinearGathering.of(what, edges.topology, dtype)
        self._row_scale = factors.row_scale
        self._source_scale = factors.source_scale
        self._self_scale = None if factors.self_scale is None else factors.self_scale[: edges.num_own]
        self._is_weighted = factors.weights is not None
        self._waves = [slice(*ends) for ends in pairwise(edges.wave_starts)]

    def forward(self, messages: Arrays, out: Array, over: GatheringPass) -> Arrays:
        spread, edges = self._spread, self._spread.edges
        num, rows = edges.num_own, spread.with_room(messages[0])
        source, self_scale, workers = self._source_scale, self._self_scale, over.workers
        if over.overwrite and source is not None:
            # Scale before the exchange, so that receivers do not scale again.
            self_scale = scale_rows(rows[:num], source[:num], self_scale, workers)
            source = None
        clock = spread.times.product()
        arrivals = spread.exchange.begin(rows, ROWS)
        chosen = None if over.at is None else over.at.vertices
        weights = edges.block_weights if self._is_weighted else (None,) * len(edges.blocks)
        if edges.grid.multiplies_own:
            spmm_into(
                *edges.blocks[0], rows[:num], out, row_scale=self._row_scale,
                source_scale=None if source is None else source[:num], self_scale=self_scale,
                weights=weights[0], rows=chosen, workers=workers,
            )  # fmt: skip
        else:
            out.fill(0)
        remote_blocks = zip(edges.blocks[1:], weights[1:], self._waves, arrivals, strict=True)
        for block, edge_weights, wave, arrival in remote_blocks:
            clock.wait(arrival.wait)
            if len(block[1]):
                spmm_into(
                    *block, rows[wave], out, row_scale=self._row_scale,
                    source_scale=None if source is None else source[wave], weights=edge_weights, rows=chosen,
                    accumulate=True, workers=workers,
                )  # fmt: skip
        clock.end(arrivals)
        spread.add_columns(out)
        return ()

    def backward(
        self, messages: Arrays, kept: Arrays, grad: Array, out: Arrays, over: GatheringPass
    ) -> Sequence[torch.Tensor]:
        spread, edges = self._spread, self._spread.edges
        num, self_scale, chosen, workers = edges.num_own, self._self_scale, over.at, over.workers
        if self._row_scale is not None:
            row_scale = self._row_scale[:num] if chosen is None else self._row_scale[chosen.vertices]
            if self_scale is not None and chosen is not None:
                self_scale = self_scale[chosen.vertices]
            self_scale = scale_rows(grad, row_scale, self_scale, workers)
        elif self_scale is not None and chosen is not None:
            self_scale = self_scale[chosen.vertices]
        if chosen is not None and self_scale is not None:
            full_scale = np.zeros(num, self_scale.dtype)
            full_scale[chosen.vertices] = self_scale
            self_scale = full_scale
        clock = spread.times.product()
        pending = spread.exchange.begin_back(out[0], GRADIENTS)
        for number, wave in enumerate(self._waves):
            self._multiply_transposed(wave, grad, out[0][wave], chosen, None, workers, accumulate=False)
            pending.send(number)
        replicated = spread.replicas is not None
        local_gradients = np.empty_like(out[0][:num]) if replicated and over.accumulate else out[0][:num]
        if edges.grid.multiplies_own:
            accumulate = over.accumulate and not replicated
            self._multiply_transposed(
                slice(0, num), grad, local_gradients, chosen, self_scale, workers, accumulate=accumulate
            )
        clock.wait(lambda: pending.add(local_gradients))
        clock.end([pending])
        total = spread.from_multiplying(local_gradients)
        if replicated and over.accumulate:
            np.add(out[0][:num], total, out=out[0][:num])
        elif total is not local_gradients:
            local_gradients[:] = total
        return ()

    def _multiply_transposed(
        self,
        rows: slice,
        grad: Array,
        out: Array,
        chosen: Destinations | None,
        self_scale: Array | None,
        workers: Workers,
        *,
        accumulate: bool,
    ) -> None:
        """Compute the contributions of local rows to the gradients of consecutive sources."""
        has_transpose = chosen is not None and chosen.turned is not None and not self._is_weighted
        topology = self._spread.edges.topology
        if has_transpose:
            assert chosen is not None
            assert chosen.turned is not None
            indptr, indices = chosen.turned
            # Columns index the chosen destinations, and local rows index vertices.
            positions = None
        else:
            transposed = topology.transposed
            indptr, indices = transposed.indptr, transposed.indices
            positions = None if chosen is None else chosen.positions
        spmm_into(
            indptr[rows.start : rows.stop + 1], indices, grad, out,
            row_scale=None if self._source_scale is None else self._source_scale[rows],
            self_scale=None if has_transpose else self_scale,
            weights=topology.edge_weights if self._is_weighted else None,
            edge_ids=topology.transposed_edges if self._is_weighted else None,
            positions=positions, accumulate=accumulate, workers=workers,
        )  # fmt: skip
        if has_transpose and self_scale is not None:
            assert chosen is not None
            out[chosen.vertices] += self_scale[chosen.vertices, None] * grad
