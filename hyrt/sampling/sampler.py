"""Interface of a sampler."""

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

    A step consists of units that can be assigned to any trainer: single targets if a mini-batch can be split
    anywhere, otherwise whole subgraphs. The sampled edges of a unit depend only on the seed and the step,
    never on the other units.
    """

    def steps_per_epoch(self) -> int:
        """Return the number of steps that cover every training target (once, if the sampler visits each
        once).
        """
        ...

    def units(self, step: int) -> Ids:
        """Return [n] units of a step in the order in which they are split. The last step may have fewer."""
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
    """Sampled neighbours of some vertices, in host memory."""

    degrees: NDArray[np.int32]
    """[n] int32, in-degrees in the full graph."""
    offsets: NDArray[np.int32]
    """[n + 1] int32, where each vertex's neighbours start."""
    neighbors: Ids
    """[E] vertices of the graph, of the ids' dtype."""
    sources: Ids | None = None
    """[num_src] vertices numbered as in a block (the given vertices first, then neighbours in order of
    appearance), if the sampler relabels; otherwise None.
    """
    columns: NDArray[np.int32] | None = None
    """[E] int32 positions in `sources`, if the sampler relabels; otherwise None."""
    edge_types: NDArray[Any] | None = None
    """[E] the types of the edges, as in `Block`."""
    weights: NDArray[np.float32] | None = None
    """[E] float32 factors on the edges, as in `Block`."""
    edges: NDArray[np.int64] | None = None
    """[E] int64, edge numbers in the graph, if they are needed and known."""
    values: EdgeValues | None = None
    """Edge weights and features, if they differ from the local graph's; `edges` is then ignored."""
    resident: Any = None
    """The device's copy, for its `transfer`."""

    __repr__ = one_line


class HopSampler(Protocol):
    """Samples the neighbours of one layer on a device, with the same bits as on the host."""

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
        """Release the topology; idempotent."""
        ...
