"""METIS in a process of its own.

METIS takes SIGTERM for its own sign of a failure, and may give back a wrong partition after one as if nothing
had been; and no Ctrl-C reaches it. In a process in which SIGTERM waits, what failed can be told from what did
not, and the parent ends it whenever it wants to.
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

# SIGTERM is held back before there are other threads, which would take it. Linux ends the child (prctl's
# PR_SET_PDEATHSIG) where the parent is killed.
_START = (
    "import ctypes, json, signal, sys\n"
    "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"
    "if sys.platform == 'linux': ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
    "sys.path[:] = json.loads(sys.argv[1])\n"
    "from hyrt.graph.partition.methods.metis_process import run_metis_child\n"
    "run_metis_child()\n"
)
_PIECE = 1 << 20
# Of what it printed, the end that is shown.
_SHOWN = 300


def run_metis(
    pointers: NDArray[np.int64],
    neighbors: NDArray[Any],
    weights: NDArray[np.int64],
    num_parts: int,
    **options: int,
) -> NDArray[np.int32]:
    """Find parts with few edges between them.

    Parameters
    ----------
    pointers, neighbors
        [V + 1] and [E], the edges in both directions, each once and no vertex with itself.
    weights
        [V] what each vertex weighs.
    num_parts
        The number of parts, at least 2.
    options
        METIS's options.

    Returns
    -------
    [V] int32 in 0..num_parts-1; parts may be empty.

    Raises
    ------
    DataError
        If METIS fails, or its process is ended.
    """
    count = len(weights)
    header = {"parts": num_parts, "vertices": count, "entries": len(neighbors), "options": options}
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=printed,
            # Signals to all processes of a terminal are the parent's to handle.
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
                pass  # It has ended, and says how below.
            found = process.stdout.read()
            code = process.wait()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
            # What is not written yet has nowhere to go.
            try:
                process.stdin.close()
            except BrokenPipeError:
                pass
        printed.seek(0)
        words = " ".join(printed.read().decode(errors="replace").split())[-_SHOWN:]
    if code != 0 or len(found) != 4 * count:
        how = f"was ended by signal {signal.Signals(-code).name}" if code < 0 else "failed"
        raise DataError(
            f"METIS {how} before it had {num_parts:,} parts{f' ({words})' if words else ''}: "
            "if memory ran out, give it more, or another --method"
        )
    return np.frombuffer(found, np.int32)


def run_metis_child() -> None:
    """The child: read a graph, and write its parts."""
    import pymetis

    # METIS prints as well.
    output = os.dup(1)
    os.dup2(2, 1)
    given = os.fdopen(0, "rb")
    header = json.loads(given.readline())
    pointers = _read(given, header["vertices"] + 1)
    neighbors = _read(given, header["entries"])
    weights = _read(given, header["vertices"])
    # For few parts it would bisect, with a larger cut.
    _, found = pymetis.part_graph(
        header["parts"],
        pymetis.CSRAdjacency(pointers, neighbors),
        vweights=weights,
        recursive=False,
        options=pymetis.Options(**header["options"]),
    )
    # It raises SIGTERM itself where it fails, and may go on after it.
    if signal.SIGTERM in signal.sigpending():
        raise SystemExit("interrupted")
    with os.fdopen(output, "wb") as file:
        file.write(np.asarray(found, np.int32).tobytes())


def _read(given: BufferedReader, count: int) -> NDArray[np.int64]:
    array = np.empty(count, np.int64)
    # A buffered stream reads on until all is there.
    if given.readinto(array.data) != array.nbytes:
        raise SystemExit("the graph ends too early")
    return array
