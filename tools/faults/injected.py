"""Inject faults at every stage, trainer and step of runs, and check the behaviour and the results.

    python tools/faults/injected.py                  # all cases
    python tools/faults/injected.py --limit 50       # fifty of them
    python tools/faults/injected.py --only propagate --devices cpu:0

Prints every failing case, then counts by stage and kind, and the slowest cases.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from fault_case import FaultSuite, fault_cases
from trials import Trials, make_parser, print_table, workplace


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--part", default="0/1", help="part of the cases, such as 0/3 for the first third")
    parser.add_argument("--seed", type=int, default=0, help="seed of the order")
    parser.add_argument("--seconds", type=float, help="start no case after this many seconds")
    parser.add_argument("--only", default="", help="only faults whose text contains this")
    parser.add_argument("--devices", help="only cases with exactly these devices")
    parser.add_argument("--skip", type=int, default=0, help="number of cases to skip")
    parser.add_argument("--limit", type=int)
    options = parser.parse_args()
    os.environ.setdefault("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    chosen = [
        case
        for case in fault_cases()
        if options.only in case.fault and options.devices in (None, case.trainers.devices)
    ]
    random.Random(options.seed).shuffle(chosen)
    part, parts = map(int, options.part.split("/"))
    if not 0 <= part < parts:
        parser.error(f"--part {options.part} does not exist: choose from 0/{parts} to {parts - 1}/{parts}")
    chosen = chosen[part::parts][options.skip :][: options.limit]
    if not chosen:
        parser.error("no case is left: check --only, --devices, --skip and --limit")
    trials = Trials()
    slowest: dict[tuple[str, str], float] = {}
    with workplace("faults") as (folder, runs):
        suite = FaultSuite(folder, runs)
        for case in chosen:
            if options.seconds is not None and trials.seconds > options.seconds:
                break
            outcome = suite.check(case)
            words = case.fault.split(":")
            kind = (words[0], words[-1])
            slowest[kind] = max(slowest.get(kind, 0.0), outcome.surfaced_s)
            trials.add([kind], str(case), outcome.problems)
            if trials.count % 100 == 0:
                print(f"{trials.count} after {trials.seconds:.0f} s", flush=True)
    rows = [
        (*kind, trials.held[kind], trials.tried[kind], f"{slowest[kind]:.1f}") for kind in sorted(slowest)
    ]
    longest = max(slowest.values(), default=0.0)
    rows.append(("all", "", trials.count - trials.failed, trials.count, f"{longest:.1f}"))
    print_table(("stage", "kind", "held", "of", "slowest end after the fault, s"), rows)
    print(f"{trials.count} of {len(chosen)} faults in {trials.seconds:.0f} s")
    return trials.exit_code


if __name__ == "__main__":
    sys.exit(main())
