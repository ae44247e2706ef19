"""Scores, classes or embeddings of vertices into a .npy file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import ConfigError, DataError
from hyrt.graph.formats.npy import header_bytes
from hyrt.graph.graph import Graph
from hyrt.inference.infer import infer_layerwise
from hyrt.machine.atomic_write import atomic_file
from hyrt.machine.workers import Workers
from hyrt.nn.model import GNN

_ROWS = 1 << 16


def chosen_vertices(
    graph: Graph, choice: str | Sequence[int] | NDArray[Any], split: int
) -> NDArray[np.int64]:
    """The vertices of `all`, `train`, `val`, `test`, of a .npy file of vertex numbers, or these numbers.

    Of a dataset in another order, files have the original numbers, and vertices come in the order of these:
    rows are those of the dataset before it was put in order.

    Raises
    ------
    DataError
        If the file holds no numbers of vertices, naming the first bad position.
    """
    positions = graph.vertices.positions
    if not isinstance(choice, str):
        return _positions(graph, np.asarray(choice, None if len(choice) else np.int64), "vertices")
    if choice == "all":
        return np.arange(graph.num_vertices) if positions is None else positions.astype(np.int64)
    if choice in ("train", "val", "test"):
        vertices = np.asarray(graph.split(choice, split), np.int64)
        ids = graph.vertices.vertex_ids
        return vertices if ids is None else vertices[np.argsort(ids[vertices])]
    wanted = f"--vertices {choice}: give all, train, val, test or a .npy file of vertex numbers"
    try:
        with Path(choice).open("rb") as file:
            ids = np.lib.format.read_array(file, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{wanted}: no such file: {choice}") from None
    # The last two where the header tells of more numbers than memory, or an int64, can hold.
    except (OSError, ValueError, MemoryError, OverflowError) as error:
        raise DataError(f"{wanted}: {error}") from None
    return _positions(graph, ids, choice)


def _positions(graph: Graph, ids: NDArray[Any], where: str) -> NDArray[np.int64]:
    """Where the vertices of numbers are in the graph."""
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise DataError(f"{where}: give a one-dimensional array of whole numbers")
    bad = np.flatnonzero((ids < 0) | (ids >= graph.num_vertices))
    if len(bad):
        wrong = ids[bad[0]]
        limit = "below 0" if wrong < 0 else f"not below the {graph.num_vertices:,} vertices"
        raise DataError(f"{where}: {wrong} at position {bad[0]} is {limit}")
    positions = graph.vertices.positions
    return (ids if positions is None else positions[ids]).astype(np.int64)


def write_rows(
    path: Path,
    model: GNN,
    graph: Graph,
    vertices: NDArray[np.int64],
    what: Literal["scores", "classes", "embeddings"],
    workers: Workers,
    *,
    memory_bytes: int,
) -> tuple[int, ...]:
    """Apply a model to vertices and write a row of each.

    The file appears whole or not at all. Rows that do not fit the budget wait in a temporary file beside it.

    Parameters
    ----------
    path
        The .npy file to write.
    model
        A model of `hyrt.nn`.
    graph
        The graph with its data.
    vertices
        [n], in the order of the rows; repeated ones are computed once.
    what
        `scores` [n, classes] float32, `classes` [n] int32 (of labels of 0 and 1: [n, K] int8), or
        `embeddings` [n, hidden] float32: the rows that enter the last layer.
    workers
        The team of threads that computes.
    memory_bytes
        Bound on hidden rows and results in memory.

    Returns
    -------
    Shape of what was written.

    Raises
    ------
    ConfigError
        If the model has no hidden layer to give embeddings, or labels are numbers, of which there are no
        classes.
    DataError
        If classes are wanted of scores that are not numbers.
    OSError
        If the file cannot be written; none is left then.
    """
    depth = len(model.layers) - (what == "embeddings")
    if not depth:
        raise ConfigError(
            "a model of one layer has no embeddings: its scores are computed directly from the features"
        )
    kind = graph.vertices.label_kind
    if what == "classes" and kind == "numbers":
        raise ConfigError("the labels are numbers, so there are no classes: use --what scores")
    distinct, place = np.unique(vertices, return_inverse=True)
    rows = infer_layerwise(
        model,
        graph,
        distinct,
        workers,
        memory_bytes=memory_bytes,
        scratch=path.absolute().parent,
        layers=depth,
    )
    if what == "classes":
        _check_scores(rows, distinct, graph)
    one_class = what == "classes" and kind == "classes"
    shape = (len(vertices),) if one_class else (len(vertices), rows.shape[1])
    dtype = np.dtype(np.int32 if one_class else np.int8 if what == "classes" else np.float32)
    with atomic_file(path) as file:
        file.write(header_bytes(dtype, shape))
        for start in range(0, len(vertices), _ROWS):
            part: NDArray[Any] = rows[place[start : start + _ROWS]]
            if what == "classes":
                part = part.argmax(1) if one_class else part > 0
            file.write(np.ascontiguousarray(part, dtype).data)
    return shape


def _check_scores(rows: NDArray[np.float32], vertices: NDArray[np.int64], graph: Graph) -> None:
    """Refuse to choose classes by scores that are not numbers, naming the first vertex that has some."""
    wrong, first = 0, -1
    for start in range(0, len(rows), _ROWS):
        found = np.flatnonzero(np.isnan(rows[start : start + _ROWS]).any(axis=1))
        if len(found) and not wrong:
            first = int(vertices[start + found[0]])
        wrong += len(found)
    if wrong:
        ids = graph.vertices.vertex_ids
        raise DataError(
            f"the scores of {wrong:,} vertices are not numbers, first of vertex "
            f"{first if ids is None else ids[first]}, so they have no class: train again with a lower "
            "train.lr, check the features, or write the scores (--what scores)"
        )
