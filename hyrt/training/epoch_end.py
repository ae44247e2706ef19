"""Metrics of windows of steps, and the evaluation and checkpoint at the end of an epoch."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import torch
from hyrt_perfmodel.policy import STAGES, Assignment
from numpy.typing import NDArray

from hyrt.balance.resource_manager import assignment_state
from hyrt.config import to_yaml
from hyrt.device.capabilities import ScoresVertices
from hyrt.inference.evaluate import EvaluationStoppedError
from hyrt.objective.objective import Objective, sum_counts
from hyrt.pipeline.synchronize import StepSummary
from hyrt.pipeline.work_items import StepTimes, StepWork
from hyrt.runtime.files import write_atomically
from hyrt.runtime.hardware import available_cores
from hyrt.runtime.stage_threads import QueueSnapshot
from hyrt.sampling.block import Ids
from hyrt.telemetry.events import CheckpointWritten, Emit, EvaluationFinished, StepMetrics, steps_per_window
from hyrt.training.build_run import RunComponents
from hyrt.training.checkpoint import save_checkpoint
from hyrt.training.open_run import OpenRun
from hyrt.training.run_state import Best, RunState


class MetricsWindow:
    """Accumulator of step metrics that emits a `StepMetrics` event about ten times per epoch.

    Windows depend only on the length of an epoch, so that identical runs write identical lines. `queues`
    returns the channel statistics, or None without channels, and is called once per window. `objective`
    computes metrics from counts. `cache_hits` returns the hit rate of each trainer with a feature cache.
    """

    def __init__(
        self,
        emit: Emit,
        steps_per_epoch: int,
        trainers: Sequence[str],
        queues: Callable[[], QueueSnapshot | None],
        objective: Objective,
        cache_hits: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._emit = emit
        self._objective = objective
        self._per_epoch = steps_per_epoch
        self._size = steps_per_window(steps_per_epoch)
        self._trainers = trainers
        self._process = psutil.Process()
        self._read_queues = queues
        self._cache_hits = cache_hits
        self._queues_before: QueueSnapshot | None = None
        self._added: list[tuple[StepSummary, StepTimes]] = []

    def add(
        self, work: StepWork, summary: StepSummary, times: StepTimes, assignment: Assignment, lr: float
    ) -> None:
        self._added.append((summary, times))
        self._newest = work.step + 1, assignment, lr
        self._chunks = {self._trainers[i]: chunks.figures() for i, chunks in work.chunks().items()}
        if (work.step + 1) % self._per_epoch % self._size == 0:
            self.flush()

    def flush(self) -> None:
        """Emit the metrics of the steps since the last event, if any."""
        if not self._added:
            return
        count = len(self._added)
        summaries, times = zip(*self._added, strict=True)
        step, assignment, lr = self._newest
        seconds = sum(each.iteration_s for each in times)
        stage_s = {stage: sum(each.stage_s[stage] for each in times) / count for stage in STAGES}
        propagate_s = zip(*(each.trainers_s["propagate"] for each in times), strict=True)
        normalizer = sum(each.normalizer for each in summaries)
        loss_sum = sum(each.loss * each.normalizer for each in summaries)
        queues = self._read_queues()
        blocked, queued, depth = self._since_last(queues, count)
        self._emit(
            StepMetrics(
                epoch=(step - 1) // self._per_epoch + 1,
                step=step,
                steps_done=(step - 1) % self._per_epoch + 1,
                steps_per_epoch=self._per_epoch,
                loss=loss_sum / normalizer if normalizer else 0.0,
                losses=tuple(each.loss for each in summaries),
                training_metrics=self._objective.training_metrics(
                    sum_counts(each.counts for each in summaries)
                ),
                mteps=sum(each.num_edges for each in summaries) / seconds / 1e6 if seconds else 0.0,
                step_s=seconds / count,
                stage_s=stage_s,
                busy_s={
                    name: sum(each) / count for name, each in zip(self._trainers, propagate_s, strict=True)
                },
                blocked_s=blocked,
                queued=queued,
                queue_depth=depth,
                bottleneck=max(STAGES[:-1], key=lambda stage: stage_s[stage]),
                split=dict(zip(self._trainers, assignment.split, strict=True)),
                threads=assignment.threads.by_name(),
                lr=lr,
                memory_bytes=self._process.memory_info().rss,
                chunks=self._chunks,
                cache_hits=dict(self._cache_hits()),
            )
        )
        self._queues_before = queues
        self._added.clear()

    def begin(self) -> None:
        """Start, or resume after a pause: ignore the channel statistics before this call."""
        self._queues_before = self._read_queues()

    def _since_last(
        self, now: QueueSnapshot | None, count: int
    ) -> tuple[dict[str, float], dict[str, float], Mapping[str, int]]:
        """Return blocked times per step, mean channel contents since the last call, and capacities."""
        before = self._queues_before
        if now is None or before is None:
            return {}, {}, {}
        blocked = {end: (seconds - before.blocked_s[end]) / count for end, seconds in now.blocked_s.items()}
        return blocked, now.mean_items_since(before), now.capacity


class EpochEnd:
    """Evaluation, selection of the best weights, and checkpoints at the end of an epoch."""

    def __init__(self, parts: RunComponents, state: RunState, run: OpenRun) -> None:
        self._parts = parts
        self._state = state
        self._run = run
        self._saved = time.perf_counter()
        self._has_warned = False
        if run.step_checkpointer is not None:
            run.step_checkpointer.save_whole = self.save_once

    @property
    def is_out_of_patience(self) -> bool:
        """Whether `train.patience` evaluations in a row have brought no improvement."""
        patience = self._parts.config.train.patience
        return bool(patience and self._state.best.evaluations_since >= patience)

    def finish(self, check: Callable[[], None]) -> bool:
        """Evaluate and checkpoint after an epoch, as configured; return False if a stop interrupts this.

        A resumed run then repeats all of this. `check` is called from time to time, and may raise an
        exception.
        """
        config, state = self._parts.config, self._state
        state.checkpoint = None
        epoch, loss = state.step // self._parts.steps_per_epoch, state.unevaluated
        assert loss is not None
        is_last, whole = epoch >= self._parts.epochs, config.sampler.is_full_graph
        if is_last or config.evaluate.is_due(epoch, self._parts.epochs, full_graph=whole):
            try:
                self._evaluate(epoch, check)
            except EvaluationStoppedError:
                return False
        state.unevaluated = None
        self._parts.learner.end_epoch(epoch, loss)
        since_s = time.perf_counter() - self._saved
        is_due = config.checkpoint.is_due_at_step(state.step)
        is_due = is_due or config.checkpoint.is_due_at_epoch(epoch, since_s, full_graph=whole)
        if is_last or self.is_out_of_patience or is_due:
            self.save()
        return True

    def _evaluate(self, epoch: int, check: Callable[[], None]) -> None:
        parts, state = self._parts, self._state
        started = time.perf_counter()

        def should_stop() -> bool:
            check()
            return parts.should_stop()

        model, evaluator = parts.learner.model, parts.evaluator
        metrics = parts.call(
            "evaluate",
            state.step,
            lambda: evaluator.evaluate(
                model, self._run.evaluate_workers, should_stop, self._scores_on_device
            ),
        )
        value = evaluator.ranking_value(metrics, epoch)
        # The first evaluation is always the best so far, even if its metric is not a number.
        is_best = value > state.best.value or state.best.weights is None
        if evaluator.not_finite is not None and not self._has_warned:
            self._has_warned = True
            parts.warn(f"evaluation after epoch {epoch}, step {state.step}: {evaluator.not_finite}")
        if is_best:
            state.best = Best(value, epoch, metrics, copy.deepcopy(model.state_dict()))
        else:
            state.best.evaluations_since += 1
        counts = evaluator.confusion if is_best else None
        parts.emit(
            EvaluationFinished(
                epoch=epoch,
                step=state.step,
                metrics=metrics,
                chosen_by=evaluator.metric,
                is_best=is_best,
                seconds=time.perf_counter() - started,
                confusion=None if counts is None else counts.tolist(),
            )
        )

    def _scores_on_device(self, vertices: Ids) -> NDArray[np.float32] | None:
        """Return scores from a device that has the full graph; None if the host computes the scores."""
        trainers = self._run.stages.trainers
        if not self._parts.config.sampler.is_full_graph or len(trainers) != 1:
            return None
        trainer, device = trainers[0], trainers[0].device
        if trainer.lost is not None or not isinstance(device, ScoresVertices):
            return None
        with trainer.transfer_lock:
            # Load this step's weights here: the trainer loads them only when the next step is requested.
            device.update(self._parts.learner.parameters)
            scores = device.scores(vertices)
        if scores is not None:
            self._warn_of_unused_memory(trainer.name)
        return scores

    def _warn_of_unused_memory(self, device: str) -> None:
        """Warn once if the memory for evaluation is limited, but a device evaluates in its own memory."""
        evaluate = self._parts.config.evaluate
        if self._has_warned or evaluate.memory_gib == type(evaluate).model_fields["memory_gib"].default:
            return
        self._has_warned = True
        self._parts.warn(
            f"evaluate.memory_gib={evaluate.memory_gib:g} has no effect, because with --full-graph "
            f"{device} evaluates in the memory of its training steps: set fullgraph.host_memory, or "
            "remove evaluate.memory_gib"
        )

    def save_once(self) -> Path | None:
        """Return the checkpoint of this state, written if needed; None without a checkpoint folder."""
        if self._state.checkpoint is None:
            self.save()
        return self._state.checkpoint

    def save(self) -> None:
        """Write a checkpoint, if the run has a checkpoint folder."""
        parts, step, folder = self._parts, self._state.step, self._parts.checkpoints
        if folder is None:
            return
        state = {
            **self._state.to_state(assignment_state(self._run.stages, available_cores())),
            **parts.learner.state(),
            "config": to_yaml(parts.config),
            **parts.graph.fingerprint.to_state(),
            "schema": parts.schema.to_dict(),
            "vertices": {
                name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
                for name, value in parts.graph.describe_vertices(parts.config.data.split).items()
            },
            # If there are several processes, each process has only a part of the rows.
            "row_sums": None if parts.shared.part.num_processes > 1 else parts.graph.row_sums.tolist(),
        }

        def before(operation: str) -> None:
            for hook in parts.hooks:
                hook.before_write(step, operation)

        write = partial(write_atomically, on_operation=before)
        keep = parts.config.checkpoint.keep
        path = parts.call(
            "checkpoint", step, lambda: save_checkpoint(folder, step, state, keep=keep, write=write)
        )
        self._saved = time.perf_counter()
        self._state.checkpoint = path
        if self._run.step_checkpointer is not None:
            self._run.step_checkpointer.saved(step)
        parts.emit(CheckpointWritten(step=step, path=path))
