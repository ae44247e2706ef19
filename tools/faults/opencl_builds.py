"""Build OpenCL programs in several processes at once with an empty cache, with kills and signals.

    python tools/faults/opencl_builds.py --rounds 20

In every second round one process is killed at a random time; in the other rounds one process gets repeated
SIGINTs, which it handles. The others must succeed, and so must one more process afterwards. Prints each
failure, then their number.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import numpy as np
import pyopencl as cl
from hyrt_devices.opencl.launch import Launcher
from hyrt_devices.opencl.matmul_kernels import sizeless
from hyrt_devices.opencl.probe import survey
from hyrt_devices.opencl.programs import Programs, tuning_of
from trials import make_parser

from hyrt.nn.torch_threads import use_one_torch_thread

LONGEST_KILL_S = 3.0
BETWEEN_SIGNALS_S = 0.05


def build_and_launch() -> None:
    """Build a program and launch a kernel, which links; a trainer starts the same way."""
    device = survey().found[0].device
    context = cl.Context([device])
    tuning = tuning_of(device)
    pack = Programs(context, device).kernel("sizeless", "pack", sizeless(tuning))
    queue = Launcher(context, device)
    weights = np.arange(tuning.panel, dtype=np.float32)
    operand, panel = (cl.Buffer(context, cl.mem_flags.READ_WRITE, weights.nbytes) for _ in range(2))
    queue.write(operand, weights)
    queue.launch(pack, (1, 1), (1, tuning.items), operand, 0, 1, tuning.panel, 1, 1, panel)
    packed = np.zeros_like(weights)
    queue.read(packed, panel)
    queue.finish()
    np.testing.assert_array_equal(packed, weights)


def start(cache: Path, go: int, errors: Path) -> int:
    """Fork a process that starts building when `go` is closed; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.environ["POCL_CACHE_DIR"] = str(cache)
        signal.signal(signal.SIGINT, lambda number, frame: None)
        os.setsid()
        os.read(go, 1)
        build_and_launch()
        code = 0
    except BaseException:
        errors.write_text(traceback.format_exc())
    finally:
        os._exit(code)


def wait_for_end(pid: int, every_s: float = 0.0) -> int:
    """Return the exit code of a process; with `every_s`, send SIGINT to its session repeatedly."""
    while every_s:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        os.killpg(pid, signal.SIGINT)
        time.sleep(every_s)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run_round(place: Path, draw: random.Random, kill: bool, processes: int) -> list[str]:
    """Run a round; return its problems."""
    cache, (closed, opened) = place / "cache", os.pipe()
    pids: list[int] = []
    for number in range(processes):
        pid = start(cache, closed, place / str(number))
        pids.append(pid)
    time.sleep(0.2)
    # The processes inherit the write end of the pipe as well, so closing it here would not wake them.
    os.write(opened, b"." * processes)
    if kill:
        time.sleep(draw.random() * LONGEST_KILL_S)
        os.kill(pids[0], signal.SIGKILL)
    codes = [wait_for_end(pids[0], 0.0 if kill else BETWEEN_SIGNALS_S), *map(wait_for_end, pids[1:])]
    os.write(opened, b".")
    codes.append(wait_for_end(start(cache, closed, place / str(processes))))
    os.close(closed)
    os.close(opened)
    round_problems = []
    for number, code in enumerate(codes):
        if code != 0 and not (kill and number == 0):
            error_file = place / str(number)
            round_problems.append(
                f"process {number} ends with {code}: {error_file.read_text() if error_file.exists() else ''}"
            )
    return round_problems


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--processes", type=int, default=8, help="number of concurrent processes")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.processes < 2:
        parser.error("--processes must be at least 2, because one of them is killed")
    use_one_torch_thread()
    failed = 0
    for number in range(options.rounds):
        draw = random.Random(f"{options.seed} {number}")
        with tempfile.TemporaryDirectory(prefix="hyrt-builds-") as place:
            for problem in run_round(Path(place), draw, number % 2 == 0, options.processes):
                failed += 1
                print(f"FAILS round {number}: {problem}", flush=True)
    builds = options.rounds * (options.processes + 1) - (options.rounds + 1) // 2
    print(f"{builds - failed} of {builds} builds ended well in {options.rounds} rounds (seed {options.seed})")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
