"""Predicted and published epoch times of HyScale-GNN's machines, and their scaling (Table VI and Fig. 9).

The predictions use the paper's form of the performance model: only its terms, 1,024 targets per trainer, and
a fixed split. Nothing is fitted to the published times. Assumptions about unpublished values are printed with
the Markdown tables.

    python tools/predictions/paper_table.py
    python tools/predictions/paper_table.py --sigma 1.6 --host-memory 308
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hyrt_hls.arena_limits import with_task_targets
from hyrt_perfmodel.degrees import DATASETS, DegreeDistribution
from hyrt_perfmodel.expected_sizes import BlockSizes, expected_sizes
from hyrt_perfmodel.model_workload import model_workload
from hyrt_perfmodel.platform import Platform
from hyrt_perfmodel.platform_file import load_platform
from hyrt_perfmodel.prediction.predict import Prediction, predict, with_accelerators
from hyrt_perfmodel.prediction.stages import PAPER_TERMS
from hyrt_perfmodel.workload import TrainingWorkload, proportional_workload

BATCH, FANOUTS, HIDDEN = 1024, (25, 10), 256
FPGA, GPU = "2x-epyc7763-4x-u250", "2x-epyc7763-4x-a5000"
# Epoch times of the CPU-FPGA machine in Table VI, in seconds.
PUBLISHED_S = {
    ("gcn", "ogbn-products"): 0.27,
    ("gcn", "ogbn-papers100M"): 0.58,
    ("graphsage", "ogbn-products"): 0.49,
    ("graphsage", "ogbn-papers100M"): 1.91,
}
# Table III lists 756 features for mag240m; the dataset has 768.
WIDTHS = {"ogbn-products": 100, "ogbn-papers100M": 128, "mag240m": 756}
WORKS = [(model, dataset) for model in ("gcn", "graphsage") for dataset in WIDTHS]
STAGES = ("sample", "load", "transfer", "propagate")
COUNTS = range(1, 17)
SHOWN = (1, 2, 4, 6, 8, 10, 11, 12, 13, 14, 16)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sigma", type=float, default=1.2, help="standard deviation of the assumed log-normal degrees"
    )
    parser.add_argument(
        "--host-memory",
        type=float,
        help="host memory bandwidth in 1e9 bytes per second, instead of the platform file's",
    )
    return parser.parse_args()


def sizes(dataset: str, sigma: float) -> BlockSizes:
    """Return the expected mini-batch sizes of one trainer, from published properties of the graph."""
    known = DATASETS[dataset]
    degrees = DegreeDistribution.assumed(
        known.vertices,
        known.edges,
        sigma=sigma,
        num_targets=known.targets,
        reciprocity=float(known.symmetric),
    )
    return expected_sizes(degrees, FANOUTS, BATCH)


def training(model: str, dataset: str, sampled: BlockSizes) -> TrainingWorkload:
    known = DATASETS[dataset]
    widths = (WIDTHS[dataset], HIDDEN, known.classes)
    work = model_workload(model, sampled.vertices, sampled.edges, widths, bytes_per_value=4)
    return TrainingWorkload(
        at=proportional_workload(work, BATCH),
        targets_per_epoch=known.targets,
        batch_size=BATCH,
        batch_per_trainer=BATCH,
    )


def machine(name: str, host_memory: float | None) -> Platform:
    platform = load_platform(name)
    if host_memory is None:
        return platform
    return replace(platform, host=replace(platform.host, memory_gb_s=host_memory))


def saturates_at(scaling: Sequence[Prediction]) -> str:
    """Return the number of accelerators above which another one gains less than 2 %, and the bottleneck."""
    speeds = [prediction.throughput_mteps for prediction in scaling]
    for i in range(len(speeds) - 1):
        if max(speeds[i + 1 :]) < speeds[i] * 1.02:
            return f"{COUNTS[i]}, by {scaling[-1].bottleneck}"
    return f"not by {COUNTS[-1]}"


def epochs(works: dict[tuple[str, str], TrainingWorkload], machines: Sequence[Platform]) -> Iterator[str]:
    yield (
        "| machine | model | dataset | "
        + " | ".join(f"{stage} ms" for stage in STAGES)
        + (" | bottleneck | epoch s | published s | ratio |")
    )
    yield "| --- | --- | --- |" + " ---: |" * len(STAGES) + " --- | ---: | ---: | ---: |"
    for platform in machines:
        for (model, dataset), work in works.items():
            prediction = predict(platform, work, paper=True)
            published = PUBLISHED_S.get((model, dataset)) if platform.name == FPGA else None
            times = " | ".join(f"{prediction.stages_s[stage] * 1e3:.2f}" for stage in STAGES)
            published_cells = (
                "- | -" if published is None else f"{published:.2f} | {prediction.epoch_s / published:.2f}"
            )
            yield (
                f"| {platform.name} | {model} | {dataset} | {times} | {prediction.bottleneck} "
                f"| {prediction.epoch_s:.3f} | {published_cells} |"
            )


def with_cycles(works: dict[tuple[str, str], TrainingWorkload], platform: Platform) -> Iterator[str]:
    """Yield the table with the paper's terms, but with FPGA times of the cycle model."""
    yield (
        "| model | dataset | targets per task | tasks | propagate ms, rates | propagate ms, cycles | epoch s "
        "| published s | ratio |"
    )
    yield "| --- | --- |" + " ---: |" * 7
    for (model, dataset), work in works.items():
        rates = predict(platform, work, paper=True)
        full_batch = replace(work, batch_size=sum(rates.assignment.split))
        # Divide the mini-batch of a trainer into tasks.
        cut = with_task_targets(platform, work)
        prediction = predict(
            cut, full_batch, assignment=rates.assignment, terms=replace(PAPER_TERMS, cycles=True)
        )
        task_targets = cut.accelerators[0].task_targets or BATCH
        published = PUBLISHED_S.get((model, dataset))
        published_cells = (
            "- | -" if published is None else f"{published:.2f} | {prediction.epoch_s / published:.2f}"
        )
        yield (
            f"| {model} | {dataset} | {task_targets} | {-(-BATCH // task_targets)} | "
            f"{1e3 * rates.stages_s['propagate']:.2f} | {1e3 * prediction.stages_s['propagate']:.2f} | "
            f"{prediction.epoch_s:.3f} | {published_cells} |"
        )


def throughputs(
    works: dict[tuple[str, str], TrainingWorkload], machines: Sequence[Platform]
) -> Iterator[str]:
    yield "| machine | model | dataset | " + " | ".join(map(str, SHOWN)) + " | grows until |"
    yield "| --- | --- | --- |" + " ---: |" * len(SHOWN) + " --- |"
    for platform in machines:
        for (model, dataset), work in works.items():
            scaling = [predict(with_accelerators(platform, count), work, paper=True) for count in COUNTS]
            first = scaling[0].throughput_mteps
            speeds = " | ".join(f"{scaling[count - 1].throughput_mteps / first:.2f}" for count in SHOWN)
            yield f"| {platform.name} | {model} | {dataset} | {speeds} | {saturates_at(scaling)} |"


def assumptions(
    chosen: argparse.Namespace, sampled: dict[str, BlockSizes], machines: Sequence[Platform]
) -> Iterator[str]:
    for platform in machines:
        host, link = platform.host.memory_gb_s, platform.accelerators[0].link_gb_s
        yield f"- {platform.name}: {platform.source}"
        yield (
            f"- {platform.name}: host memory {host:g} GB/s over {link:g} GB/s a link: T_load exceeds "
            f"T_transfer at {host / link:.1f} trainers, including the CPU, regardless of the samples"
        )
    yield (
        f"- degrees: log-normal, sigma {chosen.sigma:g}, with the published mean; ogbn-products has its "
        "edges in both directions, citations in one; training vertices are like all vertices"
    )
    for name, block_sizes in sampled.items():
        vertices, edges = (
            ", ".join(f"{n:,.0f}" for n in row) for row in (block_sizes.vertices, block_sizes.edges)
        )
        yield (
            f"- {name}: V^0, V^1, V^2 = {vertices}; E^1, E^2 = {edges}; {DATASETS[name].targets:,} training "
            "vertices (the dataset's)"
        )
    yield (
        "- features, activations and weights of 4 bytes; the host trains too; T_sample: 15 M edges a second "
        "and core, 128 cores"
    )
    design = machines[0].accelerators[0].design
    assert design is not None
    yield (
        f"- the cycle model's U250: {design.pes} PEs, {design.mac_rows} x {design.mac_cols} MACs, "
        f"{design.clock_hz / 1e6:g} MHz, features through one port of {design.ddr_bytes_per_s / 1e9:g} GB/s; "
        f"no build has confirmed {', '.join(sorted(design.assumed))}"
    )
    yield (
        "- launches, topology, the optimiser and the second backward product cost nothing: the paper has no "
        "terms for them"
    )


def main() -> None:
    chosen = arguments()
    sampled = {name: sizes(name, chosen.sigma) for name in WIDTHS}
    works = {(model, dataset): training(model, dataset, sampled[dataset]) for model, dataset in WORKS}
    machines = [machine(name, chosen.host_memory) for name in (FPGA, GPU)]
    for title, lines in (
        ("Epoch times", epochs(works, machines)),
        (f"{FPGA} with the cycle model of hyrt's kernels", with_cycles(works, machines[0])),
        ("Throughput relative to one accelerator", throughputs(works, machines)),
        ("Assumed", assumptions(chosen, sampled, machines)),
    ):
        print(f"\n## {title}\n", *lines, sep="\n")


if __name__ == "__main__":
    main()
