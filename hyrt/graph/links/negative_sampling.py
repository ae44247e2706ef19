"""Negative pairs and ranking candidates for link prediction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.kernels import sample_endpoints
from hyrt.graph.links.edges import Pairs, encode_pairs, mark_edge_pairs
from hyrt.graph.links.link_split import LinkEndpoints
from hyrt.graph.topology import Topology
from hyrt.runtime.rng import LINKS, random_bits_array, stream_key, vertex_streams

_NEGATIVES, _LISTED = 3, 4
# If at least this share of all pairs is requested or excluded, list all pairs instead of sampling.
_LISTED_SHARE = 0.5
# Test pairs come first, so that they do not depend on the number of validation links.
_ORDER = ("test", "val")


def sample_negatives(
    name: str,
    known: Topology,
    seed: int,
    counts: Mapping[str, int],
    ends: LinkEndpoints,
    excluded: Pairs | None = None,
) -> tuple[dict[str, Pairs], list[str]]:
    """Sample distinct, uniformly distributed pairs of different vertices that are not known links.

    `counts` has the number of pairs for `val` and `test`. No pair is in two parts, in `excluded` [n, 2] or,
    in an undirected graph, the reverse of another pair. `known` has all training, validation and test edges.

    Returns the pairs [n, 2] of each part, and a line for each part that has fewer pairs than requested,
    because the graph has no more. Raises DataError if a part would be empty.
    """
    counts = {part: counts[part] for part in _ORDER if counts.get(part)}
    total = sum(counts.values())
    if not total:
        return {}, []
    undirected = known.is_symmetric and ends.sources == ends.destinations
    excluded = np.empty((0, 2), np.int64) if excluded is None else excluded
    taken = np.unique(encode_pairs(known, excluded, undirected=undirected))
    possible = ends.num_pairs // (2 if undirected else 1)
    if total + len(taken) + known.num_edges < _LISTED_SHARE * possible:
        found = _drawn(known, seed, total, ends, taken, undirected=undirected)
    else:
        found = _listed(known, seed, total, ends, taken, undirected=undirected)
    if len(found) < len(counts):
        raise DataError(
            f"{name}: cannot find {total:,} vertex pairs without an edge, because only {len(found)} exist "
            f"({known.num_edges:,} edges between {known.num_vertices:,} vertices): list pairs in a file "
            f"(links.split=FILE.npz, {' and '.join(f'{part}_neg' for part in reversed(counts))})"
        )
    parts: dict[str, Pairs] = {}
    lines: list[str] = []
    left, needed = len(found), total
    for part, number in counts.items():
        # Distribute the available pairs in proportion, at least one per part.
        share = min(max(1, round(left * number / needed)), left - (len(counts) - len(parts) - 1))
        share = min(number, share)
        start = len(found) - left
        parts[part] = found[start : start + share]
        left, needed = left - share, needed - number
        if share < number:
            lines.append(
                f"{name}: {part} has {number:,} links but only {share:,} pairs that are not links, because "
                "the graph has no more such pairs"
            )
    return parts, lines


def _drawn(
    known: Topology, seed: int, num: int, ends: LinkEndpoints, taken: NDArray[np.int64], *, undirected: bool
) -> Pairs:
    """Sample pairs in sequence, and return the first `num` distinct valid pairs."""
    key = stream_key(seed, LINKS, 0, _NEGATIVES)
    pairs, codes, first = np.empty((0, 2), np.int64), np.empty(0, np.int64), 0
    while len(pairs) < num:
        count = 2 * (num - len(pairs)) + 16
        streams = vertex_streams(key, np.arange(first, first + count))
        drawn = ends.sample(random_bits_array(streams[:, None], np.arange(2)), np.arange(2))
        first += count
        drawn = drawn[(drawn[:, 0] != drawn[:, 1]) & ~mark_edge_pairs(known, drawn)]
        new = encode_pairs(known, drawn, undirected=undirected)
        is_free = ~np.isin(new, taken)
        pairs = np.concatenate([pairs, drawn[is_free]])
        codes = np.concatenate([codes, new[is_free]])
        distinct = np.sort(np.unique(codes, return_index=True)[1])[:num]
        pairs, codes = pairs[distinct], codes[distinct]
    return pairs


def _listed(
    known: Topology, seed: int, num: int, ends: LinkEndpoints, taken: NDArray[np.int64], *, undirected: bool
) -> Pairs:
    """List all valid pairs, and return the `num` pairs with the smallest random numbers."""
    pairs = ends.all_pairs()
    pairs = pairs[pairs[:, 0] < pairs[:, 1]] if undirected else pairs[pairs[:, 0] != pairs[:, 1]]
    pairs = pairs[~mark_edge_pairs(known, pairs)]
    codes = encode_pairs(known, pairs, undirected=undirected)
    is_free = ~np.isin(codes, taken)
    pairs, codes = pairs[is_free], codes[is_free]
    streams = vertex_streams(stream_key(seed, LINKS, 0, _LISTED), codes)
    return pairs[np.argsort(streams, kind="stable")[:num]]


def check_negatives(
    location: str, known: Topology, negatives: Mapping[str, NDArray[Any]], *, undirected: bool
) -> list[str]:
    """Return a note if pairs of a file occur more than once, in one or both parts.

    Raises DataError if a pair is a known link.
    """
    for part, pairs in negatives.items():
        if (links := np.flatnonzero(mark_edge_pairs(known, pairs))).size:
            at = int(links[0])
            raise DataError(
                f"{location}: key '{part}_neg': row {at} is a link of the graph or of this file: remove "
                f"that row ({len(links):,} rows are links)"
            )
    codes = [encode_pairs(known, pairs, undirected=undirected) for pairs in negatives.values()]
    repeated = sum(map(len, codes)) - len(np.unique(np.concatenate([np.empty(0, np.int64), *codes])))
    if not repeated:
        return []
    keys = " and ".join(f"{part}_neg" for part in negatives)
    return [f"{location}: {repeated:,} pairs of {keys} are duplicates, and each occurrence counts"]


_KEYS = {"val": 5, "test": 6}


def sample_candidates(
    known: Topology, links: NDArray[Any], seed: int, part: str, num: int, ends: LinkEndpoints
) -> NDArray[np.int64]:
    """Sample at most `num` distinct candidates for each endpoint of links [m, 2], without known edges.

    Returns replacements for sources and destinations, [m, 2, K] int64, padded with -1; K is at most `num` and
    the number of vertices. If at most `num` candidates exist, all are returned. They depend only on the seed,
    `part` (`val` or `test`) and the index of the link.
    """
    intervals = (ends.sources, ends.destinations)
    max_candidates = max(high - low for low, high in intervals)
    found = np.full((len(links), 2, min(num, max_candidates)), -1, np.int64)
    key, pairs = stream_key(seed, LINKS, 0, _KEYS[part]), np.ascontiguousarray(links, np.int64)
    for end, (low, high) in enumerate(intervals):
        edges = known.transposed if end else known
        longest = int(np.diff(edges.indptr).max(initial=0))
        drawn = np.empty((len(links), found.shape[2]), np.int64)
        drawn.fill(-1)
        sample_endpoints(
            *(edges.indptr, edges.indices, pairs, end, low, high, key, end * num),
            *(np.empty(longest + 2, np.int64), np.full(high - low, -1, np.int64), drawn),
        )
        found[:, end] = drawn
    return found
