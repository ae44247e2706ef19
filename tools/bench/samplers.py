"""Comparison of samplers by rows read, time per step and accuracy.

    python tools/bench/samplers.py rows --data synthetic:products-s --steps 12 neighbor labor
    python tools/bench/samplers.py train --data cora.npz --seeds 3 ladies,layer_size=512 model.kind=gcn

A sampler is written as its kind and settings, such as `labor,iterations=1`. Words with a dot are settings of
the run. `rows` samples the same steps with each sampler in turn, and prints means per step. `train` trains
with each sampler and seed, and prints the test metric at the best validation metric and the mean of the last
three evaluations.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

from hyrt.api import train
from hyrt.config import apply_overrides, build_config
from hyrt.graph import open_graph
from hyrt.graph.graph import Graph
from hyrt.predict.dataset_sizes import generated_sizes
from hyrt.runtime.workers import Workers
from hyrt.telemetry.events import EvaluationFinished
from hyrt.training.setup import build_sampler


def overrides(sampler: str) -> list[str]:
    """Convert a sampler written as `kind,key=value,...` to settings."""
    kind, *settings = sampler.split(",")
    return [f"sampler.kind={kind}", *(f"sampler.{each.replace('+', ',')}" for each in settings)]


def print_rows(graph: Graph, samplers: list[str], settings: list[str], steps: int) -> None:
    """Print the mean sizes and times of the same steps with each sampler, and the expected sizes."""
    targets = graph.split("train")
    degrees = generated_sizes(graph.name).degrees if graph.name.startswith("synthetic:") else None
    samplers_by_config, measured = [], []
    for sampler in samplers:
        config = build_config(apply_overrides({}, [*overrides(sampler), *settings]))
        samplers_by_config.append((config, build_sampler(config, graph, targets)))
        measured.append([])
    with Workers(1, "bench") as workers:
        for step in range(-1, steps):
            for index, (config, sampler) in enumerate(samplers_by_config):
                units = sampler.units(max(step, 0))
                started = time.perf_counter()
                batch = sampler.sample(max(step, 0), units, workers, in_place=False)
                spent = time.perf_counter() - started
                sizes = config.sampler.batch_sizes(batch, len(units))
                batch.release()
                # Skip the first round, which compiles kernels.
                if step >= 0:
                    measured[index].append([1e3 * spent, *sizes.vertices, *sizes.edges])
    for name, (config, _), each in zip(samplers, samplers_by_config, measured, strict=True):
        milliseconds, *sizes = (statistics.fmean(column) for column in zip(*each, strict=True))
        layers = config.model.layers
        line: dict[str, Any] = {"sampler": name, "sample_ms": round(milliseconds, 1)}
        line["vertices"] = [round(size) for size in sizes[: layers + 1]]
        line["edges"] = [round(size) for size in sizes[layers + 1 :]]
        if degrees is not None:
            units = config.sampler.units_per_step(config.data.batch_size)
            expected = config.sampler.expected_sizes(
                degrees, layers=layers, num_targets=len(targets), units=units
            )
            if expected is not None:
                line["expected_vertices"] = [round(size) for size in expected.vertices]
                line["expected_edges"] = [round(size) for size in expected.edges]
        print(json.dumps(line), flush=True)


def print_metrics(graph: Graph, samplers: list[str], settings: list[str], seeds: int) -> None:
    """Print the metrics of runs that differ only in the sampler."""
    for seed in range(seeds):
        for name in samplers:
            config = build_config(apply_overrides({}, [*overrides(name), *settings, f"seed={seed}"]))
            evaluations: list[EvaluationFinished] = []

            def on_event(event: Any, evaluations: list[EvaluationFinished] = evaluations) -> None:
                if isinstance(event, EvaluationFinished):
                    evaluations.append(event)

            result = train(graph, config=config, emit=on_event)
            metric = "roc_auc" if "roc_auc" in result.metrics["test"] else "accuracy"
            last = [each.metrics["test"][metric] for each in evaluations if each.metrics.get("test")]
            line = {
                "sampler": name,
                "seed": seed,
                "best": round(result.metrics["test"][metric], 4),
                "last": round(statistics.fmean(last[-3:]), 4),
                "evaluations": len(evaluations),
            }
            print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["rows", "train"])
    parser.add_argument("words", nargs="+", help="samplers, and settings of the run")
    parser.add_argument("--data", required=True, help="the dataset")
    parser.add_argument("--steps", type=int, default=12, help="steps that `rows` samples")
    parser.add_argument("--seeds", type=int, default=3, help="runs of `train` per sampler")
    options = parser.parse_intermixed_args()
    samplers = [word for word in options.words if "." not in word]
    settings = [word for word in options.words if "." in word]
    graph = open_graph(options.data, normalize=build_config(apply_overrides({}, settings)).data.normalize)
    if options.what == "rows":
        print_rows(graph, samplers, settings, options.steps)
    else:
        print_metrics(graph, samplers, settings, options.seeds)


if __name__ == "__main__":
    main()
