"""What follows the last step of an epoch: an evaluation, the schedule's step, a checkpoint."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from functools import partial

from hyrt.balance.kept_assignments import kept_assignments
from hyrt.config import to_yaml
from hyrt.inference.evaluate import StopRequested
from hyrt.machine.atomic_write import write_atomically
from hyrt.machine.cores import available_cores
from hyrt.observe.events import Checkpointed, Evaluated
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
        epoch, loss = state.step // self._parts.steps_per_epoch, state.unevaluated
        assert loss is not None
        is_last = epoch >= self._parts.epochs
        if is_last or (config.evaluate.every and epoch % config.evaluate.every == 0):
            try:
                self._evaluate(epoch, check)
            except StopRequested:
                return False
        state.unevaluated = None
        self._parts.learner.end_epoch(epoch, loss)
        every = config.checkpoint.every_epochs
        if is_last or self.is_out_of_patience or (every and epoch % every == 0):
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
            lambda: evaluator.evaluate(model, self._run.evaluate_workers, should_stop),
        )
        value = evaluator.worth(metrics, epoch)
        is_best = value > state.best.value
        if is_best:
            state.best = Best(value, epoch, metrics, copy.deepcopy(model.state_dict()))
        else:
            state.best.evaluations_since += 1
        parts.emit(
            Evaluated(
                epoch=epoch,
                step=state.step,
                metrics=metrics,
                chosen_by=evaluator.metric,
                is_best=is_best,
                seconds=time.perf_counter() - started,
            )
        )

    def save(self) -> None:
        """Write a checkpoint, where the run has a folder for them."""
        parts, step, folder = self._parts, self._state.step, self._parts.checkpoints
        if folder is None:
            return
        state = {
            **self._state.kept(kept_assignments(self._run.stages, available_cores())),
            **parts.learner.kept(),
            "config": to_yaml(parts.config),
        }

        def before(operation: str) -> None:
            for hook in parts.hooks:
                hook.before_write(step, operation)

        write = partial(write_atomically, before=before)
        keep = parts.config.checkpoint.keep
        path = parts.call(
            "checkpoint", step, lambda: save_checkpoint(folder, step, state, keep=keep, write=write)
        )
        parts.emit(Checkpointed(step=step, path=path))
