"""Checks of vertex types, relations and heterogeneous edges. Errors give the key and the position of the
first violation.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError, join_names
from hyrt.graph import check
from hyrt.graph import kernels as hetero_kernels
from hyrt.graph.check import reject, suggest_name
from hyrt.graph.hetero.graph_types import (
    RELATIONS,
    TARGET_TYPE,
    TYPE_STARTS,
    VERTEX_TYPES,
    GraphTypes,
    types_from_arrays,
)
from hyrt.graph.labels import is_labelled

Array = NDArray[Any]

_ROWS = 1 << 16
# Type names are part of file names and of keys, in which these characters are not allowed.
_FORBIDDEN = "/:\\"

_STARTS = "list the first vertex of each type, then the number of all vertices"


def check_types(source: str, arrays: Mapping[str, Array]) -> GraphTypes:
    """Return the vertex types and relations of a dataset; raise DataError for the first violation."""
    starts, relations = arrays[TYPE_STARTS], arrays[RELATIONS]
    known = check_type_names(source, arrays[VERTEX_TYPES])
    count = len(arrays["indptr"]) - 1
    if len(starts) != len(known) + 1:
        raise reject(
            source,
            TYPE_STARTS,
            f"has {len(starts):,} entries for {len(known):,} types: {_STARTS}",
        )
    if starts[0] != 0:
        raise reject(source, TYPE_STARTS, f"value {starts[0]} at position 0 is not 0: {_STARTS}")
    for at in range(1, len(starts)):
        if starts[at] < starts[at - 1]:
            raise reject(
                source,
                TYPE_STARTS,
                f"value {starts[at]} at position {at} is less than the previous value, {starts[at - 1]}: "
                f"{_STARTS}",
            )
    if starts[-1] != count:
        raise reject(
            source,
            TYPE_STARTS,
            f"value {starts[-1]} at position {len(starts) - 1} differs from the number of vertices, "
            f"{count:,}: {_STARTS}",
        )
    if relations.shape[1] != 3:
        raise reject(
            source,
            RELATIONS,
            f"has shape {list(relations.shape)}, expected [R, 3]: use the columns source type, name and "
            "destination type",
        )
    seen: list[list[str]] = []
    for at, triple in enumerate(relations.tolist()):
        for end in (triple[0], triple[2]):
            if end not in known:
                raise reject(
                    source,
                    RELATIONS,
                    f"row {at} has the type {end!r}, which is not in {VERTEX_TYPES}"
                    f"{suggest_name(end, known) or ': add it there'}",
                )
        if not triple[1] or not triple[1].isprintable():
            raise reject(source, RELATIONS, f"row {at} has the name {triple[1]!r}: use printable characters")
        if triple in seen:
            raise reject(source, RELATIONS, f"row {at}, {' '.join(triple)}, is a duplicate: remove it")
        seen.append(triple)
    target = arrays[TARGET_TYPE].tolist()
    if len(target) != 1 or target[0] not in known:
        hint = suggest_name(target[0], known) if len(target) == 1 else ""
        raise reject(
            source,
            TARGET_TYPE,
            f"value {target!r} is not a vertex type: use one of {join_names(known, 'and')}{hint}",
        )
    types = types_from_arrays(arrays)
    assert types is not None
    return types


def check_type_names(source: str, names: Array) -> list[str]:
    """Return the names of the vertex types; raise DataError if one is missing, invalid or duplicated."""
    if len(names) == 0:
        raise reject(source, VERTEX_TYPES, "is empty: name each vertex type")
    known: list[str] = names.tolist()
    for at, name in enumerate(known):
        if problem := find_name_problem(name):
            raise reject(source, VERTEX_TYPES, f"name {name!r} at position {at} {problem}: rename it")
        if name in known[:at]:
            raise reject(source, VERTEX_TYPES, f"name {name!r} at position {at} is a duplicate: remove it")
    return known


def find_name_problem(name: str) -> str:
    """Return why the name of a vertex type is invalid; empty if it is valid."""
    if not name or not name.isprintable() or name != name.strip():
        return "must consist of printable characters, without leading or trailing spaces"
    bad = [letter for letter in _FORBIDDEN if letter in name]
    return f"must not contain {bad[0]!r}, which is not allowed in file and key names" if bad else ""


def check_relation_edges(
    source: str, arrays: Mapping[str, Array], types: GraphTypes, *, ordered: bool = True
) -> None:
    """Raise DataError unless all edges fit their relation and, if `ordered`, rows are sorted by relation,
    then by source.
    """
    indptr, indices, numbers = arrays["indptr"], arrays["indices"], arrays["edge_type"]
    if len(numbers) != len(indices):
        raise reject(
            source,
            "edge_type",
            f"has {len(numbers):,} entries for {len(indices):,} edges: use one entry per edge",
        )
    ends = (types.starts, types.relation_sources, types.relation_destinations)
    for low in range(0, types.num_vertices, _ROWS):
        high = min(low + _ROWS, types.num_vertices)
        at, row, error_code = hetero_kernels.find_invalid_relation_edge(
            indptr, indices, numbers, *ends, low, high, ordered
        )
        if error_code:
            raise _wrong_edge(source, arrays, types, (int(at), int(row)), int(error_code))


def _wrong_edge(
    source: str, arrays: Mapping[str, Array], types: GraphTypes, place: tuple[int, int], error_code: int
) -> DataError:
    at, row = place
    value, number = int(arrays["indices"][at]), int(arrays["edge_type"][at])
    if error_code == hetero_kernels.NO_RELATION:
        return reject(
            source,
            "edge_type",
            f"value {number} at position {at} is not one of the {len(types.relations):,} relations: use "
            f"numbers from 0 to {len(types.relations) - 1:,}",
        )
    if error_code == hetero_kernels.DISORDER:
        equal = value == arrays["indices"][at - 1] and number == arrays["edge_type"][at - 1]
        return reject(
            source,
            "indices",
            f"the edge at position {at}, from {value} by relation {number}, "
            f"{'repeats' if equal else 'belongs before'} the previous one in row {row}, but rows must be "
            "sorted by relation, then by source, without duplicates: sort them with hyrt data convert "
            f"{shlex.quote(source)} DESTINATION --sort --unique",
        )
    relation = types.relations[number]
    if error_code == hetero_kernels.WRONG_DESTINATION:
        found = types.vertex_types[int(types.vertex_type_indices(np.array([row]))[0])]
        return reject(
            source,
            "edge_type",
            f"value {number} at position {at}: the edge goes to vertex {row} of type {found!r}, but relation "
            f"{number} is {relation}: correct one of the two",
        )
    if not 0 <= value < types.num_vertices:
        return reject(
            source,
            "indices",
            f"value {value} at position {at} is not one of {types.num_vertices:,} vertices: use numbers "
            f"from 0 to {types.num_vertices - 1:,}",
        )
    found = types.vertex_types[int(types.vertex_type_indices(np.array([value]))[0])]
    return reject(
        source,
        "indices",
        f"value {value} at position {at} is a vertex of type {found!r}, but relation {number} is {relation}: "
        "correct one of the two",
    )


def check_target_labels(source: str, labels: Array, types: GraphTypes) -> None:
    """Raise DataError if a vertex has a label, but is not of the target type."""
    low, high = types.interval(types.target)
    for first, last in ((0, low), (high, types.num_vertices)):
        for start in range(first, last, check.CHUNK):
            known = is_labelled(labels[start : min(start + check.CHUNK, last)])
            if known.any():
                raise _labelled(source, types, start + int(known.argmax()))


def _labelled(source: str, types: GraphTypes, vertex: int) -> DataError:
    low, high = types.interval(types.target)
    found = types.vertex_types[int(types.vertex_type_indices(np.array([vertex]))[0])]
    return reject(
        source,
        "labels",
        f"vertex {vertex} of type {found!r} has a label, but {TARGET_TYPE} is {types.target!r}: set the "
        f"labels of all vertices except {low:,} to {high - 1:,} to -1 (nan for numbers)",
    )


def check_ids_in_types(source: str, key: str, numbers: Array, types: GraphTypes) -> None:
    """Raise DataError if the original index of a vertex belongs to another type."""

    def moved(a: int, b: int) -> NDArray[np.bool_]:
        changed: NDArray[np.bool_] = types.vertex_type_indices(numbers[a:b]) != types.vertex_type_indices(
            np.arange(a, b)
        )
        return changed

    at = check.find_first_violation(moved, len(numbers))
    if at is not None:
        raise reject(
            source,
            key,
            f"value {numbers[at]} at position {at} is a vertex of another type: reorder vertices only "
            "within their types",
        )
