"""Construction of a link split: at random, by time, or from a .npz file."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.links.edges import (
    add_links,
    encode_pairs,
    find_edges_of_pairs,
    list_links,
    mark_edge_pairs,
    remove_links,
)
from hyrt.graph.links.link_split import HeldOut, LinkEndpoints, LinkSplit, drop_held_out
from hyrt.graph.links.negative_sampling import check_negatives, sample_negatives
from hyrt.graph.topology import Topology
from hyrt.runtime.files import ARCHIVE_ERRORS, write_atomically
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
            raise DataError(
                f"{name}: all links have the same time: use different times, or set links.split=random"
            )
        order = -_ranks(first_times)
    num_test, num_val = round(test * len(links)), round(val * len(links))
    for setting, share, num in (("val", val, num_val), ("test", test, num_test)):
        if share and not num:
            raise DataError(
                f"{name}: links.{setting}={share:g} of {len(links):,} links is less than one link: raise "
                "it, or set it to 0"
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
            f"{name}: none of the {len(links):,} links is left to train on: lower links.val or links.test, "
            "or raise links.supervision"
        )
    return LinkSplit(train, held_out, without_messages=supervision > 0, notes=tuple(notes))


def _note_ties(times: NDArray[Any], in_val: NDArray[np.bool_], in_test: NDArray[np.bool_]) -> Iterator[str]:
    """Yield a note for each part if a link outside the part has the same time as the earliest link in it."""
    for part, later, earlier in (("test", in_test, ~in_test), ("validation", in_val, ~(in_test | in_val))):
        ties = int((times[earlier] == times[later].min()).sum()) if later.any() else 0
        if ties:
            yield (
                f"{ties:,} links that are not {part} links have the same time as the earliest {part} links, "
                "so the order of the edges decides which of them are held out"
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
    """Mark the `num` smallest values of [n], including all ties with the largest selected value."""
    if not num:
        return np.zeros(len(order), np.bool_)
    limit = np.partition(order, num - 1)[num - 1]
    chosen: NDArray[np.bool_] = order <= limit
    return chosen


# Exceptions of zipfile and numpy for files that are damaged or not archives of arrays.
_UNREADABLE = (*ARCHIVE_ERRORS, OSError, MemoryError, LookupError)
_KEYS = ("train", "train_neg", "val", "val_neg", "test", "test_neg")
# Key in the file of a run on reordered data; earlier versions wrote current vertex ids without it.
_HAS_ORIGINAL_IDS = "original_ids"
# A smaller share of edges among the links of a file means other vertex numbers.
_MIN_EDGE_SHARE = 0.01


def write_links(path: Path, split: LinkSplit, vertex_ids: NDArray[Any] | None = None) -> None:
    """Write a split for `read_links`, atomically, with the original `vertex_ids` [V] of a reordered dataset.

    Raises OSError if the file cannot be written.
    """
    buffer = io.BytesIO()
    arrays: dict[str, Any] = dict(split.arrays)
    if vertex_ids is not None:
        arrays = {key: vertex_ids[pairs] for key, pairs in arrays.items()}
        arrays[_HAS_ORIGINAL_IDS] = np.array(True)
    np.savez(buffer, **arrays, without_messages=np.array(split.without_messages))
    write_atomically(path, buffer.getbuffer())  # type: ignore[arg-type]


def read_links(
    path: Path,
    topology: Topology,
    seed: int,
    ends: LinkEndpoints,
    positions: NDArray[Any] | None = None,
    *,
    graph: str = "the graph",
    is_of_run: bool = False,
) -> LinkSplit:
    """Read a link split from a .npz file of [n, 2] integers, sources and destinations.

    The keys are `train`, `val` and `test`, and the negative pairs `train_neg`, `val_neg` and `test_neg`.
    Without `train`, all other edges are trained on. Without `val_neg` or `test_neg`, as many negative pairs
    as links are sampled with `seed`. If `without_messages` is true, training links carry no messages.

    `topology` has all edges of the graph or of the predicted relation. If vertices were reordered,
    `positions` [V] maps their original to current ids. `is_of_run` says that the file is in a run folder.
    Raises DataError with the file, the key and the first bad position, or if nearly no link is an edge of the
    dataset named `graph`.
    """
    arrays = _read(path)
    if is_of_run and _HAS_ORIGINAL_IDS not in arrays:
        positions = None
    for key, pairs in arrays.items():
        if key in _KEYS:
            arrays[key] = check_pairs(f"{path}: key '{key}'", pairs, topology.num_vertices, ends, positions)
    links: dict[str, NDArray[Any]] = {}
    for name in ("val", "test"):
        if len(arrays.get(name, ())):
            links[name] = arrays[name]
        elif f"{name}_neg" in arrays:
            raise DataError(
                f"{path} has the key '{name}_neg', but no links in '{name}': add the links, or remove "
                f"'{name}_neg'"
            )
    undirected = topology.is_symmetric and ends.sources == ends.destinations
    _check_apart(path, topology, links, undirected=undirected)
    warnings = _check_edges(path, topology, links, arrays.get("train"), ends, graph)
    known = add_links(topology, *(arrays[key] for key in ("train", "val", "test") if key in arrays))
    file_negatives = {name: arrays[f"{name}_neg"] for name in links if f"{name}_neg" in arrays}
    notes = check_negatives(str(path), known, file_negatives, undirected=undirected)
    counts = {name: len(pairs) for name, pairs in links.items() if name not in file_negatives}
    excluded = np.concatenate([np.empty((0, 2), np.int64), *file_negatives.values()])
    drawn, lines = sample_negatives(str(path), known, seed, counts, ends, excluded)
    negatives = {**file_negatives, **drawn}
    held_out = {name: HeldOut(pairs, negatives[name]) for name, pairs in links.items()}
    train = arrays.get("train")
    if train is None:
        train = list_links(remove_links(topology, *links.values()))[0]
    train, dropped = drop_held_out(topology, train, held_out)
    if dropped:
        notes.append(
            f"{path}: {dropped:,} links of 'train' are not trained on, because they or their reverses are "
            "held out"
        )
    if not len(train):
        raise DataError(
            f"{path}: key 'train' has no links, and no other edges are left to train on: add training links"
        )
    silent = arrays.get("without_messages")
    return LinkSplit(
        train,
        held_out,
        train_negatives=arrays.get("train_neg"),
        without_messages=silent is not None and bool(silent.all()),
        notes=(*notes, *lines),
        warnings=tuple(warnings),
    )


def _check_edges(
    path: Path,
    topology: Topology,
    links: dict[str, NDArray[Any]],
    train: NDArray[Any] | None,
    ends: LinkEndpoints,
    graph: str,
) -> list[str]:
    """Return a warning if held-out links are not edges in either direction; refuse a file of other numbers.

    Held-out links may have been removed from the edges before, but then training links are edges.
    """

    def count_edges(pairs: NDArray[Any]) -> int:
        is_edge = mark_edge_pairs(topology, pairs) | mark_edge_pairs(topology, pairs[:, ::-1])
        return int(is_edge.sum())

    num_held_out = sum(map(len, links.values()))
    num_edges = sum(map(count_edges, links.values()))
    if train is not None and len(train):
        min_share = min(0.5, _MIN_EDGE_SHARE + 4 * topology.num_edges / max(1, ends.num_pairs))
        total, trained = num_held_out + len(train), count_edges(train)
        if trained < min_share * len(train) and num_edges <= min_share * num_held_out:
            raise DataError(
                f"{path}: {total - trained - num_edges:,} of {total:,} links are not edges of {graph}: use a "
                "file with the vertex numbers of this dataset, or add the training links to its edges"
            )
    if num_edges == num_held_out:
        return []
    return [
        f"{num_held_out - num_edges:,} of {num_held_out:,} held-out links in {path} are not edges of "
        f"{graph}: use a file with the vertex numbers of this dataset, unless these edges were removed on "
        "purpose"
    ]


def _check_apart(path: Path, topology: Topology, links: dict[str, NDArray[Any]], *, undirected: bool) -> None:
    """Refuse links that are in both held-out parts."""
    if len(links) < 2:
        return
    codes = {name: encode_pairs(topology, pairs, undirected=undirected) for name, pairs in links.items()}
    shared = np.flatnonzero(np.isin(codes["val"], codes["test"]))
    if len(shared):
        raise DataError(
            f"{path}: key 'val': row {shared[0]} is also a link of 'test' ({len(shared):,} rows are): "
            "remove each link from one of them"
        )


def check_pairs(
    location: str,
    pairs: NDArray[Any],
    num_vertices: int,
    ends: LinkEndpoints,
    positions: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Check vertex pairs of a file, and map them to current vertex ids.

    Raises DataError with `location` and the first bad position.
    """
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not np.issubdtype(pairs.dtype, np.integer):
        raise DataError(f"{location} is {pairs.dtype.name} {list(pairs.shape)}: use integers [n, 2]")
    bad = np.flatnonzero(((pairs < 0) | (pairs >= num_vertices)).any(axis=1))
    if len(bad):
        row = pairs[bad[0]]
        wrong = row[0] if not 0 <= row[0] < num_vertices else row[1]
        limit = "negative" if wrong < 0 else f"not one of the {num_vertices:,} vertices"
        raise DataError(f"{location}: vertex {wrong} in row {bad[0]} is {limit}: remove that row")
    ids = np.int32 if num_vertices < 2**31 else np.int64
    found = np.ascontiguousarray(pairs if positions is None else positions[pairs], ids)
    wrong = ends.find_invalid(found)
    if wrong.any() and ends.names is not None:
        row, end = (int(at[0]) for at in np.nonzero(wrong))
        role, name = ("source", "destination")[end], ends.names[end]
        raise DataError(
            f"{location}: vertex {pairs[row, end]} in row {row} is not of type {name!r}, as the {role} of "
            "a link must be: number vertices across all types"
        )
    return found


def read_run_links(path: Path, positions: NDArray[Any] | None, num_vertices: int) -> LinkSplit | None:
    """Return the split of a run's file with current vertex ids; None if the graph lacks a vertex.

    `positions` maps the vertex ids in the file to current ids, or to -1 if the graph lacks the vertex.
    """
    arrays = _read(path)
    pairs = {key: arrays[key] for key in _KEYS if key in arrays}
    limit = num_vertices if positions is None else len(positions)
    if any(part.max(initial=0) >= limit for part in pairs.values()):
        return None
    if positions is not None:
        pairs = {key: positions[part] for key, part in pairs.items()}
    if any(part.min(initial=0) < 0 for part in pairs.values()):
        return None
    held_out: dict[str, HeldOut] = {
        name: HeldOut(pairs[name], pairs[f"{name}_neg"]) for name in ("val", "test") if name in pairs
    }
    silent = arrays.get("without_messages")
    return LinkSplit(
        pairs["train"],
        held_out,
        pairs.get("train_neg"),
        without_messages=silent is not None and bool(silent.all()),
    )


def read_run_training_links(
    path: Path, positions: NDArray[Any] | None, num_vertices: int
) -> NDArray[np.int64]:
    """Return the training links [n, 2] of a run's file between vertices that the graph has.

    `positions` is as for `read_run_links`.
    """
    pairs = np.asarray(_read(path)["train"], np.int64)
    limit = num_vertices if positions is None else len(positions)
    pairs = pairs[(pairs < limit).all(axis=1)]
    pairs = pairs if positions is None else positions[pairs].astype(np.int64)
    return pairs[(pairs >= 0).all(axis=1)]


def _read(path: Path) -> dict[str, NDArray[Any]]:
    remedy = f"use a .npz file of links with some of the keys {', '.join(_KEYS)}"
    try:
        # numpy leaves a damaged archive open, so open and close the file here.
        with path.open("rb") as opened:
            file = np.load(opened, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise DataError(f"{path} is a single array: {remedy}")
            with file:
                arrays = {key: file[key] for key in file.files}
    except FileNotFoundError:
        raise DataError(f"{path} does not exist: use the path of a link file") from None
    except _UNREADABLE as error:
        raise DataError(f"{path} cannot be read as a link file ({error}): {remedy}") from None
    if unknown := sorted(arrays.keys() - {*_KEYS, "without_messages", _HAS_ORIGINAL_IDS}):
        raise DataError(f"{path} has the unknown key '{unknown[0]}': {remedy}")
    return arrays
