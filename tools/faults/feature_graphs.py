"""Small graphs of every kind of data that hyrt supports, with odd vertex and column counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from trials import write_data

Arrays = dict[str, NDArray[Any]]

# File name: number of vertices, number of columns.
FILES = {
    "sparse.npz": (601, 200),
    "weights.npz": (601, 7),
    "edge-features.npz": (601, 9),
    "edge-types.npz": (601, 7),
    "labels.npz": (601, 13),
    "numbers.npz": (2001, 7),
    "directed.npz": (2001, 17),
}
HETERO = "vertices=601,edges=5000,features=7,classes=3"
HETERO_FILES = ("typed-weights.npz", "typed-features.npz")
NUM_CLASSES = 4
EDGE_COLUMNS = 3
EDGE_TYPES = 3


def write_graphs(folder: Path) -> None:
    """Write `NETWORK_SUFFIXES` and `HETERO_FILES`."""
    for name, (vertices, columns) in FILES.items():
        np.savez(folder / name, **make_arrays(name.removesuffix(".npz"), vertices, columns))
    plain = write_data(folder / "typed.npz", f"synthetic:hetero,{HETERO}")
    with np.load(plain) as file:
        arrays = {key: file[key] for key in file.files}
    random = np.random.default_rng(2)
    edges = len(arrays["indices"])
    np.savez(folder / HETERO_FILES[0], **arrays, edge_weight=_draw_weights(random, edges))
    np.savez(folder / HETERO_FILES[1], **arrays, edge_features=_draw_rows(random, edges, EDGE_COLUMNS))


def make_arrays(kind: str, vertices: int, columns: int) -> Arrays:
    """Return the arrays of a dataset; features and labels both depend on the vertex's class."""
    random = np.random.default_rng(1)
    degree = 8
    classes = random.integers(0, NUM_CLASSES, vertices)
    pairs = np.column_stack(
        [random.integers(0, vertices, vertices * degree), np.arange(vertices).repeat(degree)]
    )
    if kind != "directed":
        pairs = np.concatenate([pairs, pairs[:, ::-1]])
    # Sorted by destination, then by source, without duplicates.
    pairs = np.unique(pairs[pairs[:, 0] != pairs[:, 1]][:, ::-1], axis=0)
    counts = np.bincount(pairs[:, 0], minlength=vertices)
    split = random.integers(0, 4, vertices)
    arrays = {
        "indptr": np.append(0, counts.cumsum()),
        "indices": pairs[:, 1].astype(np.int32),
        "labels": classes,
        "train_mask": split < 2,
        "val_mask": split == 2,
        "test_mask": split == 3,
    }
    if kind == "sparse":
        arrays |= _make_sparse_rows(random, classes, columns)
    else:
        arrays["features"] = _draw_rows(random, vertices, columns)
        arrays["features"][np.arange(vertices), classes % columns] += 1
    edges = len(pairs)
    match kind:
        case "weights":
            arrays["edge_weight"] = _draw_weights(random, edges)
        case "edge-features":
            arrays["edge_features"] = _draw_rows(random, edges, EDGE_COLUMNS)
        case "edge-types":
            arrays["edge_type"] = random.integers(0, EDGE_TYPES, edges)
        case "labels":
            arrays["labels"] = (classes[:, None] == [0, 1, 3]).astype(np.int8)
        case "numbers":
            arrays["labels"] = (classes + random.normal(0, 0.1, vertices)).astype(np.float32)
    return arrays


def _make_sparse_rows(random: np.random.Generator, classes: NDArray[Any], columns: int) -> Arrays:
    entries = np.column_stack([classes, random.integers(0, columns, (len(classes), 12))])
    entries.sort(axis=1)
    is_first = np.diff(entries, prepend=-1) > 0
    return {
        "feat_indptr": np.append(0, is_first.sum(1).cumsum()),
        "feat_indices": entries[is_first].astype(np.int32),
        "feat_values": random.uniform(0.1, 2, is_first.sum()).astype(np.float32),
        "feat_shape": np.array([len(classes), columns]),
    }


def _draw_rows(random: np.random.Generator, rows: int, columns: int) -> NDArray[np.float32]:
    return random.normal(0, 1, (rows, columns)).astype(np.float32)


def _draw_weights(random: np.random.Generator, edges: int) -> NDArray[np.float32]:
    return random.uniform(0.1, 3, edges).astype(np.float32)
