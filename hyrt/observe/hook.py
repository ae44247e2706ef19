"""What is hung into a run from above, to watch it or to disturb it: a run without hooks pays for none."""

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
    """Does nothing at any of the moments of a run; what watches or disturbs a run overrides some of them."""

    watch: Watch | None = None
    """Hears which threads of the sample and load stages worked when."""

    def begin(self, devices: Sequence[Device], steps: range) -> Notice | None:
        """Hear of the trainers' devices and the steps to come (`stop` is the length of the whole run).

        Returns what the run has to say of the hook. May raise a HyrtError to refuse the run.
        """
        return None

    def around(self, stage: str, site: Site, work: Callable[[], T]) -> T:
        """Do the work of a call and return its result, in the thread that does it.

        The stages are `sample`, `load`, `transfer`, `propagate`, `update` (a trainer takes the weights),
        `synchronize`, `evaluate` and `checkpoint`.
        """
        return work()

    def before_write(self, step: int, operation: str) -> None:
        """Hear of an operation of the atomic write of a checkpoint; may raise an OSError in its place."""

    def cut(self, assignment: Assignment) -> None:
        """Hear under which assignment the next step is cut."""

    def channel(self, name: str) -> Callable[[int], None] | None:
        """Who hears how many items a channel of the pipeline holds, whenever that changes."""
        return None

    def hear(self, event: Event) -> None:
        """Hear an event before the run's listeners do."""

    def fail(self, failure: BaseException) -> None:
        """Hear the first failure of the pipeline, in the thread that failed."""

    def end(self, summary: dict[str, Any]) -> Notice | None:
        """Add to the summary of a run that has ended; returns what is to be said."""
        return None

    def end_failed(self, error: BaseException) -> None:
        """Hear that the run has failed; what goes wrong here may only be a note to the error."""


def call_in(hooks: Sequence[Hook], stage: str, site: Site, work: Callable[[], T]) -> T:
    """Do the work of a call inside the hooks, the first one innermost."""
    for hook in hooks[:-1]:
        work = partial(hook.around, stage, site, work)
    return hooks[-1].around(stage, site, work) if hooks else work()
