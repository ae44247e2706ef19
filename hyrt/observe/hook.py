"""Hooks that observe a run or inject faults into it; a run without hooks pays for none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from hyrt_perfmodel.assignment import Assignment

from hyrt.device import Device
from hyrt.machine.workers import Watch
from hyrt.observe.events import Event, Notice

T = TypeVar("T")

HOST = "host"
"""The place of what belongs to no trainer."""

NONE = -1
"""The trainer, share or units of a site that has none."""


class Site(NamedTuple):
    """Where in a run a call does its work."""

    place: str
    """The name of the trainer whose share it is, or `HOST`."""
    step: int
    """The step of the run, counted from 0; for an evaluation or a checkpoint the number of steps done."""
    trainer: int = NONE
    share: int = NONE
    units: int = NONE
    """`trainer`, `share` and `units`: the trainer's index, the share's number in its step, and how many units
    it has."""


class Hook:
    """Does nothing; a hook that observes a run or injects faults into it overrides some of the methods."""

    watch: Watch | None = None
    """Called with which threads of the sample and load stages worked, and when."""

    def begin(self, devices: Sequence[Device], steps: range) -> Notice | None:
        """Called with the trainers' devices and the steps to come (`stop` is the length of the whole run).

        Returns a notice that the run shows, or None. May raise a HyrtError to refuse the run.
        """
        return None

    def around(self, stage: str, site: Site, work: Callable[[], T]) -> T:
        """Called for each call of a stage, in the thread that makes it: do its work and return the result.

        The stages are `sample`, `load`, `transfer`, `propagate`, `update` (a trainer takes the weights),
        `synchronize`, `evaluate` and `checkpoint`.
        """
        return work()

    def before_write(self, step: int, operation: str) -> None:
        """Called before each operation of a checkpoint's atomic write; may raise an OSError in its place."""

    def cut(self, assignment: Assignment) -> None:
        """Called with the assignment under which the next step is cut."""

    def channel(self, name: str) -> Callable[[int], None] | None:
        """What to call with the number of items in a channel of the pipeline whenever it changes, or None."""
        return None

    def hear(self, event: Event) -> None:
        """Called with each event, before the run's listeners."""

    def fail(self, failure: BaseException) -> None:
        """Called with the first failure of the pipeline, in the thread that failed."""

    def stall(self) -> BaseException | None:
        """Called when nothing has moved for too long: the error to end with, if it is known what held it up.

        May take some seconds to find out.
        """
        return None

    def end(self, summary: dict[str, Any]) -> Notice | None:
        """Add to the summary of a run that has ended; returns what is to be said."""
        return None

    def end_failed(self, error: BaseException, summary: dict[str, Any]) -> None:
        """Called when the run has failed: add to the summary what is known of it."""

    def leave(self) -> None:
        """Called right before hyrt ends the process within a step, on a thread of its own."""


def call_in(hooks: Sequence[Hook], stage: str, site: Site, work: Callable[[], T]) -> T:
    """Do the work of a call inside the hooks, the first one innermost."""
    for hook in hooks[:-1]:
        work = partial(hook.around, stage, site, work)
    return hooks[-1].around(stage, site, work) if hooks else work()
