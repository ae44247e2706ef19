"""Fused loops over edges whose matrices live in the host's memory, on a torch device."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from hyrt.errors import DeviceOutOfMemory
from hyrt.fullgraph.chunks.chunked_step import ChunkWork
from hyrt.nn.fused.c_loops.c_printer import LoopCall
from hyrt.nn.fused.edge_loop import EdgeLoop
from hyrt.quantities import size
from hyrt_devices.cuda.chunks.chunk_times import ChunkTimes
from hyrt_devices.cuda.driver import Driver
from hyrt_devices.cuda.saga.cuda_loops import CudaLoops

# Torch's allocators round sizes up to this at least, and a loop takes so many pieces.
_ROUND_BYTES, _PIECES = 512, 32


class TorchLoopRoom:
    """`hyrt.fullgraph.saga.loop_room.LoopRoom` of a torch device.

    Parameters
    ----------
    name
        The device's name, for messages.
    driver, stream
        The hardware, and the stream on which all runs, in whichever thread.
    loops
        The device's loops.
    free
        Gives the bytes that loops may take.
    hear
        Takes when loops copied and computed, once that is over.
    """

    def __init__(
        self,
        name: str,
        driver: Driver,
        stream: Any,
        loops: CudaLoops,
        free: Callable[[], int],
        hear: Callable[[ChunkTimes], None],
    ) -> None:
        self.name = name
        self.reads_in_place = False
        self._driver = driver
        self._stream = stream
        self._hear = hear
        self._times = ChunkTimes(driver)
        # What loops came to since `begin`.
        self._copied: list[tuple[float, float]] = []
        self._computed: list[tuple[float, float]] = []
        self._loops = loops
        self._free = free
        self._taken: dict[int, torch.Tensor] = {}

    def free_bytes(self) -> int:
        return self._free() - _ROUND_BYTES * _PIECES

    def put(self, array: NDArray[np.generic], *, writes: bool = False) -> torch.Tensor:
        if array.dtype == np.uint64:
            array = array.view(np.int64)  # Torch has little for it, and kernels read the bits.
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

    def give(self, held: Iterable[torch.Tensor]) -> None:
        for each in held:
            self._taken.pop(id(each), None)

    def num_totals(self, loop: EdgeLoop, num_rows: int) -> int:
        return self._loops.num_totals(loop, num_rows)

    def launch(
        self, loop: EdgeLoop, call: LoopCall, given: Mapping[str, torch.Tensor], num_rows: int, first: int
    ) -> None:
        with self._times.span("compute", "edge_loop", self._stream):
            self._loops(loop, call, given, num_rows, first)

    def about(self, work: str) -> None:
        self._times.about = work

    def begin(self) -> None:
        self._times.begin(self._stream)
        self._copied.clear()
        self._computed.clear()

    def tell(self) -> None:
        self._hear(self._times)
        copied, computed = self._times.seconds()
        self._copied += copied
        self._computed += computed
        self._times.forget()

    def work(self) -> ChunkWork:
        return ChunkWork.of_spans(0, 0, self._copied, self._computed)

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
            with self._driver.running(self._stream):
                yield
        except Exception as error:
            if not self._driver.out_of_memory(error):
                raise
            # The error's frames hold tensors.
            traceback.clear_frames(error.__traceback__)
            raise DeviceOutOfMemory(
                f"{self.name}: out of memory in a loop over edges, with "
                f"{size(self._driver.used_bytes())} in use",
                remedy="lower fullgraph.device_memory to what the device has free, or lower model.hidden",
            ) from error

    def finish(self) -> None:
        self._driver.wait(self._driver.mark(self._stream))

    def release(self) -> None:
        self._taken.clear()


def _torch_type(dtype: np.dtype[np.generic]) -> torch.dtype:
    return {np.dtype(np.int32): torch.int32, np.dtype(np.int64): torch.int64}.get(dtype, torch.float32)
