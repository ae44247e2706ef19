"""Opening of a run, new or from a checkpoint, and the event of its start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch

from hyrt.balance.resource_manager import ResourceManager, configured_policy, restore_assignments
from hyrt.device.capabilities import StreamsGradients
from hyrt.formatting import pluralize
from hyrt.nn.model import num_torch_threads
from hyrt.nn.model_errors import RngGuard, add_output_check
from hyrt.nn.torch_threads import torch_threads
from hyrt.pipeline.load import Loader
from hyrt.pipeline.pipeline import GuardedSteps, Pipeline, SerialSteps
from hyrt.pipeline.stages import Stages
from hyrt.pipeline.synchronize import Synchronizer
from hyrt.runtime.hardware import available_cores
from hyrt.runtime.workers import Workers
from hyrt.sampling.sampler_settings import SAMPLERS
from hyrt.telemetry.events import AssignmentChanged, RunStarted
from hyrt.training.build_run import RunComponents
from hyrt.training.run_state import RunState, RunStepCheckpointer
from hyrt.training.setup import architecture, evaluation_workers
from hyrt.training.trainers import open_trainers, refuse_global_dropout


def run_started(parts: RunComponents, stages: Stages, step: int) -> RunStarted:
    """Describe data, model, devices and threads in one line each; `step` is the first step to run."""
    config, graph = parts.config, parts.graph
    links = graph.links
    num_targets = len(graph.split("train", config.data.split)) if links is None else len(links.split.train)
    known = f"{graph.vertices.label_description} · {pluralize(num_targets, 'target')}"
    unit = config.sampler.unit
    if links is not None:
        unit = unit if config.sampler.is_full_graph else "link"
        held_out = sum(len(part.links) for part in links.split.held_out.values())
        known = f"{pluralize(num_targets, 'link')} to train on, {held_out:,} held out"
    if parts.is_user_model:
        model = type(parts.learner.model).__name__
    else:
        a = architecture(config, graph)
        widths = "-".join(str(w) for w in (a.in_features, *[a.hidden] * (a.layers - 1), a.num_classes))
        model = f"{config.model.kind} {widths}"
    with SAMPLERS.wrap_errors(config.sampler.kind, "describe"):
        batches = config.sampler.describe(config.model.layers, min(config.data.batch_size, num_targets))
    named = parts.objective.name
    objective = "" if named == "classification" else f" · {named}"
    assignment = stages.schedule.of(step)
    threads = assignment.threads
    devices = " · ".join(
        f"{trainer.name} {n} {unit}{'s' * (n != 1)}"
        f"{' (simulated)' if trainer.device.info.simulated else ''}"
        f"{' (samples its own)' if trainer.hops is not None else ''}"
        for trainer, n in zip(stages.trainers, assignment.split, strict=True)
    )
    types, rows = "", f" · {pluralize(graph.num_features, 'feature')}"
    if graph.types is not None:
        types = f" of {pluralize(len(graph.types.vertex_types), 'type')}"
        rows = f" of {pluralize(len(graph.types.relations), 'relation')}"
    return RunStarted(
        data=f"{graph.name}  {pluralize(graph.num_vertices, 'vertex', 'vertices')}{types} · "
        f"{_edges(graph.num_edges)}{rows} · {known}",
        model=f"{model}{objective} · {batches} · {config.train.optimizer} {config.train.lr:g} · "
        f"{config.train.precision}",
        devices=f"{devices} · threads sample {threads.sample}, load {threads.load}, train {threads.train}",
        epochs=parts.epochs,
        steps_per_epoch=parts.steps_per_epoch,
        first_step=step,
        simulated=stages.simulated,
    )


def _edges(count: int) -> str:
    return f"{count / 1e6:.3g} M edges" if count >= 1e6 else pluralize(count, "edge")


StepSource = Pipeline | GuardedSteps | SerialSteps
"""Object that executes the steps of a run."""


@dataclass(frozen=True, slots=True)
class OpenRun:
    """Resources of a run that are open during training."""

    stages: Stages
    synchronizer: Synchronizer
    manager: ResourceManager
    evaluate_workers: Workers
    more_scores: set[str]
    """Set that receives a message if a user-defined module returns more scores than the objective needs."""
    step_checkpointer: RunStepCheckpointer | None
    """Step checkpointer for full-graph steps; None if steps are not saved."""


@contextmanager
def open_run(parts: RunComponents, state: RunState) -> Iterator[OpenRun]:
    """Open the devices and start the threads for the duration of the block.

    Raises HyrtError as `open_trainers` does.
    """
    config, threads, learner = parts.config, parts.threads, parts.learner
    is_shared = parts.shared.part.num_processes > 1
    with ExitStack() as stack:
        # Restore the caller's random generator and torch thread count after the run.
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(torch_threads(num_torch_threads(learner.model, threads.train)))
        if state.torch_generator is None:
            torch.manual_seed(config.seed)
        else:
            torch.set_rng_state(state.torch_generator)
        num_scores = parts.evaluator.objective.num_scores(parts.graph.num_outputs)
        more_scores: set[str] = set()
        hears = more_scores if parts.is_user_model else None
        stack.callback(add_output_check(learner.model, num_scores, hears).remove)
        if is_shared:
            refuse_global_dropout(learner.model)
        if parts.is_user_model and len(parts.found) * parts.shared.part.num_processes > 1:
            stack.callback(RngGuard(learner.model).remove)
        step_checkpointer = None
        if parts.checkpoints is not None and config.sampler.is_full_graph and not is_shared:
            step_checkpointer = RunStepCheckpointer(parts, state, parts.checkpoints)
        trainers = stack.enter_context(
            open_trainers(
                config,
                parts.found,
                parts.graph,
                learner.model,
                parts.objective,
                threads,
                parts.warn,
                None if parts.checkpoints is None else parts.checkpoints.parent,
                is_shared=is_shared,
                keeper=step_checkpointer,
            )
        )
        on_gradient = parts.shared.on_gradient
        if (
            on_gradient is not None
            and len(trainers) == 1
            and isinstance(trainers[0].device, StreamsGradients)
        ):
            trainers[0].device.register_gradient_hook(on_gradient)
        sample_workers = stack.enter_context(Workers(threads.sample, "hyrt.sample"))
        load_workers = stack.enter_context(Workers(threads.load, "hyrt.load"))
        evaluate_workers = stack.enter_context(evaluation_workers(threads))
        if parts.caches is not None:
            parts.caches.fill(trainers, parts.split, load_workers)
        for hook in parts.hooks:
            sample_workers.observer = load_workers.observer = hook.worker_observer or load_workers.observer
        stages = Stages(
            parts.sampler,
            Loader(parts.graph.features),
            trainers,
            parts.split,
            learner.parameters,
            sample_workers,
            load_workers,
            counts=parts.objective.counts,
            continue_on_loss=config.runtime.on_device_loss == "continue",
            notify=parts.warn,
            train_threads=threads.train,
            hooks=parts.hooks,
            part=parts.shared.part,
        )
        synchronizer = Synchronizer(
            learner.parameters,
            learner.optimizer,
            trainers,
            config.seed,
            parts.shared.reduction,
            parts.shared.pass_on,
            clip_norm=config.train.clip_norm,
            warm_up=parts.warm_up,
            tables=learner.tables,
        )
        managed = _managed(parts, state, stages)
        yield OpenRun(stages, synchronizer, managed, evaluate_workers, more_scores, step_checkpointer)


def _managed(parts: RunComponents, state: RunState, stages: Stages) -> ResourceManager:
    """Create the resource manager of a run, with the checkpoint's assignments if the run is resumed."""
    runtime, cores = parts.config.runtime, available_cores()
    fixed_threads = {
        "sample": runtime.sample_threads,
        "load": runtime.load_threads,
        "train": runtime.train_threads,
    }
    if state.balance is not None:
        restore_assignments(state.balance, stages, state.step, cores, fixed_threads)

    def decided(event: AssignmentChanged) -> None:
        state.totals.decisions += 1
        parts.emit(event)

    moves = cores > 1 or len(stages.trainers) > 1
    return ResourceManager(
        parts.policy or configured_policy(parts.config, simulated=bool(stages.simulated), moves=moves),
        stages,
        cores=cores,
        start=parts.threads,
        fixed_threads=fixed_threads,
        steps_per_epoch=parts.steps_per_epoch,
        last_step=parts.num_steps - 1,
        emit=decided,
    )


def steps_of(parts: RunComponents, run: OpenRun, steps: range) -> StepSource:
    """Return the executor of an open run's steps, pipelined or serial as configured.

    Full-graph steps always run serially, because there is no work to overlap.
    """
    runtime, stages = parts.config.runtime, run.stages
    if not runtime.pipelined:
        return SerialSteps(stages, steps)
    if parts.config.sampler.is_full_graph:
        guarded = GuardedSteps(
            stages,
            steps,
            stall_timeout_s=runtime.stall_timeout_s,
            on_stall=parts.on_stall,
            hooks=parts.hooks,
        )
        if run.step_checkpointer is not None:
            run.step_checkpointer.on_move = guarded.moved
        return guarded
    return Pipeline(
        stages,
        steps,
        depth=runtime.max_in_flight_steps,
        stall_timeout_s=runtime.stall_timeout_s,
        on_stall=parts.on_stall,
        hooks=parts.hooks,
    )
