"""Distributed SpMM: weighted sums of source rows, own ones multiplied while those of other ranks travel."""

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
    """Sum, mean and GCN's normalisation over the edges of all ranks; a `hyrt.fullgraph.gathering.Gathering`.

    A row's sum is added up in a fixed order: own block, then the rows of one exchange after the other.
    Backward, each rank computes what its rows add to the gradients of remote ones, and sends that where they
    are. So a directed graph needs nothing else than a symmetric one.

    Parameters
    ----------
    spread
        The edges.
    what
        The factors.
    dtype
        The messages' numbers.
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
        source, own, workers = self._source_scale, self._self_scale, over.workers
        if over.overwrite and source is not None:
            # Before they travel: who gets them does not scale them again.
            own = scale_rows(rows[:num], source[:num], own, workers)
            source = None
        clock = spread.times.product()
        arrivals = spread.exchange.begin(rows, ROWS)
        chosen = None if over.at is None else over.at.vertices
        weights = edges.block_weights if self._is_weighted else (None,) * len(edges.blocks)
        if edges.grid.multiplies_own:
            spmm_into(
                *edges.blocks[0], rows[:num], out, row_scale=self._row_scale,
                source_scale=None if source is None else source[:num], self_scale=own, weights=weights[0],
                rows=chosen, workers=workers,
            )  # fmt: skip
        else:
            out.fill(0)
        others = zip(edges.blocks[1:], weights[1:], self._waves, arrivals, strict=True)
        for block, along, wave, arrival in others:
            clock.wait(arrival.wait)
            if len(block[1]):
                spmm_into(
                    *block, rows[wave], out, row_scale=self._row_scale,
                    source_scale=None if source is None else source[wave], weights=along, rows=chosen,
                    accumulate=True, workers=workers,
                )  # fmt: skip
        clock.end(arrivals)
        spread.add_columns(out)
        return ()

    def backward(
        self, messages: Arrays, kept: Arrays, grad: Array, out: Arrays, over: GatheringPass
    ) -> Sequence[torch.Tensor]:
        spread, edges = self._spread, self._spread.edges
        num, own, at, workers = edges.num_own, self._self_scale, over.at, over.workers
        if self._row_scale is not None:
            row = self._row_scale[:num] if at is None else self._row_scale[at.vertices]
            if own is not None and at is not None:
                own = own[at.vertices]
            own = scale_rows(grad, row, own, workers)
        elif own is not None and at is not None:
            own = own[at.vertices]
        if at is not None and own is not None:
            of_all = np.zeros(num, own.dtype)
            of_all[at.vertices] = own
            own = of_all
        clock = spread.times.product()
        back = spread.exchange.begin_back(out[0], GRADIENTS)
        for number, wave in enumerate(self._waves):
            self._turned(wave, grad, out[0][wave], at, None, workers, accumulate=False)
            back.send(number)
        replicated = spread.replicas is not None
        mine = np.empty_like(out[0][:num]) if replicated and over.accumulate else out[0][:num]
        if edges.grid.multiplies_own:
            onto = over.accumulate and not replicated
            self._turned(slice(0, num), grad, mine, at, own, workers, accumulate=onto)
        clock.wait(lambda: back.add(mine))
        clock.end([back])
        found = spread.from_multiplying(mine)
        if replicated and over.accumulate:
            np.add(out[0][:num], found, out=out[0][:num])
        elif found is not mine:
            mine[:] = found
        return ()

    def _turned(
        self,
        rows: slice,
        grad: Array,
        out: Array,
        at: Destinations | None,
        own: Array | None,
        workers: Workers,
        *,
        accumulate: bool,
    ) -> None:
        """What own rows add to the gradients of consecutive sources."""
        given = at is not None and at.turned is not None and not self._is_weighted
        topology = self._spread.edges.topology
        if given:
            assert at is not None
            assert at.turned is not None
            indptr, indices = at.turned
            # Columns are places among the chosen ones, and own rows those of vertices.
            positions = None
        else:
            turned = topology.transposed
            indptr, indices = turned.indptr, turned.indices
            positions = None if at is None else at.positions
        spmm_into(
            indptr[rows.start : rows.stop + 1], indices, grad, out,
            row_scale=None if self._source_scale is None else self._source_scale[rows],
            self_scale=None if given else own,
            weights=topology.edge_weights if self._is_weighted else None,
            edge_ids=topology.transposed_edges if self._is_weighted else None,
            positions=positions, accumulate=accumulate, workers=workers,
        )  # fmt: skip
        if given and own is not None:
            assert at is not None
            out[at.vertices] += own[at.vertices, None] * grad
