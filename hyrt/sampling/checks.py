"""Checks of sampler arguments, and of neighbours that a device or another package sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hyrt.checks import (
    check_array,
    check_flag,
    check_ids,
    check_int,
    check_offsets,
    check_range,
    check_type,
    show,
)
from hyrt.errors import ArgumentError
from hyrt.graph.graph import Graph
from hyrt.graph.topology import Topology
from hyrt.runtime.workers import Workers
from hyrt.sampling.sampler import Hop

if TYPE_CHECKING:
    from hyrt.sampling.block import Ids


_SEEDS = (-(2**63), 2**64 - 1)


def id_dtype(graph: Graph) -> type[np.signedinteger[Any]]:
    """Return the dtype of vertex ids in mini-batches: int32 if all ids of the graph fit, otherwise int64."""
    return np.int32 if graph.num_vertices < 2**31 else np.int64


def check_graph(graph: Any) -> Graph:
    """Return the graph after validation of its edges, because compiled loops do not check bounds."""
    found = check_type("graph", graph, Graph, "give a graph, from hyrt.load")
    _ = check_type("topology of the graph", found.topology, Topology, "give a graph, from hyrt.load").checked
    return found


def check_sampler(
    graph: Any,
    targets: Any,
    seed: Any,
    class_weights: Any = None,
    *,
    allow_empty: bool = False,
    **counts: Any,
) -> tuple[Graph, Ids]:
    """Return the graph and the targets of a sampler after validating the sampler's arguments.

    The arguments are those of `hyrt.sampling.sampler_settings.SamplerSettings.build`; `counts` are others
    that must be integers of at least 1. `allow_empty` allows zero targets, as in the evaluation of an empty
    split. Raises ArgumentError with the argument's name, or DataError for inconsistent arrays of the graph.
    """
    graph = check_graph(graph)
    if len(graph.labels) != graph.num_vertices:
        raise ArgumentError(
            f"labels of {graph.name} has {len(graph.labels):,} rows for {graph.num_vertices:,} vertices: "
            "give one each"
        )
    ids = check_ids("targets", targets, graph.num_vertices, dtype=id_dtype(graph), distinct=True)
    if not len(ids) and not allow_empty:
        raise ArgumentError("targets is empty: give at least one vertex to train on")
    check_int("seed", seed, *_SEEDS)
    for name, count in counts.items():
        check_int(name, count, 1, 2**31 - 1)
    if class_weights is not None:
        check_array("class_weights", class_weights, "f", (graph.num_outputs,), "one factor for each class")
    return graph, ids


def check_fanouts(fanouts: Sequence[Any], *, allow_zero: bool = False) -> list[int]:
    """Return the fan-outs per layer, or per relation, after validation: counts, or -1 for all neighbours."""
    if not isinstance(fanouts, list | tuple) or not len(fanouts):
        raise ArgumentError(
            "fanouts is not a list of at least one number: give one for each layer, -1 for all"
        )
    found = [check_int("a fan-out", fanout, -1, 2**31 - 1) for fanout in fanouts]
    if 0 in found and not allow_zero:
        raise ArgumentError("a fan-out is 0: give a positive count, or -1 for all neighbours")
    return found


def check_layer_sampler(sampler: Any) -> Any:
    """Return the layer sampler after checking that it has a method `draw`."""
    if not callable(getattr(sampler, "draw", None)):
        raise ArgumentError(f"draw is {show(sampler)}: give an object with a method draw")
    return sampler


def check_step(step: Any) -> int:
    """Return a step number of the run after validation."""
    return check_int("step", step, 0, 2**62)


def check_call(
    step: Any,
    units: Any,
    workers: Any,
    in_place: Any,
    hops: Any,
    count: int,
    noun: str,
    *,
    takes_hops: bool = False,
) -> NDArray[Any]:
    """Return the units passed to `Sampler.sample` after validating all of its arguments.

    `count` is the number of units that exist, and `noun` their name in messages. `takes_hops` allows a device
    that samples.
    """
    # Training steps are not negative; evaluations use negative steps to get separate random streams.
    check_int("step", step, -(2**62), 2**62)
    check_type("workers", workers, Workers, "give a hyrt.runtime.workers.Workers")
    check_flag("in_place", in_place)
    if hops is not None and not (takes_hops and callable(getattr(hops, "draw", None))):
        kind = (
            "is no hyrt.sampling.sampler.HopSampler"
            if takes_hops
            else "is given, but this sampler draws itself"
        )
        raise ArgumentError(f"hops {kind}: omit it")
    return check_ids("units", units, count, noun, distinct=True)


def check_hop(hop: Any, vertices: Any, num_vertices: int, *, relabelled: bool) -> Hop:
    """Return neighbours that a device or a user-defined sampler sampled, after validation.

    `vertices` [n] are the destinations. If `relabelled`, `sources` and `columns` are used and checked as
    well. Raises ArgumentError with the array and the first invalid position.
    """
    drawn = check_type("what draws neighbours returned what", hop, Hop, "return a hyrt.sampling.sampler.Hop")
    num = len(vertices)
    description = "vertices of the dtype of the given ones,"
    neighbors = check_array("neighbors of a Hop", drawn.neighbors, (vertices.dtype,), (None,), description)
    check_range("neighbors of a Hop", neighbors, num_vertices, "vertices")
    check_offsets("offsets of a Hop", drawn.offsets, num, len(neighbors), (np.int32,))
    check_array("degrees of a Hop", drawn.degrees, (np.int32,), (num,), "one int32 each")
    for name, kinds in (("weights", "f"), ("edge_types", "iu"), ("edges", "i")):
        values = getattr(drawn, name)
        if values is not None:
            check_array(f"{name} of a Hop", values, kinds, (len(neighbors),), "one number for each neighbour")
    if relabelled and drawn.sources is not None and drawn.columns is not None:
        sources = check_ids("sources of a Hop", drawn.sources, num_vertices)
        if len(sources) < num or not np.array_equal(sources[:num], vertices):
            raise ArgumentError("sources of a Hop do not begin with the given vertices: put these first")
        columns = check_array(
            "columns of a Hop", drawn.columns, (np.int32,), (len(neighbors),), "int32 places in sources"
        )
        check_range("columns of a Hop", columns, len(sources), "sources")
    return drawn
