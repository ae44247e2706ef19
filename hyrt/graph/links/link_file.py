"""A split of links in a file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.links.draw_split import draw_negatives
from hyrt.graph.links.link_ends import LinkEnds
from hyrt.graph.links.link_split import HeldOut, LinkSplit
from hyrt.graph.links.message_edges import links_of, without_links
from hyrt.graph.topology import Topology
from hyrt.machine.archive_damage import ARCHIVE_DAMAGE
from hyrt.machine.atomic_write import write_atomically

# What zipfile and numpy raise of files that are damaged, or no archive of arrays.
_UNREADABLE = (*ARCHIVE_DAMAGE, OSError, MemoryError, LookupError)
_KEYS = ("train", "train_neg", "val", "val_neg", "test", "test_neg")


def write_links(path: Path, split: LinkSplit) -> None:
    """Write a split as `read_links` reads it; the file appears whole or not at all.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {**split.arrays, "without_messages": np.array(split.without_messages)}
    np.savez(buffer, **arrays)
    write_atomically(path, buffer.getbuffer())  # type: ignore[arg-type]


def read_links(
    path: Path, topology: Topology, seed: int, ends: LinkEnds, positions: NDArray[Any] | None = None
) -> LinkSplit:
    """Read a split of links.

    Parameters
    ----------
    path
        A .npz file of [n, 2] integers, sources and destinations: `train`, `val` and `test`, and pairs that
        are no links, `train_neg`, `val_neg` and `test_neg`. Without `train`, all other edges train. Without
        `val_neg` or `test_neg`, as many pairs as there are links are drawn. With `without_messages`, true,
        the links that train carry no messages.
    topology
        All edges of the graph, or of the relation whose links these are.
    seed
        The seed of pairs that are drawn.
    ends
        The vertices that links are between.
    positions
        [V] where the vertex of each number is now, where the graph was put in another order.

    Raises
    ------
    DataError
        Naming the file, the key and the first bad position.
    """
    arrays = _read(path)
    for key, pairs in arrays.items():
        if key in _KEYS:
            arrays[key] = checked_pairs(f"{path}: key '{key}'", pairs, topology.num_vertices, ends, positions)
    held_out = {}
    for name in ("val", "test"):
        links = arrays.get(name)
        if links is None or not len(links):
            if f"{name}_neg" in arrays:
                raise DataError(f"{path}: has key '{name}_neg', but no links in '{name}': give both")
            continue
        negatives = arrays.get(f"{name}_neg")
        if negatives is None:
            negatives = draw_negatives(str(path), topology, seed, name, len(links), ends)
        held_out[name] = HeldOut(links, negatives)
    train = arrays.get("train")
    if train is None:
        rest = without_links(topology, *(part.links for part in held_out.values()))
        train = links_of(rest)[0]
    if not len(train):
        raise DataError(f"{path}: key 'train' has no links, and no other edges are left to train on")
    silent = arrays.get("without_messages")
    return LinkSplit(
        train,
        held_out,
        train_negatives=arrays.get("train_neg"),
        without_messages=silent is not None and bool(silent.all()),
    )


def checked_pairs(
    where: str,
    pairs: NDArray[Any],
    num_vertices: int,
    ends: LinkEnds,
    positions: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Pairs of vertices of a file, as numbers of the graph.

    Raises
    ------
    DataError
        Naming `where` and the first bad position.
    """
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not np.issubdtype(pairs.dtype, np.integer):
        raise DataError(f"{where}: {pairs.dtype.name} {list(pairs.shape)}: give integers [n, 2]")
    bad = np.flatnonzero(((pairs < 0) | (pairs >= num_vertices)).any(axis=1))
    if len(bad):
        row = pairs[bad[0]]
        wrong = row[0] if not 0 <= row[0] < num_vertices else row[1]
        limit = "below 0" if wrong < 0 else f"not below the {num_vertices:,} vertices"
        raise DataError(f"{where}: {wrong} in row {bad[0]} is {limit}: leave out that row")
    ids = np.int32 if num_vertices < 2**31 else np.int64
    found = np.ascontiguousarray(pairs if positions is None else positions[pairs], ids)
    wrong = ends.wrong(found)
    if wrong.any() and ends.names is not None:
        row, end = (int(at[0]) for at in np.nonzero(wrong))
        what, name = ("source", "destination")[end], ends.names[end]
        raise DataError(
            f"{where}: {pairs[row, end]} in row {row} is not a vertex of type {name!r}, as the "
            f"{what} of a link must be: vertices are numbered through all types"
        )
    return found


def _read(path: Path) -> dict[str, NDArray[Any]]:
    wanted = f"{path}: give a .npz file of links with some of {', '.join(_KEYS)}"
    try:
        # Opened here: of a damaged archive, numpy leaves it open.
        with path.open("rb") as opened:
            file = np.load(opened, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise DataError(f"{wanted}: it is one array")
            with file:
                arrays = {key: file[key] for key in file.files}
    except FileNotFoundError:
        raise DataError(f"{path}: no such file of links: give the path of one") from None
    except _UNREADABLE as error:
        raise DataError(f"{wanted}: {error}") from None
    if unknown := sorted(arrays.keys() - {*_KEYS, "without_messages"}):
        raise DataError(f"{wanted}: it has an unknown key '{unknown[0]}'")
    return arrays
