"""Training loop, which synchronizes the steps of the pipeline, evaluates the model and writes checkpoints."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch

from hyrt.errors import CheckpointError, HyrtError, StageError, StepInterrupted, describe_error
from hyrt.formatting import short_repr
from hyrt.fullgraph.chunk_stats import ChunkedStep, describe_chunks
from hyrt.pipeline.synchronize import StepSummary
from hyrt.pipeline.work_items import StepWork
from hyrt.telemetry.events import EpochEnded, Notice, PredictionMade, RunEnded
from hyrt.training.build_run import RunComponents
from hyrt.training.checkpoint import Checkpoint
from hyrt.training.chunk_device_group import ChunkDeviceGroup
from hyrt.training.epoch_end import EpochEnd, MetricsWindow
from hyrt.training.open_run import OpenRun, StepSource, open_run, run_started, steps_of
from hyrt.training.prechecks import expected_figures
from hyrt.training.run_state import RunState

# Multiple of the first loss above which a run has diverged. A first loss above _LARGE is itself too large.
_DIVERGED = 1000.0
_LARGE = 1e9

# Loss of a model that gives links and negatives equal scores, so that it has learned nothing.
_LOSS_OF_CHANCE = math.log(2)
# Even on hard data, the loss decreases by this fraction within this number of epochs and steps.
_LEARNED, _LEARNING_EPOCHS, _LEARNING_STEPS = 0.002, 3, 50


@dataclass(frozen=True, slots=True)
class TrainResult:
    """Result of a run."""

    status: str
    """Status of the run: `finished`, `early-stopped` or `interrupted`."""
    model: torch.nn.Module
    """Module with the weights of the best evaluation, or of the last step without an evaluation."""
    metrics: dict[str, dict[str, float]]
    """Metrics of this evaluation, by split."""
    summary: dict[str, Any]
    """Content of `summary.json`."""

    __repr__ = short_repr


class Training:
    """Training run, from the start of its hooks to its summary."""

    def __init__(self, parts: RunComponents) -> None:
        self.parts = parts
        self.state = RunState()
        self.summary_of_failure: dict[str, Any] = {}
        self._has_warned = False
        self._has_warned_scores = False
        self._has_checked_links = False
        self._link_loss: float | None = None
        self._chunks: dict[str, ChunkedStep] = {}

    def resume(self, checkpoint: Checkpoint) -> None:
        """Resume after the step of a checkpoint, with the same bits as an uninterrupted run.

        Raises CheckpointError if the checkpoint has a model with other parameters, or another graph.
        """
        graph = self.parts.graph
        changes = graph.fingerprint.find_changes(checkpoint.state)
        if changes:
            of_labels = "labels or training vertices" if graph.links is None else "labels or links"
            fields = of_labels if "labels" in changes else "edges"
            raise CheckpointError(
                f"{graph.name} has different {fields} from the graph that {checkpoint.path} was trained "
                "on: use that dataset or parts of it, or start a new run"
            )
        self._check_rows(checkpoint)
        saved = checkpoint.state.get("vertices")
        if saved is not None and graph.links is None:
            if graph.describe_vertices(self.parts.config.data.split)["held_out"] != saved["held_out"]:
                self.parts.warn(
                    f"{graph.name} has other validation or test vertices than when {checkpoint.path} was "
                    "written, so evaluations before and after it are not comparable: use the original "
                    "dataset, or start a new run"
                )
        try:
            self.parts.learner.restore(checkpoint.state)
            self.state = RunState.restored(checkpoint.state, checkpoint.path)
        except (KeyError, RuntimeError, ValueError, TypeError) as error:
            raise CheckpointError(f"{checkpoint.path} does not match this run: {error}") from error

    def _check_rows(self, checkpoint: Checkpoint) -> None:
        """Compare a few feature rows with the checkpoint, unless each rank has only some of the rows."""
        sums = checkpoint.state.get("row_sums")
        graph = self.parts.graph
        if sums is None or self.parts.shared.part.num_processes > 1:
            return
        if graph.has_row_sums(sums):
            return
        raise CheckpointError(
            f"{graph.name} has different feature rows from the graph that {checkpoint.path} was trained "
            "on: use the original dataset, or start a new run"
        )

    def run(self) -> TrainResult:
        """Train until the end, an early stop, or a stop request."""
        try:
            with open_run(self.parts, self.state) as run:
                status = self._train(run)
        except BaseException as error:
            self.end_failed(error)
            raise
        # Finish after the run is closed, because closing a lost device may have added messages.
        return self._finish(status, run)

    def end_failed(self, error: BaseException) -> None:
        """Notify the hooks that the run has failed; their exceptions become notes of the error."""
        for hook in self.parts.hooks:
            hook.on_failure(error, self.summary_of_failure)

    def leave(self) -> None:
        """Notify the hooks that the process ends within a step because the run must stop."""
        for hook in self.parts.hooks:
            hook.on_abort()

    def _train(self, run: OpenRun) -> str:
        parts, state = self.parts, self.state
        self._begin(run)
        epoch_end = EpochEnd(parts, state, run)
        if state.unevaluated is not None and epoch_end.finish(lambda: None):
            # Otherwise, a run that is killed after this point would evaluate and record the epoch again.
            epoch_end.save_once()
        if parts.should_stop():
            return "interrupted"
        if epoch_end.is_out_of_patience and state.step < parts.num_steps:
            return "early-stopped"
        with steps_of(parts, run, range(state.step, parts.num_steps)) as source:
            try:
                return self._do_steps(run, source, epoch_end)
            except StepInterrupted:
                return "interrupted"

    def _begin(self, run: OpenRun) -> None:
        """Start the hooks, and emit the start of the run."""
        parts, state = self.parts, self.state
        devices = [trainer.device for trainer in run.stages.trainers]
        notices = [hook.on_start(devices, range(state.step, parts.num_steps)) for hook in parts.hooks]
        parts.emit(run_started(parts, run.stages, state.step))
        if parts.expected is not None:
            parts.emit(PredictionMade(step=state.step, **expected_figures(parts.expected)))
        if parts.evaluator.warning is not None:
            parts.warn(parts.evaluator.warning)
        if state.first_step:
            parts.emit(Notice(kind="info", text=f"continuing after step {state.first_step}"))
        if state.step >= parts.num_steps and state.first_step:
            text = f"nothing is left to train: train.epochs={parts.epochs} ends after step {parts.num_steps}"
            parts.emit(
                Notice(kind="info", text=f"{text}. Resume with a larger train.epochs to continue training")
            )
        for notice in notices:
            parts.say(notice)

    def _do_steps(self, run: OpenRun, source: StepSource, epoch_end: EpochEnd) -> str:
        """Synchronize, count, evaluate and save checkpoints step by step; return the status of the run."""
        parts, state, stages = self.parts, self.state, run.stages
        per_epoch = parts.steps_per_epoch
        names = [trainer.name for trainer in stages.trainers]
        groups = MetricsWindow(
            *(parts.emit, per_epoch, names, source.queues, parts.evaluator.objective),
            cache_hits=dict if parts.caches is None else parts.caches.hit_rates,
        )
        groups.begin()
        before = time.perf_counter()
        for work in source.steps():
            summary = self._synchronize(run, source, work)
            if summary is None:
                continue
            seconds = time.perf_counter() - before
            if run.step_checkpointer is not None:
                seconds += run.step_checkpointer.take_seconds_before()
            times = work.times(seconds)
            self._count(summary, times.iteration_s)
            self._watch_loss(work.step, summary.loss)
            self._report_chunks(run, work)
            self._warn_extra_outputs(run)
            state.totals.add(times)
            lr = parts.learner.lr * parts.warm_up(work.step)
            groups.add(work, summary, times, stages.schedule.of(work.step), lr)
            run.manager.observe(work, times)
            if state.step % per_epoch == 0:
                groups.flush()
                self._end_steps_of_epoch()
                epoch_end.finish(source.raise_failure)
                if epoch_end.is_out_of_patience and state.step < parts.num_steps:
                    return "early-stopped"
                run.manager.pause(state.step)
                groups.begin()
            elif parts.config.checkpoint.is_due_at_step(state.step):
                groups.flush()
                epoch_end.save()
                groups.begin()
            if parts.should_stop():
                groups.flush()
                epoch_end.save_once()
                return "interrupted"
            before = time.perf_counter()
        return "finished"

    def _synchronize(self, run: OpenRun, source: StepSource, work: StepWork) -> StepSummary | None:
        """Return the summary of a step, or None after a time step that is not the last of its step."""
        started = time.perf_counter()
        doing = f"synchronize at step {work.step}"
        end = run.synchronizer.end_time_step if work.has_more_time_steps else run.synchronizer.step
        try:
            with source.guarded(doing):
                summary = self.parts.call("synchronize", work.step, lambda: end(work))
        except (HyrtError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise StageError(f"error in {doing}: {describe_error(error)}") from error
        work.synchronize_s += time.perf_counter() - started
        return summary

    def _count(self, summary: StepSummary, seconds: float) -> None:
        state = self.state
        state.checkpoint = None
        state.step += 1
        state.epoch_s += seconds
        loss_sum, normalizer, edges = state.epoch_sums
        state.epoch_sums = (
            loss_sum + summary.loss * summary.normalizer,
            normalizer + summary.normalizer,
            edges + summary.num_edges,
        )

    def _watch_loss(self, step: int, loss: float) -> None:
        """Warn once if the run has diverged: the loss is far above the first loss."""
        state = self.state
        if state.first_loss is None:
            state.first_loss = loss
        if self._has_warned or loss <= _DIVERGED * min(max(abs(state.first_loss), 1.0), _LARGE):
            return
        self._has_warned = True
        since = f"up from {state.first_loss:.3g} at the start, so the training has diverged"
        if step == 0:
            since = "in the very first step"
        self.parts.warn(
            f"the loss is {loss:.3g} at step {step}, {since}, although its values are still finite. Stop "
            f"the run, and lower train.lr (now {self.parts.learner.lr:g}), set train.clip_norm or "
            "train.warmup_steps, or check the features"
        )

    def _watch_links(self, epoch: int, loss: float) -> None:
        """Warn once if the link prediction loss stays at the loss of equal scores."""
        parts, before, self._link_loss = self.parts, self._link_loss, loss
        is_early = epoch < _LEARNING_EPOCHS or self.state.step < _LEARNING_STEPS
        balanced = parts.config.links.num_negatives == 1 or parts.config.links.loss == "ranking"
        if parts.graph.links is None or is_early or self._has_checked_links or not balanced:
            return
        has_learned = loss < (1 - _LEARNED) * _LOSS_OF_CHANCE
        if not has_learned and (before is None or loss < (1 - _LEARNED) * before):
            return
        self._has_checked_links = True
        if has_learned:
            return
        parts.warn(
            f"the loss is still {loss:.4f} in epoch {epoch}, no lower than with equal scores for all "
            f"pairs ({_LOSS_OF_CHANCE:.4f}), so the model is not learning. Lower train.lr (now "
            f"{parts.learner.lr:g}) or train.weight_decay (now {parts.config.train.weight_decay:g}), "
            "choose another links.decoder, or check that the features or edges are informative about the "
            "links"
        )

    def _warn_extra_outputs(self, run: OpenRun) -> None:
        """Warn once if the model returns scores that belong to no class."""
        if run.more_scores and not self._has_warned_scores:
            self._has_warned_scores = True
            self.parts.warn(min(run.more_scores))

    def _report_chunks(self, run: OpenRun, work: StepWork) -> None:
        """Record how a full graph is divided into chunks, and report changes."""
        for index, chunks in work.chunks().items():
            device = run.stages.trainers[index].device
            if isinstance(device, ChunkDeviceGroup):
                for text in device.take_notices():
                    self.parts.warn(f"step {work.step}: {text}")
            name = device.info.name
            before = self._chunks.get(name)
            self._chunks[name] = chunks
            if before is None or before.intervals != chunks.intervals:
                was = "" if before is None else f" (previously {before.intervals} x {before.intervals})"
                text = f"{name} trains in {describe_chunks(chunks.figures())}{was}"
                self.parts.emit(Notice(kind="info", text=text))

    def _end_steps_of_epoch(self) -> None:
        """Report the results of the epoch's steps, and reset the counters for the next epoch."""
        parts, state = self.parts, self.state
        loss_sum, normalizer, edges = state.epoch_sums
        state.unevaluated = loss_sum / normalizer if normalizer else 0.0
        self._watch_links(state.step // parts.steps_per_epoch, state.unevaluated)
        parts.emit(
            EpochEnded(
                epoch=state.step // parts.steps_per_epoch,
                step=state.step,
                seconds=state.epoch_s,
                loss=state.unevaluated,
                mteps=edges / state.epoch_s / 1e6 if state.epoch_s else 0.0,
                predicted_s=None if parts.expected is None else parts.expected.epoch_s,
            )
        )
        state.totals.epochs_s.append(state.epoch_s)
        state.epoch_s, state.epoch_sums = 0.0, (0.0, 0.0, 0)

    def _finish(self, status: str, run: OpenRun) -> TrainResult:
        parts, state, totals = self.parts, self.state, self.state.totals
        best, model, per_epoch = state.best, parts.learner.model, parts.steps_per_epoch
        stages, assignment = run.stages, run.stages.schedule.of(state.step)
        if best.weights is not None and status != "interrupted":
            model.load_state_dict(best.weights)
        summary: dict[str, Any] = {
            "status": status,
            "devices": parts.config.devices,
            "simulated": bool(stages.simulated),
            "simulated_devices": stages.simulated,
            "split": stages.named_split(assignment),
            "threads": assignment.threads.by_name(),
            "balance": {"policy": run.manager.policy_name, "decisions": totals.decisions},
            **totals.means(per_epoch),
            "devices_lost": {
                trainer.name: "; ".join([describe_error(lost), *getattr(lost, "__notes__", ())])
                for trainer in stages.trainers
                if (lost := trainer.lost) is not None
            }
            | {
                name: reason
                for trainer in stages.trainers
                if isinstance(trainer.device, ChunkDeviceGroup)
                for name, reason in trainer.device.lost.items()
            },
            "epochs": state.step // per_epoch,
            "steps": state.step,
            "best_epoch": best.epoch,
            "chosen_by": parts.evaluator.metric,
            "metrics": best.metrics,
            "trained_s": totals.seconds,
            "predicted": None if parts.expected is None else expected_figures(parts.expected),
            "peak_memory_bytes": totals.see_memory(),
        }
        if self._chunks:
            summary["chunks"] = {name: chunks.figures() for name, chunks in self._chunks.items()}
        for hook in parts.hooks:
            parts.say(hook.on_end(summary))
        parts.emit(RunEnded(status=status, summary=summary))
        return TrainResult(status, model, best.metrics, summary)
