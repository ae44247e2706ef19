"""The progress display on terminals, in files, and on pipes whose reader went away."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from unit.report.run_events import BALANCED, PREDICTED, STARTED, epoch_ended, evaluated, steps

from hyrt.formatting import (
    format_brief_duration,
    format_brief_milliseconds,
    format_following_duration,
    format_sig3,
)
from hyrt.report.progress import Progress
from hyrt.report.progress_text import prediction_line, step_line
from hyrt.telemetry.events import CheckpointWritten, Event, Notice, RunEnded

ENDED = RunEnded(
    status="finished",
    summary={
        "metrics": {"val": {"accuracy": 0.92}, "test": {"accuracy": 0.9134}},
        "chosen_by": "accuracy",
        "best_epoch": 1,
        "epoch_s": 3.5,
    },
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def show(events: list[Event], **options: Any) -> list[str]:
    stream = io.StringIO()
    with Progress(stream, **options) as progress:
        for event in events:
            progress.handle(event)
    return stream.getvalue().splitlines()


WHOLE_RUN: list[Event] = [
    STARTED,
    Notice(kind="info", text="moved 96 targets cpu → cuda:0"),
    steps(20),
    steps(59, mteps=5.0),
    epoch_ended(1),
    evaluated(1),
    CheckpointWritten(step=59, path=Path("x")),
    steps(118),
    epoch_ended(2),
    evaluated(2, best=False, test=0.5),
    Notice(kind="warning", text="disk nearly full: free space"),
    ENDED,
]


def test_plain_lines() -> None:
    assert show(WHOLE_RUN) == [
        f"data      {STARTED.data}",
        f"model     {STARTED.model}",
        f"devices   {STARTED.devices}",
        "moved 96 targets cpu → cuda:0",
        "epoch 1/5  3.5 s  loss 0.510  4.20 MTEPS  "
        "sample 6.1 ms  load 9.0  transfer 0  propagate 41 ◀  synchronize 0.4  mem 700 MiB",
        "          val accuracy 0.920 · test accuracy 0.913  best so far  (0.4 s)",
        "epoch 2/5  3.5 s  loss 0.510  4.20 MTEPS  "
        "sample 6.1 ms  load 9.0  transfer 0  propagate 41 ◀  synchronize 0.4  mem 700 MiB",
        "          val accuracy 0.920 · test accuracy 0.500  (0.4 s)",
        "warning: disk nearly full: free space",
        "test accuracy 0.913 (best validation, epoch 1) · 3.5 s per epoch",
    ]


def test_prediction_and_moves() -> None:
    lines = show([STARTED, PREDICTED, BALANCED, epoch_ended(1), ENDED])
    assert lines[3] == "predicted 3.4 s per epoch ± 0.4, bottleneck propagate"
    assert lines[4] == (
        "step 20: moved 96 targets cpu:0 → cuda:0: cpu:0 31.0 ms, cuda:0 19.0 ms; a step should take 24.0 ms"
    )
    assert lines[-1] == "test accuracy 0.913 (best validation, epoch 1) · 3.5 s per epoch (predicted 3.4)"


def test_trials_are_left_to_the_report() -> None:
    trial = replace(BALANCED, expected_s=None, is_trial=True)
    assert show([STARTED, trial, BALANCED]) == show([STARTED, BALANCED])


@pytest.mark.parametrize(
    ("epoch_s", "relative_error", "line"),
    [
        (0.0456, 0.1, "46 ms per epoch ± 4.6, bottleneck load"),
        (3.4, None, "3.4 s per epoch, bottleneck load"),
        (0.6, 0.068, "0.6 s per epoch ± 0.04, bottleneck load"),
        (95.0, 0.2, "95.0 s per epoch ± 19.0, bottleneck load"),
        (725.0, 0.1, "12 min 5 s per epoch ± 72.5 s, bottleneck load"),
        (7380.0, 0.1, "2 h 3 min per epoch ± 12 min 18 s, bottleneck load"),
    ],
)
def test_how_sure_a_prediction_is(epoch_s: float, relative_error: float | None, line: str) -> None:
    told = replace(PREDICTED, epoch_s=epoch_s, relative_error=relative_error, bottleneck="load")
    assert prediction_line(told) == line


@pytest.mark.parametrize(
    ("time_s", "other_s", "text"),
    [(0.05, 0.04, "50"), (0.05, 3.0, "0.1"), (130.0, 90.0, "2 min 10 s"), (90.0, 130.0, "90.0 s")],
)
def test_a_time_in_another_ones_unit(time_s: float, other_s: float, text: str) -> None:
    assert format_following_duration(time_s, other_s) == text


def test_predicted_milliseconds_beside_seconds_are_not_zero() -> None:
    lines = show([STARTED, replace(PREDICTED, epoch_s=0.0076), ENDED])
    assert lines[-1].endswith("3.5 s per epoch (predicted 0.01)")


def test_epoch_line_averages_over_steps() -> None:
    first = steps(30, losses=(1.0,) * 30, stage_s={"sample": 0.010, "load": 0.030}, bottleneck="load")
    second = steps(40, losses=(1.0,) * 10, stage_s={"sample": 0.050, "load": 0.010}, bottleneck="sample")
    lines = show([STARTED, first, second, epoch_ended(1)])
    assert "sample 20 ms  load 25 ◀" in lines[3]


def test_long_epochs_show_a_line_now_and_then() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream, clock=clock, interval_s=5)
    progress.handle(STARTED)
    for step in range(1, 51):
        clock.now += 0.5
        progress.handle(steps(step))
    lines = stream.getvalue().splitlines()[3:]
    assert [line.split("  ")[1] for line in lines] == ["10/59", "20/59", "30/59", "40/59", "50/59"]
    assert "━" not in stream.getvalue()


def test_that_there_is_nothing_to_evaluate_is_said_once() -> None:
    events: list[Event] = [STARTED]
    for epoch in (1, 2, 3):
        events += [epoch_ended(epoch), replace(evaluated(epoch), metrics={})]
    lines = show([*events, RunEnded(status="finished", summary={"metrics": {}, "epoch_s": 3.5})])
    assert [line.strip() for line in lines if "evaluate" in line] == [
        "nothing to evaluate: the dataset has no validation or test vertices"
    ]
    # Where scores come after all, they are shown.
    assert "val accuracy 0.920" in show([*events, epoch_ended(4), evaluated(4)])[-1]


def test_a_long_epoch_of_one_step_is_said_once() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream, clock=clock, interval_s=5)
    progress.handle(replace(STARTED, epochs=400))
    for epoch in range(1, 13):
        clock.now += 20
        progress.handle(replace(steps(1), epoch=epoch, steps_per_epoch=1))
        progress.handle(epoch_ended(epoch))
    lines = [line.split("  ")[0:2] for line in stream.getvalue().splitlines()[3:]]
    # Epochs that have no line of their own are seen to go on.
    assert [place.split("/")[0] for place, _ in lines] == [f"epoch {epoch}" for epoch in range(1, 13)]
    assert [epoch for epoch, (_, second) in enumerate(lines, 1) if second != "1/1"] == [1, 11]


@pytest.mark.parametrize(("evaluate_every", "named"), [(1, 0), (7, 22)])
def test_many_short_epochs_show_one_now_and_then(evaluate_every: int, named: int) -> None:
    events: list[Event] = [replace(STARTED, epochs=200)]
    for epoch in range(1, 201):
        events.append(epoch_ended(epoch))
        if epoch % evaluate_every == 0:
            events.append(evaluated(epoch))
    lines = show(events)[3:]
    shown = [line for line in lines if "/200" in line]
    assert [int(line.split("/")[0].split()[1]) for line in shown] == [1, *range(6, 200, 5), 200]
    scores = [line for line in lines if "val accuracy" in line]
    assert len(scores) == (41 if evaluate_every == 1 else 200 // 7)
    # An evaluation says its epoch where that has no line above.
    assert sum(line.startswith("epoch") for line in scores) == named


@pytest.mark.parametrize("best", [44, 46])
def test_the_best_evaluation_has_a_line_when_the_run_ends(best: int) -> None:
    """Also where its epoch was left out: of 200 epochs, every fifth from 1 on is shown."""
    events: list[Event] = [replace(STARTED, epochs=200)]
    for epoch in range(1, 61):
        events += [epoch_ended(epoch), evaluated(epoch, best=epoch in (1, best), test=epoch / 1000)]
    lines = show([*events, ENDED])
    told = [line for line in lines if "best so far" in line]
    assert len(told) == 2
    assert f"test accuracy {best / 1000:.3f}" in told[1]
    assert (lines.index(told[1]) == len(lines) - 2) == (best == 44)
    assert told[1].startswith("epoch 44" if best == 44 else " ")


def test_quiet_shows_the_end_only() -> None:
    assert show(WHOLE_RUN, quiet=True) == ["test accuracy 0.913 (best validation, epoch 1) · 3.5 s per epoch"]


@pytest.mark.parametrize(
    ("events", "line"),
    [
        ([RunEnded(status="interrupted")], "interrupted"),
        ([RunEnded(status="finished")], "finished"),
        ([RunEnded(status="early-stopped", summary={"epoch_s": 3.5})], "early-stopped · 3.5 s per epoch"),
        (
            [
                evaluated(2),
                RunEnded(
                    status="finished",
                    summary={
                        "best_epoch": 1,
                        "chosen_by": "roc_auc",
                        "metrics": {"val": {"roc_auc": 0.8123}},
                        "epoch_s": 2.0,
                    },
                ),
            ],
            "val ROC AUC 0.812 (best validation, epoch 1) · 2.0 s per epoch",
        ),
        (
            [RunEnded(status="finished", summary={"metrics": {}, "epoch_s": 3.5})],
            "3.5 s per epoch",
        ),
        (
            [RunEnded(status="finished", summary=ENDED.summary | {"metrics": {"test": {"accuracy": 0.5}}})],
            "test accuracy 0.500 (epoch 1) · 3.5 s per epoch",
        ),
        ([RunEnded(status="finished", summary={"simulated": True})], "on simulated devices"),
    ],
)
def test_last_line(events: list[Event], line: str) -> None:
    assert show([STARTED, *events])[-1] == line


def test_without_standard_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with Progress() as progress:
        for event in WHOLE_RUN:
            progress.handle(event)
        progress.print_line("run folder runs/x")


def test_quiet_warns_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    show(WHOLE_RUN, quiet=True)
    assert capsys.readouterr().err == "warning: disk nearly full: free space\n"


def test_no_unicode() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    progress = Progress(stream)
    for event in WHOLE_RUN:
        progress.handle(event)
    progress.handle(BALANCED)
    text = raw.getvalue().decode("ascii")
    assert "cpu:0 -> cuda:0" in text
    assert "propagate 41 <" in text
    assert "2.0 M edges - 64 features" in text


def test_undecodable_names() -> None:
    assert show([Notice(kind="info", text="data \udc80.npz")]) == ["data \\x80.npz"]


@pytest.mark.parametrize("width", range(20, 160, 3))
def test_every_width_fits_on_one_line(width: int) -> None:
    stage_s = {
        "sample": 0.0061,
        "load": 0.0149,
        "transfer": 0.0122,
        "propagate": 0.0115,
        "synchronize": 0.003,
    }
    for group in (
        steps(20),
        steps(20, stage_s=stage_s, bottleneck="load"),
        steps(20, mteps=123456, memory_bytes=2**40),
    ):
        line = step_line(group, 5, width)
        assert len(line) <= width
        if width >= 66:
            assert "◀" in line


def test_80_columns() -> None:
    assert step_line(steps(20), 5, 80) == (
        "epoch 1/5  20/59  loss 1.02  3.91 MTEPS  sample 6.1 ms  load 9.0  propagate 41 ◀"
    )
    assert step_line(steps(20), 5, 140) == (
        "epoch 1/5 ━━━━━━╌╌╌╌╌╌╌╌╌╌╌╌ 20/59  loss 1.02  3.91 MTEPS  "
        "sample 6.1 ms  load 9.0  transfer 0  propagate 41 ◀  synchronize 0.4  mem 700 MiB"
    )


def terminal(width: int = 80) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)


def test_terminal_keeps_lines_and_redraws_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    console = terminal()
    with Progress(console=console) as progress:
        for event in WHOLE_RUN:
            progress.handle(event)
    assert isinstance(console.file, io.StringIO)
    raw = console.file.getvalue()
    assert "20/59" in raw
    # Every drawn line is erased again and the cursor comes back.
    assert raw.count("\x1b[?25l") == raw.count("\x1b[?25h") == 2
    assert raw.count("\x1b[2K") >= 2
    drawn = re.split(r"[\r\n]|\x1b\[[0-9?]+[A-Za-z]", raw)
    assert max(len(line) for line in drawn) == 80
    assert "devices   cpu (2 cores) 1024 targets" in raw
    assert "test accuracy 0.913 (best validation, epoch 1) · 3.5 s per epoch" in raw


def test_long_header_lines_wrap_below_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    console = terminal(60)
    with Progress(console=console) as progress:
        progress.handle(STARTED)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines()[:2] == [
        "data      synthetic:community  100,000 vertices · 2.0 M",
        "          edges · 64 features · 16 classes",
    ]


def test_names_are_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    console = terminal()
    with Progress(console=console) as progress:
        progress.handle(Notice(kind="info", text="[red]x[/] :smile: opencl:0:"))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "[red]x[/] :smile: opencl:0:\n"


def test_an_error_ends_the_redrawn_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    console = terminal()
    stdout = sys.stdout

    def train() -> None:
        with Progress(console=console) as progress:
            progress.handle(STARTED)
            progress.handle(steps(1))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        train()
    assert isinstance(console.file, io.StringIO)
    # The cursor is shown again and the line erased.
    assert console.file.getvalue().endswith("\x1b[?25h\r\x1b[1A\x1b[2K")
    assert sys.stdout is stdout


# What a run shows on a terminal, so slowly that one can resize it: after "ready" and before "done".
SHOWN = """
import os, sys, time
from pathlib import Path
from unit.report.run_events import STARTED, epoch_ended, steps
from hyrt.report.progress import Progress

folder, with_dashboard = Path(sys.argv[1]), sys.argv[2] == "dashboard"
with Progress(with_dashboard=with_dashboard, clock=iter(range(10**6)).__next__) as progress:
    progress.handle(STARTED)
    progress.handle(steps(20))
    for turn, columns in enumerate((70, 45)):
        (folder / f"ready{turn}").touch()
        # Told a while after the window is resized.
        while os.get_terminal_size().columns != columns:
            time.sleep(0.01)
        progress.handle(steps(40) if turn == 0 else epoch_ended(1))
        # The first one waits for the width to stay.
        progress.handle(steps(57))
        progress.handle(steps(58))
    (folder / "drawn").touch()
    while not (folder / "seen").exists():
        time.sleep(0.01)
"""


def wait_for(path: Path) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, f"{path.name} never came"
        time.sleep(0.01)


@contextlib.contextmanager
def in_tmux(folder: Path, script: str, *words: str, size: tuple[int, int]) -> Iterator[Callable[..., str]]:
    """A script in tmux, which gets the folder and the words; yields what runs a command of tmux."""
    file = folder / "shown.py"
    file.write_text(script, encoding="utf-8")
    tmux = ["tmux", "-f", "/dev/null", "-S", str(folder / "socket")]
    # Rich takes a size in COLUMNS and LINES for one that never changes.
    environment = {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "LANG": "C.UTF-8",
        "COLUMNS": "",
        "LINES": "",
    }
    options = [word for name, value in environment.items() for word in ("-e", f"{name}={value}")]

    def run(*command: str) -> str:
        return subprocess.run([*tmux, "-u", *command], capture_output=True, check=True).stdout.decode()

    columns, rows = map(str, size)
    started = [sys.executable, str(file), str(folder), *words]
    run("new-session", "-d", "-x", columns, "-y", rows, *options, *started)
    try:
        yield run
    finally:
        (folder / "seen").touch()
        subprocess.run([*tmux, "kill-server"], check=False)


HAS_TMUX = pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux is installed")


@HAS_TMUX
@pytest.mark.parametrize("how", ["line", "dashboard"])
@pytest.mark.parametrize("dragged", [False, True])
def test_a_terminal_that_is_resized_keeps_no_fragments(tmp_path: Path, how: str, dragged: bool) -> None:
    """In tmux, which wraps the lines that are there, as most terminals do.

    It says so at once where a window is resized once; while it is dragged, only now and then.
    """
    with in_tmux(tmp_path, DRAGGED if dragged else SHOWN, how, size=(130, 40)) as tmux:
        for turn, width in enumerate(range(124, 45, -6) if dragged else (70, 45)):
            if turn < 2 - dragged:
                wait_for(tmp_path / f"ready{turn}")
            tmux("resize-window", "-x", str(width))
            time.sleep(0.04 * dragged)
        if dragged:
            time.sleep(0.7)
            (tmp_path / "stop").touch()
        wait_for(tmp_path / "drawn")
        time.sleep(0.2)
        visible, whole = tmux("capture-pane", "-p"), tmux("capture-pane", "-p", "-S", "-")
    assert visible.count("58/59") == 1
    assert len(re.findall("[0-9]/59", visible)) == 1, visible
    assert visible.count("transfer ") == (how == "dashboard")
    assert "epoch 1/5  3.5 s" in visible
    # What stays is still there; tmux itself moves lines out of sight when it wraps others.
    for start in ("data", "model", "devices"):
        assert len(re.findall(f"^{start} ", whole, re.MULTILINE)) == 1, whole


# A dashboard before, while and after a window has hardly any room for it; an epoch ends meanwhile.
TINY = """
import os, sys, time
from pathlib import Path
from unit.report.run_events import STARTED, epoch_ended, steps
from hyrt.report.progress import Progress

folder = Path(sys.argv[1])
with Progress(with_dashboard=True, clock=iter(range(10**6)).__next__) as progress:
    progress.handle(STARTED)
    progress.handle(steps(20))
    for turn, columns in enumerate((20, 100)):
        (folder / f"ready{turn}").touch()
        while os.get_terminal_size().columns != columns:
            time.sleep(0.01)
        progress.handle(steps(40))
        progress.handle(steps(41))
        progress.handle(epoch_ended(turn + 1))
        progress.handle(steps(57))
        progress.handle(steps(58))
        (folder / f"drawn{turn}").touch()
    while not (folder / "seen").exists():
        time.sleep(0.01)
"""


@HAS_TMUX
def test_a_terminal_that_was_tiny_for_a_while_keeps_no_fragments(tmp_path: Path) -> None:
    """Most of the dashboard goes out of sight there, and comes back when the terminal grows."""
    with in_tmux(tmp_path, TINY, size=(100, 30)) as tmux:
        pictures = []
        for turn, (columns, rows) in enumerate(((20, 4), (100, 30))):
            wait_for(tmp_path / f"ready{turn}")
            tmux("resize-window", "-x", str(columns), "-y", str(rows))
            wait_for(tmp_path / f"drawn{turn}")
            time.sleep(0.2)
            pictures.append(tmux("capture-pane", "-p"))
        whole = tmux("capture-pane", "-p", "-S", "-")
    tiny, grown = pictures
    assert tiny.startswith("epoch 1/5  58/59")
    assert len(re.findall("[0-9]/59", whole)) == 1, whole
    assert grown == whole
    lines = grown.split("\n")
    for start in ("data ", "model ", "devices ", "epoch 1/5  3.5 s", "epoch 2/5  3.5 s", "sample ", "cpu "):
        assert sum(line.startswith(start) for line in lines) == 1, (start, grown)


# Draws and prints all the time, as a run of short epochs does, while somebody drags the window.
DRAGGED = """
import sys, time
from pathlib import Path
from unit.report.run_events import STARTED, epoch_ended, steps
from hyrt.report.progress import Progress

folder = Path(sys.argv[1])
with Progress(with_dashboard=sys.argv[2] == "dashboard") as progress:
    progress.handle(STARTED)
    turn = 0
    while not (folder / "stop").exists():
        progress.handle(steps(20 + turn % 30))
        if turn == 8:
            (folder / "ready0").touch()
        if turn == 14:
            progress.handle(epoch_ended(1))
        time.sleep(0.05)
        turn += 1
    # Redraws may be kept back, but not for long.
    time.sleep(0.1)
    progress.handle(steps(58))
    (folder / "drawn").touch()
    while not (folder / "seen").exists():
        time.sleep(0.01)
"""


def everything(leader: int) -> str:
    """What was written to a terminal, which hands it over in parts on a busy machine."""
    raw = b""
    while select.select([leader], [], [], 0.5)[0]:
        raw += os.read(leader, 65536)
    return raw.decode()


@pytest.mark.parametrize("colour", [True, False])
def test_a_real_terminal(monkeypatch: pytest.MonkeyPatch, colour: bool) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    if colour:
        monkeypatch.delenv("NO_COLOR", raising=False)
    else:
        monkeypatch.setenv("NO_COLOR", "1")
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w", encoding="utf-8") as stream:
        with Progress(stream) as progress:
            for event in (STARTED, steps(20), steps(40)):
                progress.handle(event)
        raw = everything(leader)
    os.close(leader)
    assert "\x1b[?25l" in raw
    assert ("\x1b[1;33m" in raw or "\x1b[1m" in raw) if colour else "33m" not in raw


def test_a_terminal_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stdout = sys.stdout
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w", encoding="utf-8") as stream:
        with Progress(stream) as progress:
            progress.handle(STARTED)
            progress.handle(steps(1))
            os.read(leader, 65536)
            os.close(leader)
            for event in (*WHOLE_RUN, steps(5)):
                progress.handle(event)
        assert progress.write_error is not None
        assert progress.write_error.errno == errno.EIO
    assert sys.stdout is stdout


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"TERM": "xterm", "PYTHONIOENCODING": "ascii"}])
def test_terminals_that_cannot_redraw_get_plain_lines(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    monkeypatch.setenv("TERM", variables["TERM"])
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w", encoding=variables.get("PYTHONIOENCODING", "utf-8")) as stream:
        with Progress(stream) as progress:
            progress.handle(STARTED)
            progress.handle(steps(1))
        raw = everything(leader)
    os.close(leader)
    assert "\x1b" not in raw
    assert raw.startswith("data      synthetic:community")


CLOSED_PIPE = """
import sys
from unit.report.run_events import STARTED, epoch_ended, steps
from hyrt.report.progress import Progress
sys.stdin.readline()
with Progress() as progress:
    progress.handle(STARTED)
    for epoch in range(1, 2000):
        progress.handle(steps(59 * epoch))
        progress.handle(epoch_ended(epoch))
assert isinstance(progress.write_error, BrokenPipeError), progress.write_error
print("more")
sys.stderr.write("trained")
"""


def test_a_closed_pipe_does_not_end_the_run() -> None:
    tests = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tests.parent), str(tests)])}
    with subprocess.Popen(
        [sys.executable, "-c", CLOSED_PIPE],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.write("\n")
        process.stdin.close()
        assert process.stderr.read() == "trained"
    assert process.returncode == 0


def test_numbers() -> None:
    values = (0.0, 0.01234, 1.0, 1.0249, 41.0, 412.4, 1240.0, float("nan"), float("inf"))
    assert [format_sig3(value) for value in values] == [
        *("0", "0.0123", "1.00", "1.02", "41.0", "412", "1,240", "nan", "inf"),
    ]
    assert [format_brief_milliseconds(value) for value in (0, 4e-5, 4e-4, 9.94e-3, 9.96e-3, 1.5)] == [
        *("0", "0", "0.4", "9.9", "10", "1,500"),
    ]
    assert [format_brief_duration(value) for value in (3.5, 99.94, 99.96, 125, 7380)] == [
        *("3.5 s", "99.9 s", "1 min 40 s", "2 min 5 s", "2 h 3 min"),
    ]


def test_importing_it_imports_no_rich() -> None:
    code = (
        "import sys, hyrt.report.progress;print([m for m in ('rich', 'torch', 'numpy') if m in sys.modules])"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
