"""Interface of samplers, sampled neighbours with their edge values, and validation of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

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
from hyrt.errors import ArgumentError, DataError
from hyrt.formatting import short_repr
from hyrt.graph.graph import Graph
from hyrt.graph.topology import Topology
from hyrt.runtime.buffer_pool import PooledArrays
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Ids
from hyrt.sampling.kernels import find_edges
from hyrt.sampling.minibatch import MiniBatch

_GRAIN = 1 << 14
_ROWS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class EdgeValues:
    """Weights, features and types of some edges."""

    weights: NDArray[np.float32] | None = None
    """Edge weights [E] float32; None if edges have no weights."""
    features: NDArray[np.float32] | None = None
    """[E, d] float32 edge features; None if edges have no features."""
    types: NDArray[Any] | None = None
    """[E] edge types; None if edges have no types, or `Hop.edge_types` has them."""

    __repr__ = short_repr

    def select(self, edges: NDArray[Any]) -> EdgeValues:
        """Return the values of some of the edges, by position."""
        values = (self.weights, self.features, self.types)
        return EdgeValues(*(None if each is None else each[edges] for each in values))


def gather_edge_values(
    topology: Topology,
    vertices: Ids,
    offsets: Ids,
    neighbors: Ids,
    workers: Workers,
    arrays: PooledArrays,
    edges: NDArray[np.int64] | None = None,
    *,
    has_types: bool = False,
) -> EdgeValues:
    """Gather the weights, features and types of the edges from `neighbors` [E] to `vertices` [n].

    `offsets` are [n + 1], and `edges` [E] the positions of the edges in the topology; None to look them up by
    source and destination. With `has_types`, the sampler has already gathered the types. Raises DataError if
    an edge that must be looked up is not unique, or its row is not sorted.
    """
    types = None if has_types else topology.edge_types
    if types is None and not topology.has_edge_values:
        return EdgeValues()
    if edges is None:
        edges = _edges_between(topology, vertices, offsets, neighbors, workers, arrays)
    gathered: list[NDArray[Any] | None] = []
    for values in (topology.edge_weights, topology.edge_features, types):
        if values is None:
            gathered.append(None)
            continue
        out = arrays.take((len(edges), *values.shape[1:]), values.dtype)
        workers.run(_gather(values, edges, out), len(edges), _GRAIN)
        gathered.append(out)
    return EdgeValues(*gathered)


def _edges_between(
    topology: Topology, vertices: Ids, offsets: Ids, neighbors: Ids, workers: Workers, arrays: PooledArrays
) -> NDArray[np.int64]:
    edges = arrays.take(len(neighbors), np.int64)
    graph = (topology.indptr, topology.indices, vertices, offsets, neighbors)

    def find(start: int, stop: int) -> None:
        missing = find_edges(*graph, start, stop, edges)
        if missing >= 0:
            row = int(np.searchsorted(offsets, missing, side="right")) - 1
            raise DataError(
                f"the edge from vertex {neighbors[missing]} into vertex {vertices[row]} cannot be "
                "identified by its ends, so its weight, features and type are unknown: sort the rows and "
                "remove duplicate edges with hyrt data convert --sort --unique, or set "
                "sampler.kind=neighbor"
            )

    workers.run(find, len(vertices), _ROWS)
    return edges


def _gather(values: NDArray[Any], edges: NDArray[np.int64], out: NDArray[Any]) -> Callable[[int, int], None]:
    def gather(start: int, stop: int) -> None:
        np.take(values, edges[start:stop], axis=0, out=out[start:stop], mode="clip")

    return gather


class Sampler(Protocol):
    """Interface of samplers, which divide the work of a step into mini-batches.

    A step consists of units that can be assigned to any trainer: single targets if mini-batches can be split
    anywhere, and whole subgraphs otherwise. The sampled edges of a unit depend only on the seed and the step,
    never on other units.
    """

    def steps_per_epoch(self) -> int:
        """Return the number of steps per epoch. An epoch has all training targets if each is visited once."""
        ...

    def units(self, step: int) -> Ids:
        """Return the units [n] of a step in the order for splitting; the last step may have fewer."""
        ...

    def sample(
        self, step: int, units: Ids, workers: Workers, *, in_place: bool, hops: HopSampler | None = None
    ) -> MiniBatch:
        """Sample the mini-batch of some units of a step.

        Parameters
        ----------
        step
            Step of the run, counted from 0.
        units
            Units to sample, a subset of `units(step)`.
        workers
            Worker team that runs the chunks.
        in_place
            Whether the first block has vertex ids as sources, and reads the feature matrix in place.
        hops
            Device sampler to use instead of the host; only for samplers that build mini-batches from hops.
        """
        ...


@dataclass(frozen=True, slots=True)
class Hop:
    """Sampled neighbours of some vertices, in host memory."""

    degrees: NDArray[np.int32]
    """In-degrees of the vertices in the full graph, [n] int32."""
    offsets: NDArray[np.int32]
    """Index of each vertex's first neighbour, [n + 1] int32."""
    neighbors: Ids
    """Vertex ids of the neighbours, [E]."""
    sources: Ids | None = None
    """Vertices in the order of a block's sources, [num_src]: the given vertices first, then neighbours in
    order of appearance. None if the sampler does not relabel.
    """
    columns: NDArray[np.int32] | None = None
    """Positions of the neighbours in `sources`, [E] int32; None if the sampler does not relabel."""
    edge_types: NDArray[Any] | None = None
    """Edge types, [E]; see `Block.edge_types`."""
    weights: NDArray[np.float32] | None = None
    """Edge factors, [E] float32; see `Block.weights`."""
    edges: NDArray[np.int64] | None = None
    """Edge positions in the graph, [E] int64, if they are needed and known; otherwise None."""
    values: EdgeValues | None = None
    """Edge weights and features if they differ from those of the local graph; `edges` is then ignored."""
    resident: Any = None
    """Copy of the arrays on the device that sampled them, for the device's `transfer`."""

    __repr__ = short_repr


class HopSampler(Protocol):
    """Sampler of a layer's neighbours on a device. Its results have the same bits as those of the host."""

    def draw(self, vertices: Ids, fanout: int, key: np.uint64, *, relabel: bool) -> Hop:
        """Sample neighbours of vertices.

        Parameters
        ----------
        vertices
            Distinct vertices [n].
        fanout
            Number of neighbours per vertex; -1 takes all.
        key
            Key from `hyrt.runtime.rng.stream_key`.
        relabel
            Whether to compute sources and columns, if the device supports it.
        """
        ...

    def close(self) -> None:
        """Release the topology. Repeated calls have no effect."""
        ...


_SEEDS = (-(2**63), 2**64 - 1)


def id_dtype(graph: Graph) -> type[np.signedinteger[Any]]:
    """Return the dtype of vertex ids in mini-batches: int32 if all ids of the graph fit, otherwise int64."""
    return np.int32 if graph.num_vertices < 2**31 else np.int64


def check_graph(graph: Any) -> Graph:
    """Return the graph after validating its edges, because compiled loops do not check bounds."""
    found = check_type("graph", graph, Graph, "pass a graph from hyrt.load")
    _ = check_type("topology of the graph", found.topology, Topology, "pass a graph from hyrt.load").checked
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
    """Return the graph and the targets of a sampler after validating the arguments.

    The arguments are those of `hyrt.sampling.sampler_settings.SamplerSettings.build`; `counts` are further
    arguments that must be integers of at least 1. `allow_empty` allows zero targets, as in the evaluation of
    an empty split. Raises ArgumentError with the argument's name, or DataError if arrays of the graph are
    inconsistent.
    """
    graph = check_graph(graph)
    if len(graph.labels) != graph.num_vertices:
        raise ArgumentError(
            f"labels of {graph.name} has {len(graph.labels):,} rows for {graph.num_vertices:,} vertices: "
            "pass one row per vertex"
        )
    ids = check_ids("targets", targets, graph.num_vertices, dtype=id_dtype(graph), distinct=True)
    if not len(ids) and not allow_empty:
        raise ArgumentError("targets is empty: pass at least one vertex to train on")
    check_int("seed", seed, *_SEEDS)
    for name, count in counts.items():
        check_int(name, count, 1, 2**31 - 1)
    if class_weights is not None:
        check_array("class_weights", class_weights, "f", (graph.num_outputs,), "one factor per class")
    return graph, ids


def check_fanouts(fanouts: Sequence[Any], *, allow_zero: bool = False) -> list[int]:
    """Return the validated fan-outs per layer or per relation: counts, or -1 for all neighbours."""
    if not isinstance(fanouts, list | tuple) or not len(fanouts):
        raise ArgumentError(
            "fanouts is not a list of at least one number: pass one number per layer, or -1 for all "
            "neighbours"
        )
    found = [check_int("a fan-out", fanout, -1, 2**31 - 1) for fanout in fanouts]
    if 0 in found and not allow_zero:
        raise ArgumentError("a fan-out is 0: use a positive count, or -1 for all neighbours")
    return found


def check_layer_sampler(sampler: Any) -> Any:
    """Return the layer sampler after checking that it has a method `draw`."""
    if not callable(getattr(sampler, "draw", None)):
        raise ArgumentError(f"draw is {show(sampler)}: pass an object with a draw method")
    return sampler


def check_step(step: Any) -> int:
    """Return a validated step number of the run."""
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

    `count` is the number of existing units, and `noun` their name in messages. `takes_hops` is whether a
    device may sample.
    """
    # Training steps are not negative. Evaluations use negative steps, which have separate random streams.
    check_int("step", step, -(2**62), 2**62)
    check_type("workers", workers, Workers, "pass a hyrt.runtime.workers.Workers")
    check_flag("in_place", in_place)
    if hops is not None and not (takes_hops and callable(getattr(hops, "draw", None))):
        kind = (
            "is not a hyrt.sampling.sampler.HopSampler"
            if takes_hops
            else "is set, but this sampler samples neighbours itself"
        )
        raise ArgumentError(f"hops {kind}: remove hops")
    return check_ids("units", units, count, noun, distinct=True)


def check_hop(hop: Any, vertices: Any, num_vertices: int, *, relabelled: bool) -> Hop:
    """Return the validated neighbours that a device or a user-defined sampler has sampled.

    `vertices` [n] are the destinations. If `relabelled`, `sources` and `columns` are checked too. Raises
    ArgumentError with the array and the first invalid position.
    """
    drawn = check_type("the result of draw", hop, Hop, "return a hyrt.sampling.sampler.Hop")
    num = len(vertices)
    description = "vertices of the same dtype as the argument"
    neighbors = check_array("neighbors of a Hop", drawn.neighbors, (vertices.dtype,), (None,), description)
    check_range("neighbors of a Hop", neighbors, num_vertices, "vertices")
    check_offsets("offsets of a Hop", drawn.offsets, num, len(neighbors), (np.int32,))
    check_array("degrees of a Hop", drawn.degrees, (np.int32,), (num,), "one int32 number per vertex")
    for name, kinds in (("weights", "f"), ("edge_types", "iu"), ("edges", "i")):
        values = getattr(drawn, name)
        if values is not None:
            check_array(f"{name} of a Hop", values, kinds, (len(neighbors),), "one number per neighbour")
    if relabelled and drawn.sources is not None and drawn.columns is not None:
        sources = check_ids("sources of a Hop", drawn.sources, num_vertices)
        if len(sources) < num or not np.array_equal(sources[:num], vertices):
            raise ArgumentError(
                "sources of a Hop does not begin with the given vertices: put the given vertices first"
            )
        columns = check_array(
            "columns of a Hop", drawn.columns, (np.int32,), (len(neighbors),), "int32 positions in sources"
        )
        check_range("columns of a Hop", columns, len(sources), "sources")
    return drawn
