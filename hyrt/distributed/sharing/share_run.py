"""Setup of a rank's part of a mini-batch run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from hyrt.config import Config
from hyrt.config.run_settings import MEASURED
from hyrt.distributed.first_layer.shared_inputs import divided_columns, touring_models
from hyrt.distributed.gradients.gradient_buckets import GradientBuckets, buckets_of
from hyrt.distributed.gradients.sum_over_ranks import SumOverRanks
from hyrt.distributed.joined_ranks import JoinedRanks
from hyrt.distributed.model_migration import ModelMigration
from hyrt.distributed.rows.own_rows import OwnRows
from hyrt.distributed.rows.row_cache import fill_cache
from hyrt.distributed.rows.wire import RoundedRows
from hyrt.distributed.scores_by_home import ScoresByHome
from hyrt.distributed.sharing.placed_by_settings import placed_steps
from hyrt.distributed.split_edges.sample_jointly import sample_jointly
from hyrt.distributed.time_steps import TimeSteps
from hyrt.distributed.watch.joined_traces import JoinedTraces
from hyrt.distributed.watch.rank_speeds import RankSpeeds
from hyrt.graph.graph import Graph
from hyrt.inference.score_vertices import computes_by_layers
from hyrt.observe.hook import Hook
from hyrt.pipeline.shares import StepPart
from hyrt.pipeline.synchronize import Reduction, keep
from hyrt.quantities import one_line
from hyrt.training.checkpoint import Checkpoint
from hyrt.training.given.shared_run import SharedRun
from hyrt.training.setup import PreparedRun


@dataclass(frozen=True, slots=True)
class RankPart:
    """A rank's part of a run, with the components that its session needs."""

    graph: Graph
    """Graph with the feature rows that the trainers use."""
    shared: SharedRun
    """Distributed configuration of the run."""
    reduction: SumOverRanks
    """All-reduces gradients, and agrees when all ranks stop."""
    time_steps: TimeSteps | None
    """Chooses the number of time steps; None if steps have one time step."""
    speeds: RankSpeeds | None
    """Measures the ranks, if a step is divided by their speeds."""
    hooks: Sequence[Hook]
    """Additional hooks of the run."""

    __repr__ = one_line

    def go_on_from(self, checkpoint: Checkpoint | None) -> None:
        """Restore adaptive state from the checkpoint of a resumed run."""
        if checkpoint is None:
            return
        epochs_s = checkpoint.state["totals"]["epochs_s"]
        if self.time_steps is not None:
            self.time_steps.restore(epochs_s)
        if self.speeds is not None:
            self.speeds.go_on_after(len(epochs_s))


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
    """Create a rank's part of a run.

    Parameters
    ----------
    config
        All settings; `distributed` configures the ranks.
    graph
        Topology, labels and splits.
    own
        Rows of this rank.
    ranks
        All ranks.
    prepared
        Model, objective and sampler.
    stop_signal
        Returns the number of the signal that requests this rank to stop; 0 for none.
    edges_are_split
        Whether the graph contains only the edges into this rank's vertices, with all in-degrees
        (`hyrt.distributed.split_edges.all_degrees`).

    Raises
    ------
    ConfigError
        If partitioned topology does not support the strategy or the sampler, or the strategy the model.
    """
    model = prepared.model
    full, by_layers = config.evaluate.mode == "full", computes_by_layers(config, model)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = buckets_of(parameters)
    # The gradients of a small model are reduced in one operation after the backward pass.
    buckets = GradientBuckets(ranks.group("buckets"), parameters, groups) if len(groups) > 1 else None
    reduction = SumOverRanks(ranks.gradients, parameters, prepared.objective.counts, stop_signal, buckets)
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
    time_steps = speeds = None
    steps_per_epoch, overlapped = prepared.sampler.steps_per_epoch(), config.runtime.pipelined
    ahead = config.runtime.depth if overlapped else 1
    if config.distributed.strategy == "hopgnn":
        time_steps = TimeSteps(
            ranks.control, steps_per_epoch, ahead=ahead, given=config.distributed.time_steps
        )
    if config.distributed.shares == MEASURED:
        speeds = RankSpeeds(ranks.control, steps_per_epoch, ahead, overlapped=overlapped)
    placed = placed_steps(
        config, graph, own, ranks, prepared, time_steps, speeds, edges_are_split=edges_are_split
    )
    local_units, end = placed.own_units, _do_nothing
    if edges_are_split:
        distributed_sampler = sample_jointly(config, graph, own, ranks, prepared, placed.own_units)
        prepared.sampler, local_units, end = (
            distributed_sampler,
            distributed_sampler.own_units,
            distributed_sampler.end,
        )
    trained, step_reduction = prepared.graph, cast(Reduction, reduction)
    if config.distributed.strategy == "p3":
        parallel_input = divided_columns(config, graph, own, ranks, prepared, parameters, placed)
        trained, step_reduction = graph.with_features(parallel_input), parallel_input.finishing(reduction)
    elif config.distributed.strategy == "naive-migration":
        migrating_inputs = touring_models(config, graph, own, ranks, prepared, parameters, placed)
        trained = graph.with_features(migrating_inputs)
    # These strategies still add to gradients after the backward pass.
    adds_later = config.distributed.strategy in ("hopgnn", "p3")
    shared = SharedRun(
        hear_gradient=None if buckets is None or adds_later else buckets.hear,
        part=StepPart(
            num_processes=ranks.size,
            own_units=local_units,
            end=end,
            most_times=1 if time_steps is None else ranks.size,
            fetches_each_time=time_steps is not None and not config.distributed.pre_gather,
        ),
        reduction=step_reduction,
        traces=JoinedTraces(ranks.control, ranks.last_words),
        pass_on=keep if time_steps is None else ModelMigration(ranks.gradients, parameters, placed.move),
        scores=scores,
    )
    hooks: list[Hook] = [hook for hook in (time_steps, speeds) if hook is not None]
    are_rows_sent = len(own.beside) < ranks.size - 1
    if config.distributed.wire != "float32" and are_rows_sent:
        hooks.append(RoundedRows(config.distributed.wire))
    if config.distributed.cache is not None and are_rows_sent:
        hooks.append(fill_cache(config, graph, own, ranks, prepared, placed.strategy(0)))
    return RankPart(trained, shared, reduction, time_steps, speeds, hooks)


def _do_nothing() -> None:
    """Do nothing: no thread waits for neighbours."""
