"""Import of a heterogeneous dataset from tables, atomically and in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.formatting import format_bytes, pluralize
from hyrt.graph.formats.convert import check_destination, write_dataset
from hyrt.graph.formats.schema import EDGE_TIME, EDGE_TYPE, EDGE_WEIGHT, Dataset, check_dataset
from hyrt.graph.graph import SPLITS
from hyrt.graph.hetero.csr import RelationEdges
from hyrt.graph.hetero.dataset import (
    BUILD_ENTRIES,
    HeteroDatasetParts,
    add_reverse_to_dataset,
    assemble_dataset,
    build_bytes,
)
from hyrt.graph.hetero.graph_types import GraphTypes, Relation
from hyrt.graph.links.edges import TimedEdges, order_edge_times
from hyrt.graph.metadata import IDS, DataNames, add_names, save_names, write_names
from hyrt.graph.tables.edge_list import EdgeListBuilder, TimeReader, read_edges
from hyrt.graph.tables.import_notes import ImportNotes
from hyrt.graph.tables.import_tables import (
    LARGE_INPUT,
    NAMED_VERTEX_BYTES,
    VERTEX_BYTES,
    ImportJob,
    assign_files,
    block_bytes,
    check_consecutive,
    compact_ids,
    describe_rows,
    describe_unscaled,
    draw_random_split,
    integer_ids_without_table,
    list_numbered,
)
from hyrt.graph.tables.read_vertices import VertexTableData, read_vertices
from hyrt.graph.tables.schema import EdgeTableSchema, HeteroImportSchema, RelationTableSchema
from hyrt.graph.tables.table_batch import RowProblems
from hyrt.graph.tables.table_files import TableFiles
from hyrt.graph.tables.vertex_ids import NameIndex, StringIds, VertexIds
from hyrt.graph.topology import Topology
from hyrt.runtime.files import atomic_output

Array = NDArray[Any]


def import_hetero_tables(
    job: ImportJob[HeteroImportSchema], report: Callable[[str], None] = lambda line: None
) -> None:
    """Import a heterogeneous dataset from tables, like `hyrt.graph.tables.import_tables.import_tables`.

    Raises DataError if rows are wrong, or the destination cannot be written.
    """
    destination = job.destination.absolute()
    check_destination(destination, job.force)
    schema = job.schema
    patterns_by_table = {f"relations {_name(each)}": (each.files, each.text) for each in schema.relations}
    tables = {name: kind.table for name, kind in schema.types.items() if kind.table is not None}
    patterns_by_table |= {f"types.{name}": (table.files, table.text) for name, table in tables.items()}
    files = assign_files(job.files, patterns_by_table, report)
    each = NAMED_VERTEX_BYTES if any(kind.ids == "names" for kind in schema.types.values()) else VERTEX_BYTES
    total = sum(some.num_bytes for some in files.values())
    weighted = any(relation.weight is not None for relation in schema.relations)
    bound = block_bytes() + build_bytes(total if _are_plain(files) else BUILD_ENTRIES, weighted=weighted)
    letters = " and 3 per character of its id" if each == NAMED_VERTEX_BYTES else ""
    vertex = f"{each} bytes per vertex{letters}"
    report(f"memory: at most {format_bytes(bound)}, plus {vertex}, not counting the interpreter")
    with atomic_output(destination, "dataset") as (result, scratch):
        bad, notes, times = RowProblems(), ImportNotes(), TimeReader()
        read = {}
        for number, (name, table) in enumerate(tables.items()):
            kind = schema.types[name]
            read[name] = read_vertices(
                table,
                files[f"types.{name}"],
                named=kind.ids == "names",
                first_id=kind.first_id,
                bad=bad,
                notes=notes,
                scratch=_folder(scratch, f"type-{number}"),
            )
        ids = {name: _ids(schema, name, read.get(name)) for name in schema.types}
        lists = []
        for number, relation in enumerate(schema.relations):
            some = files[f"relations {_name(relation)}"]
            ends = ids[relation.relation[0]], ids[relation.relation[2]]
            dtype = np.dtype(np.int64 if total >= LARGE_INPUT else np.int32)
            columns = {
                key: getattr(relation, key)
                for key in ("files", "source", "target", "weight", "time", "unknown", "text")
            }
            folder = _folder(scratch, f"relation-{number}")
            edge_table = EdgeTableSchema(**columns)
            edges, *_ = read_edges(edge_table, some, *ends, bad, notes, times, folder, dtype)
            lists.append(edges)
        times.check_units(bad)
        bad.check()
        gaps = _close_gaps(schema, ids, lists, notes)
        parts = _parts(str(destination), schema, ids, lists, read)
        data, merged = assemble_dataset(str(destination), parts, _folder(scratch, "typed"))
        if any(edges.has_times for edges in lists):
            data.arrays[EDGE_TIME] = _times(parts.types, lists, data.arrays, scratch)
        if schema.reverse:
            data = add_reverse_to_dataset(data, _folder(scratch, "reversed"))
        check_dataset(data, features="none")
        write_dataset(data, destination, result)
        add_names(result, _id_file(ids, scratch))
        target = read.get(schema.target_type)
        classes = () if target is None else target.classes or target.label_columns
        columns = {name: tuple(table.columns) for name, table in read.items() if table.columns}
        save_names(DataNames(tuple(classes) or None, columns), {}, result, scratch)
        unscaled = describe_unscaled(read)
        for name, found in ids.items():
            if isinstance(found, StringIds):
                notes.add_lookalikes(f"ids of {name}", found.names)
    summary = _summarize(schema, parts.types, lists, merged, read)
    for line in [*notes.lines(), *summary, *times.lines(), *gaps, *unscaled]:
        report(line)


def _name(table: RelationTableSchema) -> str:
    return " ".join(table.relation)


def _are_plain(files: dict[str, TableFiles]) -> bool:
    return all(some.are_plain for some in files.values())


def _folder(scratch: Path, name: str) -> Path:
    folder = scratch / name
    folder.mkdir()
    return folder


def _ids(schema: HeteroImportSchema, name: str, read: VertexTableData | None) -> VertexIds:
    if read is not None:
        return read.ids
    kind = schema.types[name]
    return (
        StringIds(NameIndex(), grows=True)
        if kind.ids == "names"
        else integer_ids_without_table(kind.first_id, kind.num_vertices, ".")
    )


def _close_gaps(
    schema: HeteroImportSchema,
    ids: dict[str, VertexIds],
    lists: list[EdgeListBuilder],
    notes: ImportNotes,
) -> list[str]:
    """Assign numbers to the ids of types that occur only in relations; return lines about unused ids."""
    ends = [(table.relation[0], table.relation[2]) for table in schema.relations]
    for name, type_ids in ids.items():
        num_references = sum(edges.num * both.count(name) for edges, both in zip(lists, ends, strict=True))
        check_consecutive(f"type {name!r}", type_ids, num_references)
    with_ids = [(edges, ids[first], ids[last]) for edges, (first, last) in zip(lists, ends, strict=True)]
    return compact_ids(with_ids, ids, notes)


def _parts(
    where: str,
    schema: HeteroImportSchema,
    ids: dict[str, VertexIds],
    lists: list[EdgeListBuilder],
    read: dict[str, VertexTableData],
) -> HeteroDatasetParts:
    counts = [type_ids.num_vertices for type_ids in ids.values()]
    relations = tuple(Relation(*table.relation) for table in schema.relations)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    types = GraphTypes(tuple(schema.types), starts, relations, schema.target_type)
    target = read.get(schema.target_type)
    count = types.count(schema.target_type)
    if not count:
        raise DataError(
            f"{where}: target_type {schema.target_type!r} has no vertices: add vertices of this type, or set "
            "target_type to another type"
        )
    labels = np.full(count, -1, np.int8) if target is None else target.labels
    masks = None if target is None else target.masks
    if masks is None:
        masks = draw_random_split(schema.split, labels)

    def stream() -> Iterator[RelationEdges]:
        for number, edges in enumerate(lists):
            weights = edges.map_values(EDGE_WEIGHT) if EDGE_WEIGHT in edges.extras else None
            at = 0
            for sources, targets in edges.pieces():
                known = (sources >= 0) & (targets >= 0)
                piece_weights = None if weights is None else weights[at : at + len(sources)][known]
                at += len(sources)
                yield RelationEdges(number, sources[known], targets[known], piece_weights)

    return HeteroDatasetParts(
        types,
        stream,
        {
            name: Dataset(where, {}, vertices.rows)
            for name, vertices in read.items()
            if vertices.rows is not None
        },
        labels,
        {f"{part}_mask": mask for part, mask in zip(SPLITS, masks, strict=True)},
        weighted=any(EDGE_WEIGHT in edges.extras for edges in lists),
    )


def _times(types: GraphTypes, lists: list[EdgeListBuilder], arrays: dict[str, Array], scratch: Path) -> Array:
    """Return the edge times of all relations; unknown for relations without times."""

    def stream() -> Iterator[TimedEdges]:
        for number, (edges, relation) in enumerate(zip(lists, types.relations, strict=True)):
            if edges.has_times:
                starts = types.interval(relation.source)[0], types.interval(relation.destination)[0]
                yield from edges.iter_timed(starts, number)

    dtype = next(edges.dtypes[EDGE_TIME] for edges in lists if edges.has_times)
    topology = Topology(arrays["indptr"], arrays["indices"], arrays[EDGE_TYPE])
    return order_edge_times(topology, stream(), dtype, scratch / "edge_time.npy")


def _id_file(ids: dict[str, VertexIds], scratch: Path) -> dict[str, Path]:
    """Write the file of types and ids of all vertices."""
    rows = (
        [kind, name]
        for kind, type_ids in ids.items()
        for name in type_ids.iter_names() or range(type_ids.num_vertices)
    )
    write_names(scratch / IDS, ["type", "id"], rows)
    return {IDS: scratch / IDS}


def _summarize(
    schema: HeteroImportSchema,
    types: GraphTypes,
    lists: list[EdgeListBuilder],
    merged: NDArray[np.int64],
    read: dict[str, VertexTableData],
) -> Iterator[str]:
    """Yield the lines of the import's summary."""
    for table, edges, num_merged in zip(schema.relations, lists, merged.tolist(), strict=True):
        weights = f", weights {table.weight!r}" if table.weight is not None else ""
        times = f", times {table.time!r}" if table.time is not None else ""
        count = pluralize(edges.num - edges.num_dropped - num_merged, "edge")
        more = describe_rows(edges, num_merged)
        left_out = f" ({', '.join(more)})" if more else ""
        yield f"{_name(table)}: {pluralize(edges.num, 'edge row')}{weights}{times}: {count}{left_out}"
    for name in types.vertex_types:
        known = read.get(name)
        without = "" if known is not None and known.rows is not None else " with learned features"
        yield f"{name}: {pluralize(types.count(name), 'vertex', 'vertices')}{without}"
    target = read.get(schema.target_type)
    if target is not None and target.classes:
        yield f"classes: {list_numbered(target.classes)}"
