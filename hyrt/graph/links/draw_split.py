"""A split of links, drawn at random or by time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.links.known_edges import Pairs, are_edges
from hyrt.graph.links.link_ends import LinkEnds
from hyrt.graph.links.link_split import HeldOut, LinkSplit
from hyrt.graph.links.message_edges import links_of
from hyrt.graph.topology import Topology
from hyrt.machine.generator import LINKS, bits_of, stream_key, vertex_streams

# A pair that is an edge, or twice the same vertex, is drawn again so often.
_TRIES = 64
_SPLIT, _SUPERVISION = 1, 2
# The keys of pairs that are no links.
_NEGATIVES = {"val": 3, "test": 4}


def draw_split(
    name: str,
    topology: Topology,
    seed: int,
    *,
    val: float,
    test: float,
    ends: LinkEnds,
    supervision: float = 0.0,
    times: NDArray[Any] | None = None,
) -> LinkSplit:
    """Draw which links train.

    At random, a link and its reverse go to the same part: the draw depends on the seed and the two vertices
    alone. By time, the latest links are the test links, and the latest of the others the validation links.

    Parameters
    ----------
    name
        The name of the graph, for messages.
    topology
        All edges.
    seed
        The seed of all draws.
    val, test
        The parts of the links that are held out.
    ends
        The vertices that links are between.
    supervision
        The part of the other links that are trained on and carry no messages; 0 for all, which carry them.
    times
        [E] the time of each edge, in the order of the edges; None for a random split.

    Raises
    ------
    DataError
        If nothing is left to train on, or a part that should have links has none.
    """
    links, places = links_of(topology)
    order = _draws(topology.num_vertices, links, seed, _SPLIT) if times is None else -_ranks(times[places])
    num_test, num_val = round(test * len(links)), round(val * len(links))
    for what, asked, num in (("val", val, num_val), ("test", test, num_test)):
        if asked and not num:
            raise DataError(
                f"{name}: links.{what}={asked:g} of {len(links):,} links is less than one: give more, or 0 "
                "for none"
            )
    in_test = _least(order, num_test)
    in_val = _least(order, num_test + num_val) & ~in_test
    rest = ~(in_test | in_val)
    if supervision:
        chosen = _draws(topology.num_vertices, links[rest], seed, _SUPERVISION)
        train = links[rest][_least(chosen, round(supervision * len(chosen)))]
    else:
        train = links[rest]
    if not len(train):
        raise DataError(
            f"{name}: no links are left to train on, of {len(links):,}: lower links.val or links.test, or "
            "raise links.supervision"
        )
    held_out = {
        part: HeldOut(links[mask], draw_negatives(name, topology, seed, part, int(mask.sum()), ends))
        for part, mask in (("val", in_val), ("test", in_test))
        if mask.any()
    }
    return LinkSplit(train, held_out, without_messages=supervision > 0)


def draw_negatives(name: str, topology: Topology, seed: int, part: str, num: int, ends: LinkEnds) -> Pairs:
    """[num, 2] pairs of different vertices that are no edges, drawn uniformly; for evaluations of a part.

    Raises
    ------
    DataError
        If nearly all pairs are edges.
    """
    streams = vertex_streams(stream_key(seed, LINKS, 0, _NEGATIVES[part]), np.arange(num))
    pairs = np.empty((num, 2), np.int64)
    wrong = np.arange(num)
    for attempt in range(_TRIES):
        counters = np.array([2 * attempt, 2 * attempt + 1])
        pairs[wrong] = ends.drawn(bits_of(streams[wrong, None], counters), np.arange(2))
        drawn = pairs[wrong]
        wrong = wrong[(drawn[:, 0] == drawn[:, 1]) | are_edges(topology, drawn)]
        if not len(wrong):
            return pairs
    raise DataError(
        f"{name}: cannot find {num:,} pairs of vertices without an edge: it has {topology.num_edges:,} edges "
        f"between {topology.num_vertices:,} vertices: give pairs in a file (links.split=FILE.npz, "
        f"{part}_neg)"
    )


def _draws(num_vertices: int, links: NDArray[Any], seed: int, what: int) -> NDArray[np.uint64]:
    """[n] uniform bits of links, the same for a link and its reverse."""
    low, high = links.min(axis=1).astype(np.uint64), links.max(axis=1).astype(np.uint64)
    return vertex_streams(stream_key(seed, LINKS, 0, what), low * np.uint64(num_vertices) + high)


def _ranks(times: NDArray[Any]) -> NDArray[np.int64]:
    """[n] the place of each in the order of time, 0 for the earliest; ties in the order of the edges."""
    ranks = np.empty(len(times), np.int64)
    ranks[np.argsort(times, kind="stable")] = np.arange(len(times))
    return ranks


def _least(order: NDArray[Any], num: int) -> NDArray[np.bool_]:
    """[n] which are among the `num` least, and those that are equal to the greatest of these."""
    if not num:
        return np.zeros(len(order), np.bool_)
    limit = np.partition(order, num - 1)[num - 1]
    chosen: NDArray[np.bool_] = order <= limit
    return chosen
