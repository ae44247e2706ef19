"""Steps gathered into the lines of the metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import psutil
from hyrt_perfmodel.assignment import STAGES, Assignment

from hyrt.flow.queues import Queues
from hyrt.objective.objective import Objective, added
from hyrt.observe.events import Emit, StepGroup, steps_per_group
from hyrt.pipeline.shares import StepTimes, StepWork
from hyrt.pipeline.synchronize import StepSummary


class StepGroups:
    """Adds steps up and emits a `StepGroup` about ten times an epoch.

    Which steps form a group depends on the epoch's length only, so that equal runs write equal lines.

    Parameters
    ----------
    emit
        Called with every group.
    steps_per_epoch
        The length of an epoch.
    trainers
        The trainers' names.
    queues
        Tells what the channels have seen, where there are any; asked once a group.
    objective
        Makes metrics of what was counted.
    cache_hits
        Tells of each trainer that keeps rows which part of the rows it needed those were.
    """

    def __init__(
        self,
        emit: Emit,
        steps_per_epoch: int,
        trainers: Sequence[str],
        queues: Callable[[], Queues | None],
        objective: Objective,
        cache_hits: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._emit = emit
        self._objective = objective
        self._per_epoch = steps_per_epoch
        self._size = steps_per_group(steps_per_epoch)
        self._trainers = trainers
        self._process = psutil.Process()
        self._read_queues = queues
        self._cache_hits = cache_hits
        self._queues_before: Queues | None = None
        self._added: list[tuple[StepSummary, StepTimes]] = []

    def add(
        self, work: StepWork, summary: StepSummary, times: StepTimes, assignment: Assignment, lr: float
    ) -> None:
        """Count a synchronized step that ran under an assignment."""
        self._added.append((summary, times))
        self._newest = work.step + 1, assignment, lr
        self._chunks = {self._trainers[i]: chunks.figures() for i, chunks in work.chunks().items()}
        if (work.step + 1) % self._per_epoch % self._size == 0:
            self.flush()

    def flush(self) -> None:
        """Emit what has been added since the last group, if anything."""
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
            StepGroup(
                epoch=(step - 1) // self._per_epoch + 1,
                step=step,
                steps_done=(step - 1) % self._per_epoch + 1,
                steps_per_epoch=self._per_epoch,
                loss=loss_sum / normalizer if normalizer else 0.0,
                losses=tuple(each.loss for each in summaries),
                training_metrics=self._objective.training_metrics(added(each.counts for each in summaries)),
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
