"""Models whose vertices the host computes, on several devices: loops are dealt out, sums do not change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hyrt_devices.opencl import OpenclDevice
from hyrt_devices.opencl.edge_loops import OpenclLoops
from unit.training.test_chunk_team import losses, trained

from hyrt.errors import DeviceOutOfMemoryError, HyrtError
from hyrt.fullgraph import chunked_loops
from hyrt.fullgraph.chunked_loops import ChunkedLoops
from hyrt.fullgraph.intervals import ChunkOptions
from hyrt.fullgraph.loop_device import HostLoops
from hyrt.fullgraph.matrix_pool import HostMemoryBudget
from hyrt.nn.fused.edge_loop import Edges
from hyrt.nn.fused.fused_gather import SumLoops
from hyrt.nn.fused.loop_backend import use_loop_backend
from hyrt.nn.torch_threads import torch_threads
from hyrt.runtime.workers import Workers
from hyrt.telemetry.events import Notice

needs_opencl = pytest.mark.skipif(
    not OpenclDevice.probe(), reason=OpenclDevice.missing() or "no OpenCL device"
)
TWO = ["cpu:0=1", "cpu:1=2"]
BOTH = pytest.param(["cpu=1", "opencl=2"], marks=needs_opencl)
KINDS: dict[str, dict[str, Any]] = {
    "gat": {"kind": "gat", "heads": 3, "hidden": 9, "attention_dropout": 0.4},
    "graphsage of the largest": {"kind": "graphsage", "aggregate": "max"},
    "ggcn": {"kind": "ggcn", "hidden": 9},
}


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


@pytest.mark.parametrize("devices", [["cpu"], TWO, BOTH], ids="+".join)
@pytest.mark.parametrize("name", KINDS)
def test_losses_are_those_of_the_cpu(devices: list[str], name: str) -> None:
    wanted = losses(trained(["cpu"], model=KINDS[name])[0])
    for num in (1, 7) if name == "gat" else (4,):
        heard, _ = trained(devices, model=KINDS[name], fullgraph={"chunks": num})
        assert losses(heard) == pytest.approx(wanted, rel=1e-5)
    assert len(wanted) == 3


@pytest.mark.parametrize("devices", [TWO, BOTH], ids="+".join)
def test_equal_runs_of_loops_have_equal_bits(devices: list[str]) -> None:
    (first, one), (second, two) = (
        trained(devices, model=KINDS["gat"], fullgraph={"chunks": 4}) for _ in range(2)
    )
    assert losses(first) == losses(second)
    mine, other = (result.model.state_dict() for result in (one, two))
    assert all(torch.equal(mine[name], other[name]) for name in other)


def fail_on_cpu(monkeypatch: pytest.MonkeyPatch, number: int, error: Exception) -> None:
    """Let the `number`-th interval that a CPU of several computes end with an error."""
    run, seen = chunked_loops.run_on_host, [0]

    def failing(*args: Any, **more: Any) -> Any:
        seen[0] += 1
        if seen[0] == number:
            raise error
        return run(*args, **more)

    monkeypatch.setattr(chunked_loops, "run_on_host", failing)


@needs_opencl
def test_the_others_take_over_the_loops_of_a_device_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = losses(trained(["cpu"], model=KINDS["ggcn"])[0])
    fail_on_cpu(monkeypatch, 5, OSError("unplugged"))
    heard, result = trained(
        ["opencl=2", "cpu=1"],
        model=KINDS["ggcn"],
        fullgraph={"chunks": 3},
        runtime={"on_device_loss": "continue"},
    )
    assert losses(heard) == pytest.approx(wanted, rel=1e-5)
    [told] = [event.text for event in heard if isinstance(event, Notice) and event.kind == "warning"]
    assert "cpu:0 is lost; opencl:0 took over its columns" in told
    assert list(result.summary["devices_lost"]) == ["cpu:0"]


def test_a_lost_device_ends_a_run_of_loops_that_may_not_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_on_cpu(monkeypatch, 3, OSError("unplugged"))
    with pytest.raises(HyrtError, match=r"cpu:\d.*unplugged"):
        trained(TWO, model=KINDS["ggcn"], fullgraph={"chunks": 3})


@needs_opencl
def test_loops_are_cut_smaller_where_one_device_is_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = losses(trained(["cpu"], model=KINDS["ggcn"])[0])
    launch, seen = OpenclLoops.launch, [0]
    grow, cut = ChunkedLoops._grow, list[tuple[int, int]]()

    def failing(self: OpenclLoops, *args: Any) -> None:
        seen[0] += 1
        if seen[0] == 2:
            raise DeviceOutOfMemoryError("opencl:0 has no more")
        launch(self, *args)

    def grows(self: ChunkedLoops, num: int) -> None:
        cut.append((self.min_intervals, num))
        grow(self, num)

    monkeypatch.setattr(OpenclLoops, "launch", failing)
    monkeypatch.setattr(ChunkedLoops, "_grow", grows)
    heard, result = trained(["cpu=1", "opencl=2"], model=KINDS["ggcn"])
    assert losses(heard) == pytest.approx(wanted, rel=1e-5)
    assert not result.summary["devices_lost"]
    [(before, after)] = [each for each in cut if each[1] > each[0]]
    assert after == 2 * before
    [figures] = result.summary["chunks"].values()
    assert figures["intervals"] == after


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 40), st.lists(st.integers(1, 5), min_size=1, max_size=3), st.integers(0, 9), st.data())
def test_intervals_of_several_teams_are_the_whole(
    num: int, shares: list[int], chunks: int, data: st.DataObject
) -> None:
    """Sums over any graph, for any shares: every row is written once, at some vertices or at all."""
    edges = data.draw(st.lists(st.tuples(st.integers(0, num - 1), st.integers(0, num - 1)), max_size=80))
    dense = np.zeros((num, num))
    for i, j in edges:
        dense[i, j] += 1
    indptr = np.concatenate([[0], np.cumsum(dense.sum(1))]).astype(np.int64)
    columns = np.repeat(np.tile(np.arange(num, dtype=np.int32), num), dense.ravel().astype(int))
    rows = np.array(sorted(data.draw(st.sets(st.integers(0, num - 1), min_size=1))))
    x = np.random.default_rng(num).normal(size=(num, 3)).astype(np.float32)
    teams = [HostLoops(f"team {k}", Workers(1, f"team {k}")) for k in range(len(shares))]
    runner = ChunkedLoops(teams, ChunkOptions(chunks), HostMemoryBudget(), shares)
    for chosen in (None, rows):
        out = np.full((num if chosen is None else len(chosen), 3), np.nan, np.float32)
        with use_loop_backend(runner):
            SumLoops(None, True).forward(
                Edges(indptr=indptr, columns=columns, rows=chosen, loops=num), x, out, None
            )
        wanted = (dense + np.eye(num)) @ x
        np.testing.assert_allclose(out, wanted if chosen is None else wanted[chosen], rtol=1e-4, atol=1e-4)
    for team in teams:
        team.workers.close()
