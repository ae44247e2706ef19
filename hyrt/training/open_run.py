"""A run that is open: its trainers have the model, its threads have started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch

from hyrt.balance.kept_assignments import restore_assignments
from hyrt.balance.resource_manager import ResourceManager, configured_policy
from hyrt.device.capabilities import TellsGradients
from hyrt.machine.cores import available_cores
from hyrt.machine.workers import Workers
from hyrt.nn.model import torch_threads_for
from hyrt.nn.own_modules.checked_scores import check_scores
from hyrt.nn.own_modules.drawn_numbers import RefusedDraws
from hyrt.nn.torch_threads import torch_threads
from hyrt.observe.events import Balanced
from hyrt.pipeline.load import Loader
from hyrt.pipeline.pipeline import GuardedSteps, Pipeline
from hyrt.pipeline.serial import SerialSteps
from hyrt.pipeline.stages import Stages
from hyrt.pipeline.synchronize import Synchronizer
from hyrt.training.compose import RunParts
from hyrt.training.run_state import RunState
from hyrt.training.setup import evaluation_workers
from hyrt.training.trainers import open_trainers, refuse_global_dropout
from hyrt.training.unfinished.unfinished_steps import UnfinishedSteps

StepSource = Pipeline | GuardedSteps | SerialSteps
"""What runs the steps of a run."""


@dataclass(frozen=True, slots=True)
class OpenRun:
    """What a run holds while it trains."""

    stages: Stages
    """The stages with their trainers and their schedule."""
    synchronizer: Synchronizer
    """Makes the new weights."""
    manager: ResourceManager
    """Moves targets and threads."""
    evaluate_workers: Workers
    """The threads that evaluate."""
    more_scores: set[str]
    """Is given a sentence where a module of the user's returns more scores than the objective needs."""
    unfinished: UnfinishedSteps | None
    """Keeps what is done of steps over a whole graph; None where nothing is kept."""


@contextmanager
def open_run(parts: RunParts, state: RunState) -> Iterator[OpenRun]:
    """Open the devices and start the threads; all of it is closed at the end of the block.

    Raises
    ------
    HyrtError
        As `open_trainers` does.
    """
    config, threads, learner = parts.config, parts.threads, parts.learner
    is_shared = parts.shared.part.num_processes > 1
    with ExitStack() as stack:
        # The caller's generator and torch's thread count are theirs again after the run.
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(torch_threads(torch_threads_for(learner.model, threads.train)))
        if state.torch_generator is None:
            torch.manual_seed(config.seed)
        else:
            torch.set_rng_state(state.torch_generator)
        num_scores = parts.evaluator.objective.num_scores(parts.graph.num_outputs)
        more_scores: set[str] = set()
        hears = more_scores if parts.is_own_model else None
        stack.callback(check_scores(learner.model, num_scores, hears).remove)
        if is_shared:
            refuse_global_dropout(learner.model)
        if parts.is_own_model and len(parts.found) * parts.shared.part.num_processes > 1:
            stack.callback(RefusedDraws(learner.model).remove)
        unfinished = None
        if parts.checkpoints is not None and config.sampler.whole_graph and not is_shared:
            unfinished = UnfinishedSteps(parts, state, parts.checkpoints)
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
                keeper=unfinished,
            )
        )
        hear = parts.shared.hear_gradient
        if hear is not None and len(trainers) == 1 and isinstance(trainers[0].device, TellsGradients):
            trainers[0].device.tell_gradients(hear)
        sample_workers = stack.enter_context(Workers(threads.sample, "hyrt.sample"))
        load_workers = stack.enter_context(Workers(threads.load, "hyrt.load"))
        evaluate_workers = stack.enter_context(evaluation_workers(threads))
        if parts.caches is not None:
            parts.caches.fill(trainers, parts.split, load_workers)
        for hook in parts.hooks:
            sample_workers.watch = load_workers.watch = hook.watch or load_workers.watch
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
        yield OpenRun(stages, synchronizer, managed, evaluate_workers, more_scores, unfinished)


def _managed(parts: RunParts, state: RunState, stages: Stages) -> ResourceManager:
    """The resource manager of a run that is about to start, or to go on from a checkpoint's assignments."""
    runtime, cores = parts.config.runtime, available_cores()
    given = {"sample": runtime.sample_threads, "load": runtime.load_threads, "train": runtime.train_threads}
    if state.balance is not None:
        restore_assignments(state.balance, stages, state.step, cores, given)

    def decided(event: Balanced) -> None:
        state.totals.decisions += 1
        parts.emit(event)

    moves = cores > 1 or len(stages.trainers) > 1
    return ResourceManager(
        parts.policy or configured_policy(parts.config, simulated=bool(stages.simulated), moves=moves),
        stages,
        cores=cores,
        start=parts.threads,
        given=given,
        steps_per_epoch=parts.steps_per_epoch,
        last_step=parts.num_steps - 1,
        emit=decided,
    )


def steps_of(parts: RunParts, run: OpenRun, steps: range) -> StepSource:
    """The steps of an open run, through the pipeline or one stage after the other, as the settings say.

    Steps of the whole graph have nothing to overlap.
    """
    runtime, stages = parts.config.runtime, run.stages
    if not runtime.pipelined:
        return SerialSteps(stages, steps)
    if parts.config.sampler.whole_graph:
        guarded = GuardedSteps(
            stages,
            steps,
            stall_timeout_s=runtime.stall_timeout_s,
            on_stall=parts.on_stall,
            hooks=parts.hooks,
        )
        if run.unfinished is not None:
            run.unfinished.on_move = guarded.moved
        return guarded
    return Pipeline(
        stages,
        steps,
        depth=runtime.depth,
        stall_timeout_s=runtime.stall_timeout_s,
        on_stall=parts.on_stall,
        hooks=parts.hooks,
    )
