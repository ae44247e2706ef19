"""Call the public API with valid and invalid values, each call in a child process, and classify the outcome.

    python tools/faults/fuzz_api.py --count 10000

The calls are defined in fuzz_calls.py. Outcomes:

ok        it returns, and no argument had to be rejected
refused   a one-line error of hyrt that ends with a remedy
raw       a TypeError, IndexError or other internal error
unclear   an error of hyrt with several lines, or without a remedy
accepted  it returns although an argument is certainly invalid, such as vertex -5
crash     the process is ended by a signal
hang      it does not end

Arrays end at unreadable pages, so most out-of-bounds reads crash. With --boundscheck, numba also checks every
index of compiled loops; the first such run compiles all of them.
"""

from __future__ import annotations

import contextlib
import gc
import json
import linecache
import os
import random
import re
import resource
import select
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OUTCOMES = ("ok", "refused", "raw", "unclear", "accepted", "crash", "hang")
GOOD = ("ok", "refused")
TIMEOUT_S = 60.0
_PACKAGES = ("/hyrt/", "/hyrt_perfmodel/", "/hyrt_devices/")
_RAW = re.compile(
    r"\b(?:Type|Index|Key|Attribute|Assertion|ZeroDivision|Unbound\w*|Recursion|Overflow|Runtime|System)Error\b"
)
_REMEDY = re.compile(
    r"(?:[:;,.] |\b(?:or|and|to|then|else|first) |\()(?:then |or |first |please )?(?:"
    "give|set|use|remove|call|make|omit|lower|raise|leave|put|take|install|uninstall|update|train|number|"
    "replace|write|bring|name|choose|start|free|download|delete|add|return|open|convert|scale|multiply|"
    "keep|check|see|pass|run|sort|load|wait|mend|draw|say|mark|sample|reshape|cut|read|finish|derive|"
    "declare|list|allow|copy|create|build|define|change|move|specify|indent|merge|measure|count|select|"
    "repair|fix|rebuild|assign|restart|stop|hold|correct|rename|rewrite|restore|split|combine|"
    "compute|store|save|pad|try|"
    "did you mean|the known ones are|a dataset is|the splits are)"
    r"|\bmust (?:be|have|contain|not)\b|\bexpected\b"
)


@dataclass(frozen=True)
class Ending:
    """Result of one call."""

    number: int
    call: str
    arguments: str
    outcome: str
    message: str = ""


@dataclass
class Tally:
    """Results of all calls."""

    by_call: Counter[tuple[str, str]] = field(default_factory=Counter)
    first: dict[tuple[str, ...], Ending] = field(default_factory=dict)
    times: Counter[tuple[str, ...]] = field(default_factory=Counter)

    def add(self, ending: Ending) -> None:
        """Count a result; of equal results, the first is stored."""
        self.by_call[ending.call, ending.outcome] += 1
        if ending.outcome not in GOOD:
            alike = ending.call, ending.outcome, re.sub(r"[\d,.]+", "#", ending.message)[:120]
            self.first.setdefault(alike, ending)
            self.times[alike] += 1

    def total(self, outcome: str) -> int:
        """Return the number of calls with an outcome."""
        return sum(
            count for (_, outcome_of_call), count in self.by_call.items() if outcome_of_call == outcome
        )


def classify(error: BaseException) -> tuple[str, str]:
    """Return the outcome of an error, and the text to print."""
    from hyrt.errors import HyrtError

    text = str(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    line = linecache.getline(frame.filename, frame.lineno or 0).strip()
    location = f"{Path(frame.filename).name}:{frame.lineno}"
    by_hyrt = isinstance(error, HyrtError)
    if not by_hyrt:
        raised = line.startswith("raise") and any(part in frame.filename for part in _PACKAGES)
        by_hyrt = raised and isinstance(error, ValueError | TypeError | OverflowError | RuntimeError)
    shown = f"{type(error).__name__} at {location}: {text}"
    if not by_hyrt or _RAW.search(text):
        return "raw", shown
    if "\n" in text or not _REMEDY.search(text):
        return "unclear", shown
    return "refused", shown


def draw_call(calls: list[Any], seed: int, number: int) -> tuple[Any, random.Random]:
    """Return the call with a given number, and the RNG of its values."""
    draw = random.Random(f"{seed}/{number}")
    call = draw.choices(calls, [candidate.weight for candidate in calls])[0]
    return call, draw


def run_call(call: Any, draw: random.Random) -> tuple[str, str, str]:
    """Make a call in this process; return its arguments as text, the outcome, and the message."""
    drawn = call.draw(draw)
    words = ", ".join(
        f"{name}={argument.words}" for name, argument in drawn.items() if argument.words != "right"
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call.make(**{name: argument.value for name, argument in drawn.items()})
    except BaseException as error:
        return words, *classify(error)
    wrong = [name for name, argument in drawn.items() if argument.is_wrong]
    return (words, "accepted", f"{' and '.join(wrong)} wrong") if wrong else (words, "ok", "")


def run_in_child(call: Any, draw: random.Random, number: int, timeout_s: float = TIMEOUT_S) -> Ending:
    """Make a call in a forked process."""
    reader, writer = os.pipe()
    words = "?"
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _become_quiet()
        with os.fdopen(writer, "w") as out:
            try:
                # Send this before the call, so that the parent knows it if the process crashes.
                state = draw.getstate()
                drawn = call.draw(draw)
                draw.setstate(state)
                words = ", ".join(
                    f"{name}={argument.words}"
                    for name, argument in drawn.items()
                    if argument.words != "right"
                )
                out.write(json.dumps(words) + "\n")
                out.flush()
                out.write(json.dumps(run_call(call, draw)[1:]))
                out.flush()
            finally:
                os._exit(0)
    os.close(writer)
    text, deadline, has_ended = b"", time.monotonic() + timeout_s, False
    while not has_ended and select.select([reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
        piece = os.read(reader, 1 << 16)
        has_ended = not piece
        text += piece
    if not has_ended:
        os.kill(pid, signal.SIGKILL)
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    lines = text.decode().splitlines()
    words = json.loads(lines[0]) if lines else words
    if not has_ended:
        return Ending(number, call.name, words, "hang", f"more than {timeout_s:g} s")
    if status or len(lines) < 2:
        code = os.waitstatus_to_exitcode(status)
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return Ending(number, call.name, words, "crash", name)
    outcome, message = json.loads(lines[1])
    return Ending(number, call.name, words, outcome, message)


def _become_quiet() -> None:
    """Discard output, disable core dumps, and limit memory to catch size errors."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.setsid()


def fuzz(count: int, seed: int, only: str = "", first: int = 0, *, is_loud: bool = True) -> Tally:
    """Make calls, each in a child process.

    Parameters
    ----------
    count, seed, first
        Number of calls, random seed, and number of the first call.
    only
        Make only calls whose name contains this text.
    is_loud
        Whether to print each new kind of bad result immediately.
    """
    from fuzz_calls import all_calls, warm_up

    calls = [call for call in all_calls() if only in call.name]
    warm_up(calls)
    # A garbage collection in a child would copy every page that it visits.
    gc.collect()
    gc.freeze()
    tally = Tally()
    for number in range(first, first + count):
        call, draw = draw_call(calls, seed, number)
        ending = run_in_child(call, draw, number)
        known = len(tally.first)
        tally.add(ending)
        if is_loud and len(tally.first) > known:
            print(
                f"{ending.outcome} {ending.number} {ending.call}({ending.arguments}): {ending.message}",
                flush=True,
            )
    return tally


def main() -> int:
    from trials import make_parser, print_table

    parser = make_parser(__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="number of calls")
    parser.add_argument("--first", type=int, default=0, help="number of the first call, to repeat it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="make only calls whose name contains this string")
    parser.add_argument(
        "--here", action="store_true", help="make the call --first in this process, with its traceback"
    )
    parser.add_argument("--boundscheck", action="store_true", help="let compiled loops check every index")
    options = parser.parse_args()
    if options.count < 1:
        parser.error("--count must be at least 1")
    if options.boundscheck and os.environ.get("NUMBA_BOUNDSCHECK") != "1":
        # numba reads this at import; kernels with checks must not share the cache with others.
        cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "hyrt-boundscheck"
        os.environ |= {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(cache)}
        os.execv(sys.executable, [sys.executable, *sys.argv])
    if options.here:
        return run_in_process(options)
    started = time.monotonic()
    tally = fuzz(options.count, options.seed, options.only, options.first)
    names = sorted({name for name, _ in tally.by_call})
    rows = [(name, *(tally.by_call[name, outcome] for outcome in OUTCOMES)) for name in names]
    print_table(("call", *OUTCOMES), [*rows, ("all", *map(tally.total, OUTCOMES))])
    for alike, ending in sorted(tally.first.items()):
        print(f"{tally.times[alike]} x {ending.outcome} {ending.call}({ending.arguments}): {ending.message}")
    print(f"{options.count} calls in {time.monotonic() - started:.0f} s")
    return 1 if tally.first else 0


def run_in_process(options: Any) -> int:
    from fuzz_calls import all_calls

    calls = [call for call in all_calls() if options.only in call.name]
    call, draw = draw_call(calls, options.seed, options.first)
    drawn = call.draw(draw)
    print(call.name, {name: (argument.words, argument.is_wrong) for name, argument in drawn.items()})
    with contextlib.suppress(SystemExit):
        print(call.make(**{name: argument.value for name, argument in drawn.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
