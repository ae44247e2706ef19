"""What ranks tell each other of their parts of a run."""

from __future__ import annotations

import io
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from graphs import random_graph
from rich.console import Console
from unit.distributed.ranks_in_threads import results_of
from unit.distributed.test_distributed_training import settings, trained_on
from unit.report.run_events import steps

from hyrt.distributed.context import DistributedContext
from hyrt.distributed.monitoring import RanksHook, TraceMerger
from hyrt.distributed.process_group import all_gather_object, find_bottleneck, merge_steps, steps_record
from hyrt.report.progress_text import dashboard, step_line
from hyrt.telemetry.events import Event, StepMetrics
from hyrt.telemetry.hooks import Hook


def test_each_rank_gets_the_records_of_all() -> None:
    records: list[Any] = [{"host": "zürich", "n": [1, 2]}, None, {"a": {"b": 0.1}}]
    found = results_of(3, lambda ranks: all_gather_object(ranks.control, records[ranks.rank]))
    assert found == [records] * 3


def test_the_longest_stage_that_is_no_wait_bounds() -> None:
    one = {"stage_s": {"load": 0.2, "synchronize": 0.9}}
    other = {"stage_s": {"load": 0.1, "propagate": 0.3, "synchronize": 0.0}}
    assert find_bottleneck([one, other]) == "propagate of rank 1"
    assert find_bottleneck([{"stage_s": {}}]) == ""


def test_clocks_are_aligned_within_what_is_said() -> None:
    skews = [0, 5_000_000_000, -3_000_000]

    def aligned(ranks: DistributedContext) -> tuple[int, int, list[bytes]]:
        clock = lambda: time.perf_counter_ns() + skews[ranks.rank]  # noqa: E731
        traces = TraceMerger(ranks.control, ranks.failure_reports, clock)
        offset, uncertainty = traces.clock_offset()
        return offset, uncertainty, list(traces.gather(bytes([ranks.rank]) * ranks.rank))

    found = results_of(3, aligned)
    for skew, (offset, uncertainty, _) in zip(skews, found, strict=True):
        assert abs(offset + skew) <= uncertainty < 100_000_000
    assert [parts for *_, parts in found] == [[b"", b"\1", b"\2\2"], [], []]


def test_the_summary_tells_of_all_ranks() -> None:
    graph = random_graph(seed=1)
    homes = np.random.default_rng(2).integers(0, 2, graph.num_vertices).astype(np.uint8)

    seen: list[list[tuple[StepMetrics, StepMetrics]]] = [[], []]

    def trained(ranks: DistributedContext) -> tuple[dict[str, Any], dict[str, int], dict[str, int]]:
        told = RanksHook(ranks, [torch.zeros(1)], "home")

        class Heard(Hook):
            def on_event(self, event: Event) -> None:
                if isinstance(event, StepMetrics):
                    joined = told.merge_event(event)
                    assert isinstance(joined, StepMetrics)
                    seen[ranks.rank].append((event, joined))
                else:
                    assert told.merge_event(event) is event

        hooks: list[Hook] = [told, Heard()]
        result, _ = trained_on(ranks, graph, homes, settings("graphsage"), hooks=hooks)
        return result.summary["distributed"], ranks.counts.sent(), ranks.counts.received()

    found = results_of(2, trained)
    for told, _, _ in found:
        for rank, (record, (_, sent, received)) in enumerate(zip(told["by_rank"], found, strict=True)):
            assert record["devices"] == ["cpu:0"]
            assert record["stage_s"].keys() == {"sample", "load", "transfer", "propagate", "synchronize"}
            assert 0 < record["stage_s"]["propagate"] < record["step_s"] < 60
            for purpose in ("rows", "gradients", "evaluation"):
                assert record["bytes_sent"][purpose] == sent[purpose] > 0
                assert record["bytes_received"][purpose] == received[purpose]
                assert told["bytes_sent_by_rank"][rank][purpose] == sent[purpose]
        # What one of two ranks sends, the other receives.
        first, second = told["by_rank"]
        assert first["bytes_sent"]["rows"] == second["bytes_received"]["rows"]
        assert told["bounded_by"].endswith((" of rank 0", " of rank 1"))
    assert len(seen[0]) == len(seen[1]) > 1
    for (one, joined), (other, same) in zip(*seen, strict=True):
        assert (joined.num_ranks, joined.split) == (
            2,
            {"rank 0 cpu:0": one.split["cpu:0"], "rank 1 cpu:0": other.split["cpu:0"]},
        )
        assert joined.stage_s["propagate"] == max(one.stage_s["propagate"], other.stage_s["propagate"])
        assert joined.memory_bytes == one.memory_bytes + other.memory_bytes
        assert (joined.stage_s, joined.bottleneck, joined.queued) == (
            same.stage_s,
            same.bottleneck,
            same.queued,
        )


def test_steps_of_ranks_are_those_of_the_slowest() -> None:
    """What stands beside it is worked out by hand."""

    def of(sample: float, load: float, wait: float, targets: int, queued: float) -> StepMetrics:
        work = {"compute_s": sample}
        return replace(
            steps(20),
            stage_s={"sample": sample, "load": load, "synchronize": wait},
            busy_s={"cpu:0": sample},
            blocked_s={"load.input": wait},
            split={"cpu:0": targets},
            queued={"sampled": queued, "loaded.cpu:0": 2 * queued},
            queue_depth={"sampled": 3, "loaded.cpu:0": 3},
            memory_bytes=1000 * targets,
            chunks={"cpu:0+opencl:0": {"intervals": targets, "by_device": {"cpu:0": work, "opencl:0": work}}},
        )

    groups = [of(0.2, 0.1, 0.9, 30, 1.0), of(0.1, 0.5, 0.4, 70, 0.5)]
    found = merge_steps(groups[0], [steps_record(group) for group in groups])
    assert found.stage_s == {"sample": 0.2, "load": 0.5, "synchronize": 0.4}
    assert (found.bottleneck, found.slowest_rank, found.num_ranks) == ("load", 1, 2)
    assert found.busy_s == {"rank 0 cpu:0": 0.2, "rank 1 cpu:0": 0.1}
    assert found.split == {"rank 0 cpu:0": 30, "rank 1 cpu:0": 70}
    assert found.blocked_s == {"load.input": 0.4}
    assert found.queued == {"sampled": 1.5, "loaded.rank 0 cpu:0": 2.0, "loaded.rank 1 cpu:0": 1.0}
    assert found.queue_depth == {"sampled": 6, "loaded.rank 0 cpu:0": 3, "loaded.rank 1 cpu:0": 3}
    assert found.memory_bytes == 100_000
    assert found.chunks == {
        f"rank {rank} cpu:0+opencl:0": {
            "intervals": targets,
            "by_device": {f"rank {rank} {name}": {"compute_s": sample} for name in ("cpu:0", "opencl:0")},
        }
        for rank, targets, sample in ((0, 30, 0.2), (1, 70, 0.1))
    }
    assert (found.loss, found.losses, found.mteps, found.step_s) == (
        groups[0].loss,
        groups[0].losses,
        groups[0].mteps,
        groups[0].step_s,
    )
    assert step_line(found, 5, None).endswith("rank 1 of 0 to 1 is slowest")
    assert "slowest" not in step_line(groups[0], 5, None)
    shown = Console(file=io.StringIO(), width=130)
    shown.print(dashboard(replace(found, chunks={}), epochs=5, predicted_s=None, width=130))
    assert isinstance(shown.file, io.StringIO)
    text = shown.file.getvalue()
    for words in ("rank 1 of 0 to 1 is slowest", "rank 0 cpu:0", "rank 1 cpu:0", "1.5/6"):
        assert words in text


def test_groups_end_alike_in_all_processes_whatever_their_checkpoints() -> None:
    """Those that a checkpoint ends early are of one process alone."""
    for per_epoch, regular in ((12, range(1, 13)), (59, range(5, 60, 5)), (5000, range(100, 5001, 100))):
        ends = [done for done in range(1, per_epoch + 1) if at(done, per_epoch).is_regular]
        assert ends == sorted({*regular, per_epoch})


def at(done: int, per_epoch: int) -> StepMetrics:
    return replace(steps(20), steps_done=done, steps_per_epoch=per_epoch)
