"""Edge times; merged duplicate edges have the earliest time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.links.known_edges import edges_of_pairs
from hyrt.graph.topology import Topology

NAMES = ("edge_time", "time", "timestamp")
"""Names of edge times in PyG and DGL graphs."""


class TimedEdges(NamedTuple):
    """Some edges with their times, in any order; they may repeat."""

    pairs: NDArray[Any]
    """[n, 2] sources and destinations, numbered through all types."""
    times: NDArray[Any]
    """[n] int64 or float64."""
    relation: int | None = None
    """The relation of a typed graph; None if rows are not sorted by relations."""


def unknown_time(dtype: np.dtype[Any]) -> Any:
    """Return the marker of an unknown time: nan, or the smallest integer."""
    return np.nan if dtype.kind == "f" else np.iinfo(dtype).min


def is_known(times: NDArray[Any]) -> NDArray[np.bool_]:
    """Mark the times that are known."""
    known: NDArray[np.bool_] = (
        ~np.isnan(times) if times.dtype.kind == "f" else times != unknown_time(times.dtype)
    )
    return known


def times_in_rows(
    topology: Topology, edges: Iterable[TimedEdges], dtype: np.dtype[Any], file: Path | None = None
) -> NDArray[Any]:
    """Return [E] the time of each edge: the earliest of those that its pair has; unknown if it has none.

    Parameters
    ----------
    topology
        The edges; pairs that are not among them are left out.
    edges
        The times.
    dtype
        int64 or float64, of the times.
    file
        Keeps them, mapped; in memory by default.
    """
    latest = np.inf if dtype.kind == "f" else np.iinfo(dtype).max
    shape = (topology.num_edges,)
    times = np.empty(shape, dtype)
    if file is not None:
        times = np.lib.format.open_memmap(file, "w+", dtype, shape)
    times[:] = latest
    for pairs, values, relation in edges:
        firsts, counts = edges_of_pairs(topology, pairs, relation)
        places, left = firsts, np.where(is_known(values), counts, 0)
        for _ in range(int(counts.max(initial=0))):
            np.minimum.at(times, places[left > 0], values[left > 0].astype(dtype))
            places, left = places + 1, left - 1
    times[times == latest] = unknown_time(dtype)
    return times


def as_times(values: NDArray[Any], num_edges: int, where: str, remedy: str) -> NDArray[Any]:
    """Return [e] int64 or float64 times of edges, as PyG and DGL graphs have them.

    Parameters
    ----------
    values
        [e] or [e, 1] numbers.
    num_edges
        How many edges there are.
    where, remedy
        What messages call them, and how to leave them out.

    Raises
    ------
    DataError
        If they are not a number for each edge.
    """
    flat = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if flat.shape != (num_edges,) or values.dtype.kind not in "iuf":
        raise DataError(
            f"{where}: {values.dtype.name} of shape {list(values.shape)}: times are one number for each of "
            f"{num_edges:,} edges: to train without them, {remedy}"
        )
    times: NDArray[Any] = flat.astype(np.float64 if values.dtype.kind == "f" else np.int64)
    wrong = ~is_known(times)
    if wrong.any():
        at = int(wrong.argmax())
        raise DataError(
            f"{where}: value {flat[at]} at position {at} is not a time: give a number, or to train without "
            f"them, {remedy}"
        )
    return times
