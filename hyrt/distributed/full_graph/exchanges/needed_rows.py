"""Sparsity-aware exchange: a rank gets the rows that its non-empty columns name, and no others."""

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
class _Wave:
    """One exchange: all to all, of unequal numbers of rows."""

    taken: slice
    """The remote rows that it brings."""
    taken_counts: Sequence[int]
    """[ranks of the column] how many come from each."""
    given: Array
    """The own rows that other ranks need, in the order of those ranks."""
    given_counts: Sequence[int]
    """[ranks of the column] how many go to each."""
    at: int
    """Where its rows begin among all that are given."""


class NeededRows:
    """Brings the rows that are needed; see `hyrt.distributed.full_graph.exchanges.exchange.Exchange`.

    Which rows each rank needs is told once.

    Parameters
    ----------
    edges
        The edges of this rank.
    group
        The ranks of its column of the grid, in the order of the grid's rows.
    """

    def __init__(self, edges: PartEdges, group: RankGroup) -> None:
        self._group = group
        self._waves: list[_Wave] = []
        self._buffers: dict[str, Array] = {}
        at = 0
        for wave, (others, counts) in enumerate(zip(edges.grid.waves, edges.block_counts, strict=True)):
            start, stop = edges.wave_starts[wave : wave + 2]
            taken_counts = [0] * group.size
            for other, count in zip(others, counts, strict=True):
                taken_counts[other] = count
            given_counts = group.exchange_counts(taken_counts, "indices")
            given = np.empty(sum(given_counts), np.int64)
            asked = np.ascontiguousarray(edges.vertices[start:stop], np.int64)
            group.exchange(
                torch.from_numpy(asked), taken_counts, torch.from_numpy(given), given_counts, "indices"
            )
            places = np.searchsorted(edges.vertices[: edges.num_own], given)
            self._waves.append(_Wave(slice(start, stop), taken_counts, places, given_counts, at))
            at += len(given)
        self._num_given = at

    def begin(self, matrix: Array, purpose: str, slot: int = 0) -> list[Arrival]:
        lent = self._buffer(f"given {slot}", matrix)
        begun: list[Arrival] = []
        for wave in self._waves:
            given = lent[wave.at : wave.at + len(wave.given)]
            _take_rows(matrix, wave.given, given)
            begun.append(
                self._group.begin_exchange(
                    bytes_of(given),
                    wave.given_counts,
                    bytes_of(matrix[wave.taken]),
                    wave.taken_counts,
                    purpose,
                )
            )
        return begun

    def begin_back(self, matrix: Array, purpose: str, slot: int = 0) -> _Returning:
        lent = self._buffer(f"returned {slot}", matrix)
        return _Returning(self._group, self._waves, matrix, lent, purpose)

    def _buffer(self, name: str, matrix: Array) -> Array:
        """[rows that are given, w] memory that every product uses again."""
        size = self._num_given * matrix.shape[1] * matrix.itemsize
        there = self._buffers.get(name)
        if there is None or len(there) < size:
            there = self._buffers[name] = np.empty(size, np.uint8)
        return there[:size].view(matrix.dtype).reshape(self._num_given, matrix.shape[1])


@dataclass(slots=True)
class _Returning:
    """See `hyrt.distributed.full_graph.exchanges.exchange.WayBack`."""

    group: RankGroup
    waves: Sequence[_Wave]
    matrix: Array
    lent: Array
    purpose: str
    begun: list[Begun] = field(default_factory=list)

    @property
    def ended_at(self) -> float | None:
        ends = [each.ended_at for each in self.begun]
        return None if None in ends else max((end for end in ends if end is not None), default=0.0)

    def send(self, wave: int) -> None:
        each = self.waves[wave]
        back = self.lent[each.at : each.at + len(each.given)]
        self.begun.append(
            self.group.begin_exchange(
                bytes_of(self.matrix[each.taken]),
                each.taken_counts,
                bytes_of(back),
                each.given_counts,
                self.purpose,
            )
        )

    def add(self, out: Array) -> None:
        for wave, begun in zip(self.waves, self.begun, strict=True):
            begun.wait()
            starts = [wave.at, *(wave.at + end for end in accumulate(wave.given_counts))]
            for start, stop in pairwise(starts):
                # The rows for one rank are distinct.
                _add_rows(out, wave.given[start - wave.at : stop - wave.at], self.lent[start:stop])


def _take_rows(matrix: Array, rows: Array, out: Array) -> None:
    def take(start: int, stop: int) -> None:
        np.take(matrix, rows[start:stop], 0, out=out[start:stop], mode="clip")

    current_workers().run(take, len(rows), _GRAIN)


def _add_rows(matrix: Array, rows: Array, added: Array) -> None:
    """Add to distinct rows of a matrix."""
    current_workers().run(
        lambda start, stop: _add_some(matrix, rows, added, start, stop),
        len(rows),
        _GRAIN,
    )


@nb.njit(nogil=True, cache=True, boundscheck=False)
def _add_some(matrix, rows, added, start, stop):
    for k in range(start, stop):
        i = rows[k]
        for c in range(matrix.shape[1]):
            matrix[i, c] += added[k, c]
