"""Child process that runs METIS.

METIS uses SIGTERM internally to signal a failure, and may then return a wrong partition without an error. It
also ignores Ctrl-C. In a child process that blocks SIGTERM, failures can be detected, and the parent can kill
METIS at any time.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from io import BufferedReader
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError

# Block SIGTERM before there are other threads, which could receive it. On Linux, prctl(PR_SET_PDEATHSIG) ends
# the child if the parent is killed.
_START = (
    "import ctypes, json, signal, sys\n"
    "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"
    "if sys.platform == 'linux': ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
    "sys.path[:] = json.loads(sys.argv[1])\n"
    "from hyrt.graph.partition.metis_process import run_metis_child\n"
    "run_metis_child()\n"
)
_PIECE = 1 << 20
# Number of characters from the end of the METIS output that an error shows.
_SHOWN = 300


def run_metis(
    pointers: NDArray[np.int64],
    neighbors: NDArray[Any],
    weights: NDArray[np.int64],
    num_parts: int,
    **options: int,
) -> NDArray[np.int32]:
    """Partition a graph with METIS in a child process; return part indices [V] int32. Parts may be empty.

    `pointers` [V + 1] and `neighbors` [E] are the edges in both directions, without duplicates and
    self-loops. `num_parts` is at least 2, and `options` are those of METIS. Raises DataError if METIS fails
    or its process is terminated.
    """
    count = len(weights)
    header = {"parts": num_parts, "vertices": count, "entries": len(neighbors), "options": options}
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=printed,
            # Signals from a terminal to its process group are handled by the parent.
            start_new_session=True,
        )
        assert process.stdin
        assert process.stdout
        try:
            try:
                process.stdin.write(json.dumps(header).encode() + b"\n")
                for array in (pointers, neighbors, weights):
                    for first in range(0, len(array), _PIECE):
                        process.stdin.write(array[first : first + _PIECE].astype(np.int64).tobytes())
                process.stdin.flush()
            except BrokenPipeError:
                pass  # The child has exited. Its error is reported below.
            found = process.stdout.read()
            code = process.wait()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
            # The child no longer reads, so discard the rest.
            try:
                process.stdin.close()
            except BrokenPipeError:
                pass
        printed.seek(0)
        words = " ".join(printed.read().decode(errors="replace").split())[-_SHOWN:]
    if code != 0 or len(found) != 4 * count:
        how = f"was killed by signal {signal.Signals(-code).name}" if code < 0 else "failed"
        raise DataError(
            f"METIS {how} before it returned {num_parts:,} parts{f' ({words})' if words else ''}: "
            "if memory ran out, use a machine with more memory, or choose another --method"
        )
    return np.frombuffer(found, np.int32)


def run_metis_child() -> None:
    """Partition the graph from stdin and write the part indices to stdout; main function of the child."""
    import pymetis

    # METIS prints to stdout, so redirect its output to stderr.
    output = os.dup(1)
    os.dup2(2, 1)
    stream = os.fdopen(0, "rb")
    header = json.loads(stream.readline())
    pointers = _read(stream, header["vertices"] + 1)
    neighbors = _read(stream, header["entries"])
    weights = _read(stream, header["vertices"])
    # By default, METIS bisects if there are few parts, which cuts more edges.
    _, found = pymetis.part_graph(
        header["parts"],
        pymetis.CSRAdjacency(pointers, neighbors),
        vweights=weights,
        recursive=False,
        options=pymetis.Options(**header["options"]),
    )
    # If METIS fails, it raises SIGTERM and may then continue.
    if signal.SIGTERM in signal.sigpending():
        raise SystemExit("interrupted")
    with os.fdopen(output, "wb") as file:
        file.write(np.asarray(found, np.int32).tobytes())


def _read(stream: BufferedReader, count: int) -> NDArray[np.int64]:
    array = np.empty(count, np.int64)
    # `readinto` of a buffered stream blocks until the array is full or the stream ends.
    if stream.readinto(array.data) != array.nbytes:
        raise SystemExit("the graph ends too early")
    return array
