"""Sampling of negative pairs for the evaluation of held-out links."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.links.known_edges import Pairs, are_edges, pair_codes
from hyrt.graph.links.link_ends import LinkEnds
from hyrt.graph.topology import Topology
from hyrt.machine.generator import LINKS, bits_of, stream_key, vertex_streams

_NEGATIVES, _LISTED = 3, 4
# If at least this share of all pairs are wanted or excluded, they are listed instead of drawn.
_LISTED_SHARE = 0.5
# The test pairs come first, so that another number of validation links leaves them as they are.
_ORDER = ("test", "val")


def draw_negatives(
    name: str,
    known: Topology,
    seed: int,
    wanted: Mapping[str, int],
    ends: LinkEnds,
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
    wanted
        How many pairs `val` and `test` need.
    ends
        The vertices that links are between.
    excluded
        [n, 2] further pairs that may not be drawn.

    Returns
    -------
    [n, 2] pairs of each part, fewer than wanted if there are not enough, and then a line that says so.

    Raises
    ------
    DataError
        If there is no pair for some part.
    """
    wanted = {part: wanted[part] for part in _ORDER if wanted.get(part)}
    total = sum(wanted.values())
    if not total:
        return {}, []
    undirected = known.is_symmetric and ends.sources == ends.destinations
    excluded = np.empty((0, 2), np.int64) if excluded is None else excluded
    taken = np.unique(pair_codes(known, excluded, undirected=undirected))
    possible = ends.num_pairs // (2 if undirected else 1)
    if total + len(taken) + known.num_edges < _LISTED_SHARE * possible:
        found = _drawn(known, seed, total, ends, taken, undirected=undirected)
    else:
        found = _listed(known, seed, total, ends, taken, undirected=undirected)
    if len(found) < len(wanted):
        raise DataError(
            f"{name}: cannot find {total:,} pairs of vertices without an edge: it has {known.num_edges:,} "
            f"edges between {known.num_vertices:,} vertices, and {len(found)} such pairs: give pairs in a "
            f"file (links.split=FILE.npz, {' and '.join(f'{part}_neg' for part in reversed(wanted))})"
        )
    parts: dict[str, Pairs] = {}
    lines: list[str] = []
    left, needed = len(found), total
    for part, number in wanted.items():
        # Each part gets its share of what there is, and at least one pair.
        share = min(max(1, round(left * number / needed)), left - (len(wanted) - len(parts) - 1))
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
    known: Topology, seed: int, num: int, ends: LinkEnds, taken: NDArray[np.int64], *, undirected: bool
) -> Pairs:
    """Sample pairs in sequence, and return the first `num` distinct valid pairs."""
    key = stream_key(seed, LINKS, 0, _NEGATIVES)
    pairs, codes, first = np.empty((0, 2), np.int64), np.empty(0, np.int64), 0
    while len(pairs) < num:
        count = 2 * (num - len(pairs)) + 16
        streams = vertex_streams(key, np.arange(first, first + count))
        drawn = ends.drawn(bits_of(streams[:, None], np.arange(2)), np.arange(2))
        first += count
        drawn = drawn[(drawn[:, 0] != drawn[:, 1]) & ~are_edges(known, drawn)]
        new = pair_codes(known, drawn, undirected=undirected)
        is_free = ~np.isin(new, taken)
        pairs = np.concatenate([pairs, drawn[is_free]])
        codes = np.concatenate([codes, new[is_free]])
        kept = np.sort(np.unique(codes, return_index=True)[1])[:num]
        pairs, codes = pairs[kept], codes[kept]
    return pairs


def _listed(
    known: Topology, seed: int, num: int, ends: LinkEnds, taken: NDArray[np.int64], *, undirected: bool
) -> Pairs:
    """List all valid pairs, and return the `num` pairs with the smallest random numbers."""
    pairs = ends.all_pairs()
    pairs = pairs[pairs[:, 0] < pairs[:, 1]] if undirected else pairs[pairs[:, 0] != pairs[:, 1]]
    pairs = pairs[~are_edges(known, pairs)]
    codes = pair_codes(known, pairs, undirected=undirected)
    is_free = ~np.isin(codes, taken)
    pairs, codes = pairs[is_free], codes[is_free]
    streams = vertex_streams(stream_key(seed, LINKS, 0, _LISTED), codes)
    return pairs[np.argsort(streams, kind="stable")[:num]]


def negative_lines(
    where: str, known: Topology, negatives: Mapping[str, NDArray[Any]], *, undirected: bool
) -> list[str]:
    """Return a line for pairs of a file that occur more than once, in one part or in both.

    Raises
    ------
    DataError
        If a pair is a known link.
    """
    for part, pairs in negatives.items():
        if (links := np.flatnonzero(are_edges(known, pairs))).size:
            at = int(links[0])
            raise DataError(
                f"{where}: key '{part}_neg': row {at} is a link of the graph or of this file: leave out that "
                f"row ({len(links):,} rows are links)"
            )
    codes = [pair_codes(known, pairs, undirected=undirected) for pairs in negatives.values()]
    repeated = sum(map(len, codes)) - len(np.unique(np.concatenate([np.empty(0, np.int64), *codes])))
    if not repeated:
        return []
    keys = " and ".join(f"{part}_neg" for part in negatives)
    return [f"{where}: {repeated:,} pairs of {keys} repeat others, and count as often as they occur"]
