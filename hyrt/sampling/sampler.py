"""What a sampler is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hyrt.machine.workers import Workers
from hyrt.quantities import one_line
from hyrt.sampling.block import Ids
from hyrt.sampling.edges.edge_values import EdgeValues
from hyrt.sampling.minibatch import MiniBatch


class Sampler(Protocol):
    """Turns the work of a step into mini-batches.

    A step's work is cut into units that the split moves between trainers: single targets where mini-batches
    can be cut, whole subgraphs where they cannot. What a unit's sampled edges are depends on the seed and the
    step only, never on the units beside it.
    """

    def steps_per_epoch(self) -> int:
        """How many steps meet every training target (once, where the sampler visits each once)."""
        ...

    def units(self, step: int) -> Ids:
        """[n] the units of a step of the run, in the order the split cuts them. The last may have fewer."""
        ...

    def sample(
        self, step: int, units: Ids, workers: Workers, *, in_place: bool, hops: HopSampler | None = None
    ) -> MiniBatch:
        """Sample the mini-batch of some of a step's units.

        Parameters
        ----------
        step
            Step of the run, counted from 0.
        units
            A piece of `units(step)`.
        workers
            The team of threads that runs the chunks.
        in_place
            Leave the first block's sources unlabelled, to be read from the feature matrix in place.
        hops
            Draws the neighbours in place of the host; only where mini-batches are made of hops.
        """
        ...


@dataclass(frozen=True, slots=True)
class Hop:
    """The sampled neighbours of some vertices, in host memory."""

    degrees: NDArray[np.int32]
    """[n] int32, in-degrees in the full graph."""
    offsets: NDArray[np.int32]
    """[n + 1] int32, where each vertex's neighbours start."""
    neighbors: Ids
    """[E] vertices of the graph, of the ids' dtype."""
    sources: Ids | None = None
    """[num_src] vertices numbered as in a block (the given vertices first, then neighbours in the order they
    are met), where the sampler relabels; else None."""
    columns: NDArray[np.int32] | None = None
    """[E] int32 positions in `sources`, where the sampler relabels; else None."""
    edge_types: NDArray[Any] | None = None
    """[E] the types of the edges, as in `Block`."""
    weights: NDArray[np.float32] | None = None
    """[E] float32 factors on the edges, as in `Block`."""
    edges: NDArray[np.int64] | None = None
    """[E] int64, the number of each edge in the graph, where somebody wants it and it is known."""
    values: EdgeValues | None = None
    """Weights and features of the edges, where these are not the graph's at hand: then `edges` is not looked
    at."""
    resident: Any = None
    """The device's own copy, for its `transfer`."""

    __repr__ = one_line


class HopSampler(Protocol):
    """Draws the neighbours of one layer on a device; equal, bit for bit, to what the host draws."""

    def draw(self, vertices: Ids, fanout: int, key: np.uint64, *, relabel: bool) -> Hop:
        """Sample neighbours.

        Parameters
        ----------
        vertices
            [n] distinct vertices.
        fanout
            Neighbours of each; -1 takes all.
        key
            The key from `hyrt.machine.generator.stream_key`.
        relabel
            Whether sources and columns are wanted, if the sampler can make them.
        """
        ...

    def close(self) -> None:
        """Give the topology back; idempotent."""
        ...
