"""Speed changes of a simulated machine during a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hyrt_perfmodel.checks import Positive, check_numbers
from hyrt_perfmodel.platforms.platform import Host

PARTS = ("sample", "links", "host_memory")
"""Parts other than trainers whose speed may change; `host_memory` is read by loading and the CPU trainer."""


Speeds = tuple[tuple[int | str, float], ...]
"""(part, factor) of every part whose speed differs from the platform's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Speed change of a part of the machine from a step on.

    Raises
    ------
    ValueError
        If the step is negative, the part is unknown or the factor is not above 0.
    """

    step: int
    """First step with the new speed."""
    trainer: int | str
    """Index of the trainer whose propagation changes, or one of `PARTS`."""
    factor: Positive
    """Speed relative to the platform's. A later change of the same part replaces this one; 1 restores the
    platform's speed."""

    def __post_init__(self) -> None:
        check_numbers("change", self)
        if self.step < 0:
            raise ValueError(f"change: step is {self.step}: steps count from 0")
        if isinstance(self.trainer, str) and self.trainer not in PARTS:
            raise ValueError(
                f"change: {self.trainer!r} is not a part of a machine: give a trainer's index or one "
                f"of {', '.join(PARTS)}"
            )


def check_changes(changes: Sequence[Change], num_trainers: int) -> None:
    """Raise ValueError for a change of a trainer that the platform does not have."""
    for change in changes:
        if isinstance(change.trainer, int) and not 0 <= change.trainer < num_trainers:
            raise ValueError(
                f"change at step {change.step}: there is no trainer {change.trainer}: "
                f"the platform has {num_trainers}, counted from 0"
            )


def speeds_at(changes: Sequence[Change], step: int) -> Speeds:
    """Return the speeds at a step; of two changes of the same step and part, the later in the sequence
    applies.
    """
    past = sorted((change for change in changes if change.step <= step), key=lambda change: change.step)
    factors = {change.trainer: change.factor for change in past}
    return tuple(item for item in factors.items() if item[1] != 1)


def host_with_memory(host: Host, factor: float) -> Host:
    """Return the host with `factor` times the memory bandwidth for everything that reads its memory."""

    def scaled(gb_s: float | None) -> float | None:
        return None if gb_s is None else gb_s * factor

    models = {
        kind: replace(rates, memory_gb_s=rates.memory_gb_s * factor) for kind, rates in host.models.items()
    }
    return replace(
        host,
        memory_gb_s=host.memory_gb_s * factor,
        shared_memory_gb_s=scaled(host.shared_memory_gb_s),
        thread_load_gb_s=scaled(host.thread_load_gb_s),
        models=models,
        loading=tuple(
            replace(cost, row_s=cost.row_s / factor, gb_s=cost.gb_s * factor) for cost in host.loading
        ),
    )
