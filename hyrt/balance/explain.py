"""Explanations of assignment changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hyrt_perfmodel.policy import Assignment, Threads

from hyrt.formatting import format_duration

THREAD_STAGES = ("sample", "load", "train")
"""Stages with configurable threads."""


def split_moves(before: Sequence[int], after: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return the fewest moves between two splits as (amount, source, destination), largest first."""
    surplus = {
        index: old - new for index, (old, new) in enumerate(zip(before, after, strict=True)) if old > new
    }
    deficit = {
        index: new - old for index, (old, new) in enumerate(zip(before, after, strict=True)) if new > old
    }
    result = []
    while surplus and deficit:
        source = max(surplus, key=lambda index: surplus[index])
        destination = max(deficit, key=lambda index: deficit[index])
        amount = min(surplus[source], deficit[destination])
        result.append((amount, source, destination))
        for side, index in ((surplus, source), (deficit, destination)):
            side[index] -= amount
            if not side[index]:
                del side[index]
    return sorted(result, reverse=True)


def describe_change(
    before: Assignment,
    after: Assignment,
    trainers: Sequence[str],
    trainers_s: Sequence[float],
    stages_s: Mapping[str, float],
    expected_s: float | None = None,
) -> str:
    """Describe what moves, with the times that are the reason.

    Example: "moved 96 targets cpu:0 → cuda:0: cpu:0 31.0 ms, cuda:0 19.2 ms; a step should take 24.6 ms".
    `trainers_s` has the time of each trainer's slowest stage, `stages_s` the known times of `sample`, `load`
    and `train`.
    """
    parts, times = [], dict[str, float]()
    steps = split_moves(before.split, after.split)
    for amount, source, destination in steps[:2]:
        noun = "target" if amount == 1 else "targets"
        parts.append(f"{amount} {noun} {trainers[source]} → {trainers[destination]}")
        times.update({trainers[source]: trainers_s[source], trainers[destination]: trainers_s[destination]})
    if len(steps) > 2:
        parts.append(f"{sum(amount for amount, _, _ in steps[2:])} more among {len(trainers)} trainers")
    for text, stages in _thread_changes(before.threads, after.threads):
        parts.append(text)
        times.update({stage: stages_s[stage] for stage in stages if stage in stages_s})
    figures = ", ".join(f"{name} {format_duration(seconds)}" for name, seconds in times.items())
    expected = f"; a step should take {format_duration(expected_s)}" if expected_s is not None else ""
    return f"moved {', '.join(parts)}: {figures}{expected}"


def _thread_changes(before: Threads, after: Threads) -> list[tuple[str, tuple[str, ...]]]:
    """Describe each change of threads, together with the affected stages."""
    old_counts = [getattr(before, stage) for stage in THREAD_STAGES]
    new_counts = [getattr(after, stage) for stage in THREAD_STAGES]
    changes: list[tuple[str, tuple[str, ...]]] = []
    for amount, source, destination in split_moves(old_counts, new_counts):
        noun = "thread" if amount == 1 else "threads"
        changes.append(
            (
                f"{amount} {noun} {THREAD_STAGES[source]} → {THREAD_STAGES[destination]}",
                (THREAD_STAGES[source], THREAD_STAGES[destination]),
            )
        )
        old_counts[source] -= amount
        old_counts[destination] += amount
    for stage, old, new in zip(THREAD_STAGES, old_counts, new_counts, strict=True):
        if old != new:
            changes.append((f"{stage} from {old} to {new} threads", (stage,)))
    return changes
