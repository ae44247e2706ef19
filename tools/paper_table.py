"""Predicted epoch times of HyScale-GNN's machines beside the published ones, and their scaling (Table VI and Fig. 9).

In the paper's form of the model: its terms only, 1,024 targets for every trainer, nothing re-split. Nothing is fitted to the
published times; what the paper does not say is assumed, and printed with the table.

    python tools/paper_table.py
    python tools/paper_table.py --sigma 1.6 --host-memory 287
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hyrt_perfmodel.datasets import DATASETS
from hyrt_perfmodel.degrees import DegreeDistribution
from hyrt_perfmodel.model_workload import model_workload
from hyrt_perfmodel.platform import Platform
from hyrt_perfmodel.platform_file import load_platform
from hyrt_perfmodel.predict import Prediction, predict, with_accelerators
from hyrt_perfmodel.sizes import BlockSizes, expected_sizes
from hyrt_perfmodel.workload import Training, in_proportion

BATCH, FANOUTS, HIDDEN = 1024, (25, 10), 256
MODELS = ("gcn", "graphsage")
FPGA, GPU = "2x-epyc7763-4x-u250", "2x-epyc7763-4x-a5000"
# Table VI, in seconds; the CPU-FPGA machine's.
PUBLISHED_S = {
    ("gcn", "ogbn-products"): 0.27,
    ("gcn", "ogbn-papers100M"): 0.58,
    ("graphsage", "ogbn-products"): 0.49,
    ("graphsage", "ogbn-papers100M"): 1.91,
}
# Table III counts 756 features for mag240m, the dataset's authors 768.
WIDTHS = {"ogbn-products": 100, "ogbn-papers100M": 128, "mag240m": 756}
COUNTS = range(1, 17)
# Of an epoch; less is nothing, as the last step of an epoch is a whole one.
SATURATED = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Epochs on 1..16 accelerators."""

    epochs_s: tuple[float, ...]
    bottlenecks: tuple[str, ...]

    @property
    def saturates_at(self) -> int | None:
        """The accelerators from which on no further ones shorten an epoch by 2 %; None where the last one does."""
        for i in range(len(self.epochs_s) - 1):
            if min(self.epochs_s[i + 1 :]) > self.epochs_s[i] * (1 - SATURATED):
                return COUNTS[i]
        return None


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sigma", type=float, default=1.2, help="spread of the assumed degrees")
    parser.add_argument(
        "--host-memory", type=float, help="1e9 bytes a second, instead of the platform file's"
    )
    return parser.parse_args()


def sizes(dataset: str, sigma: float) -> BlockSizes:
    """Of a mini-batch of one trainer, expected from what is published of the graph."""
    known = DATASETS[dataset]
    degrees = DegreeDistribution.assumed(
        known.vertices,
        known.edges,
        sigma=sigma,
        num_targets=known.targets,
        reciprocity=float(known.symmetric),
    )
    return expected_sizes(degrees, FANOUTS, BATCH)


def training(model: str, dataset: str, sampled: BlockSizes) -> Training:
    known = DATASETS[dataset]
    work = model_workload(
        model, sampled.vertices, sampled.edges, (WIDTHS[dataset], HIDDEN, known.classes), bytes_per_value=4
    )
    return Training(
        at=in_proportion(work, BATCH),
        targets_per_epoch=known.targets,
        batch_size=BATCH,
        batch_per_trainer=BATCH,
    )


def machine(name: str, host_memory: float | None) -> Platform:
    found = load_platform(name)
    if host_memory is None:
        return found
    return replace(found, host=replace(found.host, memory_gb_s=host_memory))


def scaling(platform: Platform, work: Training) -> Scaling:
    found = [predict(with_accelerators(platform, count), work, paper=True) for count in COUNTS]
    return Scaling(
        epochs_s=tuple(each.epoch_s for each in found), bottlenecks=tuple(each.bottleneck for each in found)
    )


def assumptions(chosen: argparse.Namespace, sampled: dict[str, BlockSizes]) -> Iterator[str]:
    yield "assumed, because the paper does not say:"
    for name in (FPGA, GPU):
        yield f"  {name}: {machine(name, None).source}"
    if chosen.host_memory is not None:
        yield f"  but host memory {chosen.host_memory:g} GB/s, as asked"
    yield (
        f"  degrees: log-normal, sigma {chosen.sigma:g}, mean as published; ogbn-products in both directions, citations in one;"
    )
    yield "  training vertices are like all vertices. Sampled sizes of one mini-batch of 1,024 targets from them:"
    for name, found in sampled.items():
        vertices, edges = (", ".join(f"{n:,.0f}" for n in row) for row in (found.vertices, found.edges))
        yield f"    {name}: |V^0..2| {vertices}; |E^1..2| {edges}"
    targets = ", ".join(f"{name} {DATASETS[name].targets:,}" for name in sampled)
    yield f"  training vertices, from the datasets' authors: {targets}"
    yield "  features in 32 bits; T_sample from the platforms' edges a second and thread, on all cores"
    yield "  optimiser, launches, blocks' topology and the second backward product cost nothing: the paper has no terms for them"


def row(model: str, dataset: str, found: Prediction, published: float | None) -> str:
    times = " ".join(
        f"{found.stages_s[stage] * 1e3:10.2f}" for stage in ("sample", "load", "transfer", "propagate")
    )
    beside = "" if published is None else f" {published:9.2f} {found.epoch_s / published:9.2f}"
    return f"{model:10} {dataset:16} {times}  {found.bottleneck:10} {found.epoch_s:9.3f}{beside}"


def saturation(model: str, dataset: str, found: Scaling) -> str:
    at = found.saturates_at
    first = found.epochs_s[0]
    speeds = " ".join(f"{first / found.epochs_s[count - 1]:5.2f}" for count in (1, 2, 4, 8, 12, 16))
    where = "not by 16" if at is None else f"at {at}, by {found.bottlenecks[-1]}"
    return f"{model:10} {dataset:16} {speeds}   {where}"


def main() -> None:
    chosen = arguments()
    sampled = {name: sizes(name, chosen.sigma) for name in WIDTHS}
    print(*assumptions(chosen, sampled), sep="\n")
    for name in (FPGA, GPU):
        platform = machine(name, chosen.host_memory)
        beside = " published predicted/published" if name == FPGA else ""
        print(f"\n{name}: ms an iteration, s an epoch")
        print(
            f"{'model':10} {'dataset':16} {'sample':>10} {'load':>10} {'transfer':>10} {'propagate':>10}  "
            f"{'bottleneck':10} {'epoch':>9}{beside}"
        )
        works = [(model, dataset) for model in MODELS for dataset in WIDTHS]
        for model, dataset in works:
            found = predict(platform, training(model, dataset, sampled[dataset]), paper=True)
            print(row(model, dataset, found, PUBLISHED_S.get((model, dataset)) if name == FPGA else None))
        print(f"speed-up over 1 accelerator on 1, 2, 4, 8, 12, 16 of {name}, and where it saturates")
        for model, dataset in works:
            print(saturation(model, dataset, scaling(platform, training(model, dataset, sampled[dataset]))))
    fpga = machine(FPGA, chosen.host_memory)
    host, link = fpga.host.memory_gb_s, fpga.accelerators[0].link_gb_s
    print(
        f"\nT_load passes T_transfer at BW_host / BW_link = {host:g} / {link:g} = {host / link:.1f} trainers of {FPGA}, the CPU "
        "among them,\nwhatever is sampled. The peak figures of one socket and one link give 205 / 16 = 12.8."
    )


if __name__ == "__main__":
    main()
