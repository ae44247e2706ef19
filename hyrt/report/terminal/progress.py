"""The progress of a run on a terminal, or as plain lines where there is none."""

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

from hyrt.observe.events import (
    Balanced,
    EpochEnded,
    Evaluated,
    Event,
    Notice,
    Predicted,
    RunEnded,
    RunStarted,
    StepGroup,
)
from hyrt.quantities import brief_duration, duration_beside
from hyrt.report.terminal.dashboard import dashboard
from hyrt.report.terminal.printed_lines import encodable
from hyrt.report.terminal.progress_line import (
    epoch_line,
    evaluation_line,
    prediction_line,
    scores_text,
    step_line,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

_REDRAW_S = 0.1
# tmux wraps its lines at once while a window is dragged, and tells their new width up to 0.25 s later.
_SETTLED_S = 0.3
# So many of the newest lines are kept for a terminal that has to be drawn anew.
_KEPT_LINES = 200
# A run of hundreds of short epochs shows about this many of them; metrics.jsonl has all.
_SHOWN_EPOCHS = 40


class Progress:
    """Shows a run's events; a context manager.

    On a terminal the newest steps are one line that is redrawn below the lines that stay: one for each epoch
    and evaluation (in a run of many epochs, for some of them) and notice. Elsewhere all are plain lines, with
    a line of steps now and then in long epochs.

    A display that cannot be written any more (its reader left, the disk is full) falls silent, and the run
    goes on; `lost` then holds the reason. One without a stream (standard output is closed) is silent from the
    start.

    Parameters
    ----------
    stream
        The stream to write to; standard output by default.
    plain
        Plain lines even on a terminal.
    with_dashboard
        On a terminal, redraw the whole pipeline instead of one line; elsewhere it changes nothing.
    quiet
        Only the last lines, at the end of the run; warnings go to standard error.
    interval_s
        Shortest time between plain lines of steps.
    clock
        Seconds, monotonic.
    console
        Draw on this rich console instead of one made for the stream.
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
        self.lost: OSError | None = None
        # None where the process was started without one.
        self._stream: TextIO | None = sys.stdout if stream is None else stream
        self._quiet = quiet
        self._dashboard = with_dashboard
        self._interval_s = interval_s
        self._clock = clock
        self._console = console
        if console is None and not plain and not quiet and self._stream and _can_redraw(self._stream):
            self._console = _make_console(self._stream)
        self._live: Live | None = None
        # The size of the terminal when the picture was drawn, and the columns of each of its lines.
        self._drawn: tuple[tuple[int, int], list[int]] = ((0, 0), [])
        # The newest size of the terminal, and since when it has it.
        self._seen: tuple[tuple[int, int] | None, float] = (self._size, -math.inf)
        # Lines that wait until it keeps its size, and whether the picture ends above them.
        self._held: list[tuple[str, int, bool]] = []
        # The newest lines that stay, and the size of a terminal in which rows of a picture went out of sight.
        self._kept: deque[tuple[str, int]] = deque(maxlen=_KEPT_LINES)
        self._torn_at: tuple[int, int] | None = None
        self._epochs = 0
        # The epochs of the newest lines of their kind.
        self._epoch_line = self._evaluation_line = 0
        # Whether the newest line of an evaluation said that there is nothing to evaluate: once is enough.
        self._said_no_scores = False
        # The best evaluation, where there was no line for it.
        self._unshown_best: Evaluated | None = None
        self._shown_s = clock()
        self._stages = _StageMeans()
        self._predicted_s: float | None = None
        self._predicted_step_s: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._print_held()
        self._write(self._end_live)

    def handle(self, event: Event) -> None:
        """Show an event."""
        match event:
            case RunStarted():
                self._epochs = event.epochs
                self._shown_s = self._clock()
                for label, text in (("data", event.data), ("model", event.model), ("devices", event.devices)):
                    self._print(f"{label:<10}{text}", indent=10)
            case Predicted():
                self._predicted_s = event.epoch_s
                self._predicted_step_s = event.iteration_s
                self._print(f"{'predicted':<10}{prediction_line(event)}", indent=10)
            # What is tried and not kept only puzzles whoever waits; the report tells of it.
            case Balanced(is_trial=False):
                self._print(f"step {event.step:,}: {event.reason}", indent=2)
            case StepGroup():
                self._stages.add(event)
                self._show_steps(event)
            case EpochEnded() if self._is_due(event.epoch, self._epoch_line):
                self._epoch_line = event.epoch
                seen = self._stages
                line = epoch_line(
                    event, self._epochs, seen.means(), seen.bottleneck(), seen.memory_bytes, self._width
                )
                # The dashboard stays, also while the epoch is evaluated: this line comes above it.
                self._print(line, ends_live=not self._dashboard)
                self._stages = _StageMeans()
                self._shown_s = self._clock()
            case Evaluated() if self._is_due(event.epoch, self._evaluation_line):
                self._evaluation_line = event.epoch
                has_scores = bool(scores_text(event.metrics, event.chosen_by))
                if has_scores or not self._said_no_scores:
                    label = "" if event.epoch == self._epoch_line else f"epoch {event.epoch}"
                    self._print(f"{label:<10}{evaluation_line(event)}", indent=12)
                self._said_no_scores = not has_scores
                if event.is_best:
                    self._unshown_best = None
            case Evaluated(is_best=True) if scores_text(event.metrics, event.chosen_by):
                self._unshown_best = event
            case Notice(kind="warning"):
                self._warn(f"warning: {event.text}")
            case Notice():
                self._print(event.text, indent=2)
            case RunEnded():
                # The last line names the best epoch, so its line is among the others.
                if best := self._unshown_best:
                    self._print(f"{f'epoch {best.epoch}':<10}{evaluation_line(best)}", indent=12)
                self.say(self._last_line(event))

    def say(self, text: str) -> None:
        """Show a line, also when quiet."""
        self._print_held()
        self._write(self._end_live)
        self._print(text, indent=2, final=True)

    def _is_due(self, epoch: int, last: int) -> bool:
        """Whether an epoch is shown, after the last one that was."""
        return epoch in (1, self._epochs) or epoch - last >= math.ceil(self._epochs / _SHOWN_EPOCHS)

    @property
    def _width(self) -> int | None:
        return None if self._console is None else self._console.width

    @property
    def _size(self) -> tuple[int, int] | None:
        """The columns and rows of the terminal."""
        if self._console is None:
            return None
        size = self._console.size
        return size.width, size.height

    def _show_steps(self, group: StepGroup) -> None:
        now = self._clock()
        if self._quiet:
            return
        if self._console is None:
            # What the last steps of an epoch say, its own line says again at once.
            is_last = group.steps_done >= group.steps_per_epoch
            says_again = is_last and self._is_due(group.epoch, self._epoch_line)
            if now - self._shown_s >= self._interval_s and not says_again:
                self._shown_s = now
                self._print(step_line(group, self._epochs, None))
        elif self._is_settled(now) and (self._live is None or now - self._shown_s >= _REDRAW_S):
            self._print_held()
            self._shown_s = now
            self._write(lambda: self._redraw(self._picture(group)))

    def _is_settled(self, now: float) -> bool:
        """Whether the terminal has kept its size for a while: what is drawn meanwhile may be too wide."""
        if self._size != self._seen[0]:
            self._seen = self._size, now
        return now - self._seen[1] >= _SETTLED_S

    def _last_line(self, ended: RunEnded) -> str:
        """The best epoch's test score and the time of an epoch, as far as the summary has them."""
        parts = [] if ended.status == "finished" else [ended.status]
        summary = ended.summary
        if summary.get("metrics"):
            parts.append(_best_text(summary["metrics"], summary["chosen_by"], summary["best_epoch"]))
        if epoch_s := summary.get("epoch_s"):
            said = ""
            if self._predicted_s is not None:
                said = f" (predicted {duration_beside(self._predicted_s, epoch_s)})"
            parts.append(f"{brief_duration(epoch_s)} per epoch{said}")
        if summary.get("simulated"):
            parts.append("on simulated devices")
        return " · ".join(filter(None, parts)) or ended.status

    def _warn(self, text: str) -> None:
        if not self._quiet:
            self._print(text, indent=2)
        elif sys.stderr is not None:
            # As for standard output: that nobody reads it ends no run.
            with contextlib.suppress(OSError):
                print(encodable(text, sys.stderr.encoding), file=sys.stderr, flush=True)

    def _print(self, text: str, *, indent: int = 0, final: bool = False, ends_live: bool = False) -> None:
        """Write a line that stays, above the one that is redrawn; continued lines are indented."""
        if self._quiet and not final:
            return
        if self._live is not None and not self._is_settled(self._clock()):
            self._held.append((text, indent, ends_live))
            return
        self._print_held()
        self._print_now(text, indent, ends_live)

    def _print_held(self) -> None:
        held, self._held = self._held, []
        for line in held:
            self._print_now(*line)

    def _print_now(self, text: str, indent: int, ends_live: bool) -> None:
        if ends_live:
            self._write(self._end_live)
        console = self._console
        if console is None:
            self._write(lambda: self._print_plain(text))
            return
        self._write(self._end_resized)
        self._kept.append((text, indent))
        self._write(lambda: self._print_wrapped(console, text, indent))

    def _print_wrapped(self, console: Console, text: str, indent: int) -> None:
        from rich.text import Text

        # As a Text, which rich searches for neither markup nor emoji names (`opencl:0:` could be one).
        console.print(Text("\n".join(_wrapped(text, indent, console.width))), soft_wrap=True)

    def _print_plain(self, text: str) -> None:
        if self._stream is None:
            return
        self._stream.write(encodable(text, getattr(self._stream, "encoding", None)) + "\n")
        self._stream.flush()

    def _picture(self, group: StepGroup) -> RenderableType:
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
        self._end_resized()
        # What a low terminal has no rows for is not drawn: the newest steps come first.
        lines = self._console.render_lines(picture, pad=False)[: self._console.height]
        size = self._console.size.width, self._console.size.height
        self._drawn = size, [Segment.get_line_length(line) for line in lines]
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
            # At its end rich draws all rows once more, also those that the terminal has no room for.
            live.update("")
            live.stop()
            self._erase_wrapped()

    def _end_resized(self) -> None:
        """End the picture if the terminal has another size now: rich would erase as many rows as it drew."""
        if self._console is not None and self._size != self._drawn[0]:
            self._end_live()
            self._draw_anew(self._console)

    def _erase_wrapped(self) -> None:
        """Erase the rows that a picture has grown by because the terminal became narrower and wrapped it."""
        from rich.control import Control
        from rich.segment import ControlType

        assert self._console is not None
        (width, _), columns = self._drawn
        now, height = self._console.size.width, self._console.size.height
        more = 0
        if now < width and _wraps_when_resized():
            more = sum(max(1, -(-length // now)) - 1 for length in columns)
            erased = [(ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)] * more
            self._console.control(Control(*erased))
        if len(columns) + more > height:
            # Nothing reaches what has moved out of the top, and a terminal that grows brings it back.
            self._torn_at = now, height

    def _draw_anew(self, console: Console) -> None:
        """Where a terminal has grown in which rows of a picture were out of sight: the lines that stay alone.

        Row by row, as terminals may keep what is erased at once among the lines that one can scroll back to.
        """
        from rich.control import Control
        from rich.segment import ControlType

        width, height = console.size.width, console.size.height
        if self._torn_at is None or (width <= self._torn_at[0] and height <= self._torn_at[1]):
            return
        self._torn_at = None
        rows = [(ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_DOWN, 1)] * height
        console.control(Control(ControlType.HOME, *rows, ControlType.HOME))
        shown: list[tuple[str, int]] = []
        room = height - 1
        for text, indent in reversed(self._kept):
            room -= len(_wrapped(text, indent, width))
            if room < 0:
                break
            shown.append((text, indent))
        for text, indent in reversed(shown):
            self._print_wrapped(console, text, indent)

    def _write(self, action: Callable[[], None]) -> None:
        """Write to the display; when that is impossible, go on without one."""
        if self.lost is not None:
            return
        try:
            action()
        except OSError as error:
            self.lost = error
            if self._stream is not None:
                _discard(self._stream)
            if self._console is not None:
                self._console.quiet = True
            self._end_live()


class _StageMeans:
    """Mean stage times of an epoch, over its steps."""

    def __init__(self) -> None:
        self._steps = 0
        self._total_s: dict[str, float] = {}
        self._bound: Counter[str] = Counter()
        self.memory_bytes = 0

    def add(self, group: StepGroup) -> None:
        steps = max(len(group.losses), 1)
        self._steps += steps
        for name, time_s in group.stage_s.items():
            self._total_s[name] = self._total_s.get(name, 0.0) + time_s * steps
        self._bound[group.bottleneck] += steps
        self.memory_bytes = group.memory_bytes

    def means(self) -> dict[str, float]:
        return {name: total / self._steps for name, total in self._total_s.items()}

    def bottleneck(self) -> str:
        """The stage that bounded most steps."""
        return max(self._bound, key=self._bound.__getitem__, default="")


def _best_text(metrics: Mapping[str, Mapping[str, float]], chosen_by: str, epoch: int) -> str:
    """Empty where no split has the metric."""
    scores = scores_text({"test": metrics["test"]} if "test" in metrics else metrics, chosen_by)
    # Without validation vertices the last evaluation counts.
    place = f"best validation, epoch {epoch}" if "val" in metrics else f"epoch {epoch}"
    return f"{scores} ({place})" if scores else ""


def _wrapped(text: str, indent: int, width: int) -> list[str]:
    """A line as those that fit a terminal. Paths stay whole, so that they can be copied."""
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
    """Return whether a cell of a notebook has started the process (`!hyrt run`).

    Its output goes through a terminal, but the page below the cell shows no cursor that moves up.
    """
    variables = os.environ
    # The kernel is told of its parent, and lets pagers and colours suit its pages.
    is_kernel = variables.get("TERM") == "xterm-color" and variables.get("GIT_PAGER") == "cat"
    return "JPY_PARENT_PID" in variables or is_kernel


def _wraps_when_resized() -> bool:
    """Whether the terminal wraps its lines when it becomes narrower, as all but a few old ones do."""
    kind = os.environ.get("TERM", "")
    if "XTERM_VERSION" in os.environ or kind.startswith(("linux", "rxvt", "vt")):
        return False
    return not kind.startswith("screen") or "TMUX" in os.environ


def _make_console(stream: TextIO) -> Console:
    from rich.console import Console

    class _Console(Console):
        def on_broken_pipe(self) -> None:
            # Rich would end the process here; the display goes silent instead.
            raise

    return _Console(file=stream, highlight=False)


def _discard(stream: TextIO) -> None:
    """Send what is still buffered, and all that follows, nowhere: else the interpreter's exit fails on it."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
