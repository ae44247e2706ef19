"""From settings to the parts of a run, in one pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from hyrt_perfmodel.assignment import Threads
from hyrt_perfmodel.policy import Policy

from hyrt.config import Config
from hyrt.config.unused_settings import settings_without_effect, unused_settings
from hyrt.device.names import split_by_shares
from hyrt.errors import DataWarning, warn_user
from hyrt.graph.graph import Graph
from hyrt.graph.labels.label_kind import why_odd
from hyrt.graph.links.link_split import check_held_out
from hyrt.graph.reuse.run_schema import RunSchema, schema_of
from hyrt.inference.evaluate import Evaluator
from hyrt.inference.score_vertices import computes_by_layers
from hyrt.objective import Objective
from hyrt.objective.check_objective import check_objective
from hyrt.observe.events import Emit, Event, Notice
from hyrt.observe.hook import HOST, Hook, Site, call_in
from hyrt.observe.last_calls import LastCalls
from hyrt.observe.trace.traced_run import TracedRun
from hyrt.quantities import counted
from hyrt.sampling.sampler import Sampler
from hyrt.training.device_caches import DeviceCaches
from hyrt.training.given.expected_run import ExpectedRun
from hyrt.training.given.host_shortage import free_memory, why_short
from hyrt.training.given.shared_run import ALONE, SharedRun
from hyrt.training.given.untrained_classes import why_untrained
from hyrt.training.learner import Learner
from hyrt.training.setup import PreparedRun, architecture, assign_threads, first_split
from hyrt.training.trainers import Found, find_trainers

T = TypeVar("T")

Predict = Callable[[Config, Graph, Sampler, Callable[[str], None]], ExpectedRun | None]
"""Predicts a run from its settings, graph and sampler; or gives None, and tells the last argument why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """The parts of one run: all that the training loop is handed, as `compose_run` makes it."""

    config: Config
    graph: Graph
    """`config` and `graph`: all settings, and the graph, opened and normalised."""
    schema: RunSchema
    """What the run fits to the graph besides the weights, for its checkpoints."""
    learner: Learner
    """The model with its optimizer."""
    is_own_model: bool
    """Whether the model is the caller's, not the configured one."""
    objective: Objective
    """What it is trained for."""
    sampler: Sampler
    """Makes the steps and their mini-batches."""
    evaluator: Evaluator
    """Scores the model after an epoch."""
    found: Sequence[Found]
    """The devices that train, not yet open."""
    threads: Threads
    split: Sequence[int]
    """`threads` and `split`: CPU threads of the stages, and units of a step for each trainer, at the start.
    """
    expected: ExpectedRun | None
    """The run's prediction; None where there is none."""
    policy: Policy | None
    """Moves targets and threads between steps; the configured one where it is None."""
    shared: SharedRun
    """This process's part of it."""
    caches: DeviceCaches | None
    """Fills the row caches of the devices, where `data.cache` wants some."""
    hooks: Sequence[Hook]
    """Watch the run, or disturb it."""
    emit: Emit
    """Tells the hooks and the caller what happens."""
    checkpoints: Path | None
    """Folder for checkpoints; None writes none."""
    should_stop: Callable[[], bool]
    """Asked after every step; True checkpoints and ends the run."""
    on_stall: Callable[[str], None]
    """Called with the stacks of all threads when nothing moves any more."""

    @property
    def steps_per_epoch(self) -> int:
        return self.sampler.steps_per_epoch()

    @property
    def epochs(self) -> int:
        return self.config.train.epochs_of(self.steps_per_epoch)

    @property
    def num_steps(self) -> int:
        """Steps of the whole run."""
        return self.epochs * self.steps_per_epoch

    def warm_up(self, step: int) -> float:
        """What the learning rate of a step is multiplied with."""
        return self.config.train.warm_up(step, self.steps_per_epoch)

    def say(self, notice: Notice | None) -> None:
        """Tell of a notice, if there is one."""
        if notice is not None:
            self.emit(notice)

    def warn(self, text: str) -> None:
        """Tell of something that the user should know."""
        self.emit(Notice(kind="warning", text=text))

    def call(self, stage: str, step: int, work: Callable[[], T]) -> T:
        """Do work that belongs to no trainer inside the hooks."""
        return call_in(self.hooks, stage, Site(HOST, step), work)


def compose_run(
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
    shared: SharedRun = ALONE,
    prepared: PreparedRun | None = None,
) -> RunParts:
    """Make the parts of a run over a graph, in one pass.

    Parameters
    ----------
    config, graph, emit, checkpoints, should_stop, on_stall, policy, shared
        The fields of `RunParts` of the same names.
    model
        A torch module over blocks; the configured one by default.
    predict
        Predicts the run, where `balance.predict` wants it and the model is the configured one; None predicts
        nothing.
    hooks
        Watch the run, or disturb it; the settings may add a trace.
    prepared
        The model and the sampler, where something before the run has asked for them; `model` is its module
        then.

    Raises
    ------
    ConfigError, DataError, DeviceUnavailable
        If the settings cannot be followed.
    """
    folder = None if checkpoints is None else checkpoints.parent
    runtime = config.runtime
    if runtime.trace:
        traced = TracedRun(
            *(runtime.trace_events, folder, runtime.stall_timeout_s), shared.traces, shared.inherited
        )
        hooks = [*hooks, traced]

    def tell(event: Event) -> None:
        for hook in hooks:
            hook.hear(event)
        emit(shared.seen(event))

    processes = shared.part.num_processes
    prepared = prepared or PreparedRun(config, graph, model)
    graph = prepared.select_edges(graph)
    if graph.num_loops_left_out:
        named = type(prepared.model).__name__ if prepared.is_own_model else config.model.kind
        loops = counted(graph.num_loops_left_out, "self loop")
        text = f"{graph.name}: {loops} left out, because {named} gives each vertex one of its own"
        tell(Notice(kind="info", text=text))
    objective = prepared.objective
    evaluator = Evaluator(config, graph, folder, objective, shared.scores)
    if graph.links is not None:
        # Labels are not used, and the performance model does not support the work of a step.
        predict = None
        check_held_out(graph.name, graph.topology, graph.links)
        for line in graph.links.notes:
            tell(Notice(kind="info", text=line))
    else:
        check_objective(objective, evaluator.metric, graph.num_outputs)
        _tell_of_labels(graph, prepared, tell)
    if processes == 1 and not prepared.is_own_model:
        made = architecture(config, graph)
        short = why_short(config, graph, made, lambda: prepared.sampler, free_memory())
        if short:
            tell(Notice(kind="warning", text=short))
    learner = Learner(config, prepared.model)
    unused = unused_settings(config, processes, own_model=prepared.is_own_model)
    unused += settings_without_effect(
        config,
        # Rank 0 writes for all.
        has_folder=checkpoints is not None or processes > 1,
        rounds_products=any(getattr(each, "low_precision", False) for each in prepared.model.modules()),
        evaluates_by_layers=computes_by_layers(config, prepared.model),
    )
    for text in unused:
        tell(Notice(kind="warning", text=text))
    if config.sampler.preparation:
        tell(Notice(kind="info", text=config.sampler.preparation))
    sampler = prepared.sampler
    caches = None if config.data.cache is None else DeviceCaches(config, prepared)
    hooks = hooks if caches is None else [*hooks, caches]
    learner.check_schedule(config.train.epochs_of(sampler.steps_per_epoch()))
    found = find_trainers(config, in_chunks=shared.in_chunks)
    # The CPU's own trainer is torch and hyrt; others bring drivers.
    watched = [number for number, (_, info) in enumerate(found) if info.kind != "cpu"]
    if watched:
        hooks = [*hooks, LastCalls(watched)]
    expected = None
    if predict is not None and config.balance.predict and not prepared.is_own_model:
        expected = predict(config, graph, sampler, lambda text: tell(Notice(kind="info", text=text)))
    split = first_split(config, [info.name for _, info in found], expected, len(prepared.targets))
    if processes > 1:
        split = split_by_shares(math.ceil(sum(split) / processes), split)
    host_trainers = sum(info.host_cores > 0 for _, info in found)
    return RunParts(
        config=config,
        graph=graph,
        schema=schema_of(graph),
        learner=learner,
        is_own_model=prepared.is_own_model,
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
        emit=tell,
        checkpoints=checkpoints,
        should_stop=should_stop,
        on_stall=on_stall,
    )


def _tell_of_labels(graph: Graph, prepared: PreparedRun, tell: Emit) -> None:
    """Warn of labels that are probably not what was meant, or of classes that nothing is trained on."""
    if odd := why_odd(graph.labels):
        warn_user(f"{graph.name}: {odd}", DataWarning)
    elif untrained := why_untrained(graph, prepared.targets):
        tell(Notice(kind="warning", text=untrained))
