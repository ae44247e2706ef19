"""The seam itself: what is asked of torch's and pycuda's interfaces, and discovery, over doubles of them."""

from __future__ import annotations

import sys
import threading
import types
from typing import Any

import numpy as np
import pytest
import torch
from hyrt_devices.cuda import launch, probe
from hyrt_devices.cuda.driver import Driver
from hyrt_devices.cuda.launch import ROWS, THREADS, PycudaLauncher, groups
from hyrt_devices.cuda.staging import Parcel, pinned_pool
from unit.cuda.fake_driver import FakeDriver


class Api:
    """Of torch.cuda, what the driver uses."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.fraction = 1.0

    class Stream:
        def __init__(self, device: torch.device) -> None:
            self.waits: list[Any] = []

        def wait_event(self, event: Any) -> None:
            self.waits.append(event)

    class Event:
        def __init__(self, enable_timing: bool, blocking: bool = False) -> None:
            assert enable_timing
            assert blocking, "a thread that waits for a CUDA event must not spin"
            self.recorded_on: Any = None
            self.synchronized = False

        def record(self, stream: Any) -> None:
            self.recorded_on = stream

        def synchronize(self) -> None:
            self.synchronized = True

        def elapsed_time(self, end: Any) -> float:
            return 250.0

    def stream(self, stream: Any) -> Any:
        self.said.append(stream)
        return stream

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        return 3, 10

    def memory_allocated(self, device: torch.device) -> int:
        return 7

    def get_device_properties(self, device: torch.device) -> Any:
        return types.SimpleNamespace(total_memory=1000)

    def set_per_process_memory_fraction(self, fraction: float, device: torch.device) -> None:
        assert device == torch.device("cuda", 1)
        self.fraction = fraction

    def empty_cache(self) -> None:
        self.said.append("emptied")


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    found = Api()
    monkeypatch.setattr(torch, "get_device_module", lambda kind: found)
    return found


def test_marks_are_blocking_timed_events_on_the_stream(api: Api) -> None:
    driver = Driver("cuda", 1)
    copies, compute = driver.stream(), driver.stream()
    mark = driver.mark(copies)
    assert mark.recorded_on is copies
    driver.order(compute, mark)
    assert compute.waits == [mark]
    driver.wait(mark)
    assert mark.synchronized
    assert driver.seconds(mark, driver.mark(compute)) == 0.25
    assert driver.running(copies) is copies
    assert (driver.free_bytes(), driver.used_bytes()) == (3, 7)


def test_a_limit_is_a_fraction_of_the_memory_and_none_lifts_it(api: Api) -> None:
    driver = Driver("cuda", 1)
    driver.limit(250)
    assert api.fraction == 0.25
    driver.limit(5000)
    assert api.fraction == 1.0
    driver.limit(None)
    assert api.fraction == 1.0
    driver.trim()
    assert api.said == ["emptied"]


def test_only_torchs_own_error_is_out_of_memory(api: Api) -> None:
    driver = Driver("cuda", 1)
    assert driver.out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not driver.out_of_memory(RuntimeError("CUDA error: out of memory"))


class FakePycuda:
    """pycuda's modules: a context stack for each thread, and functions that remember their launches."""

    def __init__(self) -> None:
        self.stacks: dict[int, int] = {}
        self.launches: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.compiled: list[tuple[str, dict[str, Any]]] = []
        fake = self

        class Context:
            def push(self) -> None:
                fake.stacks[threading.get_ident()] = fake.depth() + 1

            @staticmethod
            def pop() -> None:
                fake.stacks[threading.get_ident()] = fake.depth() - 1

        class Device:
            def __init__(self, index: int) -> None:
                assert index == 0

            def retain_primary_context(self) -> Context:
                return Context()

        class Stream:
            def __init__(self, flags: int) -> None:
                assert fake.depth() == 1
                assert flags == 1, "streams that do not wait for the default one"
                self.handle = 1000 + id(self) % 1000

        class SourceModule:
            def __init__(self, source: str, **options: Any) -> None:
                assert fake.depth() == 1
                fake.compiled.append((source, options))

            def get_function(self, name: str) -> Any:
                def call(*arguments: Any, **options: Any) -> None:
                    assert fake.depth() == 1
                    fake.launches.append((name, arguments, options))

                return call

        self.driver = types.ModuleType("pycuda.driver")
        self.driver.__dict__.update(init=lambda: None, Context=Context, Device=Device, Stream=Stream)
        self.compiler = types.ModuleType("pycuda.compiler")
        self.compiler.__dict__.update(SourceModule=SourceModule)
        self.package = types.ModuleType("pycuda")
        self.package.__dict__.update(driver=self.driver, compiler=self.compiler)

    def depth(self) -> int:
        return self.stacks.get(threading.get_ident(), 0)


def test_pycuda_launches_in_any_thread_on_torchs_current_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakePycuda()
    for name, module in (
        ("pycuda", fake.package),
        ("pycuda.driver", fake.driver),
        ("pycuda.compiler", fake.compiler),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle, device: ("external", handle))
    launcher = PycudaLauncher(torch.device("cuda", 0))
    _, handle = launcher.stream()
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda device: types.SimpleNamespace(cuda_stream=handle)
    )
    program = launcher.program("gather", {"HYRT_ID": "long long"})
    source, options = fake.compiled[0]
    assert "gather_half" in source
    assert options["no_extern_c"]
    assert "-DHYRT_ID=long long" in options["options"]
    tensor = torch.zeros(3)
    arguments = [tensor, None, np.int32(5)]

    def launch() -> None:
        program.launch("gather_float", 20, ROWS, arguments)

    for start in (launch, lambda: on_a_thread(launch)):
        start()
    program.launch("gather_float", 0, ROWS, arguments)
    assert len(fake.launches) == 2, "nothing is launched for no rows"
    for name, packed, how in fake.launches:
        assert name == "gather_float"
        assert [p.dtype.name for p in packed] == ["uint64", "uint64", "int32"]
        assert [int(p) for p in packed] == [tensor.data_ptr(), 0, 5]
        assert how["grid"] == (3, 1)
        assert how["block"] == (32, 8, 1)
        assert how["stream"].handle == handle
    assert set(fake.stacks.values()) == {0}, "every context pushed is popped"


def on_a_thread(work: Any) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_groups_cover_every_item() -> None:
    assert [groups(n, THREADS) for n in (1, 256, 257)] == [1, 1, 2]
    assert [groups(n, ROWS) for n in (1, 8, 9)] == [1, 1, 2]


def test_a_probe_describes_and_rates_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = types.SimpleNamespace(
        name="NVIDIA H200",
        multi_processor_count=132,
        total_memory=150 << 30,
        clock_rate=1_980_000,
        memory_clock_rate=3_201_000,
        memory_bus_width=6144,
    )
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(probe, "can_build", lambda: True)
    first, second = probe.found("cuda")
    assert (first.name, second.name) == ("cuda:0", "cuda:1")
    assert first.description == "NVIDIA H200, 132 SMs, own kernels"
    assert first.host_cores == 0
    assert first.forms == ("rows", "ids")
    assert first.rates is not None
    assert first.rates.macs_per_s == pytest.approx(132 * 128 * 1.98e9)
    assert first.rates.memory_bytes_per_s == pytest.approx(4.92e12, rel=0.01)
    assert first.rates.source.startswith("assumed")
    monkeypatch.setattr(probe, "can_build", lambda: False)
    properties.clock_rate = properties.memory_clock_rate = 0
    info = probe.found("cuda")[0]
    assert "pycuda is not installed" in info.description
    assert info.rates is not None
    assert info.rates.macs_per_s > 0
    assert info.rates.memory_bytes_per_s > 0


def test_a_driver_that_raises_is_a_reason_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> int:
        raise RuntimeError("driver and library version mismatch")

    monkeypatch.setattr(torch.cuda, "device_count", broken)
    assert probe.found("cuda") == []
    assert "version mismatch" in probe.why_missing("cuda")


def test_the_reason_for_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    assert probe.why_missing("cuda") == "no NVIDIA driver or no GPU: see docs/devices.md#cuda"
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    assert "pip install torch" in probe.why_missing("cuda")


def test_a_parcel_arrives_as_it_was_packed() -> None:
    driver = FakeDriver()
    pool = pinned_pool(driver)
    arrays = [
        np.arange(5, dtype=np.int32),
        np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2],
        np.empty((0, 7), np.float32),
        np.arange(3, dtype=np.int64),
    ]
    parcel = Parcel()
    places = [parcel.add(array) for array in [*arrays, arrays[0]]]
    assert places == [0, 1, 2, 3, 0]
    host = pool.take(parcel.size, np.uint8)
    arrived = parcel.send(host, driver.device)
    assert len(arrived) == len(arrays)
    for array, tensor in zip(arrays, arrived, strict=True):
        assert tensor.numpy().dtype == array.dtype
        assert np.array_equal(tensor.numpy(), array)


def test_the_pool_hands_out_what_came_back_and_nothing_that_did_not() -> None:
    driver = FakeDriver()
    pool = pinned_pool(driver)
    first, second = pool.take(10_000_000, np.uint8), pool.take(10_000_000, np.uint8)
    assert not np.shares_memory(first, second)
    pool.give(first)
    assert np.shares_memory(pool.take(9_500_000, np.uint8), first)
    pool.give(second)
    small = pool.take(100, np.uint8)
    assert not np.shares_memory(small, second), "a far too large buffer waits for a larger need"
    assert pool.allocated_bytes == driver.pinned_bytes
    pool.clear()
    assert not np.shares_memory(pool.take(10_000_000, np.uint8), second)


def test_pycuda_is_looked_for_without_an_import() -> None:
    assert launch.can_build() in (True, False)
    assert "pycuda" not in sys.modules or launch.can_build()
