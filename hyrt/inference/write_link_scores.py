"""Scores of vertex pairs, written to a .npy file."""

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
from hyrt.inference.not_finite import NotFiniteRows
from hyrt.machine.atomic_write import atomic_file
from hyrt.machine.workers import Workers
from hyrt.nn.model import GNN
from hyrt.objective.links.link_ranks import Score, pair_scores

_NPY_PAIRS_PER_WRITE = 1 << 20


def read_pairs(path: Path, graph: Graph) -> NDArray[Any]:
    """Read [n, 2] vertex pairs from a .npy file with the dataset's original vertex numbers.

    Raises
    ------
    DataError
        If the file does not contain vertex pairs; the message has the first bad position.
    """
    hint = f"--links {path}: give a .npy file of [n, 2] vertex numbers"
    try:
        with path.open("rb") as file:
            pairs = np.lib.format.read_array(file, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{hint}: no such file") from None
    # The last two are raised if the header states more elements than memory or an int64 can hold.
    except (OSError, ValueError, MemoryError, OverflowError) as error:
        raise DataError(f"{hint}: {error}") from None
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
    """Apply a model to the vertices of pairs, and write one score per pair.

    The file is written atomically. Rows that exceed the memory budget are stored in a temporary file in the
    same folder.

    Parameters
    ----------
    path
        The .npy file to write: [n] float32, in the order of the pairs.
    model
        A model of `hyrt.nn`.
    graph
        Graph with features; its edges carry the messages.
    pairs
        [n, 2] sources and destinations.
    score
        Score function of pairs of model output rows.
    workers
        Thread team.
    memory_bytes
        Memory budget for hidden rows and results.

    Returns
    -------
    Number of written scores.

    Raises
    ------
    OSError
        If the file cannot be written; no partial file remains.
    """
    vertices, positions = np.unique(pairs, return_inverse=True)
    rows = infer_layerwise(
        model,
        graph,
        vertices.astype(np.int64),
        workers,
        memory_bytes=memory_bytes,
        scratch=path.absolute().parent,
    )
    not_finite = NotFiniteRows(model, "the scores", ("links", "link"))
    ids = graph.vertices.vertex_ids
    values, positions = torch.from_numpy(rows), positions.reshape(pairs.shape)
    with atomic_file(path) as file, torch.no_grad():
        file.write(header_bytes(np.dtype(np.float32), (len(pairs),)))
        for start in range(0, len(pairs), _NPY_PAIRS_PER_WRITE):
            scores = pair_scores(values, positions[start : start + _NPY_PAIRS_PER_WRITE], score)
            ends = pairs[start : start + _NPY_PAIRS_PER_WRITE]
            not_finite.add(scores, ends if ids is None else ids[ends])
            file.write(scores.data)
    not_finite.warn()
    return len(pairs)
