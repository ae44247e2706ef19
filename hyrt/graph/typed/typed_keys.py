"""Dataset keys of vertex types and relations, and the type suffix of feature keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.typed.graph_types import GraphTypes, Relation

Array = NDArray[Any]

VERTEX_TYPES = "vertex_types"
TYPE_STARTS = "type_starts"
RELATIONS = "relations"
TARGET_TYPE = "target_type"
TYPE_KEYS = (VERTEX_TYPES, TYPE_STARTS, RELATIONS, TARGET_TYPE)
TEXT_KEYS = (VERTEX_TYPES, RELATIONS, TARGET_TYPE)
"""Keys of string arrays with a fixed-width dtype, such as `numpy.array(["paper", "author"])`."""


def typed_key(base: str, vertex_type: str) -> str:
    """Return the key of one type: `features:paper`."""
    return f"{base}:{vertex_type}"


def base_of(key: str) -> str:
    """Return a key without its type: `features` for `features:paper`."""
    return key.partition(":")[0]


def type_of(key: str) -> str:
    """Return the type of a key; empty if it has no type."""
    return key.partition(":")[2]


def arrays_of_types(types: GraphTypes) -> dict[str, Array]:
    """Convert types to arrays by key."""
    relations = [(each.source, each.name, each.destination) for each in types.relations]
    return {
        VERTEX_TYPES: np.array(types.vertex_types),
        TYPE_STARTS: types.starts,
        RELATIONS: np.array(relations) if relations else np.empty((0, 3), "<U1"),
        TARGET_TYPE: np.array([types.target]),
    }


def types_of_arrays(arrays: Mapping[str, Array]) -> GraphTypes | None:
    """Read the types from checked arrays by key; None if the dataset has no types."""
    if VERTEX_TYPES not in arrays:
        return None
    return GraphTypes(
        tuple(arrays[VERTEX_TYPES].tolist()),
        arrays[TYPE_STARTS].astype(np.int64, copy=False),
        tuple(Relation(*names) for names in arrays[RELATIONS].tolist()),
        arrays[TARGET_TYPE].tolist()[0],
    )
