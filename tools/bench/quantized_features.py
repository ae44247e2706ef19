"""Quantized and half-precision features: accuracy, CPU time per stage, and steps over a slow link.

    python tools/bench/quantized_features.py accuracy GRAPH ... [--seeds 3] [--model graphsage] [SETTING ...]
    python tools/bench/quantized_features.py stages GRAPH [--rounds 3]
    python tools/bench/quantized_features.py link GRAPH [--rates 0.5 1 2] [--rounds 3]

`accuracy` trains on each graph in each format, and prints the mean test metric and the size of the rows
relative to float32. Sparse features are first converted to dense features.

`stages` measures the CPU time of each stage on one thread, like tools/bench/stages.py, and the peak memory of
the process. Formats alternate.

`link` trains on an OpenCL device behind a simulated link: a transfer takes as long as the link would need for
the bytes of the inputs, and everything else is real. The CPU trains at the same time, and the resource
manager adapts the split.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from timed_runs import BATCH, child_record, make_parser, prepared, settings, show, timed_run

FORMATS = ("float32", "float16", "bfloat16", "int8", "int8-columns")
STAGES = ("sample", "load", "propagate")
_GB = 1e9


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("what", choices=["accuracy", "stages", "link"])
    parser.add_argument("graphs", nargs="+", help="graphs; for accuracy also settings such as train.epochs=5")
    parser.add_argument("--formats", nargs="+", default=list(FORMATS), choices=FORMATS)
    parser.add_argument("--model", default="graphsage")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40, help="steps per run, including eight warm-up steps")
    parser.add_argument("--rates", nargs="+", type=float, default=[0.25, 1.0], help="GB/s of simulated links")
    parser.add_argument("--caches", nargs="+", default=["none"], help="none, or sizes of data.cache for link")
    parser.add_argument("--metric", default="accuracy", help="accuracy or roc_auc")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def open_graph_as(source: str, row_format: str) -> Any:
    """Open a graph with dense feature rows in the given format."""
    import numpy as np

    from hyrt.graph import open_graph
    from hyrt.graph.quantized.features import quantize_graph
    from hyrt.graph.row_source import DenseFeatures, SparseFeatures
    from hyrt.runtime.workers import Workers

    graph = open_graph(source, normalize="auto")
    if isinstance(graph.features, SparseFeatures):
        dense = np.empty((graph.num_vertices, graph.num_features), np.float32)
        with Workers(2, "dense") as workers:
            graph.features.rows(np.arange(graph.num_vertices), dense, workers)
        graph = graph.with_features(DenseFeatures(dense))
    return graph if row_format == "float32" else quantize_graph(graph, row_format)


def accuracy(options: argparse.Namespace) -> list[str]:
    """Return one table row per graph and format."""
    import hyrt
    from hyrt.config.command_line import apply_overrides

    sources = [argument for argument in options.graphs if "=" not in argument.split(",")[0]]
    overrides = [argument for argument in options.graphs if argument not in sources]
    lines = [
        "| graph | rows | bytes | test, mean of seeds | each |",
        "| --- | --- | ---: | ---: | --- |",
    ]
    for source in sources:
        full_bytes = 0
        for row_format in options.formats:
            graph = open_graph_as(source, row_format)
            full_bytes = full_bytes or graph.num_vertices * graph.num_features * 4
            metrics = []
            for seed in range(options.seeds):
                run_settings = {"seed": seed, "model": {"kind": options.model}, "data": {}, "train": {}}
                sections = apply_overrides(run_settings, overrides)
                kind = sections.pop("model")
                result = hyrt.train(graph, kind, **sections)
                test = result.metrics["test"]
                metrics.append(100 * test.get(options.metric, test["accuracy"]))
            shown = ", ".join(f"{argument:.2f}" for argument in metrics)
            part = graph.features.nbytes / full_bytes
            lines.append(
                f"| {graph.name.rpartition('/')[2]} | {row_format} | {part:.3f} | "
                f"{statistics.fmean(metrics):.2f} | {shown} |"
            )
            print(lines[-1], flush=True)
    return lines


def run_child(options: argparse.Namespace) -> None:
    """Run once with one format, and print the stage times as one JSON line."""
    prepared()
    from hyrt.config import build_config
    from hyrt.telemetry.hooks import Hook

    class CpuClock(Hook):
        """Hook that records the CPU time of each stage call."""

        def __init__(self) -> None:
            self.ms: dict[str, list[float]] = {stage: [] for stage in STAGES}

        def wrap_call(self, stage: str, site: Any, work: Callable[[], Any]) -> Any:
            started = time.thread_time()
            result = work()
            if stage in self.ms:
                self.ms[stage].append(1e3 * (time.thread_time() - started))
            return result

    graph = open_graph_as(options.graphs[0], options.child)
    serial = {"pipelined": False, "sample_threads": 1, "load_threads": 1, "train_threads": 1}
    config = build_config(
        settings(
            options.model,
            epochs=max(1, -(-options.steps * BATCH // len(graph.split("train")))),
            devices=["cpu:0"],
            balance={"policy": "static", "predict": False},
            runtime=serial,
        )
    )
    times = CpuClock()
    run = timed_run(config, graph, steps=options.steps, hooks=[times])
    losses = [loss for group in run.groups for loss in group.losses][: options.steps]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    record = {
        "ms": {stage: statistics.median(ms[8 : options.steps]) for stage, ms in times.ms.items()},
        "features_mib": graph.features.nbytes / 2**20,
        "peak_mib": peak,
        "loss": statistics.fmean(losses[-10:]),
    }
    print(json.dumps(record), flush=True)


def stages(options: argparse.Namespace) -> list[str]:
    """Return one table row per format."""
    runs: dict[str, list[dict[str, Any]]] = {each: [] for each in options.formats}
    for number in range(options.rounds + 1):
        for row_format in options.formats if number % 2 else reversed(options.formats):
            command = [sys.executable, __file__, *sys.argv[1:], "--child", row_format]
            record = child_record(command, row_format, None)
            # Skip the first round, which compiles kernels.
            if number:
                runs[row_format].append(record)
    lines = [
        "| rows | sample | load | propagate | step, CPU ms | load, float32 / this | step | features, MiB | "
        "loss |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]

    def ms(row_format: str, names: tuple[str, ...]) -> float:
        return statistics.median(sum(run["ms"][name] for name in names) for run in runs[row_format])

    first = options.formats[0]
    for row_format in options.formats:
        each = " | ".join(f"{ms(row_format, (stage,)):.1f}" for stage in STAGES)
        last = runs[row_format][-1]
        lines.append(
            f"| {row_format} | {each} | {ms(row_format, STAGES):.1f} | "
            f"{ms(first, ('load',)) / ms(row_format, ('load',)):.2f} | "
            f"{ms(first, STAGES) / ms(row_format, STAGES):.2f} | {last['features_mib']:.0f} | "
            f"{last['loss']:.4f} |"
        )
    return lines


def link(options: argparse.Namespace) -> list[str]:
    """Return one table row per rate and format: the first and last step times, and the final split."""
    from dataclasses import replace

    from hyrt_devices.opencl.device import OpenclDevice

    from hyrt.config import build_config
    from hyrt.graph.feature_cache import CachedRows
    from hyrt.graph.quantized.rows import QuantizedRows

    graphs = {each: open_graph_as(options.graphs[0], each) for each in options.formats}
    plain_open, plain_transfer = OpenclDevice.open.__func__, OpenclDevice.transfer
    lines = [
        "| link GB/s | rows | cache | ms, steps 2 to 6 | last third | split at the start | at the end |",
        "| ---: | --- | ---: | ---: | ---: | --- | --- |",
    ]
    for rate in options.rates:

        def open_(cls: Any, info: Any, device_options: Any) -> Any:
            # Transfer feature rows, without aggregation on the host.
            forms = tuple(form for form in info.forms if form != "aggregated")
            return plain_open(cls, replace(info, forms=forms), device_options)

        def transfer(self: Any, batch: Any, rate: float = rate) -> Any:
            started = time.perf_counter()
            rows = batch.inputs
            size = 0
            if rows is not None:
                size = rows.nbytes if isinstance(rows, QuantizedRows | CachedRows) else 4 * rows.numel()
            staged = plain_transfer(self, batch)
            time.sleep(max(0.0, size / (rate * _GB) - (time.perf_counter() - started)))
            return staged

        OpenclDevice.open = classmethod(open_)  # type: ignore[method-assign,assignment]
        OpenclDevice.transfer = transfer  # type: ignore[method-assign]
        for row_format, cache in itertools.product(options.formats, options.caches):
            config = build_config(
                settings(
                    options.model,
                    epochs=50,
                    data={} if cache == "none" else {"cache": cache},
                    devices=["cpu", "opencl"],
                    balance={"policy": "model", "predict": False},
                )
            )
            run = timed_run(config, graphs[row_format], steps=options.steps)
            steps = run.step_s()[: options.steps]
            splits = [list(group.split.values()) for group in run.groups]
            lines.append(
                f"| {rate:g} | {row_format} | {cache} | {1e3 * statistics.median(steps[1:6]):.0f} | "
                f"{1e3 * statistics.median(steps[-len(steps) // 3 :]):.0f} | {splits[0]} | {splits[-1]} |"
            )
            print(lines[-1], flush=True)
    return lines


def main() -> None:
    options = arguments()
    if options.child:
        run_child(options)
        return
    prepared()
    lines = {"accuracy": accuracy, "stages": stages, "link": link}[options.what](options)
    show("\n".join(lines), None)


if __name__ == "__main__":
    main()
