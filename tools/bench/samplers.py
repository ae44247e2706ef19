"""Samplers beside each other: the rows that they read, the time a step takes, and what is learned from them.

    python tools/bench/samplers.py rows --data synthetic:products-s --steps 12 neighbor labor
    python tools/bench/samplers.py train --data cora.npz --seeds 3 ladies,layer_size=512 model.kind=gcn

A sampler is its kind and settings, as in `labor,iterations=1`; words with a point are settings of the run.
`rows` samples the same steps with all of them in turn, and prints means a step; `train` trains with one after
the other, for each seed, and prints the metric of the test vertices where it is best on the validation
vertices, and the mean of the last three evaluations.
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
from hyrt.machine.workers import Workers
from hyrt.observe.events import Evaluated
from hyrt.predict.dataset_sizes import generated_sizes
from hyrt.training.setup import build_sampler


def overrides(sampler: str) -> list[str]:
    """The settings of a sampler written as `kind,key=value,...`."""
    kind, *settings = sampler.split(",")
    return [f"sampler.kind={kind}", *(f"sampler.{each.replace('+', ',')}" for each in settings)]


def rows(graph: Graph, samplers: list[str], given: list[str], steps: int) -> None:
    """Mean sizes and times of the same steps, sampled in turn, and what is expected."""
    targets = graph.split("train")
    degrees = generated_sizes(graph.name).degrees if graph.name.startswith("synthetic:") else None
    made, found = [], []
    for sampler in samplers:
        config = build_config(apply_overrides({}, [*overrides(sampler), *given]))
        made.append((config, build_sampler(config, graph, targets)))
        found.append([])
    with Workers(1, "bench") as workers:
        for step in range(-1, steps):
            for at, (config, sampler) in enumerate(made):
                units = sampler.units(max(step, 0))
                started = time.perf_counter()
                batch = sampler.sample(max(step, 0), units, workers, in_place=False)
                spent = time.perf_counter() - started
                sizes = config.sampler.sizes_of(batch, len(units))
                batch.release()
                # The first round compiles.
                if step >= 0:
                    found[at].append([1e3 * spent, *sizes.vertices, *sizes.edges])
    for name, (config, _), each in zip(samplers, made, found, strict=True):
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


def learned(graph: Graph, samplers: list[str], given: list[str], seeds: int) -> None:
    """The metrics of runs that differ in their sampler alone."""
    for seed in range(seeds):
        for name in samplers:
            config = build_config(apply_overrides({}, [*overrides(name), *given, f"seed={seed}"]))
            heard: list[Evaluated] = []

            def hear(event: Any, heard: list[Evaluated] = heard) -> None:
                if isinstance(event, Evaluated):
                    heard.append(event)

            result = train(graph, config=config, emit=hear)
            metric = "roc_auc" if "roc_auc" in result.metrics["test"] else "accuracy"
            last = [each.metrics["test"][metric] for each in heard if each.metrics.get("test")]
            line = {
                "sampler": name,
                "seed": seed,
                "best": round(result.metrics["test"][metric], 4),
                "last": round(statistics.fmean(last[-3:]), 4),
                "evaluations": len(heard),
            }
            print(json.dumps(line), flush=True)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    asked.add_argument("what", choices=["rows", "train"])
    asked.add_argument("words", nargs="+", help="samplers, and settings of the run")
    asked.add_argument("--data", required=True, help="the dataset")
    asked.add_argument("--steps", type=int, default=12, help="steps that `rows` samples")
    asked.add_argument("--seeds", type=int, default=3, help="runs of `train` a sampler")
    options = asked.parse_intermixed_args()
    samplers = [word for word in options.words if "." not in word]
    given = [word for word in options.words if "." in word]
    graph = open_graph(options.data, normalize=build_config(apply_overrides({}, given)).data.normalize)
    if options.what == "rows":
        rows(graph, samplers, given, options.steps)
    else:
        learned(graph, samplers, given, options.seeds)


if __name__ == "__main__":
    main()
