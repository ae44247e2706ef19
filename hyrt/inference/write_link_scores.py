"""Scores of pairs of vertices into a .npy file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.formats.npy import header_bytes
from hyrt.graph.graph import Graph
from hyrt.graph.links.link_file import checked_pairs
from hyrt.inference.infer import infer_layerwise
from hyrt.machine.atomic_write import atomic_file
from hyrt.machine.workers import Workers
from hyrt.nn.model import GNN
from hyrt.objective.links.link_ranks import Score, pair_scores

_PAIRS = 1 << 20


def read_pairs(path: Path, graph: Graph) -> NDArray[Any]:
    """[n, 2] the pairs of vertices of a .npy file, which has the numbers of the dataset in its own order.

    Raises
    ------
    DataError
        If the file holds no pairs of vertices, naming the first bad position.
    """
    wanted = f"--links {path}: give a .npy file of [n, 2] vertex numbers"
    try:
        with path.open("rb") as file:
            pairs = np.lib.format.read_array(file, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{wanted}: no such file") from None
    # The last two where the header tells of more numbers than memory, or an int64, can hold.
    except (OSError, ValueError, MemoryError, OverflowError) as error:
        raise DataError(f"{wanted}: {error}") from None
    assert graph.links is not None, "only runs that predict links score pairs"
    return checked_pairs(str(path), pairs, graph.num_vertices, graph.links.ends, graph.vertices.positions)


def write_link_scores(
    path: Path,
    model: GNN,
    graph: Graph,
    pairs: NDArray[Any],
    score: Score,
    workers: Workers,
    *,
    memory_bytes: int,
) -> int:
    """Apply a model to the vertices of pairs, and write a score of each pair.

    The file appears whole or not at all. Rows that do not fit the budget wait in a temporary file beside it.

    Parameters
    ----------
    path
        The .npy file to write: [n] float32, in the order of the pairs.
    model
        A model of `hyrt.nn`.
    graph
        The graph with its data; its edges carry the messages.
    pairs
        [n, 2] sources and destinations.
    score
        Scores pairs of rows of the model.
    workers
        The team of threads that computes.
    memory_bytes
        Bound on hidden rows and results in memory.

    Returns
    -------
    How many scores were written.

    Raises
    ------
    OSError
        If the file cannot be written; none is left then.
    """
    vertices, places = np.unique(pairs, return_inverse=True)
    rows = infer_layerwise(
        model,
        graph,
        vertices.astype(np.int64),
        workers,
        memory_bytes=memory_bytes,
        scratch=path.absolute().parent,
    )
    values, places = torch.from_numpy(rows), places.reshape(pairs.shape)
    with atomic_file(path) as file, torch.no_grad():
        file.write(header_bytes(np.dtype(np.float32), (len(pairs),)))
        for start in range(0, len(pairs), _PAIRS):
            file.write(pair_scores(values, places[start : start + _PAIRS], score).data)
    return len(pairs)
