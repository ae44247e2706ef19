"""Predicted and measured hit rates of a device's feature cache, compared with degree-based caches.

    python tools/bench/device_cache.py GRAPH ... [--parts 0.05 0.1 0.2] [--fanout 25,10] [--part 0.5]

For each graph and cached fraction of the rows, the table has the predicted hit rate, the hit rate measured
over the mini-batches of some epochs, and the measured hit rates of caches with the vertices of highest
in-degree and of highest out-degree. The last column is the maximum that any cache of this size can reach in
these epochs.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

from timed_runs import make_parser, prepared, show


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("graphs", nargs="+")
    parser.add_argument(
        "--parts", nargs="+", type=float, default=[0.05, 0.1, 0.2], help="fractions of all rows"
    )
    parser.add_argument("--fanout", default="25,10", help="neighbours per layer, the targets' layer first")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument(
        "--part", type=float, default=0.5, help="fraction of each step that the device trains"
    )
    parser.add_argument("--sampler", default="neighbor", help="kind of sampler")
    parser.add_argument("--epochs", type=int, default=2, help="number of measured epochs")
    return parser.parse_args()


def table_rows(source: str, options: argparse.Namespace) -> list[str]:
    """Return a table line per cache size."""
    import numpy as np

    from hyrt.config import build_config
    from hyrt.graph import open_graph
    from hyrt.runtime.workers import Workers
    from hyrt.sampling.hotness import rank_by_hotness
    from hyrt.training.setup import build_sampler

    graph = open_graph(source, normalize="none")
    sampler_settings: dict[str, Any] = {"kind": options.sampler}
    if options.sampler == "neighbor":
        sampler_settings["fanout"] = [int(each) for each in options.fanout.split(",")]
    config = build_config({"sampler": sampler_settings, "data": {"batch_size": options.batch}})
    targets, topology = graph.split("train"), graph.topology
    sampler = build_sampler(config, graph, targets)
    visits = np.zeros(graph.num_vertices)
    with Workers(2, "cache") as workers:
        ranking_arguments = (
            config.sampler,
            sampler,
            topology,
            targets,
            options.batch,
            config.fanouts,
            options.part,
        )
        ranking = rank_by_hotness(*ranking_arguments, workers)
        per_epoch = sampler.steps_per_epoch()
        # Measure on steps that were not used to rank the vertices.
        for step in range(10 * per_epoch, (10 + options.epochs) * per_epoch):
            units = sampler.units(step)
            mine = units[: math.ceil(options.part * len(units))]
            batch = sampler.sample(step, mine, workers, in_place=False)
            visits[batch.blocks[0].sources] += 1
            batch.release()
    out_degrees = np.bincount(topology.indices, minlength=graph.num_vertices)
    orders = {
        "mine": ranking.vertices,
        "in": np.argsort(-topology.in_degrees.astype(np.int64), kind="stable"),
        "out": np.argsort(-out_degrees, kind="stable"),
        "best": np.argsort(-visits, kind="stable"),
    }
    lines = []
    for part in options.parts:
        count = int(part * graph.num_vertices)
        sampler_settings = f"{graph.name} | {part:.0%}"
        rates = {name: visits[order[:count]].sum() / visits.sum() for name, order in orders.items()}
        better = rates["mine"] / rates["in"]
        lines.append(
            f"| {sampler_settings} | {ranking.hit_rate(count):.1%} | {rates['mine']:.1%} | "
            f"{rates['in']:.1%} | {rates['out']:.1%} | {better:.2f} | {rates['best']:.1%} |"
        )
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    options = arguments()
    prepared()
    lines = [
        "| graph | kept | predicted | counted | by in-degree | by out-degree | over in-degree | at most |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for source in options.graphs:
        lines += table_rows(source, options)
    show("\n".join(lines), None)


if __name__ == "__main__":
    main()
