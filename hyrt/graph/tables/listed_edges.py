"""Edges as they come, in files, and from there to rows by target."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph import kernels as plain_kernels
from hyrt.graph.csr import Store, ranges
from hyrt.graph.formats.npy import NpyWriter
from hyrt.graph.formats.recorded_npy import map_with_header
from hyrt.graph.formats.schema import EDGE_FEATURES, EDGE_TIME, EDGE_TYPE, EDGE_WEIGHT
from hyrt.graph.links.edge_times import TimedEdges, times_in_rows
from hyrt.graph.tables import edge_kernels as kernels
from hyrt.graph.topology import Topology
from hyrt.machine.cores import available_cores
from hyrt.quantities import one_line

Array = NDArray[Any]

RANGE_BYTES = 640 << 20
"""Memory for the entries of the rows that are built at once."""
_READ_EDGES = 1 << 22
_GATHERED = 1 << 21


class ListedEdges:
    """Edges in the order of their rows, each with what belongs to it.

    Parameters
    ----------
    scratch
        A folder for their files.
    dtype
        int32 or int64, of the vertices.
    extras
        Keys of the schema that each edge has besides, with the width of features.
    times
        The dtype of times; None without times.
    """

    def __init__(
        self,
        scratch: Path,
        dtype: np.dtype[Any],
        extras: dict[str, tuple[int, ...]],
        times: np.dtype[Any] | None = None,
    ) -> None:
        self.dtype = dtype
        self.num = 0
        """How many rows there are, also those of edges that were left out."""
        of_times = {} if times is None else {EDGE_TIME: times}
        self._files = {
            key: scratch / f"listed-{key}.npy" for key in ("sources", "targets", *extras, *of_times)
        }
        dtypes = {EDGE_TYPE: np.dtype(np.int32), EDGE_WEIGHT: np.dtype(np.float32)}
        dtypes[EDGE_FEATURES] = dtypes[EDGE_WEIGHT]
        self.dtypes = {key: dtypes[key] for key in extras} | of_times
        self.extras = extras
        self.has_times = times is not None
        self._new_numbers: tuple[NewNumbers | None, NewNumbers | None] = (None, None)
        self._writers = {
            key: NpyWriter(file, self.dtypes.get(key, dtype), extras.get(key, ()))
            for key, file in self._files.items()
        }

    def append(self, sources: Array, targets: Array, extras: dict[str, Array]) -> None:
        """Add edges; those with a vertex below 0 are left out, but counted."""
        for key, part in {"sources": sources, "targets": targets, **extras}.items():
            self._writers[key].append(part)
        self.num += len(sources)

    def close(self) -> None:
        """Close the files; idempotent."""
        for writer in self._writers.values():
            writer.close()

    def pieces(self) -> Iterator[tuple[Array, Array]]:
        """Sources and targets, some edges at a time."""
        self.close()
        with self._files["sources"].open("rb") as first, self._files["targets"].open("rb") as second:
            for file in (first, second):
                file.seek(128)
            for start in range(0, self.num, _READ_EDGES):
                count = min(_READ_EDGES, self.num - start)
                ends = (np.fromfile(file, self.dtype, count) for file in (first, second))
                sources, targets = map(_renumbered, ends, self._new_numbers)
                yield sources, targets

    def renumber_ends(self, sources: NewNumbers | None, targets: NewNumbers | None) -> None:
        """Give vertices other numbers from now on; None for an end whose numbers stay."""
        self._new_numbers = (sources, targets)

    def timed(self, starts: tuple[int, int] = (0, 0), relation: int | None = None) -> Iterator[TimedEdges]:
        """Yield the edges with their times, some at a time.

        Parameters
        ----------
        starts
            The numbers of the first vertices of the types of sources and of targets.
        relation
            The number of their relation; None if vertices have no types.
        """
        times, at = self.mapped(EDGE_TIME), 0
        for sources, targets in self.pieces():
            known = (sources >= 0) & (targets >= 0)
            ends = [each[known].astype(np.int64) for each in (sources, targets)]
            pairs = np.stack([end + start for end, start in zip(ends, starts, strict=True)], axis=1)
            yield TimedEdges(pairs, times[at : at + len(sources)][known], relation)
            at += len(sources)

    def mapped(self, key: str) -> Array:
        """What each edge has besides, as a file that is mapped."""
        return map_with_header(self._files[key], key)[0]

    def renumber(self, key: str, numbers: Array) -> None:
        """Give each value n of a key the value numbers[n]; those of edges that are wrong stay."""
        old, file = self.mapped(key), self._files[key].with_name(f"renumbered-{key}.npy")
        with NpyWriter(file, self.dtypes[key]) as writer:
            for start in range(0, len(old), _READ_EDGES):
                part = old[start : start + _READ_EDGES]
                writer.append(numbers[part.clip(0)])
        self._files[key] = file


@dataclass(frozen=True, slots=True)
class NewNumbers:
    """Other numbers for vertices: numbers[n - least] for n."""

    least: int
    numbers: Array

    __repr__ = one_line


def _renumbered(vertices: Array, new: NewNumbers | None) -> Array:
    """Return new numbers; what is below 0, an end of an edge that was left out, stays."""
    if new is None:
        return vertices
    found: Array = new.numbers[(vertices - new.least).clip(0)].astype(vertices.dtype)
    found[vertices < 0] = -1
    return found


@dataclass(frozen=True, slots=True)
class RowRules:
    """What becomes of edges."""

    undirected: bool
    duplicates: str
    self_loops: str


@dataclass(frozen=True, slots=True)
class BuiltRows:
    """A topology, and what was met on the way."""

    arrays: dict[str, Array]
    """`indptr`, `indices` and what edges have besides, by key of the schema."""
    self_loops: int
    merged: int
    """Edges that are no more, as they repeat others."""

    __repr__ = one_line


class RepeatedEdges(DataError):
    """Edges that repeat others, of which none may be given up."""

    def __init__(self, numbers: list[int], total: int) -> None:
        super().__init__(f"{total:,} edges repeat others")
        self.numbers = numbers
        """The rows of the first of them."""
        self.total = total


def build_rows(edges: ListedEdges, num_vertices: int, rules: RowRules, scratch: Path) -> BuiltRows:
    """Put edges into the rows of their targets, each row sorted and every source once.

    Memory is `RANGE_BYTES` and 32 bytes a vertex; a longer row still is one piece. The result does not
    depend on the bound.

    Raises
    ------
    RepeatedEdges
        If edges repeat others where that is refused, or have types or features, which `merge` cannot add up.
    """
    undirected, drop = rules.undirected, rules.self_loops == "drop"
    counts = np.zeros(num_vertices, np.int64)
    loops = 0
    for sources, targets in edges.pieces():
        loops += int(kernels.count_rows(sources, targets, undirected, drop, counts))
    upper = np.zeros(num_vertices + 1, np.int64)
    np.cumsum(counts, out=upper[1:])
    dtype = np.dtype(np.int32 if num_vertices < 2**31 else np.int64)
    numbered = bool(edges.extras) or rules.duplicates == "refuse"
    number = np.dtype(np.int32 if edges.num < 2**31 else np.int64)
    entry_bytes = dtype.itemsize + (number.itemsize + 8 if numbered else 0)
    stores = {"indices": Store(dtype, scratch / "rows-indices.npy")}
    stores |= {
        key: Store(edges.dtypes[key], scratch / f"rows-{key}.npy", edges.extras[key]) for key in edges.extras
    }
    workers = available_cores()
    try:
        with ThreadPoolExecutor(workers) as pool:
            for low, high in ranges(upper, RANGE_BYTES // entry_bytes):
                starts = upper[low : high + 1] - upper[low]
                entries = np.empty(int(starts[-1]), dtype)
                cursor = starts[:-1].copy()
                numbers = np.empty(len(entries) if numbered else 0, number)
                at = 0
                for sources, targets in edges.pieces():
                    if numbered:
                        kernels.scatter_numbered(
                            *(sources, targets, undirected, drop, low, high, cursor, entries, at, numbers)
                        )
                    else:
                        kernels.scatter(sources, targets, undirected, drop, low, high, cursor, entries)
                    at += len(sources)
                part = counts[low:high]
                sort = (
                    (lambda a, b, s=starts, e=entries, n=numbers: plain_kernels.sort_along(s, a, b, e, n))
                    if numbered
                    else (lambda a, b, s=starts, e=entries, c=part: plain_kernels.sort_rows(s, a, b, e, c))
                )
                cuts = np.searchsorted(starts, np.linspace(0, starts[-1], 8 * workers + 1)[1:-1])
                bounds = [0, *cuts.clip(0, high - low).tolist(), high - low]
                for job in [pool.submit(sort, a, b) for a, b in itertools.pairwise(bounds)]:
                    job.result()
                if numbered:
                    _append_numbered(edges, rules.duplicates, starts, entries, numbers, part, stores)
                else:
                    stores["indices"].append(entries[: plain_kernels.close_gaps(starts, part, entries)])
        indptr = np.zeros(num_vertices + 1, np.int64)
        np.cumsum(counts, out=indptr[1:])
        arrays = {"indptr": indptr, **{key: store.finish() for key, store in stores.items()}}
        if edges.has_times:
            arrays[EDGE_TIME] = _times(edges, arrays, undirected=undirected, file=scratch / "rows-times.npy")
    finally:
        for store in stores.values():
            store.close()
    return BuiltRows(arrays, loops, int(upper[-1] - indptr[-1]))


def _append_numbered(
    edges: ListedEdges,
    duplicates: str,
    starts: Array,
    entries: Array,
    numbers: Array,
    counts: Array,
    stores: dict[str, Store],
) -> None:
    """Sorted rows, whose edges' numbers are known, and what belongs to their edges."""
    cannot_merge = EDGE_TYPE in edges.extras or EDGE_FEATURES in edges.extras
    if duplicates == "refuse" or (duplicates == "merge" and cannot_merge):
        repeated = np.empty(64, np.int64)
        total = int(kernels.find_repeated(starts, entries, repeated))
        if total:
            raise RepeatedEdges(np.unique(numbers[repeated[: min(total, 64)]]).tolist(), total)
    weights = np.empty(0, np.float32)
    if EDGE_WEIGHT in edges.extras:
        weights = _gathered(edges.mapped(EDGE_WEIGHT), numbers)
    left = int(kernels.keep_once(starts, entries, numbers, weights, duplicates == "merge", counts))
    stores["indices"].append(entries[:left])
    for key in edges.extras:
        if key == EDGE_WEIGHT:
            stores[key].append(weights[:left])
        else:
            values = edges.mapped(key)
            for start in range(0, left, _GATHERED):
                stores[key].append(values[numbers[start : min(start + _GATHERED, left)]])


def _gathered(values: Array, numbers: Array) -> Array:
    out = np.empty(len(numbers), values.dtype)
    for start in range(0, len(numbers), _GATHERED):
        chosen = numbers[start : start + _GATHERED]
        out[start : start + len(chosen)] = values[chosen]
    return out


def _times(edges: ListedEdges, arrays: dict[str, Array], *, undirected: bool, file: Path) -> Array:
    """Return the times of edges in rows, with those of reverse edges."""

    def both_ways() -> Iterator[TimedEdges]:
        for piece in edges.timed():
            yield piece
            if undirected:
                yield piece._replace(pairs=piece.pairs[:, ::-1])

    topology = Topology(arrays["indptr"], arrays["indices"])
    return times_in_rows(topology, both_ways(), edges.dtypes[EDGE_TIME], file)
