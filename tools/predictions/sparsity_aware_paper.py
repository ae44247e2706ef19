"""Predicted epochs for the graphs of *Sparsity-Aware Communication for Distributed GNN Training*.

    python tools/predictions/sparsity_aware_paper.py
    python tools/predictions/sparsity_aware_paper.py --latency-us 20

The predictions should have the shape of the paper's Fig. 3 (1D) and 7 (1.5D); nothing is fitted to its times.
Communication volumes are computed from sizes: exactly for complete blocks, as expectations for random parts,
and for the Amazon graph from the published means and maxima of METIS's parts (Table 2), which a power law
extends beyond 16 to 256 parts. Assumptions about the machines are printed before the Markdown tables.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from hyrt_perfmodel.distributed_epoch import AlgorithmEpoch, BlockVolumes, FullGraphWork, algorithm_epoch
from hyrt_perfmodel.network import Network, find_network
from hyrt_perfmodel.platform_file import load_platform

HIDDEN, PRODUCTS, FLOAT = 16, 6, 4
RANKS = (4, 8, 16, 32, 64, 128, 256)
MAX_RANKS = 4096
# Mean and maximum megabytes that a process sends in one SpMM with Amazon's METIS parts, by number of parts.
# The paper does not state the width; rows of 16 values are assumed.
TABLE_2 = {
    16: (199.6, 333.5),
    32: (132.9, 241.6),
    64: (83.9, 164.0),
    128: (52.5, 117.3),
    256: (32.6, 86.4),
}
# The paper says that "only a few thousand" edges of Protein are cut.
PROTEIN_CUT = 5_000


@dataclass(frozen=True, slots=True)
class SizesOfGraph:
    """Sizes of a graph in Table 3."""

    vertices: int
    edges: int
    features: int
    labels: int


GRAPHS = {
    "reddit": SizesOfGraph(232_965, 114_848_857, 602, 41),
    "amazon": SizesOfGraph(14_249_639, 230_788_269, 300, 24),
    "protein": SizesOfGraph(8_745_542, 2_116_240_124, 300, 24),
}


def work(graph: SizesOfGraph) -> FullGraphWork:
    """Return the epoch of a three-layer GCN on an A100, with 16 columns in all exchanges."""
    device = load_platform("a100").accelerators[0]
    bytes_per_s = device.memory_gb_s * 1e9
    weights = graph.features * HIDDEN + HIDDEN * HIDDEN + HIDDEN * graph.labels
    # Count three products: forward, weight gradient and input gradient.
    macs = 3 * graph.vertices * weights
    # Each edge reads a row and two values of the matrix.
    edge_bytes = PRODUCTS * graph.edges * (HIDDEN + 2) * FLOAT
    feature_bytes = graph.vertices * graph.features * FLOAT
    widths = (HIDDEN,) * (PRODUCTS // 2)
    return FullGraphWork(
        forward_widths=widths,
        backward_widths=widths,
        has_only_sums=True,
        edges_s=edge_bytes / bytes_per_s,
        rows_s=2 * feature_bytes / bytes_per_s + macs / device.macs_per_s,
        gradient_bytes=weights * FLOAT,
        matrix_bytes=PRODUCTS * graph.vertices * HIDDEN * FLOAT,
        feature_bytes=feature_bytes,
        graph_bytes=2 * graph.edges * FLOAT,
    )


def volumes(graph: SizesOfGraph, blocks: int, average: float, maximum: float | None = None) -> BlockVolumes:
    """Return equal blocks with given communication volumes, which are uniform over destinations.

    Parameters
    ----------
    graph
        Graph, whose edges are distributed evenly over blocks.
    blocks
        Number of blocks.
    average, maximum
        Mean number of rows that a block sends, and number of rows of the first block, by default the mean.
    """
    maximum = average if maximum is None else maximum
    sent = np.full(blocks, (average * blocks - maximum) / max(1, blocks - 1))
    sent[0] = maximum
    needed = np.round(np.tile(sent / max(1, blocks - 1), (blocks, 1))).astype(np.int64)
    np.fill_diagonal(needed, 0)
    return BlockVolumes(
        rows=np.full(blocks, graph.vertices // blocks),
        needed=needed,
        edges=np.full((blocks, blocks), graph.edges // blocks**2),
    )


def random_parts(graph: SizesOfGraph, blocks: int) -> BlockVolumes:
    """Return random parts of vertices with mean degree, which overestimates the volumes of skewed graphs."""
    part_of_a_block = 1 - (1 - 1 / blocks) ** (graph.edges / graph.vertices)
    return volumes(graph, blocks, (blocks - 1) * graph.vertices / blocks * part_of_a_block)


def metis_parts(blocks: int, *, even: bool = False) -> BlockVolumes:
    """Return Amazon's parts from Table 2 or the power law. With `even`, all parts send the mean."""
    average, maximum = TABLE_2.get(blocks, tuple(_power_law(column, blocks) for column in (0, 1)))
    row = HIDDEN * FLOAT / 1e6
    return volumes(GRAPHS["amazon"], blocks, average / row, None if even else maximum / row)


def _power_law(column: int, blocks: int) -> float:
    logs = np.log([(parts, values[column]) for parts, values in TABLE_2.items()])
    slope, start = np.polyfit(logs[:, 0], logs[:, 1], 1)
    return float(np.exp(start + slope * np.log(blocks)))


def epoch(
    algorithm: str, graph: SizesOfGraph, parts: BlockVolumes, network: Network, copies: int = 1
) -> AlgorithmEpoch:
    """Predict the epoch on as many ranks as parts times copies."""
    return algorithm_epoch(algorithm, parts, parts.num_blocks * copies, work(graph), network)


def fastest_ranks(epochs: Sequence[AlgorithmEpoch]) -> int:
    """Return the number of ranks with the shortest epoch."""
    return min(epochs, key=lambda each: each.epoch_s).ranks


def sweep_1d(name: str, network: Network) -> dict[str, list[AlgorithmEpoch]]:
    """Predict the epochs of Fig. 3 on 4 to 256 ranks, by variant."""
    graph = GRAPHS[name]
    epochs = {
        "oblivious": [epoch("1d-oblivious", graph, random_parts(graph, ranks), network) for ranks in RANKS],
        "aware, random parts": [epoch("1d", graph, random_parts(graph, ranks), network) for ranks in RANKS],
    }
    if name == "amazon":
        epochs["aware, METIS"] = [epoch("1d", graph, metis_parts(ranks), network) for ranks in RANKS]
        epochs["aware, METIS's total evenly sent"] = [
            epoch("1d", graph, metis_parts(ranks, even=True), network) for ranks in RANKS
        ]
    if name == "protein":
        epochs["aware, parts that cut few edges"] = [
            epoch("1d", graph, volumes(graph, ranks, 2 * PROTEIN_CUT / ranks), network) for ranks in RANKS
        ]
    return epochs


def sweep_15d(copies: int, network: Network, max_ranks: int = MAX_RANKS) -> dict[str, list[AlgorithmEpoch]]:
    """Predict Amazon's epochs of Fig. 7 on 16 and more ranks, with `copies` ranks per block."""
    graph, epochs = GRAPHS["amazon"], {}
    kind = "1d" if copies == 1 else "1.5d"
    blocks = [ranks // copies for ranks in _doubling(16, max_ranks) if ranks >= copies**2]
    epochs["oblivious"] = [
        epoch(f"{kind}-oblivious", graph, random_parts(graph, count), network, copies) for count in blocks
    ]
    epochs["aware, random parts"] = [
        epoch(kind, graph, random_parts(graph, count), network, copies) for count in blocks
    ]
    epochs["aware, METIS"] = [epoch(kind, graph, metis_parts(count), network, copies) for count in blocks]
    return epochs


def _doubling(first: int, last: int) -> list[int]:
    return [first << power for power in range((last // first).bit_length())]


def _table(title: str, heads: Sequence[object], rows: Sequence[Sequence[object]]) -> None:
    print(f"\n{title}\n\n| {' | '.join(map(str, heads))} |\n| --- |{' ---: |' * (len(heads) - 1)}")
    for cells in rows:
        print(f"| {' | '.join(map(str, cells))} |")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", default="slingshot-11")
    parser.add_argument("--latency-us", type=float, help="latency of a message; by default the network's")
    options = parser.parse_args(arguments)
    network = find_network(options.network)
    if options.latency_us is not None:
        network = replace(
            network, latency_s=options.latency_us * 1e-6, source=f"{network.source}, but latency"
        )
    print(
        f"Network {network.name}: {network.gb_s:g} GB/s, {network.latency_s * 1e6:g} us ({network.source})."
    )
    print(f"Each rank is an A100 ({load_platform('a100').source}).")
    for name in GRAPHS:
        sweep = sweep_1d(name, network)
        rows = [[way, *(f"{1e3 * each.epoch_s:.1f}" for each in epochs)] for way, epochs in sweep.items()]
        _table(f"{name}, 1D: milliseconds of an epoch by ranks", ["", *RANKS], rows)
    rows = []
    for copies in (1, 2, 4):
        for way, epochs in sweep_15d(copies, network).items():
            times = [f"{1e3 * each.epoch_s:.1f}" for each in epochs]
            rows.append([f"c = {copies}, {way}", *times, fastest_ranks(epochs)])
    heads = ["", *_doubling(16, MAX_RANKS), "least at"]
    _table("amazon, 1.5D: milliseconds of an epoch by ranks", heads, rows)


if __name__ == "__main__":
    main()
