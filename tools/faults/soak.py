"""Train with random settings, devices, faults, kills and signals; resume and compare with an undisturbed run.

    python tools/faults/soak.py --seconds 600

Prints each run that does not hold, then what was tried and how much of it held.
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

from fault_case import LIMIT_S, different, leftovers, newest_problems
from forked_runs import ForkedRuns
from trials import Trials, make_parser, print_table, workplace, write_data

EPOCHS = 3
STAGES = ("sample", "load", "transfer", "propagate", "update")
KINDS = ("raise", "base", "exit", "leave", "hang", "slow")


@dataclass(frozen=True)
class Plan:
    """One random run: its settings, and what is done to each of its processes but the last."""

    words: tuple[str, ...]
    disturbances: tuple[str, ...]


def random_plan(draw: random.Random) -> Plan:
    """Settings under which the split stays, so that the bits may be compared."""
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
        *(f"runtime.depth={draw.choice((1, 2, 4))}", f"runtime.sample_threads={draw.choice((1, 2))}"),
        *(
            "balance.policy=static",
            "balance.predict=false",
            f"checkpoint.every_steps={draw.choice((0, 1, 3))}",
        ),
        f"runtime.pipelined={draw.choice(('true', 'true', 'true', 'false'))}",
    ]
    if "opencl:0" in devices:
        # Its kernels have no normalisation.
        words = ["model.norm=none" if word.startswith("model.norm") else word for word in words]
    elif draw.random() < 0.5 and model != "gat":
        devices = ["cpu:0", draw.choice(("opencl:0", "null:0"))]
        first = draw.randrange(batch + 1)
        words = ["model.norm=none" if word.startswith("model.norm") else word for word in words]
        words[1] = ",".join(devices)
        words.append(f"split=[{first},{batch - first}]")
    if "train.optimizer=SGD" in words:
        # Sums over all neighbours, without a norm, else diverge, and the run ends as it should.
        words.append("train.clip_norm=1")
    serial = "runtime.pipelined=false" in words
    disturbances = []
    for _ in range(draw.choice((0, 1, 1, 2, 3))):
        kind = draw.choice(("kill", "SIGINT", "SIGTERM", "fault", "fault", "fault"))
        if kind == "fault":
            what = draw.choice([each for each in KINDS if not (serial and each == "hang")])
            kind = f"{draw.choice(STAGES)}:{draw.choice(devices)}:{draw.randrange(12)}:{what}"
        disturbances.append(kind)
    return Plan(tuple(words), tuple(disturbances))


def disturbed(runs: ForkedRuns, folder: Path, words: list[str], what: str, draw: random.Random) -> list[str]:
    """A process of a run and what is done to it; what is wrong then. Whether it ended is up to it."""
    path = folder / "runs" / "run"
    if what == "kill" or what.startswith("SIG"):
        run = runs.start(words, folder)
        code = runs.wait(run, 0.1 + draw.random())
        if code is None:
            number = signal.SIGKILL if what == "kill" else signal.Signals[what]
            # Ctrl-C in a terminal comes to a process and to those it has started; it may just have ended.
            with suppress(ProcessLookupError):
                (os.killpg if what == "SIGINT" else os.kill)(run.pid, number)
            code = runs.wait(run, LIMIT_S)
            # Before it has set its handlers, a signal ends a process as it ends any; and a run may end by
            # itself just before the signal comes to it.
            expected = (-number, 0) if what == "kill" else (128 + number, -number, 0)
        else:
            expected = (0,)
    else:
        # A step it never comes to is as good.
        run = runs.start([*words, "runtime.stall_timeout_s=2"], folder, HYRT_FAULT=what)
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
    if what not in ("kill", "SIGINT", "SIGTERM") and not what.endswith("hang"):
        problems += leftovers(folder, run)
    return problems + (newest_problems(path) if (path / "checkpoints").is_dir() else [])


def check(runs: ForkedRuns, folder: Path, data: Path, plan: Plan, draw: random.Random) -> list[str]:
    """The plan's run beside the same run undisturbed."""
    start = ["run", "--data", str(data), "--name", "run", *plan.words]
    quiet, loud = folder / "undisturbed", folder / "disturbed"
    quiet.mkdir()
    loud.mkdir()
    code, run = runs.call(start, quiet)
    if code != 0:
        return [f"the undisturbed run ends with {code}: {run.errors.read_text()}"]
    path, words = loud / "runs" / "run", start
    problems: list[str] = []
    for what in plan.disturbances:
        problems += [f"{what}: {problem}" for problem in disturbed(runs, loud, words, what, draw)]
        if (path / "config.yaml").exists():
            words = ["run", "--resume", str(path), "runtime.stall_timeout_s=20"]
        elif path.exists():
            # Killed while the folder was made: it is no run yet.
            shutil.rmtree(path)
    code, run = runs.call(words, loud)
    if code != 0:
        return [*problems, f"the last process ends with {code}: {run.errors.read_text()}"]
    if json.loads((path / "summary.json").read_text())["status"] != "finished":
        problems.append("summary.json does not say finished")
    return problems + leftovers(loud, run, is_own=False) + different(path, quiet / "runs" / "run")


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, help="end after so many runs")
    options = parser.parse_args()
    if options.seconds <= 0 or options.count == 0:
        parser.error("--seconds, --count: more than 0, or nothing is tried")
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
                f"{what.split(':')[0]} {what.split(':')[-1]}" if ":" in what else what
                for what in plan.disturbances or ("none",)
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
