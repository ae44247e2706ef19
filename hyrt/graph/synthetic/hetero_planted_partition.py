"""Generated heterogeneous graph: papers, authors and fields, connected according to their classes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.csr import map_in_order
from hyrt.graph.formats.schema import Dataset, feature_table_name
from hyrt.graph.graph import SPLITS
from hyrt.graph.hetero.csr import RelationEdges
from hyrt.graph.hetero.dataset import HeteroDatasetParts, assemble_dataset
from hyrt.graph.hetero.graph_types import GraphTypes, Relation
from hyrt.graph.synthetic import kernels
from hyrt.graph.synthetic.planted_partition import (
    EDGE,
    FEATURE,
    LABEL,
    MEAN,
    PLACE,
    SPLIT,
    WEIGHT,
    Population,
    draw_masks,
    draw_population,
    generate_class_features,
)
from hyrt.graph.synthetic.spec import SyntheticSpec
from hyrt.runtime.hardware import available_cores
from hyrt.runtime.rng import stream_key

Array = NDArray[Any]

RELATIONS = (
    Relation("paper", "cites", "paper"),
    Relation("author", "writes", "paper"),
    Relation("paper", "about", "field"),
    Relation("paper", "rev_writes", "author"),
    Relation("field", "rev_about", "paper"),
)
"""The first three relations are sampled; the last two are the reverses of the second and the third."""
RELATION_SHARES = (0.3, 0.25, 0.1)
"""Fraction of all edges in each sampled relation. A reverse relation has as many edges as its original."""
CLASS_OFFSETS = (0, 1, 2)
"""Each relation connects source class c with destination class c + offset."""
REVERSE_RELATIONS = (None, 3, 4)
"""Index of the reverse relation of each sampled relation, or None."""
_PIECE_EDGES = 1 << 20
_SAMPLED_EDGES = 1 << 17


def generate_hetero(spec: SyntheticSpec, scratch: Path | None = None) -> Dataset:
    """Generate a heterogeneous graph; features are computed when they are read.

    The number of edges is within 1 % of the requested one. `scratch` is a folder for the edges; None keeps
    them in memory, with the same result. Raises DataError if so many edges are not possible without
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
                f"{spec.name}: edges={spec.edges:,} are too many for {spec.vertices:,} vertices with "
                "such unequal degrees: lower edges or homophily, or raise vertices"
            )
    # Round up coarsely: the last bits of exp differ between machines and must not affect the graph.
    grain = max(1, num_edges >> 12)
    return (math.floor(draws) // grain + 1) * grain


def _weights(population: Population) -> NDArray[np.float64]:
    weights = np.empty(len(population.labels))
    weights[population.order] = np.diff(population.cumulative)
    return weights


def _relation_edge_pieces(
    spec: SyntheticSpec, populations: dict[str, Population], number: int, draws: int
) -> Iterator[tuple[Array, Array]]:
    """Yield the sampled edges of one relation, about a million at a time."""
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
