"""Train random configurations in several ways that must not change a bit of the result.

    python tools/faults/equal_bits.py --count 200 --seed 0
    python tools/faults/equal_bits.py --seed 0 --only 17 --keep kept    # one of them; keep its run folders

Each configuration is trained once, and again

- in another process, with another memory layout and allocator, on one processor;
- with other thread counts, another pipeline depth, or without overlap;
- stopped by SIGINT at a random point (within steps if possible), and resumed;
- ended by a fault in a random stage of a random step, and resumed from an earlier checkpoint.

Every loss, every metric and every tensor of the last checkpoint must be bit-equal. A configuration that hyrt
rejects is counted and replaced by another; a fraction of rejections above `MAX_REFUSED` is a failure.
"""

from __future__ import annotations

import random
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from compare_runs import compare_runs, read_summary
from feature_graphs import write_graphs
from forked_runs import PROCESSORS, ForkedRun, ForkedRuns
from polled_stops import POLLS, STOP_AT_POLL
from random_configurations import FAMILIES, DrawnConfiguration, draw_configuration
from trials import Trials, make_parser, print_table, workplace
from user_layers import install_user_layers

MAX_REFUSED = 0.25
_REFUSED = 2
_INTERRUPTED = 130
_FAILED = 1
# Prevent decisions that depend on the clock.
COMMON = ("--name", "run", "balance.policy=static", "balance.predict=false", "runtime.stall_timeout_s=600")
# Another memory layout for Python and C: never zeroed, and returned to the system immediately.
OTHER_MEMORY = {
    "PYTHONMALLOC": "malloc",
    "MALLOC_PERTURB_": "171",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TOP_PAD_": "12345",
    "MALLOC_TRIM_THRESHOLD_": "0",
    "OMP_NUM_THREADS": "3",
    "MKL_NUM_THREADS": "3",
    PROCESSORS: "1",
    "HYRT_TEST_LONGER_ENVIRONMENT": "x" * 4321,
}
RESUME = ["run", "--resume", "runs/run"]
WAYS = ("in another process", "with other threads", "stopped and resumed", "failed and resumed")


@dataclass
class Outcome:
    """Result of a configuration.

    Parameters
    ----------
    refusal
        hyrt's error if it rejects the configuration; empty if it trains.
    compared
        The variations in which it was trained again.
    ends
        How runs ended before they were resumed.
    problems
        Differences and failures; empty if all bits are equal.
    """

    refusal: str = ""
    compared: list[str] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class BitCheck:
    """Trains configurations in several variations.

    Parameters
    ----------
    folder
        Folder for the graphs and the runs.
    server, other_server
        Servers that start runs; `other_server` has the other memory layout and one processor.
    keeps
        Whether run folders are kept.
    """

    def __init__(
        self, folder: Path, server: ForkedRuns, other_server: ForkedRuns, *, keeps: bool = False
    ) -> None:
        self._folder = folder
        self._server = server
        self._other_server = other_server
        self._keeps = keeps
        self._count = 0
        write_graphs(folder)

    def check(self, configuration: DrawnConfiguration) -> Outcome:
        """Train a configuration once, and again in each of `WAYS`."""
        self._count += 1
        place = self._folder / f"configuration-{self._count}"
        place.mkdir()
        outcome = Outcome()
        try:
            self._train(configuration, place, outcome)
        except RuntimeError as error:
            # A run may crash the server process.
            outcome.problems.append(str(error))
        if not self._keeps:
            shutil.rmtree(place)
        return outcome

    def _train(self, configuration: DrawnConfiguration, place: Path, outcome: Outcome) -> None:
        words = self._words(configuration, configuration.threads)
        first = self._make_folder(place, "first")
        polls = first / "polls"
        code, run = self._server.call(words, first, **{POLLS: str(polls)})
        if code == _REFUSED:
            outcome.refusal = run.errors.read_text().strip()
        elif code != 0:
            outcome.problems.append(f"ends with {code}: {run.errors.read_text().strip()}")
        else:
            steps = int(read_summary(first / "runs" / "run")["steps"])
            for way in WAYS:
                folder = self._make_folder(place, way.split()[0])
                match way:
                    case "in another process":
                        problem = _check_code(*self._other_server.call(words, folder))
                    case "with other threads":
                        others = self._words(configuration, configuration.other_threads)
                        problem = _check_code(*self._other_server.call(others, folder))
                    case "stopped and resumed":
                        stop_at = 1 + int(configuration.stop_at * int(polls.read_text()))
                        problem = self._stop(stop_at, words, folder, outcome)
                    case _:
                        step = int(configuration.fail_at * steps)
                        fault = f"{configuration.fail_stage}:*:{step}:raise"
                        problem = self._fail(fault, words, folder, outcome)
                problems = problem or compare_runs(folder / "runs" / "run", first / "runs" / "run")
                outcome.problems += [f"{way}: {each}" for each in problems]
                outcome.compared.append(way)

    def _words(self, configuration: DrawnConfiguration, threads: tuple[str, ...]) -> list[str]:
        settings = [
            re.sub(r"^data\.source=(.*\.npz)$", rf"data.source={self._folder}/\1", word)
            for word in configuration.settings
        ]
        return ["run", *COMMON, *settings, *threads]

    def _make_folder(self, place: Path, name: str) -> Path:
        folder = place / name
        folder.mkdir()
        return folder

    def _stop(self, stop_at: int, words: list[str], folder: Path, outcome: Outcome) -> list[str]:
        """Interrupt the run, and resume it."""
        more = {POLLS: str(folder / "polls"), STOP_AT_POLL: str(stop_at)}
        code, run = self._server.call(words, folder, **more)
        # A signal after the last step is too late to stop the run.
        output = run.output.read_text()
        if code == 0 and "stopping after this step" in output:
            return []
        outcome.ends.append(
            "stopped within a step" if "stopped in step" in output else "stopped after a step"
        )
        return _check_code(code, run, _INTERRUPTED) or _check_code(*self._server.call(RESUME, folder))

    def _fail(self, fault: str, words: list[str], folder: Path, outcome: Outcome) -> list[str]:
        """Inject a fault, and resume from the newest checkpoint with the other memory layout."""
        every = ("checkpoint.every_epochs=1", "checkpoint.every_steps=1")
        code, run = self._server.call([*words, *every], folder, HYRT_FAULT=fault)
        # Some devices and samplers skip a stage.
        if code == 0 and "did not happen" in run.output.read_text():
            return []
        outcome.ends.append(f"failed in {fault.partition(':')[0]}")
        return _check_code(code, run, _FAILED) or _check_code(*self._other_server.call(RESUME, folder))


def _check_code(code: int, run: ForkedRun, expected: int = 0) -> list[str]:
    if code == expected:
        return []
    return [f"ends with {code}, not {expected}: {run.errors.read_text().strip()}"]


@contextmanager
def start_servers(folder: Path) -> Iterator[tuple[ForkedRuns, ForkedRuns]]:
    """Start the servers of `BitCheck`: with this environment, and with another memory layout on one
    processor.
    """
    layers = install_user_layers(folder / "site")
    with ForkedRuns(**layers) as server, ForkedRuns(**layers, **OTHER_MEMORY) as other_server:
        yield server, other_server


def draw_numbered(seed: int, number: int) -> DrawnConfiguration:
    """Return the configuration of a number; families alternate, and the first one counts twice."""
    turns = (*FAMILIES, FAMILIES[0])
    return draw_configuration(random.Random(f"{seed} {number}"), turns[number % len(turns)])


def main() -> int:
    options = make_parser(__doc__)
    options.add_argument("--count", type=int, default=200, help="number of configurations")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument(
        "--only", type=int, metavar="NUMBER", help="train only the configuration with this number"
    )
    options.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep the graphs and the runs in this folder"
    )
    chosen = options.parse_args()
    if chosen.count < 1:
        options.error("--count must be at least 1")
    trials, refusals, compared = Trials(), Counter[str](), 0
    with workplace("bits") as (temporary, _):
        folder = chosen.keep or temporary
        folder.mkdir(parents=True, exist_ok=True)
        with start_servers(folder) as (server, other_server):
            check = BitCheck(folder, server, other_server, keeps=chosen.keep is not None)
            number = chosen.only or 0
            while trials.count < (1 if chosen.only is not None else chosen.count):
                configuration = draw_numbered(chosen.seed, number)
                outcome = check.check(configuration)
                compared += len(outcome.compared)
                name = f"--seed {chosen.seed} --only {number}"
                if outcome.refusal:
                    refusals[re.sub(r"[0-9][0-9.,]*", "#", outcome.refusal)] += 1
                    print(f"refused {name}: {outcome.refusal}", flush=True)
                    if chosen.only is not None:
                        break
                else:
                    kinds = (*configuration.kinds, *outcome.ends)
                    trials.add(kinds, f"{name}: {configuration}", outcome.problems)
                    print(f"{'DIFFERS' if outcome.problems else 'equal'} {name}: {configuration}", flush=True)
                number += 1
    return _report(trials, refusals, compared, chosen.seed)


def _report(trials: Trials, refusals: Counter[str], compared: int, seed: int) -> int:
    print_table(
        ("configurations with", "number", "of which equal"),
        ((kind, trials.tried[kind], trials.held[kind]) for kind in sorted(trials.tried)),
    )
    for message, times in refusals.most_common():
        print(f"refused {times} times: {message}")
    refused = refusals.total() / max(1, refusals.total() + trials.count)
    print(
        f"{trials.count - trials.failed} of {trials.count} configurations are equal in all bits, in "
        f"{compared:,} comparisons; {refusals.total()} others ({refused:.0%}) were refused; "
        f"{trials.seconds:.0f} s (seed {seed})"
    )
    if trials.count > 1 and refused > MAX_REFUSED:
        print(f"more than {MAX_REFUSED:.0%} were refused: draw_configuration ignores a rule of hyrt")
        return 1
    return trials.exit_code


if __name__ == "__main__":
    sys.exit(main())
