"""Reading of edge tables into files of edges, and building of CSR rows by target in bounded memory."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.formatting import pluralize, short_repr
from hyrt.graph import kernels as plain_kernels
from hyrt.graph.check import MAX_EDGE_TYPES
from hyrt.graph.csr import ArrayBuilder, iter_ranges
from hyrt.graph.formats.npy import NpyWriter, map_with_header
from hyrt.graph.formats.schema import EDGE_FEATURES, EDGE_TIME, EDGE_TYPE, EDGE_WEIGHT
from hyrt.graph.links.edges import TimedEdges, order_edge_times
from hyrt.graph.tables import kernels
from hyrt.graph.tables.columns import FLOAT32_MAX, FeatureColumns, match_columns, sort_names
from hyrt.graph.tables.import_notes import ImportNotes
from hyrt.graph.tables.schema import EdgeTableSchema
from hyrt.graph.tables.table_batch import (
    MAX_SHOWN,
    UNIX_UNITS,
    RowProblems,
    TableBatch,
    convert_times,
    decode_column,
    find_time_kind,
    find_unix_intervals,
    read_real_numbers,
    read_strings,
)
from hyrt.graph.tables.table_files import TableFiles
from hyrt.graph.tables.vertex_ids import NameIndex, VertexIds
from hyrt.graph.topology import Topology
from hyrt.runtime.hardware import available_cores

Array = NDArray[Any]

RANGE_BYTES = 640 << 20
"""Memory for the entries of the rows that are built at once."""
_READ_EDGES = 1 << 22
_GATHERED = 1 << 21


class EdgeListBuilder:
    """Edges in input order, with their weights, types, features and times, stored in files in `scratch`.

    `dtype`, int32 or int64, is for vertices. `extras` has the shape per edge of each edge value, by schema
    key. `times` is the dtype of times; None without times.
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
        self.num_dropped = 0
        """Number of rows with ids that are not vertices."""
        of_times = {} if times is None else {EDGE_TIME: times}
        self._files = {
            key: scratch / f"listed-{key}.npy" for key in ("sources", "targets", *extras, *of_times)
        }
        dtypes = {EDGE_TYPE: np.dtype(np.int32), EDGE_WEIGHT: np.dtype(np.float32)}
        dtypes[EDGE_FEATURES] = dtypes[EDGE_WEIGHT]
        self.dtypes = {key: dtypes[key] for key in extras} | of_times
        self.extras = extras
        self.has_times = times is not None
        self._new_numbers: tuple[IdMapping | None, IdMapping | None] = (None, None)
        self._writers = {
            key: NpyWriter(file, self.dtypes.get(key, dtype), extras.get(key, ()))
            for key, file in self._files.items()
        }

    def append(self, sources: Array, targets: Array, extras: dict[str, Array]) -> None:
        """Append edges. Edges whose source is below 0 are dropped later, but counted."""
        for key, part in {"sources": sources, "targets": targets, **extras}.items():
            self._writers[key].append(part)
        self.num += len(sources)
        self.num_dropped += int((sources < 0).sum())

    def close(self) -> None:
        """Close the files; idempotent."""
        for writer in self._writers.values():
            writer.close()

    def pieces(self) -> Iterator[tuple[Array, Array]]:
        """Yield sources and targets in blocks."""
        self.close()
        with self._files["sources"].open("rb") as first, self._files["targets"].open("rb") as second:
            for file in (first, second):
                file.seek(128)
            for start in range(0, self.num, _READ_EDGES):
                count = min(_READ_EDGES, self.num - start)
                ends = (np.fromfile(file, self.dtype, count) for file in (first, second))
                sources, targets = map(_renumbered, ends, self._new_numbers)
                yield sources, targets

    def set_id_mappings(self, sources: IdMapping | None, targets: IdMapping | None) -> None:
        """Set the mappings of vertex numbers that `pieces` applies from now on; None disables a mapping."""
        self._new_numbers = (sources, targets)

    def iter_timed(
        self, starts: tuple[int, int] = (0, 0), relation: int | None = None
    ) -> Iterator[TimedEdges]:
        """Yield the edges with their times, in blocks.

        `starts` are the first vertex numbers of the source type and the target type; `relation` is None in a
        homogeneous graph.
        """
        times, first_edge = self.map_values(EDGE_TIME), 0
        for sources, targets in self.pieces():
            known = (sources >= 0) & (targets >= 0)
            ends = [part[known].astype(np.int64) for part in (sources, targets)]
            pairs = np.stack([end + start for end, start in zip(ends, starts, strict=True)], axis=1)
            yield TimedEdges(pairs, times[first_edge : first_edge + len(sources)][known], relation)
            first_edge += len(sources)

    def map_values(self, key: str) -> Array:
        """Memory-map the edge values of one key."""
        return map_with_header(self._files[key], key)[0]

    def renumber(self, key: str, numbers: Array) -> None:
        """Replace each value n of a key by numbers[n]; values of dropped edges are undefined."""
        old, file = self.map_values(key), self._files[key].with_name(f"renumbered-{key}.npy")
        with NpyWriter(file, self.dtypes[key]) as writer:
            for start in range(0, len(old), _READ_EDGES):
                part = old[start : start + _READ_EDGES]
                writer.append(numbers[part.clip(0)])
        self._files[key] = file


@dataclass(frozen=True, slots=True)
class IdMapping:
    """Mapping of vertex numbers: n becomes numbers[n - smallest]."""

    smallest: int
    numbers: Array

    __repr__ = short_repr


def _renumbered(vertices: Array, mapping: IdMapping | None) -> Array:
    """Return mapped vertex numbers; numbers below 0 (of dropped edges) become -1."""
    if mapping is None:
        return vertices
    mapped: Array = mapping.numbers[(vertices - mapping.smallest).clip(0)].astype(vertices.dtype)
    mapped[vertices < 0] = -1
    return mapped


@dataclass(frozen=True, slots=True)
class EdgeOptions:
    """Treatment of reverse edges, duplicates and self loops."""

    undirected: bool
    duplicates: str
    self_loops: str


@dataclass(frozen=True, slots=True)
class CsrBuildResult:
    """Topology built from an edge list, with counts of self loops and merged edges."""

    arrays: dict[str, Array]
    """`indptr`, `indices` and edge values by schema key."""
    self_loops: int
    merged: int
    """Number of edges that were removed as duplicates."""

    __repr__ = short_repr


class DuplicateEdgesError(DataError):
    """Duplicate edges that must not be merged."""

    def __init__(self, numbers: list[int], total: int) -> None:
        super().__init__(f"{total:,} edges repeat earlier edges")
        self.numbers = numbers
        """Row numbers of the first duplicates."""
        self.total = total


def build_csr_rows(
    edges: EdgeListBuilder, num_vertices: int, rules: EdgeOptions, scratch: Path
) -> CsrBuildResult:
    """Build CSR rows by target from an edge list; rows are sorted, and each source occurs once.

    Memory is `RANGE_BYTES` and 32 bytes per vertex; a longer row is processed whole. The result does not
    depend on `RANGE_BYTES`. Raises DuplicateEdgesError if duplicate edges are refused, or have types or
    features, which `merge` cannot sum.
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
    stores = {"indices": ArrayBuilder(dtype, scratch / "rows-indices.npy")}
    stores |= {
        key: ArrayBuilder(edges.dtypes[key], scratch / f"rows-{key}.npy", edges.extras[key])
        for key in edges.extras
    }
    workers = available_cores()
    try:
        with ThreadPoolExecutor(workers) as pool:
            for low, high in iter_ranges(upper, RANGE_BYTES // entry_bytes):
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
                    (
                        lambda a, b, s=starts, e=entries, n=numbers: plain_kernels.sort_rows_with_values(
                            s, a, b, e, n
                        )
                    )
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
                    stores["indices"].append(entries[: plain_kernels.compact_rows(starts, part, entries)])
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
    return CsrBuildResult(arrays, loops, int(upper[-1] - indptr[-1]))


def _append_numbered(
    edges: EdgeListBuilder,
    duplicates: str,
    starts: Array,
    entries: Array,
    numbers: Array,
    counts: Array,
    stores: dict[str, ArrayBuilder],
) -> None:
    """Append sorted rows with known edge numbers, and their edge values, to the stores."""
    cannot_merge = EDGE_TYPE in edges.extras or EDGE_FEATURES in edges.extras
    if duplicates == "refuse" or (duplicates == "merge" and cannot_merge):
        repeated = np.empty(64, np.int64)
        total = int(kernels.find_duplicates(starts, entries, repeated))
        if total:
            raise DuplicateEdgesError(np.unique(numbers[repeated[: min(total, 64)]]).tolist(), total)
    weights = np.empty(0, np.float32)
    if EDGE_WEIGHT in edges.extras:
        weights = _gather(edges.map_values(EDGE_WEIGHT), numbers)
    left = int(kernels.merge_duplicates(starts, entries, numbers, weights, duplicates == "merge", counts))
    stores["indices"].append(entries[:left])
    for key in edges.extras:
        if key == EDGE_WEIGHT:
            stores[key].append(weights[:left])
        else:
            values = edges.map_values(key)
            for start in range(0, left, _GATHERED):
                stores[key].append(values[numbers[start : min(start + _GATHERED, left)]])


def _gather(values: Array, numbers: Array) -> Array:
    """Gather values by edge numbers, in blocks."""
    out = np.empty(len(numbers), values.dtype)
    for start in range(0, len(numbers), _GATHERED):
        chosen = numbers[start : start + _GATHERED]
        out[start : start + len(chosen)] = values[chosen]
    return out


def _edge_times(edges: EdgeListBuilder, arrays: dict[str, Array], *, undirected: bool, file: Path) -> Array:
    """Return the edge times in row order, including those of reverse edges."""

    def both_ways() -> Iterator[TimedEdges]:
        for piece in edges.iter_timed():
            yield piece
            if undirected:
                yield piece._replace(pairs=piece.pairs[:, ::-1])

    topology = Topology(arrays["indptr"], arrays["indices"])
    return order_edge_times(topology, both_ways(), edges.dtypes[EDGE_TIME], file)


@dataclass(slots=True)
class _UnixTimes:
    """Times that look like times since 1970 in one unit."""

    places: list[str]
    """Locations of the first times."""
    values: list[str]
    count: int = 0


_MIN_OTHER_TIMES = 3
"""With so many different numbers between the ranges of the units, numbers are not times since 1970."""


class TimeReader:
    """Reader of the edge times of a dataset, which converts all times to one scale.

    The first times determine the format of all others. Dates become int64, in microseconds since 1970 (UTC).
    Numbers become float64, which is exact for integers below 2^53. If the first times contain larger
    integers, such as nanoseconds since 1970, all times must be integers and become int64.
    """

    def __init__(self) -> None:
        self._kind = ""
        self._first = ""
        self._unix_times = {unit: _UnixTimes([], []) for unit in UNIX_UNITS}
        self._other_times: set[float] = set()
        self._rounded: Counter[str] = Counter()
        self._zones: dict[bool, str] = {}

    def read(self, piece: TableBatch, column: str, decimal: str, bad: RowProblems) -> Array:
        """Return the times [n] of a batch with at least one row; wrong times are collected in `bad`.

        `decimal` is the decimal point in strings.
        """
        values, location = decode_column(piece.columns[column]), f"{piece.name}, column {column!r}"
        if not self._kind:
            self._kind, self._first = find_time_kind(values, decimal), location
        if not self._kind:
            remedy = "Write all times as numbers, or as dates such as 2024-05-31 12:00:00"
            bad.add(piece, column, np.ones(len(values), np.bool_), "is not a time", remedy)
            return np.zeros(len(values), np.int64)
        found = convert_times(values, self._kind, decimal)
        expected = {"dates": "a date", "exact": "an integer", "numbers": "a number"}[self._kind]
        bad.add(
            piece,
            column,
            found.wrong,
            f"is not a time in the format of the first one ({expected} in {self._first})",
            "Write all times in the same format: as numbers, or as dates such as 2024-05-31 12:00:00",
        )
        bad.add(
            piece,
            column,
            found.beyond,
            "is out of range",
            "Use dates within 292,000 years of 1970, or integers below 2^53",
        )
        self._rounded[location] += found.num_rounded
        for has_zone in found.zones:
            self._zones.setdefault(has_zone, location)
        if self._kind != "dates":
            self._collect_units(piece, column, found.times, found.wrong | found.beyond)
        return found.times

    def _collect_units(self, piece: TableBatch, column: str, times: Array, wrong: Array) -> None:
        intervals = find_unix_intervals(times)
        intervals[wrong] = 0
        counts = np.bincount(intervals, minlength=2 * len(UNIX_UNITS) + 1)
        for unit, number in zip(self._unix_times.values(), itertools.count(1, 2)):
            unit.count += int(counts[number])
            num_shown = MAX_SHOWN - len(unit.values)
            if not counts[number] or not num_shown:
                continue
            places = piece.places()
            for row in np.flatnonzero(intervals == number)[:num_shown].tolist():
                unit.places.append(f"{piece.name}, {piece.unit} {places[row]}, column {column!r}")
                unit.values.append(str(times[row].item()).removesuffix(".0"))
        if counts[2::2].any() and len(self._other_times) < _MIN_OTHER_TIMES:
            self._other_times |= set(np.unique(times[(intervals > 0) & (intervals % 2 == 0)]).tolist())

    def check_units(self, bad: RowProblems) -> None:
        """Add an error for each number in another unit since 1970 than most numbers.

        Call this after all times were read.
        """
        found = {name: unit for name, unit in self._unix_times.items() if unit.count}
        if len(found) < 2 or len(self._other_times) >= _MIN_OTHER_TIMES:
            return
        usual = max(found, key=lambda name: found[name].count)
        example = f"such as {found[usual].values[0]} in {found[usual].places[0]}"
        remedy = "Write all times in the same unit"
        for name, unit in found.items():
            if name == usual:
                continue
            for place, value in zip(unit.places, unit.values, strict=True):
                problem = f"{value} looks like {name} since 1970, but other times look like {usual}"
                bad.add_line(f"{place}: {problem}, {example}", remedy)
            bad.total += unit.count - len(unit.places)

    def lines(self) -> Iterator[str]:
        """Yield lines about the scale of the times, and about changed times."""
        if self._kind == "dates":
            yield "times: dates, stored in microseconds since 1970 (UTC)"
        for location, count in self._rounded.items():
            if count:
                yield f"{location}: {pluralize(count, 'time')} rounded down to microseconds"
        if len(self._zones) > 1:
            yield (
                f"some times have a time zone ({self._zones[True]}), and others have none "
                f"({self._zones[False]}) and were read as UTC: if this is wrong, add their time zone"
            )


def read_edges(
    table: EdgeTableSchema,
    files: TableFiles,
    source_ids: VertexIds,
    target_ids: VertexIds,
    bad: RowProblems,
    notes: ImportNotes,
    times: TimeReader,
    scratch: Path,
    dtype: np.dtype[Any],
) -> tuple[EdgeListBuilder, list[str], list[str]]:
    """Read all edges of a table into files in `scratch`.

    `source_ids` and `target_ids` may be the same object; `dtype` is the int32 or int64 of vertices. `times`
    is shared by all tables of the dataset. Errors are collected in `bad`, and notes about changed or missing
    values in `notes`. Returns the edge list, the names of the edge types (empty if they are numbers), and the
    names of the feature columns.
    """
    columns = (table.source, table.target, table.weight, table.type, table.time)
    taken = [column for column in columns if column is not None]
    features = match_columns(table.features, files.columns(), files.names[0], taken)
    kinds = dict.fromkeys((table.source, table.target), "text")
    kinds |= dict.fromkeys(features, "number")
    if table.weight is not None:
        kinds[table.weight] = "number"
    if table.type is not None:
        kinds[table.type] = "text"
    if table.time is not None:
        kinds[table.time] = "any"
    rows = FeatureColumns(features, table.text.decimal, None, "")
    types = NameIndex()
    edges: EdgeListBuilder | None = None
    try:
        for piece in files.batches(kinds):
            bad.add_unreadable(piece)
            notes.add(files.names[0], piece)
            if not piece.num_rows:
                continue
            sources = source_ids.map_ids(piece, table.source, table.unknown, bad)
            targets = target_ids.map_ids(piece, table.target, table.unknown, bad)
            left_out = (sources < 0) | (targets < 0)
            if left_out.any():
                sources[left_out] = targets[left_out] = -1
            extras: dict[str, Array] = {}
            if table.weight is not None:
                extras[EDGE_WEIGHT] = _weights(piece, table.weight, table.text.decimal, bad)
            if table.type is not None:
                extras[EDGE_TYPE] = _types(piece, table.type, types, bad)
            if features:
                extras[EDGE_FEATURES] = rows.rows(piece, bad)
            edge_times: dict[str, Array] = {}
            if table.time is not None:
                edge_times[EDGE_TIME] = times.read(piece, table.time, table.text.decimal, bad)
            if edges is None:
                shapes = {key: part.shape[1:] for key, part in extras.items()}
                edges = EdgeListBuilder(
                    scratch, dtype, shapes, edge_times[EDGE_TIME].dtype if edge_times else None
                )
            edges.append(sources, targets, extras | edge_times)
        for line in itertools.chain(rows.lines(files.names[0]), files.describe_comments()):
            notes.add_line(line)
        if edges is None:
            edges = EdgeListBuilder(scratch, dtype, {})
    finally:
        if edges is not None:
            edges.close()
    return edges, _named_types(types, edges, notes), rows.names()


def _weights(piece: TableBatch, column: str, decimal: str, bad: RowProblems) -> Array:
    values, missing, wrong = read_real_numbers(piece.columns[column], decimal)
    with np.errstate(invalid="ignore", over="ignore"):
        weights = values.astype(np.float32)
        wrong = missing | wrong | ~(weights > 0) | (values > FLOAT32_MAX)
    bad.add(piece, column, wrong, "is not a valid weight", "Set each weight to a finite number above 0")
    return weights


def _types(piece: TableBatch, column: str, types: NameIndex, bad: RowProblems) -> Array:
    names, missing = read_strings(piece.columns[column])
    bad.add(
        piece, column, missing, "is not a valid edge type", "Add a type to each edge: an integer or a string"
    )
    numbers = types.add(names, missing)
    bad.add(
        piece,
        column,
        numbers >= MAX_EDGE_TYPES,
        "exceeds the maximum number of edge types",
        f"Use at most {MAX_EDGE_TYPES:,} edge types",
    )
    return numbers.astype(np.int32)


def _named_types(types: NameIndex, edges: EdgeListBuilder, notes: ImportNotes) -> list[str]:
    """Replace the provisional type numbers by the final ones and return the type names.

    Types that are written as numbers keep them; other types are numbered in the order of their names.
    """
    if not types.num or not edges.num:
        return []
    merged = notes.merge_integers("edge types", types)
    notes.add_lookalikes("edge types", types)
    found = [name for block in types.blocks() for name in block]
    are_numbers = all(map(_is_type_number, found))
    names, places = sort_names(types)
    final = np.array([int(name) for name in found] if are_numbers else places, np.int32)
    edges.renumber(EDGE_TYPE, final if merged is None else final[merged])
    return [] if are_numbers else names


def _is_type_number(name: str) -> bool:
    # 007 and 7 are different types.
    is_number = name.isascii() and name.isdigit() and len(name) < 9
    return is_number and str(int(name)) == name and int(name) < MAX_EDGE_TYPES
