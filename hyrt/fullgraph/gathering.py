"""Gathering messages along the edges of a whole graph, and the gradients of the messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.fullgraph.destinations import Destinations, GatheringPass
from hyrt.fullgraph.row_stage import Masks
from hyrt.fullgraph.saga.looped_gathering import (
    LoopedAttentionGathering,
    LoopedMaximumGathering,
    LoopedSumGathering,
    WholeEdges,
)
from hyrt.fullgraph.saga.saga_gathering import SagaGathering
from hyrt.graph.topology import Topology
from hyrt.machine.workers import Workers
from hyrt.nn.aggregation import Aggregation
from hyrt.nn.fused.loop_runner import is_on_device
from hyrt.nn.layer_parts import AttentionSum
from hyrt.nn.operators.attention_mask import AttentionMask
from hyrt.nn.saga.gather import SagaSum
from hyrt.nn.whole_graph.attention import ENDS, attend_ends_into, attend_into, attend_to_sources_into
from hyrt.nn.whole_graph.maximum import largest_backward_into, largest_into
from hyrt.nn.whole_graph.spmm import spmm_into

Array = NDArray[Any]
Arrays = tuple[Array, ...]

# Rows that are scaled at a time, and from how many columns on torch scales them faster than numpy.
_GRAIN = 8192
_WIDE = 16


Gathers = Aggregation | AttentionSum | SagaSum
"""How a layer combines messages."""


@dataclass(slots=True)
class Gathered:
    """What is known of a layer whose destinations have gathered."""

    values: Array
    """[n, width] what was gathered; the backward pass overwrites it with its gradient."""
    takes_gradient: bool
    """Whether the gradient of `values` is needed, which may then overwrite them."""
    messages: tuple[Array, ...] = ()
    """Messages that the backward pass reads."""
    kept: tuple[Array, ...] = ()
    """What the gathering keeps for its backward pass."""
    meet: Callable[[int, Array, Array], None] | None = None
    """Called with a row's number, what it and the rows after it gathered and their gradient, before that
    overwrites it."""
    own: Array | None = None
    """[V, in] rows that the layer was given, where the stage after it reads them; overwritten likewise."""


class Gathering(Protocol):
    """Combines the messages of a layer along all edges, forward and backward."""

    @property
    def reads_messages_back(self) -> bool:
        """Whether `backward` reads the messages."""
        ...

    @property
    def parameters(self) -> tuple[torch.nn.Parameter, ...]:
        """Parameters of the layer that edges read."""
        ...

    def forward(self, messages: Arrays, out: Array, over: GatheringPass) -> Arrays:
        """Gather at all vertices, or at some.

        Parameters
        ----------
        messages
            [V, ...] one row a source each.
        out
            [V, width], or one row for each of the pass's vertices; overwritten.
        over
            The vertices, and what may be used.

        Returns
        -------
        What `backward` needs besides, taken from the pass's memory.
        """
        ...

    def backward(
        self, messages: Arrays, kept: Arrays, grad: Array, out: Arrays, over: GatheringPass
    ) -> Sequence[torch.Tensor]:
        """Take the gradient of what was gathered back to the messages.

        Parameters
        ----------
        messages, kept
            What `forward` was given and has returned. Messages are empty unless `reads_messages_back`.
        grad
            [V, width], or one row for each of the pass's vertices: the gradient of what was gathered; it may
            be overwritten.
        out
            The gradients of the messages, overwritten, or added to if the pass says so.
        over
            The vertices of `forward`, and what may be used.

        Returns
        -------
        The gradients of `parameters`.
        """
        ...


@runtime_checkable
class MeetsGradient(Protocol):
    """A gathering whose `backward` needs something of both what it gathered and the gradient of that.

    The second takes the place of the first, some rows at a time: before, the two meet.
    """

    def meet(
        self, messages: tuple[Array, ...], kept: tuple[Array, ...], at: Destinations | None, start: int,
        gathered: Array, grad: Array,
    ) -> None:  # fmt: skip
        """Note what `backward` needs of consecutive rows, in any thread.

        Parameters
        ----------
        messages, kept, at
            What `forward` was given and returned.
        start
            The first of the rows.
        gathered, grad
            [n, width] what was gathered, and its gradient.
        """
        ...

    def unread(self, kept: tuple[Array, ...]) -> tuple[Array, ...]:
        """Those of the kept matrices that `backward` does not read once all rows have met."""
        ...


@dataclass(frozen=True, slots=True)
class LinearGathering:
    """Sums of source rows with factors of both ends: sum, mean and GCN's normalisation.

    The factors are fused into the sums; they cost |V| numbers each, and no edge has one of its own (GraphPy,
    section 6.1) unless edges have weights. The transpose reads these where they lie, by the edges' numbers.
    """

    topology: Topology
    row_scale: Array | None
    source_scale: Array | None
    self_scale: Array | None
    weights: Array | None = None
    """[E] float32, the weights of the edges; None for all one."""
    reads_messages_back: bool = False
    parameters: tuple[torch.nn.Parameter, ...] = ()

    @classmethod
    def of(cls, what: Aggregation, topology: Topology, dtype: np.dtype[Any]) -> LinearGathering:
        """The gathering of an aggregation."""
        weights = topology.edge_weights if what.weighted else None
        degrees = topology.in_degrees if weights is None else topology.weighted_degrees
        one = dtype.type(1)
        if what.reduce == "gcn":
            scale = one / np.sqrt(degrees.astype(dtype) + one)
            if dtype == np.float32 and what.weighted:
                scale = topology.gcn_scale
            own = one / (degrees.astype(dtype) + one) if what.self_path == "add" else None
            return cls(topology, scale, scale, own, weights)
        own = np.full(len(degrees), 1 + what.epsilon, dtype) if what.self_path == "add" else None
        row = one / np.where(degrees > 0, degrees, 1).astype(dtype) if what.reduce == "mean" else None
        return cls(topology, row, None, own, weights)

    def forward(self, messages: Arrays, out: Array, over: GatheringPass) -> Arrays:
        source, own, at = self.source_scale, self.self_scale, over.at
        if over.overwrite and source is not None:
            own = scale_rows(messages[0], source, own, over.workers)
            source = None
        spmm_into(
            self.topology.indptr,
            self.topology.indices,
            messages[0],
            out,
            row_scale=self.row_scale,
            source_scale=source,
            self_scale=own,
            weights=self.weights,
            rows=None if at is None else at.vertices,
            workers=over.workers,
        )
        return ()

    def backward(
        self, messages: Arrays, kept: Arrays, grad: Array, out: Arrays, over: GatheringPass
    ) -> Sequence[torch.Tensor]:
        # The transpose: what scaled a row scales a source, and the other way round.
        row, own, at, workers = self.row_scale, self.self_scale, over.at, over.workers
        if at is not None:
            row = None if row is None else row[at.vertices]
            own = None if own is None else own[at.vertices]
        if row is not None:
            own = scale_rows(grad, row, own, workers)
        if at is not None and at.turned is not None and self.weights is None:
            spmm_into(
                *(*at.turned, grad, out[0]),
                row_scale=self.source_scale,
                accumulate=over.accumulate,
                workers=workers,
            )
            if own is not None:
                out[0][at.vertices] += own[:, None] * grad
            return ()
        if at is not None and own is not None:
            of_all = np.zeros(len(at.positions), own.dtype)
            of_all[at.vertices] = own
            own = of_all
        turned = self.topology.transposed
        spmm_into(
            turned.indptr,
            turned.indices,
            grad,
            out[0],
            row_scale=self.source_scale,
            self_scale=own,
            weights=self.weights,
            edge_ids=None if self.weights is None else self.topology.transposed_edges,
            positions=None if at is None else at.positions,
            accumulate=over.accumulate,
            workers=workers,
        )
        return ()


def scale_rows(rows: Array, factors: Array, own: Array | None, workers: Workers) -> Array | None:
    """Scale rows in place.

    Done once for each row, for a factor that is read for each edge costs as much as half a row.

    Parameters
    ----------
    rows
        [n, w], overwritten.
    factors
        [n] floating point.
    own
        [n] what own rows were to be scaled with; None where they do not count.
    workers
        The team of threads.

    Returns
    -------
    What own rows are to be scaled with now.
    """

    def scale(start: int, stop: int) -> None:
        part, along = rows[start:stop], factors[start:stop, None]
        if rows.shape[1] < _WIDE:
            np.multiply(part, along, out=part)
        else:
            torch.from_numpy(part).mul_(torch.from_numpy(along))

    workers.run(scale, len(rows), _GRAIN)
    return None if own is None else own / factors


@dataclass(frozen=True, slots=True)
class AttentionGathering:
    """Sums of source rows weighted by attention, a self loop included; no array has a row an edge."""

    topology: Topology
    what: AttentionSum
    layer: int
    """1..L."""
    vertices: Array | None = None
    """[V] the numbers by which masks know the vertices; their own by default."""
    reads_messages_back: bool = True
    parameters: tuple[torch.nn.Parameter, ...] = ()

    def forward(self, messages: Arrays, out: Array, over: GatheringPass) -> Arrays:
        kept: Arrays = ()
        at, memory = over.at, over.memory
        if memory is not None:
            by_head, ends = (len(out), self.what.heads), (len(out), ENDS * self.what.heads)
            shapes = (by_head, out.shape, by_head, ends)
            kept = tuple(memory.take(shape, out.dtype) for shape in shapes)
        attend_into(
            self.topology.indptr,
            self.topology.indices,
            self._by_head(messages[0]),
            messages[1],
            messages[2],
            self._by_head(out),
            kept[0] if kept else None,
            self._by_head(kept[1]) if kept else None,
            kept[2] if kept else None,
            slope=self.what.slope,
            rows=None if at is None else at.vertices,
            mask=self._mask(over.masks),
            workers=over.workers,
        )
        return kept

    def meet(
        self, messages: tuple[Array, ...], kept: tuple[Array, ...], at: Destinations | None, start: int,
        gathered: Array, grad: Array,
    ) -> None:  # fmt: skip
        here = slice(start, start + len(grad))
        lse, positive, weight, ends = (matrix[here] for matrix in kept)
        given = (self._by_head(gathered), lse, self._by_head(positive), weight, self._by_head(grad), ends)
        if at is None:
            # The weights have been read when the gradient takes their place.
            attend_ends_into(messages[2][here], *given, weight, slope=self.what.slope)
        else:
            attend_ends_into(messages[2], *given, weight, slope=self.what.slope, rows=at.vertices[here])

    def unread(self, kept: tuple[Array, ...]) -> tuple[Array, ...]:
        return kept[:2]

    def backward(
        self, messages: Arrays, kept: Arrays, grad: Array, out: Arrays, over: GatheringPass
    ) -> Sequence[torch.Tensor]:
        assert not over.accumulate, "a layer with attention has messages of its own"
        turned, (_, _, of_destinations, ends), at = self.topology.transposed, kept, over.at
        attend_to_sources_into(
            turned.indptr,
            turned.indices,
            self._by_head(messages[0]),
            messages[1],
            ends,
            self._by_head(grad),
            self._by_head(out[0]),
            out[1],
            slope=self.what.slope,
            rows=None if at is None else at.vertices,
            mask=self._mask(over.masks),
            positions=None if at is None else at.positions,
            workers=over.workers,
        )
        if at is None:
            np.copyto(out[2], of_destinations)
        else:
            out[2].fill(0)
            out[2][at.vertices] = of_destinations
        return ()

    def _mask(self, masks: Masks | None) -> AttentionMask | None:
        if masks is None or self.what.dropout == 0:
            return None
        mask = AttentionMask.of(self.what.dropout, masks.seed, masks.step, self.layer)
        return replace(mask, vertices=self.vertices)

    def _by_head(self, rows: Array) -> Array:
        return rows.reshape(len(rows), self.what.heads, -1)


@dataclass(frozen=True, slots=True)
class MaximumGathering:
    """The largest of each column over the source rows; a tie's gradient goes to its first source."""

    topology: Topology
    reads_messages_back: bool = False
    parameters: tuple[torch.nn.Parameter, ...] = ()

    def forward(self, messages: Arrays, out: Array, over: GatheringPass) -> Arrays:
        winners = None if over.memory is None else over.memory.take(out.shape, np.int32)
        indptr, indices = self.topology.indptr, self.topology.indices
        rows = None if over.at is None else over.at.vertices
        largest_into(indptr, indices, messages[0], out, winners, rows=rows, workers=over.workers)
        return () if winners is None else (winners,)

    def backward(
        self, messages: Arrays, kept: Arrays, grad: Array, out: Arrays, over: GatheringPass
    ) -> Sequence[torch.Tensor]:
        turned = self.topology.transposed
        result = np.empty_like(out[0]) if over.accumulate else out[0]
        positions = None if over.at is None else over.at.positions
        largest_backward_into(
            turned.indptr, turned.indices, grad, kept[0], result, positions=positions, workers=over.workers
        )
        if over.accumulate:
            np.add(out[0], result, out=out[0])
        return ()


def gathering_of(
    what: Gathers, topology: Topology, dtype: np.dtype[Any], layer: int, vertices: Array | None = None
) -> Gathering:
    """The gathering that a layer asks for, over all edges of a topology.

    Where a device runs the loops of the calling thread, it runs those of this gathering.

    Parameters
    ----------
    what
        What the layer asks for.
    topology
        The edges.
    dtype
        The messages' numbers.
    layer
        1..L.
    vertices
        [V] the numbers by which masks know the vertices; their own by default.
    """
    if isinstance(what, SagaSum):
        return SagaGathering(what, topology, dtype)
    looped = is_on_device()
    if isinstance(what, AttentionSum):
        if looped:
            return LoopedAttentionGathering(WholeEdges(topology, has_loops=True), what, layer, vertices)
        return AttentionGathering(topology, what, layer, vertices)
    if what.reduce == "max":
        return LoopedMaximumGathering(WholeEdges(topology)) if looped else MaximumGathering(topology)
    sums = LinearGathering.of(what, topology, dtype)
    if looped:
        return LoopedSumGathering.of(
            topology, sums.row_scale, sums.source_scale, sums.self_scale, sums.weights
        )
    return sums
