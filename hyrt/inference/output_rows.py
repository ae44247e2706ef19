"""Scores, classes or embeddings of vertices in .npy files or CSV tables, and warnings about non-finite
results.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.errors import ConfigError, DataError, RunWarning, warn_user
from hyrt.graph.formats.npy import header_bytes
from hyrt.graph.graph import Graph
from hyrt.graph.metadata import IDS
from hyrt.inference.infer import infer_layerwise
from hyrt.nn.model import GNN
from hyrt.runtime.files import atomic_file
from hyrt.runtime.workers import Workers

_DIVERGED = "train again with a lower train.lr, because the model's weights are not finite either"
_INPUT = (
    "check the features with hyrt data info --check, and scale them as in training (the model's weights are "
    "finite)"
)


def name_cause(model: torch.nn.Module) -> str:
    """Return the likely cause of non-finite results and its remedy."""
    tensors = [*model.parameters(), *model.buffers()]
    is_finite = all(bool(torch.isfinite(tensor).all()) for tensor in tensors if tensor.is_floating_point())
    return _INPUT if is_finite else _DIVERGED


class NotFiniteRows:
    """Counter of non-finite rows in results that are written in pieces.

    `quantity` names the results, such as `the scores`; `nouns` are the plural and singular of the items, such
    as `vertices` and `vertex`.
    """

    def __init__(self, model: torch.nn.Module, quantity: str, nouns: tuple[str, str]) -> None:
        self._model = model
        self._quantity = quantity
        self._nouns = nouns
        self._num_bad = self._total = 0
        self._first: Any = None

    def add(self, rows: NDArray[Any], names: NDArray[Any] | Sequence[Any]) -> None:
        """Count the non-finite rows of further results [n, ...]; `names` has one item per row."""
        bad_rows = np.flatnonzero(~np.isfinite(rows).reshape(len(rows), -1).all(axis=1))
        if len(bad_rows) and not self._num_bad:
            first = names[int(bad_rows[0])]
            self._first = tuple(np.asarray(first).tolist()) if np.ndim(first) else first
        self._num_bad += len(bad_rows)
        self._total += len(rows)

    def warn(self) -> None:
        """Warn once if any row is not finite."""
        if self._num_bad:
            plural, singular = self._nouns
            warn_user(
                f"{self._quantity} of {self._num_bad:,} of {self._total:,} {plural} are not finite, "
                f"starting at {singular} {self._first}: {name_cause(self._model)}",
                RunWarning,
            )


_ROWS_PER_WRITE = 1 << 12


def write_named_rows(
    path: Path,
    rows: NDArray[Any],
    vertices: NDArray[np.int64],
    graph: Graph,
    classes: Sequence[str] | None,
    output_kind: str,
) -> None:
    """Write a table of `rows` [n] or [n, columns] for `vertices` [n], atomically.

    `classes` are the names of the run's classes or labels, or None without names. `output_kind` is `scores`,
    `classes` or `embeddings`. Raises DataError if the dataset has ids for another number of vertices.
    """
    if output_kind == "classes" and rows.ndim == 1:
        columns = ["class"]
    elif output_kind != "embeddings" and classes is not None and len(classes) == rows.shape[1]:
        columns = list(classes)
    else:
        columns = [str(number) for number in range(1 if rows.ndim == 1 else rows.shape[1])]
    numbers = graph.vertices.vertex_ids
    numbers = vertices if numbers is None else numbers[vertices]
    with atomic_file(path) as file, graph.names.read_ids() as ids:
        id_columns = ["id"] if graph.types is None or ids is None else ["type", "id"]
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*id_columns, *columns])
        id_cells = _iter_ids(numbers, ids, graph.name)
        for start in range(0, len(rows), _ROWS_PER_WRITE):
            part = rows[start : start + _ROWS_PER_WRITE]
            # Print the digits of float32, since the conversion to float64 would add meaningless digits.
            values: list[Any] = (part.astype("U32") if part.dtype.kind == "f" else part).tolist()
            if columns == ["class"]:
                values = [[value if classes is None else classes[value]] for value in values]
            writer.writerows([*next(id_cells), *row] for row in values)
        text.flush()
        text.detach()


def _iter_ids(numbers: NDArray[Any], ids: Iterator[list[str]] | None, source: str) -> Iterator[list[Any]]:
    """Yield the id of each vertex (with its type in a heterogeneous graph), or its number without `ids`."""
    if ids is None:
        yield from ([number] for number in numbers.tolist())
        return
    names: dict[int, list[str]] = {}
    in_order = bool((np.diff(numbers) > 0).all())
    remaining = iter(numbers.tolist()) if in_order else None
    if remaining is None:
        requested = set(numbers.tolist())
        names = {number: name for number, name in enumerate(ids) if number in requested}
        for number in numbers.tolist():
            yield _check_name(names.get(number), source)
        return
    position = -1
    for number in remaining:
        name = None
        while position < number:
            name, position = next(ids, None), position + 1
        yield _check_name(name, source)


def _check_name(name: list[str] | None, source: str) -> list[str]:
    if name is None:
        raise DataError(
            f"{source}: {IDS} has fewer lines than the graph has vertices: convert the dataset again"
        )
    return name


_NPY_ROWS_PER_WRITE = 1 << 16


def select_vertices(
    graph: Graph, choice: str | Sequence[int] | NDArray[Any], split: int
) -> NDArray[np.int64]:
    """Return the vertices of `all`, `train`, `val` or `test`, of a .npy file, or of an array.

    If the dataset was reordered, files and arrays have original vertex numbers, and the result follows the
    original order, so that output rows match the dataset before reordering. Raises DataError, with the first
    bad position, if the file does not contain vertex numbers.
    """
    positions = graph.vertices.positions
    if not isinstance(choice, str):
        return _find_positions(graph, np.asarray(choice, None if len(choice) else np.int64), "vertices")
    if choice == "all":
        return np.arange(graph.num_vertices) if positions is None else positions.astype(np.int64)
    if choice in ("train", "val", "test"):
        vertices = np.asarray(graph.split(choice, split), np.int64)
        ids = graph.vertices.vertex_ids
        return vertices if ids is None else vertices[np.argsort(ids[vertices])]
    hint = "use all, train, val, test or a .npy file of vertex numbers"
    try:
        with Path(choice).open("rb") as file:
            ids = np.lib.format.read_array(file, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"--vertices {choice} does not exist: {hint}") from None
    # MemoryError and OverflowError: the header states more elements than fit in memory or in an int64.
    except (OSError, ValueError, MemoryError, OverflowError) as error:
        raise DataError(f"--vertices {choice} cannot be read ({error}): {hint}") from None
    return _find_positions(graph, ids, choice)


def _find_positions(graph: Graph, ids: NDArray[Any], source: str) -> NDArray[np.int64]:
    """Convert original vertex numbers to the vertices of the reordered graph."""
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise DataError(
            f"{source}: expected a one-dimensional array of integers, got {ids.dtype} of shape {ids.shape}"
        )
    bad = np.flatnonzero((ids < 0) | (ids >= graph.num_vertices))
    if len(bad):
        bad_id = ids[bad[0]]
        limit = "below 0" if bad_id < 0 else f"not below the vertex count {graph.num_vertices:,}"
        raise DataError(
            f"{source}: {bad_id} at position {bad[0]} is {limit}: use numbers from 0 to "
            f"{graph.num_vertices - 1:,}"
        )
    positions = graph.vertices.positions
    return (ids if positions is None else positions[ids]).astype(np.int64)


def write_rows(
    path: Path,
    model: GNN,
    graph: Graph,
    vertices: NDArray[np.int64],
    output_kind: Literal["scores", "classes", "embeddings"],
    workers: Workers,
    *,
    memory_bytes: int,
) -> tuple[int, ...]:
    """Apply a model to `vertices` [n], write one row per vertex, and return the shape of the written array.

    The .npy file has a row for each entry of `vertices`, but duplicates are computed only once. `output_kind`
    is `scores` [n, classes] float32, `classes` [n] int32 (multi-label: [n, K] int8), or `embeddings` [n,
    hidden] float32, the input rows of the last layer. The file is written atomically, and an OSError leaves
    no partial file. `memory_bytes` limits the memory of hidden rows and results; other rows are stored in a
    temporary file in the same folder.

    Raises ConfigError if a model with a single layer has no embeddings, or if classes are requested although
    the labels are numbers. Raises DataError if classes are requested and scores are NaN.
    """
    depth = len(model.layers) - (output_kind == "embeddings")
    if not depth:
        raise ConfigError(
            "a model with one layer has no embeddings, because its scores are computed directly from the "
            "features: remove --embeddings"
        )
    kind = graph.vertices.label_kind
    if output_kind == "classes" and kind == "numbers":
        raise ConfigError("the labels are numbers, so there are no classes: use --output-kind scores")
    distinct, positions = np.unique(vertices, return_inverse=True)
    rows = infer_layerwise(
        model,
        graph,
        distinct,
        workers,
        memory_bytes=memory_bytes,
        scratch=path.absolute().parent,
        layers=depth,
    )
    if output_kind == "classes":
        _check_scores(rows, distinct, graph, model)
    one_class = output_kind == "classes" and kind == "classes"
    shape = (len(vertices),) if one_class else (len(vertices), rows.shape[1])
    dtype = np.dtype(np.int32 if one_class else np.int8 if output_kind == "classes" else np.float32)
    not_finite = NotFiniteRows(model, f"the {output_kind}", ("vertices", "vertex"))
    ids = graph.vertices.vertex_ids
    with atomic_file(path) as file:
        file.write(header_bytes(dtype, shape))
        for start in range(0, len(vertices), _NPY_ROWS_PER_WRITE):
            part: NDArray[Any] = rows[positions[start : start + _NPY_ROWS_PER_WRITE]]
            if output_kind == "classes":
                part = part.argmax(1) if one_class else part > 0
            else:
                numbers = vertices[start : start + _NPY_ROWS_PER_WRITE]
                not_finite.add(part, numbers if ids is None else ids[numbers])
            file.write(np.ascontiguousarray(part, dtype).data)
    not_finite.warn()
    return shape


def _check_scores(rows: NDArray[np.float32], vertices: NDArray[np.int64], graph: Graph, model: GNN) -> None:
    """Raise DataError with the first bad vertex if a score is NaN, before classes are computed."""
    num_bad, first = 0, -1
    for start in range(0, len(rows), _NPY_ROWS_PER_WRITE):
        bad = np.flatnonzero(np.isnan(rows[start : start + _NPY_ROWS_PER_WRITE]).any(axis=1))
        if len(bad) and not num_bad:
            first = int(vertices[start + bad[0]])
        num_bad += len(bad)
    if num_bad:
        ids = graph.vertices.vertex_ids
        raise DataError(
            f"the scores of {num_bad:,} vertices are nan, starting at vertex "
            f"{first if ids is None else ids[first]}, so these vertices have no class: write the scores "
            f"(--output-kind scores), or {name_cause(model)}"
        )
