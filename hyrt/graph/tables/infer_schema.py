"""Inference of an import schema from the names and values of table columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hyrt.errors import DataError, join_names
from hyrt.graph.metadata import ENDPOINT_COLUMN_NAMES, normalize_name
from hyrt.graph.tables.columns import (
    COUNTS,
    MIN_ROWS,
    SuspiciousColumns,
    are_row_numbers,
    encode_labels,
    find_column,
    find_thousands_point,
    format_columns,
    format_reasons,
    match_by_prefix,
)
from hyrt.graph.tables.read_vertices import SPLIT_COLUMNS, find_split
from hyrt.graph.tables.schema import (
    CsvDialect,
    EdgeTableSchema,
    ImportSchema,
    VertexTableSchema,
    are_numbered_names,
)
from hyrt.graph.tables.table_batch import (
    RowProblems,
    are_times,
    convert_bools,
    find_unix_unit,
    has_codes,
    read_real_numbers,
    read_strings,
    read_whole_numbers,
)
from hyrt.graph.tables.table_files import TableFiles, TableSample, list_table_files, read_sample
from hyrt.graph.tables.vertex_ids import SPARSE_FACTOR, find_id_column, find_matching_columns

_IDS = ("id", "nodeid", "vertexid", "node", "vertex", "name", "key", "nid", "nr", "nummer", "kennung")
_LABELS = ("label", "y", "class", "target", "category", "labels", "klasse")
_WEIGHTS = ("weight", "w", "weights", "edgeweight", "gewicht")
_TYPES = ("type", "edgetype", "etype", "relation", "rel", "typ")
_TIMES = (
    "time",
    "timestamp",
    "ts",
    "t",
    "date",
    "datetime",
    "edgetime",
    "unixtime",
    "zeit",
    "zeitstempel",
    "datum",
)
_INDEXES = ("index", "level0", "rownames", "rowname", "row", "rowid", "rownumber", "rownum", "")
"""Names of row number columns that programs add to a table, in the form of `normalize_name`."""
_ID_NAME = re.compile(r"(.*[\W_])?(id|ID|Id|nr|no|key|uuid)|.*[a-z](Id|ID)")
"""Names of further columns with ids, such as `user_id`, which are not features."""
_INT64 = np.iinfo(np.int64)
_WHOLE = ("whole", "code")
_NUMBERS = (*_WHOLE, "number")
_ITSELF = "write a schema, starting from the output of `hyrt data import --print-schema FILES`"


@dataclass(frozen=True, slots=True)
class InferredSchema:
    """Inferred schema, and its description for the user."""

    schema: ImportSchema
    lines: list[str]


def infer_schema(paths: Sequence[Path]) -> InferredSchema:
    """Infer the role of each column in CSV or Parquet files, or folders of them.

    Raises DataError if no file looks like an edge table, or files of one kind have different columns.
    """
    samples = [read_sample(path) for path in paths]
    for sample in samples:
        if sample.problem is not None:
            raise DataError(sample.problem)
    ends = [_ends(sample) for sample in samples]
    guessed_headers: list[str] = []
    if not any(ends):
        ends = [_first_two(sample, alone=len(samples) == 1) for sample in samples]
        guessed_headers = [
            f"{sample.name}: the first line is read as column names ("
            f"{format_columns(list(sample.columns))}): if they are an edge, set text.header to false"
            for sample, columns in zip(samples, ends, strict=True)
            if columns and sample.dialect is not None and sample.dialect.header
        ]
    edges = [sample for sample, columns in zip(samples, ends, strict=True) if columns]
    others = [sample for sample, columns in zip(samples, ends, strict=True) if not columns]
    for other in others if edges else []:
        if list(other.columns.values()) == list(edges[0].columns.values()) and not _has_header(other):
            raise DataError(
                f"{other.name} has no column names, and may have edges like {edges[0].name} or vertices: "
                "write column names in its first line"
            )
    for sample, end in zip(samples, ends, strict=True):
        guessed_headers += _header_line(sample, is_edges=end is not None)
    if not edges:
        shown = "; ".join(f"{sample.name} has {', '.join(map(repr, sample.columns))}" for sample in samples)
        raise DataError(f"no file has columns named like the source and target of edges ({shown}): {_ITSELF}")
    encodings = [
        f"{sample.name} is not UTF-8 text and was read as {sample.dialect.encoding}: if characters look "
        "wrong, set text.encoding in a schema, or save the file as UTF-8"
        for sample in samples
        if sample.dialect is not None and sample.dialect.encoding != CsvDialect().encoding
    ]
    encodings += [
        f"{sample.name}: commas in numbers are decimal points" for sample in samples if sample.decimal == ","
    ]
    has_commas = any(sample.decimal == "," for sample in samples)
    points = [line for sample in samples for line in _point_lines(sample, has_commas=has_commas)]
    for tables, kind in ((edges, "edge"), (others, "vertex")):
        for sample in tables[1:]:
            if sorted(sample.columns) != sorted(tables[0].columns):
                raise DataError(
                    f"{tables[0].name} and {sample.name} look like {kind} tables but have different columns: "
                    f"{_ITSELF}"
                )
    source, target = next(columns for columns in ends if columns)
    edge_table, lines = _edge_table(edges, source, target)
    vertex_rows = None
    named = bool({"text", "code"} & {edges[0].columns[source], edges[0].columns[target]})
    first = 0
    if others:
        vertex_rows, more, rivals = _vertex_rows(others, edges[0], (source, target))
        lines += more
        if rivals:
            remedy = _ITSELF if vertex_rows.id is not None else f"name one of them id, or {_ITSELF}"
            raise DataError(
                f"{others[0].name}: the columns {join_names(list(map(repr, rivals)))} all contain the ids "
                f"of edges: {remedy}"
            )
        if vertex_rows.id is None:
            _check_row_index(others[0])
        else:
            named = named or others[0].columns[vertex_rows.id] != "whole"
            first_id = None if named else _first_id(others, vertex_rows)
            named, first = first_id is None, first_id or 0
    named = named or (vertex_rows is None and _are_sparse(edges, source, target))
    settings: dict[str, Any] = {"ids": "names" if named else "positions"}
    if not named and vertex_rows is not None and vertex_rows.id is None:
        first, more = _first_of_edges(edges, edge_table, others, vertex_rows)
        lines += more
    if first:
        settings["first_id"] = first
    if named and vertex_rows is not None and vertex_rows.id is None:
        raise DataError(
            f"{others[0].name}: no column seems to contain the vertex ids used by the edges: {_ITSELF}"
        )
    if vertex_rows is not None:
        settings["vertices"] = vertex_rows
    schema = ImportSchema(edges=edge_table, **settings)
    lines += [_ids_in_words(schema), *encodings, *points, *guessed_headers]
    return InferredSchema(schema, lines)


def draft_schema(paths: Sequence[Path], problem: str) -> InferredSchema:
    """Return a draft schema, to be edited, for files whose column roles cannot be inferred because of
    `problem`.

    The first file with two columns is the edge table. The first of the other files, and those with the
    same columns, are the vertex table. Raises DataError if no file has two columns.
    """
    samples = [read_sample(path) for path in paths]
    edges = next((sample for sample in samples if _ends(sample)), None)
    edges = edges or next((sample for sample in samples if len(sample.columns) > 1), None)
    if edges is None:
        raise DataError(
            next(filter(None, (sample.problem for sample in samples)), None)
            or f"{join_names([sample.name for sample in samples])} {'has' if len(samples) == 1 else 'have'} "
            "only one column, but edges need two, a source and a target: pass a file that has both"
        )
    source, target = _ends(edges) or list(edges.columns)[:2]
    table, _ = _edge_table([edges], source, target)
    others = [sample for sample in samples if sample is not edges]
    settings: dict[str, Any] = {}
    if others:
        same = [sample for sample in others if list(sample.columns) == list(others[0].columns)]
        rows, *_ = _vertex_rows(same, edges, (source, target))
        settings["vertices"] = (
            rows if rows.id is not None else rows.model_copy(update={"id": next(iter(others[0].columns))})
        )
    columns = [f"{sample.name} has the columns {', '.join(map(repr, sample.columns))}" for sample in samples]
    schema = ImportSchema(edges=table, ids="names", **settings)
    return InferredSchema(schema, [problem.removesuffix(f": {_ITSELF}"), *columns])


def _ends(sample: TableSample) -> tuple[str, str] | None:
    names = set(map(normalize_name, sample.columns))
    for source, target in ENDPOINT_COLUMN_NAMES:
        if not {source, target} <= names:
            continue
        columns = find_column(sample.columns, [source]), find_column(sample.columns, [target])
        if columns[0] is not None and columns[1] is not None:
            return columns[0], columns[1]
    return None


def _has_header(sample: TableSample) -> bool:
    return sample.dialect is None or sample.dialect.header


def _point_lines(sample: TableSample, *, has_commas: bool) -> Iterator[str]:
    """Yield a line per column whose decimal points may separate thousands, as usual in files with `;`.

    `has_commas` is whether another table has decimal commas. Raises DataError if the points probably separate
    thousands.
    """
    if sample.dialect is None or sample.decimal == ",":
        return
    is_usual = sample.dialect.delimiter == ";"
    for column in [name for name, kind in sample.columns.items() if kind == "number"]:
        found = find_thousands_point(sample.values(column)) if is_usual or has_commas else None
        if found is None:
            continue
        number, is_mixed = found
        if is_mixed or (has_commas and is_usual):
            raise DataError(
                f"{sample.name}, column {column!r}: the point in {number!r} may be a decimal point or "
                "separate thousands: set text.decimal in a schema, or write numbers without separators"
            )
        if is_usual:
            yield (
                f"{sample.name}, column {column!r}: the point in {number!r} is read as a decimal point: if "
                "it separates thousands, write numbers without separators"
            )


def _header_line(sample: TableSample, *, is_edges: bool) -> Iterator[str]:
    """Yield a line if the first line may be column names or values.

    Raises DataError if all vertices would be wrong by one.
    """
    names = list(sample.columns)
    known = (*_IDS, *_LABELS, *SPLIT_COLUMNS)
    if _is_headerless(sample):
        first = [str(values[0].as_py()) for values in sample.rows.values() if len(values)]
        if not first or not are_numbered_names(first):
            return
        if len(first) > 1 and not is_edges:
            raise DataError(
                f"{sample.name}: the first line ({format_columns(first)}) may be column names or values: "
                "begin each column name with a letter, or set text.header in a schema"
            )
        yield (
            f"{sample.name}: the first line ({format_columns(first)}) is read as values: if it has column "
            "names, set text.header to true in a schema"
        )
    elif not is_edges and sample.dialect is not None and set(sample.columns.values()) <= {"text", "none"}:
        if not any(normalize_name(name) in known for name in names):
            yield (
                f"{sample.name}: the first line is read as column names ({format_columns(names)}): if they "
                "are values, set text.header to false in a schema"
            )


def _first_two(sample: TableSample, *, alone: bool) -> tuple[str, str] | None:
    """Return the first two columns of a file that has at most three columns or is the only file."""
    kinds = list(sample.columns.items())
    if len(kinds) < 2 or (len(kinds) > 3 and not alone):
        return None
    both = {kinds[0][1], kinds[1][1]}
    if not (both <= set(_WHOLE) or both == {"text"}) or find_column(sample.columns, _LABELS) is not None:
        return None
    if len(kinds) == 3 and _is_headerless(sample):
        first, relations, last = (set(sample.values(name)) for name in sample.columns)
        if kinds[1][1] == kinds[2][1] == "text" and first & last and not relations & (first | last):
            # Triples of a knowledge graph: head, relation and tail.
            return kinds[0][0], kinds[2][0]
    return kinds[0][0], kinds[1][0]


def _is_headerless(sample: TableSample) -> bool:
    return sample.dialect is not None and not sample.dialect.header


def _without_defaults(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if value not in (None, [])}


def _text_settings(sample: TableSample) -> dict[str, Any]:
    return {} if sample.dialect in (None, CsvDialect()) else {"text": sample.dialect}


def _edge_table(samples: list[TableSample], source: str, target: str) -> tuple[EdgeTableSchema, list[str]]:
    sample = samples[0]
    rest = [column for column in sample.columns if column not in (source, target)]
    weight = find_column(rest, _WEIGHTS)
    is_headerless = _is_headerless(sample)
    unix_units = {name: unit for name in rest if is_headerless and (unit := _unix_unit(sample, name))}
    if weight is None and len(rest) == 1 and is_headerless and not unix_units:
        weight = rest[0] if sample.columns[rest[0]] in _NUMBERS else None
    sample.check_separators([] if weight is None else [weight])
    if weight is not None and sample.columns[weight] not in _NUMBERS:
        weight = None
    kind = find_column([column for column in rest if column != weight], _TYPES)
    if kind is not None and sample.columns[kind] not in (*_WHOLE, "text"):
        kind = None
    if is_headerless and rest == list(sample.columns)[1:2]:
        kind, weight = rest[0], None
    # Gephi writes Directed or Undirected as the type of each edge.
    directions = {str(value).casefold() for value in sample.values(kind) if value} if kind else set()
    direction_column = kind if directions and directions <= {"directed", "undirected"} else None
    undirected = direction_column is not None and directions == {"undirected"}
    if len(directions) == 1 and direction_column is not None:
        kind = None
        _check_directions(samples, direction_column, *directions)
    decimal = sample.decimal
    others = [column for column in rest if column not in (weight, kind, direction_column)]
    time = find_column([column for column in others if are_times(sample.rows[column], decimal)], _TIMES)
    if time is None and len(unix_units) == 1:
        time = next(iter(unix_units))
    settings = {"weight": weight, "type": kind, "time": time, **_text_settings(sample)}
    if undirected:
        settings["undirected"] = True
    table = EdgeTableSchema(
        files=[part.schema_name for part in samples],
        source=source,
        target=target,
        **_without_defaults(settings),
    )
    line = f"{_names(samples)}: edges from {source!r} to {target!r}, in "
    line += f"both directions, as column {direction_column!r} says" if undirected else "this direction only"
    if weight is not None:
        line += f"; weights {weight!r}"
    if kind is not None:
        line += f"; types {kind!r}"
    if time is not None:
        line += f"; times {time!r}"
    unused = [column for column in others if column != time]
    lines = [line + _format_unused(unused)]
    missed: list[tuple[Sequence[str], str]] = [(_WEIGHTS, "numbers")] if weight is None else []
    missed += [(_TIMES, "numbers, or dates such as 2024-05-31")] if time is None else []
    for names, form in missed:
        column = find_column([name for name in unused if sample.columns[name] != "none"], names)
        if column is not None:
            example = next(filter(None, sample.values(column)), "")
            reason = f"its values (such as {example!r}) are not {form}"
            if names is _TIMES and are_times(sample.rows[column].drop_null(), decimal):
                reason = "some of its values are missing"
            lines.append(f"{_names(samples)}: column {column!r} is not read, because {reason}")
    if time in unix_units:
        lines.append(
            f"{_names(samples)}: column {time!r} looks like times in {unix_units[time]} since 1970: if it "
            f"contains weights, set edges.weight to {time!r} in a schema, and remove edges.time"
        )
    if direction_column is not None and direction_column == kind:
        lines.append(
            f"{_names(samples)}: column {kind!r} has directed and undirected edges, but all are read as "
            "directed: add the reverse of each undirected edge to the table"
        )
    if is_headerless and weight is not None and sample.columns[weight] in _WHOLE:
        lines.append(
            f"{_names(samples)}: the file has no column names, and column {weight!r} is read as weights: if "
            f"the columns are head, relation and tail of triples, set edges.target to {weight!r} and "
            f"edges.type to {target!r} in a schema, and remove edges.weight"
        )
    if (kind is None and bool(rest)) if is_headerless else _ends(sample) is None:
        shared = set(sample.values(source)) & set(sample.values(target))
        if shared:
            lines.append(
                f"{_names(samples)}: equal ids in {source!r} and {target!r} are the same vertex: if they "
                "belong to different types of vertices, write a schema with types"
            )
    return table, lines


def _check_directions(samples: list[TableSample], column: str, direction: str) -> None:
    """Raise DataError if some edges of Gephi are not `direction`, which is directed or undirected.

    An empty value counts as directed.
    """
    dialect = samples[0].dialect or CsvDialect()
    files = TableFiles([path for sample in samples for path in list_table_files(sample.path)], dialect)
    problems = RowProblems()
    for piece in files.batches({column: "text"}):
        names = read_strings(piece.columns[column])[0].fill_null("directed")
        wrong = [name.strip().casefold() != direction for name in names.to_pylist()]
        problems.add(
            piece,
            column,
            np.array(wrong, np.bool_),
            f"is not {direction}, as the first edges are",
            "Write each undirected edge as two directed edges, and remove the column",
        )
    problems.check()


_DAY = 86_400


def _unix_unit(sample: TableSample, column: str) -> str:
    """Return the unit of a column that looks like times since 1970, otherwise an empty string.

    Most of these times are distinct, or they are sorted, or they are whole days.
    """
    if sample.columns[column] not in _NUMBERS:
        return ""
    values, missing, bad = read_real_numbers(sample.rows[column], sample.decimal)
    values = values[~(missing | bad)]
    unit = find_unix_unit(values)
    steps = np.diff(values)
    looks_like_times = (
        2 * len(np.unique(values)) >= len(values)
        or (steps >= 0).all()
        or (steps <= 0).all()
        or (unit == "seconds" and (values % _DAY == 0).all())
    )
    return unit if looks_like_times else ""


def _vertex_rows(
    samples: list[TableSample], edges: TableSample, ends: tuple[str, str]
) -> tuple[VertexTableSchema, list[str], list[str]]:
    """Return the vertex table, lines about it, and columns that may all be the id; empty if it is clear."""
    sample = samples[0]
    columns = dict(sample.columns)
    named = find_column([name for name, kind in columns.items() if kind in (*_WHOLE, "text")], _IDS)
    matching = find_matching_columns(samples, edges, ends)
    rivals: list[str] = []
    if named is None or (matching and named not in matching):
        key = find_id_column(sample, edges, ends[0], matching)
        rivals = matching if key is None else []
    else:
        key = named
        rivals = [name for name in matching if name != key and not _follows_id(sample, name, key)]
        rivals = [key, *rivals] if rivals else []
    is_guess = key is not None and key != named
    if key is not None:
        del columns[key]
    split = find_split(sample, columns)
    columns = {name: kind for name, kind in columns.items() if name not in split.taken}
    label = find_column([name for name, kind in columns.items() if kind in (*_NUMBERS, "text")], _LABELS)
    label_kind: Literal["classes", "names", "numbers"] = "classes"
    if label is not None:
        kind = columns.pop(label)
        if kind == "number":
            label_kind = "numbers"
        elif kind in ("text", "code") or sample.min_value(label) not in (-1, 0) or _are_signs(sample, label):
            label_kind = "names"
    lists = [name for name, kind in columns.items() if kind == "list" and normalize_name(name) in _LABELS]
    columns |= {name: "flag" for name, kind in columns.items() if kind == "text" and _are_bools(sample, name)}
    features = [
        name for name, kind in columns.items() if kind in (*_NUMBERS, "flag", "list") and name not in lists
    ]
    sample.check_separators([*filter(None, (label,)), *columns])
    suspicious = _find_suspicious(sample, features, label, label_kind)
    suspicious |= dict.fromkeys([name for name in features if name in matching], "contains the ids of edges")
    if named in features:
        suspicious[named] = "is called like an id"
    unused = [name for name in columns if name not in features]
    features = [name for name in features if name not in suspicious]
    settings = {
        "id": key,
        "label": [] if label is None else [label],
        "label_kind": None if label is None else label_kind,
        "features": match_by_prefix(features, list(sample.columns)),
        "split": split.split,
        "masks": split.masks,
        **_text_settings(sample),
    }
    table = VertexTableSchema(files=[part.schema_name for part in samples], **_without_defaults(settings))
    line = f"{_names(samples)}: vertices, "
    line += "one per row, because no column looks like ids" if key is None else f"ids {key!r}"
    if label is not None:
        words = {"classes": "class numbers", "names": "class names", "numbers": "regression targets"}
        line += f"; labels {label!r} ({words[label_kind]})"
    elif lists:
        line += f"; no labels, because {lists[0]!r} contains lists: put each label in a separate column, and"
        line += " list these columns in a schema"
    else:
        line += "; no labels: name their column label or y, or set it in a schema"
    if split.taken:
        line += f"; split {', '.join(map(repr, split.masks or [str(split.split)]))}"
    elif label is not None:
        line += "; a random split of 60, 20 and 20 %"
    line += f"; features {format_columns(features)}" if features else "; the degree as the only feature"
    lines = [line + _format_unused(unused), *split.lines]
    if is_guess:
        amount = "all" if key in matching else "most"
        lines.append(
            f"{_names(samples)}: column {key!r} is read as the id, because it contains {amount} ids of "
            "edges: if it is not the id, set vertices.id in a schema to another column, or to null if the "
            "rows are in the order of the ids"
        )
    if suspicious:
        lines.append(
            f"{_names(samples)}: excluded columns that look like row numbers, ids or copies of the label "
            f"({format_reasons(suspicious)}): to use one, list it under vertices.features in a schema"
        )
    return table, lines, rivals


def _follows_id(sample: TableSample, name: str, key: str) -> bool:
    """Return whether a column is a copy of the id, or numbers the rows in their order."""
    numbers = read_real_numbers(sample.rows[name], sample.decimal)[0]
    is_copy = sample.values(name) == sample.values(key)
    return is_copy or _is_row_index(sample, name) or bool((np.diff(numbers) == 1).all())


def _find_suspicious(
    sample: TableSample, features: list[str], label: str | None, label_kind: str
) -> dict[str, str]:
    """Return numeric columns that are probably not features, with the reasons."""
    decimal = sample.decimal
    names = [name for name in features if sample.columns[name] != "list"]
    reasons: dict[str, str] = {}
    if not names:
        return reasons
    values = np.stack(
        [read_real_numbers(convert_bools(sample.rows[name]), decimal)[0] for name in names], axis=1
    )
    labels = None
    if label is not None:
        is_named = label_kind == "names"
        labels = (
            encode_labels(sample.values(label))
            if is_named
            else read_real_numbers(sample.rows[label], decimal)[0]
        )
    found = SuspiciousColumns(len(names))
    found.add(values, labels)
    for number, reason in found.find_reasons().items():
        reasons[names[number]] = reason
    for number, name in enumerate(names):
        if name in sample.index or _is_row_index(sample, name):
            reasons[name] = "is the row index"
        elif len(values) >= MIN_ROWS and _ID_NAME.fullmatch(name) and _are_distinct(sample, name):
            reasons[name] = "has the name and the distinct integers of an id"
        elif sample.is_whole and are_row_numbers(values[:, number]):
            reasons[name] = COUNTS
    return {name: reasons[name] for name in names if name in reasons}


def _is_row_index(sample: TableSample, name: str) -> bool:
    has_index_name = normalize_name(name) in _INDEXES or name.startswith(("__index_level_", "Unnamed: "))
    return has_index_name and _are_distinct(sample, name)


def _check_row_index(sample: TableSample) -> None:
    """Raise DataError if a row index has integers that are neither all ids of edges nor row numbers."""
    for name in sample.columns:
        if not (name in sample.index and _are_distinct(sample, name)) and not _is_row_index(sample, name):
            continue
        values = read_whole_numbers(sample.rows[name], sample.decimal)[0]
        if not np.array_equal(values - values[0], np.arange(len(values))):
            raise DataError(
                f"{sample.name}: column {name!r} is a row index, but neither numbers the rows nor contains "
                "all ids of edges: set vertices.id in a schema to it, or write the table without this column"
            )


def _are_distinct(sample: TableSample, name: str) -> bool:
    """Return whether a column has distinct integers."""
    values = sample.values(name)
    return sample.columns[name] in _WHOLE and len(set(values)) == len(values)


def _are_bools(sample: TableSample, name: str) -> bool:
    """Return whether a column has only strings such as True and False."""
    return str(convert_bools(sample.rows[name]).type) == "bool"


def _are_signs(sample: TableSample, label: str) -> bool:
    """Return whether labels are -1 and 1, i.e. two classes, not class 1 and no label."""
    numbers, missing, bad = read_whole_numbers(sample.rows[label], sample.decimal)
    return set(numbers[~(missing | bad)].tolist()) == {-1, 1}


def _first_id(samples: list[TableSample], table: VertexTableSchema) -> int | None:
    """Return the first id if ids are consecutive numbers, otherwise None."""
    assert table.id is not None
    files = TableFiles([path for sample in samples for path in list_table_files(sample.path)], table.text)
    smallest, largest, count = 2**62, -(2**62), 0
    for piece in files.batches({table.id: "text"}):
        values, missing, bad = read_whole_numbers(piece.columns[table.id], table.text.decimal)
        if has_codes(piece.columns[table.id], bad):
            return None
        if piece.bad or missing.any() or bad.any():
            # The import reports these rows together with all other wrong rows.
            good = values[~(missing | bad)]
            return int(good.min()) if len(good) and int(good.min()) in (0, 1) else 0
        if len(values):
            smallest, largest = min(smallest, int(values.min())), max(largest, int(values.max()))
            count += len(values)
    if not count:
        return 0
    return smallest if largest - smallest + 1 == count else None


def _are_sparse(edges: list[TableSample], source: str, target: str) -> bool:
    """Return whether ids of edges are too large, or too sparse, to be consecutive numbers."""
    sample = edges[0]
    decimal = sample.decimal
    parts = [read_whole_numbers(sample.rows[column], decimal) for column in (source, target)]
    values = np.concatenate([part[~(missing | bad)] for part, missing, bad in parts])
    if not len(values):
        return False
    smallest, largest = int(values.min()), int(values.max())
    num_references = 2 * sum(sample_of_edges.total_rows for sample_of_edges in edges)
    return smallest < 0 or largest >= 2**31 or largest - smallest >= 1000 + SPARSE_FACTOR * num_references


def _first_of_edges(
    edges: list[TableSample], table: EdgeTableSchema, others: list[TableSample], rows: VertexTableSchema
) -> tuple[int, list[str]]:
    """Return the first id, 0 or 1, as the ids of the edges suggest if no table has ids, and lines."""
    if min(edges[0].min_value(column) for column in (table.source, table.target)) < 1:
        return 0, []
    files = TableFiles([path for sample in others for path in list_table_files(sample.path)], rows.text)
    count = sum(piece.num_rows for piece in files.batches({files.columns()[0]: "any"}))
    files = TableFiles([path for sample in edges for path in list_table_files(sample.path)], table.text)
    smallest, largest = _INT64.max, _INT64.min
    for piece in files.batches({table.source: "text", table.target: "text"}):
        for column in (table.source, table.target):
            values, missing, bad = read_whole_numbers(piece.columns[column], table.text.decimal)
            good = values[~(missing | bad)]
            smallest, largest = (
                min(smallest, good.min(initial=smallest)),
                max(largest, good.max(initial=largest)),
            )
    if smallest != 1 or largest >= count:
        return int(smallest == 1 and largest == count), []
    return 0, [
        f"{_names(edges)}: ids of edges range from 1 to {largest:,}, so row 1 of {_names(others)} is read as "
        f"vertex 0, without edges, and row 2 as vertex 1: if row 1 is vertex 1, set first_id to 1 in a schema"
    ]


def _format_unused(names: list[str]) -> str:
    names = [name for name in names if name]
    return f"; not read: {format_columns(names)}" if names else ""


def _names(samples: list[TableSample]) -> str:
    return samples[0].name if len(samples) == 1 else f"{samples[0].name} and {len(samples) - 1} more"


def _ids_in_words(schema: ImportSchema) -> str:
    if schema.ids == "names":
        order = (
            "in order of first use in edges"
            if schema.vertices is None
            else "in the order of the vertex table"
        )
        return f"ids: names, numbered {order}"
    if schema.vertices is None:
        return "ids: integers; only ids used in edges are vertices"
    return f"ids: integers starting at {schema.first_id}"
