"""One run with an injected fault: what it must do, and what must be true after it.

An error that names the cause within five seconds (a hang: within its timeout and what ending takes), the exit
code, no thread or process left, no temporary file left, the previous checkpoint loads, and the resumed run
ends bit-equal to one that was not disturbed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from compared_runs import compare_runs, read_records
from forked_runs import ForkedRun, ForkedRuns, processes_of
from trials import write_data

from hyrt.errors import CheckpointError
from hyrt.observe.faults import WRITES, Fault, parse_faults
from hyrt.training.checkpoint import has_checkpoint, load_newest_checkpoint

STEPS = 18
STALL_S = 1.5
SURFACES_S = 5.0
# What ending takes after a hang was noticed: joins, then the devices are closed.
ENDS_S = 5.0
# A machine that does other things may pause a process; a hang is far longer.
LIMIT_S = 60.0
SETTINGS = [
    *("data.batch_size=64", "train.epochs=3", "model.hidden=16", "model.dropout=0.3", "sampler.fanout=[5,5]"),
    *("checkpoint.every_steps=2", "evaluate.every=2", "balance.policy=static", "balance.predict=false"),
    # Drivers may compile kernels when they load; only runs that are to hang have a short one.
    "runtime.stall_timeout_s=20",
]
DURING = ("raise", "base", "exit", "leave", "hang")
WHEN = ("first", "middle", "last")


@dataclass(frozen=True)
class Trainers:
    """Devices, in the words of `hyrt run`, and the one that the fault is at."""

    devices: str
    place: str
    settings: tuple[str, ...] = ()

    @property
    def is_pair(self) -> bool:
        return "," in self.devices


PAIR = ("split=[40,24]",)
TRAINERS = (
    Trainers("cpu:0", "cpu:0"),
    Trainers("null:0", "null:0"),
    Trainers("opencl:0", "opencl:0"),
    Trainers("cpu:0,opencl:0", "cpu:0", PAIR),
    Trainers("cpu:0,opencl:0", "opencl:0", PAIR),
    Trainers("null:0,null:1", "null:1", PAIR),
)


@dataclass(frozen=True)
class FaultCase:
    """A fault in a run.

    `goes_on` where the run is to outlive it, `is_exact` where it then ends with the same bits.
    """

    trainers: Trainers
    fault: str
    settings: tuple[str, ...] = ()
    goes_on: bool = False
    is_exact: bool = True

    def __str__(self) -> str:
        return f"{self.fault} on {self.trainers.devices} {' '.join(self.settings)}".strip()


@dataclass
class FaultOutcome:
    """What a case did: `problems` is empty where all held."""

    case: FaultCase
    surfaced_s: float = 0.0
    problems: list[str] = field(default_factory=list)
    error: str = ""


def cases(trainers: Sequence[Trainers] = TRAINERS) -> Iterator[FaultCase]:
    """Every case: stage x trainer x kind x when, then devices, results, stragglers and checkpoints."""
    for who in trainers:
        for when in WHEN:
            for stage in ("sample", "load", "transfer", "propagate", "update", "synchronize"):
                place = "host" if stage == "synchronize" else who.place
                for kind in DURING:
                    short = (f"runtime.stall_timeout_s={STALL_S}",) if kind == "hang" else ()
                    yield FaultCase(who, f"{stage}:{place}:{when}:{kind}", short)
                    if kind != "hang":
                        yield FaultCase(who, f"{stage}:{place}:{when}:{kind}", ("runtime.pipelined=false",))
            for stage in ("transfer", "propagate", "update"):
                fault = f"{stage}:{who.place}:{when}:fault"
                yield FaultCase(who, fault)
                if who.is_pair:
                    yield FaultCase(
                        who, fault, ("runtime.on_device_loss=continue",), goes_on=True, is_exact=False
                    )
            for stage in ("transfer", "propagate"):
                yield FaultCase(who, f"{stage}:{who.place}:{when}:oom", goes_on=True, is_exact=False)
            for kind in ("nan-loss", "nan-gradient"):
                yield FaultCase(who, f"propagate:{who.place}:{when}:{kind}")
        for stage in ("transfer", "propagate"):
            yield FaultCase(who, f"{stage}:{who.place}:middle+:oom")
        for stage in ("sample", "load", "transfer", "propagate", "update"):
            yield FaultCase(who, f"{stage}:{who.place}:12+:slow", goes_on=True)
        yield FaultCase(who, "synchronize:host:12+:slow", goes_on=True)
    for doing in WRITES:
        for when in ("first", "middle", "last", "first+", "middle+"):
            for kind in ("enospc", "eio"):
                yield FaultCase(TRAINERS[0], f"checkpoint:{doing}:{when}:{kind}")


def expected_error(case: FaultCase) -> str:
    """A pattern for the line that the user reads."""
    (fault,) = parse_faults(case.fault)
    step = fault.first_step(STEPS)
    if fault.stage == "checkpoint":
        reason = {"enospc": "No space left on device", "eio": "Input/output error"}[fault.kind]
        # The first checkpoint at or after that step.
        return rf"the checkpoint of step {step + step % 2 or 2} .*could not be written: {reason}"
    where = {
        "sample": "sample on cpu",
        "load": "load on cpu",
        "update": f"synchronize on {fault.place}",
        "synchronize": "synchronize",
    }.get(fault.stage, f"{fault.stage} on {fault.place}")
    what = f"injected in {fault.stage} on {fault.place} at step {step}"
    match fault.kind:
        case "hang":
            return rf"nothing moved for {STALL_S:g} s \(.*{where} at step {step}\b.* did not return"
        case "nan-loss" | "nan-gradient":
            return rf"of {fault.place} is not finite at step {step} \(seed 0\)"
        case "exit":
            what = "SystemExit"
    return rf"error in {where} at step {step}: .*{what}"


class FaultSuite:
    """Runs cases in a folder.

    Parameters
    ----------
    folder
        The folder for the data and the runs; one case's are deleted when all held.
    runs
        Starts processes.
    own_every
        One case of this many gets a process of its own; all that hang do.
    """

    def __init__(self, folder: Path, runs: ForkedRuns, own_every: int = 4) -> None:
        self.own_every = own_every
        self.folder = folder
        self.runs = runs
        self.data = write_data(folder / "tiny.npz")
        self._undisturbed: dict[tuple[str, ...], Path] = {}
        self._count = 0

    def words(self, trainers: Trainers, *settings: str) -> list[str]:
        """Of a run."""
        return [
            *("run", "--data", str(self.data), "--devices", trainers.devices, "--name", "run"),
            *SETTINGS,
            *trainers.settings,
            *settings,
        ]

    def undisturbed(self, trainers: Trainers) -> Path:
        """The run without a fault."""
        words = tuple(self.words(trainers))
        if words not in self._undisturbed:
            folder = self.new_folder()
            self.runs.complete(list(words), folder, LIMIT_S)
            self._undisturbed[words] = folder / "runs" / "run"
        return self._undisturbed[words]

    def new_folder(self) -> Path:
        self._count += 1
        folder = self.folder / f"case-{self._count}"
        folder.mkdir()
        return folder

    def check(self, case: FaultCase) -> FaultOutcome:
        """Run a case; once more where the time was wrong, as a busy machine may pause any process."""
        outcome = self._check(case)
        if any(problem.startswith("took ") for problem in outcome.problems):
            outcome = self._check(case)
        return outcome

    def _check(self, case: FaultCase) -> FaultOutcome:
        whole = self.undisturbed(case.trainers)
        folder = self.new_folder()
        outcome = FaultOutcome(case)
        (fault,) = parse_faults(case.fault)
        is_hang = fault.kind == "hang"
        # What hangs needs a process of its own to end with.
        is_own = is_hang or self._count % self.own_every == 0
        started = time.monotonic()
        words = self.words(case.trainers, *case.settings)
        if is_own:
            run = self.runs.start(words, folder, HYRT_FAULT=case.fault)
            code = self.runs.wait(run, LIMIT_S)
        else:
            code, run = self.runs.call(words, folder, HYRT_FAULT=case.fault)
        ended = time.monotonic()
        errors, output = run.errors.read_text(), run.output.read_text()
        happened = re.search(r"^fault injected at ([0-9.]+) s: ", errors, re.MULTILINE)
        outcome.surfaced_s = ended - (float(happened[1]) if happened else started)
        if not happened and fault.kind != "slow":
            outcome.problems.append("no fault was injected")
        told = [line for line in errors.splitlines() if line.startswith(("error:", "error in "))]
        outcome.error = next(iter(told), "")
        note = outcome.problems.append
        if code is None:
            os.killpg(run.pid, signal.SIGKILL)
            self.runs.wait(run, LIMIT_S)
            note(f"hangs: {errors} {output}")
            return outcome
        limit_s = SURFACES_S + (STALL_S + ENDS_S if is_hang else 0.0)
        if outcome.surfaced_s > limit_s and happened:
            note(f"took {outcome.surfaced_s:.1f} s")
        if "faults are injected" not in output:
            note("does not say that faults are injected")
        if "Traceback" in errors:
            note(f"shows a traceback: {errors}")
        if code != (0 if case.goes_on else 1):
            note(f"exit code {code}: {errors}")
        if not case.goes_on and not re.search(expected_error(case), outcome.error):
            note(f"says {outcome.error!r}, not {expected_error(case)!r}")
        outcome.problems += leftovers(folder, run, hung=fault if is_hang else None, is_own=is_own)
        if not case.goes_on:
            outcome.problems += self._resume(folder)
        path = folder / "runs" / "run"
        if not outcome.problems:
            outcome.problems += different(path, whole, is_exact=case.is_exact)
        if not outcome.problems:
            shutil.rmtree(folder)
        return outcome

    def _resume(self, folder: Path) -> list[str]:
        path = folder / "runs" / "run"
        problems = newest_problems(path)
        summary = path / "summary.json"
        if not summary.exists() or json.loads(summary.read_text())["status"] != "failed":
            problems.append("summary.json does not say failed")
        words = ["run", "--resume", str(path), "runtime.stall_timeout_s=20"]
        code, run = self.runs.call(words, folder)
        if code != 0:
            problems.append(f"resuming ends with {code}: {run.errors.read_text()}")
        if "warning" in run.output.read_text():
            problems.append(f"resuming warns: {run.output.read_text()}")
        return problems + leftovers(folder, run, is_own=False)


def leftovers(folder: Path, run: ForkedRun, *, hung: Fault | None = None, is_own: bool = True) -> list[str]:
    """What a run that has ended left behind: threads, processes, files.

    A thread that hangs cannot be ended, nor one of the same device that waits for it; they go with the
    process. Where the main thread hangs, the process ends at once and knows of none.
    """
    problems = []
    threads = run.threads_left.read_text().split() if run.threads_left.exists() else ["(unknown)"]
    if hung is not None:
        mine = ("(unknown)",) if hung.stage == "synchronize" else (f"hyrt.{hung.stage}", hung.place)
        threads = [name for name in threads if not name.endswith(mine)]
    if threads:
        problems.append(f"threads left: {', '.join(threads)}")
    if is_own and (processes := processes_of(run.pid)):
        problems.append(f"processes left: {processes}")
    files = list((folder / "tmp").rglob("*"))
    files += [path for path in folder.rglob("*") if path.name.endswith((".partial", ".tmp", ".mmap"))]
    known = {
        "config.yaml",
        "env.json",
        "metrics.jsonl",
        "summary.json",
        "report.html",
        "checkpoints",
        ".lock",
        "stacks.txt",
    }
    if (folder / "runs" / "run").is_dir():
        files += [path for path in (folder / "runs" / "run").iterdir() if path.name not in known]
    if files:
        problems.append(f"files left: {', '.join(str(path.relative_to(folder)) for path in files)}")
    return problems


def newest_problems(path: Path) -> list[str]:
    """What is wrong with the newest checkpoint, where there is one."""
    warnings: list[str] = []
    if has_checkpoint(path / "checkpoints"):
        try:
            load_newest_checkpoint(path / "checkpoints", warnings.append)
        except CheckpointError as error:
            warnings.append(str(error))
    return warnings


def different(path: Path, whole: Path, *, is_exact: bool = True) -> list[str]:
    """In what a run differs from one that was not disturbed."""
    if is_exact:
        return compare_runs(path, whole)
    ours, theirs = (read_records(run)["losses"] for run in (path, whole))
    if len(ours) != len(theirs):
        return [f"has {len(ours)} losses, not {len(theirs)}"]
    worst = max(abs(a - b) / max(abs(b), 1e-6) for a, b in zip(ours, theirs, strict=True))
    return [] if worst < 1e-3 else [f"a loss is off by {worst:.2g}"]
