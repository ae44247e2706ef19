"""Loops over edges for user-defined layers on OpenCL devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hyrt.device import Span
from hyrt.fullgraph.chunk_stats import ChunkStats
from hyrt.nn.fused.c_codegen import CKernel, LoopCall, generate_kernel
from hyrt.nn.fused.c_dialects import OPENCL, LoopTiling, choose_tiling
from hyrt.nn.fused.edge_loop import EdgeLoop
from hyrt_devices.opencl.launch import Launcher, ceil_div
from hyrt_devices.opencl.memory import DeviceMemory
from hyrt_devices.opencl.programs import Programs, Tuning
from hyrt_devices.opencl_host.profiling import spans

Array = NDArray[Any]
# Maximum number of vectors per value in a work item; more would leave no registers for other values.
_SLOTS = 4


class OpenclLoops:
    """Implementation of `hyrt.fullgraph.loop_device.LoopDevice` for an OpenCL device.

    `queue` runs all copies and launches. `errors` returns a context manager that converts the driver's
    out-of-memory errors to DeviceOutOfMemoryError. `report_times` is called with the spans of completed
    commands.
    """

    def __init__(
        self,
        programs: Programs,
        tuning: Tuning,
        memory: DeviceMemory,
        queue: Launcher,
        errors: Callable[[], AbstractContextManager[None]],
        report_times: Callable[[list[Span]], None],
    ) -> None:
        self.name = memory.buffers.name
        self.reads_in_place = memory.zero_copy
        self._programs = programs
        self._tuning = tuning
        self._memory = memory
        self._queue = queue
        self._errors = errors
        self._report_times = report_times
        # (start, end) of each copy and of each kernel, in seconds.
        self._copied: list[tuple[float, float]] = []
        self._computed: list[tuple[float, float]] = []
        self._taken: dict[int, Any] = {}
        # Buffers over host arrays, which the device reads in place until the buffer is released.
        self._wrapped: dict[int, tuple[Any, Array]] = {}
        # Further host arrays that the device may still read.
        self._host_arrays: list[Array] = []
        self._built: dict[tuple[EdgeLoop, LoopCall], tuple[CKernel, Any]] = {}

    def free_bytes(self) -> int:
        return self._memory.buffers.limit_bytes - self._memory.buffers.used_bytes

    def put(self, array: Array, *, writes: bool = False) -> Any:
        if self._memory.zero_copy and array.size and not writes:
            buffer = self._memory.wrap(array)
            self._wrapped[id(buffer)] = buffer, array
            return buffer
        self._host_arrays.append(array)
        buffer = self._take(array.nbytes)
        if array.size:
            self._queue.write(buffer, array)
        return buffer

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        return self._take(int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize)

    def get(self, held: Any, out: Array) -> None:
        if out.size:
            self._queue.read(out, held)

    def release_arrays(self, held: Iterable[Any]) -> None:
        for buffer in held:
            if self._taken.pop(id(buffer), None) is not None:
                self._memory.give(buffer)
            wrapped = self._wrapped.pop(id(buffer), None)
            if wrapped is not None:
                # Keep the reference, because queued commands may still read the array.
                self._host_arrays.append(wrapped[1])

    def num_totals(self, loop: EdgeLoop, num_rows: int) -> int:
        return ceil_div(num_rows, self._cut(loop).grain)

    def launch(
        self, loop: EdgeLoop, call: LoopCall, arrays: Mapping[str, Any], num_rows: int, first: int
    ) -> None:
        if not num_rows:
            return
        kernel, built = self._kernel(loop, call)
        numbers = {"num_rows": num_rows, "first_source": first}
        arguments = [numbers[name] if name in numbers else arrays[name] for name in kernel.arguments]
        cut = self._cut(loop)
        self._queue.launch(built, (ceil_div(num_rows, cut.grain),), (cut.lanes,), *arguments)

    def set_trace_label(self, work: str) -> None:
        self._queue.about = work

    def reset_stats(self) -> None:
        self._queue.taken()
        self._copied.clear()
        self._computed.clear()

    def report_trace(self) -> None:
        ran = spans(self._queue.taken())
        for name, begin, end in ran:
            (self._copied if name.startswith("copy ") else self._computed).append((begin * 1e-9, end * 1e-9))
        self._report_times(ran)

    def stats(self) -> ChunkStats:
        return ChunkStats.from_spans(0, 0, self._copied, self._computed)

    def translate_errors(self) -> AbstractContextManager[None]:
        return self._errors()

    def finish(self) -> None:
        self._queue.finish()
        self._host_arrays.clear()

    def release(self) -> None:
        self.finish()
        self._wrapped.clear()
        self.release_arrays(list(self._taken.values()))

    def _take(self, size_bytes: int) -> Any:
        buffer = self._memory.take(size_bytes, exact=True)
        self._taken[id(buffer)] = buffer
        return buffer

    def _cut(self, loop: EdgeLoop) -> LoopTiling:
        tuning = self._tuning
        return choose_tiling(loop, lanes=tuning.lanes, vector=tuning.vector, slots=_SLOTS, grain=64)

    def _kernel(self, loop: EdgeLoop, call: LoopCall) -> tuple[CKernel, Any]:
        found = self._built.get((loop, call))
        if found is None:
            kernel = generate_kernel(loop, call, self._cut(loop), OPENCL)
            found = self._built[loop, call] = kernel, self._programs.printed(kernel.source, "edge_loop")
        return found
