"""CPU time of each stage of a mini-batch step before and after a change, compared with a lower bound.

    python tools/bench/stages.py main .
    python tools/bench/stages.py HEAD~3 . --models graphsage gat --precision bf16 --table stages.md

BEFORE and AFTER are source trees or commits. Each run is a separate process with the code of one of these, on
one thread, with serial stages. The order alternates from round to round. The time of a stage is CPU time of
the thread, which other processes hardly affect: the median over steps, and then over rounds. The lower bound
follows from the single-thread rates of this machine, measured with the second tree.

The tool also prints the number of sampled edges, the mean loss of the last steps, and whether all losses are
bit-equal.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lower_bounds import lower_bounds
from source_tree import environment_of, source_tree
from timed_runs import BATCH, append_records, child_record, make_parser, prepared, settings, show, timed_run

STAGES = ("sample", "load", "propagate")


def arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("before", help="a source tree, or a commit of this repository")
    parser.add_argument("after", help="a source tree, or a commit of this repository")
    parser.add_argument("--source", default="synthetic:products-s", help="any dataset that hyrt opens")
    parser.add_argument("--models", nargs="+", default=["graphsage", "gcn", "gin", "gat"])
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of runs per model")
    parser.add_argument("--steps", type=int, default=40, help="steps per run, including eight warm-up steps")
    parser.add_argument("--json", type=Path, help="append each run to this file")
    parser.add_argument("--table", type=Path, help="also write the result to this file, as Markdown")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_child(options: argparse.Namespace) -> None:
    """Run a model once and print one JSON line."""
    prepared()
    from hyrt.config import build_config
    from hyrt.graph import open_graph
    from hyrt.graph.row_source import DenseFeatures
    from hyrt.telemetry.hooks import Hook

    class CpuTimes(Hook):
        """Hook that records the CPU time of each stage call."""

        def __init__(self) -> None:
            self.ms: dict[str, list[float]] = {stage: [] for stage in STAGES}

        def wrap_call(self, stage: str, site: Any, work: Callable[[], Any]) -> Any:
            started = time.thread_time()
            result = work()
            if stage in self.ms:
                self.ms[stage].append(1e3 * (time.thread_time() - started))
            return result

    graph = open_graph(options.source)
    config = build_config(
        settings(
            options.child,
            epochs=max(1, -(-options.steps * BATCH // len(graph.split("train")))),
            model={"heads": 4},
            train={"precision": options.precision},
            devices=["cpu:0"],
            balance={"policy": "static", "predict": False},
            runtime={"pipelined": False, "sample_threads": 1, "load_threads": 1, "train_threads": 1},
        )
    )
    times = CpuTimes()
    run = timed_run(config, graph, steps=options.steps, hooks=[times])
    losses = [loss for group in run.groups for loss in group.losses][: options.steps]
    record = {
        "model": options.child,
        "cpu_ms": {stage: statistics.median(ms[8 : options.steps]) for stage, ms in times.ms.items()},
        "edges": round(sum(group.mteps * 1e6 * group.step_s * len(group.losses) for group in run.groups)),
        "losses": losses,
        "bound_ms": (
            lower_bounds(graph, config, threads=1)
            if isinstance(graph.features, DenseFeatures) and options.child in ("graphsage", "gcn")
            else {}
        ),
    }
    print(json.dumps(record), flush=True)


def rows(model: str, runs: Mapping[str, list[dict[str, Any]]]) -> list[str]:
    """Return the table lines of one model, for its stages and their sum."""
    floor = runs["after"][-1]["bound_ms"]

    def median(side: str, stages: tuple[str, ...]) -> float:
        return statistics.median(sum(run["cpu_ms"][stage] for stage in stages) for run in runs[side])

    table_lines = []
    for name, stages in (*((stage, (stage,)) for stage in STAGES), ("step", STAGES)):
        before, after = median("before", stages), median("after", stages)
        bound = floor.get("serial" if name == "step" else name)
        bound_cells = "- | -" if bound is None else f"{bound:.1f} | {after / bound:.2f}"
        table_lines.append(
            f"| {model} | {name} | {before:.1f} | {after:.1f} | {before / after:.2f} | {bound_cells} |"
        )
    return table_lines


def equality(model: str, runs: Mapping[str, list[dict[str, Any]]]) -> str:
    """Return a sentence on whether both trees computed the same results."""
    before, after = runs["before"][0], runs["after"][0]
    pairs = list(zip(before["losses"], after["losses"], strict=True))
    max_difference = max(abs(a - b) / abs(a) for a, b in pairs)
    edges = "equal" if before["edges"] == after["edges"] else "DIFFERENT"
    losses = "equal in every bit" if not max_difference else f"at most {max_difference:.1e} apart, relatively"
    last = [statistics.fmean(run["losses"][-10:]) for run in (before, after)]
    return (
        f"- {model}: sampled edges {edges}, losses of {len(pairs)} steps {losses}; "
        f"the mean of the last ten {last[0]:.6f} before and {last[1]:.6f} after."
    )


def main() -> None:
    options = arguments()
    if options.child:
        run_child(options)
        return
    lines = [
        "| model | stage | before, CPU ms | after, CPU ms | before / after | floor ms | after / floor |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    notes = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hyrt-stages-")))
        sides = {
            side: environment_of(stack.enter_context(source_tree(source)), folder / side)
            for side, source in (("before", options.before), ("after", options.after))
        }
        for model in options.models:
            runs: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
            # Discard the first round, which compiles kernels.
            for number in range(options.rounds + 1):
                for side in sorted(sides, reverse=number % 2 == 0):
                    command = [sys.executable, __file__, *sys.argv[1:], "--child", model]
                    record = child_record(command, f"{side} ({model})", sides[side])
                    if number:
                        runs[side].append(record)
                        append_records(options.json, [{"side": side, **record}])
            lines += rows(model, runs)
            notes.append(equality(model, runs))
    show("\n".join([*lines, "", *notes]), options.table)


if __name__ == "__main__":
    main()
