"""What lines of steps say of waiting and queues: of their own steps, not of the pauses between them."""

from __future__ import annotations

import numpy as np
import pytest
from hyrt_perfmodel.policy import Assignment, Threads

from hyrt.objective.classification import Classification
from hyrt.pipeline.synchronize import StepSummary
from hyrt.pipeline.work_items import StepWork, WorkShare
from hyrt.runtime.stage_threads import QueueSnapshot
from hyrt.telemetry.events import Event, StepMetrics
from hyrt.training.epoch_end import MetricsWindow


def seen(at_s: float, waited_s: float, item_s: float) -> QueueSnapshot:
    return QueueSnapshot(
        time_s=at_s, blocked_s={"load.input": waited_s}, item_s={"sampled": item_s}, capacity={"sampled": 4}
    )


def test_means_of_the_steps_alone() -> None:
    lines: list[Event] = []
    ran = Assignment(split=(8,), threads=Threads(sample=1, load=1, train=1))
    now: QueueSnapshot | None = seen(10.0, 7.0, 5.0)
    groups = MetricsWindow(lines.append, 20, ["cpu:0"], lambda: now, Classification())
    groups.begin()

    def step(number: int, queues: QueueSnapshot | None) -> None:
        nonlocal now
        now = queues
        work = StepWork(number)
        work.shares = [WorkShare(work, 0, np.arange(8))]
        summary = StepSummary(loss=1.0, counts={"correct": 4, "targets": 8}, normalizer=8.0)
        groups.add(work, summary, work.times(0.1), ran, 0.01)

    step(0, seen(10.1, 7.02, 5.1))
    step(1, seen(10.2, 7.06, 5.5))
    # An evaluation, while two mini-batches wait.
    now = seen(20.2, 17.06, 25.5)
    groups.begin()
    step(2, seen(20.3, 17.06, 25.6))
    step(3, seen(20.4, 17.08, 25.8))
    step(4, None)
    step(5, None)
    first, second, third = (line for line in lines if isinstance(line, StepMetrics))
    assert first.blocked_s == {"load.input": pytest.approx(0.03)}
    assert first.queued == {"sampled": pytest.approx(2.5)}
    assert second.blocked_s == {"load.input": pytest.approx(0.01)}
    assert second.queued == {"sampled": pytest.approx(1.5)}
    assert first.queue_depth == second.queue_depth == {"sampled": 4}
    assert third.blocked_s == third.queued == third.queue_depth == {}


def test_groups_begin_anew_with_each_epoch() -> None:
    lines: list[Event] = []
    ran = Assignment(split=(8,), threads=Threads(sample=1, load=1, train=1))
    # Groups of three steps, and an epoch is no multiple of that.
    groups = MetricsWindow(lines.append, 31, ["cpu:0"], lambda: None, Classification())
    for number in range(3 * 31):
        work = StepWork(number)
        work.shares = [WorkShare(work, 0, np.arange(8))]
        summary = StepSummary(loss=float(number), counts={"correct": 4, "targets": 8}, normalizer=8.0)
        groups.add(work, summary, work.times(0.1), ran, 0.01)
        if number % 31 == 30:
            groups.flush()
    heard = [line for line in lines if isinstance(line, StepMetrics)]
    ends = [*range(3, 31, 3), 31]
    assert [(line.epoch, line.steps_done) for line in heard] == [
        (epoch, end) for epoch in (1, 2, 3) for end in ends
    ]
    assert [line.step for line in heard] == [31 * epoch + end for epoch in range(3) for end in ends]
    assert [loss for line in heard for loss in line.losses] == list(map(float, range(3 * 31)))
    assert [len(line.losses) for line in heard] == 3 * [*[3] * 10, 1]


def test_means_count_targets_and_times_count_steps() -> None:
    """Three steps of other sizes and times in one group: sums over all of it, divided once."""
    lines: list[Event] = []
    ran = Assignment(split=(8,), threads=Threads(sample=1, load=1, train=1))
    groups = MetricsWindow(lines.append, 30, ["cpu:0"], lambda: None, Classification())
    steps = [(8, 0.5, 2, 300, 0.1), (5, 1.5, 4, 200, 0.3), (1, 4.0, 1, 40, 0.2)]
    for number, (targets, loss, correct, edges, seconds) in enumerate(steps):
        work = StepWork(number)
        work.shares = [WorkShare(work, 0, np.arange(targets), seconds={"load": seconds / 2})]
        counts = {"correct": correct, "targets": targets}
        summary = StepSummary(loss=loss, counts=counts, normalizer=float(targets), num_edges=edges)
        groups.add(work, summary, work.times(seconds), ran, 0.01)
    (line,) = (line for line in lines if isinstance(line, StepMetrics))
    assert line.loss == pytest.approx((8 * 0.5 + 5 * 1.5 + 1 * 4.0) / 14)
    assert line.training_metrics == {"accuracy": pytest.approx(7 / 14)}
    assert line.mteps == pytest.approx(540 / 0.6 / 1e6)
    assert line.step_s == pytest.approx(0.2)
    assert line.stage_s["load"] == pytest.approx(0.1)
    assert line.busy_s == {"cpu:0": 0.0}
