"""Import of a dataset from tables, atomically and in bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError, escape_undecodable, join_names
from hyrt.formatting import format_bytes, pluralize
from hyrt.graph.formats.convert import check_destination, write_dataset
from hyrt.graph.formats.npy import CHUNK_BYTES
from hyrt.graph.formats.schema import EDGE_WEIGHT, Dataset, FeatureRows, check_dataset
from hyrt.graph.graph import SPLITS
from hyrt.graph.labels import is_labelled
from hyrt.graph.metadata import IDS, DataNames, add_names, save_names, write_names
from hyrt.graph.normalize import largest_column_rms
from hyrt.graph.tables.csv_batches import BLOCK_BYTES
from hyrt.graph.tables.edge_list import (
    RANGE_BYTES,
    CsrBuildResult,
    DuplicateEdgesError,
    EdgeListBuilder,
    EdgeOptions,
    IdMapping,
    TimeReader,
    build_csr_rows,
    read_edges,
)
from hyrt.graph.tables.import_notes import ImportNotes
from hyrt.graph.tables.read_vertices import VertexTableData, read_vertices
from hyrt.graph.tables.schema import CsvDialect, EdgeTableSchema, ImportSchema, RandomSplit
from hyrt.graph.tables.table_batch import MAX_SHOWN, RowProblems
from hyrt.graph.tables.table_files import (
    TableFiles,
    check_partitions,
    have_numbered_names,
    list_skipped_files,
    list_table_files,
)
from hyrt.graph.tables.vertex_ids import (
    NAME_BYTES,
    SPARSE_FACTOR,
    IntegerIds,
    NameIndex,
    StringIds,
    VertexIds,
)
from hyrt.runtime.files import atomic_output
from hyrt.runtime.hardware import available_cores
from hyrt.runtime.rng import SPLIT, stream_key, vertex_streams

Array = NDArray[Any]
ReportLine = Callable[[str], None]

VERTEX_BYTES = 80
"""Memory per vertex for ids, order, labels, split, counts, row pointers and cursors."""
NAMED_VERTEX_BYTES = VERTEX_BYTES + NAME_BYTES
"""Memory per vertex with string ids, without three times the length of an id."""
DEGREE_COLUMN = "log(1 + in-degree)"
"""Name of the default feature of vertices without features."""
_SHOWN = 5
_LARGE = 10.0
"""Feature values above this magnitude make training start at a useless loss, with usual initial weights."""
LARGE_INPUT = 16 << 30
"""Smaller text files cannot contain 2^31 vertices unless most vertices have no edges."""


Schema = TypeVar("Schema")


@dataclass(frozen=True, slots=True)
class ImportJob(Generic[Schema]):
    """Input, schema and destination of a table import."""

    files: Sequence[Path]
    """CSV or Parquet files, or folders of them."""
    destination: Path
    """A `.npz` file, or a folder if the name does not end in .npz."""
    schema: Schema
    """Role of each file and column."""
    force: bool = False
    """Replace an existing dataset at the destination."""


def import_tables(job: ImportJob[ImportSchema], report: ReportLine = lambda line: None) -> None:
    """Import a dataset from tables; it appears complete or not at all, even after Ctrl-C.

    `report` receives lines of text: a memory bound before the work starts, and a summary at the end. Raises
    DataError if rows are wrong, or the destination cannot be written.
    """
    destination = job.destination.absolute()
    check_destination(destination, job.force)
    schema = job.schema
    tables = {"edges": (schema.edges.files, schema.edges.text)}
    if schema.vertices is not None:
        tables["vertices"] = (schema.vertices.files, schema.vertices.text)
    files = assign_files(job.files, tables, report)
    edge_files = files["edges"]
    report(f"memory: at most {_bound(schema, edge_files)}, not counting the interpreter")
    with atomic_output(destination, "dataset") as (result, scratch):
        bad, notes, times = RowProblems(), ImportNotes(), TimeReader()
        vertices = None
        if schema.vertices is not None:
            vertices = read_vertices(
                schema.vertices,
                files["vertices"],
                named=schema.ids == "names",
                first_id=schema.first_id,
                bad=bad,
                notes=notes,
                scratch=scratch,
            )
        ids = _ids_of_edges(schema, vertices)
        dtype = np.dtype(np.int64 if _may_be_large(schema, vertices, edge_files) else np.int32)
        edges, types, edge_columns = read_edges(
            schema.edges, edge_files, ids, ids, bad, notes, times, scratch, dtype
        )
        times.check_units(bad)
        bad.check()
        if not edges.num or not ids.num_vertices:
            raise DataError(f"{edge_files.names[0]}: the edge table has no rows: pass a file with edges")
        check_consecutive(edge_files.names[0], ids, 2 * edges.num)
        gaps = compact_ids([(edges, ids, ids)], {"": ids}, notes)
        count = ids.num_vertices
        built = _built(edges, count, schema.edges, edge_files, scratch)
        data = _dataset(str(destination), schema, vertices, count, built)
        check_dataset(data, features="none")
        write_dataset(data, destination, result)
        add_names(result, _id_file(ids, scratch))
        save_names(_names(vertices, types, edge_columns), {}, result, scratch)
        unscaled = [] if vertices is None else describe_unscaled({"": vertices})
        if isinstance(ids, StringIds):
            notes.add_lookalikes("ids", ids.names)
    summary = _summarize(schema, edges, built, count, types, vertices)
    for line in [*notes.lines(), *summary, *times.lines(), *gaps, *unscaled]:
        report(line)


def assign_files(
    inputs: Sequence[Path], tables: Mapping[str, tuple[Sequence[str], CsvDialect]], report: ReportLine
) -> dict[str, TableFiles]:
    """Return the files of each table.

    `tables` has the file names and patterns of each table in the schema, and their CSV dialect. `report`
    receives a line per folder with files that are not read. Raises DataError if a file belongs to no table or
    to several, or is listed twice, or a table has no file.
    """
    paths_by_table: dict[str, list[Path]] = {name: [] for name in tables}
    without_order = set()
    for path in inputs:
        owners = [name for name, (patterns, _) in tables.items() if _is_one_of(path, patterns)]
        shown = escape_undecodable(str(path))
        if not owners:
            known = "; ".join(f"{name}: {', '.join(patterns)}" for name, (patterns, _) in tables.items())
            raise DataError(
                f"{shown} is not in any table of the schema ({known}): add it there, or leave it out"
            )
        if len(owners) > 1:
            raise DataError(
                f"{shown} is in several tables of the schema ({join_names(owners)}): list it in only one"
            )
        paths = list_table_files(path)
        paths_by_table[owners[0]] += paths
        if skipped := list_skipped_files(path):
            more = f" and {len(skipped) - _SHOWN:,} more" if len(skipped) > _SHOWN else ""
            report(f"{shown}: files that are not read: {', '.join(skipped[:_SHOWN])}{more}")
        if not have_numbered_names(paths):
            without_order.add(owners[0])
    for name, paths in paths_by_table.items():
        check_partitions(paths)
        if repeated := [path for path, count in Counter(map(Path.resolve, paths)).items() if count > 1]:
            raise DataError(
                f"{escape_undecodable(str(repeated[0]))} is listed twice in the input: list each file once"
            )
        if not paths:
            raise DataError(
                f"the input has no file for {name}: add {', '.join(tables[name][0])}, as listed in the schema"
            )
    return {
        name: TableFiles(paths, tables[name][1], name not in without_order)
        for name, paths in paths_by_table.items()
    }


def _is_one_of(path: Path, patterns: Sequence[str]) -> bool:
    name = path.name or path.resolve().name
    return any(pattern in (name, str(path)) or fnmatchcase(name, pattern) for pattern in patterns)


def block_bytes() -> int:
    """Return an upper bound of the memory in bytes for the rows that are read or written at once."""
    # Queued blocks and blocks in parsing, each with its text and its values in Arrow and numpy.
    return (2 * available_cores() + 2) * 8 * BLOCK_BYTES + 6 * CHUNK_BYTES


def _bound(schema: ImportSchema, edge_files: TableFiles) -> str:
    """Describe the required memory."""
    # The shortest row has two digits, a delimiter and a line end; compressed files may contain more rows.
    entries = min(RANGE_BYTES, 8 * edge_files.num_bytes) if edge_files.are_plain else RANGE_BYTES
    per_vertex = f"{VERTEX_BYTES} bytes per vertex"
    if schema.ids == "names":
        per_vertex = f"{NAMED_VERTEX_BYTES} bytes per vertex and 3 per character of its id"
    return f"{format_bytes(block_bytes() + entries)}, plus {per_vertex}"


def _ids_of_edges(schema: ImportSchema, vertices: VertexTableData | None) -> VertexIds:
    if vertices is None:
        if schema.ids == "names":
            return StringIds(NameIndex(), grows=True)
        return integer_ids_without_table(schema.first_id, schema.num_vertices, schema.edges.text.decimal)
    if isinstance(vertices.ids, IntegerIds):
        return IntegerIds(schema.first_id, vertices.count, schema.edges.text.decimal, vertices.count)
    return vertices.ids


def integer_ids_without_table(first: int, count: int | None, decimal: str) -> IntegerIds:
    """Return integer ids without a vertex table; `count` None means that only ids in edges are vertices."""
    return IntegerIds(first, count, decimal, 2**31, from_table=False)


def _may_be_large(schema: ImportSchema, vertices: VertexTableData | None, files: TableFiles) -> bool:
    if schema.num_vertices is not None:
        return schema.num_vertices >= 2**31
    return files.num_bytes >= LARGE_INPUT if vertices is None else vertices.count >= 2**31


def compact_ids(
    lists: Sequence[tuple[EdgeListBuilder, VertexIds, VertexIds]],
    ids: Mapping[str, VertexIds],
    notes: ImportNotes,
) -> list[str]:
    """Assign numbers to the ids that occur in edges, unless a table or a count defines the ids.

    The names 3.0 and 3 get the same number if all names are integers. `lists` has each edge list with the
    id mappings of its endpoints; `ids` has all id mappings by vertex type. Returns lines about unused ids.
    """
    lines = []
    new: dict[int, IdMapping] = {}
    for name, type_ids in ids.items():
        label = f"ids of {name}" if name else "ids"
        if isinstance(type_ids, StringIds) and type_ids.grows:
            if (numbers := notes.merge_integers(label, type_ids.names)) is not None:
                new[id(type_ids)] = IdMapping(0, numbers)
        if not isinstance(type_ids, IntegerIds) or type_ids.count is not None or type_ids.largest < 0:
            continue
        smallest, span = type_ids.smallest, type_ids.largest + 1 - type_ids.smallest
        pieces = (
            part
            for edges, *ends in lists
            for ends_of_piece in edges.pieces()
            for part, end in zip(ends_of_piece, ends, strict=True)
            if end is type_ids
        )
        new[id(type_ids)] = IdMapping(smallest, type_ids.compact(pieces))
        if type_ids.num_vertices < span:
            first = type_ids.first + smallest
            lines.append(
                f"{label} between {first:,} and {first + span - 1:,} without edges are not vertices "
                f"({span - type_ids.num_vertices:,}): set num_vertices in a schema to add them as isolated "
                "vertices"
            )
    for edges, *ends in lists:
        sources, targets = (new.get(id(end)) for end in ends)
        edges.set_id_mappings(sources, targets)
    return lines


def check_consecutive(location: str, ids: VertexIds, num_references: int) -> None:
    """Raise DataError if most ids are unused, although ids should be consecutive numbers."""
    count = ids.num_vertices
    if isinstance(ids, IntegerIds) and ids.count is None:
        count -= min(count, ids.smallest)
        if count > 1000 + SPARSE_FACTOR * num_references:
            raise DataError(
                f"{location}: ids range from {ids.first + ids.smallest:,} to {ids.first + ids.largest:,}, "
                f"but edges use only {num_references:,}: if ids are not consecutive, set ids in the schema "
                "to names; otherwise set num_vertices, or add a vertex table"
            )


def _built(
    edges: EdgeListBuilder, count: int, table: EdgeTableSchema, files: TableFiles, scratch: Path
) -> CsrBuildResult:
    bad = RowProblems()
    try:
        built = build_csr_rows(
            edges, count, EdgeOptions(table.undirected, table.duplicates, table.self_loops), scratch
        )
    except DuplicateEdgesError as repeated:
        shown = np.array(repeated.numbers[:MAX_SHOWN], np.int64)
        remedy = "Remove these edges, or set edges.duplicates in the schema to first"
        remedy += " or merge" if table.duplicates == "refuse" else ""
        for place in files.locate_rows(shown):
            bad.add_line(f"{place} repeats an earlier edge", remedy)
        bad.total = repeated.total
        bad.check()
        raise
    if table.self_loops == "refuse" and built.self_loops:
        at, lines = 0, []
        for sources, targets in edges.pieces():
            lines += (at + np.flatnonzero((sources == targets) & (sources >= 0))).tolist()
            at += len(sources)
            if len(lines) >= MAX_SHOWN:
                break
        remedy = "Remove these edges, or set edges.self_loops in the schema to keep or drop"
        for place in files.locate_rows(np.array(lines[:MAX_SHOWN], np.int64)):
            bad.add_line(f"{place} is a self-loop", remedy)
        bad.total = built.self_loops
        bad.check()
    return built


def _dataset(
    name: str, schema: ImportSchema, vertices: VertexTableData | None, count: int, built: CsrBuildResult
) -> Dataset:
    labels = np.full(count, -1, np.int8) if vertices is None else vertices.labels
    masks = None if vertices is None else vertices.masks
    if masks is None:
        masks = draw_random_split(schema.split, labels)
    arrays = {"indptr": built.arrays["indptr"], "indices": built.arrays["indices"], "labels": labels}
    arrays |= {f"{part}_mask": mask for part, mask in zip(SPLITS, masks, strict=True)}
    arrays |= {key: array for key, array in built.arrays.items() if key not in arrays}
    rows = None if vertices is None else vertices.rows
    if rows is None:
        rows = _degree_rows(built.arrays["indptr"])
    return Dataset(name, arrays, rows, True if schema.edges.undirected else None)


def _degree_rows(indptr: Array) -> FeatureRows:
    """Return log(1 + in-degree) as a single feature column."""
    count = len(indptr) - 1
    step = 1 << 20

    def blocks() -> Iterator[Array]:
        for start in range(0, count, step):
            degrees = np.diff(indptr[start : min(start + step, count) + 1])
            yield np.log1p(degrees).astype(np.float32)[:, None]

    return FeatureRows.from_blocks((count, 1), np.dtype(np.float32), blocks)


def draw_random_split(split: RandomSplit, labels: Array) -> tuple[Array, Array, Array]:
    """Sample masks of the splits from all labelled vertices; depends only on the seed and vertex numbers."""
    labelled = np.flatnonzero(is_labelled(labels))
    streams = vertex_streams(stream_key(split.seed, SPLIT, 0, 0), labelled)
    labelled = labelled[np.argsort(streams, kind="stable")]
    bounds = np.rint(np.cumsum([split.train, split.val, split.test]) * len(labelled)).astype(np.int64)
    masks = []
    for first, last in zip(np.append(0, bounds[:-1]), bounds, strict=True):
        mask = np.zeros(len(labels), np.bool_)
        mask[labelled[first:last]] = True
        masks.append(mask)
    return masks[0], masks[1], masks[2]


def _id_file(ids: VertexIds, scratch: Path) -> dict[str, Path]:
    """Write the file of vertex ids, unless the ids are the vertex numbers."""
    names = ids.iter_names()
    if not names:
        return {}
    write_names(scratch / IDS, ["id"], ([name] for name in names))
    return {IDS: scratch / IDS}


def _names(vertices: VertexTableData | None, types: list[str], edge_columns: list[str]) -> DataNames:
    """Return the names of classes or label columns, of features, and of edge types and edge features."""
    classes = [] if vertices is None else vertices.classes or vertices.label_columns
    columns = [] if vertices is None else vertices.columns
    return DataNames(
        tuple(classes) or None,
        {"": tuple(columns or [DEGREE_COLUMN])},
        tuple(types) or None,
        tuple(edge_columns) or None,
    )


def _summarize(
    schema: ImportSchema,
    edges: EdgeListBuilder,
    built: CsrBuildResult,
    count: int,
    types: list[str],
    vertices: VertexTableData | None,
) -> Iterator[str]:
    """Yield the lines of the import's summary."""
    rules = schema.edges
    more = describe_rows(edges, built.merged, rules.duplicates)
    if built.self_loops:
        action = "kept" if rules.self_loops == "keep" else "removed"
        more.append(f"{pluralize(built.self_loops, 'self-loop')} {action}")
    if schema.edges.undirected:
        more.append("reverse edges added")
    tail = f" ({', '.join(more)})" if more else ""
    yield (f"{pluralize(edges.num, 'edge row')}: {pluralize(int(built.arrays['indptr'][-1]), 'edge')}{tail}")
    yield f"{pluralize(count, 'vertex', 'vertices')}"
    if types:
        yield f"edge types: {list_numbered(types)}"
    if vertices is not None and vertices.classes:
        yield f"classes: {list_numbered(vertices.classes)}"


def describe_rows(edges: EdgeListBuilder, merged: int, duplicates: str = "merge") -> list[str]:
    """Describe the rows of an edge table that are not edges, for the summary of an import."""
    words = []
    if edges.num_dropped:
        words.append(f"{pluralize(edges.num_dropped, 'row')} with unknown ids dropped")
    if merged:
        is_summed = duplicates == "merge" and EDGE_WEIGHT in edges.extras
        kept = (["weights summed"] if is_summed else []) + (
            ["earliest times kept"] if edges.has_times else []
        )
        words.append(
            f"{pluralize(merged, 'duplicate')} {'merged' if duplicates == 'merge' else 'removed'}"
            + (f" with {' and '.join(kept)}" if kept else "")
        )
    return words


def describe_unscaled(tables: Mapping[str, VertexTableData]) -> list[str]:
    """Return a line per vertex type whose features should be scaled before training."""
    lines = []
    for name, table in tables.items():
        largest = 0.0 if table.rows is None else largest_column_rms(table.rows)
        if largest >= _LARGE:
            label = f"features of {name}" if name else "features"
            lines.append(
                f"{label} are not scaled, and a column has values around {largest:,.0f}: set "
                "data.normalize=standard, which scales each column to mean 0 and standard deviation 1"
            )
    return lines


def list_numbered(names: list[str]) -> str:
    """Format the first names with their numbers."""
    shown = ", ".join(f"{number} {name}" for number, name in enumerate(names[:12]))
    return shown + (f" and {len(names) - 12:,} more" if len(names) > 12 else "")
