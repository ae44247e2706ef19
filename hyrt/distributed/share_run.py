"""From settings and a part of the rows to a rank's part of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

from hyrt.config import Config
from hyrt.distributed.first_layer.shared_inputs import divided_columns, touring_models
from hyrt.distributed.joined_ranks import JoinedRanks
from hyrt.distributed.model_migration import ModelMigration
from hyrt.distributed.placed_steps import PlacedSteps
from hyrt.distributed.rows.distributed_rows import DistributedRows
from hyrt.distributed.rows.distributed_sparse_rows import DistributedSparseRows
from hyrt.distributed.rows.own_rows import OwnRows
from hyrt.distributed.rows.row_cache import fill_cache
from hyrt.distributed.rows.wire import RoundedRows
from hyrt.distributed.scores_by_home import ScoresByHome
from hyrt.distributed.split_edges.asked_hops import AskedHops
from hyrt.distributed.split_edges.joint_sampler import JointSampler
from hyrt.distributed.strategies.evening.expected_rows import expected_remote_rows
from hyrt.distributed.strategies.hopgnn import HopGnn
from hyrt.distributed.strategies.local import LocalOrder
from hyrt.distributed.strategies.registry import strategy
from hyrt.distributed.sum_over_ranks import SumOverRanks
from hyrt.distributed.time_steps import TimeSteps
from hyrt.errors import ConfigError
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import FetchedRows, SparseFeatures
from hyrt.machine.workers import Workers
from hyrt.nn.model import GNN
from hyrt.nn.overridden import is_newer
from hyrt.observe.hook import Hook
from hyrt.pipeline.shares import StepPart
from hyrt.pipeline.synchronize import Reduction, keep
from hyrt.quantities import one_line
from hyrt.sampling.neighbor_settings import NeighborSettings
from hyrt.training.checkpoint import Checkpoint
from hyrt.training.given.shared_run import SharedRun
from hyrt.training.setup import PreparedRun


def graph_of_all_rows(config: Config, graph: Graph, own: OwnRows, ranks: JoinedRanks) -> Graph:
    """The graph with all rows, those of other ranks by exchange in the load stage.

    Parameters
    ----------
    config
        All settings; `distributed.wire` is of the rows.
    graph
        Topology, labels and splits.
    own
        The rows of this rank.
    ranks
        All ranks.

    Raises
    ------
    ConfigError
        If sparse rows are to be rounded.
    """
    rows: FetchedRows
    if isinstance(own.rows, SparseFeatures):
        if config.distributed.wire != "float32":
            raise ConfigError(
                f"distributed.wire={config.distributed.wire} rounds dense rows, and {config.data.source} has "
                "sparse ones, which travel as they are: omit distributed.wire"
            )
        rows = DistributedSparseRows(own.rows, own.places, own.homes, ranks.rows)
    else:
        rows = DistributedRows(own.rows, own.places, own.homes, ranks.rows, config.distributed.wire)
    return graph.with_features(rows)


@dataclass(frozen=True, slots=True)
class RankPart:
    """A rank's part of a run, and what of it the rank's session has to know."""

    graph: Graph
    """The graph whose rows its trainers get."""
    shared: SharedRun
    """The part."""
    reduction: SumOverRanks
    """Adds the gradients, and knows when all ranks stop."""
    time_steps: TimeSteps | None
    """Chooses the number of time steps, where steps are divided."""
    hooks: Sequence[Hook]
    """Those of the run that come with it."""

    __repr__ = one_line

    def go_on_from(self, checkpoint: Checkpoint | None) -> None:
        """Learn from the checkpoint of a run that goes on what has been examined before."""
        if checkpoint is not None and self.time_steps is not None:
            self.time_steps.restore(checkpoint.state["totals"]["epochs_s"])


def share_run(
    config: Config,
    graph: Graph,
    own: OwnRows,
    ranks: JoinedRanks,
    prepared: PreparedRun,
    stop_signal: Callable[[], int] = lambda: 0,
    *,
    edges_are_split: bool = False,
) -> RankPart:
    """A rank's part of a run.

    Parameters
    ----------
    config
        All settings; `distributed` is of the ranks.
    graph
        Topology, labels and splits.
    own
        The rows of this rank.
    ranks
        All ranks.
    prepared
        The model, the objective and the sampler.
    stop_signal
        Gives the number of the signal that asks this rank to stop; 0 for none.
    edges_are_split
        Whether the graph has the edges into this rank's vertices alone, with the degrees of all
        (`hyrt.distributed.split_edges.all_degrees`).

    Raises
    ------
    ConfigError
        If the strategy or the sampler cannot do with those edges, or the model not with the strategy.
    """
    model = prepared.model
    full = config.evaluate.mode == "full"
    by_layers = full and isinstance(model, GNN) and not is_newer(type(model), "forward", "layer")
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    reduction = SumOverRanks(ranks.gradients, parameters, prepared.objective.counts, stop_signal)
    scores = ScoresByHome(
        graph,
        own,
        ranks.control,
        memory_bytes=int(config.evaluate.memory_gib * 2**30),
        sampled=None if by_layers else [-1] * len(config.fanouts) if full else config.fanouts,
        batch_size=min(config.data.batch_size, 256) if full else config.data.batch_size,
        seed=config.seed,
        agree=reduction.agree_to_stop,
        edges_are_split=edges_are_split,
    )
    time_steps = None
    if config.distributed.strategy == "hopgnn":
        time_steps = TimeSteps(
            ranks.control,
            prepared.sampler.steps_per_epoch(),
            ahead=config.runtime.depth if config.runtime.pipelined else 1,
            given=config.distributed.time_steps,
        )
    placed = _placed_steps(config, graph, own, ranks, prepared, time_steps, edges_are_split=edges_are_split)
    own_units, end = placed.own_units, _nothing
    if edges_are_split:
        hops = _asked_hops(config, graph, own, ranks)
        joint = JointSampler(
            *(prepared.sampler, hops, placed.own_units), Workers(1, "hyrt.edges"), config.runtime.depth
        )
        prepared.sampler, own_units, end = joint, joint.own_units, hops.end
    trained, total = prepared.graph, cast(Reduction, reduction)
    if config.distributed.strategy == "p3":
        divided = divided_columns(config, graph, own, ranks, prepared, parameters, placed)
        trained, total = graph.with_features(divided), divided.finishing(reduction)
    elif config.distributed.strategy == "naive-migration":
        touring = touring_models(config, graph, own, ranks, prepared, parameters, placed)
        trained = graph.with_features(touring)
    shared = SharedRun(
        part=StepPart(
            num_processes=ranks.size,
            own_units=own_units,
            end=end,
            most_times=1 if time_steps is None else ranks.size,
            fetches_each_time=time_steps is not None and not config.distributed.pre_gather,
        ),
        reduction=total,
        pass_on=keep if time_steps is None else ModelMigration(ranks.gradients, parameters, placed.move),
        scores=scores,
    )
    hooks: list[Hook] = [] if time_steps is None else [time_steps]
    if config.distributed.wire != "float32":
        hooks.append(RoundedRows(config.distributed.wire))
    if config.distributed.cache is not None:
        hooks.append(fill_cache(config, graph, own, ranks, prepared, placed.strategy(0)))
    return RankPart(trained, shared, reduction, time_steps, hooks)


def _placed_steps(
    config: Config,
    graph: Graph,
    own: OwnRows,
    ranks: JoinedRanks,
    prepared: PreparedRun,
    time_steps: TimeSteps | None,
    *,
    edges_are_split: bool,
) -> PlacedSteps:
    """Where the units of each step are trained."""
    given, rank, size = config.distributed, ranks.rank, ranks.size
    if time_steps is not None:
        return PlacedSteps(lambda step: HopGnn(given.pre_gather, time_steps.of(step)), own.homes, rank, size)
    chosen = strategy(given.strategy)
    expected_rows = order = None
    if chosen.draws_locally:
        order = LocalOrder(prepared.targets, own.homes, size, config.data.batch_size, config.seed)
    if isinstance(config.sampler, NeighborSettings) and not edges_are_split:
        expected_rows = partial(
            expected_remote_rows, graph.topology, homes=own.homes, num_ranks=size, fanout=config.fanouts[0]
        )
    return PlacedSteps(lambda step: chosen, own.homes, rank, size, expected_rows, order)


def _asked_hops(config: Config, graph: Graph, own: OwnRows, ranks: JoinedRanks) -> AskedHops:
    """What asks other ranks for neighbours."""
    chosen, sampler = config.distributed.strategy, config.sampler
    if chosen in ("p3", "naive-migration"):
        raise ConfigError(
            f"distributed.strategy={chosen} samples the mini-batches of all ranks, and the edges are split "
            "among the parts: partition with --topology replicated, or give another strategy"
        )
    if not isinstance(sampler, NeighborSettings) or sampler.draws_on_device:
        raise ConfigError(
            "the edges are split among the parts, and only the neighbor sampler on the host asks other ranks "
            "for theirs: partition with --topology replicated, or give sampler.kind=neighbor "
            "sampler.on_device=false"
        )
    if config.distributed.cache is not None:
        raise ConfigError(
            "distributed.cache chooses rows by the edges of all vertices, and these are split among the "
            "parts: omit it, or partition with --topology replicated"
        )
    return AskedHops(graph.topology, own.homes, ranks.group("edges"), config.fanouts, config.seed)


def _nothing() -> None:
    """Nobody waits for neighbours."""
