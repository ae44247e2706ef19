"""Steps of the whole graph: every training target, every vertex, every edge."""

from __future__ import annotations

import copy
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hyrt.checks import check_flag, check_whole
from hyrt.errors import ArgumentError
from hyrt.graph.graph import Graph
from hyrt.machine.workers import Workers
from hyrt.sampling.block import Ids
from hyrt.sampling.checks.arguments import check_sampler
from hyrt.sampling.full.whole_graph import WholeGraph
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.sampler import HopSampler


class FullSampler:
    """Returns the same mini-batch in every step: all training targets, in blocks of the full graph.

    A step has one unit, and an epoch one step. Steps differ only in the keys of their dropout masks.

    Parameters
    ----------
    graph, targets, layers, seed, class_weights
        The arguments of `hyrt.sampling.sampler_settings.SamplerSettings.build`.
    """

    def __init__(
        self,
        graph: Graph,
        targets: Ids,
        layers: int,
        seed: int,
        class_weights: NDArray[np.float32] | None = None,
    ) -> None:
        graph, targets = check_sampler(graph, targets, seed, class_weights, may_be_empty=True, layers=layers)
        self._layers = layers
        self._seed = seed
        self._whole = WholeGraph(graph.topology, typed=graph.types is not None)
        self._targets = targets.astype(self._whole.rows.dtype)
        self._labels = graph.vertices.labels_of(targets)
        self._target_weights = None if class_weights is None else class_weights[self._labels]

    def part(self, whole: WholeGraph, chosen: NDArray[np.bool_], rows: Ids) -> Self:
        """Return the same sampler over a part of the graph.

        Parameters
        ----------
        whole
            The part.
        chosen
            [n] whether each target is in the part.
        rows
            The rows of these targets.
        """
        other = copy.copy(self)
        other._whole = whole
        other._targets = rows.astype(whole.rows.dtype)
        other._labels = self._labels[chosen]
        other._target_weights = None if self._target_weights is None else self._target_weights[chosen]
        return other

    def steps_per_epoch(self) -> int:
        return 1

    def units(self, step: int) -> Ids:
        return np.array([check_whole("step", step, -1)], np.int64)

    def sample(
        self,
        step: int,
        units: Ids,
        workers: Workers,
        *,
        in_place: bool = False,
        hops: HopSampler | None = None,
    ) -> MiniBatch:
        check_whole("step", step, -(2**62))
        if hops is not None:
            raise ArgumentError("hops is given, but a whole graph has all edges: omit it")
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
            whole=self._whole,
        ).trusted()
