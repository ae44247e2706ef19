"""The trainer's kernels, simulated: the C++ that Vitis HLS takes, compiled with g++, behind ctypes."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hyrt_perfmodel.cycles.design import LANES

from hyrt_hls.parts.resources import KernelDesign
from hyrt_hls.simulation.compile import compile_library
from hyrt_hls.task.layout import ARGUMENTS, Floats, Task

KERNELS = Path(__file__).parents[1] / "kernels"
SOURCE = Path(__file__).parents[1] / "csim" / "csim.cpp"
# Messages and steps that a dataflow region holds in its streams: some megabytes.
_REGION_WORDS = 16384
_MESSAGE_BYTES = 4096


class Counts(ctypes.Structure):
    """What a launch moved, counted at its memory ports.

    Rows and words read of the features, edges read, words of the weights read, words written (scores and
    gradients), and writes to a word that had its result already: the only way in which memory could hold what
    is between.
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
    """What a launch wrote: scores [targets, out_chunks * LANES], gradients as `Task.weights`, counts.

    Attributes
    ----------
    loss_sum
        Sum of the targets' weighted losses.
    correct
        Targets whose greatest score is their label's.
    """

    scores: Floats
    gradients: Floats
    loss_sum: float
    correct: int
    counts: Counts


class Simulator:
    """A design's kernels.

    Calls of `train` may overlap: each has memories of its own, which stay for the next one until `close`.

    Parameters
    ----------
    bounded
        Give streams their depth and every process a thread: finds deadlocks, is slow, and the order of sums
        changes from run to run.
    include
        Folders of headers, searched first: an hls_stream.h of another vendor takes the place of this
        package's.

    Raises
    ------
    ValueError
        If there is no g++, or it refuses the design.
    OSError
        If the cache of compiled simulations cannot be used.
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
            # It is as it was written: what keeps it from loading is elsewhere, as a mount with noexec.
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
        """Run one launch; other threads run meanwhile.

        Raises
        ------
        ValueError
            If the task does not fit the design (`Task.check`), or the simulation finds a mistake of the
            kernels, such as a deadlock.
        MemoryError
            If there is no room for the arena.
        """
        task.check(self.design.arena_words, self.design.pes)
        scores = np.zeros(task.score_shape, np.float32)
        gradients = np.zeros(len(task.weights), np.float32)
        results = np.zeros(2, np.float32)
        written = {"scores": scores, "gradients": gradients, "results": results}
        given = [written[name] if name in written else getattr(task, name) for name in ARGUMENTS]
        arrays = _Arrays(
            *(array.ctypes.data for array in given),
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
        """Give the memories back; the simulator can still be used."""
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
    """What the simulation's source is compiled with."""
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
