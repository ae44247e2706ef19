"""Link split at random or by time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.links.edges import find_edges_of_pairs, list_links
from hyrt.graph.links.link_split import HeldOut, LinkEndpoints, LinkSplit, drop_held_out
from hyrt.graph.links.negative_sampling import sample_negatives
from hyrt.graph.topology import Topology
from hyrt.runtime.rng import LINKS, stream_key, vertex_streams

_SPLIT, _SUPERVISION = 1, 2


def random_link_split(
    name: str,
    topology: Topology,
    seed: int,
    *,
    val: float,
    test: float,
    ends: LinkEndpoints,
    supervision: float = 0.0,
    times: NDArray[Any] | None = None,
) -> LinkSplit:
    """Split the links into training, validation and test links.

    `val` and `test` are the shares of held-out links. At random, a link and its reverse are in the same part,
    which depends only on the seed and the two vertices. By time (if `times` [E] is given), the latest links
    are the test links, and the latest remaining links the validation links; a link's time is that of its
    earliest edge, in either direction if the graph is undirected. Training links that reverse a held-out link
    are dropped.

    `supervision` is the share of the other links that are trained on and carry no messages; if it is 0, all
    are trained on and carry messages. Raises DataError if there are no training links, or a requested part is
    empty.
    """
    links, _ = list_links(topology)
    first_times = None if times is None else _first_times(topology, links, times)
    if first_times is None:
        order: NDArray[Any] = _draws(topology.num_vertices, links, seed, _SPLIT)
    else:
        if len(links) and first_times.min() == first_times.max():
            raise DataError(f"{name}: all links have the same time: give other times, or links.split=random")
        order = -_ranks(first_times)
    num_test, num_val = round(test * len(links)), round(val * len(links))
    for setting, share, num in (("val", val, num_val), ("test", test, num_test)):
        if share and not num:
            raise DataError(
                f"{name}: links.{setting}={share:g} of {len(links):,} links is less than one: give more, or "
                "0 for none"
            )
    in_test = _mark_smallest(order, num_test)
    in_val = _mark_smallest(order, num_test + num_val) & ~in_test
    drawn = {part: links[mask] for part, mask in (("val", in_val), ("test", in_test)) if mask.any()}
    counts = {part: len(pairs) for part, pairs in drawn.items()}
    negatives, notes = sample_negatives(name, topology, seed, counts, ends)
    held_out = {part: HeldOut(pairs, negatives[part]) for part, pairs in drawn.items()}
    if first_times is not None:
        notes += _note_ties(first_times, in_val, in_test)
    rest, dropped = drop_held_out(topology, links[~(in_test | in_val)], held_out)
    if dropped:
        notes.append(f"{dropped:,} links are not trained on, because they are reverses of held-out links")
    train = rest
    if supervision:
        chosen = _draws(topology.num_vertices, rest, seed, _SUPERVISION)
        train = rest[_mark_smallest(chosen, round(supervision * len(chosen)))]
    if not len(train):
        raise DataError(
            f"{name}: no links are left to train on, of {len(links):,}: lower links.val or links.test, or "
            "raise links.supervision"
        )
    return LinkSplit(train, held_out, without_messages=supervision > 0, notes=tuple(notes))


def _note_ties(times: NDArray[Any], in_val: NDArray[np.bool_], in_test: NDArray[np.bool_]) -> Iterator[str]:
    """Yield a note for each part if a link outside the part has the same time as the earliest link in it."""
    for part, later, earlier in (("test", in_test, ~in_test), ("validation", in_val, ~(in_test | in_val))):
        ties = int((times[earlier] == times[later].min()).sum()) if later.any() else 0
        if ties:
            yield (
                f"{ties:,} links that are not {part} links have the same time as the earliest {part} links: "
                "which of them are held out follows the order of the edges"
            )


def _first_times(topology: Topology, links: NDArray[Any], times: NDArray[Any]) -> NDArray[Any]:
    """Return the earliest time [n] of each link's edges, including reverse edges in an undirected graph."""
    found = None
    for pairs in (links, links[:, ::-1]) if topology.is_symmetric else (links,):
        firsts, counts = find_edges_of_pairs(topology, pairs)
        found = times[firsts] if found is None else np.minimum(found, times[firsts])
        for more in range(1, int(counts.max(initial=0))):
            has_more = counts > more
            found[has_more] = np.minimum(found[has_more], times[firsts[has_more] + more])
    assert found is not None
    return found


def _draws(num_vertices: int, links: NDArray[Any], seed: int, purpose: int) -> NDArray[np.uint64]:
    """Return uniform random bits [n] of links, equal for a link and its reverse."""
    low, high = links.min(axis=1).astype(np.uint64), links.max(axis=1).astype(np.uint64)
    return vertex_streams(stream_key(seed, LINKS, 0, purpose), low * np.uint64(num_vertices) + high)


def _ranks(times: NDArray[Any]) -> NDArray[np.int64]:
    """Return time ranks [n], 0 for the earliest; ties are in edge order."""
    ranks = np.empty(len(times), np.int64)
    ranks[np.argsort(times, kind="stable")] = np.arange(len(times))
    return ranks


def _mark_smallest(order: NDArray[Any], num: int) -> NDArray[np.bool_]:
    """Mark the `num` smallest values of [n], including all ties with the largest of them."""
    if not num:
        return np.zeros(len(order), np.bool_)
    limit = np.partition(order, num - 1)[num - 1]
    chosen: NDArray[np.bool_] = order <= limit
    return chosen
