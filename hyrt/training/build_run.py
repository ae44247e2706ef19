"""Construction of a run's components from settings, and the options of a process in a distributed run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from hyrt_perfmodel.policy import Policy, Threads

from hyrt.config import Config
from hyrt.config.load import find_settings_without_effect, find_unused_settings
from hyrt.device.discovery import split_by_shares
from hyrt.errors import DataWarning, warn_user
from hyrt.formatting import pluralize, short_repr
from hyrt.graph.graph import Graph
from hyrt.graph.labels import label_warning
from hyrt.graph.links.link_split import check_held_out
from hyrt.graph.run_schema import RunSchema, build_run_schema
from hyrt.inference.evaluate import DistributedScorer, Evaluator, computes_by_layers
from hyrt.objective import Objective
from hyrt.objective.host_loss import check_objective
from hyrt.pipeline.synchronize import Reduction, StateHandoff, no_handoff, no_reduction
from hyrt.pipeline.work_items import ALL, RankSlice
from hyrt.sampling.sampler import Sampler
from hyrt.telemetry.events import Emit, Event, Notice, RunPrediction
from hyrt.telemetry.hooks import HOST, Hook, Site, call_with_hooks
from hyrt.telemetry.run_hooks import CrashContext
from hyrt.telemetry.trace_hook import RankTraceGatherer, TraceHook
from hyrt.training.feature_caches import DeviceCaches
from hyrt.training.learner import TrainingState
from hyrt.training.prechecks import free_memory, host_shortage, missing_classes_text
from hyrt.training.setup import PreparedRun, architecture, assign_threads, first_split
from hyrt.training.trainers import Found, find_trainers


def identity_event(event: Event) -> Event:
    return event


def no_failover() -> None:
    """Return None, because this process does not replace a lost rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributedRunConfig:
    """Role of one process in a run. The defaults are for a process that trains alone.

    Even if a process stores only a part of the feature rows, its graph provides all rows through
    `hyrt.graph.row_source.PrefetchedRowSource`.
    """

    part: RankSlice = ALL
    """Part of every step that this process computes."""
    reduction: Reduction = no_reduction
    """Reduction of a step's sums over the trainers of all processes."""
    on_gradient: Callable[[int, torch.Tensor], None] | None = None
    """Callback for each gradient during the backward pass, if this process has a single trainer."""
    pass_on: StateHandoff = no_handoff
    """Exchange of sums with another process between two time steps, when models migrate."""
    scores: DistributedScorer | None = None
    """Scorer that works together with the other processes; None if each process scores all vertices."""
    in_chunks: bool = False
    """Whether every device that can share a full graph (`SharesColumns`) trains it in chunks."""
    traces: RankTraceGatherer | None = None
    """Gatherer of the traces of all processes into one file; None if each process writes its own file."""
    inherited: Callable[[], Path | None] = no_failover
    """Function that returns the run folder if this process must write the records of a lost process."""
    seen: Callable[[Event], Event] = identity_event
    """Function that converts this process's events for display and records; hooks get the original events."""

    __repr__ = short_repr


ALONE = DistributedRunConfig()
"""Configuration of a run with a single process."""


T = TypeVar("T")

Predict = Callable[[Config, Graph, Sampler, Callable[[str], None]], RunPrediction | None]
"""Function that predicts a run from settings, graph and sampler, or returns None after it has passed the
reason to its last argument.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComponents:
    """Components of one run, which `build_run` creates for the training loop."""

    config: Config
    graph: Graph
    """Graph after opening and normalization."""
    schema: RunSchema
    """Schema that the run fits to the graph, and stores in its checkpoints with the weights."""
    learner: TrainingState
    """Training state: the model with its optimizer."""
    is_user_model: bool
    """Whether the caller has passed the model instead of configuring it."""
    objective: Objective
    sampler: Sampler
    evaluator: Evaluator
    found: Sequence[Found]
    """Training devices, which are not open yet."""
    threads: Threads
    split: Sequence[int]
    """Initial number of units per step and trainer; `threads` has the initial CPU threads per stage."""
    expected: RunPrediction | None
    """Prediction of the run; None without a prediction."""
    policy: Policy | None
    """Policy that moves targets and threads between steps; None selects the configured policy."""
    shared: DistributedRunConfig
    """Role of this process in the run."""
    caches: DeviceCaches | None
    """Feature caches of the devices; None unless `data.cache` enables them."""
    hooks: Sequence[Hook]
    emit: Emit
    """Function that reports events to the hooks and the caller."""
    checkpoints: Path | None
    """Checkpoint folder; None if no checkpoints are written."""
    should_stop: Callable[[], bool]
    """Function that is called after every step. If it returns True, the run writes a checkpoint and ends."""
    on_stall: Callable[[str], None]
    """Callback with the stacks of all threads if the run stalls."""

    @property
    def steps_per_epoch(self) -> int:
        return self.sampler.steps_per_epoch()

    @property
    def epochs(self) -> int:
        return self.config.train.num_epochs(self.steps_per_epoch)

    @property
    def num_steps(self) -> int:
        """Number of steps in the whole run."""
        return self.epochs * self.steps_per_epoch

    def warm_up(self, step: int) -> float:
        """Return the learning rate factor of a step."""
        return self.config.train.warmup_factor(step, self.steps_per_epoch)

    def say(self, notice: Notice | None) -> None:
        """Emit a notice, if there is one."""
        if notice is not None:
            self.emit(notice)

    def warn(self, text: str) -> None:
        """Emit a warning for the user."""
        self.emit(Notice(kind="warning", text=text))

    def call(self, stage: str, step: int, work: Callable[[], T]) -> T:
        """Run work that does not belong to a trainer inside the hooks."""
        return call_with_hooks(self.hooks, stage, Site(HOST, step), work)


def build_run(
    config: Config,
    graph: Graph,
    *,
    model: torch.nn.Module | None = None,
    emit: Emit = lambda event: None,
    checkpoints: Path | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    on_stall: Callable[[str], None] = lambda stacks: None,
    policy: Policy | None = None,
    predict: Predict | None = None,
    hooks: Sequence[Hook] = (),
    shared: DistributedRunConfig = ALONE,
    prepared: PreparedRun | None = None,
) -> RunComponents:
    """Create the components of a run over a graph.

    `model` is a torch module over blocks, by default the configured model. `predict` is called only if
    `balance.predict` is set and the model is the configured one. `prepared` has the model and the sampler if
    they were needed before the run; `model` is then its module. The settings may add a trace to `hooks`.
    Raises ConfigError, DataError or DeviceUnavailableError if the settings cannot be applied.
    """
    folder = None if checkpoints is None else checkpoints.parent
    runtime = config.runtime
    if runtime.trace:
        traced = TraceHook(
            *(runtime.trace_events, folder, runtime.stall_timeout_s), shared.traces, shared.inherited
        )
        hooks = [*hooks, traced]

    def emit_event(event: Event) -> None:
        for hook in hooks:
            hook.on_event(event)
        emit(shared.seen(event))

    processes = shared.part.num_processes
    prepared = prepared or PreparedRun(config, graph, model)
    graph = prepared.select_edges(graph)
    if graph.num_loops_left_out:
        named = type(prepared.model).__name__ if prepared.is_custom_module else config.model.kind
        loops = pluralize(graph.num_loops_left_out, "self loop")
        text = f"{graph.name}: {loops} removed, because {named} adds its own self-loop to each vertex"
        emit_event(Notice(kind="info", text=text))
    objective = prepared.objective
    evaluator = Evaluator(config, graph, folder, objective, shared.scores)
    if graph.links is not None:
        # Do not predict: labels are not used, and the performance model does not support this kind of step.
        predict = None
        check_held_out(graph.name, graph.topology, graph.links)
        for line in graph.links.split.warnings:
            emit_event(Notice(kind="warning", text=line))
        for line in graph.links.notes:
            emit_event(Notice(kind="info", text=line))
    else:
        check_objective(objective, evaluator.metric, graph.num_outputs)
        _notify_about_labels(graph, prepared, emit_event)
    if processes == 1 and not prepared.is_custom_module:
        made = architecture(config, graph)
        short = host_shortage(config, graph, made, lambda: prepared.sampler, free_memory())
        if short:
            emit_event(Notice(kind="warning", text=short))
    learner = TrainingState(config, prepared.model)
    unused = find_unused_settings(config, processes, custom_model=prepared.is_custom_module)
    unused += find_settings_without_effect(
        config,
        # Rank 0 writes checkpoints for all ranks.
        has_folder=checkpoints is not None or processes > 1,
        rounds_products=any(getattr(each, "low_precision", False) for each in prepared.model.modules()),
        evaluates_by_layers=computes_by_layers(config, prepared.model),
    )
    for text in unused:
        emit_event(Notice(kind="warning", text=text))
    if config.sampler.preparation:
        emit_event(Notice(kind="info", text=config.sampler.preparation))
    sampler = prepared.sampler
    caches = None if config.data.cache is None else DeviceCaches(config, prepared)
    hooks = hooks if caches is None else [*hooks, caches]
    learner.check_schedule(config.train.num_epochs(sampler.steps_per_epoch()))
    found = find_trainers(config, in_chunks=shared.in_chunks)
    # The CPU trainer uses only torch and hyrt. Other devices load drivers, which may crash.
    watched = [number for number, (_, info) in enumerate(found) if info.kind != "cpu"]
    if watched:
        hooks = [*hooks, CrashContext(watched)]
    expected = None
    if predict is not None and config.balance.predict and not prepared.is_custom_module:
        expected = predict(config, graph, sampler, lambda text: emit_event(Notice(kind="info", text=text)))
    split = first_split(config, [info.name for _, info in found], expected, len(prepared.targets))
    if processes > 1:
        split = split_by_shares(math.ceil(sum(split) / processes), split)
    host_trainers = sum(info.host_cores > 0 for _, info in found)
    return RunComponents(
        config=config,
        graph=graph,
        schema=build_run_schema(graph),
        learner=learner,
        is_user_model=prepared.is_custom_module,
        objective=objective,
        sampler=sampler,
        evaluator=evaluator,
        found=found,
        threads=assign_threads(config, host_trainers, expected),
        split=split,
        expected=expected,
        policy=policy,
        shared=shared,
        caches=caches,
        hooks=hooks,
        emit=emit_event,
        checkpoints=checkpoints,
        should_stop=should_stop,
        on_stall=on_stall,
    )


def _notify_about_labels(graph: Graph, prepared: PreparedRun, notify: Emit) -> None:
    """Warn about labels that are probably a mistake, and about classes without training targets."""
    if odd := label_warning(graph.labels):
        warn_user(f"{graph.name}: {odd}", DataWarning)
    elif untrained := missing_classes_text(graph, prepared.targets):
        notify(Notice(kind="warning", text=untrained))
