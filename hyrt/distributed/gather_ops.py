"""Gather operations over the edges of all ranks (SpMM and general), and the widths of exchanged rows."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.distributed.halo_exchange import PendingRows
from hyrt.distributed.local_edges import GRADIENTS, ROWS, ChunkHaloExchange, LocalEdges
from hyrt.errors import ConfigError
from hyrt.formatting import short_repr
from hyrt.fullgraph.gather_ops import (
    Arrays,
    FusedBackward,
    GatherOp,
    GatherSpec,
    LinearGatherOp,
    build_gather_op,
    scale_rows,
)
from hyrt.fullgraph.plan import DestinationSubset, GatherContext, is_decomposable, plan_full_graph
from hyrt.nn.architecture import Aggregation
from hyrt.nn.full_graph.aggregate import spmm_into
from hyrt.nn.layer import AttentionSum
from hyrt.nn.message_passing.gather import SagaGather
from hyrt.nn.model import GNN
from hyrt.runtime.workers import Workers

Array = NDArray[Any]


class DistributedSpMM:
    """`hyrt.fullgraph.gather_ops.GatherOp` for sum, mean and GCN normalization over the edges of all ranks.

    The sum of a row is computed in a fixed order: the local block first, then the rows of each exchange
    round. In the backward pass, each rank computes the contributions of its rows to the gradients of remote
    rows and sends them to their owners, so directed graphs need no special case. `aggregation` determines the
    scale factors, and `dtype` is the dtype of the messages.
    """

    reads_messages_in_backward = False
    parameters: tuple[torch.nn.Parameter, ...] = ()

    def __init__(self, local_edges: LocalEdges, aggregation: Aggregation, dtype: np.dtype[Any]) -> None:
        self._spread = local_edges
        edges = local_edges.edges
        factors = LinearGatherOp.from_aggregation(aggregation, edges.topology, dtype)
        self._row_scale = factors.row_scale
        self._source_scale = factors.source_scale
        self._self_scale = None if factors.self_scale is None else factors.self_scale[: edges.num_local]
        self._is_weighted = factors.weights is not None
        self._rounds = [slice(*ends) for ends in pairwise(edges.round_starts)]

    def forward(self, messages: Arrays, out: Array, context: GatherContext) -> Arrays:
        spread, edges = self._spread, self._spread.edges
        num, rows = edges.num_local, spread.with_halo(messages[0])
        source, self_scale, workers = self._source_scale, self._self_scale, context.workers
        if context.overwrite and source is not None:
            # Scale before the exchange, so that the receivers do not have to.
            self_scale = scale_rows(rows[:num], source[:num], self_scale, workers)
            source = None
        clock = spread.timings.start_product()
        arrivals = spread.exchange.begin(rows, ROWS)
        chosen = None if context.destinations is None else context.destinations.vertices
        weights = edges.block_weights if self._is_weighted else (None,) * len(edges.blocks)
        if edges.grid.multiplies_local:
            spmm_into(
                *edges.blocks[0], rows[:num], out, row_scale=self._row_scale,
                source_scale=None if source is None else source[:num], self_scale=self_scale,
                weights=weights[0], rows=chosen, workers=workers,
            )  # fmt: skip
        else:
            out.fill(0)
        remote_blocks = zip(edges.blocks[1:], weights[1:], self._rounds, arrivals, strict=True)
        for block, edge_weights, remote, arrival in remote_blocks:
            clock.wait(arrival.wait)
            if len(block[1]):
                spmm_into(
                    *block, rows[remote], out, row_scale=self._row_scale,
                    source_scale=None if source is None else source[remote], weights=edge_weights,
                    rows=chosen, accumulate=True, workers=workers,
                )  # fmt: skip
        clock.end(arrivals)
        spread.all_reduce_replicas(out)
        return ()

    def backward(
        self, messages: Arrays, saved: Arrays, grad: Array, out: Arrays, context: GatherContext
    ) -> Sequence[torch.Tensor]:
        spread, edges = self._spread, self._spread.edges
        num, self_scale, chosen, workers = (
            edges.num_local,
            self._self_scale,
            context.destinations,
            context.workers,
        )
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
        clock = spread.timings.start_product()
        pending = spread.exchange.begin_backward(out[0], GRADIENTS)
        for number, remote in enumerate(self._rounds):
            self._multiply_transposed(remote, grad, out[0][remote], chosen, None, workers, accumulate=False)
            pending.send(number)
        replicated = spread.replicas is not None
        local_gradients = np.empty_like(out[0][:num]) if replicated and context.accumulate else out[0][:num]
        if edges.grid.multiplies_local:
            accumulate = context.accumulate and not replicated
            self._multiply_transposed(
                slice(0, num), grad, local_gradients, chosen, self_scale, workers, accumulate=accumulate
            )
        clock.wait(lambda: pending.add(local_gradients))
        clock.end([pending])
        total = spread.broadcast_gradients(local_gradients)
        if replicated and context.accumulate:
            np.add(out[0][:num], total, out=out[0][:num])
        elif total is not local_gradients:
            local_gradients[:] = total
        return ()

    def _multiply_transposed(
        self,
        rows: slice,
        grad: Array,
        out: Array,
        chosen: DestinationSubset | None,
        self_scale: Array | None,
        workers: Workers,
        *,
        accumulate: bool,
    ) -> None:
        """Compute the contributions of local rows to the gradients of consecutive sources."""
        has_transpose = chosen is not None and chosen.transposed is not None and not self._is_weighted
        topology = self._spread.edges.topology
        if has_transpose:
            assert chosen is not None
            assert chosen.transposed is not None
            indptr, indices = chosen.transposed
            # Column indices refer to the chosen destinations, but local rows to vertices.
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


class DistributedGather:
    """`hyrt.fullgraph.gather_ops.GatherOp` that runs any gather operation on the edges of all ranks.

    The halo rows are exchanged first; then the rank gathers over its local edges with `inner`. In the
    backward pass, the gradients of remote rows are sent to their owners. If ranks share a block (1.5D), the
    operation must be a sum, and each rank adds the contributions of its edges. `reads_sources` has a flag per
    message: whether edges read it at their source.
    """

    def __init__(self, local_edges: LocalEdges, inner: GatherOp, reads_sources: Sequence[bool]) -> None:
        self._spread = local_edges
        self._inner = inner
        self._exchanged = [number for number, is_read in enumerate(reads_sources) if is_read]
        if isinstance(inner, FusedBackward):
            # Define the method only if `inner` supports it: see `hyrt.fullgraph.gather_ops.FusedBackward`.
            self.save_for_backward = self._save_for_backward
            self.releasable = inner.releasable

    @property
    def reads_messages_in_backward(self) -> bool:
        """Whether `backward` reads the messages."""
        return self._inner.reads_messages_in_backward

    @property
    def parameters(self) -> tuple[torch.nn.Parameter, ...]:
        """Layer parameters that the edge functions read."""
        return self._inner.parameters

    def forward(self, messages: Arrays, out: Array, context: GatherContext) -> Arrays:
        spread = self._spread
        inputs = tuple(spread.with_halo(message) for message in messages)
        clock = spread.timings.start_product()
        arrivals: list[PendingRows] = []
        for slot, number in enumerate(self._exchanged):
            arrivals += spread.exchange.begin(inputs[number], ROWS, slot)
        for arrival in arrivals:
            clock.wait(arrival.wait)
        saved = self._inner.forward(inputs, out, self._localize(context))
        clock.end(arrivals)
        spread.all_reduce_replicas(out)
        return saved

    def backward(
        self, messages: Arrays, saved: Arrays, grad: Array, out: Arrays, context: GatherContext
    ) -> Sequence[torch.Tensor]:
        spread, num = self._spread, self._spread.edges.num_local
        if spread.replicas is not None and context.accumulate:
            # All ranks of the block hold the same existing values, which must not be summed again.
            added = tuple(np.empty_like(matrix) for matrix in out)
            gradients = self.backward(messages, saved, grad, added, replace(context, accumulate=False))
            for matrix, more in zip(out, added, strict=True):
                np.add(matrix[:num], more[:num], out=matrix[:num])
            return gradients
        if context.accumulate:
            # The buffer still contains gradients of remote vertices from an earlier call.
            for matrix in out:
                matrix[num:] = 0
        clock = spread.timings.start_product()
        parameter_gradients = self._inner.backward(messages, saved, grad, out, self._localize(context))
        pending = []
        for slot, number in enumerate(self._exchanged):
            pending.append(spread.exchange.begin_backward(out[number], GRADIENTS, slot))
            for round_index in range(spread.edges.grid.num_rounds):
                pending[-1].send(round_index)
        for number, handle in zip(self._exchanged, pending, strict=True):
            clock.wait(partial(handle.add, out[number][:num]))
        clock.end(pending)
        return self._sum_columns(out, parameter_gradients)

    def _localize(self, context: GatherContext) -> GatherContext:
        """Restrict a gather over all rows to the local vertices: this rank has no edges into remote rows."""
        return (
            context
            if context.destinations is not None
            else replace(context, destinations=self._spread.local_destinations)
        )

    def _sum_columns(
        self, out: tuple[Array, ...], parameter_gradients: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor]:
        """Sum the gradients of local rows and of parameters over the grid columns.

        Each column has computed the gradients only for its own edges.
        """
        spread, num = self._spread, self._spread.edges.num_local
        if spread.replicas is None:
            return parameter_gradients
        for number, matrix in enumerate(out):
            local = matrix[:num]
            if number in self._exchanged:
                local[:] = spread.broadcast_gradients(local)
            else:
                spread.all_reduce_replicas(local)
        return [spread.sum_over_replicas(gradient) for gradient in parameter_gradients]

    def _save_for_backward(
        self, messages: tuple[Array, ...], saved: tuple[Array, ...], destinations: DestinationSubset | None,
        start: int, gathered: Array, grad: Array,
    ) -> None:  # fmt: skip
        assert isinstance(self._inner, FusedBackward)
        self._inner.save_for_backward(
            messages, saved, destinations or self._spread.local_destinations, start, gathered, grad
        )


def is_additive(gather: GatherSpec) -> bool:
    """Return whether partial results over disjoint sets of edges can be added."""
    if isinstance(gather, SagaGather):
        # Each grid column would add the self-loops, so they would be counted several times.
        return gather.program.accumulate in ("sum", "mean") and not gather.loops
    return isinstance(gather, Aggregation) and gather.reduce != "max"


@dataclass(frozen=True)
class RankGatherOps:
    """Factory of gather operations, a `hyrt.sampling.minibatch.GatherOps`."""

    local_edges: LocalEdges
    num_vertices: int
    num_edges: int
    """Number of edges of the whole graph, like `num_vertices`."""
    cache_bytes: int
    """Bytes per rank for data that persist between steps."""
    loops: bool = False
    """Whether the devices of some rank loop over edges. If so, all rows are exchanged before any rank adds
    rows, even for the sums of built-in layers.
    """

    __repr__ = short_repr

    @property
    def halo_exchange(self) -> ChunkHaloExchange:
        """Halo exchange for devices that compute in chunks of edges."""
        return ChunkHaloExchange(self.local_edges, self.num_vertices)

    def build_gather_op(self, gather: GatherSpec, dtype: np.dtype[Any], layer: int) -> GatherOp:
        if isinstance(gather, Aggregation) and gather.reduce != "max" and not self.loops:
            return DistributedSpMM(self.local_edges, gather, dtype)
        edges = self.local_edges.edges
        if isinstance(gather, Aggregation) and gather.self_path == "add" and not edges.grid.multiplies_local:
            # Only one rank of a block may add the local rows.
            gather = replace(gather, self_path="none")
        inner = build_gather_op(gather, edges.topology, dtype, layer, edges.vertices)
        return DistributedGather(self.local_edges, inner, read_at_sources(gather))


def read_at_sources(gather: GatherSpec) -> list[bool]:
    """Return for each message whether edges read it at their source."""
    if isinstance(gather, SagaGather):
        return [end == "source" for end in gather.ends]
    if isinstance(gather, AttentionSum):
        return [True, True, False]
    return [True]


@dataclass(frozen=True, slots=True)
class ExchangeWidths:
    """Number of columns that each gather operation exchanges in the forward and backward pass."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    """Column counts of the gradients of rows, like `forward` for the rows themselves."""
    is_additive: bool
    """Whether all gather operations are sums, as required for 1.5D."""

    @classmethod
    def from_model(
        cls, model: GNN, num_vertices: int, num_edges: int, *, is_sparse: bool, cache_bytes: int = sys.maxsize
    ) -> ExchangeWidths:
        """Determine the exchange widths of a model.

        `is_sparse` says whether the features are sparse. Each rank may cache the gathered rows of the first
        layer in `cache_bytes` bytes. Raises ConfigError if the model cannot be distributed over ranks.
        """
        if not is_decomposable(model):
            raise ConfigError(
                f"{type(model).__name__} computes the whole graph at once and cannot be distributed over "
                "ranks: use a hyrt.nn model, or remove --full-graph"
            )
        plan = plan_full_graph(
            model, num_vertices, num_edges, is_sparse=is_sparse, memory_bytes=cache_bytes, is_distributed=True
        )
        forward, backward = [], []
        for i, parts in enumerate(plan.parts):
            flags = read_at_sources(parts.gather)
            widths = [w for w, read in zip(parts.message_widths, flags, strict=True) if read]
            if i or not plan.caches_first_gather:
                forward.append(sum(widths))
            if i or plan.stages[0].parameters:
                backward.append(sum(widths))
        return cls(tuple(forward), tuple(backward), all(is_additive(parts.gather) for parts in plan.parts))
