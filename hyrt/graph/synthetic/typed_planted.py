"""A generated typed graph: papers, authors and fields whose classes say which of them are joined.

A vertex of each type has a class and a weight. A relation joins each class of its sources with one class of
its destinations, another one for each relation, so that what a neighbour says of a paper's class depends on
the relation. Only papers have labels; fields have no features. Every random number is a pure function of
(seed, purpose, type or relation, counter), as in `hyrt.graph.synthetic.planted`.
"""

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
from hyrt.graph.csr import in_order
from hyrt.graph.formats.schema import Dataset, table_name
from hyrt.graph.synthetic import kernels
from hyrt.graph.synthetic.planted import EDGE, FEATURE, LABEL, MEAN, PLACE, SPLIT, WEIGHT
from hyrt.graph.synthetic.population import Population, class_rows, draw_masks, draw_population
from hyrt.graph.synthetic.spec import SyntheticSpec
from hyrt.graph.typed.graph_types import GraphTypes, Relation
from hyrt.graph.typed.typed_csr import TypedPiece
from hyrt.graph.typed.typed_dataset import TypedParts, typed_dataset
from hyrt.graph.vertex_table import SPLITS
from hyrt.machine.cores import available_cores
from hyrt.machine.generator import stream_key

Array = NDArray[Any]

RELATIONS = (
    Relation("paper", "cites", "paper"),
    Relation("author", "writes", "paper"),
    Relation("paper", "about", "field"),
    Relation("paper", "rev_writes", "author"),
    Relation("field", "rev_about", "paper"),
)
"""The first three are drawn, and the last two are the second and the third the other way round."""
SHARES = (0.3, 0.25, 0.1)
"""The parts of all edges that each drawn relation has; those that go back have as many."""
OFFSETS = (0, 1, 2)
"""Class c of the sources is joined with class c + offset of the destinations."""
BACK = (None, 3, 4)
"""The relation that each drawn one is the other way round, if any."""
_PIECE_EDGES = 1 << 20
_SAMPLED_EDGES = 1 << 17


def generate_typed(spec: SyntheticSpec, scratch: Path | None = None) -> Dataset:
    """Generate a typed graph; features are computed when they are read.

    Parameters
    ----------
    spec
        The graph to generate. It gets within 1 % as many edges.
    scratch
        A folder for the edges; None keeps them in memory. The graph is the same.

    Raises
    ------
    DataError
        If so many edges cannot be placed without equal ones.
    """
    counts = spec.type_counts
    people = {
        name: draw_population(_key(spec, LABEL, number), _key(spec, WEIGHT, number), count, spec.classes)
        for number, (name, count) in enumerate(counts.items())
    }
    starts = np.concatenate([[0], np.cumsum(list(counts.values()))]).astype(np.int64)
    types = GraphTypes(tuple(counts), starts, RELATIONS, "paper")
    tables = {
        name: Dataset(
            table_name(spec.name, name),
            {},
            class_rows(
                people[name].labels,
                (spec.classes, width),
                spec.signal,
                np.dtype(spec.dtype),
                (_key(spec, MEAN, number), _key(spec, FEATURE, number)),
            ),
        )
        for number, (name, width) in enumerate(spec.type_widths.items())
        if width
    }
    draws = [_draws_needed(spec, people, number) for number in range(len(SHARES))]

    def edges() -> Iterator[TypedPiece]:
        for number, wanted in enumerate(draws):
            back = BACK[number]
            for sources, targets in _edge_pieces(spec, people, number, wanted):
                yield TypedPiece(number, sources, targets)
                if back is not None:
                    yield TypedPiece(back, targets, sources)

    sizes = {split: getattr(spec, split) for split in SPLITS}
    masks = draw_masks(_key(spec, SPLIT, 0), counts["paper"], sizes)
    parts = TypedParts(types, edges, tables, people["paper"].labels, masks)
    return typed_dataset(spec.name, parts, scratch)[0]


def _key(spec: SyntheticSpec, purpose: int, number: int) -> np.uint64:
    """The key of one type or relation: no purpose of the plain graph has the layer 1."""
    return stream_key(spec.seed, purpose, number, 1)


def _ends(people: dict[str, Population], number: int) -> tuple[Population, Population]:
    return people[RELATIONS[number].source], people[RELATIONS[number].destination]


def _draws_needed(spec: SyntheticSpec, people: dict[str, Population], number: int) -> int:
    """Draws that give about as many distinct edges as a relation is to have, judged from a sample of them."""
    wanted = int(spec.edges * SHARES[number])
    if wanted == 0:
        return 0
    first, second = _ends(people, number)
    pieces = list(_edge_pieces(spec, people, number, _SAMPLED_EDGES))
    u, v = (np.concatenate(ends) for ends in zip(*pieces, strict=True))
    u_weights, v_weights = (_weights(each) for each in (first, second))
    of_class = np.diff(second.cumulative[second.class_start]).astype(np.float64)
    joined = (first.labels[u] + OFFSETS[number]) % second.num_classes == second.labels[v]
    odds = u_weights[u] / float(first.cumulative[-1]) * v_weights[v]
    odds *= (1 - spec.homophily) / float(second.cumulative[-1]) + spec.homophily * joined / of_class[
        second.labels[v]
    ]
    draws = float(wanted)
    for _ in range(60):
        expected = draws * odds
        draws *= wanted / (draws * float((-np.expm1(-expected) / expected).mean()))
        if draws > 20 * wanted:
            raise DataError(
                f"{spec.name}: edges={spec.edges:,} are too many for {spec.vertices:,} vertices with "
                "such unequal degrees: lower edges or homophily, or raise vertices"
            )
    # Rounded up coarsely: the last bits of exp differ between machines and must not matter.
    grain = max(1, wanted >> 12)
    return (math.floor(draws) // grain + 1) * grain


def _weights(people: Population) -> NDArray[np.float64]:
    weights = np.empty(len(people.labels))
    weights[people.order] = np.diff(people.cumulative)
    return weights


def _edge_pieces(
    spec: SyntheticSpec, people: dict[str, Population], number: int, draws: int
) -> Iterator[tuple[Array, Array]]:
    """The drawn edges of one relation, about a million at a time."""
    if draws == 0:
        return
    first, second = _ends(people, number)
    cumulative = first.cumulative
    ratio = draws / float(cumulative[-1])
    step = max(1, int(_PIECE_EDGES / ratio))
    cuts = np.unique(np.searchsorted(cumulative, np.arange(0, int(cumulative[-1]) + step, step)))
    cuts = cuts.clip(0, len(first.labels))
    edge_key, place_key = _key(spec, EDGE, number), _key(spec, PLACE, number)
    # The class that each position's neighbours are of.
    class_at = (first.labels[first.order] + OFFSETS[number]) % second.num_classes

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
        yield from in_order(pool, draw, itertools.pairwise(cuts.tolist()), available_cores())
