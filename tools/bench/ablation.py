"""HyScale-GNN's ablation (Fig. 11) and normalised epoch times (Table VII), on this machine and in simulation.

The rungs of the ablation are: training on the accelerator only; hybrid training with a static split; with the
resource manager; and with two-stage prefetching (the pipeline). Without prefetching
(`runtime.max_in_flight_steps=1`), the stages of a step run one after the other. On this machine, each rung
trains on the CPU and a second device, in alternating runs over several rounds. On the published machine, the
rungs are simulated (`hyrt_perfmodel.prediction`) with the platform's assumed rates and 5 % noise. Published
factors are the maxima over the paper's workloads.

    python tools/bench/ablation.py --second opencl:0 --table benchmarks/DATE-ablation.md
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace

from timed_runs import add_second_device, make_parser, prepared, settings, show

RUNGS = ("all on the accelerator", "hybrid, static split", "+ resource manager", "+ two-stage prefetching")
PUBLISHED = (1.0, 1.13, 1.33, 1.79)
# Peak fp32 TFLOP/s (Table II): two EPYC 7763 and four accelerators.
PEAK = {"2x-epyc7763-4x-a5000": 2 * 3.6 + 4 * 27.8, "2x-epyc7763-4x-u250": 2 * 3.6 + 4 * 0.6}


def arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--source", default="synthetic:products-s")
    parser.add_argument("--model", default="graphsage")
    add_second_device(parser, steps=40)
    parser.add_argument("--simulated-only", action="store_true")
    return parser.parse_args()


def measured_rungs(options: argparse.Namespace) -> list[str]:
    """Return the table rows of this machine, with the median ms per step over the rounds."""
    from hyrt.config import build_config
    from hyrt.graph import open_graph
    from hyrt.predict.calibrate.trainers import short_run

    graph = open_graph(options.source)
    both = ["cpu:0", options.second]
    in_turn, managed = {"runtime": {"max_in_flight_steps": 1}}, {"balance": {"policy": "model"}}
    rungs = (
        {"devices": [options.second], **in_turn},
        {"devices": both, **in_turn},
        {"devices": both, **in_turn, **managed},
        {"devices": both, **managed},
    )
    spent: list[list[float]] = [[] for _ in rungs]
    for _ in range(options.rounds):
        for seconds, rung in zip(spent, rungs, strict=True):
            sections = {"balance": {"policy": "static"}, **rung}
            # Set an upper bound on the number of epochs, because the run is stopped after its steps.
            config = build_config(settings(options.model, epochs=1, hidden=options.hidden, **sections))
            seconds.append(short_run(config, graph, warm=30, steps=options.steps, balance=True).iteration_s)
    return rows([statistics.median(seconds) for seconds in spent])


def rows(seconds: list[float]) -> list[str]:
    return [
        f"| {rung} | {1e3 * seconds_per_step:.2f} | {seconds[0] / seconds_per_step:.2f} | {published:.2f} |"
        for rung, seconds_per_step, published in zip(RUNGS, seconds, PUBLISHED, strict=True)
    ]


def simulated_rungs(name: str, dataset: str, model: str) -> tuple[list[str], float]:
    """Return the rungs on a published machine, and the epoch time of the last rung."""
    from hyrt_perfmodel.degrees import DATASETS, DegreeDistribution
    from hyrt_perfmodel.expected_sizes import expected_sizes
    from hyrt_perfmodel.model_workload import model_workload
    from hyrt_perfmodel.platform_file import load_platform
    from hyrt_perfmodel.policy import Assignment, Threads
    from hyrt_perfmodel.prediction.initial_assignment import initial_assignment
    from hyrt_perfmodel.prediction.simulate import simulate
    from hyrt_perfmodel.workload import TrainingWorkload, proportional_workload

    from hyrt.balance.registry import DEFAULT_POLICY, create_policy

    platform = load_platform(name)
    known = DATASETS[dataset]
    degrees = DegreeDistribution.assumed(known.vertices, known.edges, num_targets=known.targets)
    sizes = expected_sizes(degrees, (25, 10), 1024)
    work = model_workload(model, sizes.vertices, sizes.edges, [known.features, 256, known.classes])
    trainers = platform.trainers()
    training = TrainingWorkload(
        at=proportional_workload(work, 1024),
        targets_per_epoch=known.targets,
        batch_size=1024 * len(trainers),
        model=model,
    )
    cores = platform.host.cores or 3
    third = Threads(sample=cores // 3, load=cores // 3, train=cores // 3)
    count = len(trainers) - 1
    units_per_trainer, left = divmod(training.batch_size, count)
    offload = Assignment(split=(0, *(units_per_trainer + (i < left) for i in range(count))), threads=third)
    # The static split is the one that is predicted if each stage gets a third of the cores.
    static = replace(initial_assignment(platform, training, threads=third), threads=third)
    chosen = create_policy(DEFAULT_POLICY)
    seconds = [
        simulate(
            platform, training, start=start, policy=used, iterations=300, depth=depth, noise=0.05, seed=1
        ).settled_iteration_s(first=200)
        for start, used, depth in (
            (offload, None, 1),
            (static, None, 1),
            (static, chosen, 1),
            (static, chosen, 4),
        )
    ]
    return rows(seconds), seconds[-1] * known.targets / training.batch_size


def main() -> None:
    options = arguments()
    prepared()
    head = "| rung | ms a step | speed-up | published (largest) |\n|---|---:|---:|---:|"
    lines = []
    if not options.simulated_only:
        lines += [
            f"## This machine: cpu:0 and {options.second}, {options.model} {options.hidden}, "
            f"{options.source}\n",
            head,
            *measured_rungs(options),
            "",
        ]
    normalised = [
        "\n## Normalised epoch times (seconds x peak TFLOP/s), simulated\n",
        "| machine | model | dataset | epoch s | normalised |",
        "|---|---|---|---:|---:|",
    ]
    for name in PEAK:
        for model in ("gcn", "graphsage"):
            for dataset in ("ogbn-products", "ogbn-papers100M"):
                rungs, epoch_s = simulated_rungs(name, dataset, model)
                lines += [f"## Simulated: {name}, {model}, {dataset}\n", head, *rungs, ""]
                normalised.append(
                    f"| {name} | {model} | {dataset} | {epoch_s:.3f} | {epoch_s * PEAK[name]:.1f} |"
                )
    show("\n".join(lines + normalised), options.table)


if __name__ == "__main__":
    main()
