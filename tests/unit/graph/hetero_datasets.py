"""Small heterogeneous datasets, as arrays by key of the schema, made by numpy alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

Arrays = dict[str, np.ndarray[Any, Any]]
NAMES = ("author", "paper", "field")
RELATIONS = (
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "revises", "paper"),
    ("paper", "about", "field"),
    ("field", "has", "paper"),
)


def make_hetero(
    seed: int,
    most: int = 7,
    splits: int = 0,
    weights: bool = False,
    counts: tuple[int, int, int] | None = None,
) -> Arrays:
    """A random legal dataset of three types: sparse rows, rows of float16 and no rows."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, most + 1, len(NAMES)) if counts is None else np.array(counts)
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    rows: list[list[tuple[int, int]]] = [[] for _ in range(starts[-1])]
    for number, (source, _, destination) in enumerate(RELATIONS):
        first, last = (NAMES.index(name) for name in (source, destination))
        for v in range(sizes[last]):
            near = np.flatnonzero(rng.random(sizes[first]) < rng.random() * 0.8)
            rows[starts[last] + v] += [(number, int(starts[first] + u)) for u in near]
    edges = np.array([edge for row in rows for edge in row], np.int64).reshape(-1, 2)
    papers = slice(*starts[1:3])
    labels = np.full(starts[-1], -1, np.int16)
    labels[papers] = rng.permutation(np.arange(sizes[1]) % 2)
    part = rng.integers(0, 4, (starts[-1], splits) if splits else starts[-1])
    part[labels < 0] = 3
    words = [np.flatnonzero(rng.random(6) < 0.5) for _ in range(sizes[0])]
    arrays: Arrays = {
        "vertex_types": np.array(NAMES),
        "type_starts": starts,
        "relations": np.array(RELATIONS),
        "target_type": np.array(["paper"]),
        "indptr": np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64),
        "indices": edges[:, 1].astype(np.int32),
        "edge_type": edges[:, 0].astype(np.int8),
        "labels": labels,
        **{f"{split}_mask": part == i for i, split in enumerate(("train", "val", "test"))},
        "feat_indptr:author": np.concatenate([[0], np.cumsum([len(row) for row in words])]).astype(np.int64),
        "feat_indices:author": np.concatenate(words).astype(np.int32),
        "feat_values:author": rng.random(sum(map(len, words))).astype(np.float32),
        "feat_shape:author": np.array([sizes[0], 6]),
        "features:paper": rng.standard_normal((sizes[1], 4)).astype(np.float16),
    }
    if weights:
        arrays["edge_weight"] = rng.random(len(edges)).astype(np.float32) + 1
    return arrays


hetero_datasets = st.builds(
    make_hetero, seed=st.integers(0, 2**32 - 1), splits=st.integers(0, 2), weights=st.booleans()
)


def lists_of(arrays: Arrays) -> dict[tuple[str, str, str], set[tuple[int, int]]]:
    """The edges of each relation as pairs of numbers within their types, edge by edge."""
    found: dict[tuple[str, str, str], set[tuple[int, int]]] = {triple: set() for triple in RELATIONS}
    starts = arrays["type_starts"]
    for v in range(len(arrays["indptr"]) - 1):
        for e in range(arrays["indptr"][v], arrays["indptr"][v + 1]):
            triple = RELATIONS[arrays["edge_type"][e]]
            first, last = (starts[NAMES.index(name)] for name in (triple[0], triple[2]))
            found[triple].add((int(arrays["indices"][e] - first), int(v - last)))
    return found
