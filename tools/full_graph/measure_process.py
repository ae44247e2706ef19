"""Run a command and print its wall time, CPU time and peak anonymous memory.

python tools/full_graph/measure_process.py COMMAND [ARGUMENT ...]

Only anonymous memory is counted, because pages of memory-mapped files are in the page cache, which the system
reclaims under memory pressure. The tool reads the memory of the command and its children ten times per second
from /proc, so it may miss a short peak. Linux only.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path

_PERIOD_S = 0.1


def family_of(pid: int) -> list[int]:
    """Return a process and all its running descendants."""
    pids = [pid]
    for ancestor in pids:
        for task in Path(f"/proc/{ancestor}/task").glob("*/children"):
            try:
                pids += map(int, task.read_text(encoding="ascii").split())
            except OSError:  # The thread has already ended.
                continue
    return pids


def kib_of(pid: int, name: str) -> int:
    """Return a value of a process's status in KiB, or 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    command = parser.parse_args().command
    if not command:
        parser.error("no command to run")
    began = time.perf_counter()
    process = subprocess.Popen(command)
    anonymous = resident = 0
    while process.poll() is None:
        family = family_of(process.pid)
        anonymous = max(anonymous, sum(kib_of(pid, "RssAnon") for pid in family))
        resident = max(resident, sum(kib_of(pid, "VmRSS") for pid in family))
        time.sleep(_PERIOD_S)
    wall = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{wall:.1f} s, {used.ru_utime + used.ru_stime:.1f} CPU s ({used.ru_stime:.1f} in the kernel), "
        f"at most {anonymous / 2**20:.2f} GiB anonymous, {resident / 2**20:.2f} GiB with pages of files",
        flush=True,
    )
    sys.exit(process.returncode)


if __name__ == "__main__":
    main()
