"""Training on CPU and OpenCL together, with several static splits, compared with each alone.

Each trainer has one thread (one compute unit) of the host. Runs of the same steps from the same weights
alternate: cpu alone, opencl alone, cpu alone with as many threads as there are trainers, and both together,
with several splits around the one that follows from the single rates. The tool prints the median ms per step
over the rounds, the best split and its ratio to the better single trainer, and loss and accuracy, which the
split must not change.

    python tools/bench/hybrid.py --data data --workload products-s --table hybrid.md
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from timed_runs import (
    BATCH,
    KINDS,
    add_second_device,
    append_records,
    make_parser,
    open_workload,
    prepared,
    settings,
    show,
    stage_ms,
    step_mean,
    timed_run,
)

if TYPE_CHECKING:
    from hyrt.graph.graph import Graph


def arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--workload", default="products-s")
    parser.add_argument(
        "--data",
        type=Path,
        help="folder of generated workloads; by default the workload is generated in memory",
    )
    parser.add_argument("--model", choices=list(KINDS), default="sage")
    add_second_device(parser, steps=40)
    parser.add_argument("--batch", type=int, default=BATCH, help="targets per step")
    parser.add_argument("--warm", type=int, default=10, help="number of warm-up steps")
    parser.add_argument(
        "--shares",
        type=float,
        nargs="*",
        help="shares of the second trainer; derived from the single rates by default",
    )
    parser.add_argument("--set", nargs="*", default=[], help="further settings, key.path=value")
    parser.add_argument("--json", type=Path, help="append the record to this file")
    return parser.parse_args()


@dataclass(slots=True)
class HybridCase:
    """Configuration of devices, and the results of its runs."""

    name: str
    devices: list[str]
    split: list[int] | None = None
    threads: int = 1
    ms: list[float] = field(default_factory=list)
    stage_ms: dict[str, float] = field(default_factory=dict)
    loss: float = 0.0
    accuracy: float = 0.0

    @property
    def median_ms(self) -> float:
        return statistics.median(self.ms)

    def run(self, graph: Graph, options: argparse.Namespace) -> None:
        """Run the warm-up steps and the measured steps once."""
        from hyrt.config import apply_overrides, build_config

        steps = options.warm + options.steps
        run_settings = settings(
            KINDS[options.model],
            # This is an upper bound on the number of epochs, because the run is stopped.
            epochs=steps,
            hidden=options.hidden,
            batch=options.batch,
            devices=self.devices,
            split=self.split,
            runtime={"train_threads": self.threads},
        )
        run = timed_run(build_config(apply_overrides(run_settings, options.set)), graph, steps=steps)
        counted = [group for group in run.groups if group.step - len(group.losses) >= options.warm]
        self.ms.append(1e3 * step_mean(counted, lambda group: group.step_s))
        self.stage_ms = stage_ms(counted)
        self.loss = step_mean(counted, lambda group: group.loss)
        self.accuracy = step_mean(counted, lambda group: group.training_metrics["accuracy"])


def hybrids(options: argparse.Namespace, cpu: HybridCase, second: HybridCase) -> list[HybridCase]:
    """Return the cases with both devices, at the given shares or around the balanced ones."""
    even = cpu.median_ms / (cpu.median_ms + second.median_ms)
    shares = options.shares or [even + d for d in (-0.12, -0.06, 0.0, 0.06, 0.12)]
    cases = []
    for share in shares:
        targets = min(options.batch - 1, max(1, round(share * options.batch)))
        split = [options.batch - targets, targets]
        cases.append(HybridCase(f"both {split[0]}/{split[1]}", ["cpu:0", options.second], split))
    return cases


def table(cases: Sequence[HybridCase], better: HybridCase) -> str:
    lines = [
        "| trainers | threads each | ms a step | of the better single | loss | accuracy |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {case.name} | {case.threads} | {case.median_ms:.1f} ({min(case.ms):.1f} to {max(case.ms):.1f}) "
        f"| {case.median_ms / better.median_ms:.2f} | {case.loss:.5f} | {case.accuracy:.5f} |"
        for case in cases
    ]
    return "\n".join(lines)


def main() -> None:
    options = arguments()
    prepared()
    from hyrt.graph import open_graph

    graph = (
        open_workload(options.data / options.workload)
        if options.data
        else open_graph(f"synthetic:{options.workload}")
    )
    cpu, second = HybridCase("cpu:0", ["cpu:0"]), HybridCase(options.second, [options.second])
    singles = [cpu, second, HybridCase("cpu:0, all threads", ["cpu:0"], threads=2)]
    cases: list[HybridCase] = []

    def take_turns(number: int, turns: Sequence[HybridCase]) -> None:
        for case in turns:
            case.run(graph, options)
            print(f"round {number}: {case.name}: {case.ms[-1]:.1f} ms {case.stage_ms}", flush=True)

    for number in range(options.rounds):
        take_turns(number, singles)
        cases = cases or hybrids(options, cpu, second)
        take_turns(number, cases)
    better = min((cpu, second), key=lambda case: case.median_ms)
    best = min(cases, key=lambda case: case.median_ms)
    ratio = best.median_ms / better.median_ms
    show(table([*singles, *cases], better), options.table)
    print(
        f"best split {best.split}: {ratio:.3f} of {better.name} alone; load average {os.getloadavg()[0]:.1f}"
    )
    record: dict[str, Any] = {
        "workload": options.workload,
        "model": options.model,
        "hidden": options.hidden,
        "batch": options.batch,
        "ratio": round(ratio, 4),
        "best_split": best.split,
        "cases": [
            {
                "name": case.name,
                "threads": case.threads,
                "ms": [round(ms, 2) for ms in case.ms],
                "stage_ms": case.stage_ms,
                "loss": round(case.loss, 6),
                "accuracy": round(case.accuracy, 6),
            }
            for case in [*singles, *cases]
        ],
    }
    append_records(options.json, [record])


if __name__ == "__main__":
    main()
