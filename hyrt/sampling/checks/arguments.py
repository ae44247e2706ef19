"""Checks of what samplers are built from and called with, the same for all kinds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hyrt.checks import check_array, check_flag, check_ids, check_kind, check_whole, show
from hyrt.errors import ArgumentError
from hyrt.graph.graph import Graph
from hyrt.graph.topology import Topology
from hyrt.machine.workers import Workers

if TYPE_CHECKING:
    from hyrt.sampling.block import Ids

_SEEDS = (-(2**63), 2**64 - 1)


def id_dtype(graph: Graph) -> type[np.signedinteger[Any]]:
    """Return the dtype of the graph's vertices in mini-batches: int32 where they fit."""
    return np.int32 if graph.num_vertices < 2**31 else np.int64


def check_graph(graph: Any) -> Graph:
    """Return a graph whose edges compiled loops may follow."""
    found = check_kind("graph", graph, Graph, "give a graph, from hyrt.load")
    _ = check_kind("topology of the graph", found.topology, Topology, "give a graph, from hyrt.load").checked
    return found


def check_sampler(
    graph: Any,
    targets: Any,
    seed: Any,
    class_weights: Any = None,
    *,
    may_be_empty: bool = False,
    **counts: Any,
) -> tuple[Graph, Ids]:
    """Return the graph and the targets that a sampler is built for.

    Parameters
    ----------
    graph, targets, seed, class_weights
        The arguments of `hyrt.sampling.sampler_settings.SamplerSettings.build`.
    may_be_empty
        Whether there may be no targets, as in the evaluation of an empty split.
    **counts
        Whole numbers of at least 1, by name.

    Raises
    ------
    ArgumentError
        Naming the argument.
    DataError
        If the graph's arrays are not those of a graph.
    """
    graph = check_graph(graph)
    if len(graph.labels) != graph.num_vertices:
        raise ArgumentError(
            f"labels of {graph.name} has {len(graph.labels):,} rows for {graph.num_vertices:,} vertices: "
            "give one each"
        )
    ids = check_ids("targets", targets, graph.num_vertices, dtype=id_dtype(graph), distinct=True)
    if not len(ids) and not may_be_empty:
        raise ArgumentError("targets is empty: give at least one vertex to train on")
    check_whole("seed", seed, *_SEEDS)
    for name, count in counts.items():
        check_whole(name, count, 1, 2**31 - 1)
    if class_weights is not None:
        check_array("class_weights", class_weights, "f", (graph.num_outputs,), "one factor for each class")
    return graph, ids


def check_fanouts(fanouts: Sequence[Any], *, may_be_0: bool = False) -> list[int]:
    """Return the neighbours of a vertex in each layer, or along each relation: counts, or -1 for all."""
    if not isinstance(fanouts, list | tuple) or not len(fanouts):
        raise ArgumentError(
            "fanouts is not a list of at least one number: give one for each layer, -1 for all"
        )
    found = [check_whole("a fan-out", fanout, -1, 2**31 - 1) for fanout in fanouts]
    if 0 in found and not may_be_0:
        raise ArgumentError("a fan-out is 0: give a positive count, or -1 for all neighbours")
    return found


def check_draw(draw: Any) -> Any:
    """Return what draws the edges of layers."""
    if not callable(getattr(draw, "draw", None)):
        raise ArgumentError(f"draw is {show(draw)}: give an object with a method draw")
    return draw


def check_step(step: Any) -> int:
    """Return the number of a step of the run."""
    return check_whole("step", step, 0, 2**62)


def check_call(
    step: Any,
    units: Any,
    workers: Any,
    in_place: Any,
    hops: Any,
    count: int,
    of: str,
    *,
    takes_hops: bool = False,
) -> NDArray[Any]:
    """Return the units that `Sampler.sample` is called with, once all of its arguments are found to be right.

    Parameters
    ----------
    step, units, workers, in_place, hops
        The arguments of `hyrt.sampling.sampler.Sampler.sample`.
    count, of
        How many units there may be, and what they are.
    takes_hops
        Whether a device may draw the neighbours.
    """
    # Steps below zero are never trained: evaluations draw from streams of their own.
    check_whole("step", step, -(2**62), 2**62)
    check_kind("workers", workers, Workers, "give a hyrt.machine.workers.Workers")
    check_flag("in_place", in_place)
    if hops is not None and not (takes_hops and callable(getattr(hops, "draw", None))):
        kind = (
            "is no hyrt.sampling.sampler.HopSampler"
            if takes_hops
            else "is given, but this sampler draws itself"
        )
        raise ArgumentError(f"hops {kind}: omit it")
    return check_ids("units", units, count, of, distinct=True)
