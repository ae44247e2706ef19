"""The seam itself: what is asked of torch, pycuda and cuda-bindings, and discovery, over doubles of them."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import types
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hyrt_devices.cuda import launch, probe
from hyrt_devices.cuda.driver import CoalescedCopy, Driver, pinned_pool
from hyrt_devices.cuda.launch import (
    ROWS,
    THREADS,
    BindingsLauncher,
    KernelProgram,
    PycudaLauncher,
    groups,
    launchers,
)
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


class Contexts:
    """A stack of contexts for each thread."""

    def __init__(self) -> None:
        self.stacks: dict[int, int] = {}

    def push(self) -> None:
        self.stacks[threading.get_ident()] = self.depth() + 1

    def pop(self) -> None:
        self.stacks[threading.get_ident()] = self.depth() - 1

    def depth(self) -> int:
        return self.stacks.get(threading.get_ident(), 0)


@dataclass
class Launched:
    """A kernel as the driver gets it."""

    kernel: str
    arguments: list[int]
    sizes: list[int]
    grid: tuple[int, ...]
    block: tuple[int, ...]
    stream: int


class FakePycuda:
    """pycuda's driver, as far as it is used."""

    def __init__(self) -> None:
        self.contexts = Contexts()
        self.launches: list[Launched] = []
        self.loaded: list[bytes] = []
        fake, contexts = self, self.contexts

        class Context:
            push = staticmethod(contexts.push)
            pop = staticmethod(contexts.pop)

        class Device:
            def __init__(self, index: int) -> None:
                assert index == 1

            def retain_primary_context(self) -> type[Context]:
                return Context

        class Stream:
            def __init__(self, flags: int) -> None:
                assert contexts.depth() == 1
                assert flags == 1, "streams that do not wait for the default one"
                self.handle = 1000 + id(self) % 1000

        class Module:
            def get_function(self, name: str) -> Any:
                def call(*given: Any, grid: Any, block: Any, stream: Stream) -> None:
                    assert contexts.depth() == 1
                    sizes = [number.dtype.itemsize for number in given]
                    fake.launches.append(
                        Launched(name, [int(n) for n in given], sizes, grid, block, stream.handle)
                    )

                return call

        def module_from_buffer(code: bytes) -> Module:
            assert contexts.depth() == 1
            fake.loaded.append(code)
            return Module()

        self.driver = types.ModuleType("pycuda.driver")
        self.driver.__dict__.update(
            init=lambda: None,
            Context=Context,
            Device=Device,
            Stream=Stream,
            module_from_buffer=module_from_buffer,
        )

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        package = types.ModuleType("pycuda")
        package.__dict__.update(driver=self.driver)
        monkeypatch.setitem(sys.modules, "pycuda", package)
        monkeypatch.setitem(sys.modules, "pycuda.driver", self.driver)


class FakeBindings:
    """The driver of cuda-bindings, as far as it is used; it reads arguments where it is told they are."""

    def __init__(self, arguments: list[int]) -> None:
        self.contexts = Contexts()
        self.launches: list[Launched] = []
        self.loaded: list[bytes] = []
        self._sizes = arguments
        self.status = 0
        self.driver = types.ModuleType("cuda.bindings.driver")
        self.driver.__dict__.update({name: getattr(self, name) for name in dir(self) if name[:2] == "cu"})

    def _answer(self, *values: Any) -> tuple[Any, ...]:
        return (self.status, *values)

    def cuInit(self, flags: int) -> tuple[Any, ...]:  # noqa: N802
        return self._answer()

    def cuDeviceGet(self, index: int) -> tuple[Any, ...]:  # noqa: N802
        return self._answer(f"device {index}")

    def cuDevicePrimaryCtxRetain(self, device: str) -> tuple[Any, ...]:  # noqa: N802
        return self._answer(f"context of {device}")

    def cuCtxPushCurrent(self, context: str) -> tuple[Any, ...]:  # noqa: N802
        assert context == "context of device 1"
        self.contexts.push()
        return self._answer()

    def cuCtxPopCurrent(self) -> tuple[Any, ...]:  # noqa: N802
        self.contexts.pop()
        return self._answer("context of device 1")

    def cuModuleLoadData(self, code: bytes) -> tuple[Any, ...]:  # noqa: N802
        assert self.contexts.depth() == 1
        self.loaded.append(code)
        return self._answer("module")

    def cuModuleGetFunction(self, module: str, name: bytes) -> tuple[Any, ...]:  # noqa: N802
        assert (module, self.contexts.depth()) == ("module", 1)
        return self._answer(name.decode())

    def cuLaunchKernel(self, function: str, *numbers: int) -> tuple[Any, ...]:  # noqa: N802
        assert self.contexts.depth() == 1
        shared, stream, places, extra = numbers[6:]
        assert (shared, extra) == (0, 0)
        addresses = (ctypes.c_void_p * len(self._sizes)).from_address(places)
        found = [
            int.from_bytes(ctypes.string_at(address, size), sys.byteorder)
            for address, size in zip(addresses, self._sizes, strict=True)
        ]
        self.launches.append(Launched(function, found, self._sizes, numbers[:2], numbers[3:6], stream))
        return self._answer()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        package = types.ModuleType("cuda.bindings")
        package.__dict__.update(driver=self.driver)
        monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
        monkeypatch.setitem(sys.modules, "cuda.bindings", package)
        monkeypatch.setitem(sys.modules, "cuda.bindings.driver", self.driver)


@pytest.mark.parametrize("package", ["pycuda", "cuda-bindings"])
def test_kernels_are_launched_in_any_thread_on_torchs_current_stream(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakePycuda() if package == "pycuda" else FakeBindings([8, 8, 4])
    fake.install(monkeypatch)
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(launch, "compiled", lambda *given: (asked.append(given), b"code")[1])
    device = torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda which: (9, 0) if which == device else 0)
    monkeypatch.setattr(
        torch.cuda, "ExternalStream", lambda handle, device: types.SimpleNamespace(cuda_stream=handle)
    )
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: types.SimpleNamespace(cuda_stream=77))
    launcher: Any = (PycudaLauncher if package == "pycuda" else BindingsLauncher)(device)
    stream = launcher.stream()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda which: stream)
    program = KernelProgram(launcher, "rows", {"HYRT_ID": "long long"})
    assert asked == [("rows", (("HYRT_ID", "long long"),), 90)]
    assert fake.loaded == [b"code"]
    tensor = torch.zeros(3)

    def start() -> None:
        program.launch("widen_rows", 20, ROWS, [tensor, None, np.int32(5)])

    start()
    on_a_thread(start)
    program.launch("widen_rows", 0, ROWS, [tensor, None, np.int32(5)])
    wanted = Launched(
        "widen_rows", [tensor.data_ptr(), 0, 5], [8, 8, 4], (3, 1), (32, 8, 1), stream.cuda_stream
    )
    assert fake.launches == [wanted, wanted], "nothing is launched for no rows"
    assert set(fake.contexts.stacks.values()) == {0}, "every context pushed is popped"


def test_an_error_of_the_driver_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeBindings([])
    fake.install(monkeypatch)
    launcher = BindingsLauncher(torch.device("cuda", 1))

    class Status(int):
        name = "CUDA_ERROR_INVALID_IMAGE"

    monkeypatch.setattr(launch, "compiled", lambda *given: b"code")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda which: (9, 0))
    load = fake.driver.cuModuleLoadData
    monkeypatch.setattr(fake.driver, "cuModuleLoadData", lambda code: (Status(200), *load(code)[1:]))
    with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_IMAGE"):
        KernelProgram(launcher, "gather")
    assert set(fake.contexts.stacks.values()) == {0}


def test_pycuda_is_the_launcher_where_both_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    there: set[str] = set()
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda name: name if name in there else None)
    assert launchers() == {}
    there.add("cuda.bindings")
    assert launchers() == {"cuda-bindings": BindingsLauncher}
    there.add("pycuda")
    assert list(launchers()) == ["pycuda", "cuda-bindings"]


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
    monkeypatch.setattr(probe, "launchers", lambda: {"pycuda": PycudaLauncher})
    first, second = probe.found("cuda")
    assert (first.name, second.name) == ("cuda:0", "cuda:1")
    assert first.description == "NVIDIA H200, 132 SMs, hyrt's kernels"
    assert first.host_cores == 0
    assert first.forms == ("rows", "quantized", "cached", "ids", "hetero")
    assert first.rates is not None
    assert first.rates.macs_per_s == pytest.approx(132 * 128 * 1.98e9)
    assert first.rates.memory_bytes_per_s == pytest.approx(4.92e12, rel=0.01)
    assert first.rates.source.startswith("assumed")
    monkeypatch.setattr(probe, "launchers", dict)
    properties.clock_rate = properties.memory_clock_rate = 0
    info = probe.found("cuda")[0]
    assert "cuda-bindings is not installed" in info.description
    assert info.rates is not None
    assert info.rates.macs_per_s > 0
    assert info.rates.memory_bytes_per_s > 0


def test_a_driver_that_raises_is_a_reason_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> int:
        raise RuntimeError("driver and library version mismatch")

    monkeypatch.setattr(torch.cuda, "device_count", broken)
    assert probe.found("cuda") == []
    assert "version mismatch" in probe.missing_device_reason("cuda")


def test_the_reason_for_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    assert (
        probe.missing_device_reason("cuda") == "no NVIDIA driver or GPU was found: see docs/devices.md#cuda"
    )
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    assert "install it with CUDA" in probe.missing_device_reason("cuda")


def test_a_parcel_arrives_as_it_was_packed() -> None:
    driver = FakeDriver()
    pool = pinned_pool(driver)
    arrays = [
        np.arange(5, dtype=np.int32),
        np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2],
        np.empty((0, 7), np.float32),
        np.arange(3, dtype=np.int64),
    ]
    parcel = CoalescedCopy()
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
    pool.release(first)
    assert np.shares_memory(pool.take(9_500_000, np.uint8), first)
    pool.release(second)
    small = pool.take(100, np.uint8)
    assert not np.shares_memory(small, second), "a far too large buffer waits for a larger need"
    assert pool.allocated_bytes == driver.pinned_bytes
    pool.clear()
    assert not np.shares_memory(pool.take(10_000_000, np.uint8), second)


def test_launchers_are_looked_for_without_an_import() -> None:
    code = "import sys; from hyrt_devices.cuda import launch; before = set(sys.modules); launch.launchers(); "
    code += (
        "new = set(sys.modules) - before; assert not any('pycuda' in n or 'bindings' in n for n in new), new"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
