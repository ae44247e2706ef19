"""Calls of simulated/streams.cpp, compiled once for every mode."""

from __future__ import annotations

import ctypes
import functools
import shutil
from collections.abc import Sequence
from pathlib import Path

from hyrt_hls.simulator import compile_library

FOLDER = Path(__file__).parent / "simulated"
MISSING = "" if shutil.which("g++") else "there is no g++"
_MESSAGE_BYTES = 4096

# (whether it writes, stream, count)
Step = tuple[bool, int, int]


class SimulationError(Exception):
    pass


@functools.cache
def library(bounded: bool) -> ctypes.CDLL:
    return ctypes.CDLL(str(compile_library([FOLDER / "streams.cpp"], bounded=bounded)))


def run_case(name: str, first: int = 0, second: int = 0, *, bounded: bool) -> int:
    """Run a case of streams.cpp; its result, or SimulationError with its message."""
    result = ctypes.c_uint64(0)
    message = ctypes.create_string_buffer(_MESSAGE_BYTES)
    call = library(bounded).case_named
    if call(name.encode(), first, second, ctypes.byref(result), message, _MESSAGE_BYTES):
        raise SimulationError(message.value.decode())
    return result.value


def run_pipeline(programs: Sequence[Sequence[Step]], depths: Sequence[int], *, bounded: bool) -> list[int]:
    """Run a pipeline that is data; every process's sum over what it read."""
    steps = [value for program in programs for step in program for value in step]
    firsts = [sum(map(len, programs[:i])) for i in range(len(programs) + 1)]
    sums = (ctypes.c_uint64 * len(programs))()
    message = ctypes.create_string_buffer(_MESSAGE_BYTES)
    failed = library(bounded).pipeline_case(
        len(programs),
        (ctypes.c_int32 * len(steps))(*steps),
        (ctypes.c_int * len(firsts))(*firsts),
        len(depths),
        (ctypes.c_int * len(depths))(*depths),
        sums,
        message,
        _MESSAGE_BYTES,
    )
    if failed:
        raise SimulationError(message.value.decode())
    return list(sums)
