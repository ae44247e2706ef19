"""A run with an injected fault: required behaviour, and checks after it.

Required are an error that names the cause within five seconds (for a hang: within its timeout plus shutdown
time), the exit code, no remaining threads, processes or temporary files, a loadable previous checkpoint, and
a resumed run that is bit-equal to a run without faults.
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

from compare_runs import compare_runs, read_records
from forked_runs import ForkedRun, ForkedRuns, session_processes
from trials import write_data

from hyrt.errors import CheckpointError
from hyrt.telemetry.faults import WRITE_OPERATIONS, Fault, parse_faults
from hyrt.training.checkpoint import has_checkpoint, load_newest_checkpoint

STEPS = 18
STALL_S = 1.5
SURFACES_S = 5.0
# Shutdown time after a hang is detected: joining threads, then closing devices.
ENDS_S = 5.0
# A busy machine may pause a process; a hang takes much longer.
LIMIT_S = 60.0
SETTINGS = [
    *("data.batch_size=64", "train.epochs=3", "model.hidden=16", "model.dropout=0.3", "sampler.fanout=[5,5]"),
    *("checkpoint.every_steps=2", "evaluate.every=2", "balance.policy=static", "balance.predict=false"),
    # Drivers may compile kernels when they load, so only hang tests use a short timeout.
    "runtime.stall_timeout_s=20",
]
DURING = ("raise", "base", "exit", "leave", "hang")
WHEN = ("first", "middle", "last")


@dataclass(frozen=True)
class Trainers:
    """Devices as an argument of `hyrt run`, and the device of the fault."""

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

    `survives`: the run must survive the fault. `is_exact`: it then ends with the same bits.
    """

    trainers: Trainers
    fault: str
    settings: tuple[str, ...] = ()
    survives: bool = False
    is_exact: bool = True

    def __str__(self) -> str:
        return f"{self.fault} on {self.trainers.devices} {' '.join(self.settings)}".strip()


@dataclass
class FaultOutcome:
    """Result of a case; `problems` is empty if all checks passed."""

    case: FaultCase
    surfaced_s: float = 0.0
    problems: list[str] = field(default_factory=list)
    error: str = ""


def fault_cases(trainers: Sequence[Trainers] = TRAINERS) -> Iterator[FaultCase]:
    """Iterate over all cases: stage x trainer x kind x when, then devices, results, stragglers and
    checkpoints.
    """
    for trainer in trainers:
        for when in WHEN:
            for stage in ("sample", "load", "transfer", "propagate", "update", "synchronize"):
                place = "host" if stage == "synchronize" else trainer.place
                for kind in DURING:
                    short = (f"runtime.stall_timeout_s={STALL_S}",) if kind == "hang" else ()
                    yield FaultCase(trainer, f"{stage}:{place}:{when}:{kind}", short)
                    if kind != "hang":
                        yield FaultCase(
                            trainer, f"{stage}:{place}:{when}:{kind}", ("runtime.pipelined=false",)
                        )
            for stage in ("transfer", "propagate", "update"):
                fault = f"{stage}:{trainer.place}:{when}:fault"
                yield FaultCase(trainer, fault)
                if trainer.is_pair:
                    yield FaultCase(
                        trainer, fault, ("runtime.on_device_loss=continue",), survives=True, is_exact=False
                    )
            for stage in ("transfer", "propagate"):
                yield FaultCase(trainer, f"{stage}:{trainer.place}:{when}:oom", survives=True, is_exact=False)
            for kind in ("nan-loss", "nan-gradient"):
                yield FaultCase(trainer, f"propagate:{trainer.place}:{when}:{kind}")
        for stage in ("transfer", "propagate"):
            yield FaultCase(trainer, f"{stage}:{trainer.place}:middle+:oom")
        for stage in ("sample", "load", "transfer", "propagate", "update"):
            yield FaultCase(trainer, f"{stage}:{trainer.place}:12+:slow", survives=True)
        yield FaultCase(trainer, "synchronize:host:12+:slow", survives=True)
    for doing in WRITE_OPERATIONS:
        for when in ("first", "middle", "last", "first+", "middle+"):
            for kind in ("enospc", "eio"):
                yield FaultCase(TRAINERS[0], f"checkpoint:{doing}:{when}:{kind}")


def expected_error(case: FaultCase) -> str:
    """Return a pattern for the error line."""
    (fault,) = parse_faults(case.fault)
    step = fault.first_step(STEPS)
    if fault.stage == "checkpoint":
        reason = {"enospc": "No space left on device", "eio": "Input/output error"}[fault.kind]
        # The first checkpoint at or after that step.
        return rf"the checkpoint of step {step + step % 2 or 2} .*could not be written: {reason}"
    location = {
        "sample": "sample on cpu",
        "load": "load on cpu",
        "update": f"synchronize on {fault.place}",
        "synchronize": "synchronize",
    }.get(fault.stage, f"{fault.stage} on {fault.place}")
    cause = f"injected in {fault.stage} on {fault.place} at step {step}"
    match fault.kind:
        case "hang":
            return rf"nothing moved for {STALL_S:g} s \(.*{location} at step {step}\b.* did not return"
        case "nan-loss" | "nan-gradient":
            return rf"of {fault.place} is not finite at step {step} \(seed 0\)"
        case "exit":
            cause = "SystemExit"
    return rf"error in {location} at step {step}: .*{cause}"


class FaultSuite:
    """Runs cases in a folder.

    Parameters
    ----------
    folder
        Folder for the data and the runs; the runs of a passed case are deleted.
    runs
        Starts processes.
    separate_every
        One of this many cases runs in a separate process; all hang cases do.
    """

    def __init__(self, folder: Path, runs: ForkedRuns, separate_every: int = 4) -> None:
        self.separate_every = separate_every
        self.folder = folder
        self.runs = runs
        self.data = write_data(folder / "tiny.npz")
        self._reference_runs: dict[tuple[str, ...], Path] = {}
        self._count = 0

    def words(self, trainers: Trainers, *settings: str) -> list[str]:
        """Return the arguments of a run."""
        return [
            *("run", "--data", str(self.data), "--devices", trainers.devices, "--name", "run"),
            *SETTINGS,
            *trainers.settings,
            *settings,
        ]

    def reference_run(self, trainers: Trainers) -> Path:
        """Return the run without a fault."""
        words = tuple(self.words(trainers))
        if words not in self._reference_runs:
            folder = self.new_folder()
            self.runs.complete(list(words), folder, LIMIT_S)
            self._reference_runs[words] = folder / "runs" / "run"
        return self._reference_runs[words]

    def new_folder(self) -> Path:
        self._count += 1
        folder = self.folder / f"case-{self._count}"
        folder.mkdir()
        return folder

    def check(self, case: FaultCase) -> FaultOutcome:
        """Run a case; repeat it if the time was exceeded, because a busy machine may pause any process."""
        outcome = self._check(case)
        if any(problem.startswith("took ") for problem in outcome.problems):
            outcome = self._check(case)
        return outcome

    def _check(self, case: FaultCase) -> FaultOutcome:
        reference = self.reference_run(case.trainers)
        folder = self.new_folder()
        outcome = FaultOutcome(case)
        (fault,) = parse_faults(case.fault)
        is_hang = fault.kind == "hang"
        # Hanging threads only end with their process, so a hang needs a separate process.
        is_separate = is_hang or self._count % self.separate_every == 0
        started = time.monotonic()
        words = self.words(case.trainers, *case.settings)
        if is_separate:
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
        error_lines = [line for line in errors.splitlines() if line.startswith(("error:", "error in "))]
        outcome.error = next(iter(error_lines), "")
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
        if code != (0 if case.survives else 1):
            note(f"exit code {code}: {errors}")
        if not case.survives and not re.search(expected_error(case), outcome.error):
            note(f"says {outcome.error!r}, not {expected_error(case)!r}")
        outcome.problems += find_leftovers(
            folder, run, hung=fault if is_hang else None, is_separate=is_separate
        )
        if not case.survives:
            outcome.problems += self._resume(folder)
        path = folder / "runs" / "run"
        if not outcome.problems:
            outcome.problems += differences(path, reference, is_exact=case.is_exact)
        if not outcome.problems:
            shutil.rmtree(folder)
        return outcome

    def _resume(self, folder: Path) -> list[str]:
        path = folder / "runs" / "run"
        problems = newest_problems(path)
        summary = path / "summary.json"
        if not summary.exists() or json.loads(summary.read_text())["status"] != "failed":
            problems.append("summary.json does not have status failed")
        words = ["run", "--resume", str(path), "runtime.stall_timeout_s=20"]
        code, run = self.runs.call(words, folder)
        if code != 0:
            problems.append(f"resuming ends with {code}: {run.errors.read_text()}")
        if "warning" in run.output.read_text():
            problems.append(f"resuming warns: {run.output.read_text()}")
        return problems + find_leftovers(folder, run, is_separate=False)


def find_leftovers(
    folder: Path, run: ForkedRun, *, hung: Fault | None = None, is_separate: bool = True
) -> list[str]:
    """Return the remaining threads, processes and files of a finished run.

    A hanging thread cannot be ended, nor can a thread of the same device that waits for it; they end with the
    process. If the main thread hangs, the process exits immediately without a thread list.
    """
    problems = []
    threads = run.threads_left.read_text().split() if run.threads_left.exists() else ["(unknown)"]
    if hung is not None:
        mine = ("(unknown)",) if hung.stage == "synchronize" else (f"hyrt.{hung.stage}", hung.place)
        threads = [name for name in threads if not name.endswith(mine)]
    if threads:
        problems.append(f"threads left: {', '.join(threads)}")
    if is_separate and (processes := session_processes(run.pid)):
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
    """Return the problems with the newest checkpoint, if there is one."""
    warnings: list[str] = []
    if has_checkpoint(path / "checkpoints"):
        try:
            load_newest_checkpoint(path / "checkpoints", warnings.append)
        except CheckpointError as error:
            warnings.append(str(error))
    return warnings


def differences(path: Path, reference: Path, *, is_exact: bool = True) -> list[str]:
    """Return the differences from a run without faults."""
    if is_exact:
        return compare_runs(path, reference)
    ours, theirs = (read_records(run)["losses"] for run in (path, reference))
    if len(ours) != len(theirs):
        return [f"has {len(ours)} losses, not {len(theirs)}"]
    worst = max(abs(a - b) / max(abs(b), 1e-6) for a, b in zip(ours, theirs, strict=True))
    return [] if worst < 1e-3 else [f"a loss is off by {worst:.2g}"]
