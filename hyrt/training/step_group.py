"""Steps gathered into the lines of the metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import psutil
from hyrt_perfmodel.assignment import STAGES, Assignment

from hyrt.flow.queues import Queues
from hyrt.objective.objective import Objective, added
from hyrt.observe.events import Emit, StepGroup
from hyrt.pipeline.shares import StepTimes, StepWork
from hyrt.pipeline.synchronize import StepSummary


class StepGroups:
    """Adds steps up and emits a `StepGroup` about ten times an epoch.

    Which steps form a group depends on the epoch's length only, so that equal runs write equal lines.

    Parameters
    ----------
    emit
        Hears of every group.
    steps_per_epoch
        The length of an epoch.
    trainers
        The trainers' names.
    queues
        Tells what the channels have seen, where there are any; asked once a group.
    objective
        Makes metrics of what was counted.
    """

    def __init__(
        self,
        emit: Emit,
        steps_per_epoch: int,
        trainers: Sequence[str],
        queues: Callable[[], Queues | None],
        objective: Objective,
    ) -> None:
        self._emit = emit
        self._counts: dict[str, float]
        self._objective = objective
        self._per_epoch = steps_per_epoch
        self._size = max(1, min(100, steps_per_epoch // 10))
        self._trainers = trainers
        self._process = psutil.Process()
        self._read_queues = queues
        self._queues_before: Queues | None = None
        self._clear()

    def add(
        self, work: StepWork, summary: StepSummary, times: StepTimes, assignment: Assignment, lr: float
    ) -> None:
        """Count a synchronized step that ran under an assignment."""
        self._step = work.step + 1
        self._losses.append(summary.loss)
        self._counts = added([self._counts, summary.counts])
        self._edges += work.num_edges
        self._times.append(times)
        self._assignment = assignment
        self._lr = lr
        self._loss_sum += summary.loss * summary.normalizer
        self._normalizer += summary.normalizer
        if self._step % self._per_epoch % self._size == 0:
            self.flush()

    def flush(self) -> None:
        """Emit what has been added since the last group, if anything."""
        count = len(self._losses)
        if not count:
            return
        seconds = sum(times.iteration_s for times in self._times)
        stage_s = {stage: sum(times.stage_s[stage] for times in self._times) / count for stage in STAGES}
        propagate_s = zip(*(times.trainers_s["propagate"] for times in self._times), strict=True)
        done = (self._step - 1) % self._per_epoch + 1
        queues = self._read_queues()
        blocked, queued, depth = self._since_last(queues, count)
        self._emit(
            StepGroup(
                epoch=(self._step - 1) // self._per_epoch + 1,
                step=self._step,
                steps_done=done,
                steps_per_epoch=self._per_epoch,
                loss=self._loss_sum / self._normalizer if self._normalizer else 0.0,
                losses=tuple(self._losses),
                training_metrics=self._objective.training_metrics(self._counts),
                mteps=self._edges / seconds / 1e6 if seconds else 0.0,
                step_s=seconds / count,
                stage_s=stage_s,
                busy_s={
                    name: sum(each) / count for name, each in zip(self._trainers, propagate_s, strict=True)
                },
                blocked_s=blocked,
                queued=queued,
                queue_depth=depth,
                bottleneck=max(STAGES[:-1], key=lambda stage: stage_s[stage]),
                split=dict(zip(self._trainers, self._assignment.split, strict=True)),
                threads=self._assignment.threads.by_stage,
                lr=self._lr,
                memory_bytes=self._process.memory_info().rss,
            )
        )
        self._queues_before = queues
        self._clear()

    def begin(self) -> None:
        """Steps begin, or go on after a pause: what the channels saw before belongs to none of them."""
        self._queues_before = self._read_queues()

    def _since_last(
        self, now: Queues | None, count: int
    ) -> tuple[dict[str, float], dict[str, float], Mapping[str, int]]:
        """Waiting a step, and what was in the channels, with their depths."""
        before = self._queues_before
        if now is None or before is None:
            return {}, {}, {}
        blocked = {end: (seconds - before.blocked_s[end]) / count for end, seconds in now.blocked_s.items()}
        return blocked, now.mean_items_since(before), now.depth

    def _clear(self) -> None:
        self._losses: list[float] = []
        self._loss_sum = self._normalizer = 0.0
        self._counts = {}
        self._edges = 0
        self._times: list[StepTimes] = []
        self._lr = 0.0
        self._step = 0
