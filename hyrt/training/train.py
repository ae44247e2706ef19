"""The training run: steps from the pipeline, synchronized, evaluated, checkpointed."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from hyrt_perfmodel.assignment import Threads
from hyrt_perfmodel.policy import Policy

from hyrt.balance.kept_assignments import kept_assignments, restore_assignments
from hyrt.balance.resource_manager import ResourceManager, configured_policy
from hyrt.config import Config, to_yaml
from hyrt.errors import CheckpointError, ConfigError, HyrtError, StageFailure, describe
from hyrt.graph.graph import Graph
from hyrt.inference.evaluate import Evaluator, StopRequested
from hyrt.machine.atomic_write import write_atomically
from hyrt.machine.cores import available_cores
from hyrt.machine.workers import Workers
from hyrt.nn.torch_threads import threads_for, torch_threads
from hyrt.observe.events import (
    Balanced,
    Checkpointed,
    Emit,
    EpochEnded,
    Evaluated,
    Event,
    Notice,
    Predicted,
    RunEnded,
)
from hyrt.observe.hook import HOST, Call, Hook, call_in
from hyrt.observe.trace.traced_run import TracedRun
from hyrt.pipeline.load import Loader
from hyrt.pipeline.pipeline import Pipeline
from hyrt.pipeline.serial import serial_steps
from hyrt.pipeline.shares import StepTimes, StepWork
from hyrt.pipeline.stages import Stages
from hyrt.pipeline.synchronize import StepSummary, Synchronizer
from hyrt.training.checkpoint import Checkpoint, save_checkpoint
from hyrt.training.expected_run import ExpectedRun, expected_figures
from hyrt.training.run_started import named_split, run_started
from hyrt.training.setup import (
    assign_threads,
    build_model,
    build_optimizer,
    build_sampler,
    evaluation_workers,
    find_trainers,
    first_split,
    open_trainers,
)
from hyrt.training.step_group import StepGroups
from hyrt.training.totals import Totals


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a run leaves.

    Parameters
    ----------
    status
        `finished`, `early-stopped` or `interrupted`.
    model
        The module with the weights of the best evaluation (of the last step where there was none).
    metrics
        Per split the metrics of that evaluation.
    summary
        What summary.json holds.
    """

    status: str
    model: torch.nn.Module
    metrics: dict[str, dict[str, float]]
    summary: dict[str, Any]


# Settings, graph, and who hears why there is no prediction.
Predict = Callable[[Config, Graph, Callable[[str], None]], ExpectedRun | None]

T = TypeVar("T")


@dataclass(slots=True)
class _Best:
    """The evaluation that chooses the weights a run ends with."""

    value: float = float("-inf")
    epoch: int = 0
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    weights: dict[str, torch.Tensor] | None = None
    evaluations_since: int = 0


@dataclass(frozen=True, slots=True)
class _Running:
    """The parts of a run whose steps are on their way."""

    works: Iterator[StepWork]
    pipeline: Pipeline | None
    stages: Stages
    synchronizer: Synchronizer
    manager: ResourceManager
    groups: StepGroups
    evaluate_workers: Workers

    def add(self, work: StepWork, summary: StepSummary, times: StepTimes, lr: float) -> None:
        """Tell of a synchronized step, and let the resource manager see it."""
        self.groups.split = named_split(self.stages, work.step)
        self.groups.threads = self.stages.schedule.of(work.step).threads.by_stage
        self.groups.add(work, summary, times, lr)
        self.manager.observe(work, times)


class Training:
    """One run over a graph.

    Parameters
    ----------
    config
        All settings.
    graph
        Opened and normalised.
    model
        A torch module over blocks; the configured one by default.
    emit
        Hears what happens.
    checkpoints
        Folder for checkpoints and temporary files; None writes none.
    should_stop
        Asked after every step; True checkpoints and ends the run.
    on_stall
        Hears all threads' stacks when nothing moves any more.
    policy
        Moves targets and threads between steps; the configured one by default.
    predict
        Predicts the run, or gives None and tells its third argument why; asked where `balance.predict` wants a
        prediction. None predicts nothing.
    hooks
        Watch the run, or disturb it.
    """

    def __init__(
        self,
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
    ) -> None:
        self._config = config
        self._graph = graph
        self._own_model = model is None
        self._model = build_model(config, graph) if model is None else model
        self._hooks = list(hooks)
        if config.runtime.trace:
            folder = None if checkpoints is None else checkpoints.parent
            self._hooks.append(TracedRun(config.runtime.trace_events, folder, config.runtime.stall_timeout_s))
        self._listener = emit
        self._checkpoints = checkpoints
        self._should_stop = should_stop
        self._on_stall = on_stall
        self._policy = policy
        self._predict = predict
        self._targets = graph.split("train", config.data.split)
        if config.sampler.preparation:
            self._emit(Notice(kind="info", text=config.sampler.preparation))
        self._sampler = build_sampler(config, graph, self._targets)
        self._parameters = [p for p in self._model.parameters() if p.requires_grad]
        if not self._parameters:
            raise ConfigError("the model has no parameters to train")
        self._optimizer, self._schedule = build_optimizer(config, self._parameters)
        self._evaluator = Evaluator(config, graph, checkpoints.parent if checkpoints else None)
        self._best = _Best()
        self._step = 0
        self._epoch_s = 0.0
        self._totals = Totals()
        self._first_step = 0
        # Of the epoch that is not complete: loss, normalizer and edges so far. And the loss of one whose steps are
        # done, but not its evaluation.
        self._epoch_sums = (0.0, 0.0, 0)
        self._unevaluated: float | None = None
        self._generator: torch.Tensor | None = None
        # Of a checkpoint; and of this run, for the next one.
        self._kept: dict[str, Any] | None = None
        self._keep: Callable[[], dict[str, Any] | None] = lambda: None
        self._expected: ExpectedRun | None = None
        self._simulated = False
        self._ended_with: dict[str, Any] = {}

    def resume(self, checkpoint: Checkpoint) -> None:
        """Continue after a checkpoint's step, bit-equal to a run that was not interrupted.

        Raises
        ------
        CheckpointError
            If it is of a model with other parameters.
        """
        state = checkpoint.state
        try:
            self._model.load_state_dict(state["model"])
            self._optimizer.load_state_dict(state["optimizer"])
            if self._schedule is not None:
                self._schedule.load_state_dict(state["schedule"])
            best = state["best"]
            self._best = _Best(
                value=best["value"],
                epoch=best["epoch"],
                metrics=best["metrics"],
                weights=best["weights"],
                evaluations_since=best["evaluations_since"],
            )
            self._step = self._first_step = state["step"]
            self._epoch_s = state["epoch_s"]
            self._epoch_sums = state["epoch_sums"]
            self._unevaluated = state["unevaluated"]
            self._generator = state["torch_generator"]
            # Checkpoints of earlier versions have none.
            self._kept = state.get("balance")
            self._totals = Totals.restored(state.get("totals"))
        except (KeyError, RuntimeError, ValueError, TypeError) as error:
            raise CheckpointError(f"{checkpoint.path}: does not match this run: {error}") from error

    def run(self) -> TrainResult:
        """Train to the end, to an early stop, or until asked to stop."""
        try:
            status = self._train()
        except BaseException as error:
            self.end_failed(error)
            raise
        return self._finish(status)

    def end_failed(self, error: BaseException) -> None:
        """Let the hooks know that the run has failed; where one of them fails too, that is a note to the error."""
        for hook in self._hooks:
            hook.end_failed(error)

    def _emit(self, event: Event) -> None:
        for hook in self._hooks:
            hook.hear(event)
        self._listener(event)

    def _train(self) -> str:
        """Run the steps; returns the run's status."""
        config = self._config
        found = find_trainers(config)
        if self._predict is not None and config.balance.predict and self._own_model:
            self._expected = self._predict(
                config, self._graph, lambda text: self._emit(Notice(kind="info", text=text))
            )
        threads = assign_threads(config, sum(info.host_cores > 0 for _, info in found), self._expected)
        per_epoch = self._sampler.steps_per_epoch()
        last = config.train.epochs * per_epoch
        with ExitStack() as stack:
            # The caller's generator and torch's thread count are theirs again after the run.
            stack.enter_context(torch.random.fork_rng(devices=[]))
            stack.enter_context(torch_threads(threads_for(self._model, threads.train)))
            if self._generator is None:
                torch.manual_seed(config.seed)
            else:
                torch.set_rng_state(self._generator)
            trainers = stack.enter_context(
                open_trainers(config, found, self._graph, self._model, threads, self._warn)
            )
            sample_workers = stack.enter_context(Workers(threads.sample, "hyrt.sample"))
            load_workers = stack.enter_context(Workers(threads.load, "hyrt.load"))
            for hook in self._hooks:
                sample_workers.watch = load_workers.watch = hook.watch or load_workers.watch
            evaluate_workers = stack.enter_context(evaluation_workers(threads))
            stages = Stages(
                self._sampler,
                Loader(self._graph.features),
                trainers,
                first_split(config, [info.name for _, info in found], self._expected),
                self._parameters,
                sample_workers,
                load_workers,
                continue_on_loss=config.runtime.on_device_loss == "continue",
                notify=self._warn,
                train_threads=threads.train,
                hooks=self._hooks,
            )
            manager = self._managed(stages, threads, per_epoch, last)
            synchronizer = Synchronizer(self._parameters, self._optimizer, trainers, config.seed)
            self._simulated = any(trainer.device.info.simulated for trainer in trainers)
            devices = [trainer.device for trainer in trainers]
            warnings = [hook.begin(devices, range(self._step, last)) for hook in self._hooks]
            self._announce(stages, per_epoch)
            for warning in warnings:
                self._say(warning)
            status = "finished"
            if self._unevaluated is not None and self._end_epoch(evaluate_workers, lambda: None):
                # Else a run killed after this would evaluate, and record, once more.
                self._save()
            if self._should_stop():
                status = "interrupted"
            elif self._is_out_of_patience() and self._step < last:
                status = "early-stopped"
            steps = range(self._step, last if status == "finished" else self._step)
            pipeline = None
            if config.runtime.pipelined:
                pipeline = stack.enter_context(
                    Pipeline(
                        stages,
                        steps,
                        depth=config.runtime.depth,
                        stall_timeout_s=config.runtime.stall_timeout_s,
                        on_stall=self._on_stall,
                        hooks=self._hooks,
                    )
                )
            works = serial_steps(stages, steps) if pipeline is None else pipeline.steps()
            groups = StepGroups(
                self._emit,
                per_epoch,
                named_split(stages, self._step),
                stages.schedule.of(self._step).threads.by_stage,
                (lambda: None) if pipeline is None else pipeline.queues,
                self._evaluator.objective,
            )
            groups.epoch_sums = self._epoch_sums
            run = _Running(works, pipeline, stages, synchronizer, manager, groups, evaluate_workers)
            status = self._do_steps(run, last) or status
        # Closing a lost device may have added to what is said of it.
        self._ended_with = {
            "split": named_split(stages, self._step),
            "threads": stages.schedule.of(self._step).threads.by_stage,
            "balance": {"policy": manager.policy_name, "decisions": self._totals.decisions},
            **self._totals.means(),
            "devices_lost": {
                t.name: "; ".join([describe(t.lost), *getattr(t.lost, "__notes__", ())])
                for t in trainers
                if t.lost is not None
            },
        }
        return status

    def _do_steps(self, run: _Running, last: int) -> str | None:
        """Synchronize, count, evaluate and checkpoint step after step; the run's status, if it ends before the last."""
        every_steps = self._config.checkpoint.every_steps
        per_epoch = self._sampler.steps_per_epoch()
        run.groups.begin()
        before = time.perf_counter()
        for work in run.works:
            summary = self._synchronize(run.synchronizer, work, run.pipeline)
            seconds = time.perf_counter() - before
            self._step += 1
            times = work.times(seconds)
            self._epoch_s += seconds
            self._totals.add(times)
            run.add(work, summary, times, self._optimizer.param_groups[0]["lr"])
            if self._step % per_epoch == 0:
                run.groups.flush()
                self._close_epoch(run.groups)
                self._end_epoch(
                    run.evaluate_workers, run.pipeline.raise_failure if run.pipeline else lambda: None
                )
                if self._is_out_of_patience() and self._step < last:
                    return "early-stopped"
                run.manager.pause(self._step)
                run.groups.begin()
            elif every_steps and self._step % every_steps == 0:
                self._save_within_epoch(run.groups)
                run.groups.begin()
            if self._should_stop():
                self._save_within_epoch(run.groups)
                return "interrupted"
            before = time.perf_counter()
        return None

    def _save_within_epoch(self, groups: StepGroups) -> None:
        groups.flush()
        self._epoch_sums = groups.epoch_sums
        self._save()

    def _do(self, name: str, step: int, work: Callable[[], T]) -> T:
        return call_in(self._hooks, Call(name, HOST, step), work)

    def _say(self, notice: Notice | None) -> None:
        if notice is not None:
            self._emit(notice)

    def _warn(self, text: str) -> None:
        self._emit(Notice(kind="warning", text=text))

    def _is_out_of_patience(self) -> bool:
        patience = self._config.train.patience
        return bool(patience and self._best.evaluations_since >= patience)

    def _close_epoch(self, groups: StepGroups) -> None:
        epoch = self._step // self._sampler.steps_per_epoch()
        self._unevaluated, mteps = groups.end_epoch(self._epoch_s)
        self._epoch_sums = groups.epoch_sums
        self._emit(
            EpochEnded(
                epoch=epoch,
                step=self._step,
                seconds=self._epoch_s,
                loss=self._unevaluated,
                mteps=mteps,
                predicted_s=None if self._expected is None else self._expected.epoch_s,
            )
        )
        self._epoch_s = 0.0

    def _synchronize(
        self, synchronizer: Synchronizer, work: StepWork, pipeline: Pipeline | None
    ) -> StepSummary:
        started = time.perf_counter()
        doing = f"synchronize at step {work.step}"
        guarded = nullcontext() if pipeline is None else pipeline.guarded(doing)
        try:
            with guarded:
                summary = self._do("synchronize", work.step, lambda: synchronizer.step(work))
        except (HyrtError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise StageFailure(f"error in {doing}: {describe(error)}") from error
        work.synchronize_s = time.perf_counter() - started
        return summary

    def _end_epoch(self, workers: Workers, check: Callable[[], None]) -> bool:
        """Evaluate and checkpoint after an epoch's steps; when asked to stop, leave that for a resumed run.

        `check` is called now and then and may raise. False when it was left.
        """
        config = self._config
        epoch = self._step // self._sampler.steps_per_epoch()
        final = epoch >= config.train.epochs
        loss = self._unevaluated
        assert loss is not None
        if final or (config.evaluate.every and epoch % config.evaluate.every == 0):
            try:
                self._evaluate(epoch, workers, check)
            except StopRequested:
                return False
        self._unevaluated = None
        if self._schedule is not None:
            self._step_schedule(self._schedule, epoch, loss)
        every = config.checkpoint.every_epochs
        if final or self._is_out_of_patience() or (every and epoch % every == 0):
            self._save()
        return True

    def _step_schedule(self, schedule: torch.optim.lr_scheduler.LRScheduler, epoch: int, loss: float) -> None:
        try:
            if isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau):
                schedule.step(loss)
            else:
                schedule.step()
        except Exception as error:
            train = self._config.train
            raise StageFailure(
                f"train.schedule={train.schedule!r} with {train.schedule_options} failed after epoch {epoch}: "
                f"{describe(error)}"
            ) from error

    def _evaluate(self, epoch: int, workers: Workers, check: Callable[[], None]) -> None:
        started = time.perf_counter()

        def should_stop() -> bool:
            check()
            return self._should_stop()

        metrics = self._do(
            "evaluate", self._step, lambda: self._evaluator.evaluate(self._model, workers, should_stop)
        )
        value = self._evaluator.worth(metrics, epoch)
        is_best = value > self._best.value
        if is_best:
            self._best = _Best(value, epoch, metrics, copy.deepcopy(self._model.state_dict()))
        else:
            self._best.evaluations_since += 1
        self._emit(
            Evaluated(
                epoch=epoch,
                step=self._step,
                metrics=metrics,
                chosen_by=self._evaluator.metric,
                is_best=is_best,
                seconds=time.perf_counter() - started,
            )
        )

    def _save(self) -> None:
        if self._checkpoints is None:
            return
        best = self._best
        state = {
            "step": self._step,
            "epoch_s": self._epoch_s,
            "epoch_sums": self._epoch_sums,
            "totals": self._totals.state(),
            "unevaluated": self._unevaluated,
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "schedule": self._schedule.state_dict() if self._schedule is not None else None,
            "best": {
                "value": best.value,
                "epoch": best.epoch,
                "metrics": best.metrics,
                "weights": best.weights,
                "evaluations_since": best.evaluations_since,
            },
            "torch_generator": torch.get_rng_state(),
            "balance": self._keep(),
            "config": to_yaml(self._config),
        }
        folder, step, keep = self._checkpoints, self._step, self._config.checkpoint.keep

        def before(operation: str) -> None:
            for hook in self._hooks:
                hook.before_write(step, operation)

        write = partial(write_atomically, before=before)
        path = self._do(
            "checkpoint", step, lambda: save_checkpoint(folder, step, state, keep=keep, write=write)
        )
        self._emit(Checkpointed(step=self._step, path=path))

    def _finish(self, status: str) -> TrainResult:
        best = self._best
        if best.weights is not None and status != "interrupted":
            self._model.load_state_dict(best.weights)
        per_epoch = self._sampler.steps_per_epoch()
        summary: dict[str, Any] = {
            "status": status,
            "devices": self._config.devices,
            "simulated": self._simulated,
            **self._ended_with,
            "epochs": self._step // per_epoch,
            "steps": self._step,
            "best_epoch": best.epoch,
            "chosen_by": self._evaluator.metric,
            "metrics": best.metrics,
            "trained_s": self._totals.seconds,
            "epoch_s": self._totals.seconds / self._totals.steps * per_epoch if self._totals.steps else 0.0,
            "predicted": None if self._expected is None else expected_figures(self._expected),
            "peak_memory_bytes": self._totals.see_memory(),
        }
        for hook in self._hooks:
            self._say(hook.end(summary))
        self._emit(RunEnded(status=status, summary=summary))
        return TrainResult(status, self._model, best.metrics, summary)

    def _managed(self, stages: Stages, start: Threads, per_epoch: int, last: int) -> ResourceManager:
        """The resource manager of a run that is about to start, or to go on from a checkpoint's assignments."""
        runtime, cores = self._config.runtime, available_cores()
        given = {
            "sample": runtime.sample_threads,
            "load": runtime.load_threads,
            "train": runtime.train_threads,
        }
        if self._kept is not None:
            restore_assignments(self._kept, stages, self._step, cores, given)
        self._keep = partial(kept_assignments, stages, cores)
        return ResourceManager(
            self._policy or configured_policy(self._config, simulated=self._simulated),
            stages,
            cores=cores,
            start=start,
            given=given,
            steps_per_epoch=per_epoch,
            last_step=last - 1,
            emit=self._decided,
        )

    def _decided(self, event: Balanced) -> None:
        self._totals.decisions += 1
        self._emit(event)

    def _announce(self, stages: Stages, per_epoch: int) -> None:
        self._emit(
            run_started(
                self._config,
                self._graph,
                stages,
                step=self._step,
                model=None if self._own_model else type(self._model).__name__,
                num_targets=len(self._targets),
                steps_per_epoch=per_epoch,
            )
        )
        if self._expected is not None:
            self._emit(Predicted(step=self._step, **expected_figures(self._expected)))
        if self._evaluator.warning is not None:
            self._emit(Notice(kind="warning", text=self._evaluator.warning))
        if self._first_step:
            self._emit(Notice(kind="info", text=f"continuing after step {self._first_step}"))
