"""Negative pairs and ranking candidates for the evaluation of link prediction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.links.edge_kernels import sample_endpoints
from hyrt.graph.links.edges import Pairs, encode_pairs, mark_edge_pairs
from hyrt.graph.links.link_split import LinkEndpoints
from hyrt.graph.topology import Topology
from hyrt.runtime.rng import LINKS, random_bits_array, stream_key, vertex_streams

_NEGATIVES, _LISTED = 3, 4
# If at least this share of all pairs are wanted or excluded, they are listed instead of drawn.
_LISTED_SHARE = 0.5
# The test pairs come first, so that another number of validation links leaves them as they are.
_ORDER = ("test", "val")


def sample_negatives(
    name: str,
    known: Topology,
    seed: int,
    counts: Mapping[str, int],
    ends: LinkEndpoints,
    excluded: Pairs | None = None,
) -> tuple[dict[str, Pairs], list[str]]:
    """Draw pairs of different vertices that are not known links, uniformly and without repetition.

    No pair occurs in two parts. In an undirected graph, no pair is the reverse of another one either.

    Parameters
    ----------
    name
        The name of the graph, for messages.
    known
        The edges that no pair may be: those of training, validation and test.
    seed
        The seed of the draws.
    counts
        Number of pairs to sample for `val` and `test`.
    ends
        The vertices that links are between.
    excluded
        [n, 2] further pairs that may not be drawn.

    Returns
    -------
    [n, 2] pairs of each part, fewer than requested if there are not enough, and in this case a line with the
    numbers.

    Raises
    ------
    DataError
        If there is no pair for some part.
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
            f"{name}: cannot find {total:,} pairs of vertices without an edge: it has {known.num_edges:,} "
            f"edges between {known.num_vertices:,} vertices, and {len(found)} such pairs: give pairs in a "
            f"file (links.split=FILE.npz, {' and '.join(f'{part}_neg' for part in reversed(counts))})"
        )
    parts: dict[str, Pairs] = {}
    lines: list[str] = []
    left, needed = len(found), total
    for part, number in counts.items():
        # Each part gets its share of what there is, and at least one pair.
        share = min(max(1, round(left * number / needed)), left - (len(counts) - len(parts) - 1))
        share = min(number, share)
        start = len(found) - left
        parts[part] = found[start : start + share]
        left, needed = left - share, needed - number
        if share < number:
            lines.append(
                f"{name}: {part} has {number:,} links and only {share:,} pairs that are not links: the graph "
                "has no more of them"
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
    """Return a line for pairs of a file that occur more than once, in one part or in both.

    Raises
    ------
    DataError
        If a pair is a known link.
    """
    for part, pairs in negatives.items():
        if (links := np.flatnonzero(mark_edge_pairs(known, pairs))).size:
            at = int(links[0])
            raise DataError(
                f"{location}: key '{part}_neg': row {at} is a link of the graph or of this file: leave out "
                f"that row ({len(links):,} rows are links)"
            )
    codes = [encode_pairs(known, pairs, undirected=undirected) for pairs in negatives.values()]
    repeated = sum(map(len, codes)) - len(np.unique(np.concatenate([np.empty(0, np.int64), *codes])))
    if not repeated:
        return []
    keys = " and ".join(f"{part}_neg" for part in negatives)
    return [f"{location}: {repeated:,} pairs of {keys} repeat others, and count as often as they occur"]


_KEYS = {"val": 5, "test": 6}


def sample_candidates(
    known: Topology, links: NDArray[Any], seed: int, part: str, num: int, ends: LinkEndpoints
) -> NDArray[np.int64]:
    """Sample distinct candidates for each endpoint of each link, none of which forms a known edge.

    Parameters
    ----------
    known
        All edges.
    links
        [m, 2] sources and destinations.
    seed
        The seed of the draws, which depend on it, the part and the number of the link alone.
    part
        `val` or `test`.
    num
        How many for each end. If no more than these are possible, they are all that are possible.
    ends
        The vertices that may be drawn.

    Returns
    -------
    [m, 2, K] int64 in place of the sources and of the destinations, with K at most `num` and at most the
    number of vertices; -1 fills up.
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
