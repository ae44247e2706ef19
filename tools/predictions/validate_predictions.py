"""Comparison of predictions with measured runs on this machine, after `hyrt calibrate`.

Configurations are random with a seed: models, widths, fan-outs, batch sizes, random-walk subgraphs, generated
and real graphs with dense and sparse features, and the calibrated devices (devices on the CPU's cores only
after `hyrt calibrate --all`). For each, the tool samples a few mini-batches, predicts the time of a step,
trains for a few seconds, and compares. It prints a Markdown table with the mean and worst absolute error. The
exit code is 1 if the mean is above 10 % or the worst above 20 %. With `--hetero`, graphs are heterogeneous,
and models are those of `hyrt calibrate --model` that support such graphs.

    python tools/predictions/validate_predictions.py --data data --seed 1 --table predictions.md
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hyrt.runtime.process_setup import prepare_process

if TYPE_CHECKING:
    from hyrt_perfmodel.platform import Platform
    from hyrt_perfmodel.prediction.stage_times import StageTimes

    from hyrt.graph.graph import Graph
    from hyrt.predict.calibrate.trainers import ShortRun

GENERATED = ("synthetic:community", "synthetic:products-s", "synthetic:papers-s", "synthetic:tiny")
REAL = (
    "amazon_photo.npz",
    "citeseer.npz",
    "coauthor_cs.npz",
    "coauthor_physics.npz",
    "cora.npz",
    "github_social.npz",
    "minesweeper.npz",
    "tolokers.npz",
)
HETERO_GRAPHS = (
    "synthetic:hetero",
    "synthetic:hetero,vertices=400k,features=128",
    "synthetic:hetero,vertices=20k",
)
STAGES = ("sample", "load", "propagate", "synchronize")


@dataclass(frozen=True, slots=True)
class PredictionCase:
    """Random configuration of a run."""

    graph: str
    devices: tuple[str, ...]
    settings: dict[str, Any]

    def __str__(self) -> str:
        """Return the table cells that describe the configuration."""
        model, sampler = self.settings["model"], self.settings["sampler"]
        work = f"{','.join(map(str, sampler.get('fanout', ())))} | {self.settings['data']['batch_size']}"
        if sampler["kind"] == "saint":
            work = f"saint {sampler['roots']} x {sampler['walk_length']} | {sampler['units']} subgraphs"
        return f"{self.graph} | {'+'.join(self.devices)} | {model['kind']} | {model['hidden']} | {work}"


def draw(seed: int, count: int, devices: Sequence[str]) -> list[PredictionCase]:
    """Return configurations that depend only on seed, count and devices, sorted by graph."""
    source = random.Random(seed)
    cases = []
    for _ in range(count):
        layers = source.choice((2, 2, 2, 3))
        first, later = source.choice((5, 10, 15, 25)), source.choice((5, 10))
        graph = source.choice(source.choice((GENERATED, REAL)))
        batch, hidden = source.choice((128, 256, 512, 1024, 2048)), source.choice((32, 64, 128, 256))
        kind = source.choice(("graphsage", "gcn", "gin", "gat"))
        walks = {"roots": source.choice((500, 1000, 2000)), "walk_length": source.choice((2, 3, 4))}
        units, is_saint = source.choice((1, 2)), source.random() < 0.25
        if is_saint:
            sampler: dict[str, Any] = {"kind": "saint", **walks, "units": units}
        else:
            sampler = {"kind": "neighbor", "fanout": [first, *[later] * (layers - 1)]}
        model = {"kind": kind, "hidden": hidden, "layers": layers}
        chosen = source.choice(devices).split("+")
        settings = {"model": model, "sampler": sampler, "data": {"batch_size": batch}, "devices": chosen}
        cases.append(PredictionCase(graph, tuple(chosen), settings))
    return sorted(cases, key=lambda case: case.graph)


def draw_hetero(seed: int, count: int, kinds: Sequence[str]) -> list[PredictionCase]:
    """Return configurations on the CPU with heterogeneous graphs and the given kinds, sorted by graph."""
    source = random.Random(seed)
    cases = []
    for _ in range(count):
        layers, first, later = source.choice((2, 2, 3)), source.choice((5, 10, 15)), source.choice((3, 5))
        model = {"kind": source.choice(kinds), "hidden": source.choice((32, 64, 128)), "layers": layers}
        settings = {
            "model": model,
            "sampler": {"kind": "neighbor", "fanout": [first, *[later] * (layers - 1)]},
            "data": {"batch_size": source.choice((128, 256, 512, 1024))},
            "devices": ["cpu"],
        }
        cases.append(PredictionCase(source.choice(HETERO_GRAPHS), ("cpu",), settings))
    return sorted(cases, key=lambda case: case.graph)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the .npz datasets")
    parser.add_argument("--seed", type=int, default=1, help="random seed of the configurations")
    parser.add_argument("--cases", type=int, default=20, help="number of configurations")
    parser.add_argument("--warm", type=int, default=8, help="warm-up steps per run")
    parser.add_argument("--seconds", type=float, default=3.0, help="approximate measured seconds per run")
    parser.add_argument("--rounds", type=int, default=3, help="runs per case; the median counts")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the cases to run, from 1")
    parser.add_argument("--hetero", action="store_true", help="use heterogeneous graphs and their models")
    parser.add_argument("--table", type=Path, help="also write the table to this file")
    return parser.parse_args()


def compare(
    case: PredictionCase, graph: Graph, platform: Platform, options: argparse.Namespace
) -> tuple[float, StageTimes, ShortRun]:
    """Return the predicted seconds per step, the predicted stages, and the median of several runs.

    Both use complete steps: the last step of an epoch, which may be smaller, is excluded.
    """
    from hyrt_perfmodel.prediction.stage_times import iteration_s, stage_times

    from hyrt.config import build_config
    from hyrt.predict.calibrate.trainers import short_run
    from hyrt.predict.predict_run import first_assignment, run_platform
    from hyrt.predict.workload import sampled_workload

    config = build_config(case.settings)
    training = sampled_workload(config, graph)
    part = run_platform(config, platform)
    assignment = first_assignment(config, part, training)
    times = stage_times(part, training, assignment)
    predicted = iteration_s(times, part.host)
    if len(case.devices) > 1:
        config = config.model_copy(update={"split": list(assignment.split)})
    # Use the median of several runs, because the speed of the machine varies.
    steps = max(12, min(400, round(options.seconds / predicted)))
    runs = [short_run(config, graph, warm=options.warm, steps=steps) for _ in range(options.rounds)]
    return predicted, times, sorted(runs, key=lambda each: each.iteration_s)[len(runs) // 2]


def main() -> int:
    options = arguments()
    prepare_process()
    from hyrt_perfmodel.model_workload import HETERO_KINDS

    from hyrt.graph.source import open_graph
    from hyrt.predict.calibrate.store import stored_calibration

    calibration, stale = stored_calibration()
    if calibration is None or stale:
        print("; ".join(stale))
        return 2
    kinds = [accelerator.kind for accelerator in calibration.platform.accelerators]
    devices = ["cpu", "cpu", "cpu", *kinds, *(f"cpu+{kind}" for kind in kinds)]
    lines = [
        f"{calibration.machine.processor}, {calibration.machine.cores} cores, calibrated "
        f"{calibration.date} in {calibration.seconds:.0f} s; seed {options.seed}.\n",
        "| graph | devices | model | hidden | sampled | a step | predicted ms | sample, load, propagate, "
        "synchronize | measured ms | the same stages | error |",
        "|---|---|---|---:|---|---:|---:|---|---:|---|---:|",
    ]
    print("\n".join(lines))
    errors = []
    opened = ("", None)
    cases = draw(options.seed, options.cases, devices)
    if options.hetero:
        kinds = [kind for kind in HETERO_KINDS if kind in calibration.platform.host.models]
        if not kinds:
            print(
                "no model for heterogeneous graphs was measured: run `hyrt calibrate --model "
                f"{','.join(HETERO_KINDS)}`"
            )
            return 2
        cases = draw_hetero(options.seed, options.cases, kinds)
    for number, case in enumerate(cases, 1):
        if options.only and number not in options.only:
            continue
        source = str(options.data / case.graph) if case.graph.endswith(".npz") else case.graph
        if opened[0] != source:
            opened = (source, open_graph(source))
        predicted, times, run = compare(case, opened[1], calibration.platform, options)
        errors.append(predicted / run.iteration_s - 1)
        stage_seconds = (
            times.sample_s,
            times.load_s,
            times.propagate_s - times.synchronize_s,
            times.synchronize_s,
        )
        lines.append(
            f"| {case} | {1e3 * predicted:.1f} | {' '.join(f'{1e3 * s:.1f}' for s in stage_seconds)} "
            f"| {1e3 * run.iteration_s:.1f} | {' '.join(f'{1e3 * run.stage_s[s]:.1f}' for s in STAGES)} "
            f"| {errors[-1]:+.1%} |"
        )
        print(lines[-1], flush=True)
    mean, worst = statistics.fmean(map(abs, errors)), max(map(abs, errors))
    lines.append(f"\nMean absolute error {mean:.1%} (target 10 %), worst {worst:.1%} (target 20 %).")
    print(lines[-1])
    if options.table:
        options.table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return int(mean > 0.10 or worst > 0.20)


if __name__ == "__main__":
    raise SystemExit(main())
