"""Simulation of the trainer kernels: Vitis HLS code, compiled with g++ and called through ctypes."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hyrt_perfmodel.fpga_design import LANES

import hyrt_hls
from hyrt_hls.compile import compile_library
from hyrt_hls.resources import KernelDesign
from hyrt_hls.task_layout import ARGUMENTS, Floats, Task

KERNELS = Path(hyrt_hls.__file__).parent / "kernels"
SOURCE = Path(hyrt_hls.__file__).parent / "csim" / "csim.cpp"
# Number of messages and steps that a dataflow region buffers in its streams: a few megabytes.
_REGION_WORDS = 16384
_MESSAGE_BYTES = 4096


class Counts(ctypes.Structure):
    """Memory traffic of a launch, counted at the kernel's memory ports.

    Feature rows and words read, edges read, weight words read, words written (scores and gradients), and
    repeated writes to the same word (which would mean that intermediate values are stored in memory).
    """

    rows_read: int
    feature_words_read: int
    edges: int
    weight_words_read: int
    words_written: int
    intermediate_words_written: int
    _fields_ = [(name, ctypes.c_int64) for name in __annotations__]


@dataclass(frozen=True, slots=True, eq=False)
class TaskOutcome:
    """Results of a launch: scores [targets, out_chunks * LANES], gradients laid out like `Task.weights`.

    `loss_sum` is the sum of the targets' weighted losses, and `correct` the number of targets whose highest
    score is at their label.
    """

    scores: Floats
    gradients: Floats
    loss_sum: float
    correct: int
    counts: Counts


class Simulator:
    """Simulated kernels of a design.

    Calls of `train` may overlap: each uses a separate set of memories, which are reused until `close`. If
    `bounded`, streams have limited depth and every process is a thread: this finds deadlocks, but is slow,
    and the order of sums varies between runs. Folders in `include` are searched first, so that another
    vendor's hls_stream.h can replace this package's. Raises ValueError if g++ is missing or rejects the
    design.
    """

    def __init__(self, design: KernelDesign, bounded: bool = False, *, include: Sequence[Path] = ()) -> None:
        self.design = design
        library = compile_library(
            [SOURCE],
            defines=macros(design),
            bounded=bounded,
            include=[*include, KERNELS],
        )
        try:
            self._library = ctypes.CDLL(str(library))
        except OSError as error:
            # The file is intact, so the cause is external, such as a noexec mount.
            raise ValueError(
                f"{library}: the compiled simulation cannot be loaded ({error}): set "
                "HYRT_HLS_CACHE_DIR to a folder whose files may be executed, or delete this file to "
                "have it recompiled"
            ) from error
        self._library.hyrt_open.restype = ctypes.c_void_p
        self._library.hyrt_close.argtypes = [ctypes.c_void_p]
        self._library.hyrt_simulate.argtypes = [
            ctypes.c_void_p,
            ctypes.POINTER(_Arrays),
            ctypes.POINTER(Counts),
            ctypes.c_char_p,
            ctypes.c_int,
        ]
        self._idle: list[int] = []
        self._lock = threading.Lock()

    def train(self, task: Task) -> TaskOutcome:
        """Run one launch; releases the GIL.

        Raises ValueError if the task does not fit the design (`Task.check`), or the simulation finds a kernel
        error such as a deadlock; MemoryError if the arena cannot be allocated.
        """
        task.check(self.design.arena_words, self.design.pes)
        scores = np.zeros(task.score_shape, np.float32)
        gradients = np.zeros(len(task.weights), np.float32)
        results = np.zeros(2, np.float32)
        outputs = {"scores": scores, "gradients": gradients, "results": results}
        arrays_in_order = [outputs[name] if name in outputs else getattr(task, name) for name in ARGUMENTS]
        arrays = _Arrays(
            *(array.ctypes.data for array in arrays_in_order),
            task.features.size // LANES,
            len(task.edges),
            len(task.weights) // LANES,
            len(task.labels),
            len(task.vertices),
            len(task.task),
            scores.size // LANES,
        )
        counts = Counts()
        message = ctypes.create_string_buffer(_MESSAGE_BYTES)
        with self._memories() as memories:
            if self._library.hyrt_simulate(memories, arrays, counts, message, _MESSAGE_BYTES):
                raise ValueError(f"simulation of the FPGA trainer: {message.value.decode(errors='replace')}")
        return TaskOutcome(scores, gradients, float(results[0]), int(results[1]), counts)

    def close(self) -> None:
        """Free the memories; the simulator can still be used."""
        with self._lock:
            idle, self._idle = self._idle, []
        for memories in idle:
            self._library.hyrt_close(memories)

    def __del__(self) -> None:
        if hasattr(self, "_idle"):
            self.close()

    @contextmanager
    def _memories(self) -> Iterator[int]:
        with self._lock:
            memories = self._idle.pop() if self._idle else None
        memories = memories or self._library.hyrt_open()
        if not memories:
            raise MemoryError(
                f"not enough memory to simulate an arena of {self.design.pes} x "
                f"{self.design.arena_words} words"
            )
        try:
            yield memories
        finally:
            with self._lock:
                self._idle.append(memories)


def macros(design: KernelDesign) -> dict[str, int]:
    """Return the compile-time macros of the simulation."""
    return {
        "HYRT_PES": design.pes,
        "HYRT_MAC_ROWS": design.mac_rows,
        "HYRT_MAC_COLS": design.mac_cols,
        "HYRT_ARENA_WORDS": design.arena_words,
        "HYRT_FIFO_DEPTH": design.fifo_depth,
        "HYRT_REGION_WORDS": _REGION_WORDS,
    }


_LENGTHS = (
    *("feature_words", "num_edges", "weight_words", "targets", "num_sources", "task_words"),
    "score_words",
)


class _Arrays(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ARGUMENTS),
        *((name, ctypes.c_int64) for name in _LENGTHS),
    ]
