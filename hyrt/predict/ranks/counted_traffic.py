"""The traffic of a step on a partitioned graph, counted with the run's own sampler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hyrt_perfmodel.communication.expected_traffic import hidden_bytes, model_bytes, partial_bytes
from hyrt_perfmodel.communication.step_traffic import EDGES, ROWS, PurposeTraffic, StepTraffic
from hyrt_perfmodel.workloads.workload import Workload
from numpy.typing import NDArray

from hyrt.config import Config
from hyrt.distributed.rows.cache_choice import remote_reads
from hyrt.distributed.sharing.possible_strategies import why_no_shares
from hyrt.distributed.strategies.evening.expected_rows import expected_remote_rows
from hyrt.distributed.strategies.home import Home
from hyrt.distributed.strategies.hopgnn import HopGnn
from hyrt.distributed.strategies.local import LocalOrder
from hyrt.distributed.strategies.naive_migration import NaiveMigration
from hyrt.distributed.strategies.p3 import P3
from hyrt.distributed.strategies.placement import Placement
from hyrt.distributed.strategies.registry import strategy
from hyrt.distributed.strategies.strategy import Roots, Strategy
from hyrt.distributed.strategies.traffic import Traffic
from hyrt.errors import ConfigError
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import SparseSource
from hyrt.graph.source import open_graph
from hyrt.machine.workers import Workers
from hyrt.predict.ranks.asked_edges import asked_bytes
from hyrt.predict.ranks.given_homes import read_homes
from hyrt.predict.workload import aggregates_first
from hyrt.sampling.block import Block
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.neighbor import NeighborSampler
from hyrt.sampling.neighbor_settings import NeighborSettings
from hyrt.sampling.sampler import Sampler

# Steps differ by a few per cent, and each is sampled once for every rank.
_STEPS = 4
# Of a hop follow each other: counts, vertices, sizes and neighbours.
_MESSAGES_A_HOP = 4


class CountedSteps:
    """Steps of a run that are placed and sampled, but not trained.

    Parameters
    ----------
    graph
        The graph; its features are not read.
    homes
        [V] the rank that has each vertex's features.
    num_ranks
        The number of ranks, N.
    fanouts
        Neighbours of each vertex per layer, the targets' layer first; None where `sampler` draws others.
    batch_size
        Targets of a step, over all ranks.
    seed
        The seed of the run.
    split
        The number of the split, of a graph that has several.
    wire_part
        What a row takes on its way, over what it takes in memory.
    cache
        How much each rank keeps of others' rows: bytes, or a part of all rows; None for nothing. It needs
        `fanouts`.
    sampler
        The run's sampler; None for one that draws neighbours.
    edges_are_split
        Whether the ranks of the run have the edges into their own vertices alone, and ask for others.
    machines
        [N] equal for ranks that read each other's rows where they lie; each rank sends its own if None.
    """

    def __init__(
        self,
        graph: Graph,
        homes: NDArray[Any],
        num_ranks: int,
        fanouts: list[int] | None,
        batch_size: int,
        seed: int,
        split: int = 0,
        *,
        wire_part: float = 1.0,
        cache: int | float | None = None,
        sampler: Sampler | None = None,
        edges_are_split: bool = False,
        machines: Sequence[int] | None = None,
    ) -> None:
        targets = graph.split("train", split)
        self._topology, self._homes, self._num_ranks = graph.topology, homes, num_ranks
        self._targets, self._fanouts, self._batch_size = targets, fanouts, batch_size
        self._wire_part, self._cache = wire_part, cache
        of_ranks = np.arange(num_ranks) if machines is None else np.array(machines)
        # [N, N] whether a rank reads another one's rows where they lie, or its own.
        self._is_beside = of_ranks[:, None] == of_ranks
        if sampler is None:
            assert fanouts is not None
            sampler = NeighborSampler(graph, targets, fanouts, batch_size, seed)
        self._sampler, self._edges_are_split = sampler, edges_are_split
        ids = sampler.units(0).dtype
        self._local = LocalOrder(targets.astype(ids), homes, num_ranks, batch_size, seed)
        # The last step of an epoch is short.
        self._steps = range(min(_STEPS, max(1, self._sampler.steps_per_epoch() - 1)))

    def traffic(self, strategy: Strategy, work: Workload) -> StepTraffic:
        """The mean traffic of a step.

        Parameters
        ----------
        strategy
            Decides where units are trained.
        work
            A mini-batch, for the sizes of rows, vectors and weights; its numbers do not count.
        """
        total, most, time_steps = Traffic.none(self._num_ranks), 0.0, 1
        edges = np.zeros((self._num_ranks, self._num_ranks))
        with Workers(1, "hyrt.predict") as workers:
            for step in self._steps:
                units = self._local.batch(step) if strategy.draws_locally else self._sampler.units(step)
                placement = self._placed(strategy, units)

                def batch_of(
                    positions: NDArray[np.intp], step: int = step, units: NDArray[Any] = units
                ) -> MiniBatch:
                    return self._sampler.sample(step, units[positions], workers, in_place=False)

                def sampled(positions: NDArray[np.intp], of: Callable[..., MiniBatch] = batch_of) -> Block:
                    return of(positions).blocks[0]

                if self._edges_are_split:
                    edges += self._asked(placement, batch_of)
                total += strategy.traffic(placement, self._homes, sampled)
                of_ranks = np.bincount(placement.ranks, minlength=self._num_ranks)
                most += float(of_ranks.max() / of_ranks.mean()) / len(self._steps)
                time_steps = placement.num_times
        row_bytes = work.row_bytes * self._wire_part
        sent = np.where(self._is_beside, 0, total.rows)
        rows = sent * self._missed(strategy, row_bytes) * row_bytes / len(self._steps)
        carried = partial_bytes(work, of_sources=isinstance(strategy, NaiveMigration) and strategy.of_sources)
        found = self._in_bytes(total, rows, most, time_steps, work, carried)
        if not edges.any():
            return found
        messages = _MESSAGES_A_HOP * len(work.edges) * (self._num_ranks - 1)
        asked = PurposeTraffic(edges / len(self._steps), messages)
        return replace(found, purposes={**found.purposes, EDGES: asked})

    def _asked(
        self, placement: Placement, batch_of: Callable[[NDArray[np.intp]], MiniBatch]
    ) -> NDArray[np.float64]:
        """[N, N] bytes that ranks send for the neighbours of a step."""
        of_ranks = [placement.of_rank(rank) for rank in range(self._num_ranks)]
        return sum(
            (
                asked_bytes(batch_of(positions), self._homes, rank, self._num_ranks)
                for rank, positions in enumerate(of_ranks)
                if len(positions)
            ),
            np.zeros((self._num_ranks, self._num_ranks)),
        )

    def _placed(self, strategy: Strategy, units: NDArray[Any]) -> Placement:
        def expected() -> NDArray[np.float64]:
            assert self._fanouts is not None
            return expected_remote_rows(self._topology, units, self._homes, self._num_ranks, self._fanouts[0])

        # As in a run: where nobody can tell, no unit is moved for the sake of balance.
        can_tell = self._fanouts is not None and not self._edges_are_split
        return strategy.place(Roots(self._homes[units], self._num_ranks, expected if can_tell else None))

    def _missed(self, strategy: Strategy, row_bytes: float) -> NDArray[np.float64]:
        """[N] the part of the rows that each rank needs of others that it is expected not to have cached."""
        missed = np.ones(self._num_ranks)
        if self._cache is None:
            return missed
        assert self._fanouts is not None
        share = isinstance(self._cache, float)
        kept = int(self._cache * (self._topology.num_vertices if share else 1 / row_bytes))
        for rank in range(self._num_ranks):
            reads = remote_reads(
                self._topology,
                self._targets,
                self._homes,
                rank,
                self._num_ranks,
                strategy,
                self._batch_size,
                self._fanouts,
                np.flatnonzero(self._is_beside[rank]).tolist(),
            )
            missed[rank] = 1 - reads.of_first(kept) / max(reads.of_first(len(reads.visits)), 1e-30)
        return missed

    def _in_bytes(
        self,
        total: Traffic,
        row_bytes: NDArray[np.float64],
        most: float,
        time_steps: int,
        work: Workload,
        carried_bytes: float,
    ) -> StepTraffic:
        steps, peers = len(self._steps), self._num_ranks - 1
        migrates_once = total.partials.any()
        counted = {
            ROWS: PurposeTraffic(row_bytes, peers),
            "hidden": PurposeTraffic(total.hidden * hidden_bytes(work) / steps, 2 * peers),
            "partials": PurposeTraffic(total.partials * carried_bytes / steps, self._num_ranks),
            "models": PurposeTraffic(
                total.models * 2 * model_bytes(work) / steps, 0 if migrates_once else time_steps - 1
            ),
        }
        return StepTraffic(
            ranks=self._num_ranks,
            purposes={name: traffic for name, traffic in counted.items() if traffic.sent.any()},
            gradient_bytes=model_bytes(work),
            time_steps=time_steps,
            largest_share=most,
        )


def placing_of(config: Config, name: str, time_steps: int | None = None) -> Strategy:
    """The strategy of a configured run, which counts what its model makes travel.

    Parameters
    ----------
    config
        The settings.
    name
        The strategy's.
    time_steps
        Those of `hopgnn`, where they are known.
    """
    if name == "hopgnn":
        return HopGnn(config.distributed.pre_gather, time_steps)
    if name == "home":
        return Home(shares=config.distributed.given_shares)
    if name == "p3":
        return P3(reads_sources(config))
    if name == "naive-migration":
        return NaiveMigration(reads_sources(config))
    return strategy(name)


def reads_sources(config: Config) -> bool:
    """Whether the first layer of a configured model multiplies or compares rows before it sums them."""
    return not aggregates_first(config) or config.model.aggregate == "max"


def steps_of(config: Config, file: Path, num_ranks: int, *, edges_are_split: bool = False) -> CountedSteps:
    """The steps of a configured run, with homes from a file.

    Parameters
    ----------
    config
        The settings.
    file
        A .npy file: [V] integers, the rank that has each vertex's features.
    num_ranks
        The number of ranks.
    edges_are_split
        Whether the ranks have the edges into their own vertices alone.

    Raises
    ------
    ConfigError
        If the file has no homes for the graph and the ranks, or a cache does not go with the sampler.
    """
    graph = open_graph(config.data.source, normalize=config.data.normalize)
    homes = read_homes(file, graph.num_vertices)
    if homes.max() >= num_ranks:
        raise ConfigError(
            f"--homes {file} has the homes {homes.min()} to {homes.max()}, and {num_ranks} ranks are 0 to "
            f"{num_ranks - 1}: give another file or --ranks"
        )
    sampler = None
    if not isinstance(config.sampler, NeighborSettings):
        from hyrt.training.setup import build_sampler

        sampler = build_sampler(config, graph, graph.split("train", config.data.split))
    return configured_steps(config, graph, homes, num_ranks, sampler, edges_are_split=edges_are_split)


def configured_steps(
    config: Config,
    graph: Graph,
    homes: NDArray[Any],
    num_ranks: int,
    sampler: Sampler | None,
    *,
    edges_are_split: bool = False,
    machines: Sequence[int] | None = None,
) -> CountedSteps:
    """The steps of a configured run on an open graph.

    Parameters
    ----------
    config
        The settings.
    graph, homes, num_ranks, sampler, edges_are_split, machines
        The arguments of `CountedSteps`.

    Raises
    ------
    ConfigError
        If a cache does not go with the sampler, or with edges that are split, or parts of a step are given
        for another number of ranks.
    """
    if refused := why_no_shares(config, num_ranks):
        raise ConfigError(refused)
    settings, cache = config.sampler, config.distributed.cache
    draws_neighbours = isinstance(settings, NeighborSettings)
    if cache is not None and (edges_are_split or not draws_neighbours):
        lacking = "edges are split" if edges_are_split else f"sampler.kind is {settings.kind}"
        raise ConfigError(
            "distributed.cache keeps the rows that sampler.kind=neighbor is expected to need with all edges, "
            f"and {lacking}: omit distributed.cache"
        )
    return CountedSteps(
        *(graph, homes, num_ranks, settings.fanouts(config.model.layers) if draws_neighbours else None),
        *(config.data.batch_size, config.seed, config.data.split),
        wire_part=wire_part(config, graph),
        cache=cache,
        sampler=sampler,
        edges_are_split=edges_are_split,
        machines=machines,
    )


def wire_part(config: Config, graph: Graph) -> float:
    """What a row takes on its way, over what it takes in memory: `distributed.wire` rounds dense float32."""
    features = graph.features
    rounds = config.distributed.wire != "float32" and not isinstance(features, SparseSource)
    return 2 / features.value_bytes if rounds else 1.0
