"""Compare the resource manager's policies on random machines and workloads, in simulation.

    python tools/policies/compare.py --cases 500 --processes 2

For each case, the tool searches the best static assignment, and simulates it and each policy, from a random
start, with the same 5 % noise. It prints for each policy:

settled     throughput in steps 60 to 159, relative to the best assignment
at step 30  throughput of the assignment of step 30, relative to the best assignment, without noise
still       cases in which no later step differs from step 30 by more than 5 % in targets or in speed
recovered   throughput of the assignment 40 steps after a trainer became half as fast, relative to the best
assignment at that time
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from best_static import best_static
from hyrt_perfmodel.policy import Assignment
from hyrt_perfmodel.prediction.simulate import Perturbation, Simulation, simulate
from policy_cases import DELAY, PolicyCase, random_case

from hyrt.balance.registry import POLICIES, create_policy

NOISE = 0.05
STEPS, SETTLED, STILL = 160, 60, 30
CHANGE, RECOVERED = 60, 100


@dataclass(frozen=True)
class PolicyOutcome:
    """Result of a policy on one case. Ratios are throughputs relative to the best static assignment."""

    seed: int
    policy: str
    start: float
    settled: float
    at_step_30: float
    moved: float
    slower: float
    decisions: int
    recovered: float


def outcomes(seed: int, names: Sequence[str]) -> list[PolicyOutcome]:
    """Run every policy on the case of a seed."""
    case = random_case(seed)
    _, best = best_static(case)
    trainer = _changed_trainer(case, best)
    slow = replace(case, slow=(trainer, 0.5))
    _, slow_best = best_static(slow, [best])
    runs = {name: _run(case, name, ()) for name in names}
    change = (Perturbation(step=CHANGE, trainer=trainer, factor=0.5),)
    slow_runs = {name: _run(case, name, change) for name in names}
    # If a policy has found a better assignment than the search, use it as the best one.
    last = [run.assignments[-1] for run in runs.values()]
    best_s = min(case.simulated_s(assignment) for assignment in (best, *last))
    noisy_s = min(_noisy_s(case, assignment) for assignment in (best, *last))
    slow_s = min(
        slow.simulated_s(assignment)
        for assignment in (slow_best, *(run.assignments[-1] for run in slow_runs.values()))
    )
    policy_outcomes = []
    for name, run in runs.items():
        known = {assignment: case.simulated_s(assignment) for assignment in set(run.assignments[STILL:])}
        at_30 = run.assignments[STILL]
        later = run.assignments[STILL:]
        policy_outcomes.append(
            PolicyOutcome(
                seed=seed,
                policy=name,
                start=best_s / case.simulated_s(case.start),
                settled=noisy_s / run.settled_iteration_s(SETTLED, STEPS),
                at_step_30=best_s / known[at_30],
                moved=max(_moved_fraction(at_30, assignment) for assignment in later),
                slower=max(abs(known[assignment] / known[at_30] - 1) for assignment in later),
                decisions=len(run.decisions),
                recovered=slow_s / slow.simulated_s(slow_runs[name].assignments[RECOVERED]),
            )
        )
    return policy_outcomes


def _run(case: PolicyCase, name: str, changes: Sequence[Perturbation]) -> Simulation:
    return simulate(
        case.platform,
        case.training,
        start=case.start,
        policy=create_policy(name),
        iterations=STEPS,
        depth=DELAY,
        noise=NOISE,
        seed=case.seed,
        limits=case.limits,
        changes=changes,
    )


def _noisy_s(case: PolicyCase, assignment: Assignment) -> float:
    run = simulate(
        case.platform,
        case.training,
        start=assignment,
        iterations=STEPS,
        depth=DELAY,
        noise=NOISE,
        seed=case.seed,
        limits=case.limits,
    )
    return run.settled_iteration_s(SETTLED, STEPS)


def _changed_trainer(case: PolicyCase, best: Assignment) -> int:
    """Choose a trainer that has many targets in the best assignment."""
    busy = [index for index, units in enumerate(best.split) if units * 3 * len(best.split) >= sum(best.split)]
    return busy[case.seed % len(busy)]


def _moved_fraction(before: Assignment, after: Assignment) -> float:
    """Return the fraction of targets that changed trainers."""
    pairs = zip(before.split, after.split, strict=True)
    return sum(abs(old - other) for old, other in pairs) / 2 / sum(before.split)


def _all_outcomes(seeds: range, names: Sequence[str], processes: int) -> list[PolicyOutcome]:
    with ProcessPoolExecutor(processes) as pool:
        outcomes_by_case = pool.map(outcomes, seeds, [names] * len(seeds), chunksize=4)
        return [outcome for case_outcomes in outcomes_by_case for outcome in case_outcomes]


def table(all_outcomes: Sequence[PolicyOutcome]) -> str:
    """Format the results of each policy as Markdown."""
    lines = [
        "| policy | cases | settled: median | worst | 1st centile | cases < 0.90 | at step 30: median "
        "| worst | still after step 30 | most moved | recovered in 40: median | worst | cases < 0.90 "
        "| decisions |",
        "| --- " * 14 + "|",
    ]
    for name in dict.fromkeys(outcome.policy for outcome in all_outcomes):
        policy_outcomes = [outcome for outcome in all_outcomes if outcome.policy == name]
        settled = np.array([outcome.settled for outcome in policy_outcomes])
        at_30 = np.array([outcome.at_step_30 for outcome in policy_outcomes])
        recovered = np.array([outcome.recovered for outcome in policy_outcomes])
        still = np.mean([outcome.moved <= 0.05 and outcome.slower <= 0.05 for outcome in policy_outcomes])
        cells = [
            name,
            f"{len(policy_outcomes)}",
            f"{np.median(settled):.3f}",
            f"{settled.min():.3f}",
            f"{np.quantile(settled, 0.01):.3f}",
            f"{int((settled < 0.9).sum())}",
            f"{np.median(at_30):.3f}",
            f"{at_30.min():.3f}",
            f"{still:.3f}",
            f"{max(outcome.moved for outcome in policy_outcomes):.3f}",
            f"{np.median(recovered):.3f}",
            f"{recovered.min():.3f}",
            f"{int((recovered < 0.9).sum())}",
            f"{np.mean([outcome.decisions for outcome in policy_outcomes]):.1f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="seed of the first case")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--worst", type=int, default=5, help="number of worst cases to print")
    parser.add_argument("--json", type=Path, help="write every outcome to this file")
    options = parser.parse_args()
    started = time.perf_counter()
    seeds = range(options.first, options.first + options.cases)
    all_outcomes = _all_outcomes(seeds, options.policies.split(","), options.processes)
    print(table(all_outcomes))
    for name in options.policies.split(","):
        policy_outcomes = [outcome for outcome in all_outcomes if outcome.policy == name]
        for key in ("settled", "recovered"):
            worst = sorted(policy_outcomes, key=lambda outcome, key=key: getattr(outcome, key))[
                : options.worst
            ]
            print(f"worst {key} of {name}:", *(f"{each.seed}: {getattr(each, key):.3f}" for each in worst))
    print(f"{options.cases} cases in {time.perf_counter() - started:.0f} s")
    if options.json:
        options.json.write_text(json.dumps([asdict(outcome) for outcome in all_outcomes], indent=1))


if __name__ == "__main__":
    main()
