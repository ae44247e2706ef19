"""Devices that hand rows on to each other, where each would copy them from the host (NeuGraph, 3.3)."""

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
"""A chunk: the interval that is added to, which one device computes, and the interval that is read."""


def chains(count: int, reaches: Callable[[int, int], bool]) -> tuple[tuple[int, ...], ...]:
    """Put devices in chains, in their order.

    Parameters
    ----------
    count
        How many devices there are.
    reaches
        Whether the first of two devices copies straight out of the memory of the second.

    Returns
    -------
    The devices of each chain; one that reaches no other is a chain of its own.
    """
    found: list[list[int]] = []
    for device in range(count):
        chain = next((each for each in found if reaches(device, each[-1])), None)
        if chain is None:
            found.append([device])
        else:
            chain.append(device)
    return tuple(map(tuple, found))


def handed_on(
    chain: Sequence[int],
    columns: Sequence[Sequence[int]],
    reads: Sequence[int],
    needs: Callable[[int, int], bool],
) -> dict[ChunkNumbers, ChunkNumbers]:
    """Which chunks get their rows from the device of another chunk.

    The devices of a chain compute their first columns at the same time, then their second ones. Of those that
    need an interval then, the first one copies it from the host, and each other one from the one before it.

    Parameters
    ----------
    chain
        The devices, in the order in which rows are handed on.
    columns
        The intervals that each device adds to, in its order.
    reads
        The intervals that are read for each of them.
    needs
        Whether all rows of an interval, the second number, are read for a column, the first one.

    Returns
    -------
    For each such chunk, the one whose device has the rows.
    """
    found: dict[ChunkNumbers, ChunkNumbers] = {}
    for together in zip_longest(*(columns[device] for device in chain)):
        there = [column for column in together if column is not None]
        for read in reads:
            wanted = [(column, read) for column in there if needs(column, read)]
            found.update((later, earlier) for earlier, later in pairwise(wanted))
    return found


@dataclass(slots=True)
class RowChain:
    """Where devices that compute at the same time find what others have for them; one for each pass.

    Every device reads in the same order, and nobody waits for what comes later in it: so none waits for ever,
    unless another one fails, and `part` tells of that.
    """

    sources: Mapping[ChunkNumbers, ChunkNumbers] = field(default_factory=dict)
    """What `handed_on` has found."""
    _offers: dict[ChunkNumbers, Any] = field(default_factory=dict)
    _taken: dict[ChunkNumbers, Any] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _is_broken: bool = False

    @contextmanager
    def part(self) -> Iterator[None]:
        """Inside, a device does its part; if it fails, those that wait for it are told."""
        try:
            yield
        except BaseException:
            with self._changed:
                self._is_broken = True
                self._changed.notify_all()
            raise

    def offer(self, place: ChunkNumbers, rows: Any) -> None:
        """Tell where the rows that were read for a chunk are."""
        self._tell(self._offers, place, rows)

    def offered(self, place: ChunkNumbers) -> Any:
        """Where the rows are that another device reads for a chunk, once it has them."""
        return self._wait(self._offers, place)

    def take(self, place: ChunkNumbers, end: Any) -> None:
        """Tell when the copy ends of what was offered."""
        self._tell(self._taken, place, end)

    def taken(self, place: ChunkNumbers) -> Any:
        """When the copy ends of what was offered, once it has begun."""
        return self._wait(self._taken, place)

    def _tell(self, where: dict[ChunkNumbers, Any], place: ChunkNumbers, what: Any) -> None:
        with self._changed:
            where[place] = what
            self._changed.notify_all()

    def _wait(self, where: dict[ChunkNumbers, Any], place: ChunkNumbers) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: place in where or self._is_broken)
            if place not in where:
                raise PartnerLost("another device of the chain has failed")
            return where.pop(place)


class ChainedRows:
    """The rows of one device: from the host, or from the device before it; offered to the one after it.

    Parameters
    ----------
    chain
        What it tells the others, and they tell it.
    kernels, reader
        The device's; the reader counts what others have handed on.
    """

    def __init__(self, chain: RowChain, kernels: ChunkKernels, reader: RowReader) -> None:
        self._chain = chain
        self._kernels = kernels
        self._reader = reader
        self._givers = frozenset(chain.sources.values())
        self._offered: ChunkNumbers | None = None

    def bring(self, place: ChunkNumbers, read: Callable[[], None], num_rows: int, width: int) -> None:
        """Bring the rows that a chunk reads to the place `read`.

        Parameters
        ----------
        place
            The chunk.
        read
            Copies them from the host.
        num_rows, width
            What is to be there.
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
        if place in self._givers:
            self._chain.offer(place, self._kernels.offer_rows())
            self._offered = place

    def settle(self) -> None:
        """Before what is read is written to: until the next device copies it, for which the device waits."""
        if self._offered is not None:
            self._kernels.keep_rows(self._chain.taken(self._offered))
            self._offered = None
