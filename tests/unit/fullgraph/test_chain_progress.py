"""Steps that end between any two halves of their layers go on there: the same bits as without a pause."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from graphs import random_graph
from unit.fullgraph.pauses import Pauses
from unit.fullgraph.test_replica import ALONE, MODELS, OBJECTIVE, SIZES, batch_of, model_of, replica_of

from hyrt.errors import StepInterrupted
from hyrt.fullgraph.replica import FullGraphReplica
from hyrt.nn.torch_threads import torch_threads
from hyrt.sampling.minibatch import MiniBatch


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


def replica_without_rows(name: str, kept: int) -> tuple[FullGraphReplica, MiniBatch]:
    graph = random_graph(300, symmetric=False, **SIZES)
    model = model_of(graph, **MODELS[name])
    batch = batch_of(graph, len(model.layers), 90)
    return replica_of(model, graph, batch, 70, kept, keeps_rows=False), batch


@pytest.mark.parametrize("kept_bytes", [0, 1 << 30])
@pytest.mark.parametrize(
    "name", ["gcn, one layer", "deepgcn", "graphsage, norm", "graphsage, max, masks", "gat, all"]
)
def test_a_step_that_ends_anywhere_goes_on_there(name: str, kept_bytes: int, tmp_path: Path) -> None:
    never = Pauses(tmp_path / "none.npz")
    replica, batch = replica_without_rows(name, kept_bytes)
    wanted = replica.step(batch, OBJECTIVE, ALONE, never)
    halves = never.asked
    assert halves >= 2
    for after in range(halves):
        first = Pauses(tmp_path / "step.npz", after=after)
        replica, batch = replica_without_rows(name, kept_bytes)
        with pytest.raises(StepInterrupted):
            replica.step(batch, OBJECTIVE, ALONE, first)
        assert [told.number for told in first.told] == [after + 1]
        second = Pauses(tmp_path / "step.npz", reads=True)
        replica, batch = replica_without_rows(name, kept_bytes)
        # The next step is whole, and has the memory of this one.
        for _ in range(2):
            found = replica.step(batch, OBJECTIVE, ALONE, second)
            assert (found.loss_sum, found.counts) == (wanted.loss_sum, wanted.counts)
            assert all(torch.equal(a, b) for a, b in zip(found.gradients, wanted.gradients, strict=True))
        assert [kept is None for kept in second.begun_at] == [False, True]
