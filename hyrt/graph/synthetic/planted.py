"""Degree-corrected planted partition with power-law weights and features around class means.

Karrer and Newman, "Stochastic blockmodels and community structure in networks", Physical Review E 83, 2011.
Every random number is a pure function of (seed, purpose, counter), so the graph does not depend on the number
of threads, on the piece that is computed, or on whether it is built in memory or written to a folder.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.csr import Store, build_csr, drop_edges, in_order
from hyrt.graph.formats.schema import Dataset
from hyrt.graph.synthetic import kernels
from hyrt.graph.synthetic.population import Population, class_rows, draw_masks, draw_population
from hyrt.graph.synthetic.spec import SyntheticSpec
from hyrt.graph.vertex_table import SPLITS
from hyrt.machine.cores import available_cores
from hyrt.machine.generator import stream_key

Array = NDArray[Any]

# Stream purposes of the generator, distinct from the purposes used in training.
LABEL, WEIGHT, EDGE, PLACE, FEATURE, MEAN, SPLIT, DROP = range(101, 109)

_PIECE_EDGES = 1 << 20
_SAMPLED_EDGES = 1 << 17


@dataclass(frozen=True, slots=True)
class _Model:
    """Specification and sampled vertices of a generated graph."""

    spec: SyntheticSpec
    vertices: Population

    def key(self, purpose: int) -> np.uint64:
        return stream_key(self.spec.seed, purpose, 0, 0)


def generate(spec: SyntheticSpec, scratch: Path | None = None) -> Dataset:
    """Generate a graph; features are computed when they are read.

    Parameters
    ----------
    spec
        The graph to generate.
    scratch
        Folder for the edges, which bounds memory by about 80 bytes per vertex plus 1.1 GB. None keeps the
        edges in memory. The graph is the same in both cases.

    Returns
    -------
    A dataset that satisfies every check: symmetric, sorted, without duplicates and self loops.

    Raises
    ------
    DataError
        If the requested number of edges is not possible without duplicates.
    """
    model = _draw_model(spec)
    indptr, indices = _draw_topology(model, scratch)
    arrays: dict[str, Array] = {"indptr": indptr, "indices": indices, "labels": model.vertices.labels}
    sizes = {split: getattr(spec, split) for split in SPLITS}
    arrays |= draw_masks(model.key(SPLIT), spec.vertices, sizes)
    rows = class_rows(
        model.vertices.labels,
        (spec.classes, spec.features),
        spec.signal,
        np.dtype(spec.dtype),
        (model.key(MEAN), model.key(FEATURE)),
    )
    return Dataset(spec.name, arrays, rows)


def _draw_model(spec: SyntheticSpec) -> _Model:
    label_key, weight_key = (stream_key(spec.seed, purpose, 0, 0) for purpose in (LABEL, WEIGHT))
    return _Model(spec, draw_population(label_key, weight_key, spec.vertices, spec.classes))


def _draw_topology(model: _Model, scratch: Path | None) -> tuple[NDArray[np.int64], Array]:
    """Sample more edges than requested, because duplicates are removed, then drop the excess."""
    spec = model.spec
    num_edges = spec.edges // 2
    draws = _draws_needed(model, num_edges)
    dtype = np.dtype(np.int32)
    while True:
        drawn = Store(dtype, scratch and scratch / "drawn.npy")
        indptr = build_csr(
            partial(_edge_pieces, model, draws),
            spec.vertices,
            symmetric=True,
            self_loops=False,
            emit=drawn.append,
            source=spec.name,
            range_entries=drawn.range_entries,
        )
        excess = int(indptr[-1]) // 2 - num_edges
        indices = drawn.finish()
        if excess >= 0:
            break
        draws += draws // 50 + 16
    remaining = Store(dtype, scratch and scratch / "indices.npy")
    indptr = drop_edges(indptr, indices, excess, int(model.key(DROP)), remaining.append)
    return indptr, remaining.finish()


def _draws_needed(model: _Model, num_edges: int) -> int:
    """Estimate from a sample how many draws give slightly more than `num_edges` distinct edges.

    Raises
    ------
    DataError
        If that many distinct edges are not possible.
    """
    if num_edges == 0:
        return 0
    spec, vertices = model.spec, model.vertices
    pieces = list(_edge_pieces(model, _SAMPLED_EDGES))
    u, v = (np.concatenate(ends) for ends in zip(*pieces, strict=True))
    weights = np.empty(spec.vertices, np.int64)
    weights[vertices.order] = np.diff(vertices.cumulative)
    total = float(vertices.cumulative[-1])
    class_weights = np.diff(vertices.cumulative[vertices.class_start]).astype(np.float64)
    labels = vertices.labels
    second = (1 - spec.homophily) / total + spec.homophily * (labels[u] == labels[v]) / class_weights[
        labels[v]
    ]
    odds = 2.0 * weights[u] / total * weights[v] * second
    target = num_edges * 1.002 + 5 * math.sqrt(num_edges) + 16
    draws = target
    for _ in range(60):
        expected = draws * odds
        distinct = draws * float(np.where(u == v, 0.0, -np.expm1(-expected) / expected).mean())
        draws *= target / distinct
        if draws > 20 * target:
            raise DataError(
                f"{spec.name}: edges={spec.edges:,} are too many for {spec.vertices:,} vertices with "
                "such unequal degrees: lower edges or homophily, or raise vertices"
            )
    # Round up coarsely: the last bits of exp differ between machines and must not affect the graph.
    grain = max(1, num_edges >> 12)
    return (int(draws) // grain + 1) * grain


def _edge_pieces(model: _Model, draws: int) -> Iterator[tuple[Array, Array]]:
    """Yield the sampled edges, about a million at a time."""
    vertices = model.vertices
    cumulative = vertices.cumulative
    if draws == 0:
        return
    ratio = draws / float(cumulative[-1])
    step = max(1, int(_PIECE_EDGES / ratio))
    cuts = np.unique(np.searchsorted(cumulative, np.arange(0, int(cumulative[-1]) + step, step)))
    cuts = cuts.clip(0, model.spec.vertices)
    class_at = vertices.labels[vertices.order]
    edge_key, place_key = model.key(EDGE), model.key(PLACE)

    def draw(ends: tuple[int, int]) -> tuple[Array, Array]:
        first, last = ends
        count = int(float(cumulative[last]) * ratio) - int(float(cumulative[first]) * ratio)
        sources, targets = np.empty(count, np.int32), np.empty(count, np.int32)
        kernels.draw_pairs(
            first, last, ratio, cumulative, vertices.order, class_at, cumulative, vertices.shift,
            vertices.guide, vertices.order, vertices.class_start, model.spec.homophily, False, edge_key,
            place_key, sources, targets,
        )  # fmt: skip
        return sources, targets

    with ThreadPoolExecutor(available_cores()) as pool:
        yield from in_order(pool, draw, itertools.pairwise(cuts.tolist()), available_cores())
