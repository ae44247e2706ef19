"""Relays of rows from device to device, instead of a copy from the host for each device (NeuGraph, section
3.3).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import Any

from hyrt.fullgraph.chunks.chunk_kernels import ChunkKernels
from hyrt.fullgraph.chunks.row_reader import RowReader
from hyrt.fullgraph.chunks.together import PartnerLost

ChunkNumbers = tuple[int, int]
"""Chunk index: the accumulated interval, which one device computes, and the interval that is read."""


def chains(count: int, reaches: Callable[[int, int], bool]) -> tuple[tuple[int, ...], ...]:
    """Group devices into relays, in their order.

    Parameters
    ----------
    count
        Number of devices.
    reaches
        Whether the first of two devices can copy directly from the memory of the second.

    Returns
    -------
    The devices of each relay; a device that can access no other forms a relay alone.
    """
    relays: list[list[int]] = []
    for device in range(count):
        chain = next((relay for relay in relays if reaches(device, relay[-1])), None)
        if chain is None:
            relays.append([device])
        else:
            chain.append(device)
    return tuple(map(tuple, relays))


def handed_on(
    chain: Sequence[int],
    columns: Sequence[Sequence[int]],
    reads: Sequence[int],
    needs: Callable[[int, int], bool],
) -> dict[ChunkNumbers, ChunkNumbers]:
    """Choose the chunks whose rows are copied from another device.

    The devices of a relay compute their first columns at the same time, then their second ones. Of the
    devices that need an interval, the first copies it from the host, and each other one from its predecessor.

    Parameters
    ----------
    chain
        The devices, in the order in which rows are forwarded.
    columns
        The intervals that each device accumulates, in its order.
    reads
        The intervals that are read for each column.
    needs
        Whether a column, the first argument, reads all rows of an interval, the second one.

    Returns
    -------
    For each such chunk, the chunk whose device provides the rows.
    """
    sources: dict[ChunkNumbers, ChunkNumbers] = {}
    for round_columns in zip_longest(*(columns[device] for device in chain)):
        present = [column for column in round_columns if column is not None]
        for read in reads:
            chunks = [(column, read) for column in present if needs(column, read)]
            sources.update((later, earlier) for earlier, later in pairwise(chunks))
    return sources


@dataclass(slots=True)
class RowChain:
    """Rendezvous of devices that exchange rows in a pass; one per pass.

    All devices read in the same order, and none waits for a later read, so there is no deadlock unless a
    device fails, which `part` reports to the others.
    """

    sources: Mapping[ChunkNumbers, ChunkNumbers] = field(default_factory=dict)
    """The result of `handed_on`."""
    _offers: dict[ChunkNumbers, Any] = field(default_factory=dict)
    _taken: dict[ChunkNumbers, Any] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _is_broken: bool = False

    @contextmanager
    def part(self) -> Iterator[None]:
        """Run a device's part; if it fails, wake the devices that wait for it."""
        try:
            yield
        except BaseException:
            with self._changed:
                self._is_broken = True
                self._changed.notify_all()
            raise

    def offer(self, place: ChunkNumbers, rows: Any) -> None:
        """Publish the rows that were read for a chunk."""
        self._put(self._offers, place, rows)

    def offered(self, place: ChunkNumbers) -> Any:
        """Wait for the rows that another device reads for a chunk, and return them."""
        return self._wait(self._offers, place)

    def take(self, place: ChunkNumbers, end: Any) -> None:
        """Record the event for the end of the copy of published rows."""
        self._put(self._taken, place, end)

    def taken(self, place: ChunkNumbers) -> Any:
        """Wait until the copy of published rows has started, and return the event for its end."""
        return self._wait(self._taken, place)

    def _put(self, board: dict[ChunkNumbers, Any], place: ChunkNumbers, value: Any) -> None:
        with self._changed:
            board[place] = value
            self._changed.notify_all()

    def _wait(self, board: dict[ChunkNumbers, Any], place: ChunkNumbers) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: place in board or self._is_broken)
            if place not in board:
                raise PartnerLost("another device of the relay has failed")
            return board.pop(place)


class ChainedRows:
    """Rows of one device: from the host or from its predecessor, and published for its successor.

    Parameters
    ----------
    chain
        The relay.
    kernels, reader
        Kernels and reader of the device; the reader counts forwarded bytes.
    """

    def __init__(self, chain: RowChain, kernels: ChunkKernels, reader: RowReader) -> None:
        self._chain = chain
        self._kernels = kernels
        self._reader = reader
        self._publishers = frozenset(chain.sources.values())
        self._offered: ChunkNumbers | None = None

    def bring(self, place: ChunkNumbers, read: Callable[[], None], num_rows: int, width: int) -> None:
        """Bring the rows that a chunk reads into the buffer `read`.

        Parameters
        ----------
        place
            The chunk.
        read
            Copies the rows from the host.
        num_rows, width
            Shape of the rows.
        """
        self.settle()
        source = self._chain.sources.get(place)
        if source is None:
            read()
        else:
            rows = self._chain.offered(source)
            self._chain.take(source, self._kernels.take_rows(rows, num_rows, width))
            self._reader.reads += 1
            self._reader.handed_bytes += 4 * num_rows * width
        if place in self._publishers:
            self._chain.offer(place, self._kernels.offer_rows())
            self._offered = place

    def settle(self) -> None:
        """Make the device wait, before `read` is overwritten, until its successor has copied the rows."""
        if self._offered is not None:
            self._kernels.keep_rows(self._chain.taken(self._offered))
            self._offered = None
