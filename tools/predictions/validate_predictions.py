"""Predictions against measured runs on this machine, after `hyrt calibrate`.

The configurations below were fixed before anything was measured. For each: sample a few mini-batches, predict
the time of a step, train for a few seconds, compare. Prints a markdown table with mean and worst absolute
error; the exit code is 1 where the mean is above 10 % or the worst above 20 %.

    python tools/predictions/validate_predictions.py --data data --table predictions.md
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hyrt.machine.process_settings import prepare_process

if TYPE_CHECKING:
    from hyrt_perfmodel.platforms.platform import Platform


@dataclass(frozen=True, slots=True)
class PredictionCase:
    graph: str
    devices: tuple[str, ...]
    kind: str
    hidden: int
    fanout: tuple[int, ...]
    batch: int
    share: float = 1.0
    """The share of the step that the first device gets."""


PRODUCTS, PAPERS, COMMUNITY = "synthetic:products-s", "synthetic:papers-s", "synthetic:community"
CPU, OPENCL, BOTH = ("cpu",), ("opencl",), ("cpu", "opencl")
CASES = (
    PredictionCase(PRODUCTS, CPU, "graphsage", 256, (25, 10), 1024),
    PredictionCase(PRODUCTS, OPENCL, "graphsage", 256, (25, 10), 1024),
    PredictionCase(PRODUCTS, BOTH, "graphsage", 256, (25, 10), 1024, 0.40),
    PredictionCase(PRODUCTS, CPU, "gcn", 256, (25, 10), 1024),
    PredictionCase(PRODUCTS, OPENCL, "gcn", 128, (10, 10), 2048),
    PredictionCase(PRODUCTS, BOTH, "gcn", 512, (25, 10), 1024, 0.44),
    PredictionCase(PRODUCTS, CPU, "gat", 64, (10, 5), 512),
    PredictionCase(PAPERS, CPU, "graphsage", 128, (10, 5, 5), 512),
    PredictionCase(PAPERS, OPENCL, "graphsage", 256, (15, 10), 1024),
    PredictionCase(PAPERS, BOTH, "gcn", 256, (10, 10), 1024, 0.42),
    PredictionCase(COMMUNITY, CPU, "gin", 128, (10, 5), 1024),
    PredictionCase(COMMUNITY, OPENCL, "gin", 64, (25, 10), 512),
    PredictionCase(COMMUNITY, BOTH, "graphsage", 128, (25, 10), 2048, 0.40),
    PredictionCase(COMMUNITY, BOTH, "gin", 256, (10, 10), 1024, 0.45),
    PredictionCase("tolokers.npz", CPU, "graphsage", 512, (10, 10), 1024),
    PredictionCase("tolokers.npz", OPENCL, "gcn", 256, (10, 10), 512),
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the .npz datasets")
    parser.add_argument("--warm", type=int, default=10, help="steps of a run before those that count")
    parser.add_argument("--steps", type=int, default=60, help="steps that count, at least")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each case; the middle one counts")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the cases to run, from 1")
    parser.add_argument("--parts", action="store_true", help="print what bounds each prediction")
    parser.add_argument("--table", type=Path, help="write the table here, too")
    return parser.parse_args()


def with_devices(platform: Platform, names: tuple[str, ...]) -> Platform:
    """The platform with these trainers only."""
    kinds = [name.partition(":")[0] for name in names]
    return replace(
        platform,
        host=replace(platform.host, trains="cpu" in kinds),
        accelerators=tuple(a for a in platform.accelerators if a.kind in kinds),
    )


def main() -> int:
    options = arguments()
    prepare_process()
    from hyrt_perfmodel.assignment import Assignment, Threads
    from hyrt_perfmodel.prediction.stage_times import iteration_s, stage_times

    from hyrt.config import build_config
    from hyrt.device.names import split_by_shares
    from hyrt.graph.source import open_graph
    from hyrt.predict.calibrate.short_run import short_run
    from hyrt.predict.calibrate.store import kept
    from hyrt.predict.workload import sampled_workload

    calibration, stale = kept()
    if calibration is None or stale:
        print("; ".join(stale))
        return 2
    lines = [
        f"{calibration.machine.processor}, {calibration.machine.cores} cores, "
        f"calibrated {calibration.date}.\n",
        "| graph | devices | model | hidden | fan-out | batch | predicted ms "
        "| stages ms (sample, load, propagate) | measured ms | stages ms | error |",
        "|---|---|---|---:|---|---:|---:|---|---:|---|---:|",
    ]
    errors = []
    opened = ("", None)
    for number, case in enumerate(CASES, 1):
        if options.only and number not in options.only:
            continue
        source = str(options.data / case.graph) if case.graph.endswith(".npz") else case.graph
        if opened[0] != source:
            opened = (source, open_graph(source))
        graph = opened[1]
        split = split_by_shares(case.batch, [case.share, 1 - case.share][: len(case.devices)])
        config = build_config(
            {
                "model": {"kind": case.kind, "hidden": case.hidden, "layers": len(case.fanout)},
                "sampler": {"fanout": list(case.fanout)},
                "data": {"batch_size": case.batch},
                "devices": list(case.devices),
                "split": split,
            }
        )
        training = sampled_workload(config, graph)
        # The machine is not always equally fast: of several runs the middle one.
        runs = [
            short_run(config, graph, warm=options.warm, steps=options.steps) for _ in range(options.rounds)
        ]
        run = sorted(runs, key=lambda each: each.iteration_s)[len(runs) // 2]
        platform = with_devices(calibration.platform, case.devices)
        threads = Threads(**run.threads)
        times = stage_times(platform, training, Assignment(split=tuple(split), threads=threads))
        predicted = iteration_s(times, platform.host)
        errors.append(predicted / run.iteration_s - 1)
        stages = " ".join(
            f"{1e3 * s:.1f}" for s in (times.sample_s, times.load_s, times.propagate_s - times.synchronize_s)
        )
        if options.parts:
            print(
                f"cores {1e3 * times.core_s:.1f} ms, "
                f"propagate and synchronize {1e3 * times.propagate_s:.1f} ms"
            )
        seen = " ".join(f"{1e3 * run.stage_s[s]:.1f}" for s in ("sample", "load", "propagate", "synchronize"))
        lines.append(
            f"| {case.graph} | {'+'.join(case.devices)} | {case.kind} | {case.hidden} "
            f"| {','.join(map(str, case.fanout))} | {case.batch} | {1e3 * predicted:.1f} | {stages} "
            f"| {1e3 * run.iteration_s:.1f} | {seen} | {errors[-1]:+.1%} |"
        )
        print(lines[-1], flush=True)
    mean, worst = statistics.fmean(map(abs, errors)), max(map(abs, errors))
    lines.append(f"\nMean absolute error {mean:.1%} (target 10 %), worst {worst:.1%} (target 20 %).")
    print("\n".join(lines))
    if options.table:
        options.table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return int(mean > 0.10 or worst > 0.20)


if __name__ == "__main__":
    raise SystemExit(main())
