"""Edges in input order, stored in files, and the construction of CSR rows by target."""

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
    """Edges in input order, with their weights, types, features and times, stored in files.

    Parameters
    ----------
    scratch
        Folder for the files.
    dtype
        int32 or int64, the dtype of vertices.
    extras
        Schema keys of the edge values, with their shape per edge.
    times
        Dtype of times; None without times.
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
        """Number of rows, including edges that are dropped."""
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
        """Add edges. Edges with a vertex below 0 are dropped, but counted."""
        for key, part in {"sources": sources, "targets": targets, **extras}.items():
            self._writers[key].append(part)
        self.num += len(sources)

    def close(self) -> None:
        """Close the files; idempotent."""
        for writer in self._writers.values():
            writer.close()

    def pieces(self) -> Iterator[tuple[Array, Array]]:
        """Yield sources and targets in pieces."""
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
        """Set a mapping of vertex numbers that is applied from now on; None leaves an endpoint's numbers
        unchanged.
        """
        self._new_numbers = (sources, targets)

    def timed(self, starts: tuple[int, int] = (0, 0), relation: int | None = None) -> Iterator[TimedEdges]:
        """Yield the edges with their times, in pieces.

        Parameters
        ----------
        starts
            First vertex numbers of the source type and the target type.
        relation
            Number of the relation; None in a homogeneous graph.
        """
        times, first_edge = self.mapped(EDGE_TIME), 0
        for sources, targets in self.pieces():
            known = (sources >= 0) & (targets >= 0)
            ends = [part[known].astype(np.int64) for part in (sources, targets)]
            pairs = np.stack([end + start for end, start in zip(ends, starts, strict=True)], axis=1)
            yield TimedEdges(pairs, times[first_edge : first_edge + len(sources)][known], relation)
            first_edge += len(sources)

    def mapped(self, key: str) -> Array:
        """Memory-map the file of one key's edge values."""
        return map_with_header(self._files[key], key)[0]

    def renumber(self, key: str, numbers: Array) -> None:
        """Replace each value n of a key by numbers[n]; values of dropped edges are undefined."""
        old, file = self.mapped(key), self._files[key].with_name(f"renumbered-{key}.npy")
        with NpyWriter(file, self.dtypes[key]) as writer:
            for start in range(0, len(old), _READ_EDGES):
                part = old[start : start + _READ_EDGES]
                writer.append(numbers[part.clip(0)])
        self._files[key] = file


@dataclass(frozen=True, slots=True)
class NewNumbers:
    """Mapping of vertex numbers: n becomes numbers[n - least]."""

    least: int
    numbers: Array

    __repr__ = one_line


def _renumbered(vertices: Array, mapping: NewNumbers | None) -> Array:
    """Return mapped vertex numbers; values below 0, endpoints of dropped edges, are unchanged."""
    if mapping is None:
        return vertices
    mapped: Array = mapping.numbers[(vertices - mapping.least).clip(0)].astype(vertices.dtype)
    mapped[vertices < 0] = -1
    return mapped


@dataclass(frozen=True, slots=True)
class RowRules:
    """Treatment of reverse edges, duplicates and self loops."""

    undirected: bool
    duplicates: str
    self_loops: str


@dataclass(frozen=True, slots=True)
class BuiltRows:
    """Topology built from an edge list, with counts of self loops and merged edges."""

    arrays: dict[str, Array]
    """`indptr`, `indices` and edge values by schema key."""
    self_loops: int
    merged: int
    """Number of edges that were removed as duplicates."""

    __repr__ = one_line


class RepeatedEdges(DataError):
    """Duplicate edges that must not be merged."""

    def __init__(self, numbers: list[int], total: int) -> None:
        super().__init__(f"{total:,} edges repeat others")
        self.numbers = numbers
        """Row numbers of the first duplicates."""
        self.total = total


def build_rows(edges: ListedEdges, num_vertices: int, rules: RowRules, scratch: Path) -> BuiltRows:
    """Build CSR rows by target from an edge list; rows are sorted, and each source occurs once.

    Memory is `RANGE_BYTES` and 32 bytes per vertex; a longer row is processed as one piece. The result does
    not depend on the bound.

    Raises
    ------
    RepeatedEdges
        If duplicate edges are refused, or have types or features, which `merge` cannot sum.
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
                first = 0
                for sources, targets in edges.pieces():
                    if numbered:
                        kernels.scatter_numbered(
                            *(sources, targets, undirected, drop, low, high, cursor, entries, first, numbers)
                        )
                    else:
                        kernels.scatter(sources, targets, undirected, drop, low, high, cursor, entries)
                    first += len(sources)
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
            arrays[EDGE_TIME] = _edge_times(
                edges, arrays, undirected=undirected, file=scratch / "rows-times.npy"
            )
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
    """Append sorted rows with known edge numbers, and their edge values, to the stores."""
    cannot_merge = EDGE_TYPE in edges.extras or EDGE_FEATURES in edges.extras
    if duplicates == "refuse" or (duplicates == "merge" and cannot_merge):
        repeated = np.empty(64, np.int64)
        total = int(kernels.find_repeated(starts, entries, repeated))
        if total:
            raise RepeatedEdges(np.unique(numbers[repeated[: min(total, 64)]]).tolist(), total)
    weights = np.empty(0, np.float32)
    if EDGE_WEIGHT in edges.extras:
        weights = _gather(edges.mapped(EDGE_WEIGHT), numbers)
    left = int(kernels.keep_once(starts, entries, numbers, weights, duplicates == "merge", counts))
    stores["indices"].append(entries[:left])
    for key in edges.extras:
        if key == EDGE_WEIGHT:
            stores[key].append(weights[:left])
        else:
            values = edges.mapped(key)
            for start in range(0, left, _GATHERED):
                stores[key].append(values[numbers[start : min(start + _GATHERED, left)]])


def _gather(values: Array, numbers: Array) -> Array:
    """Gather values by edge numbers in pieces."""
    out = np.empty(len(numbers), values.dtype)
    for start in range(0, len(numbers), _GATHERED):
        chosen = numbers[start : start + _GATHERED]
        out[start : start + len(chosen)] = values[chosen]
    return out


def _edge_times(edges: ListedEdges, arrays: dict[str, Array], *, undirected: bool, file: Path) -> Array:
    """Return the edge times in row order, including those of reverse edges."""

    def both_ways() -> Iterator[TimedEdges]:
        for piece in edges.timed():
            yield piece
            if undirected:
                yield piece._replace(pairs=piece.pairs[:, ::-1])

    topology = Topology(arrays["indptr"], arrays["indices"])
    return times_in_rows(topology, both_ways(), edges.dtypes[EDGE_TIME], file)
