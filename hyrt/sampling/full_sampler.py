"""Sampler for full-graph training."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from hyrt.checks import check_flag, check_int
from hyrt.errors import ArgumentError
from hyrt.graph.graph import Graph
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Ids
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.sampler import HopSampler, check_sampler

if TYPE_CHECKING:
    pass

from hyrt.sampling.minibatch import FullGraph


class FullSampler:
    """Sampler whose mini-batch has all training targets and blocks of the full graph in every step.

    A step has one unit, and an epoch has one step. Only the keys of the dropout masks differ between steps.
    """

    def __init__(
        self,
        graph: Graph,
        targets: Ids,
        layers: int,
        seed: int,
        class_weights: NDArray[np.float32] | None = None,
    ) -> None:
        graph, targets = check_sampler(graph, targets, seed, class_weights, allow_empty=True, layers=layers)
        self._layers = layers
        self._seed = seed
        self._whole = FullGraph(graph.topology, is_hetero=graph.types is not None)
        self._targets = targets.astype(self._whole.rows.dtype)
        self._labels = graph.vertices.select_labels(targets)
        self._target_weights = None if class_weights is None else class_weights[self._labels]

    def for_part(self, full_graph: FullGraph, chosen: NDArray[np.bool_], rows: Ids) -> Self:
        """Return a copy of the sampler for one part of the graph, whose blocks are those of `full_graph`.

        `chosen` [n] has a flag per target that is set if the target is in the part. `rows` has the row index
        in the part of each of these targets.
        """
        other = copy.copy(self)
        other._whole = full_graph
        other._targets = rows.astype(full_graph.rows.dtype)
        other._labels = self._labels[chosen]
        other._target_weights = None if self._target_weights is None else self._target_weights[chosen]
        return other

    def steps_per_epoch(self) -> int:
        return 1

    def units(self, step: int) -> Ids:
        return np.array([check_int("step", step, -1)], np.int64)

    def sample(
        self,
        step: int,
        units: Ids,
        workers: Workers,
        *,
        in_place: bool = False,
        hops: HopSampler | None = None,
    ) -> MiniBatch:
        check_int("step", step, -(2**62))
        if hops is not None:
            raise ArgumentError("hops is set, but full-graph training uses all edges: remove hops")
        check_flag("in_place", in_place)
        return MiniBatch(
            step=step,
            targets=self._targets,
            blocks=[
                self._whole.block(layer, step=step, seed=self._seed, in_place=in_place and layer == 1)
                for layer in range(1, self._layers + 1)
            ],
            labels=self._labels,
            target_weights=self._target_weights,
            normalizer=float(len(self._targets)),
            target_rows=self._targets,
            full_graph=self._whole,
        ).trusted()
