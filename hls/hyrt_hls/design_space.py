"""Design space exploration: Pareto front of resources and predicted time over all trainers that fit a part.

The search covers n, the shape of the array (m = rows x columns) and the size of the arena. A larger arena
only reduces the number of tasks per mini-batch, so only the smallest arena for each number of tasks is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from hyrt_perfmodel.fpga_cycles import TaskShape, task_seconds
from hyrt_perfmodel.fpga_design import FpgaDesign
from hyrt_perfmodel.workload import Workload

from hyrt_hls.arena_limits import num_tasks
from hyrt_hls.fpga_part import FpgaPart
from hyrt_hls.resources import (
    Resources,
    arena_sizes,
    check_buildable,
    check_fits,
    estimate_resources,
    find_shortages,
)

_PES = (1, 2, 4, 8, 16, 32)
_MAC_ROWS = (4, 8, 16, 32, 64, 128)
_MAC_COLS = (16, 32, 48, 64, 96, 128)
PAPER_DESIGN = (8, 2048)
"""Values of n and m in Table IV of HyScale-GNN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Trainer design that fits a part, with `arena_words` words per bank."""

    design: FpgaDesign
    arena_words: int
    resources: Resources
    cost: float
    """Fraction of the part's scarcest resource that the design uses."""
    tasks: int
    """Number of tasks per mini-batch."""
    step_s: float
    """Predicted time of all tasks of a mini-batch on the card, without the PCIe transfer."""


def explore_designs(
    part: FpgaPart, workload_for: Callable[[float], Workload], targets: int, base: FpgaDesign
) -> list[Candidate]:
    """Return the candidates that are Pareto-optimal in cost and time, cheapest first.

    `workload_for` returns the workload of a mini-batch with the given number of targets; `base` contains the
    parameters that are not searched (FIFO depth, clock, memory bandwidth, assumed values). Raises ValueError
    if no design fits the part and the workload; the message gives the reason for the largest arena.
    """
    candidates: list[Candidate] = []
    reason = build_problem = ""
    buildable = False
    for pes in _PES:
        arenas, arena_problem = _smallest_arenas(part, workload_for, targets, pes)
        reason = arena_problem or reason
        for tasks, words in arenas.items():
            shape = TaskShape.from_workload(workload_for(targets / tasks))
            for rows, cols in product(_MAC_ROWS, _MAC_COLS):
                design = replace(base, pes=pes, mac_rows=rows, mac_cols=cols)
                try:
                    check_buildable(design, words)
                except ValueError as error:
                    build_problem = build_problem or str(error)
                    continue
                buildable = True
                if not find_shortages(part, estimate_resources(design, words)):
                    candidates.append(_make_candidate(part, design, words, shape, tasks))
    if not candidates:
        raise ValueError(
            f"no trainer fits {part.name}: {reason or ('it is too small' if buildable else build_problem)}"
        )
    return pareto_front(candidates)


def evaluate_design(
    part: FpgaPart,
    workload_for: Callable[[float], Workload],
    targets: int,
    design: FpgaDesign,
    arena_words: int,
) -> Candidate:
    """Return the candidate for a given design.

    Raises ValueError if it cannot be built, does not fit the part, or a single target does not fit its arena.
    """
    check_buildable(design, arena_words)
    check_fits(part, estimate_resources(design, arena_words))
    tasks = num_tasks(workload_for, targets, design.pes, arena_words)
    return _make_candidate(
        part, design, arena_words, TaskShape.from_workload(workload_for(targets / tasks)), tasks
    )


def pareto_front(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that no other one matches or beats in both cost and time, cheapest first."""
    pareto: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda c: (c.cost, c.step_s, c.resources.lut)):
        if not pareto or candidate.step_s < pareto[-1].step_s:
            pareto.append(candidate)
    return pareto


def _make_candidate(
    part: FpgaPart, design: FpgaDesign, arena_words: int, shape: TaskShape, tasks: int
) -> Candidate:
    resources = estimate_resources(design, arena_words)
    return Candidate(
        design=design,
        arena_words=arena_words,
        resources=resources,
        cost=max(resources.fractions_of(part).values()),
        tasks=tasks,
        step_s=tasks * task_seconds(shape, design),
    )


def _smallest_arenas(
    part: FpgaPart, at: Callable[[float], Workload], targets: int, pes: int
) -> tuple[dict[int, int], str]:
    """Return the smallest arena by number of tasks, and the reason if no arena fits."""
    smallest: dict[int, int] = {}
    reason = ""
    for words in arena_sizes(part, pes):
        try:
            smallest.setdefault(num_tasks(at, targets, pes, words), words)
        except ValueError as error:
            reason = str(error)
        if 1 in smallest:
            break
    return smallest, "" if smallest else reason
