"""Fused loops over edges, printed in CUDA C++ and launched over torch's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hyrt.nn.fused.c_loops.c_dialects import CUDA, Cut, cut_for
from hyrt.nn.fused.c_loops.c_printer import CKernel, LoopCall, printed
from hyrt.nn.fused.edge_loop import EdgeLoop
from hyrt_devices.cuda.launch import Argument, KernelLauncher, groups, packed

# Threads of a group, and the most of them that share a row: those of a warp.
_THREADS, _LANES = 256, 32
_SLOTS = 4
# Rows behind one partial sum of what is added up over all rows.
_GRAIN = 64


def cut_of(loop: EdgeLoop, lanes: int = _LANES) -> Cut:
    """How a loop is cut for a GPU."""
    return cut_for(loop, lanes=lanes, vector=1, slots=_SLOTS, grain=_GRAIN if any(loop.by_chunk) else 1)


@dataclass(frozen=True, slots=True)
class _Built:
    kernel: CKernel
    cut: Cut
    code: Any


class CudaLoops:
    """`hyrt.nn.fused.c_loops.tensor_loops.TensorLoops` of CUDA devices. A loop is compiled at its first call.

    Parameters
    ----------
    launcher
        For the device.
    lanes
        The most threads that share a row.
    """

    def __init__(self, launcher: KernelLauncher, lanes: int = _LANES) -> None:
        self._launcher = launcher
        self._lanes = lanes
        self._built: dict[tuple[EdgeLoop, LoopCall], _Built] = {}

    def num_totals(self, loop: EdgeLoop, num_rows: int) -> int:
        return -(-num_rows // cut_of(loop, self._lanes).grain)

    def __call__(
        self, loop: EdgeLoop, call: LoopCall, given: Mapping[str, torch.Tensor], num_rows: int, first: int = 0
    ) -> None:
        if not num_rows:
            return
        built = self._built.get((loop, call)) or self._build(loop, call)
        numbers = {"num_rows": np.int32(num_rows), "first_source": np.int32(first)}
        arguments: list[Argument] = [
            numbers[name] if name in numbers else given[name] for name in built.kernel.arguments
        ]
        shape = (built.cut.lanes, _THREADS // built.cut.lanes)
        items = self.num_totals(loop, num_rows)
        self._launcher.launch(built.code, "edge_loop", groups(items, shape), shape, packed(arguments))

    def _build(self, loop: EdgeLoop, call: LoopCall) -> _Built:
        cut = cut_of(loop, self._lanes)
        kernel = printed(loop, call, cut, CUDA)
        built = _Built(kernel, cut, self._launcher.build_source(kernel.source))
        self._built[loop, call] = built
        return built
