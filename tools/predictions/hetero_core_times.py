"""Errors of predicted sizes and times of heterogeneous mini-batches, in CPU time of one core.

Expected sizes for `synthetic:hetero`, which follow from its degree distribution, are compared with means of
sampled mini-batches. Rates of a model kind are fitted to the mini-batches that `hyrt calibrate --model`
measures, and predict the time of the propagate stage for others, also on another graph. CPU time of the
thread is measured, so that other load affects only caches and memory.

    python tools/predictions/hetero_core_times.py --kinds rgcn,hgt
"""

from __future__ import annotations

import argparse
import statistics
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

from hyrt.runtime.process_setup import prepare_process

OTHER = "synthetic:hetero,vertices=400k,edges=4M"
HELD_OUT = (
    (64, 128, 512, (10, 5), ""),
    (64, 32, 1024, (15, 5), ""),
    (128, 64, 256, (5, 3, 3), ""),
    (128, 64, 1024, (10, 5), OTHER),
    (64, 128, 128, (10, 5), OTHER),
    (64, 256, 1024, (5, 5), OTHER),
)
"""(features, hidden width, targets, fan-outs, graph if it differs from that of the calibration)."""


def sizes(fanouts: list[int], targets: int) -> None:
    """Print the relative differences between expected and sampled mini-batch sizes."""
    from hyrt.config import build_config
    from hyrt.graph.source import open_graph
    from hyrt.predict.hetero_workload import (
        expected_hetero_sizes,
        generated_hetero_sizes,
        sampled_hetero_sizes,
    )
    from hyrt.runtime.workers import Workers
    from hyrt.training.setup import build_sampler

    source = "synthetic:hetero"
    graph = open_graph(source)
    config = build_config(
        {
            "model": {"kind": "rgcn", "layers": len(fanouts)},
            "data": {"source": source, "batch_size": 1024},
            "sampler": {"fanout": fanouts},
        }
    )
    with Workers(1, "sample") as workers:
        sampler = build_sampler(config, graph, graph.split("train"))
        sampled = sampled_hetero_sizes(config, graph, sampler, workers)(targets)
    expected = expected_hetero_sizes(config, generated_hetero_sizes(source))(targets)
    error_texts = []
    for name in ("vertices", "edges"):
        pairs = zip(getattr(expected, name), getattr(sampled, name), strict=True)
        error_texts.append(
            f"{name} " + " ".join(f"{sum(mine) / sum(theirs) - 1:+.1%}" for mine, theirs in pairs)
        )
    print(
        f"sizes, fan-outs {fanouts}, {targets} targets, the input's first: {', '.join(error_texts)}",
        flush=True,
    )


def times(kind: str) -> list[float]:
    """Print predictions for mini-batches that were not used in the fit, and return the errors."""
    from hyrt_perfmodel.platform import Host, Platform
    from hyrt_perfmodel.policy import Threads
    from hyrt_perfmodel.prediction.stage_times import StepModel
    from hyrt_perfmodel.prediction.stages import ExtraTerms
    from hyrt_perfmodel.workload import TrainingWorkload

    from hyrt.device import DeviceOptions, host_model
    from hyrt.device.calls import opened
    from hyrt.device.discovery import find_device
    from hyrt.graph.source import open_graph
    from hyrt.predict.calibrate import trainers

    clock: Any = SimpleNamespace(perf_counter=time.thread_time)
    trainers.time = host_model.time = clock
    graphs = trainers.ProbeGraphs({name: open_graph(name) for name in (trainers.HETERO, OTHER)})
    backend, info = find_device("cpu:0")
    errors = []
    with opened(backend, info, DeviceOptions(threads=1)) as device:
        measured = [
            trainers.measure_probe(device, kind, probe, graphs.graph(probe))
            for probe in trainers.HETERO_PROBES
        ]
        fit = trainers.fit_trainer(measured)
        print(
            f"{kind}: fitted, off by {' '.join(f'{error:+.0%}' for error in fit.relative_errors)}", flush=True
        )
        for features, hidden, targets, fanouts, name in HELD_OUT:
            probe = trainers.Probe(
                features=features,
                hidden=hidden,
                classes=16,
                targets=targets,
                fanouts=fanouts,
                graph=name or trainers.HETERO,
            )
            measurement = trainers.measure_probe(device, kind, probe, graphs.graph(probe))
            work = measurement.workload
            platform = Platform(
                name="core", host=Host(memory_gb_s=1.0, macs_per_s=1.0, models={kind: fit.rates})
            )
            training = TrainingWorkload(
                at=lambda units, work=work: work, targets_per_epoch=1, batch_size=1, model=kind
            )
            model = StepModel(platform, training, ExtraTerms())
            predicted = model.propagate_s(model.trainers[0], work, Threads(sample=1, load=1, train=1))
            errors.append(predicted / measurement.propagate.seconds - 1)
            print(
                f"{kind}: {probe.graph}, {features} features, hidden {hidden}, {targets} targets, fan-outs "
                f"{fanouts}: {1e3 * predicted:.1f} ms predicted, {1e3 * measurement.propagate.seconds:.1f} "
                f"measured, {errors[-1]:+.0%}",
                flush=True,
            )
    return errors


def main() -> None:
    """Print the comparisons of sizes and times, and the mean error of the times."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", default="rgcn", help="kinds of models, separated by commas")
    kinds = parser.parse_args().kinds.split(",")
    prepare_process()
    for fanouts in ([10, 5], [25, 10], [5, 5, 5]):
        for targets in (64, 1024):
            sizes(fanouts, targets)
    for kind in kinds:
        errors = np.abs(times(kind))
        print(
            f"{kind}: off by {statistics.fmean(errors.tolist()):.0%} on average, {errors.max():.0%} at worst"
        )


if __name__ == "__main__":
    main()
