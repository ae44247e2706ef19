"""kill -9 at random points of runs with frequent checkpoints; each run is resumed and must end bit-equal.

    python tools/faults/kill_nine.py --kills 200

A run is killed at a random time after its first checkpoint; one run in four is killed again after it is
resumed. One in ten is killed at any time since its start; it is then resumed or started again, or has no run
folder yet.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from fault_case import LIMIT_S, PAIR, STEPS, FaultSuite, Trainers, differences, find_leftovers
from forked_runs import ForkedRun
from trials import Trials, make_parser, workplace

EVERY_STEP = "checkpoint.every_steps=1"
TRAINERS = (Trainers("cpu:0", ""), Trainers("cpu:0,opencl:0", "", PAIR), Trainers("null:0,null:1", "", PAIR))


@dataclass(frozen=True)
class Kill:
    """Result of one run; `problems` is empty if the run resumed and gave the bits of an uninterrupted run."""

    kills: int
    step: int
    is_early: bool
    problems: tuple[str, ...]


def kill_and_resume(suite: FaultSuite, trainers: Trainers, draw: random.Random, *, is_early: bool) -> Kill:
    """Kill a run once or twice, resume it, and check its result."""
    reference = suite.reference_run(trainers)
    path = Path()
    kills = seen = 0
    while not kills:
        folder = suite.new_folder()
        path = folder / "runs" / "run"
        run = suite.runs.start(suite.words(trainers, EVERY_STEP), folder, is_quick=True)
        kills += kill(suite, run, path, draw, is_early=is_early)
        steps = [int(checkpoint.name[5:13]) for checkpoint in path.glob("checkpoints/step-*")]
        seen = max(steps, default=0)
        if not kills:
            shutil.rmtree(folder)
    if not (path / "config.yaml").exists():
        shutil.rmtree(folder)
        return Kill(kills, 0, is_early, ())
    words = ["run", "--resume", str(path)]
    if draw.random() < 0.25:
        run = suite.runs.start(words, folder, is_quick=True)
        kills += kill(suite, run, path, draw, is_early=True)
    code, run = suite.runs.call(words, folder)
    problems = [] if code == 0 else [f"resuming ends with {code}: {run.errors.read_text()}"]
    if "warning" in (output := run.output.read_text()):
        problems.append(f"resuming warns: {output}")
    problems += find_leftovers(folder, run, is_separate=False) + (
        differences(path, reference) if code == 0 else []
    )
    if not problems:
        shutil.rmtree(folder)
    return Kill(kills, seen, is_early, tuple(problems))


def kill(suite: FaultSuite, run: ForkedRun, path: Path, draw: random.Random, *, is_early: bool) -> bool:
    """Kill a run at a random time; return False if it ended before."""
    checkpoints, length_s = path / "checkpoints", 0.5
    while not is_early:
        if checkpoints.is_dir() and any(entry.name.startswith("step-") for entry in checkpoints.iterdir()):
            break
        if suite.runs.wait(run, 0) is not None:
            return False
        time.sleep(0.001)
    code = suite.runs.wait(run, draw.random() * length_s)
    if code is not None:
        return False
    os.kill(run.pid, signal.SIGKILL)
    return suite.runs.wait(run, LIMIT_S) == -signal.SIGKILL


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.kills < 1:
        parser.error("--kills must be at least 1")
    trials, draw = Trials(), random.Random(options.seed)
    results: list[Kill] = []
    with workplace("kills") as (folder, runs):
        suite = FaultSuite(folder, runs)
        for index in range(options.kills):
            trainers = TRAINERS[index % len(TRAINERS)]
            result = kill_and_resume(suite, trainers, draw, is_early=index % 10 == 9)
            results.append(result)
            trials.add([trainers.devices], f"run {index} on {trainers.devices}", result.problems)
    early = sum(result.is_early for result in results)
    newest_steps = sorted(result.step for result in results if not result.is_early)
    print(
        f"{trials.count - trials.failed} of {trials.count} killed runs ended bit-equal; "
        f"{sum(result.kills for result in results)} kills, {early} of the runs killed at any time since "
        f"their start; newest checkpoint when the others were killed: step {newest_steps[0]} to "
        f"{newest_steps[-1]} of {STEPS}, median {newest_steps[len(newest_steps) // 2]}; "
        f"{trials.seconds:.0f} s"
    )
    return trials.exit_code


if __name__ == "__main__":
    sys.exit(main())
