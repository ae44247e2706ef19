"""Halo exchange of rows and their gradients between ranks: only the needed rows, or whole blocks."""

# mypy: disable-error-code="no-untyped-def,call-arg"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.distributed.process_group import PendingCollective, RankGroup
from hyrt.distributed.rank_grid import PartEdges
from hyrt.runtime.numba_cache import nb
from hyrt.runtime.workers import current_workers

Array = NDArray[Any]


class PendingRows(Protocol):
    """Handle of rows that are being received."""

    @property
    def ended_at(self) -> float | None:
        """Time at which all rows had been received (`time.perf_counter`); None until then."""
        ...

    def wait(self) -> None:
        """Wait until all rows have been received."""
        ...


class PendingGradients(Protocol):
    """Handle of partial gradient sums that are being returned to the owners of the rows."""

    @property
    def ended_at(self) -> float | None:
        """Time at which all gradients had been received (`time.perf_counter`); None until then."""
        ...

    def send(self, round_index: int) -> None:
        """Start sending the gradients of an exchange round, once complete. Rounds must be sent in order."""
        ...

    def add(self, out: Array) -> None:
        """Wait for the gradients of local rows, and add them to `out` [n, w] in a fixed order."""
        ...


class HaloExchange(Protocol):
    """Exchange of halo rows in one or more rounds; all ranks make the same calls in the same order."""

    def begin(self, matrix: Array, purpose: str, slot: int = 0) -> Sequence[PendingRows]:
        """Start to fill the remote rows of a matrix [n + h, w] from their owner ranks.

        Return one handle per exchange round. Until the exchange ends, local rows may be read but not written.
        Matrices that are exchanged at the same time need different slots.
        """
        ...

    def begin_backward(self, matrix: Array, purpose: str, slot: int = 0) -> PendingGradients:
        """Start to send the gradients of the remote rows of a matrix [n + h, w] to the owners of the rows."""
        ...


def view_bytes(rows: Array) -> torch.Tensor:
    """View rows [n, w] as bytes, [n, bytes per row] uint8, so that any dtype can be sent unchanged."""
    if not rows.size:
        return torch.empty((len(rows), rows.shape[1] * rows.itemsize), dtype=torch.uint8)
    return torch.from_numpy(rows.view(np.uint8))


def broadcast_rows(rows: Array, root: int, group: RankGroup, purpose: str) -> None:
    """Replace the rows [n, w] of all ranks of a group by the rows of rank `root` (van de Geijn broadcast).

    The root scatters one part to each rank, and then every rank sends its part to the other ranks. Each link
    carries the rows at most twice, for any number of ranks. gloo would broadcast along a tree: the root sends
    to several ranks at once, and the receivers forward only complete messages. With four ranks, this takes
    three times as long as sending the rows over one link. `rows` is contiguous and of any dtype.
    """
    size, rank = group.size, group.rank
    if size < 2:
        return
    ends = [len(rows) * k // size for k in range(size + 1)]
    counts = [stop - start for start, stop in pairwise(ends)]
    no_rows, no_counts = rows[:0], [0] * size
    local_part = rows[ends[rank] : ends[rank + 1]]
    if rank == root:
        # alltoall also copies a rank's part for itself, into this scratch array.
        group.all_to_all(
            view_bytes(rows),
            counts,
            view_bytes(np.empty_like(local_part)),
            _one_hot_counts(root, counts[root], size),
            purpose,
        )
    else:
        group.all_to_all(
            view_bytes(no_rows),
            no_counts,
            view_bytes(local_part),
            _one_hot_counts(root, counts[rank], size),
            purpose,
        )
    send_counts = [0 if other == root else counts[rank] for other in range(size)]
    copies = np.concatenate([local_part] * (size - 1))
    if rank == root:
        group.all_to_all(view_bytes(copies), send_counts, view_bytes(no_rows), no_counts, purpose)
    else:
        group.all_to_all(view_bytes(copies), send_counts, view_bytes(rows), counts, purpose)


def _one_hot_counts(rank: int, count: int, size: int) -> list[int]:
    """Return a list of counts that is `count` for one rank and 0 for all others."""
    return [count if other == rank else 0 for other in range(size)]


_GRAIN = 8192


@dataclass(frozen=True, slots=True)
class _SparseRound:
    """Exchange round that is an all-to-all with a different number of rows per rank."""

    received: slice
    """Remote rows that the round receives."""
    receive_counts: Sequence[int]
    """Number of rows received from each rank of the column."""
    sent: Array
    """Local rows that other ranks need, grouped by rank."""
    send_counts: Sequence[int]
    """Number of rows sent to each rank of the column."""
    offset: int
    """Offset of the round's rows in the send buffer."""


class SparseHaloExchange:
    """`HaloExchange` that sends only the needed rows.

    The ranks exchange the ids of the needed rows once, when this object is created. `group` has the ranks of
    this rank's grid column, in the order of the grid rows.
    """

    def __init__(self, edges: PartEdges, group: RankGroup) -> None:
        self._group = group
        self._rounds: list[_SparseRound] = []
        self._buffers: dict[str, Array] = {}
        offset = 0
        for round_index, (others, counts) in enumerate(
            zip(edges.grid.rounds, edges.block_counts, strict=True)
        ):
            start, stop = edges.round_starts[round_index : round_index + 2]
            receive_counts = [0] * group.size
            for other, count in zip(others, counts, strict=True):
                receive_counts[other] = count
            send_counts = group.exchange_counts(receive_counts, "indices")
            sent = np.empty(sum(send_counts), np.int64)
            requested = np.ascontiguousarray(edges.vertices[start:stop], np.int64)
            group.all_to_all(
                torch.from_numpy(requested), receive_counts, torch.from_numpy(sent), send_counts, "indices"
            )
            local_ids = np.searchsorted(edges.vertices[: edges.num_local], sent)
            self._rounds.append(
                _SparseRound(slice(start, stop), receive_counts, local_ids, send_counts, offset)
            )
            offset += len(sent)
        self._num_sent = offset

    def begin(self, matrix: Array, purpose: str, slot: int = 0) -> list[PendingRows]:
        buffer = self._buffer(f"sent {slot}", matrix)
        pending: list[PendingRows] = []
        for exchange_round in self._rounds:
            sent = buffer[exchange_round.offset : exchange_round.offset + len(exchange_round.sent)]
            _take_rows(matrix, exchange_round.sent, sent)
            pending.append(
                self._group.start_all_to_all(
                    view_bytes(sent),
                    exchange_round.send_counts,
                    view_bytes(matrix[exchange_round.received]),
                    exchange_round.receive_counts,
                    purpose,
                )
            )
        return pending

    def begin_backward(self, matrix: Array, purpose: str, slot: int = 0) -> _SparseGradients:
        buffer = self._buffer(f"returned {slot}", matrix)
        return _SparseGradients(self._group, self._rounds, matrix, buffer, purpose)

    def _buffer(self, name: str, matrix: Array) -> Array:
        """Return a send buffer [number of sent rows, w], which is reused."""
        size = self._num_sent * matrix.shape[1] * matrix.itemsize
        allocated = self._buffers.get(name)
        if allocated is None or len(allocated) < size:
            allocated = self._buffers[name] = np.empty(size, np.uint8)
        return allocated[:size].view(matrix.dtype).reshape(self._num_sent, matrix.shape[1])


@dataclass(slots=True)
class _SparseGradients:
    """`PendingGradients` of a sparse exchange."""

    group: RankGroup
    rounds: Sequence[_SparseRound]
    matrix: Array
    buffer: Array
    purpose: str
    pending: list[PendingCollective] = field(default_factory=list)

    @property
    def ended_at(self) -> float | None:
        ends = [operation.ended_at for operation in self.pending]
        return None if None in ends else max((end for end in ends if end is not None), default=0.0)

    def send(self, round_index: int) -> None:
        current = self.rounds[round_index]
        returned = self.buffer[current.offset : current.offset + len(current.sent)]
        self.pending.append(
            self.group.start_all_to_all(
                view_bytes(self.matrix[current.received]),
                current.receive_counts,
                view_bytes(returned),
                current.send_counts,
                self.purpose,
            )
        )

    def add(self, out: Array) -> None:
        for exchange_round, pending in zip(self.rounds, self.pending, strict=True):
            pending.wait()
            starts = [
                exchange_round.offset,
                *(exchange_round.offset + end for end in accumulate(exchange_round.send_counts)),
            ]
            for start, stop in pairwise(starts):
                # The rows of one rank are distinct, so they can be added in parallel.
                _add_rows(
                    out,
                    exchange_round.sent[start - exchange_round.offset : stop - exchange_round.offset],
                    self.buffer[start:stop],
                )


def _take_rows(matrix: Array, rows: Array, out: Array) -> None:
    def take(start: int, stop: int) -> None:
        np.take(matrix, rows[start:stop], 0, out=out[start:stop], mode="clip")

    current_workers().run(take, len(rows), _GRAIN)


def _add_rows(matrix: Array, rows: Array, added: Array) -> None:
    """Add `rows` to distinct rows of a matrix."""
    current_workers().run(
        lambda start, stop: _add_range(matrix, rows, added, start, stop),
        len(rows),
        _GRAIN,
    )


@nb.njit(nogil=True, cache=True, boundscheck=False)
def _add_range(matrix, rows, added, start, stop):
    for k in range(start, stop):
        i = rows[k]
        for c in range(matrix.shape[1]):
            matrix[i, c] += added[k, c]


@dataclass(frozen=True, slots=True)
class _BroadcastBlock:
    number: int
    round_index: int | None
    """Exchange round in which the block is received; None for the local block."""
    rows: slice


class BroadcastExchange:
    """`HaloExchange` that broadcasts whole blocks, and sums their gradients at their owners.

    `edges` were created with `oblivious`. `group` has the ranks of this rank's grid column, in the order of
    the grid rows.
    """

    def __init__(self, edges: PartEdges, group: RankGroup) -> None:
        grid = edges.grid
        self._group = group
        self._num_rounds = grid.num_rounds
        local_rows = slice(0, edges.num_local)
        blocks = (
            [_BroadcastBlock(grid.row, None, local_rows)]
            if grid.multiplies_local and grid.num_blocks > 1
            else []
        )
        for round_index, (others, counts) in enumerate(zip(grid.rounds, edges.block_counts, strict=True)):
            start = edges.round_starts[round_index]
            for other, count in zip(others, counts, strict=True):
                blocks.append(_BroadcastBlock(other, round_index, slice(start, start + count)))
                start += count
        # All ranks must start their broadcasts in the same order.
        self._blocks = sorted(blocks, key=lambda each: each.number)

    def begin(self, matrix: Array, purpose: str, slot: int = 0) -> list[PendingRows]:
        rounds: list[list[PendingCollective]] = [[] for _ in range(self._num_rounds)]
        for block in self._blocks:
            operation = self._group.start_broadcast(view_bytes(matrix[block.rows]), block.number, purpose)
            # Wait for the local block in the first round: it must be sent before its rows may be written.
            rounds[block.round_index or 0].append(operation)
        return [_PendingGroup(operations) for operations in rounds]

    def begin_backward(self, matrix: Array, purpose: str, slot: int = 0) -> _ReducedGradients:
        return _ReducedGradients(self._group, self._blocks, self._num_rounds, matrix, purpose)


@dataclass(frozen=True, slots=True)
class _PendingGroup:
    pending: Sequence[PendingCollective]

    @property
    def ended_at(self) -> float | None:
        ends = [operation.ended_at for operation in self.pending]
        return None if None in ends else max((end for end in ends if end is not None), default=0.0)

    def wait(self) -> None:
        for operation in self.pending:
            operation.wait()


@dataclass(slots=True)
class _ReducedGradients:
    """`PendingGradients` of a broadcast exchange, which reduces each block's gradients at its owner."""

    group: RankGroup
    blocks: Sequence[_BroadcastBlock]
    num_rounds: int
    matrix: Array
    purpose: str
    pending: list[PendingCollective] = field(default_factory=list)
    sums: Array | None = None

    @property
    def ended_at(self) -> float | None:
        return _PendingGroup(self.pending).ended_at

    def send(self, round_index: int) -> None:
        # All ranks must reduce the blocks in the same order, but compute their parts in different orders.
        if round_index + 1 < self.num_rounds:
            return
        for block in self.blocks:
            rows = self.matrix[block.rows]
            if block.round_index is None:
                rows = self.sums = np.zeros_like(rows)
            self.pending.append(self.group.start_reduce(torch.from_numpy(rows), block.number, self.purpose))

    def add(self, out: Array) -> None:
        for operation in self.pending:
            operation.wait()
        if self.sums is not None:
            np.add(out, self.sums, out=out)
