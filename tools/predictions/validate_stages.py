"""Comparison of predicted and measured stage times in CPU seconds of one thread, also on a busy machine.

Configurations are generated as in `validate_predictions.py`. First, one thread of this process is calibrated
in CPU seconds. Then, the mini-batches of each case are sampled, loaded and propagated serially. The tool
prints the predicted and measured milliseconds of each stage of each case, and the errors. Times of runs, in
which stages share cores and wait for each other, are not compared.

    python tools/predictions/validate_stages.py --data data --seed 1 --saint
"""

from __future__ import annotations

import argparse
import itertools
import pickle
import statistics
import time
from pathlib import Path
from typing import Any

# Replace the clock before other modules import it, so that everything below measures CPU time.
time.perf_counter = time.process_time

from validate_predictions import PredictionCase, draw  # noqa: E402

from hyrt.runtime.process_setup import prepare_process  # noqa: E402

STAGES = ("sample", "load", "propagate")


def calibrate() -> Any:
    """Return the calibrated platform with one core."""
    from dataclasses import replace

    from hyrt_perfmodel.platform import Platform

    from hyrt.device.discovery import find_device
    from hyrt.graph.source import open_graph
    from hyrt.predict.calibrate import machine
    from hyrt.predict.calibrate.host import LARGE, SMALL
    from hyrt.predict.calibrate.trainers import DENSE, ProbeGraphs

    small, large = open_graph(SMALL), open_graph(LARGE)
    host, _ = machine._measure_host(small, large, 1)
    info = find_device("cpu:0")[1]
    graphs = {SMALL: small, LARGE: large, DENSE: open_graph(DENSE)}
    cpu = machine._measure_trainer(info, ProbeGraphs(graphs), 1)
    host = replace(machine._with_cpu(host, cpu), cores=1)
    return Platform(name="one core", host=host, accelerators=(), source="CPU seconds")


def measure(case: PredictionCase, graph: Any, config: Any, seconds: float) -> dict[str, float]:
    """Return the median CPU seconds of each stage of a step."""
    from hyrt.device import DeviceOptions
    from hyrt.device.calls import opened
    from hyrt.device.capabilities import usable_forms
    from hyrt.device.discovery import find_device
    from hyrt.pipeline.load import Loader
    from hyrt.pipeline.trainer import plan_input
    from hyrt.runtime.workers import Workers
    from hyrt.training.setup import build_model, build_sampler

    targets = graph.split("train")
    sampler = build_sampler(config, graph, targets)
    model = build_model(config, graph)
    backend, info = find_device("cpu:0")
    spent: dict[str, list[float]] = {stage: [] for stage in STAGES}
    with opened(backend, info, DeviceOptions(threads=1)) as device, Workers(1, "validate") as workers:
        parameters = list(model.parameters())
        device.load(model, parameters)
        plan = plan_input(model, graph, usable_forms(device, graph), fuse=True)
        loader = Loader(graph.features)
        step_targets = len(sampler.units(0))
        for step in itertools.count():
            if len(units := sampler.units(step)) < step_targets:
                continue
            marks = [time.process_time()]
            batch = sampler.sample(step, units, workers, in_place=plan.in_place)
            marks.append(time.process_time())
            loader.load(batch, plan, workers)
            marks.append(time.process_time())
            device.propagate(device.transfer(batch))
            marks.append(time.process_time())
            batch.release()
            for stage, start, end in zip(STAGES, marks[:-1], marks[1:], strict=True):
                spent[stage].append(end - start)
            if len(spent["sample"]) >= 8 and sum(map(sum, spent.values())) > seconds:
                break
    return {stage: statistics.median(seconds_[3:]) for stage, seconds_ in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the .npz datasets")
    parser.add_argument("--seed", type=int, default=1, help="random seed of the configurations")
    parser.add_argument("--cases", type=int, default=20, help="number of configurations")
    parser.add_argument("--seconds", type=float, default=1.0, help="approximate CPU seconds per case")
    parser.add_argument("--saint", action="store_true", help="only cases with random-walk subgraphs")
    parser.add_argument("--sparse", action="store_true", help="only cases with sparse features")
    parser.add_argument("--calibration", type=Path, help="store the calibration in this file, and reuse it")
    options = parser.parse_args()
    prepare_process()
    from hyrt_perfmodel.policy import Assignment, Threads
    from hyrt_perfmodel.prediction.stage_times import stage_times

    from hyrt.config import build_config
    from hyrt.graph.source import open_graph
    from hyrt.predict.workload import sampled_workload

    if options.calibration and options.calibration.exists():
        platform = pickle.loads(options.calibration.read_bytes())
    else:
        platform = calibrate()
        if options.calibration:
            options.calibration.write_bytes(pickle.dumps(platform))
    print("| graph | devices | model | hidden | sampled | per step | " + " | ".join(STAGES) + " | together |")
    print("|---|---|---|---:|---|---:|" + "---|" * 4)
    errors: dict[str, list[float]] = {stage: [] for stage in (*STAGES, "together")}
    opened: tuple[str, Any] = ("", None)
    for case in draw(options.seed, options.cases, ["cpu"]):
        source = str(options.data / case.graph) if case.graph.endswith(".npz") else case.graph
        if options.saint and case.settings["sampler"]["kind"] != "saint":
            continue
        if opened[0] != source:
            opened = (source, open_graph(source))
        graph = opened[1]
        if options.sparse and graph.features.matrix is not None:
            continue
        config = build_config(case.settings)
        training = sampled_workload(config, graph)
        times = stage_times(
            platform,
            training,
            Assignment(split=(training.batch_size,), threads=Threads(sample=1, load=1, train=1)),
        )
        expected = {"sample": times.sample_s, "load": times.load_s, "propagate": times.trainer_propagate_s[0]}
        measured_seconds = measure(case, graph, config, options.seconds)
        expected["together"], measured_seconds["together"] = (
            sum(expected.values()),
            sum(measured_seconds.values()),
        )
        cells = []
        for stage, seconds in expected.items():
            error = seconds / measured_seconds[stage] - 1 if measured_seconds[stage] > 1e-5 else 0.0
            errors[stage].append(error)
            cells.append(f"{1e3 * seconds:.2f} {1e3 * measured_seconds[stage]:.2f} {error:+.0%}")
        print(f"| {case} | {' | '.join(cells)} |", flush=True)
    for stage, stage_errors in errors.items():
        worst = max(map(abs, stage_errors))
        print(
            f"{stage}: mean {statistics.fmean(map(abs, stage_errors)):.1%}, worst {worst:.1%}, "
            f"too long by {statistics.fmean(stage_errors):+.1%}"
        )


if __name__ == "__main__":
    main()
