"""Fused loops over edges whose matrices live in the host's memory, on a torch device."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from hyrt.errors import DeviceOutOfMemory
from hyrt.nn.fused.c_loops.c_printer import LoopCall
from hyrt.nn.fused.edge_loop import EdgeLoop
from hyrt.quantities import size
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
    driver
        The hardware. All runs on the calling thread's current stream.
    loops
        The device's loops.
    free
        Gives the bytes that loops may take.
    """

    def __init__(self, name: str, driver: Driver, loops: CudaLoops, free: Callable[[], int]) -> None:
        self.name = name
        self.reads_in_place = False
        self._driver = driver
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
        there.copy_(torch.from_numpy(array))
        return there

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> torch.Tensor:
        there = torch.empty(shape, dtype=_torch_type(np.dtype(dtype)), device=self._driver.device)
        self._taken[id(there)] = there
        return there

    def get(self, held: torch.Tensor, out: NDArray[np.generic]) -> None:
        torch.from_numpy(out).copy_(held)

    def give(self, held: Iterable[torch.Tensor]) -> None:
        for each in held:
            self._taken.pop(id(each), None)

    def num_totals(self, loop: EdgeLoop, num_rows: int) -> int:
        return self._loops.num_totals(loop, num_rows)

    def launch(
        self, loop: EdgeLoop, call: LoopCall, given: Mapping[str, torch.Tensor], num_rows: int, first: int
    ) -> None:
        self._loops(loop, call, given, num_rows, first)

    def about(self, work: str) -> None:
        """A trace of torch's streams has no names of single operators."""

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
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
        """Copies between the host and the device have ended when their calls return."""

    def release(self) -> None:
        self._taken.clear()


def _torch_type(dtype: np.dtype[np.generic]) -> torch.dtype:
    return {np.dtype(np.int32): torch.int32, np.dtype(np.int64): torch.int64}.get(dtype, torch.float32)
