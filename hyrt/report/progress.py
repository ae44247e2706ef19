"""Progress display of a run on a terminal, or as plain lines."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import textwrap
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Self, TextIO

from hyrt.formatting import format_brief_duration, format_following_duration
from hyrt.report.printed_lines import to_encodable
from hyrt.report.progress_text import (
    dashboard,
    epoch_line,
    evaluation_line,
    prediction_line,
    scores_text,
    step_line,
)
from hyrt.telemetry.events import (
    AssignmentChanged,
    EpochEnded,
    EvaluationFinished,
    Event,
    Notice,
    PredictionMade,
    RunEnded,
    RunStarted,
    StepMetrics,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live


_REDRAW_S = 0.1
# After a resize, tmux rewraps lines at once, but reports the new width up to 0.25 s later.
_STABLE_S = 0.3
# Maximum number of recent lines that can be redrawn after a resize.
_MAX_REDRAWN_LINES = 200
# Approximate number of epochs that are displayed in a long run; metrics.jsonl has all epochs.
_MAX_SHOWN_EPOCHS = 40


class Progress:
    """Display of a run's events; a context manager.

    A terminal shows the latest steps as one line that is redrawn below the permanent lines. There is one per
    notice, epoch and evaluation; a long run shows only some epochs. `with_dashboard` redraws the whole
    pipeline instead. Without a terminal, or with `plain`, all lines are permanent, with at most one every
    `interval_s` seconds within an epoch. `quiet` prints only the last lines, and warnings to standard error.

    If writing fails (closed pipe, full disk), the display is disabled, `write_error` has the error, and the
    run continues. Without standard output, the display is disabled at once.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        plain: bool = False,
        quiet: bool = False,
        with_dashboard: bool = False,
        interval_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        console: Console | None = None,
    ) -> None:
        self.write_error: OSError | None = None
        # None if the process has no standard output.
        self._stream: TextIO | None = sys.stdout if stream is None else stream
        self._quiet = quiet
        self._dashboard = with_dashboard
        self._interval_s = interval_s
        self._clock = clock
        self._console = console
        if console is None and not plain and not quiet and self._stream and _can_redraw(self._stream):
            self._console = _make_console(self._stream)
        self._live: Live | None = None
        # Size of the terminal when the live display was drawn, and the width of each of its lines.
        self._drawn_size: tuple[tuple[int, int], list[int]] = ((0, 0), [])
        # Latest size of the terminal, and the time since which it has not changed.
        self._last_size: tuple[tuple[int, int] | None, float] = (self._size, -math.inf)
        # Lines that are printed once the size is stable. The flag says whether to end the live display first.
        self._delayed: list[tuple[str, int, bool]] = []
        # Recent permanent lines, and the terminal size at which rows of the live display left the screen.
        self._recent_lines: deque[tuple[str, int]] = deque(maxlen=_MAX_REDRAWN_LINES)
        self._scrolled_at: tuple[int, int] | None = None
        self._epochs = 0
        # Epochs of the latest epoch line and evaluation line.
        self._epoch_line = self._evaluation_line = 0
        # Whether a line, which is printed once, has reported that nothing can be evaluated.
        self._has_reported_no_scores = False
        # Best evaluation, if it has not been displayed yet.
        self._pending_best: EvaluationFinished | None = None
        self._shown_s = clock()
        self._stages = _StageMeans()
        self._predicted_s: float | None = None
        self._predicted_step_s: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._print_delayed()
        self._write(self._end_live)

    def handle(self, event: Event) -> None:
        """Display an event."""
        match event:
            case RunStarted():
                self._epochs = event.epochs
                self._shown_s = self._clock()
                for label, text in (("data", event.data), ("model", event.model), ("devices", event.devices)):
                    self._print(f"{label:<10}{text}", indent=10)
            case PredictionMade():
                self._predicted_s = event.epoch_s
                self._predicted_step_s = event.iteration_s
                self._print(f"{'predicted':<10}{prediction_line(event)}", indent=10)
            # Trial changes that are rejected would confuse readers. They are in the report.
            case AssignmentChanged(is_trial=False):
                self._print(f"step {event.step:,}: {event.reason}", indent=2)
            case StepMetrics():
                self._stages.add(event)
                self._show_steps(event)
            case EpochEnded() if self._is_due(event.epoch, self._epoch_line):
                self._epoch_line = event.epoch
                stages = self._stages
                line = epoch_line(
                    event, self._epochs, stages.means(), stages.bottleneck(), stages.memory_bytes, self._width
                )
                # Keep the dashboard during evaluation, and print the line of the epoch above it.
                self._print(line, ends_live=not self._dashboard)
                self._stages = _StageMeans()
                self._shown_s = self._clock()
            case EvaluationFinished() if self._is_due(event.epoch, self._evaluation_line):
                self._evaluation_line = event.epoch
                has_scores = bool(scores_text(event.metrics, event.chosen_by))
                if has_scores or not self._has_reported_no_scores:
                    label = "" if event.epoch == self._epoch_line else f"epoch {event.epoch}"
                    self._print(f"{label:<10}{evaluation_line(event)}", indent=12)
                self._has_reported_no_scores = not has_scores
                if event.is_best:
                    self._pending_best = None
            case EvaluationFinished(is_best=True) if scores_text(event.metrics, event.chosen_by):
                self._pending_best = event
            case Notice(kind="warning"):
                self._warn(f"warning: {event.text}")
            case Notice():
                self._print(event.text, indent=2)
            case RunEnded():
                # The last line names the best epoch, so its evaluation must have been displayed.
                if best := self._pending_best:
                    self._print(f"{f'epoch {best.epoch}':<10}{evaluation_line(best)}", indent=12)
                self.print_line(self._last_line(event))

    def print_line(self, text: str) -> None:
        """Print a line, even with `quiet`."""
        self._print_delayed()
        self._write(self._end_live)
        self._print(text, indent=2, final=True)

    def _is_due(self, epoch: int, last: int) -> bool:
        """Return whether an epoch is displayed, given the last displayed epoch `last`."""
        return epoch in (1, self._epochs) or epoch - last >= math.ceil(self._epochs / _MAX_SHOWN_EPOCHS)

    @property
    def _width(self) -> int | None:
        return None if self._console is None else self._console.width

    @property
    def _size(self) -> tuple[int, int] | None:
        """Columns and rows of the terminal; None without a terminal."""
        if self._console is None:
            return None
        size = self._console.size
        return size.width, size.height

    def _show_steps(self, group: StepMetrics) -> None:
        now = self._clock()
        if self._quiet:
            return
        if self._console is None:
            # The line of the epoch follows at once, with the same information.
            is_last = group.steps_done >= group.steps_per_epoch
            is_repeated = is_last and self._is_due(group.epoch, self._epoch_line)
            if now - self._shown_s >= self._interval_s and not is_repeated:
                self._shown_s = now
                self._print(step_line(group, self._epochs, None))
        elif self._is_size_stable(now) and (self._live is None or now - self._shown_s >= _REDRAW_S):
            self._print_delayed()
            self._shown_s = now
            self._write(lambda: self._redraw(self._render(group)))

    def _is_size_stable(self, now: float) -> bool:
        """Return whether the terminal size is stable. During a resize, a drawing may be too wide."""
        if self._size != self._last_size[0]:
            self._last_size = self._size, now
        return now - self._last_size[1] >= _STABLE_S

    def _last_line(self, ended: RunEnded) -> str:
        """Return the test score of the best epoch and the time per epoch, if known."""
        parts = [] if ended.status == "finished" else [ended.status]
        summary = ended.summary
        if summary.get("metrics"):
            parts.append(_best_text(summary["metrics"], summary["chosen_by"], summary["best_epoch"]))
        if epoch_s := summary.get("epoch_s"):
            prediction = ""
            if self._predicted_s is not None:
                prediction = f" (predicted {format_following_duration(self._predicted_s, epoch_s)})"
            parts.append(f"{format_brief_duration(epoch_s)} per epoch{prediction}")
        if summary.get("simulated"):
            parts.append("on simulated devices")
        return " · ".join(filter(None, parts)) or ended.status

    def _warn(self, text: str) -> None:
        if not self._quiet:
            self._print(text, indent=2)
        elif sys.stderr is not None:
            # A closed pipe must not end the run, as on standard output.
            with contextlib.suppress(OSError):
                print(to_encodable(text, sys.stderr.encoding), file=sys.stderr, flush=True)

    def _print(self, text: str, *, indent: int = 0, final: bool = False, ends_live: bool = False) -> None:
        """Print a permanent line above the live display; continuation lines are indented."""
        if self._quiet and not final:
            return
        if self._live is not None and not self._is_size_stable(self._clock()):
            self._delayed.append((text, indent, ends_live))
            return
        self._print_delayed()
        self._print_now(text, indent, ends_live)

    def _print_delayed(self) -> None:
        delayed, self._delayed = self._delayed, []
        for line in delayed:
            self._print_now(*line)

    def _print_now(self, text: str, indent: int, ends_live: bool) -> None:
        if ends_live:
            self._write(self._end_live)
        console = self._console
        if console is None:
            self._write(lambda: self._print_plain(text))
            return
        self._write(self._end_if_resized)
        self._recent_lines.append((text, indent))
        self._write(lambda: self._print_wrapped(console, text, indent))

    def _print_wrapped(self, console: Console, text: str, indent: int) -> None:
        from rich.text import Text

        # A Text object disables rich's markup and emoji names, such as `:0:` in `opencl:0:`.
        console.print(Text("\n".join(_wrap_line(text, indent, console.width))), soft_wrap=True)

    def _print_plain(self, text: str) -> None:
        if self._stream is None:
            return
        self._stream.write(to_encodable(text, getattr(self._stream, "encoding", None)) + "\n")
        self._stream.flush()

    def _render(self, group: StepMetrics) -> RenderableType:
        from rich.text import Text

        width = self._width or 80
        if self._dashboard:
            return dashboard(group, epochs=self._epochs, predicted_s=self._predicted_step_s, width=width)
        text = Text(step_line(group, self._epochs, width), no_wrap=True, overflow="crop")
        text.highlight_regex(r"[━]+", "green")
        text.highlight_regex(r"\w+ [\d.,]+( ms)? ◀", "bold yellow")
        return text

    def _redraw(self, picture: RenderableType) -> None:
        from rich.live import Live
        from rich.segment import Segment

        assert self._console is not None
        self._end_if_resized()
        # If the terminal has few rows, show only the first lines, which describe the latest steps.
        lines = self._console.render_lines(picture, pad=False)[: self._console.height]
        size = self._console.size.width, self._console.size.height
        self._drawn_size = size, [Segment.get_line_length(line) for line in lines]
        if self._live is None:
            self._live = Live(
                picture,
                console=self._console,
                auto_refresh=False,
                transient=True,
                vertical_overflow="crop",
            )
            self._live.start(refresh=True)
        else:
            self._live.update(picture, refresh=True)

    def _end_live(self) -> None:
        if self._live is not None:
            live, self._live = self._live, None
            # When stopped, rich draws all rows again, even rows that do not fit.
            live.update("")
            live.stop()
            self._erase_wrapped()

    def _end_if_resized(self) -> None:
        """End the live display if the size has changed, because rich would erase a wrong number of rows."""
        if self._console is not None and self._size != self._drawn_size[0]:
            self._end_live()
            self._redraw_lines(self._console)

    def _erase_wrapped(self) -> None:
        """Erase the rows by which a live display has grown because a narrower terminal has wrapped it."""
        from rich.control import Control
        from rich.segment import ControlType

        assert self._console is not None
        (width, _), columns = self._drawn_size
        current_width, height = self._console.size.width, self._console.size.height
        added_rows = 0
        if current_width < width and _rewraps_on_resize():
            added_rows = sum(max(1, -(-length // current_width)) - 1 for length in columns)
            erased = [(ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)] * added_rows
            self._console.control(Control(*erased))
        if len(columns) + added_rows > height:
            # Rows above the top of the terminal cannot be erased, and appear again if the terminal grows.
            self._scrolled_at = current_width, height

    def _redraw_lines(self, console: Console) -> None:
        """Redraw the permanent lines if the terminal has grown, so that old rows may appear.

        Rows are erased one by one, because terminals may move rows that are erased together to the
        scrollback.
        """
        from rich.control import Control
        from rich.segment import ControlType

        width, height = console.size.width, console.size.height
        if self._scrolled_at is None or (width <= self._scrolled_at[0] and height <= self._scrolled_at[1]):
            return
        self._scrolled_at = None
        rows = [(ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_DOWN, 1)] * height
        console.control(Control(ControlType.HOME, *rows, ControlType.HOME))
        shown: list[tuple[str, int]] = []
        free_rows = height - 1
        for text, indent in reversed(self._recent_lines):
            free_rows -= len(_wrap_line(text, indent, width))
            if free_rows < 0:
                break
            shown.append((text, indent))
        for text, indent in reversed(shown):
            self._print_wrapped(console, text, indent)

    def _write(self, action: Callable[[], None]) -> None:
        """Write to the display, and disable the display if this fails."""
        if self.write_error is not None:
            return
        try:
            action()
        except OSError as error:
            self.write_error = error
            if self._stream is not None:
                _discard(self._stream)
            if self._console is not None:
                self._console.quiet = True
            self._end_live()


class _StageMeans:
    """Mean stage times over the steps of an epoch."""

    def __init__(self) -> None:
        self._steps = 0
        self._total_s: dict[str, float] = {}
        self._bottlenecks: Counter[str] = Counter()
        self.memory_bytes = 0

    def add(self, group: StepMetrics) -> None:
        steps = max(len(group.losses), 1)
        self._steps += steps
        for name, time_s in group.stage_s.items():
            self._total_s[name] = self._total_s.get(name, 0.0) + time_s * steps
        self._bottlenecks[group.bottleneck] += steps
        self.memory_bytes = group.memory_bytes

    def means(self) -> dict[str, float]:
        return {name: total / self._steps for name, total in self._total_s.items()}

    def bottleneck(self) -> str:
        """Return the most frequent bottleneck of the steps."""
        return max(self._bottlenecks, key=self._bottlenecks.__getitem__, default="")


def _best_text(metrics: Mapping[str, Mapping[str, float]], chosen_by: str, epoch: int) -> str:
    """Describe the best scores; empty if no split has the metric."""
    scores = scores_text({"test": metrics["test"]} if "test" in metrics else metrics, chosen_by)
    # Without validation vertices, the last evaluation counts as the best.
    origin = f"best validation, epoch {epoch}" if "val" in metrics else f"epoch {epoch}"
    return f"{scores} ({origin})" if scores else ""


def _wrap_line(text: str, indent: int, width: int) -> list[str]:
    """Wrap a line to the terminal width, but do not break paths, so that users can copy paths."""
    return textwrap.wrap(
        text,
        max(width, indent + 20),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [""]


def _can_redraw(stream: TextIO) -> bool:
    encoding = getattr(stream, "encoding", None) or ""
    return (
        stream.isatty()
        and not _is_notebook()
        and os.environ.get("TERM") not in ("dumb", "unknown")
        and encoding.lower().startswith("utf")
    )


def _is_notebook() -> bool:
    """Return whether a notebook cell has started the process (`!hyrt run`).

    Its output is a terminal, but notebooks cannot move the cursor up.
    """
    variables = os.environ
    # The kernel sets these variables to disable pagers and select colours in notebooks.
    is_kernel = variables.get("TERM") == "xterm-color" and variables.get("GIT_PAGER") == "cat"
    return "JPY_PARENT_PID" in variables or is_kernel


def _rewraps_on_resize() -> bool:
    """Return whether the terminal rewraps lines when it becomes narrower; some old terminals do not."""
    kind = os.environ.get("TERM", "")
    if "XTERM_VERSION" in os.environ or kind.startswith(("linux", "rxvt", "vt")):
        return False
    return not kind.startswith("screen") or "TMUX" in os.environ


def _make_console(stream: TextIO) -> Console:
    from rich.console import Console

    class _Console(Console):
        def on_broken_pipe(self) -> None:
            # Raise the error, which disables the display. rich would end the process.
            raise

    return _Console(file=stream, highlight=False)


def _discard(stream: TextIO) -> None:
    """Redirect pending output to the null device, because the interpreter could not flush it at exit."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
