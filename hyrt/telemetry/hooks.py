"""Hooks, which observe a run or inject faults into it. A run without hooks has no overhead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from hyrt_perfmodel.policy import Assignment

from hyrt.device import Device
from hyrt.runtime.workers import RunObserver
from hyrt.telemetry.events import Event, Notice

T = TypeVar("T")

HOST = "host"
"""Place of work that does not belong to a trainer."""

NONE = -1
"""Value of `trainer`, `share` or `units` at a site that has none."""


class Site(NamedTuple):
    """Site of a stage call: place, step and share."""

    place: str
    """Name of the trainer of the share, or `HOST`."""
    step: int
    """Step of the run, counted from 0; for an evaluation or a checkpoint, the number of finished steps."""
    trainer: int = NONE
    share: int = NONE
    units: int = NONE
    """Number of units of the share. `trainer` and `share` are the indices of its trainer and of itself."""


class Hook:
    """Base class of hooks whose methods do nothing; a hook overrides some of these methods."""

    worker_observer: RunObserver | None = None
    """Observer of the worker threads in the sample and load stages, which gets the times of each thread."""

    def on_start(self, devices: Sequence[Device], steps: range) -> Notice | None:
        """Handle the start of a run, and return a notice for the user, or None.

        `devices` are the trainers' devices, and `steps.stop` is the length of the whole run. A hook may raise
        a HyrtError to refuse the run.
        """
        return None

    def wrap_call(self, stage: str, site: Site, work: Callable[[], T]) -> T:
        """Run the work of one stage call in the calling thread, and return its result.

        The stages are `sample`, `load`, `transfer`, `propagate`, `update` (a trainer receives the weights),
        `synchronize`, `evaluate` and `checkpoint`.
        """
        return work()

    def before_write(self, step: int, operation: str) -> None:
        """Handle an operation of an atomic checkpoint write before it begins. May raise an OSError."""

    def on_step_split(self, assignment: Assignment) -> None:
        """Handle the assignment with which the next step is split."""

    def channel_observer(self, name: str) -> Callable[[int], None] | None:
        """Return a callback for the number of items in a pipeline channel, or None."""
        return None

    def on_event(self, event: Event) -> None:
        """Handle an event before the listeners of the run get it."""

    def on_pipeline_failure(self, failure: BaseException) -> None:
        """Handle the first failure of the pipeline in the thread that has failed."""

    def on_stall(self) -> BaseException | None:
        """Return the error with which a stalled run ends, or None if the cause of the stall is unknown.

        The call may take some seconds.
        """
        return None

    def on_end(self, summary: dict[str, Any]) -> Notice | None:
        """Add entries to the summary of a finished run; return a notice for the user, or None."""
        return None

    def on_failure(self, error: BaseException, summary: dict[str, Any]) -> None:
        """Add known facts to the summary of a run that has failed."""

    def on_abort(self) -> None:
        """Prepare for an exit of the process within a step. Called on a separate thread."""


def call_with_hooks(hooks: Sequence[Hook], stage: str, site: Site, work: Callable[[], T]) -> T:
    """Run a call within all hooks, of which the first one is the innermost."""
    for hook in hooks[:-1]:
        work = partial(hook.wrap_call, stage, site, work)
    return hooks[-1].wrap_call(stage, site, work) if hooks else work()
