"""Inject faults into runs, at every stage, trainer and step, and check what each does and leaves.

    python tools/faults/injected.py                  # all cases
    python tools/faults/injected.py --limit 50       # fifty of them
    python tools/faults/injected.py --only propagate --devices cpu:0

Prints every case that does not hold, then counts by stage and kind, and the slowest.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from fault_case import FaultSuite, Outcome, cases
from forked_runs import ForkedRuns


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", default="0/1", help="as in 0/3: the first of three parts")
    parser.add_argument("--seed", type=int, default=0, help="of their order")
    parser.add_argument("--seconds", type=float, help="begin none after these")
    parser.add_argument("--only", default="", help="part of the fault's text")
    parser.add_argument("--devices", help="exactly these")
    parser.add_argument("--skip", type=int, default=0, help="so many of them, done before")
    parser.add_argument("--limit", type=int)
    arguments = parser.parse_args()
    os.environ.setdefault("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    chosen = [
        case
        for case in cases()
        if arguments.only in case.fault and arguments.devices in (None, case.trainers.devices)
    ]
    random.Random(arguments.seed).shuffle(chosen)
    part, parts = map(int, arguments.part.split("/"))
    if not 0 <= part < parts:
        parser.error(f"--part {arguments.part}: of {parts} parts the first is 0/{parts}")
    chosen = chosen[part::parts][arguments.skip :][: arguments.limit]
    if not chosen:
        parser.error("no case is left: look at --only, --devices, --skip and --limit")
    started = time.monotonic()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="hyrt-faults-") as folder, ForkedRuns() as runs:
        suite = FaultSuite(Path(folder), runs)
        for case in chosen:
            if arguments.seconds is not None and time.monotonic() - started > arguments.seconds:
                break
            outcome = suite.check(case)
            outcomes.append(outcome)
            if len(outcomes) % 100 == 0:
                print(f"{len(outcomes)} after {time.monotonic() - started:.0f} s", flush=True)
            if outcome.problems:
                print(f"FAILS {case}: {'; '.join(outcome.problems)}", flush=True)
    print_table(outcomes)
    print(f"{len(outcomes)} of {len(chosen)} faults in {time.monotonic() - started:.0f} s")
    return 1 if any(outcome.problems for outcome in outcomes) else 0


def print_table(outcomes: list[Outcome]) -> None:
    """Counts by stage and kind."""
    done: Counter[tuple[str, str]] = Counter()
    held: Counter[tuple[str, str]] = Counter()
    slowest: dict[tuple[str, str], float] = {}
    for outcome in outcomes:
        key = (outcome.case.fault.split(":")[0], outcome.case.fault.split(":")[-1])
        done[key] += 1
        held[key] += not outcome.problems
        slowest[key] = max(slowest.get(key, 0.0), outcome.surfaced_s)
    print("| stage | kind | held | of | slowest end after the fault, s |")
    print("| --- | --- | --- | --- | --- |")
    for key in sorted(done):
        print(f"| {key[0]} | {key[1]} | {held[key]} | {done[key]} | {slowest[key]:.1f} |")
    print(
        f"| all | | {sum(held.values())} | {sum(done.values())} | {max(slowest.values(), default=0.0):.1f} |"
    )


if __name__ == "__main__":
    sys.exit(main())
