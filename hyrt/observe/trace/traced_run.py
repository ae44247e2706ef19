"""The hook that traces a run: from its start to the file in the run folder."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from hyrt_perfmodel.assignment import Assignment

from hyrt import __version__
from hyrt.device import Device, QueueListener
from hyrt.device.calls import call_device
from hyrt.device.capabilities import MadeOfDevices, Traceable, Watchable
from hyrt.errors import ConfigError, DeviceFault, describe
from hyrt.machine.atomic_write import write_atomically
from hyrt.machine.workers import Chunk, Worked
from hyrt.observe.events import Balanced, Event, Notice, StepGroup
from hyrt.observe.hook import Hook, Site
from hyrt.observe.trace.file import facts_of, joined_json, left_out, trace_json, trace_lines
from hyrt.observe.trace.trace import Counter, Trace
from hyrt.observe.trace.traces_of_ranks import TracesOfRanks

T = TypeVar("T")

# A seventh of the size already, in a few hundredths of a second for each ten thousand events.
_COMPRESSION = 1


class TracedRun(Hook):
    """Notes when every call began and ended, and writes the file when the run has ended.

    Parameters
    ----------
    limit
        Most events that each track and each counter keeps: the newest.
    folder
        The folder that the trace is written to; none is needed where another process writes it.
    timeout_s
        How long a device may take to answer that it will be traced.
    ranks
        Brings together the traces of processes that train together; None for the only one.
    inherited
        Gives the folder where the process that should write the trace is lost, and this one has to; None for
        nowhere.

    Raises
    ------
    ConfigError
        If there is no folder.
    """

    def __init__(
        self,
        limit: int,
        folder: Path | None,
        timeout_s: float,
        ranks: TracesOfRanks | None = None,
        inherited: Callable[[], Path | None] = lambda: None,
    ) -> None:
        writes = ranks is None or ranks.rank == 0
        if folder is None and writes:
            raise ConfigError(
                "runtime.trace: there is no folder to write the trace to: give one (hyrt.train(..., "
                "folder=...))"
            )
        self._trace = Trace(limit)
        self.watch = partial(watched, self._trace)
        self._track, self._number = self._trace.track, self._trace.number
        self._folder = folder
        self._inherited = inherited
        self._ranks = ranks
        self._zero: int | None = None
        self._uncertainty = 0
        self._timeout_s = timeout_s
        self._memory = self._trace.counter("memory", "bytes")
        self._trainers: list[str] = []
        self._first_step = 0
        self._split: list[Counter] = []
        self._assignment: Assignment | None = None

    def begin(self, devices: Sequence[Device], steps: range) -> None:
        """Ask the devices that can for what their queues run, and for when their threads work.

        Raises
        ------
        HyrtError
            Naming the device, when it fails or takes too long.
        """
        trace = self._trace
        self._trainers = [device.info.name for device in devices]
        self._first_step = steps.start
        self._split = [trace.counter(f"split {name}", "units") for name in self._trainers]
        of_each = (each.members if isinstance(each, MadeOfDevices) else [each] for each in devices)
        for device in chain.from_iterable(of_each):
            name = device.info.name
            if isinstance(device, Traceable):
                hear: QueueListener = partial(trace.hear, name)
                ask = partial(device.trace, hear)
                call_device(name, "trace", ask, timeout_s=self._timeout_s, fault=DeviceFault)
            if isinstance(device, Watchable):
                device.watch(partial(watched, trace))
        if self._ranks is not None:
            # When a run has failed, the ranks do not hear each other any more.
            self._zero = self._align(self._ranks)

    def around(self, stage: str, site: Site, work: Callable[[], T]) -> T:
        """Note the call as a slice of the calling thread."""
        _, step, trainer, share, units = site
        with self._track().begin(self._number(stage), step, trainer, share, units):
            return work()

    def cut(self, assignment: Assignment) -> None:
        """Note what changes with an assignment."""
        before = self._assignment
        if assignment is before:
            return
        self._assignment = assignment
        for at, counter in enumerate(self._split):
            if before is None or before.split[at] != assignment.split[at]:
                counter.add(assignment.split[at])
        for name, count in assignment.threads.by_name().items():
            if before is None or before.threads.by_name()[name] != count:
                self._trace.counter(f"threads {name}", "threads").add(count)

    def channel(self, name: str) -> Callable[[int], None]:
        """Note how many items a channel holds."""
        return self._trace.counter(f"channel {name}", "items").add

    def hear(self, event: Event) -> None:
        """Note the memory that events tell of, decisions and notices."""
        match event:
            case StepGroup():
                self._memory.add(event.memory_bytes)
            case Balanced():
                self._trace.mark(event.reason)
            case Notice():
                self._trace.mark(event.text)

    def fail(self, failure: BaseException) -> None:
        """Note the failure where it happened."""
        self._trace.mark(describe(failure))

    def end(self, summary: dict[str, Any]) -> Notice | None:
        """Write the file, unless nothing was done; what to say of it is a warning where that fails."""
        if self._ranks is None and self._trace.is_empty:
            return None
        text = self._own_json() if self._ranks is None else self._json_of_all(self._ranks)
        if text is None:
            return None
        try:
            self._write(text)
        except OSError as error:
            return Notice(kind="warning", text=self._not_written(error))
        losses = left_out(self._trace)
        lost = ""
        if losses:
            lost = (
                f"; {sum(losses.values()):,} early events were dropped "
                f"(runtime.trace_events={self._trace.limit} per track)"
            )
        return Notice(kind="info", text=f"trace {self.path}, for ui.perfetto.dev{lost}")

    def end_failed(self, error: BaseException, summary: dict[str, Any]) -> None:
        """Write the file, unless nothing had begun; a failure of that is a note to the error.

        Of several ranks, the first one that is left writes the parts of all that leave theirs in time.
        """
        if self._trace.is_empty:
            return
        text = self._own_json() if self._zero is None else self._json_of_left(self._zero)
        if self._folder is None and self._zero is not None and text is not None:
            self._folder = self._inherited()
        if self._folder is None or text is None:
            return
        try:
            self._write(text)
        except OSError as second:
            error.add_note(self._not_written(second))

    @property
    def path(self) -> Path:
        """`trace.json.gz`; in a resumed run `trace-from-<step>.json.gz`, so that the earlier one stays."""
        name = f"trace-from-{self._first_step}.json.gz" if self._first_step else "trace.json.gz"
        assert self._folder is not None
        return self._folder / name

    @property
    def _about(self) -> dict[str, Any]:
        return {"hyrt": __version__, "first_step": self._first_step}

    def _own_json(self) -> bytes:
        return trace_json(self._trace, self._trainers, self._about)

    def _json_of_all(self, ranks: TracesOfRanks) -> bytes | None:
        """The traces of all ranks on the clock of rank 0; None but there."""
        # The clocks may have drifted since the start.
        zero = self._align(ranks)
        facts = facts_of(self._trace)
        told = ranks.tell({**facts, "clock_uncertainty_us": self._uncertainty / 1000})
        parts = ranks.at_first(self._compressed_lines(ranks, zero))
        if not parts:
            return None
        return joined_json(
            [gzip.decompress(part).decode() for part in parts],
            {**self._about, **facts, "ranks": told},
        )

    def _json_of_left(self, zero: int) -> bytes | None:
        """The traces of the ranks that left theirs, on rank 0's clock as at the start; else None."""
        ranks = self._ranks
        assert ranks is not None
        facts = facts_of(self._trace)
        told = json.dumps({**facts, "clock_uncertainty_us": self._uncertainty / 1000})
        left = ranks.leave(told.encode() + b"\n" + self._compressed_lines(ranks, zero))
        if not left:
            return None
        pairs = {rank: data.partition(b"\n") for rank, data in left.items()}
        return joined_json(
            [gzip.decompress(lines).decode() for _, _, lines in pairs.values()],
            {
                **self._about,
                **facts,
                "ranks": [{"rank": rank, **json.loads(about)} for rank, (about, _, _) in pairs.items()],
            },
        )

    def _align(self, ranks: TracesOfRanks) -> int:
        """The time on this clock at which the first of all traces began."""
        offset, self._uncertainty = ranks.clock_offset()
        first: int = min(ranks.tell(self._trace.started + offset))
        return first - offset

    def _compressed_lines(self, ranks: TracesOfRanks, zero: int) -> bytes:
        lines = trace_lines(self._trace, self._trainers, rank=ranks.rank, zero=zero)
        return gzip.compress(lines.encode("utf-8", "backslashreplace"), _COMPRESSION)

    def _write(self, text: bytes) -> None:
        write_atomically(self.path, gzip.compress(text, _COMPRESSION, mtime=0))

    def _not_written(self, error: OSError) -> str:
        return (
            f"{self.path}: the trace cannot be written: {error.strerror or error}. The run itself "
            "is not affected"
        )


def watched(trace: Trace, work: Chunk) -> Worked | None:
    """Note in the track of each thread of a team which calls of `Workers.run` it worked at.

    A slice is named after the function that shares its work out, and has the step of what the calling thread
    is doing. There is one for each such call and thread: however many chunks there are, they cost the same.
    """
    outer = trace.track().open
    if not outer:
        return None
    what = (trace.number(_function(work)), *outer[-1][2:])

    def worked(began: int, ended: int) -> None:
        trace.track().add(began, ended, what)

    return worked


def _function(work: object) -> str:
    """`aggregate` of a function in `aggregate`, and of a partial function of it."""
    while isinstance(work, partial):
        work = work.func
    name = getattr(work, "__qualname__", None) or getattr(work, "__name__", type(work).__name__)
    return str(name).split(".<locals>")[0].replace("._", ".").lstrip("_")
