"""Gather operations along the edges of a full graph, with their backward passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.fullgraph.loop_gather_ops import (
    GraphEdges,
    LoopAttentionGatherOp,
    LoopMaxGatherOp,
    LoopSumGatherOp,
    SagaGatherOp,
)
from hyrt.fullgraph.plan import DestinationSubset, DropoutKey, GatherContext
from hyrt.graph.topology import Topology
from hyrt.nn.architecture import Aggregation
from hyrt.nn.full_graph.aggregate import max_aggregate_backward_into, max_aggregate_into, spmm_into
from hyrt.nn.full_graph.attention import (
    NUM_END_VALUES,
    attend_backward_destinations_into,
    attend_backward_sources_into,
    attend_into,
)
from hyrt.nn.fused.loop_backend import is_on_device
from hyrt.nn.layer import AttentionSum
from hyrt.nn.message_passing.gather import SagaGather
from hyrt.nn.operators.attention_dropout import AttentionDropout
from hyrt.runtime.workers import Workers

Array = NDArray[Any]
Arrays = tuple[Array, ...]

# Number of rows to scale at a time, and the number of columns from which torch scales faster than numpy.
_GRAIN = 8192
_WIDE = 16


GatherSpec = Aggregation | AttentionSum | SagaGather
"""Specification of how a layer combines messages."""


@dataclass(slots=True)
class GatherResult:
    """Output of a layer's gather, with the tensors that its backward pass needs."""

    values: Array
    """Gathered rows, [n, width]; overwritten with their gradient in the backward pass."""
    needs_gradient: bool
    """Whether the gradient of `values` is needed."""
    messages: tuple[Array, ...] = ()
    saved: tuple[Array, ...] = ()
    save_for_backward: Callable[[int, Array, Array], None] | None = None
    """Callback with a first row, the rows from it on and their gradient, before the rows are overwritten."""
    self_rows: Array | None = None
    """Input rows of the layer, [V, in], if the next stage reads them; overwritten with their gradient."""


class GatherOp(Protocol):
    """Operation that combines the messages of a layer along all edges, forward and backward."""

    @property
    def reads_messages_in_backward(self) -> bool:
        """Whether `backward` reads the messages."""
        ...

    @property
    def parameters(self) -> tuple[torch.nn.Parameter, ...]:
        """Layer parameters that the edge functions read."""
        ...

    def forward(self, messages: Arrays, out: Array, context: GatherContext) -> Arrays:
        """Gather at all vertices or at a subset.

        Parameters
        ----------
        messages
            Matrices [V, ...] with one row per source.
        out
            [V, width], or one row per destination of the subset; overwritten.
        context
            The destinations, and the resources of the call.

        Returns
        -------
        Tensors to save for `backward`, taken from the pool of the context.
        """
        ...

    def backward(
        self, messages: Arrays, saved: Arrays, grad: Array, out: Arrays, context: GatherContext
    ) -> Sequence[torch.Tensor]:
        """Compute the gradients of the messages, and return the gradients of `parameters`.

        Parameters
        ----------
        messages
            The messages; empty unless `reads_messages_in_backward`.
        saved
            The result of `forward`.
        grad
            Gradient of the gathered rows, in the shape of `out` of `forward`; may be overwritten.
        out
            Gradients of the messages; overwritten, or accumulated if `context.accumulate`.
        context
            The context of `forward`.
        """
        ...


@runtime_checkable
class FusedBackward(Protocol):
    """Gather whose `backward` needs values that are computed from its output and the output's gradient.

    The gradient overwrites the output a few rows at a time, and `save_for_backward` is called before this.
    """

    def save_for_backward(
        self,
        messages: tuple[Array, ...],
        saved: tuple[Array, ...],
        destinations: DestinationSubset | None,
        start: int,
        output: Array, grad: Array,
    ) -> None:  # fmt: skip
        """Save consecutive rows of the data that `backward` needs. May be called in any thread.

        Parameters
        ----------
        messages, saved, destinations
            The arguments and the result of `forward`.
        start
            The first row.
        output, grad
            [n, width] gathered rows and their gradient.
        """
        ...

    def releasable(self, saved: tuple[Array, ...]) -> tuple[Array, ...]:
        """Return the saved matrices that `backward` does not read after `save_for_backward`."""
        ...


@dataclass(frozen=True, slots=True)
class LinearGatherOp:
    """Weighted sums of source rows with scales at both ends: sum, mean and GCN normalization.

    The scales are fused into the sums and need |V| numbers each instead of a factor per edge (GraphPy,
    section 6.1); edge weights are the exception. The transpose reads edge weights in place, by edge number.
    """

    topology: Topology
    row_scale: Array | None
    source_scale: Array | None
    self_scale: Array | None
    weights: Array | None = None
    """Edge weights, [E] float32; None if all are one."""
    reads_messages_in_backward: bool = False
    parameters: tuple[torch.nn.Parameter, ...] = ()

    @classmethod
    def from_aggregation(
        cls, aggregation: Aggregation, topology: Topology, dtype: np.dtype[Any]
    ) -> LinearGatherOp:
        """Build the gather operation of an aggregation."""
        weights = topology.edge_weights if aggregation.weighted else None
        degrees = topology.in_degrees if weights is None else topology.weighted_degrees
        one = dtype.type(1)
        if aggregation.reduce == "gcn":
            scale = one / np.sqrt(degrees.astype(dtype) + one)
            if dtype == np.float32 and aggregation.weighted:
                scale = topology.gcn_scale
            self_scale = one / (degrees.astype(dtype) + one) if aggregation.self_path == "add" else None
            return cls(topology, scale, scale, self_scale, weights)
        self_scale = (
            np.full(len(degrees), 1 + aggregation.epsilon, dtype) if aggregation.self_path == "add" else None
        )
        row = one / np.where(degrees > 0, degrees, 1).astype(dtype) if aggregation.reduce == "mean" else None
        return cls(topology, row, None, self_scale, weights)

    def forward(self, messages: Arrays, out: Array, context: GatherContext) -> Arrays:
        source, self_scale, at = self.source_scale, self.self_scale, context.destinations
        if context.overwrite and source is not None:
            self_scale = scale_rows(messages[0], source, self_scale, context.workers)
            source = None
        spmm_into(
            self.topology.indptr,
            self.topology.indices,
            messages[0],
            out,
            row_scale=self.row_scale,
            source_scale=source,
            self_scale=self_scale,
            weights=self.weights,
            rows=None if at is None else at.vertices,
            workers=context.workers,
        )
        return ()

    def backward(
        self, messages: Arrays, saved: Arrays, grad: Array, out: Arrays, context: GatherContext
    ) -> Sequence[torch.Tensor]:
        # In the transpose, row scales become source scales, and vice versa.
        row, self_scale, at, workers = self.row_scale, self.self_scale, context.destinations, context.workers
        if at is not None:
            row = None if row is None else row[at.vertices]
            self_scale = None if self_scale is None else self_scale[at.vertices]
        if row is not None:
            self_scale = scale_rows(grad, row, self_scale, workers)
        if at is not None and at.transposed is not None and self.weights is None:
            spmm_into(
                *(*at.transposed, grad, out[0]),
                row_scale=self.source_scale,
                accumulate=context.accumulate,
                workers=workers,
            )
            if self_scale is not None:
                out[0][at.vertices] += self_scale[:, None] * grad
            return ()
        if at is not None and self_scale is not None:
            expanded = np.zeros(len(at.positions), self_scale.dtype)
            expanded[at.vertices] = self_scale
            self_scale = expanded
        transposed = self.topology.transposed
        spmm_into(
            transposed.indptr,
            transposed.indices,
            grad,
            out[0],
            row_scale=self.source_scale,
            self_scale=self_scale,
            weights=self.weights,
            edge_ids=None if self.weights is None else self.topology.transposed_edges,
            positions=None if at is None else at.positions,
            accumulate=context.accumulate,
            workers=workers,
        )
        return ()


def scale_rows(rows: Array, factors: Array, self_scale: Array | None, workers: Workers) -> Array | None:
    """Scale `rows` [n, w] by `factors` [n] in place.

    Scaling once per row is cheaper than per edge, since reading a factor for each edge costs half as much as
    reading the row. `self_scale` [n] applies to the self-loops of unscaled rows, or is None without
    self-loops; return the `self_scale` for scaled rows.
    """

    def scale(start: int, stop: int) -> None:
        part, along = rows[start:stop], factors[start:stop, None]
        if rows.shape[1] < _WIDE:
            np.multiply(part, along, out=part)
        else:
            torch.from_numpy(part).mul_(torch.from_numpy(along))

    workers.run(scale, len(rows), _GRAIN)
    return None if self_scale is None else self_scale / factors


@dataclass(frozen=True, slots=True)
class AttentionGatherOp:
    """Sums of source rows weighted by attention, including self-loops; no array has a row per edge."""

    topology: Topology
    attention: AttentionSum
    layer: int
    """Number of the layer, 1..L."""
    vertices: Array | None = None
    """Vertex ids that key the dropout masks, [V]; row indices by default."""
    reads_messages_in_backward: bool = True
    parameters: tuple[torch.nn.Parameter, ...] = ()

    def forward(self, messages: Arrays, out: Array, context: GatherContext) -> Arrays:
        saved: Arrays = ()
        at, memory = context.destinations, context.memory
        if memory is not None:
            by_head, ends = (
                (len(out), self.attention.heads),
                (len(out), NUM_END_VALUES * self.attention.heads),
            )
            shapes = (by_head, out.shape, by_head, ends)
            saved = tuple(memory.take(shape, out.dtype) for shape in shapes)
        attend_into(
            self.topology.indptr,
            self.topology.indices,
            self._by_head(messages[0]),
            messages[1],
            messages[2],
            self._by_head(out),
            saved[0] if saved else None,
            self._by_head(saved[1]) if saved else None,
            saved[2] if saved else None,
            slope=self.attention.slope,
            rows=None if at is None else at.vertices,
            mask=self._mask(context.masks),
            workers=context.workers,
        )
        return saved

    def save_for_backward(
        self,
        messages: tuple[Array, ...],
        saved: tuple[Array, ...],
        destinations: DestinationSubset | None,
        start: int,
        output: Array, grad: Array,
    ) -> None:  # fmt: skip
        here = slice(start, start + len(grad))
        lse, positive, weight, ends = (matrix[here] for matrix in saved)
        operands = (self._by_head(output), lse, self._by_head(positive), weight, self._by_head(grad), ends)
        if destinations is None:
            # Read the weights before the gradient overwrites this memory.
            attend_backward_destinations_into(
                messages[2][here], *operands, weight, slope=self.attention.slope
            )
        else:
            attend_backward_destinations_into(
                messages[2], *operands, weight, slope=self.attention.slope, rows=destinations.vertices[here]
            )

    def releasable(self, saved: tuple[Array, ...]) -> tuple[Array, ...]:
        return saved[:2]

    def backward(
        self, messages: Arrays, saved: Arrays, grad: Array, out: Arrays, context: GatherContext
    ) -> Sequence[torch.Tensor]:
        assert not context.accumulate, "attention messages are separate matrices"
        transposed, (_, _, of_destinations, ends), at = self.topology.transposed, saved, context.destinations
        attend_backward_sources_into(
            transposed.indptr,
            transposed.indices,
            self._by_head(messages[0]),
            messages[1],
            ends,
            self._by_head(grad),
            self._by_head(out[0]),
            out[1],
            slope=self.attention.slope,
            rows=None if at is None else at.vertices,
            mask=self._mask(context.masks),
            positions=None if at is None else at.positions,
            workers=context.workers,
        )
        if at is None:
            np.copyto(out[2], of_destinations)
        else:
            out[2].fill(0)
            out[2][at.vertices] = of_destinations
        return ()

    def _mask(self, masks: DropoutKey | None) -> AttentionDropout | None:
        if masks is None or self.attention.dropout == 0:
            return None
        mask = AttentionDropout.from_rate(self.attention.dropout, masks.seed, masks.step, self.layer)
        return replace(mask, vertices=self.vertices)

    def _by_head(self, rows: Array) -> Array:
        return rows.reshape(len(rows), self.attention.heads, -1)


@dataclass(frozen=True, slots=True)
class MaxGatherOp:
    """Column-wise maximum over the source rows; in a tie, the first source gets the gradient."""

    topology: Topology
    reads_messages_in_backward: bool = False
    parameters: tuple[torch.nn.Parameter, ...] = ()

    def forward(self, messages: Arrays, out: Array, context: GatherContext) -> Arrays:
        winners = None if context.memory is None else context.memory.take(out.shape, np.int32)
        indptr, indices = self.topology.indptr, self.topology.indices
        rows = None if context.destinations is None else context.destinations.vertices
        max_aggregate_into(indptr, indices, messages[0], out, winners, rows=rows, workers=context.workers)
        return () if winners is None else (winners,)

    def backward(
        self, messages: Arrays, saved: Arrays, grad: Array, out: Arrays, context: GatherContext
    ) -> Sequence[torch.Tensor]:
        transposed = self.topology.transposed
        result = np.empty_like(out[0]) if context.accumulate else out[0]
        positions = None if context.destinations is None else context.destinations.positions
        max_aggregate_backward_into(
            transposed.indptr,
            transposed.indices,
            grad,
            saved[0],
            result,
            positions=positions,
            workers=context.workers,
        )
        if context.accumulate:
            np.add(out[0], result, out=out[0])
        return ()


def build_gather_op(
    spec: GatherSpec, topology: Topology, dtype: np.dtype[Any], layer: int, vertices: Array | None = None
) -> GatherOp:
    """Build the gather operation of layer `layer` (1..L) over all edges of a topology.

    `vertices` [V] are the ids that key the dropout masks; row indices by default. If a device runs the edge
    loops of the calling thread, it also runs the loops of this operation.
    """
    if isinstance(spec, SagaGather):
        return SagaGatherOp(spec, topology, dtype)
    looped = is_on_device()
    if isinstance(spec, AttentionSum):
        if looped:
            return LoopAttentionGatherOp(GraphEdges(topology, has_loops=True), spec, layer, vertices)
        return AttentionGatherOp(topology, spec, layer, vertices)
    if spec.reduce == "max":
        return LoopMaxGatherOp(GraphEdges(topology)) if looped else MaxGatherOp(topology)
    sums = LinearGatherOp.from_aggregation(spec, topology, dtype)
    if looped:
        return LoopSumGatherOp.from_scales(
            topology, sums.row_scale, sums.source_scale, sums.self_scale, sums.weights
        )
    return sums
