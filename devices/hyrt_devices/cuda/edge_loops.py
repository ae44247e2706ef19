"""Loops over edges for user-defined layers on CUDA and other torch devices."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from hyrt.errors import DeviceOutOfMemoryError
from hyrt.formatting import format_bytes
from hyrt.fullgraph.chunk_stats import ChunkStats
from hyrt.nn.fused.c_codegen import CKernel, LoopCall, generate_kernel
from hyrt.nn.fused.c_dialects import CUDA, LoopTiling, choose_tiling
from hyrt.nn.fused.edge_loop import EdgeLoop
from hyrt_devices.cuda.chunk_memory import ChunkTimes
from hyrt_devices.cuda.driver import Driver
from hyrt_devices.cuda.launch import Argument, KernelLauncher, groups, packed

# Threads per thread block, and maximum number of threads per row, which is one warp.
_THREADS, _LANES = 256, 32
_SLOTS = 4
# Rows per partial sum of values that are summed over all rows.
_GRAIN = 64


def cut_of(loop: EdgeLoop, lanes: int = _LANES) -> LoopTiling:
    """Return the tiling of a loop for a GPU."""
    return choose_tiling(loop, lanes=lanes, vector=1, slots=_SLOTS, grain=_GRAIN if any(loop.by_chunk) else 1)


@dataclass(frozen=True, slots=True)
class _Built:
    kernel: CKernel
    cut: LoopTiling
    code: Any


class CudaLoops:
    """Implementation of `TensorLoops` for CUDA devices, with at most `lanes` threads per row.

    A loop is compiled when it is first called.
    """

    def __init__(self, launcher: KernelLauncher, lanes: int = _LANES) -> None:
        self._launcher = launcher
        self._lanes = lanes
        self._built: dict[tuple[EdgeLoop, LoopCall], _Built] = {}

    def num_totals(self, loop: EdgeLoop, num_rows: int) -> int:
        return -(-num_rows // cut_of(loop, self._lanes).grain)

    def __call__(
        self,
        loop: EdgeLoop,
        call: LoopCall,
        tensors: Mapping[str, torch.Tensor],
        num_rows: int,
        first: int = 0,
    ) -> None:
        if not num_rows:
            return
        built = self._built.get((loop, call)) or self._build(loop, call)
        numbers = {"num_rows": np.int32(num_rows), "first_source": np.int32(first)}
        arguments: list[Argument] = [
            numbers[name] if name in numbers else tensors[name] for name in built.kernel.arguments
        ]
        shape = (built.cut.lanes, _THREADS // built.cut.lanes)
        items = self.num_totals(loop, num_rows)
        self._launcher.launch(built.code, "edge_loop", groups(items, shape), shape, packed(arguments))

    def _build(self, loop: EdgeLoop, call: LoopCall) -> _Built:
        cut = cut_of(loop, self._lanes)
        kernel = generate_kernel(loop, call, cut, CUDA)
        built = _Built(kernel, cut, self._launcher.build_source(kernel.source))
        self._built[loop, call] = built
        return built


# Allocation granularity of torch in bytes, and the maximum number of allocations per loop.
_ROUND_BYTES, _PIECES = 512, 32


class TorchLoopDevice:
    """Implementation of `hyrt.fullgraph.loop_device.LoopDevice` for a torch device.

    The operations of all threads run on `stream`. `free` returns the number of bytes that loops may use.
    `report_times` is called with the times of finished copies and computations.
    """

    def __init__(
        self,
        name: str,
        driver: Driver,
        stream: Any,
        loops: CudaLoops,
        free: Callable[[], int],
        report_times: Callable[[ChunkTimes], None],
    ) -> None:
        self.name = name
        self.reads_in_place = False
        self._driver = driver
        self._stream = stream
        self._report_times = report_times
        self._times = ChunkTimes(driver)
        # (start, end) of copies and of computations since `reset_stats`, in seconds.
        self._copied: list[tuple[float, float]] = []
        self._computed: list[tuple[float, float]] = []
        self._loops = loops
        self._free = free
        self._taken: dict[int, torch.Tensor] = {}

    def free_bytes(self) -> int:
        return self._free() - _ROUND_BYTES * _PIECES

    def put(self, array: NDArray[np.generic], *, writes: bool = False) -> torch.Tensor:
        if array.dtype == np.uint64:
            array = array.view(np.int64)  # Torch has few uint64 operators, and kernels read the bits.
        there = torch.empty(array.shape, dtype=_torch_type(array.dtype), device=self._driver.device)
        self._taken[id(there)] = there
        with self._times.span("copy in", "copy in", self._stream):
            there.copy_(torch.from_numpy(array))
        return there

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> torch.Tensor:
        there = torch.empty(shape, dtype=_torch_type(np.dtype(dtype)), device=self._driver.device)
        self._taken[id(there)] = there
        return there

    def get(self, held: torch.Tensor, out: NDArray[np.generic]) -> None:
        with self._times.span("copy out", "copy out", self._stream):
            torch.from_numpy(out).copy_(held)

    def release_arrays(self, held: Iterable[torch.Tensor]) -> None:
        for each in held:
            self._taken.pop(id(each), None)

    def num_totals(self, loop: EdgeLoop, num_rows: int) -> int:
        return self._loops.num_totals(loop, num_rows)

    def launch(
        self, loop: EdgeLoop, call: LoopCall, arrays: Mapping[str, torch.Tensor], num_rows: int, first: int
    ) -> None:
        with self._times.span("compute", "edge_loop", self._stream):
            self._loops(loop, call, arrays, num_rows, first)

    def set_trace_label(self, work: str) -> None:
        self._times.about = work

    def reset_stats(self) -> None:
        self._times.begin(self._stream)
        self._copied.clear()
        self._computed.clear()

    def report_trace(self) -> None:
        self._report_times(self._times)
        copied, computed = self._times.seconds()
        self._copied += copied
        self._computed += computed
        self._times.forget()

    def stats(self) -> ChunkStats:
        return ChunkStats.from_spans(0, 0, self._copied, self._computed)

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        try:
            with self._driver.running(self._stream):
                yield
        except Exception as error:
            if not self._driver.out_of_memory(error):
                raise
            # Clear the traceback's frames, which reference tensors.
            traceback.clear_frames(error.__traceback__)
            raise DeviceOutOfMemoryError(
                f"{self.name}: out of memory in an edge loop "
                f"({format_bytes(self._driver.used_bytes())} in use)",
                remedy="lower fullgraph.device_memory to the device's free memory, or lower model.hidden",
            ) from error

    def finish(self) -> None:
        self._driver.wait(self._driver.mark(self._stream))

    def release(self) -> None:
        self._taken.clear()


def _torch_type(dtype: np.dtype[np.generic]) -> torch.dtype:
    return {np.dtype(np.int32): torch.int32, np.dtype(np.int64): torch.int64}.get(dtype, torch.float32)
