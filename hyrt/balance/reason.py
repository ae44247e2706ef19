"""The sentence that says why an assignment changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hyrt_perfmodel.assignment import Assignment, Threads

from hyrt.quantities import duration

THREADED = ("sample", "load", "train")
"""The stages that have threads."""


def moves(before: Sequence[int], after: Sequence[int]) -> list[tuple[int, int, int]]:
    """Who gives how much to whom as (amount, giver, taker), the largest first: the fewest moves that do."""
    giving = {
        index: old - new for index, (old, new) in enumerate(zip(before, after, strict=True)) if old > new
    }
    taking = {
        index: new - old for index, (old, new) in enumerate(zip(before, after, strict=True)) if new > old
    }
    found = []
    while giving and taking:
        giver = max(giving, key=lambda index: giving[index])
        taker = max(taking, key=lambda index: taking[index])
        amount = min(giving[giver], taking[taker])
        found.append((amount, giver, taker))
        for side, index in ((giving, giver), (taking, taker)):
            side[index] -= amount
            if not side[index]:
                del side[index]
    return sorted(found, reverse=True)


def change_in_words(
    before: Assignment,
    after: Assignment,
    trainers: Sequence[str],
    trainers_s: Sequence[float],
    stages_s: Mapping[str, float],
    expected_s: float | None = None,
) -> str:
    """What moves, with the times that are the reason.

    Parameters
    ----------
    before, after
        The assignments.
    trainers, trainers_s
        Names, and what each trainer's slowest stage takes.
    stages_s
        The known times of `sample`, `load` and `train`.
    expected_s
        The iteration that is expected from it.

    Returns
    -------
    str
        Like "moved 96 targets cpu:0 → cuda:0: cpu:0 31.0 ms, cuda:0 19.2 ms; a step should take 24.6 ms".
    """
    said, times = [], dict[str, float]()
    steps = moves(before.split, after.split)
    for amount, giver, taker in steps[:2]:
        noun = "target" if amount == 1 else "targets"
        said.append(f"{amount} {noun} {trainers[giver]} → {trainers[taker]}")
        times.update({trainers[giver]: trainers_s[giver], trainers[taker]: trainers_s[taker]})
    if len(steps) > 2:
        said.append(f"{sum(amount for amount, _, _ in steps[2:])} more among {len(trainers)} trainers")
    for text, stages in _thread_changes(before.threads, after.threads):
        said.append(text)
        times.update({stage: stages_s[stage] for stage in stages if stage in stages_s})
    figures = ", ".join(f"{name} {duration(seconds)}" for name, seconds in times.items())
    expected = f"; a step should take {duration(expected_s)}" if expected_s is not None else ""
    return f"moved {', '.join(said)}: {figures}{expected}"


def _thread_changes(before: Threads, after: Threads) -> list[tuple[str, tuple[str, ...]]]:
    """What happened to the threads, and the stages it happened to."""
    olds = [getattr(before, stage) for stage in THREADED]
    news = [getattr(after, stage) for stage in THREADED]
    found: list[tuple[str, tuple[str, ...]]] = []
    for amount, giver, taker in moves(olds, news):
        noun = "thread" if amount == 1 else "threads"
        found.append(
            (f"{amount} {noun} {THREADED[giver]} → {THREADED[taker]}", (THREADED[giver], THREADED[taker]))
        )
        olds[giver] -= amount
        olds[taker] += amount
    for stage, old, new in zip(THREADED, olds, news, strict=True):
        if old != new:
            found.append((f"{stage} from {old} to {new} threads", (stage,)))
    return found
