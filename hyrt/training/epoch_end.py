"""What follows the last step of an epoch: an evaluation, the schedule's step, a checkpoint."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hyrt.balance.kept_assignments import kept_assignments
from hyrt.config import to_yaml
from hyrt.device.capabilities import ScoresVertices
from hyrt.inference.evaluate import StopRequested
from hyrt.machine.atomic_write import write_atomically
from hyrt.machine.cores import available_cores
from hyrt.observe.events import Checkpointed, Evaluated
from hyrt.sampling.block import Ids
from hyrt.training.checkpoint import save_checkpoint
from hyrt.training.compose import RunParts
from hyrt.training.open_run import OpenRun
from hyrt.training.run_state import Best, RunState


class EpochEnd:
    """Evaluates, chooses the best weights, and writes checkpoints.

    Parameters
    ----------
    parts, state, run
        The run, where it is, and what it holds open.
    """

    def __init__(self, parts: RunParts, state: RunState, run: OpenRun) -> None:
        self._parts = parts
        self._state = state
        self._run = run
        self._saved = time.perf_counter()
        self._has_warned = False
        if run.unfinished is not None:
            run.unfinished.save_whole = self.save_once

    @property
    def is_out_of_patience(self) -> bool:
        """Whether as many evaluations as `train.patience` says have brought nothing better."""
        patience = self._parts.config.train.patience
        return bool(patience and self._state.best.evaluations_since >= patience)

    def finish(self, check: Callable[[], None]) -> bool:
        """Do what the settings want after the epoch whose steps are done.

        `check` is called now and then and may raise. When the run is asked to stop meanwhile, all of it is
        left for a resumed run, and the result is False.
        """
        config, state = self._parts.config, self._state
        state.checkpoint = None
        epoch, loss = state.step // self._parts.steps_per_epoch, state.unevaluated
        assert loss is not None
        is_last, whole = epoch >= self._parts.epochs, config.sampler.whole_graph
        if is_last or config.evaluate.is_due(epoch, self._parts.epochs, whole_graph=whole):
            try:
                self._evaluate(epoch, check)
            except StopRequested:
                return False
        state.unevaluated = None
        self._parts.learner.end_epoch(epoch, loss)
        since_s = time.perf_counter() - self._saved
        is_due = config.checkpoint.is_due_at_step(state.step)
        is_due = is_due or config.checkpoint.is_due_at_epoch(epoch, since_s, whole_graph=whole)
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
        value = evaluator.worth(metrics, epoch)
        # Without any better one, the first evaluation counts, even if its metric is not a number.
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
            Evaluated(
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
        """Scores from a device that holds the whole graph; None where the host computes them."""
        trainers = self._run.stages.trainers
        if not self._parts.config.sampler.whole_graph or len(trainers) != 1:
            return None
        trainer, device = trainers[0], trainers[0].device
        if trainer.lost is not None or not isinstance(device, ScoresVertices):
            return None
        with trainer.quiet:
            # The step's weights come to the trainer when the next step is asked for.
            device.update(self._parts.learner.parameters)
            scores = device.scores(vertices)
        if scores is not None:
            self._warn_of_unused_memory(trainer.name)
        return scores

    def _warn_of_unused_memory(self, device: str) -> None:
        """Warn once if the memory of evaluations is limited, but a device evaluates in its own."""
        evaluate = self._parts.config.evaluate
        if self._has_warned or evaluate.memory_gib == type(evaluate).model_fields["memory_gib"].default:
            return
        self._has_warned = True
        self._parts.warn(
            f"evaluate.memory_gib={evaluate.memory_gib:g} has no effect in this run: with --full-graph, "
            f"{device} evaluates in the memory of its steps. Set fullgraph.host_memory, or omit it"
        )

    def save_once(self) -> Path | None:
        """The checkpoint of this state, written now where there is none; None without a folder for them."""
        if self._state.checkpoint is None:
            self.save()
        return self._state.checkpoint

    def save(self) -> None:
        """Write a checkpoint, where the run has a folder for them."""
        parts, step, folder = self._parts, self._state.step, self._parts.checkpoints
        if folder is None:
            return
        state = {
            **self._state.kept(kept_assignments(self._run.stages, available_cores())),
            **parts.learner.kept(),
            "config": to_yaml(parts.config),
            "graph": parts.graph.checksum,
            "schema": parts.schema.to_dict(),
            # Of several processes each has a part of the rows.
            "row_sums": None if parts.shared.part.num_processes > 1 else parts.graph.row_sums.tolist(),
        }

        def before(operation: str) -> None:
            for hook in parts.hooks:
                hook.before_write(step, operation)

        write = partial(write_atomically, before=before)
        keep = parts.config.checkpoint.keep
        path = parts.call(
            "checkpoint", step, lambda: save_checkpoint(folder, step, state, keep=keep, write=write)
        )
        self._saved = time.perf_counter()
        self._state.checkpoint = path
        if self._run.unfinished is not None:
            self._run.unfinished.saved(step)
        parts.emit(Checkpointed(step=step, path=path))
