"""CPU and OpenCL together against each alone, over static splits, on the host's cores.

Each trainer has one thread (one compute unit). Runs of the same steps from the same weights take turns: cpu alone, opencl
alone, cpu alone with as many threads as there are trainers, and both together with several splits around the one that
the single rates suggest. Printed: median ms a step over the rounds, the best split and its ratio to the better single
trainer, with loss and accuracy of the same steps beside, which no split may change.

    python tools/bench/hybrid.py --data data --workload products-s --table hybrid.md
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peers import KINDS, open_workload

if TYPE_CHECKING:
    from hyrt.graph.graph import Graph


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", default="products-s")
    parser.add_argument(
        "--data", type=Path, help="folder of generated workloads; without it the workload is generated"
    )
    parser.add_argument("--model", choices=list(KINDS), default="sage")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--second", default="opencl:0", help="the trainer beside the CPU")
    parser.add_argument("--batch", type=int, default=1024, help="targets of a step")
    parser.add_argument("--steps", type=int, default=40, help="steps of a run that count")
    parser.add_argument("--warm", type=int, default=10, help="steps before them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--shares", type=float, nargs="*", help="shares of the second trainer; by the single rates if none"
    )
    parser.add_argument("--set", nargs="*", default=[], help="further settings, key.path=value")
    parser.add_argument("--json", type=Path, help="append the record to this file")
    parser.add_argument("--table", type=Path, help="write a markdown table here")
    return parser.parse_args()


@dataclass(slots=True)
class Case:
    """One way to train, with what its runs gave."""

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
        """Train the warm steps and those that count, once."""
        from hyrt.config import apply_overrides, build_config
        from hyrt.runtime.events import StepGroup
        from hyrt.runtime.train import Training

        settings = {
            "model": {"kind": KINDS[options.model], "hidden": options.hidden, "layers": 2},
            "sampler": {"fanout": [25, 10]},
            "data": {"batch_size": options.batch},
            # More epochs than are needed: the run is stopped.
            "train": {"epochs": options.warm + options.steps, "lr": 3e-3},
            "evaluate": {"every": 0},
            "devices": self.devices,
            "split": self.split,
            "runtime": {"train_threads": self.threads},
        }
        groups: list[StepGroup] = []

        def hear(event: object) -> None:
            if isinstance(event, StepGroup):
                groups.append(event)

        def is_enough() -> bool:
            return bool(groups) and groups[-1].step >= options.warm + options.steps

        config = build_config(apply_overrides(settings, options.set))
        Training(config, graph, emit=hear, should_stop=is_enough).run()
        counted = [group for group in groups if group.step - len(group.losses) >= options.warm]
        steps = sum(len(group.losses) for group in counted)

        def mean(values: Sequence[float]) -> float:
            return sum(v * len(g.losses) for v, g in zip(values, counted, strict=True)) / steps

        self.ms.append(1e3 * mean([group.step_s for group in counted]))
        self.stage_ms = {
            stage: round(1e3 * mean([group.stage_s[stage] for group in counted]), 2)
            for stage in counted[0].stage_s
        }
        self.loss = mean([group.loss for group in counted])
        self.accuracy = mean([group.train_accuracy for group in counted])


def hybrids(options: argparse.Namespace, cpu: Case, second: Case) -> list[Case]:
    """Both together, at the given shares, or around the one that lets both end at the same time."""
    even = cpu.median_ms / (cpu.median_ms + second.median_ms)
    shares = options.shares or [even + d for d in (-0.12, -0.06, 0.0, 0.06, 0.12)]
    cases = []
    for share in shares:
        targets = min(options.batch - 1, max(1, round(share * options.batch)))
        split = [options.batch - targets, targets]
        cases.append(Case(f"both {split[0]}/{split[1]}", ["cpu:0", options.second], split))
    return cases


def table(cases: Sequence[Case], better: Case) -> str:
    head = "| trainers | threads each | ms a step | of the better single | loss | accuracy |\n|---|---|---|---|---|---|\n"
    return head + "".join(
        f"| {case.name} | {case.threads} | {case.median_ms:.1f} ({min(case.ms):.1f} to {max(case.ms):.1f}) "
        f"| {case.median_ms / better.median_ms:.2f} | {case.loss:.5f} | {case.accuracy:.5f} |\n"
        for case in cases
    )


def main() -> None:
    from hyrt.process import prepare_process

    options = arguments()
    prepare_process()
    from hyrt.graph import open_graph

    graph = (
        open_workload(options.data / options.workload)
        if options.data
        else open_graph(f"synthetic:{options.workload}")
    )
    cpu, second = Case("cpu:0", ["cpu:0"]), Case(options.second, [options.second])
    singles = [cpu, second, Case("cpu:0, all threads", ["cpu:0"], threads=2)]
    cases: list[Case] = []
    for number in range(options.rounds):
        for case in singles:
            case.run(graph, options)
            print(f"round {number}: {case.name}: {case.ms[-1]:.1f} ms {case.stage_ms}", flush=True)
        cases = cases or hybrids(options, cpu, second)
        for case in cases:
            case.run(graph, options)
            print(f"round {number}: {case.name}: {case.ms[-1]:.1f} ms {case.stage_ms}", flush=True)
    better = min((cpu, second), key=lambda case: case.median_ms)
    best = min(cases, key=lambda case: case.median_ms)
    text = table([*singles, *cases], better)
    ratio = best.median_ms / better.median_ms
    print(text)
    print(
        f"best split {best.split}: {ratio:.3f} of {better.name} alone; load average {os.getloadavg()[0]:.1f}"
    )
    if options.table:
        options.table.write_text(text)
    if options.json:
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
        with options.json.open("a") as out:
            out.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
