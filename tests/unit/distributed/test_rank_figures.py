"""What ranks tell each other of their parts of a run."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from graphs import random_graph
from unit.distributed.ranks_in_threads import results_of
from unit.distributed.test_distributed_training import settings, trained_on

from hyrt.distributed.joined_ranks import JoinedRanks
from hyrt.distributed.watch.joined_traces import JoinedTraces
from hyrt.distributed.watch.rank_figures import told_by_all, what_bounds
from hyrt.distributed.watch.ranks_hook import RanksHook
from hyrt.observe.hook import Hook


def test_each_rank_gets_the_records_of_all() -> None:
    records: list[Any] = [{"host": "zürich", "n": [1, 2]}, None, {"a": {"b": 0.1}}]
    found = results_of(3, lambda ranks: told_by_all(ranks.control, records[ranks.rank]))
    assert found == [records] * 3


def test_the_longest_stage_that_is_no_wait_bounds() -> None:
    one = {"stage_s": {"load": 0.2, "synchronize": 0.9}}
    other = {"stage_s": {"load": 0.1, "propagate": 0.3, "synchronize": 0.0}}
    assert what_bounds([one, other]) == "propagate of rank 1"
    assert what_bounds([{"stage_s": {}}]) == ""


def test_clocks_are_aligned_within_what_is_said() -> None:
    skews = [0, 5_000_000_000, -3_000_000]

    def aligned(ranks: JoinedRanks) -> tuple[int, int, list[bytes]]:
        traces = JoinedTraces(ranks.control, lambda: time.perf_counter_ns() + skews[ranks.rank])
        offset, uncertainty = traces.clock_offset()
        return offset, uncertainty, list(traces.at_first(bytes([ranks.rank]) * ranks.rank))

    found = results_of(3, aligned)
    for skew, (offset, uncertainty, _) in zip(skews, found, strict=True):
        assert abs(offset + skew) <= uncertainty < 100_000_000
    assert [parts for *_, parts in found] == [[b"", b"\1", b"\2\2"], [], []]


def test_the_summary_tells_of_all_ranks() -> None:
    graph = random_graph(seed=1)
    homes = np.random.default_rng(2).integers(0, 2, graph.num_vertices).astype(np.uint8)

    def trained(ranks: JoinedRanks) -> tuple[dict[str, Any], dict[str, int], dict[str, int]]:
        hooks: list[Hook] = [RanksHook(ranks, [torch.zeros(1)], "home")]
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
