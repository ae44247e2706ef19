"""Degree-corrected planted partition with power-law weights and features around class means. It is
homogeneous, or has papers, authors and fields. Karrer and Newman, "Stochastic blockmodels and community
structure in networks", Physical Review E 83, 2011. Every random number is a pure function of (seed, purpose,
counter), so the graph depends neither on the number of threads nor on where it is built.
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
from hyrt.formatting import short_repr
from hyrt.graph.csr import ArrayBuilder, build_csr, drop_edges, map_in_order
from hyrt.graph.formats.schema import Dataset, FeatureRows, feature_table_name
from hyrt.graph.graph import SPLITS
from hyrt.graph.hetero.csr import RelationEdges
from hyrt.graph.hetero.dataset import HeteroDatasetParts, assemble_dataset
from hyrt.graph.hetero.graph_types import GraphTypes, Relation
from hyrt.graph.synthetic import kernels
from hyrt.graph.synthetic.spec import SyntheticSpec
from hyrt.runtime.hardware import available_cores
from hyrt.runtime.rng import stream_key

Array = NDArray[Any]

_WEIGHT_SCALE = 64
_PIECE_VALUES = 1 << 21


@dataclass(frozen=True, slots=True)
class Population:
    """Vertices of one type (26 bytes each), among which edge endpoints can be sampled by weight."""

    labels: NDArray[np.int16]
    """Class of each vertex, [n]."""
    order: NDArray[np.int32]
    """Vertices sorted by class, [n]: position p is vertex `order[p]`."""
    cumulative: NDArray[np.int64]
    """Sum of the weights before each position, [n+1]."""
    class_start: NDArray[np.int64]
    """First position of each class, [C+1]."""
    shift: int
    """Number of bits by which a value of `cumulative` is shifted right to get its index in `guide`."""
    guide: NDArray[np.int32]
    """First position whose weight interval reaches each bucket, at which a search in `cumulative` starts."""

    __repr__ = short_repr

    @property
    def num_classes(self) -> int:
        return len(self.class_start) - 1


def draw_population(label_key: np.uint64, weight_key: np.uint64, count: int, classes: int) -> Population:
    """Sample the classes and weights of vertices.

    Class sizes are proportional to 1 / sqrt(rank), and each class has at least one vertex.
    """
    # The largest weight is the structural cut-off of simple graphs, which is about the square root of V.
    cap = float(max(4, math.isqrt(count)))
    shares = np.cumsum(1.0 / np.sqrt(np.arange(1, classes + 1)))
    shares /= shares[-1]
    labels, weights = np.empty(count, np.int16), np.empty(count, np.int64)
    with ThreadPoolExecutor(available_cores()) as pool:
        jobs = [
            pool.submit(
                kernels.draw_vertices, label_key, weight_key, shares, cap, _WEIGHT_SCALE, a,
                labels[a : a + _PIECE_VALUES], weights[a : a + _PIECE_VALUES],
            )
            for a in range(0, count, _PIECE_VALUES)
        ]  # fmt: skip
        for job in jobs:
            job.result()
    # This guarantees that no class is empty.
    labels[:classes] = np.arange(classes)
    order = np.argsort(labels, kind="stable").astype(np.int32)
    cumulative = np.zeros(count + 1, np.int64)
    np.cumsum(weights[order], out=cumulative[1:])
    class_start = np.zeros(classes + 1, np.int64)
    np.cumsum(np.bincount(labels, minlength=classes), out=class_start[1:])
    total = int(cumulative[-1])
    shift = (total // (2 * count)).bit_length()
    guide = np.empty(((total - 1) >> shift) + 1, np.int32)
    kernels.fill_guide(cumulative, shift, guide)
    return Population(labels, order, cumulative, class_start, shift, guide)


def generate_class_features(
    labels: NDArray[np.int16],
    shape: tuple[int, int],
    signal: float,
    dtype: np.dtype[Any],
    keys: tuple[np.uint64, np.uint64],
) -> FeatureRows:
    """Generate feature rows around the mean of each vertex's class. They are computed when they are read.

    `labels` [n] are the classes, and `shape` (C, F) is the number of classes and the row width. `signal` is
    the standard deviation of the class means, around which the noise has standard deviation 1. `dtype` is
    float32 or float16, and `keys` are the random keys of the means and of the noise.
    """
    mean_key, key = keys
    means = np.zeros(shape, np.float32)
    # Sample each mean like the noise of a row, then scale it.
    kernels.draw_features(mean_key, np.arange(shape[0]), means.copy(), 0, means)
    means *= np.float32(signal)
    step = max(1, _PIECE_VALUES // shape[1])

    def piece(first: int) -> Array:
        part = labels[first : first + step]
        rows = np.empty((len(part), shape[1]), np.float32)
        kernels.draw_features(key, part, means, first, rows)
        return rows.astype(dtype, copy=False)

    def blocks() -> Iterator[Array]:
        with ThreadPoolExecutor(available_cores()) as pool:
            yield from map_in_order(pool, piece, range(0, len(labels), step), available_cores())

    return FeatureRows.from_blocks((len(labels), shape[1]), dtype, blocks)


def draw_masks(key: np.uint64, count: int, sizes: dict[str, int]) -> dict[str, Array]:
    """Sample disjoint random splits with `sizes` vertices; return the three masks by key."""
    ranks = np.empty(count, np.uint64)
    kernels.draw_ranks(key, ranks)
    order = np.argsort(ranks, kind="stable")
    masks: dict[str, Array] = {}
    start = 0
    for split, size in sizes.items():
        mask = np.zeros(count, np.bool_)
        mask[order[start : start + size]] = True
        masks[f"{split}_mask"] = mask
        start += size
    return masks


# Purposes of the random streams of the generator, which differ from those of training.
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
    """Generate a graph. Features are computed when they are read.

    The dataset passes all checks: it is symmetric and sorted, without duplicates and self-loops. `scratch` is
    a folder for the edges, which limits memory to about 80 bytes per vertex plus 1.1 GB. If it is None, edges
    are in memory, with the same result. Raises DataError if there cannot be so many edges without duplicates.
    """
    model = _draw_model(spec)
    indptr, indices = _draw_topology(model, scratch)
    arrays: dict[str, Array] = {"indptr": indptr, "indices": indices, "labels": model.vertices.labels}
    sizes = {split: getattr(spec, split) for split in SPLITS}
    arrays |= draw_masks(model.key(SPLIT), spec.vertices, sizes)
    rows = generate_class_features(
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
    """Sample more edges than requested, because duplicates are removed, then remove the excess."""
    spec = model.spec
    num_edges = spec.edges // 2
    draws = _draws_needed(model, num_edges)
    dtype = np.dtype(np.int32)
    while True:
        drawn = ArrayBuilder(dtype, scratch and scratch / "drawn.npy")
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
    remaining = ArrayBuilder(dtype, scratch and scratch / "indices.npy")
    indptr = drop_edges(indptr, indices, excess, int(model.key(DROP)), remaining.append)
    return indptr, remaining.finish()


def _draws_needed(model: _Model, num_edges: int) -> int:
    """Estimate from a sample how many draws give slightly more than `num_edges` distinct edges.

    Raises DataError if there cannot be so many distinct edges.
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
                f"{spec.name}: edges={spec.edges:,} is too many for {spec.vertices:,} vertices with "
                "such unequal degrees: lower edges or homophily, or raise vertices"
            )
    # Round up coarsely, because the last bits of exp differ between machines and must not affect the graph.
    grain = max(1, num_edges >> 12)
    return (int(draws) // grain + 1) * grain


def _edge_pieces(model: _Model, draws: int) -> Iterator[tuple[Array, Array]]:
    """Yield the sampled edges in pieces of about a million."""
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
        yield from map_in_order(pool, draw, itertools.pairwise(cuts.tolist()), available_cores())


RELATIONS = (
    Relation("paper", "cites", "paper"),
    Relation("author", "writes", "paper"),
    Relation("paper", "about", "field"),
    Relation("paper", "rev_writes", "author"),
    Relation("field", "rev_about", "paper"),
)
"""Relations of the generated graph: three are sampled, then the reverses of the second and the third."""
RELATION_SHARES = (0.3, 0.25, 0.1)
"""Fraction of all edges in each sampled relation. A reverse relation has as many edges as its original."""
CLASS_OFFSETS = (0, 1, 2)
"""Offset of each sampled relation: source class c is paired with destination class c + offset."""
REVERSE_RELATIONS = (None, 3, 4)
"""Index of the reverse of each sampled relation, or None."""


def generate_hetero(spec: SyntheticSpec, scratch: Path | None = None) -> Dataset:
    """Generate a heterogeneous graph. Features are computed when they are read.

    The number of edges is within 1 % of the requested one. `scratch` is a folder for the edges; if it is
    None, they are in memory, with the same result. Raises DataError if there cannot be so many edges without
    duplicates.
    """
    counts = spec.type_counts
    populations = {
        name: draw_population(_key(spec, LABEL, number), _key(spec, WEIGHT, number), count, spec.classes)
        for number, (name, count) in enumerate(counts.items())
    }
    starts = np.concatenate([[0], np.cumsum(list(counts.values()))]).astype(np.int64)
    types = GraphTypes(tuple(counts), starts, RELATIONS, "paper")
    tables = {
        name: Dataset(
            feature_table_name(spec.name, name),
            {},
            generate_class_features(
                populations[name].labels,
                (spec.classes, width),
                spec.signal,
                np.dtype(spec.dtype),
                (_key(spec, MEAN, number), _key(spec, FEATURE, number)),
            ),
        )
        for number, (name, width) in enumerate(spec.type_widths.items())
        if width
    }
    draws = [_relation_draws_needed(spec, populations, number) for number in range(len(RELATION_SHARES))]

    def edges() -> Iterator[RelationEdges]:
        for number, num_draws in enumerate(draws):
            reverse = REVERSE_RELATIONS[number]
            for sources, targets in _relation_edge_pieces(spec, populations, number, num_draws):
                yield RelationEdges(number, sources, targets)
                if reverse is not None:
                    yield RelationEdges(reverse, targets, sources)

    sizes = {split: getattr(spec, split) for split in SPLITS}
    masks = draw_masks(_key(spec, SPLIT, 0), counts["paper"], sizes)
    parts = HeteroDatasetParts(types, edges, tables, populations["paper"].labels, masks)
    return assemble_dataset(spec.name, parts, scratch)[0]


def _key(spec: SyntheticSpec, purpose: int, number: int) -> np.uint64:
    """Return the random key of a type or relation, which differs from all keys of the homogeneous graph."""
    return stream_key(spec.seed, purpose, number, 1)


def _ends(populations: dict[str, Population], number: int) -> tuple[Population, Population]:
    return populations[RELATIONS[number].source], populations[RELATIONS[number].destination]


def _relation_draws_needed(spec: SyntheticSpec, populations: dict[str, Population], number: int) -> int:
    """Estimate from a sample how many draws give about the requested number of distinct edges."""
    num_edges = int(spec.edges * RELATION_SHARES[number])
    if num_edges == 0:
        return 0
    first, second = _ends(populations, number)
    pieces = list(_relation_edge_pieces(spec, populations, number, _SAMPLED_EDGES))
    u, v = (np.concatenate(ends) for ends in zip(*pieces, strict=True))
    u_weights, v_weights = (_weights(population) for population in (first, second))
    class_weights = np.diff(second.cumulative[second.class_start]).astype(np.float64)
    joined = (first.labels[u] + CLASS_OFFSETS[number]) % second.num_classes == second.labels[v]
    odds = u_weights[u] / float(first.cumulative[-1]) * v_weights[v]
    odds *= (1 - spec.homophily) / float(second.cumulative[-1]) + spec.homophily * joined / class_weights[
        second.labels[v]
    ]
    draws = float(num_edges)
    for _ in range(60):
        expected = draws * odds
        draws *= num_edges / (draws * float((-np.expm1(-expected) / expected).mean()))
        if draws > 20 * num_edges:
            raise DataError(
                f"{spec.name}: edges={spec.edges:,} is too many for {spec.vertices:,} vertices with "
                "such unequal degrees: lower edges or homophily, or raise vertices"
            )
    # Round up coarsely, because the last bits of exp differ between machines and must not affect the graph.
    grain = max(1, num_edges >> 12)
    return (math.floor(draws) // grain + 1) * grain


def _weights(population: Population) -> NDArray[np.float64]:
    weights = np.empty(len(population.labels))
    weights[population.order] = np.diff(population.cumulative)
    return weights


def _relation_edge_pieces(
    spec: SyntheticSpec, populations: dict[str, Population], number: int, draws: int
) -> Iterator[tuple[Array, Array]]:
    """Yield the sampled edges of one relation in pieces of about a million."""
    if draws == 0:
        return
    first, second = _ends(populations, number)
    cumulative = first.cumulative
    ratio = draws / float(cumulative[-1])
    step = max(1, int(_PIECE_EDGES / ratio))
    cuts = np.unique(np.searchsorted(cumulative, np.arange(0, int(cumulative[-1]) + step, step)))
    cuts = cuts.clip(0, len(first.labels))
    edge_key, place_key = _key(spec, EDGE, number), _key(spec, PLACE, number)
    # Class of the destination that is paired with the source at each position.
    class_at = (first.labels[first.order] + CLASS_OFFSETS[number]) % second.num_classes

    def draw(ends: tuple[int, int]) -> tuple[Array, Array]:
        low, high = ends
        count = int(float(cumulative[high]) * ratio) - int(float(cumulative[low]) * ratio)
        sources, targets = np.empty(count, np.int32), np.empty(count, np.int32)
        drawn = kernels.draw_pairs(
            low, high, ratio, cumulative, first.order, class_at, second.cumulative, second.shift,
            second.guide, second.order, second.class_start, spec.homophily, first is second, edge_key,
            place_key, sources, targets,
        )  # fmt: skip
        return sources[:drawn], targets[:drawn]

    with ThreadPoolExecutor(available_cores()) as pool:
        yield from map_in_order(pool, draw, itertools.pairwise(cuts.tolist()), available_cores())
