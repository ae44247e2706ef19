"""Communication volume per epoch of each strategy of distributed training, counted with hyrt's sampler.

    python tools/distributed/volumes.py --data coauthor_physics.npz --targets 64 --fanouts 10,10
    python tools/distributed/volumes.py --data DATA --homes parts/graph/home.npy --json

Nothing is transferred or trained: every mini-batch in the complete steps of one epoch is sampled at the rank
where the strategy would train it, and the rows that the rank lacks are counted. `rows` are all rows that are
read, including remote rows. Micrographs that are trained at different times read a row repeatedly; with p3
each row is read in slices, at all ranks. Bytes are summed over all ranks, in float32; rows are counted in
their stored format (a sparse row has a mean size, with 8 bytes per value plus an offset). Gradients are
all-reduced, which sends 2 (N - 1) times the weights. A migrating model consists of its weights and gradient
sums. Indices are not counted, because every rank can compute these. `home, even` moves units to other ranks
if a rank exceeds the mean by more than 5 %.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from hyrt_perfmodel.model_workload import model_workload
from numpy.typing import NDArray

from hyrt.api import load
from hyrt.config import Config
from hyrt.config.command_line import new_config
from hyrt.distributed.strategies.home import HomeStrategy
from hyrt.distributed.strategies.hopgnn import HopGnnStrategy
from hyrt.distributed.strategies.load_balancing import expected_remote_rows
from hyrt.distributed.strategies.local import LocalOrder, LocalStrategy
from hyrt.distributed.strategies.model_centric import ModelCentricStrategy
from hyrt.distributed.strategies.naive_migration import NaiveMigrationStrategy
from hyrt.distributed.strategies.p3 import P3Strategy
from hyrt.distributed.strategies.strategy import Seeds, Strategy, Traffic, TrafficItemBytes
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import SparseFeatures
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block
from hyrt.sampling.neighbor_sampler import NeighborSampler
from hyrt.training.setup import build_model

EVEN = "home, even"
VARIANTS: Mapping[str, Strategy] = {
    "model-centric": ModelCentricStrategy(),
    "p3": P3Strategy(),
    "naive-migration": NaiveMigrationStrategy(),
    "hopgnn, micrographs": HopGnnStrategy(pre_gather=False),
    "hopgnn, and pre-gathering": HopGnnStrategy(),
    "hopgnn, merged to 2": HopGnnStrategy(num_times=2),
    "hopgnn, merged to 1": HopGnnStrategy(num_times=1),
    "home": HomeStrategy(),
    EVEN: HomeStrategy(),
    "local": LocalStrategy(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedEpoch:
    """Rows and bytes of one strategy in an epoch, over all ranks."""

    strategy: str
    rows: int
    remote_rows: int
    hidden: int
    partials: int
    models: int
    roots_max_over_mean: float
    """Maximum number of seeds of a rank relative to the mean, averaged over steps."""
    sent_max_over_mean: float
    """Maximum number of bytes that a rank sends relative to the mean, without gradients."""
    bytes: Mapping[str, float]

    @property
    def total_bytes(self) -> float:
        return sum(self.bytes.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Input of the counts: graph, partition and sampling parameters."""

    graph: Graph
    homes: NDArray[Any]
    ranks: int
    fanouts: Sequence[int]
    targets_per_rank: int
    config: Config
    max_steps: int | None


def count(setting: Setting, names: Sequence[str]) -> list[CountedEpoch]:
    """Count the rows and bytes in the complete steps of an epoch with each strategy."""
    graph, ranks, batch = setting.graph, setting.ranks, setting.targets_per_rank * setting.ranks
    targets = graph.split("train")
    sampler = NeighborSampler(graph, targets, setting.fanouts, batch, setting.config.seed)
    local = LocalOrder(targets.astype(sampler.ids), setting.homes, ranks, batch, setting.config.seed)
    steps = min(max(1, len(targets) // batch), setting.max_steps or len(targets))
    item_bytes, weight_bytes = bytes_per_item(setting)
    with Workers(2, "volumes") as workers:
        return [
            _epoch(setting, name, sampler, local, steps, item_bytes, weight_bytes, workers) for name in names
        ]


def _epoch(
    setting: Setting,
    name: str,
    sampler: NeighborSampler,
    local: LocalOrder,
    steps: int,
    item_bytes: TrafficItemBytes,
    weight_bytes: int,
    workers: Workers,
) -> CountedEpoch:
    strategy, ranks, homes = VARIANTS[name], setting.ranks, setting.homes
    traffic, rows, uneven = Traffic.zero(ranks), 0, []
    for step in range(steps):
        units = local.batch(step) if strategy.draws_locally else sampler.units(step)
        expected = None
        if name == EVEN:
            fanout = setting.fanouts[0]
            expected = partial(expected_remote_rows, setting.graph.topology, units, homes, ranks, fanout)
        placement = strategy.place(Seeds(homes[units], ranks, expected))
        of_ranks = np.bincount(placement.ranks, minlength=ranks)
        uneven.append(of_ranks.max() / of_ranks.mean())
        read: list[int] = []
        sampled = _counting_sampler(sampler, step, units, workers, read.append)
        traffic += strategy.traffic(placement, homes, sampled)
        rows += sum(read)
    of_purposes = traffic.bytes_by_purpose(item_bytes)
    sent = sum(
        getattr(traffic, purpose).sum(axis=1) * getattr(item_bytes, size)
        for purpose, size in (
            ("rows", "row"),
            ("hidden", "hidden"),
            ("partials", "partial"),
            ("models", "model"),
        )
    )
    return CountedEpoch(
        strategy=name,
        rows=rows,
        remote_rows=int(traffic.rows.sum()),
        hidden=int(traffic.hidden.sum()),
        partials=int(traffic.partials.sum()),
        models=int(traffic.models.sum()),
        roots_max_over_mean=float(np.mean(uneven)),
        sent_max_over_mean=float(np.max(sent) / max(np.mean(sent), 1)),
        bytes={**of_purposes, "gradients": float(steps * 2 * (ranks - 1) * weight_bytes)},
    )


def _counting_sampler(
    sampler: NeighborSampler,
    step: int,
    units: NDArray[Any],
    workers: Workers,
    report_rows: Callable[[int], None],
) -> Callable[[NDArray[np.intp]], Block]:
    """Return a function that samples units of a step and reports the number of rows of each mini-batch."""

    def sampled(positions: NDArray[np.intp]) -> Block:
        block = sampler.sample(step, units[positions], workers, in_place=False).blocks[0]
        report_rows(block.num_src)
        return block

    return sampled


def bytes_per_item(setting: Setting) -> tuple[TrafficItemBytes, int]:
    """Return the bytes of each kind of transferred item, and the bytes of the weights."""
    graph, model = setting.graph, setting.config.model
    widths = [graph.num_features, *[model.hidden] * (len(setting.fanouts) - 1), graph.num_classes]
    layers = [0.0] * len(setting.fanouts)
    work = model_workload(model.kind, [0.0, *layers], layers, widths, heads=model.heads)
    weights = 4 * sum(p.numel() for p in build_model(setting.config, graph).parameters())
    item_bytes = TrafficItemBytes(
        row=_row_bytes(graph),
        hidden=4 * widths[1],
        partial=4 * work.f_in(1),
        model=2 * weights,
    )
    return item_bytes, weights


def _row_bytes(graph: Graph) -> float:
    features = graph.features
    if isinstance(features, SparseFeatures):
        return (features.columns.nbytes + features.values.nbytes) / graph.num_vertices + 8
    return graph.num_features * features.value_bytes


def table(epochs: Sequence[CountedEpoch]) -> list[str]:
    """Return the rows of a Markdown table."""
    base = epochs[0].total_bytes
    lines = [
        "| strategy | rows | remote | hidden | partials | models | MB sent: rows, hidden, partials, models, "
        "gradients | MB in all | of the first | roots, max / mean | sent, max / mean |",
        "| --- " + "| ---: " * 10 + "|",
    ]
    for epoch in epochs:
        purposes = ", ".join(f"{num_bytes / 1e6:,.1f}" for num_bytes in epoch.bytes.values())
        lines.append(
            f"| {epoch.strategy} | {epoch.rows:,} | {epoch.remote_rows:,} | {epoch.hidden:,} | "
            f"{epoch.partials:,} | {epoch.models:,} | {purposes} | {epoch.total_bytes / 1e6:,.1f} | "
            f"{epoch.total_bytes / base:.3f} | {epoch.roots_max_over_mean:.2f} | "
            f"{epoch.sent_max_over_mean:.2f} |"
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True)
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--homes", help=".npy file with the part of each vertex; random by default")
    parser.add_argument("--fanouts", default="10,10", help="fan-out per layer, the targets' layer first")
    parser.add_argument("--targets", type=int, default=1024, help="targets per step and rank")
    parser.add_argument("--model", default="graphsage")
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--strategies", default=";".join(VARIANTS), help="separated by semicolons")
    parser.add_argument(
        "--steps",
        type=int,
        help="number of steps, from the start of the epoch; all complete steps by default",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object per strategy")
    options = parser.parse_args(arguments)
    names = options.strategies.split(";")
    unknown = [name for name in names if name not in VARIANTS]
    if unknown:
        parser.error(f"unknown strategy {unknown[0]!r}: choose from {'; '.join(VARIANTS)}")
    graph = load(options.data)
    fanouts = [int(fanout) for fanout in options.fanouts.split(",")]
    config = new_config(
        None,
        [
            f"model.kind={options.model}",
            f"model.hidden={options.hidden}",
            f"model.layers={len(fanouts)}",
            f"seed={options.seed}",
        ],
    )
    homes = np.arange(graph.num_vertices) % options.parts
    np.random.default_rng(options.seed).shuffle(homes)
    if options.homes is not None:
        homes = np.load(options.homes)
    setting = Setting(
        graph=graph,
        homes=homes.astype(np.uint16),
        ranks=options.parts,
        fanouts=fanouts,
        targets_per_rank=options.targets,
        config=config,
        max_steps=options.steps,
    )
    epochs = count(setting, names)
    if options.json:
        print("\n".join(json.dumps(asdict(epoch)) for epoch in epochs))
        return
    title = f"{options.data}, {options.parts} parts, homes {options.homes or 'random'}, {options.model}"
    print(
        f"\n{title} {options.hidden} hidden, fan-out {options.fanouts}, {options.targets} targets per rank\n"
    )
    print("\n".join(table(epochs)))


if __name__ == "__main__":
    main()
