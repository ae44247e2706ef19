"""Hook that traces a run and writes the trace file, and the protocol for gathering the ranks' traces."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TypeVar

from hyrt_perfmodel.policy import Assignment

from hyrt import __version__
from hyrt.device import Device, QueueListener
from hyrt.device.calls import call_device
from hyrt.device.capabilities import CompositeDevice, Observable, Traceable
from hyrt.errors import ConfigError, DeviceFaultError, describe_error
from hyrt.runtime.files import write_atomically
from hyrt.runtime.workers import Chunk, IntervalCallback
from hyrt.telemetry.events import AssignmentChanged, Event, Notice, StepMetrics
from hyrt.telemetry.hooks import Hook, Site
from hyrt.telemetry.trace import (
    Counter,
    Trace,
    count_dropped_events,
    join_json,
    trace_facts,
    trace_json,
    trace_lines,
)


class RankTraceGatherer(Protocol):
    """Collective operations on the traces of all ranks. Every rank must call each method except `deliver`."""

    @property
    def rank(self) -> int:
        """Rank of this process; rank 0 writes the file."""
        ...

    def clock_offset(self) -> tuple[int, int]:
        """Return the offset of rank 0's clock from this process's clock, and its error, in nanoseconds."""
        ...

    def all_gather(self, record: Any) -> Sequence[Any]:
        """Gather plain values from all ranks, in rank order."""
        ...

    def gather(self, data: bytes) -> Sequence[bytes]:
        """Gather the data of all ranks at rank 0, in rank order; empty at the other ranks."""
        ...

    def deliver(self, data: bytes) -> Mapping[int, bytes]:
        """Send the data of this rank when a run has failed, with a short wait for other ranks.

        Return the received data by rank at the first surviving rank, and nothing at other ranks.
        """
        ...


T = TypeVar("T")

# This level reduces the size to a seventh, in some hundredths of a second per ten thousand events.
_COMPRESSION = 1


class TraceHook(Hook):
    """Hook that records the start and end of every call, and writes the trace file when the run ends.

    Each track and counter keeps its latest `limit` events. `folder` may be None if another process writes the
    file. A device has `timeout_s` seconds to enable tracing. `ranks` gathers the traces of several ranks. If
    the process that should write the trace is lost, and this process writes it instead,
    `find_inherited_folder` returns the folder. Raises ConfigError if there is no folder.
    """

    def __init__(
        self,
        limit: int,
        folder: Path | None,
        timeout_s: float,
        ranks: RankTraceGatherer | None = None,
        find_inherited_folder: Callable[[], Path | None] = lambda: None,
    ) -> None:
        writes = ranks is None or ranks.rank == 0
        if folder is None and writes:
            raise ConfigError(
                "runtime.trace needs a folder for the trace: pass one to hyrt.train(..., folder=...)"
            )
        self._trace = Trace(limit)
        self.worker_observer = partial(record_worker_slices, self._trace)
        self._track, self._number = self._trace.track, self._trace.name_index
        self._folder = folder
        self._inherited = find_inherited_folder
        self._ranks = ranks
        self._zero: int | None = None
        self._uncertainty = 0
        self._timeout_s = timeout_s
        self._memory = self._trace.counter("memory", "bytes")
        self._trainers: list[str] = []
        self._first_step = 0
        self._split: list[Counter] = []
        self._assignment: Assignment | None = None

    def on_start(self, devices: Sequence[Device], steps: range) -> None:
        """Enable the tracing of queues and threads on the devices that support it.

        Raises HyrtError, which names the device, if a device fails or exceeds the time limit.
        """
        trace = self._trace
        self._trainers = [device.info.name for device in devices]
        self._first_step = steps.start
        self._split = [trace.counter(f"split {name}", "units") for name in self._trainers]
        members = (
            device_or_group.members if isinstance(device_or_group, CompositeDevice) else [device_or_group]
            for device_or_group in devices
        )
        for device in chain.from_iterable(members):
            name = device.info.name
            if isinstance(device, Traceable):
                on_spans: QueueListener = partial(trace.add_spans, name)
                enable = partial(device.trace, on_spans)
                call_device(name, "trace", enable, timeout_s=self._timeout_s, fault=DeviceFaultError)
            if isinstance(device, Observable):
                device.watch(partial(record_worker_slices, trace))
        if self._ranks is not None:
            # Align the clocks now, because the ranks of a failed run can no longer communicate.
            self._zero = self._align(self._ranks)

    def wrap_call(self, stage: str, site: Site, work: Callable[[], T]) -> T:
        """Record the call as a slice of the calling thread."""
        _, step, trainer, share, units = site
        with self._track().begin(self._number(stage), step, trainer, share, units):
            return work()

    def on_step_split(self, assignment: Assignment) -> None:
        """Record the values that an assignment changes."""
        before = self._assignment
        if assignment is before:
            return
        self._assignment = assignment
        for index, counter in enumerate(self._split):
            if before is None or before.split[index] != assignment.split[index]:
                counter.record(assignment.split[index])
        for name, count in assignment.threads.by_name().items():
            if before is None or before.threads.by_name()[name] != count:
                self._trace.counter(f"threads {name}", "threads").record(count)

    def channel_observer(self, name: str) -> Callable[[int], None]:
        """Return a callback that records the number of items in a channel."""
        return self._trace.counter(f"channel {name}", "items").record

    def on_event(self, event: Event) -> None:
        """Record the memory use in events, and mark decisions and notices."""
        match event:
            case StepMetrics():
                self._memory.record(event.memory_bytes)
            case AssignmentChanged():
                self._trace.mark(event.reason)
            case Notice():
                self._trace.mark(event.text)

    def on_pipeline_failure(self, failure: BaseException) -> None:
        """Mark the failure in the thread that has failed."""
        self._trace.mark(describe_error(failure))

    def on_end(self, summary: dict[str, Any]) -> Notice | None:
        """Write the trace file unless it is empty; return a notice, which is a warning if writing fails."""
        if self._ranks is None and self._trace.is_empty:
            return None
        text = self._single_process_json() if self._ranks is None else self._all_ranks_json(self._ranks)
        if text is None:
            return None
        try:
            self._write(text)
        except OSError as error:
            return Notice(kind="warning", text=self._write_error_text(error))
        dropped = count_dropped_events(self._trace)
        dropped_text = ""
        if dropped:
            dropped_text = (
                f"; {sum(dropped.values()):,} early events were dropped "
                f"(runtime.trace_events={self._trace.limit} per track)"
            )
        return Notice(
            kind="info", text=f"trace written to {self.path}: open it at ui.perfetto.dev{dropped_text}"
        )

    def on_failure(self, error: BaseException, summary: dict[str, Any]) -> None:
        """Write the trace file unless it is empty; if writing fails, add a note to `error`.

        With several ranks, the first surviving rank writes all traces that it receives in time.
        """
        if self._trace.is_empty:
            return
        text = self._single_process_json() if self._zero is None else self._surviving_ranks_json(self._zero)
        if self._folder is None and self._zero is not None and text is not None:
            self._folder = self._inherited()
        if self._folder is None or text is None:
            return
        try:
            self._write(text)
        except OSError as second:
            error.add_note(self._write_error_text(second))

    @property
    def path(self) -> Path:
        """Path `trace.json.gz`, or `trace-from-<step>.json.gz` in a resumed run to keep the earlier file."""
        name = f"trace-from-{self._first_step}.json.gz" if self._first_step else "trace.json.gz"
        assert self._folder is not None
        return self._folder / name

    @property
    def _about(self) -> dict[str, Any]:
        return {"hyrt": __version__, "first_step": self._first_step}

    def _single_process_json(self) -> bytes:
        return trace_json(self._trace, self._trainers, self._about)

    def _all_ranks_json(self, ranks: RankTraceGatherer) -> bytes | None:
        """Return the traces of all ranks on the clock of rank 0; None at the other ranks."""
        # The clocks may have drifted since the start.
        zero = self._align(ranks)
        facts = trace_facts(self._trace)
        rank_facts = ranks.all_gather({**facts, "clock_uncertainty_us": self._uncertainty / 1000})
        parts = ranks.gather(self._compressed_lines(ranks, zero))
        if not parts:
            return None
        return join_json(
            [gzip.decompress(part).decode() for part in parts],
            {**self._about, **facts, "ranks": rank_facts},
        )

    def _surviving_ranks_json(self, zero: int) -> bytes | None:
        """Return the traces that ranks have sent, with clocks aligned to rank 0 at the start, or None."""
        ranks = self._ranks
        assert ranks is not None
        facts = trace_facts(self._trace)
        header = json.dumps({**facts, "clock_uncertainty_us": self._uncertainty / 1000})
        delivered = ranks.deliver(header.encode() + b"\n" + self._compressed_lines(ranks, zero))
        if not delivered:
            return None
        pairs = {rank: data.partition(b"\n") for rank, data in delivered.items()}
        return join_json(
            [gzip.decompress(lines).decode() for _, _, lines in pairs.values()],
            {
                **self._about,
                **facts,
                "ranks": [{"rank": rank, **json.loads(about)} for rank, (about, _, _) in pairs.items()],
            },
        )

    def _align(self, ranks: RankTraceGatherer) -> int:
        """Return the start of the earliest trace of all ranks, on this process's clock."""
        offset, self._uncertainty = ranks.clock_offset()
        first: int = min(ranks.all_gather(self._trace.started + offset))
        return first - offset

    def _compressed_lines(self, ranks: RankTraceGatherer, zero: int) -> bytes:
        lines = trace_lines(self._trace, self._trainers, rank=ranks.rank, zero=zero)
        return gzip.compress(lines.encode("utf-8", "backslashreplace"), _COMPRESSION)

    def _write(self, text: bytes) -> None:
        write_atomically(self.path, gzip.compress(text, _COMPRESSION, mtime=0))

    def _write_error_text(self, error: OSError) -> str:
        return (
            f"the trace could not be written to {self.path} ({error.strerror or error}); the run itself "
            "is not affected"
        )


def record_worker_slices(trace: Trace, work: Chunk) -> IntervalCallback | None:
    """Record the calls of `Workers.run` in the tracks of the team's threads.

    A slice has the name of the function that is run, and the step of the calling thread. There is one slice
    per call and thread, so the cost does not depend on the number of chunks.
    """
    outer = trace.track().open_slices
    if not outer:
        return None
    fields = (trace.name_index(_function(work)), *outer[-1][2:])

    def record_slice(start: int, end: int) -> None:
        trace.track().add(start, end, fields)

    return record_slice


def _function(work: object) -> str:
    """Return the name of the function that defines `work` (also a partial application), such as
    `aggregate`.
    """
    while isinstance(work, partial):
        work = work.func
    name = getattr(work, "__qualname__", None) or getattr(work, "__name__", type(work).__name__)
    return str(name).split(".<locals>")[0].replace("._", ".").lstrip("_")
