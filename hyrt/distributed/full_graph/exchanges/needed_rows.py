"""Sparsity-aware halo exchange: a rank receives only the rows that its non-empty columns reference."""

# mypy: disable-error-code="no-untyped-def,call-arg"
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.distributed.full_graph.exchanges.exchange import Arrival, bytes_of
from hyrt.distributed.full_graph.part_edges import PartEdges
from hyrt.distributed.rank_group import Begun, RankGroup
from hyrt.machine.kernels.kept_kernels import nb
from hyrt.machine.workers import current_workers

Array = NDArray[Any]
_GRAIN = 8192


@dataclass(frozen=True, slots=True)
class _SparseRound:
    """One exchange round: an all-to-all with different numbers of rows."""

    received: slice
    """Remote rows that the round receives."""
    receive_counts: Sequence[int]
    """[ranks of the column] number of rows received from each rank."""
    sent: Array
    """Local rows that other ranks need, grouped by rank."""
    send_counts: Sequence[int]
    """[ranks of the column] number of rows sent to each rank."""
    offset: int
    """Offset of the round's rows in the send buffer."""


class NeededRows:
    """Exchanges only the needed rows; see `hyrt.distributed.full_graph.exchanges.exchange.Exchange`.

    The ranks exchange the ids of the needed rows once, when this object is created.

    Parameters
    ----------
    edges
        Edges of this rank.
    group
        Ranks of its grid column, in the order of the grid's rows.
    """

    def __init__(self, edges: PartEdges, group: RankGroup) -> None:
        self._group = group
        self._waves: list[_SparseRound] = []
        self._buffers: dict[str, Array] = {}
        offset = 0
        for wave, (others, counts) in enumerate(zip(edges.grid.waves, edges.block_counts, strict=True)):
            start, stop = edges.wave_starts[wave : wave + 2]
            receive_counts = [0] * group.size
            for other, count in zip(others, counts, strict=True):
                receive_counts[other] = count
            send_counts = group.exchange_counts(receive_counts, "indices")
            sent = np.empty(sum(send_counts), np.int64)
            requested = np.ascontiguousarray(edges.vertices[start:stop], np.int64)
            group.exchange(
                torch.from_numpy(requested), receive_counts, torch.from_numpy(sent), send_counts, "indices"
            )
            local_ids = np.searchsorted(edges.vertices[: edges.num_own], sent)
            self._waves.append(
                _SparseRound(slice(start, stop), receive_counts, local_ids, send_counts, offset)
            )
            offset += len(sent)
        self._num_sent = offset

    def begin(self, matrix: Array, purpose: str, slot: int = 0) -> list[Arrival]:
        buffer = self._buffer(f"sent {slot}", matrix)
        pending: list[Arrival] = []
        for wave in self._waves:
            sent = buffer[wave.offset : wave.offset + len(wave.sent)]
            _take_rows(matrix, wave.sent, sent)
            pending.append(
                self._group.begin_exchange(
                    bytes_of(sent),
                    wave.send_counts,
                    bytes_of(matrix[wave.received]),
                    wave.receive_counts,
                    purpose,
                )
            )
        return pending

    def begin_back(self, matrix: Array, purpose: str, slot: int = 0) -> _SparseGradients:
        buffer = self._buffer(f"returned {slot}", matrix)
        return _SparseGradients(self._group, self._waves, matrix, buffer, purpose)

    def _buffer(self, name: str, matrix: Array) -> Array:
        """Return a reused buffer for the sent rows, [number of sent rows, w]."""
        size = self._num_sent * matrix.shape[1] * matrix.itemsize
        allocated = self._buffers.get(name)
        if allocated is None or len(allocated) < size:
            allocated = self._buffers[name] = np.empty(size, np.uint8)
        return allocated[:size].view(matrix.dtype).reshape(self._num_sent, matrix.shape[1])


@dataclass(slots=True)
class _SparseGradients:
    """Handle of returned gradients; see `hyrt.distributed.full_graph.exchanges.exchange.WayBack`."""

    group: RankGroup
    waves: Sequence[_SparseRound]
    matrix: Array
    buffer: Array
    purpose: str
    pending: list[Begun] = field(default_factory=list)

    @property
    def ended_at(self) -> float | None:
        ends = [operation.ended_at for operation in self.pending]
        return None if None in ends else max((end for end in ends if end is not None), default=0.0)

    def send(self, wave: int) -> None:
        current = self.waves[wave]
        returned = self.buffer[current.offset : current.offset + len(current.sent)]
        self.pending.append(
            self.group.begin_exchange(
                bytes_of(self.matrix[current.received]),
                current.receive_counts,
                bytes_of(returned),
                current.send_counts,
                self.purpose,
            )
        )

    def add(self, out: Array) -> None:
        for wave, pending in zip(self.waves, self.pending, strict=True):
            pending.wait()
            starts = [wave.offset, *(wave.offset + end for end in accumulate(wave.send_counts))]
            for start, stop in pairwise(starts):
                # The rows for one rank are distinct, so they can be added in parallel.
                _add_rows(out, wave.sent[start - wave.offset : stop - wave.offset], self.buffer[start:stop])


def _take_rows(matrix: Array, rows: Array, out: Array) -> None:
    def take(start: int, stop: int) -> None:
        np.take(matrix, rows[start:stop], 0, out=out[start:stop], mode="clip")

    current_workers().run(take, len(rows), _GRAIN)


def _add_rows(matrix: Array, rows: Array, added: Array) -> None:
    """Add rows to distinct rows of a matrix."""
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
