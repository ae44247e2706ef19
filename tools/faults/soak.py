"""Train with random settings, devices, faults, kills and signals; resume and compare with a run without
faults.

    python tools/faults/soak.py --seconds 600

Prints each failing run, then statistics of what was tried and passed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fault_case import LIMIT_S, differences, find_leftovers, newest_problems
from forked_runs import ForkedRuns
from trials import Trials, make_parser, print_table, workplace, write_data

EPOCHS = 3
STAGES = ("sample", "load", "transfer", "propagate", "update")
KINDS = ("raise", "base", "exit", "leave", "hang", "slow")


@dataclass(frozen=True)
class Plan:
    """A random run: its settings, and the disturbance of each of its processes except the last."""

    words: tuple[str, ...]
    disturbances: tuple[str, ...]


def random_plan(draw: random.Random) -> Plan:
    """Return settings with a fixed split, so that bits can be compared."""
    model = draw.choice(("graphsage", "gcn", "gin", "gat"))
    layers = draw.choice((1, 2, 3))
    devices = [draw.choice(("cpu:0", "null:0") if model == "gat" else ("cpu:0", "opencl:0", "null:0"))]
    batch = draw.choice((32, 64, 100))
    words = [
        *("--devices", devices[0], f"model.kind={model}", f"model.layers={layers}", "model.hidden=16"),
        f"sampler.fanout={[draw.choice((2, 5, -1)) for _ in range(layers)]}",
        *(f"data.batch_size={batch}", f"train.epochs={EPOCHS}", f"seed={draw.randrange(100)}"),
        *(f"model.dropout={draw.choice((0, 0.4))}", f"model.norm={draw.choice(('none', 'layer'))}"),
        *(
            f"train.optimizer={draw.choice(('Adam', 'SGD', 'AdamW'))}",
            f"evaluate.every={draw.choice((0, 1, 2))}",
        ),
        f"evaluate.mode={draw.choice(('full', 'sampled'))}",
        *(
            f"runtime.max_in_flight_steps={draw.choice((1, 2, 4))}",
            f"runtime.sample_threads={draw.choice((1, 2))}",
        ),
        *(
            "balance.policy=static",
            "balance.predict=false",
            f"checkpoint.every_steps={draw.choice((0, 1, 3))}",
        ),
        f"runtime.pipelined={draw.choice(('true', 'true', 'true', 'false'))}",
    ]
    if "opencl:0" in devices:
        # The FPGA kernels do not support normalisation.
        words = ["model.norm=none" if word.startswith("model.norm") else word for word in words]
    elif draw.random() < 0.5 and model != "gat":
        devices = ["cpu:0", draw.choice(("opencl:0", "null:0"))]
        first = draw.randrange(batch + 1)
        words = ["model.norm=none" if word.startswith("model.norm") else word for word in words]
        words[1] = ",".join(devices)
        words.append(f"split=[{first},{batch - first}]")
    if "train.optimizer=SGD" in words:
        # Without a norm, sums over all neighbours may diverge, which correctly ends the run.
        words.append("train.clip_norm=1")
    serial = "runtime.pipelined=false" in words
    disturbances = []
    for _ in range(draw.choice((0, 1, 1, 2, 3))):
        kind = draw.choice(("kill", "SIGINT", "SIGTERM", "fault", "fault", "fault"))
        if kind == "fault":
            disturbance = draw.choice([each for each in KINDS if not (serial and each == "hang")])
            kind = f"{draw.choice(STAGES)}:{draw.choice(devices)}:{draw.randrange(12)}:{disturbance}"
        disturbances.append(kind)
    return Plan(tuple(words), tuple(disturbances))


def disturbed(
    runs: ForkedRuns, folder: Path, words: list[str], disturbance: str, draw: random.Random
) -> list[str]:
    """Run one process with a disturbance; return the problems. The process may or may not end early."""
    path = folder / "runs" / "run"
    if disturbance == "kill" or disturbance.startswith("SIG"):
        run = runs.start(words, folder)
        code = runs.wait(run, 0.1 + draw.random())
        if code is None:
            number = signal.SIGKILL if disturbance == "kill" else signal.Signals[disturbance]
            # Ctrl-C in a terminal reaches a process and its children; the process may just have ended.
            with suppress(ProcessLookupError):
                (os.killpg if disturbance == "SIGINT" else os.kill)(run.pid, number)
            code = runs.wait(run, LIMIT_S)
            # Before the handlers are set, a signal has its default effect; and the run may end just before
            # the signal.
            expected = (-number, 0) if disturbance == "kill" else (128 + number, -number, 0)
        else:
            expected = (0,)
    else:
        # A step that is never reached is acceptable.
        run = runs.start([*words, "runtime.stall_timeout_s=2"], folder, HYRT_FAULT=disturbance)
        code = runs.wait(run, LIMIT_S)
        expected = (0, 1)
    errors = run.errors.read_text() if run.errors.exists() else ""
    if code is None:
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        return [f"hangs: {errors}"]
    problems = [] if code in expected else [f"exit code {code}, not {expected}: {errors}"]
    if "Traceback" in errors:
        problems.append(f"shows a traceback: {errors}")
    if disturbance not in ("kill", "SIGINT", "SIGTERM") and not disturbance.endswith("hang"):
        problems += find_leftovers(folder, run)
    return problems + (newest_problems(path) if (path / "checkpoints").is_dir() else [])


def check(runs: ForkedRuns, folder: Path, data: Path, plan: Plan, draw: random.Random) -> list[str]:
    """Compare the plan's run with the same run without disturbances."""
    start = ["run", "--data", str(data), "--name", "run", *plan.words]
    quiet, loud = folder / "undisturbed", folder / "disturbed"
    quiet.mkdir()
    loud.mkdir()
    code, run = runs.call(start, quiet)
    if code != 0:
        return [f"the undisturbed run ends with {code}: {run.errors.read_text()}"]
    path, words = loud / "runs" / "run", start
    problems: list[str] = []
    for disturbance in plan.disturbances:
        problems += [
            f"{disturbance}: {problem}" for problem in disturbed(runs, loud, words, disturbance, draw)
        ]
        if (path / "config.yaml").exists():
            words = ["run", "--resume", str(path), "runtime.stall_timeout_s=20"]
        elif path.exists():
            # Killed while the folder was created: there is no run yet.
            shutil.rmtree(path)
    code, run = runs.call(words, loud)
    if code != 0:
        return [*problems, f"the last process ends with {code}: {run.errors.read_text()}"]
    if json.loads((path / "summary.json").read_text())["status"] != "finished":
        problems.append("summary.json does not have status finished")
    return problems + find_leftovers(loud, run, is_separate=False) + differences(path, quiet / "runs" / "run")


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, help="number of runs")
    options = parser.parse_args()
    if options.seconds <= 0 or options.count == 0:
        parser.error("--seconds and --count must be more than 0")
    trials = Trials()
    with workplace("soak") as (place, runs):
        data = write_data(place / "data.npz")
        while trials.seconds < options.seconds and trials.count != options.count:
            draw = random.Random(f"{options.seed} {trials.count}")
            plan = random_plan(draw)
            folder = place / str(trials.count)
            folder.mkdir()
            problems = check(runs, folder, data, plan, draw)
            kinds = [
                f"{disturbance.split(':')[0]} {disturbance.split(':')[-1]}"
                if ":" in disturbance
                else disturbance
                for disturbance in plan.disturbances or ("none",)
            ]
            name = f"{trials.count}: {' '.join(plan.words)}; {', '.join(plan.disturbances)}"
            trials.add(kinds, name, problems)
            shutil.rmtree(folder)
    print_table(
        ("done to a run", "times", "of which in runs that held"),
        ((kind, trials.tried[kind], trials.held[kind]) for kind in sorted(trials.tried)),
    )
    held = trials.count - trials.failed
    print(f"{held} of {trials.count} runs held in {trials.seconds:.0f} s (seed {options.seed})")
    return trials.exit_code


if __name__ == "__main__":
    sys.exit(main())
