"""From settings and a part of the rows to a rank's part of a run."""

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
from hyrt.inference.evaluate import computes_by_layers
from hyrt.observe.hook import Hook
from hyrt.pipeline.shares import StepPart
from hyrt.pipeline.synchronize import Reduction, keep
from hyrt.quantities import one_line
from hyrt.training.checkpoint import Checkpoint
from hyrt.training.given.shared_run import SharedRun
from hyrt.training.setup import PreparedRun


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
    speeds: RankSpeeds | None
    """Measures the ranks, where parts of a step follow from that."""
    hooks: Sequence[Hook]
    """Those of the run that come with it."""

    __repr__ = one_line

    def go_on_from(self, checkpoint: Checkpoint | None) -> None:
        """Learn from the checkpoint of a run that goes on what has been examined before."""
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
    full, by_layers = config.evaluate.mode == "full", computes_by_layers(config, model)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = buckets_of(parameters)
    # A small model's gradients travel in one piece, when the backward pass is through.
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
    own_units, end = placed.own_units, _nothing
    if edges_are_split:
        joint = sample_jointly(config, graph, own, ranks, prepared, placed.own_units)
        prepared.sampler, own_units, end = joint, joint.own_units, joint.end
    trained, total = prepared.graph, cast(Reduction, reduction)
    if config.distributed.strategy == "p3":
        divided = divided_columns(config, graph, own, ranks, prepared, parameters, placed)
        trained, total = graph.with_features(divided), divided.finishing(reduction)
    elif config.distributed.strategy == "naive-migration":
        touring = touring_models(config, graph, own, ranks, prepared, parameters, placed)
        trained = graph.with_features(touring)
    # Others add to what a backward pass has computed before it is a step's.
    adds_later = config.distributed.strategy in ("hopgnn", "p3")
    shared = SharedRun(
        hear_gradient=None if buckets is None or adds_later else buckets.hear,
        part=StepPart(
            num_processes=ranks.size,
            own_units=own_units,
            end=end,
            most_times=1 if time_steps is None else ranks.size,
            fetches_each_time=time_steps is not None and not config.distributed.pre_gather,
        ),
        reduction=total,
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


def _nothing() -> None:
    """Nobody waits for neighbours."""
