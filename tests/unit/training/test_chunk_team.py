"""A whole graph on several devices: equal to the CPU's own step for any P and set, also if one fails."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graphs import random_graph
from hyrt_devices.cpu import CpuDevice, HostChunkMemory
from hyrt_devices.cuda import tile_math
from hyrt_devices.cuda.torch_chunks import TorchChunks
from hyrt_devices.opencl import OpenclDevice

import hyrt
from hyrt.config import build_config
from hyrt.device import DeviceOptions
from hyrt.errors import DeviceOutOfMemoryError, HyrtError, UnsupportedModelError
from hyrt.fullgraph.chunk_grid import ChunkSizes
from hyrt.fullgraph.device_relay import RowReader
from hyrt.nn.torch_threads import torch_threads
from hyrt.telemetry.events import Event, Notice, StepMetrics
from hyrt.training.setup import build_model

needs_opencl = pytest.mark.skipif(
    not OpenclDevice.probe(), reason=OpenclDevice.missing() or "no OpenCL device"
)
GRAPH = random_graph(150, features=12)
ONE_THREAD = {"train_threads": 1, "stall_timeout_s": 60.0}


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


@pytest.fixture(autouse=True)
def _few_sums_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile_math, "_MAX_SUMS", 100)


def trained(devices: Sequence[str], *, epochs: int = 3, **settings: Any) -> tuple[list[Event], Any]:
    heard: list[Event] = []
    result = hyrt.train(
        GRAPH,
        {"kind": "gcn", "hidden": 9, **settings.pop("model", {})},
        full_graph=True,
        emit=heard.append,
        devices=list(devices),
        balance={"predict": False},
        train={"epochs": epochs},
        runtime={**ONE_THREAD, **settings.pop("runtime", {})},
        **settings,
    )
    return heard, result


def losses(heard: Sequence[Event]) -> list[float]:
    return [loss for event in heard if isinstance(event, StepMetrics) for loss in event.losses]


def test_a_processor_keeps_to_its_device_memory() -> None:
    device = CpuDevice(CpuDevice.probe()[0], DeviceOptions(threads=1, memory_bytes=5 << 20))
    model = build_model(build_config({"model": {"kind": "gcn"}}), GRAPH)
    device.load(model, list(model.parameters()))
    room = device.chunk_memory(1)
    assert room.free_bytes() == 5 << 20
    # What operators take besides is the host's, however small the limit is.
    assert room.needed_bytes(ChunkSizes(vertices=10, targets=10, edges=100, edge_rows=10)) < 1 << 20
    device.close()


@pytest.fixture(scope="module")
def wanted() -> list[float]:
    with torch_threads(1):
        return losses(trained(["cpu"], epochs=20)[0])


@pytest.mark.parametrize(
    ("devices", "num"),
    [
        *((["cpu"], num) for num in (2, 7)),
        *((["cpu:0", "cpu:1"], num) for num in (1, 2, 4, 7)),
        *(pytest.param(["cpu=1", "opencl=3"], num, marks=needs_opencl) for num in (1, 4)),
    ],
)
def test_losses_of_twenty_epochs_are_those_of_the_cpu(
    devices: list[str], num: int, wanted: list[float]
) -> None:
    heard, result = trained(devices, epochs=20, fullgraph={"chunks": num})
    assert losses(heard) == pytest.approx(wanted, rel=1e-5)
    assert len(wanted) == 20
    [(_, figures)] = result.summary["chunks"].items()
    assert figures["intervals"] == num


def test_models_with_masks_and_other_orders_too() -> None:
    model = {"kind": "gcn", "layers": 3, "dropout": 0.3, "input_dropout": 0.2}
    alone = losses(trained(["cpu"], model=model)[0])
    for order in ("column-row", "row-column"):
        heard, _ = trained(["cpu:0=2", "cpu:1=1"], model=model, fullgraph={"chunks": 5, "order": order})
        assert losses(heard) == pytest.approx(alone, rel=1e-5)


def test_equal_runs_have_equal_bits() -> None:
    first, second = (trained(["cpu:0", "cpu:1"], fullgraph={"chunks": 4}) for _ in range(2))
    assert losses(first[0]) == losses(second[0])
    mine, other = (result.model.state_dict() for _, result in (first, second))
    assert all(torch.equal(mine[name], other[name]) for name in other)


def test_rows_that_are_filtered_for_each_device_change_no_bit() -> None:
    found = []
    for limit in (None, 1.0):
        heard, result = trained(["cpu:0", "cpu:1"], fullgraph={"chunks": 5, "filter_below": limit})
        [figures] = result.summary["chunks"].values()
        found.append((losses(heard), figures["filtered"]))
    (plain, none), (filtered, some) = found
    assert filtered == plain
    assert none == 0, "the CPU reads rows where they lie"
    assert some > 0


def test_each_device_reads_rows_with_buffers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices read at the same time, and a buffer is written to while the last one is copied."""
    read = RowReader.read
    devices: dict[RowReader, set[Any]] = {}

    def noted(self: RowReader, kernels: Any, rows: Any, useful: Any) -> None:
        devices.setdefault(self, set()).add(kernels)
        read(self, kernels, rows, useful)

    monkeypatch.setattr(RowReader, "read", noted)
    trained(["cpu:0", "cpu:1"], epochs=1, fullgraph={"chunks": 5, "filter_below": 1.0})
    assert [len(users) for users in devices.values()] == [1, 1]
    assert len(set.union(*devices.values())) == 2


def test_devices_without_a_share_leave_a_plain_run() -> None:
    (alone, plain), (heard, result) = (trained(devices) for devices in (["cpu"], ["cpu:0=1", "cpu:1=0"]))
    assert losses(heard) == losses(alone)
    assert "chunks" not in plain.summary
    assert "chunks" not in result.summary, "the CPU's own step, whose layers are fused"


def fail_in(monkeypatch: pytest.MonkeyPatch, number: int, error: Exception) -> None:
    """Let the second CPU's kernels fail once, in their so many-th gathering."""
    take, gather = HostChunkMemory.allocate, TorchChunks.gather
    seen, theirs = [0], set()

    def taken(self: HostChunkMemory, chunks: Any) -> TorchChunks:
        made = take(self, chunks)
        if self.name == "cpu:1":
            theirs.add(id(made))
        return made

    def gathered(self: TorchChunks, *args: Any, **more: Any) -> None:
        seen[0] += id(self) in theirs
        if id(self) in theirs and seen[0] == number:
            seen[0] += 1
            raise error
        gather(self, *args, **more)

    monkeypatch.setattr(HostChunkMemory, "allocate", taken)
    monkeypatch.setattr(TorchChunks, "gather", gathered)


def test_the_others_take_over_from_a_device_that_is_lost(
    monkeypatch: pytest.MonkeyPatch, wanted: list[float]
) -> None:
    fail_in(monkeypatch, 25, OSError("unplugged"))
    heard, result = trained(
        ["cpu:0", "cpu:1"], epochs=5, fullgraph={"chunks": 4}, runtime={"on_device_loss": "continue"}
    )
    assert losses(heard) == pytest.approx(wanted[:5], rel=1e-5)
    [told] = [event.text for event in heard if isinstance(event, Notice) and event.kind == "warning"]
    assert "cpu:1 is lost; cpu:0 took over its columns" in told
    assert "unplugged" in told
    assert list(result.summary["devices_lost"]) == ["cpu:1"]


def test_a_lost_device_ends_a_run_that_may_not_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_in(monkeypatch, 10, OSError("unplugged"))
    with pytest.raises(HyrtError, match=r"cpu:1.*unplugged"):
        trained(["cpu:0", "cpu:1"], fullgraph={"chunks": 4})


@pytest.mark.parametrize(("number", "told"), [(1, ["4 x 4"]), (12, ["2 x 2", "4 x 4 (previously 2 x 2)"])])
def test_chunks_become_smaller_where_one_device_is_out_of_memory(
    number: int, told: list[str], monkeypatch: pytest.MonkeyPatch, wanted: list[float]
) -> None:
    """In the first step, or in the second one, after the first has said how the graph is cut."""
    fail_in(monkeypatch, number, DeviceOutOfMemoryError("cpu:1 has no more"))
    heard, result = trained(["cpu:0", "cpu:1"], epochs=5, fullgraph={"device_memory": "100MiB"})
    assert losses(heard) == pytest.approx(wanted[:5], rel=1e-5)
    assert not result.summary["devices_lost"]
    notices = [event.text for event in heard if isinstance(event, Notice)]
    cuts = [re.search(r"trains in (\d+ x \d+) chunks .*?( \(previously.*)?$", text) for text in notices]
    assert ["".join(each.groups("")) for each in cuts if each] == told


def columns_of(
    devices: Sequence[str], monkeypatch: pytest.MonkeyPatch, **fullgraph: Any
) -> dict[str, set[int]]:
    """The columns of the first layer that each of several CPUs computes, counted from 1."""
    seen: dict[str, set[str]] = {}
    take = HostChunkMemory.allocate

    def taken(self: HostChunkMemory, chunks: Any) -> TorchChunks:
        made = take(self, chunks)
        made.set_trace_label = seen.setdefault(self.name, set()).add  # type: ignore[method-assign]
        return made

    monkeypatch.setattr(HostChunkMemory, "allocate", taken)
    trained(devices, epochs=1, fullgraph=fullgraph)
    return {
        name: {int(chunk.split()[-1]) for chunk in chunks if chunk.startswith("layer 1, chunk")}
        for name, chunks in seen.items()
    }


def test_columns_are_dealt_out_by_the_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = columns_of(["cpu:0=1", "cpu:1=3"], monkeypatch, chunks=8)
    assert {name: len(mine) for name, mine in columns.items()} == {"cpu:0": 2, "cpu:1": 6}
    assert set.union(*columns.values()) == set(range(1, 9))


@pytest.mark.parametrize("devices", [["cpu:0", "cpu:1"], ["cpu:0=1", "cpu:1=3"]], ids="+".join)
def test_each_device_gets_a_column_of_a_graph_that_would_fit_in_one(
    devices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = columns_of(devices, monkeypatch)
    assert sorted(columns) == ["cpu:0", "cpu:1"]
    assert all(columns.values())


@needs_opencl
def test_a_trace_has_the_queues_of_each_device(tmp_path: Path) -> None:
    trained(
        ["cpu=1", "opencl=2"], epochs=1, fullgraph={"chunks": 3}, folder=tmp_path, runtime={"trace": True}
    )
    [path] = tmp_path.glob("trace*.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    told = [event for event in events if event["name"] in ("process_name", "thread_name")]
    [process] = [event["pid"] for event in told if event["args"]["name"] == "opencl:0 queues"]
    mine = [event for event in told if event["pid"] == process and event["name"] == "thread_name"]
    tracks = {event["args"]["name"] for event in mine}
    assert tracks == {"copy in", "compute", "copy out"}
    # Dealt out by the shares: of three columns, two.
    gathered = [event["name"] for event in events if event["name"].startswith("accumulate, layer 1, chunk")]
    assert len({name.split()[-1] for name in gathered}) == 2


def test_devices_that_share_no_columns_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"null:0 does not support full graphs that it shares"):
        trained(["cpu", "null"])


def test_matrices_beyond_the_budget_of_the_host_live_in_a_file_with_the_same_bits() -> None:
    found = []
    for limit in (None, "1MiB"):
        heard, result = trained(
            ["cpu:0", "cpu:1"], model={"hidden": 2048}, fullgraph={"chunks": 4, "host_memory": limit}
        )
        [figures] = result.summary["chunks"].values()
        found.append((losses(heard), figures["host_bytes"], figures["file_bytes"]))
    (free, all_bytes, none), (limited, same, in_file) = found
    assert limited == free
    # A hidden row of all vertices alone takes more.
    assert all_bytes == same > 150 * 2048 * 4 > 2**20
    assert none == 0
    assert same - in_file <= 2**20


def test_the_order_of_the_devices_changes_sums_by_rounding_alone() -> None:
    one, other = (
        losses(trained(devices, fullgraph={"chunks": 4})[0])
        for devices in (["cpu:0", "cpu:1"], ["cpu:1", "cpu:0"])
    )
    assert np.allclose(one, other, rtol=1e-6)


def test_as_many_chunks_as_were_asked_for_are_not_cut_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_in(monkeypatch, 1, DeviceOutOfMemoryError("no more of it"))
    with pytest.raises(HyrtError, match="no more of it"):
        trained(["cpu:0", "cpu:1"], epochs=1, fullgraph={"chunks": 4})


def test_the_device_that_has_no_room_for_any_chunk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    free = HostChunkMemory.free_bytes
    monkeypatch.setattr(
        HostChunkMemory, "free_bytes", lambda self: 100 if self.name == "cpu:1" else free(self)
    )
    with pytest.raises(
        HyrtError, match=r"even single-vertex chunks need \d.* on cpu:1, but only 100 bytes are free"
    ):
        trained(["cpu:0", "cpu:1"], epochs=1)
