"""Which trainers fit a part, and how fast they would train: the front of resources against predicted time.

Searched are n, the shape of the array (m = rows x columns) and the arena. Larger arenas only cut a mini-batch
into fewer tasks, so of each number of tasks the smallest arena is taken. The cost of a design is the largest
fraction that it takes of any one resource of the part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from hyrt_perfmodel.cycles.design import FpgaDesign
from hyrt_perfmodel.cycles.task_shape import TaskShape
from hyrt_perfmodel.cycles.trainer_cycles import task_seconds
from hyrt_perfmodel.workloads.workload import Workload

from hyrt_hls.parts.part import Part
from hyrt_hls.parts.resources import Resources, arena_sizes, check_buildable, estimate, refuse, short
from hyrt_hls.task.arena_limits import tiles

_PES = (1, 2, 4, 8, 16, 32)
_MAC_ROWS = (4, 8, 16, 32, 64, 128)
_MAC_COLS = (16, 32, 48, 64, 96, 128)
PAPER = (8, 2048)
"""n and m of Table IV of HyScale-GNN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A trainer that fits."""

    design: FpgaDesign
    arena_words: int
    """`design` and `arena_words`: what it is."""
    resources: Resources
    """What it takes."""
    cost: float
    """The largest fraction of a resource of the part."""
    tasks: int
    """Into how many tasks the mini-batch is cut."""
    step_s: float
    """Predicted time of a mini-batch on the card, all its tasks; without the link."""


def explore(part: Part, at: Callable[[float], Workload], targets: int, base: FpgaDesign) -> list[Candidate]:
    """All candidates no other of which is both cheaper and faster, the cheapest first.

    Parameters
    ----------
    part
        The card that the trainers are to fit.
    at
        Sizes of a mini-batch by its targets.
    targets
        Targets of a step.
    base
        What is not searched: depth of the queues, clock, memory, what is assumed.

    Raises
    ------
    ValueError
        If no design fits the part and the workload; with the reason for the largest arena.
    """
    found: list[Candidate] = []
    reason = why_not = ""
    some_can_be_built = False
    for pes in _PES:
        arenas, why = _arenas(part, at, targets, pes)
        reason = why or reason
        for tasks, words in arenas.items():
            shape = TaskShape.of(at(targets / tasks))
            for rows, cols in product(_MAC_ROWS, _MAC_COLS):
                design = replace(base, pes=pes, mac_rows=rows, mac_cols=cols)
                try:
                    check_buildable(design, words)
                except ValueError as error:
                    why_not = why_not or str(error)
                    continue
                some_can_be_built = True
                if not short(part, estimate(design, words)):
                    found.append(_candidate(part, design, words, shape, tasks))
    if not found:
        raise ValueError(
            f"no trainer fits {part.name}: {reason or ('it is too small' if some_can_be_built else why_not)}"
        )
    return front(found)


def evaluate(
    part: Part, at: Callable[[float], Workload], targets: int, design: FpgaDesign, arena_words: int
) -> Candidate:
    """One design.

    Raises
    ------
    ValueError
        If it cannot be built, does not fit the part, or one target does not fit its arena.
    """
    check_buildable(design, arena_words)
    refuse(part, estimate(design, arena_words))
    tasks = tiles(at, targets, design.pes, arena_words)
    return _candidate(part, design, arena_words, TaskShape.of(at(targets / tasks)), tasks)


def front(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those that no other equals or beats in both cost and time, the cheapest first."""
    kept: list[Candidate] = []
    for each in sorted(candidates, key=lambda c: (c.cost, c.step_s, c.resources.lut)):
        if not kept or each.step_s < kept[-1].step_s:
            kept.append(each)
    return kept


def _candidate(part: Part, design: FpgaDesign, arena_words: int, shape: TaskShape, tasks: int) -> Candidate:
    needs = estimate(design, arena_words)
    return Candidate(
        design=design,
        arena_words=arena_words,
        resources=needs,
        cost=max(needs.of(part).values()),
        tasks=tasks,
        step_s=tasks * task_seconds(shape, design),
    )


def _arenas(
    part: Part, at: Callable[[float], Workload], targets: int, pes: int
) -> tuple[dict[int, int], str]:
    """Of each number of tasks the smallest arena; the reason where there is none."""
    found: dict[int, int] = {}
    why = ""
    for words in arena_sizes(part, pes):
        try:
            found.setdefault(tiles(at, targets, pes, words), words)
        except ValueError as error:
            why = str(error)
        if 1 in found:
            break
    return found, "" if found else why
