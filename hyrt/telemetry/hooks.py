"""Hooks, which observe a run or inject faults into it and cost nothing if there are none."""

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
"""Place of work that belongs to no trainer."""

NONE = -1
"""Value of `trainer`, `share` or `units` if a site has none."""


class Site(NamedTuple):
    """Location of a stage call in a run."""

    place: str
    """Name of the trainer of the share, or `HOST`."""
    step: int
    """Step of the run, counted from 0; for an evaluation or a checkpoint the number of steps done."""
    trainer: int = NONE
    share: int = NONE
    units: int = NONE
    """Number of units of the share; `trainer` is the index of the trainer, `share` the share's number in its
    step."""


class Hook:
    """No-op base class of hooks; a hook overrides some of its methods."""

    worker_observer: RunObserver | None = None
    """Observer of the shared work in the sample and load stages, which gets the times of each thread."""

    def on_start(self, devices: Sequence[Device], steps: range) -> Notice | None:
        """Handle the start of a run; return a notice for the user, or None.

        `devices` are the trainers' devices, and `steps.stop` is the length of the whole run. May raise a
        HyrtError to refuse the run.
        """
        return None

    def wrap_call(self, stage: str, site: Site, work: Callable[[], T]) -> T:
        """Do the work of one stage call, in the calling thread, and return its result.

        The stages are `sample`, `load`, `transfer`, `propagate`, `update` (a trainer receives the weights),
        `synchronize`, `evaluate` and `checkpoint`.
        """
        return work()

    def before_write(self, step: int, operation: str) -> None:
        """Handle an operation of a checkpoint's atomic write before it begins; may raise an OSError."""

    def on_step_split(self, assignment: Assignment) -> None:
        """Handle the assignment that splits the next step."""

    def channel_observer(self, name: str) -> Callable[[int], None] | None:
        """Return a callback for changes of the number of items in a pipeline channel, or None."""
        return None

    def on_event(self, event: Event) -> None:
        """Handle an event, before the run's listeners do."""

    def on_pipeline_failure(self, failure: BaseException) -> None:
        """Handle the first failure of the pipeline, in the thread that failed."""

    def on_stall(self) -> BaseException | None:
        """Explain a stall: return the error with which the run ends if the cause is known, or None.

        The call may take some seconds.
        """
        return None

    def on_end(self, summary: dict[str, Any]) -> Notice | None:
        """Add to the summary of a finished run; return a notice for the user, or None."""
        return None

    def on_failure(self, error: BaseException, summary: dict[str, Any]) -> None:
        """Add known facts to the summary of a failed run."""

    def on_abort(self) -> None:
        """Prepare for the exit of the process within a step; called on a separate thread."""


def call_with_hooks(hooks: Sequence[Hook], stage: str, site: Site, work: Callable[[], T]) -> T:
    """Do the work of a call wrapped in all hooks, of which the first one is the innermost."""
    for hook in hooks[:-1]:
        work = partial(hook.wrap_call, stage, site, work)
    return hooks[-1].wrap_call(stage, site, work) if hooks else work()
