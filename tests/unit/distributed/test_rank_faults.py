"""A fault of one rank ends all ranks, and each of them names it."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from graphs import random_graph
from unit.distributed.ranks_in_threads import on_ranks
from unit.distributed.test_distributed_training import settings, trained_on

from hyrt.distributed.context import DistributedContext
from hyrt.distributed.monitoring import RanksHook
from hyrt.errors import HyrtError, RankFailureError
from hyrt.telemetry.faults import FaultInjectionHook, parse_faults


@pytest.mark.parametrize("strategy", ["home", "hopgnn"])
@pytest.mark.parametrize("stage", ["sample", "load", "propagate", "synchronize", "evaluate"])
def test_the_fault_of_a_rank_ends_all(stage: str, strategy: str) -> None:
    graph = random_graph(seed=1)
    homes = np.random.default_rng(2).integers(0, 3, graph.num_vertices).astype(np.uint8)
    given = settings("graphsage", distributed={"strategy": strategy})
    place = "host" if stage in ("synchronize", "evaluate") else "cpu:0"
    faults = parse_faults(f"{stage}:rank1.{place}:3:raise")

    def trained(ranks: DistributedContext) -> object:
        told = RanksHook(ranks, [torch.zeros(1)], strategy)
        hooks = [FaultInjectionHook(faults, ranks.rank, ranks.size), told]
        return trained_on(ranks, graph, homes, given, hooks=hooks)

    before = threading.active_count()
    first, faulty, last = on_ranks(3, trained)
    what = f"injected in {stage} on {place} at step"
    assert isinstance(faulty, HyrtError | RuntimeError)
    assert not isinstance(faulty, RankFailureError)
    assert what in str(faulty)
    for other in (first, last):
        assert isinstance(other, RankFailureError)
        assert str(other).startswith("rank 1 failed: ")
        assert what in str(other)
    assert threading.active_count() == before
