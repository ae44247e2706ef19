"""Gradients that are added over ranks while others are computed: the same sums, whoever begins when."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import pytest
import torch
from graphs import random_graph
from hypothesis import given
from hypothesis import strategies as st
from hyrt_devices.cpu import CpuDevice
from unit.distributed.ranks_in_threads import on_ranks, results_of
from unit.distributed.test_distributed_training import deep, settings, trained_alone, trained_on, weights

from hyrt.distributed.context import DistributedContext
from hyrt.distributed.gradient_allreduce import GradientBuckets, build_buckets
from hyrt.errors import DeviceOutOfMemoryError, RankFailureError


@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=8), st.integers(1, 200))
def test_buckets_hold_each_parameter_once_from_the_last_on(
    sizes: list[tuple[int, bool]], least_bytes: int
) -> None:
    kinds = {False: torch.float32, True: torch.float64}
    parameters = [torch.zeros(size, dtype=kinds[is_double]) for size, is_double in sizes]
    buckets = build_buckets(parameters, least_bytes)
    assert [place for bucket in buckets for place in bucket] == list(reversed(range(len(sizes))))
    for bucket, following in zip(buckets, [*buckets[1:], None], strict=False):
        assert len({parameters[place].dtype for place in bucket}) == 1
        assert sum(parameters[place].nbytes for place in bucket[:-1]) < least_bytes
        if following is not None and parameters[following[0]].dtype == parameters[bucket[0]].dtype:
            assert sum(parameters[place].nbytes for place in bucket) >= least_bytes


def test_sums_are_those_of_all_ranks_whenever_each_begins() -> None:
    parameters = [torch.zeros(3, 2), torch.zeros(4), torch.zeros(5), torch.zeros(1)]
    told_first = threading.Event()

    def work(ranks: DistributedContext) -> tuple[list[torch.Tensor], int]:
        buckets = GradientBuckets(ranks.group("buckets"), parameters, build_buckets(parameters, 8))
        own = [torch.full_like(each, 10.0**ranks.rank) * (1 + i) for i, each in enumerate(parameters)]
        begun = 0
        if ranks.rank == 0:
            # The third bucket waits for the second parameter.
            for place in (3, 2, 0):
                buckets.add_gradient(place, own[place])
            begun = len(buckets._pending)
            told_first.set()
        told_first.wait(20)
        found = buckets.all_reduce([] if ranks.rank == 2 else own)
        return found, begun

    results = results_of(3, work)
    # The last two parameters fill the first bucket.
    assert results[0][1] == 1
    for found, _ in results:
        for i, total in enumerate(found):
            assert torch.equal(total, torch.full_like(parameters[i], 11.0 * (1 + i)))


def test_a_lost_rank_ends_those_that_have_begun() -> None:
    parameters = [torch.zeros(4), torch.zeros(4)]

    def work(ranks: DistributedContext) -> None:
        buckets = GradientBuckets(ranks.group("buckets"), parameters, build_buckets(parameters, 8))
        buckets.add_gradient(1, torch.ones(4))
        if ranks.rank == 1:
            raise ValueError("boom")
        with pytest.raises(RankFailureError, match="rank 1 failed"):
            buckets.all_reduce([torch.ones(4), torch.ones(4)])
        raise RankFailureError("as expected")

    found = on_ranks(2, work)
    assert "as expected" in str(found[0])
    assert str(found[1]) == "boom"


@pytest.mark.parametrize(
    ("strategy", "is_memory_limited"),
    [("model-centric", True), ("naive-migration", False), ("p3", False)],
)
def test_training_is_that_of_one_process(
    strategy: str, is_memory_limited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = random_graph(seed=6)
    rng = np.random.default_rng(3)
    homes = rng.integers(0, 3, graph.num_vertices).astype(np.uint8)
    # The last rank has no targets.
    homes[graph.split("train")[homes[graph.split("train")] == 2]] = 0
    more = {**deep("deepgcn", 3), "data": {"batch_size": 53}, "train": {"epochs": 2, "lr": 0.01}}
    wanted = weights(trained_alone(graph, settings("deepgcn", **more))[0])
    monkeypatch.setattr("hyrt.distributed.rank_setup.build_buckets", lambda all: build_buckets(all, 64))
    if is_memory_limited:
        own_step, steps = CpuDevice._step, itertools.count()

        def runs_short(self: CpuDevice, model: Any, batch: Any) -> Any:
            # Then it trains two halves, and tells of the gradients of each.
            if next(steps) == 2:
                raise DeviceOutOfMemoryError("no room")
            return own_step(self, model, batch)

        monkeypatch.setattr(CpuDevice, "_step", runs_short)
    begun: list[int] = []
    add = GradientBuckets.all_reduce

    def counted(self: GradientBuckets, own: Any) -> Any:
        begun.append(len(self._pending))
        return add(self, own)

    monkeypatch.setattr(GradientBuckets, "all_reduce", counted)
    given_settings = settings("deepgcn", **more, distributed={"strategy": strategy})
    results = [result for result, _ in results_of(3, lambda r: trained_on(r, graph, homes, given_settings))]
    for result in results:
        assert torch.equal(weights(result), weights(results[0]))
        assert (weights(result) - wanted).norm() < 1e-5 * wanted.norm()
    # All were begun before the step was through, but where others add to the gradients first.
    assert (max(begun) > 1) == (strategy != "p3")
