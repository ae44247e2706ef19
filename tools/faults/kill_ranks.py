"""kill -9 of random ranks at random times; each run is restarted and must end bit-equal.

    python tools/faults/kill_ranks.py --kills 100

A rank is killed at any time since its start: during rendezvous, in any stage, in evaluations, while
checkpoints are written, and at the end. Half of the ranks are killed shortly after the checkpoint of a step
(`checkpoint.every_steps`), because training takes only a small part of such short runs. The other ranks must
end within ten seconds. Then all ranks are restarted, like torchrun does with --max-restarts. They must resume
from the newest checkpoint, and the run must end like a run without faults. Every tenth rank is stopped
(SIGSTOP) instead, like a hanging machine: the other ranks may then also wait for the heartbeat timeout, and
the stopped rank must end after it continues.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import socket
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fault_case import SETTINGS, differences, newest_problems
from forked_runs import ForkedRun, ForkedRuns, session_processes
from trials import DATA, Trials, make_parser, print_table, workplace

from hyrt.distributed.heartbeat import MAX_SILENCE_S
from hyrt.report.run_folder import read_metrics

ENDS_S = 10.0
# A run takes a second or two on an idle machine.
LIMIT_S = 90.0
EVERY_STEPS = 3
# Epoch checkpoints would hide missing step checkpoints.
CHECKPOINTS = (f"checkpoint.every_steps={EVERY_STEPS}", "checkpoint.every_epochs=0")
# A rank may be killed within this time after a checkpoint: a few steps.
SOON_S = 0.05
MORE = (
    *("train.epochs=12", *CHECKPOINTS, "runtime.sample_threads=1", "runtime.load_threads=1"),
    # Time that a rank waits in rendezvous for a missing rank.
    *("runtime.train_threads=1", "distributed.timeout_s=8"),
)
OVERRIDDEN_SETTINGS = {setting.partition("=")[0] for setting in MORE}
# One step per epoch.
FULL_GRAPH_SETTINGS = tuple(
    "train.epochs=60" if each.startswith("train.epochs") else each
    for each in MORE
    if not each.startswith("runtime.sample")
)
CHOSEN = (*(setting for setting in SETTINGS if setting.partition("=")[0] not in OVERRIDDEN_SETTINGS), *MORE)


@dataclass(frozen=True)
class Team:
    """Ranks that train together, and their strategy."""

    size: int
    way: str
    """Strategy, or full-graph algorithm."""
    settings: tuple[str, ...] = ()
    copies: int = 1
    """Number of ranks per part."""

    def __str__(self) -> str:
        return f"{self.size} ranks, {self.way}"

    @property
    def is_full_graph(self) -> bool:
        return self.way.startswith("1")

    @property
    def words(self) -> list[str]:
        """Return the command-line arguments."""
        if self.is_full_graph:
            return ["--full-graph", *FULL_GRAPH_SETTINGS, f"distributed.algorithm={self.way}", *self.settings]
        return [*CHOSEN, f"distributed.strategy={self.way}", *self.settings]


TEAMS = (
    Team(2, "home"),
    # Otherwise the number of time steps, and the order of sums, depends on measured times.
    Team(3, "hopgnn", ("distributed.time_steps=2",)),
    Team(2, "p3"),
    Team(3, "home"),
    Team(2, "naive-migration"),
    Team(2, "model-centric"),
    Team(2, "local"),
    Team(3, "1d"),
    Team(4, "1.5d", copies=2),
    Team(2, "1d", ("fullgraph.chunks=2", "model.norm=none")),
)


@dataclass
class RankKill:
    """Result of one run; `problems` is empty if all checks passed."""

    team: Team
    rank: int = 0
    is_stop: bool = False
    step: int = 0
    """Step of the newest checkpoint at that time; 0 if there was none."""
    resumed: bool = False
    """Whether the ranks resumed from that checkpoint."""
    ended_s: float = 0.0
    named: int = 0
    others: int = 0
    unnamed: list[str] = field(default_factory=list)
    """Messages of the other ranks that do not name the killed rank."""
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.team}: rank {self.rank} {'stopped' if self.is_stop else 'killed'} after step {self.step}"
        )


class RankKills:
    """Runs on several ranks in a folder.

    Parameters
    ----------
    folder
        Folder for the data and the runs; the files of a passed run are deleted.
    runs
        Starts processes.
    """

    def __init__(self, folder: Path, runs: ForkedRuns) -> None:
        self._folder = folder
        self._runs = runs
        self._references: dict[Team, tuple[Path, float]] = {}
        self._count = 0

    def check(
        self, team: Team, draw: random.Random, *, is_stop: bool = False, at_checkpoint: bool = False
    ) -> RankKill:
        """Kill a rank of a run, restart all ranks, and compare the result.

        With `at_checkpoint`, the rank is killed after the checkpoint of a random step.
        """
        reference, length_s = self._reference_run(team)
        folder, kill = self._new_folder(), RankKill(team, is_stop=is_stop)
        path = folder / "runs" / "run"
        kill.rank = draw.randrange(team.size)
        ranks = self._start(team, folder)
        if at_checkpoint:
            due = draw.randrange(EVERY_STEPS, _last_step(reference), EVERY_STEPS)
            limit = time.monotonic() + LIMIT_S
            while _newest_step(path) < due and time.monotonic() < limit:
                time.sleep(0.001)
            time.sleep(draw.random() * SOON_S)
        else:
            time.sleep(draw.random() * length_s)
        began = time.monotonic()
        os.kill(ranks[kill.rank].pid, signal.SIGSTOP if is_stop else signal.SIGKILL)
        others = [run for number, run in enumerate(ranks) if number != kill.rank]
        limit_s = ENDS_S + (MAX_SILENCE_S if is_stop else 0.0)
        self._await(others, began, limit_s, kill)
        kill.ended_s = time.monotonic() - began
        if is_stop:
            os.kill(ranks[kill.rank].pid, signal.SIGCONT)
            self._await([ranks[kill.rank]], time.monotonic(), limit_s, kill, is_other=False)
        else:
            self._runs.wait(ranks[kill.rank], ENDS_S)
        kill.problems += [
            f"processes left: {left}" for run in ranks if (left := session_processes(run.pid)) and kill.others
        ]
        if path.is_dir():
            kill.problems += newest_problems(path)
        kill.step = _newest_step(path)
        kill.problems += self._restart(team, folder, kill) or differences(path, reference)
        if not kill.problems:
            shutil.rmtree(folder)
        return kill

    def _await(
        self, ranks: list[ForkedRun], began: float, limit_s: float, kill: RankKill, *, is_other: bool = True
    ) -> None:
        """Wait for ranks that must end, and record problems with their end."""
        for run in ranks:
            code = self._runs.wait(run, max(0.0, began + limit_s - time.monotonic()))
            error_text = run.errors.read_text()
            if code is None:
                kill.problems.append(f"a rank runs on after {limit_s:g} s: {error_text}")
                os.kill(run.pid, signal.SIGKILL)
                self._runs.wait(run, LIMIT_S)
            elif code not in (0, 1):
                kill.problems.append(f"a rank ends with {code}: {error_text}")
            if "Traceback" in error_text:
                kill.problems.append(f"a rank shows a traceback: {error_text}")
            # A rank that exited successfully had no work left.
            if is_other and code == 1:
                kill.others += 1
                if re.search(rf"rank {kill.rank} (was lost|did not (?:reach|join)|hosts)", error_text):
                    kill.named += 1
                else:
                    kill.unnamed.append(error_text.strip())

    def _restart(self, team: Team, folder: Path, kill: RankKill) -> list[str]:
        """Restart all ranks, which resume from the newest checkpoint; return the problems."""
        ranks = self._start(team, folder, TORCHELASTIC_RESTART_COUNT="1")
        codes = [self._runs.wait(run, LIMIT_S) for run in ranks]
        for run, code in zip(ranks, codes, strict=True):
            if code is None:
                os.kill(run.pid, signal.SIGKILL)
                self._runs.wait(run, LIMIT_S)
        problems = [
            f"started again, rank {number} ends with {code}: {run.errors.read_text()}"
            for number, (run, code) in enumerate(zip(ranks, codes, strict=True))
            if code != 0
        ]
        text = ranks[0].output.read_text()
        if not problems and "warning" in text:
            problems.append(f"started again, it warns: {text}")
        kill.resumed = kill.step > 0 and f"continuing after step {kill.step}\n" in text
        if not problems and kill.resumed != (kill.step > 0):
            problems.append(f"started again, it does not continue after step {kill.step}: {text}")
        return problems

    def _reference_run(self, team: Team) -> tuple[Path, float]:
        """Return the run without faults, and its duration."""
        if team not in self._references:
            # The first run also compiles kernels.
            for _ in range(2):
                folder = self._new_folder()
                began = time.monotonic()
                ranks = self._start(team, folder)
                codes = [self._runs.wait(run, LIMIT_S) for run in ranks]
                if any(codes) or None in codes:
                    raise RuntimeError(f"{team}: {codes}: {[run.errors.read_text() for run in ranks]}")
                _check_due_steps(team, folder / "runs" / "run")
                self._references[team] = folder / "runs" / "run", time.monotonic() - began
        return self._references[team]

    def _start(self, team: Team, folder: Path, **environment: str) -> list[ForkedRun]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        parts = self._parts(team.size // team.copies)
        words = ["run", "--data", str(parts), "--name", "run", *team.words]
        started = []
        for rank in range(team.size):
            rank_folder = folder / f"rank-{rank}"
            rank_folder.mkdir(exist_ok=True)
            rank_environment = {"RANK": str(rank), "WORLD_SIZE": str(team.size), "GLOO_SOCKET_IFNAME": "lo"}
            rank_environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **environment}
            started.append(
                self._runs.start(words, folder, is_quick=True, apart=rank_folder, **rank_environment)
            )
        return started

    def _parts(self, count: int) -> Path:
        path = self._folder / f"parts-{count}"
        if not path.is_dir():
            words = [
                "partition",
                "--data",
                DATA,
                "--parts",
                str(count),
                "--method",
                "random",
                "-o",
                str(path),
            ]
            self._runs.complete(words, self._folder, LIMIT_S)
        return path

    def _new_folder(self) -> Path:
        self._count += 1
        folder = self._folder / f"run-{self._count}"
        folder.mkdir()
        return folder


def _newest_step(path: Path) -> int:
    """Return the step of a run's newest checkpoint; 0 if there is none."""
    return max(
        (int(checkpoint.name[5:13]) for checkpoint in path.glob("checkpoints/step-*.safetensors")), default=0
    )


def _last_step(path: Path) -> int:
    return int(json.loads((path / "summary.json").read_text())["steps"])


def _check_due_steps(team: Team, path: Path) -> None:
    """Check that a run has written the checkpoints of all due steps, and the final checkpoint.

    Raises
    ------
    RuntimeError
        If not; with the written steps.
    """
    last = _last_step(path)
    written = [
        line["step"] for line in read_metrics(path / "metrics.jsonl") if line["event"] == "checkpointed"
    ]
    if written != sorted({*range(EVERY_STEPS, last + 1, EVERY_STEPS), last}):
        raise RuntimeError(f"{team}: checkpoints were written at unexpected steps: {written}")


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--full-graph", action="store_true", help="only full-graph training")
    parser.add_argument("--seconds", type=float, help="start no run after this many seconds")
    options = parser.parse_args()
    if options.kills < 1:
        parser.error("--kills must be at least 1")
    trials, draw = Trials(), random.Random(options.seed)
    teams = [team for team in TEAMS if not options.full_graph or team.is_full_graph]
    results: list[RankKill] = []
    with workplace("kill-ranks") as (folder, runs):
        kills = RankKills(folder, runs)
        # Print a summary after Ctrl-C as well.
        with suppress(KeyboardInterrupt):
            for index in range(options.kills):
                if options.seconds is not None and trials.seconds > options.seconds:
                    break
                kill = kills.check(
                    *(teams[index % len(teams)], draw),
                    # Another team in each round.
                    is_stop=(index + index // len(teams)) % 10 == 9,
                    at_checkpoint=draw.random() < 0.5,
                )
                results.append(kill)
                trials.add([kill.team], f"{index}: {kill}", kill.problems)
                for message in kill.unnamed:
                    print(f"{index}: {kill}: not named: {message}", flush=True)
    if not results:
        return 1
    of_team = Counter(kill.team for kill in results)
    print_table(
        ("ranks", "held", "of", "resumed at a checkpoint", "slowest end of the others, s"),
        [
            (
                *(team, trials.held[team], count),
                sum(kill.resumed for kill in results if kill.team == team),
                f"{max(kill.ended_s for kill in results if kill.team == team):.1f}",
            )
            for team, count in of_team.items()
        ],
    )
    steps = sorted(kill.step for kill in results)
    print(
        f"{trials.count - trials.failed} of {trials.count} runs ended in time and, started again, bit-equal; "
        f"{sum(kill.is_stop for kill in results)} ranks stopped, the others killed, rank 0 in "
        f"{sum(kill.rank == 0 for kill in results)}; {sum(kill.named for kill in results)} of "
        f"{sum(kill.others for kill in results)} other ranks named the rank that was lost; newest checkpoint "
        f"then: step {steps[0]} to {steps[-1]}, median {steps[len(steps) // 2]}; "
        f"{sum(kill.resumed for kill in results)} resumed at it; {trials.seconds:.0f} s"
    )
    return trials.exit_code


if __name__ == "__main__":
    sys.exit(main())
