"""kill -9 at random points of runs that checkpoint often; each goes on, and ends with the bits of one that was not killed.

    python tools/faults/kill_nine.py --kills 200

A run is killed at a random time after its first checkpoint; one in four is killed once more when it goes on. Each tenth is
killed at any time since it started: then it goes on, starts over, or there is no run folder yet.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from fault_case import LIMIT_S, PAIR, STEPS, FaultSuite, Trainers, different, leftovers
from forked_runs import ForkedRuns, Run

EVERY_STEP = "checkpoint.every_steps=1"
TRAINERS = (Trainers("cpu:0", ""), Trainers("cpu:0,opencl:0", "", PAIR), Trainers("null:0,null:1", "", PAIR))


@dataclass(frozen=True)
class Kill:
    """What became of one run. `problems` is empty where it went on bit-equal."""

    kills: int
    step: int
    is_early: bool
    problems: tuple[str, ...]


def kill_and_resume(suite: FaultSuite, trainers: Trainers, draw: random.Random, *, is_early: bool) -> Kill:
    """One run, killed once or twice, then ended."""
    whole = suite.undisturbed(trainers)
    path = Path()
    kills = seen = 0
    while not kills:
        folder = suite.new_folder()
        path = folder / "runs" / "run"
        run = suite.runs.start(suite.words(trainers, EVERY_STEP), folder, is_quick=True)
        kills += kill(suite, run, path, draw, is_early=is_early)
        steps = [int(found.name[5:13]) for found in path.glob("checkpoints/step-*")]
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
    if "warning" in (told := run.output.read_text()):
        problems.append(f"resuming warns: {told}")
    problems += leftovers(folder, run, is_own=False) + (different(path, whole) if code == 0 else [])
    if not problems:
        shutil.rmtree(folder)
    return Kill(kills, seen, is_early, tuple(problems))


def kill(suite: FaultSuite, run: Run, path: Path, draw: random.Random, *, is_early: bool) -> bool:
    """Kill a run at a random time; False where it ended before."""
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.kills < 1:
        parser.error("--kills: at least 1")
    started, draw = time.monotonic(), random.Random(arguments.seed)
    results: list[Kill] = []
    with tempfile.TemporaryDirectory(prefix="hyrt-kills-") as folder, ForkedRuns() as runs:
        suite = FaultSuite(Path(folder), runs)
        for index in range(arguments.kills):
            trainers = TRAINERS[index % len(TRAINERS)]
            result = kill_and_resume(suite, trainers, draw, is_early=index % 10 == 9)
            results.append(result)
            for problem in result.problems:
                print(f"FAILS run {index} on {trainers.devices}: {problem}", flush=True)
    held = sum(not result.problems for result in results)
    early = sum(result.is_early for result in results)
    at = sorted(result.step for result in results if not result.is_early)
    print(
        f"{held} of {len(results)} killed runs ended bit-equal; {sum(result.kills for result in results)} kills, {early} of the runs "
        f"killed at any time since their start; newest checkpoint when the others were killed: step {at[0]} to {at[-1]} of {STEPS}, median {at[len(at) // 2]}; "
        f"{time.monotonic() - started:.0f} s"
    )
    return 0 if held == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
