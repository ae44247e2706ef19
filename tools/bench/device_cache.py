"""How many rows a device's cache has: predicted, counted, and beside caches of the vertices of most edges.

    python tools/bench/device_cache.py GRAPH ... [--parts 0.05 0.1 0.2] [--fanout 25,10] [--part 0.5]

For each graph and part of the rows: the predicted hit rate, the one that is counted over the mini-batches of
some epochs, and the counted rates of caches that hold the rows of most edges into and out of their vertices.
In the last column is the most that any cache of that size can have in these epochs.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

from timed_runs import parser, prepared, show


def arguments() -> argparse.Namespace:
    """The options of the command line."""
    asked = parser(__doc__)
    asked.add_argument("graphs", nargs="+")
    asked.add_argument("--parts", nargs="+", type=float, default=[0.05, 0.1, 0.2], help="parts of all rows")
    asked.add_argument("--fanout", default="25,10", help="neighbours in each layer, the targets' layer first")
    asked.add_argument("--batch", type=int, default=1024)
    asked.add_argument("--part", type=float, default=0.5, help="the part of each step that the device trains")
    asked.add_argument("--sampler", default="neighbor", help="the kind of sampler")
    asked.add_argument("--epochs", type=int, default=2, help="epochs to count")
    return asked.parse_args()


def rows_of(source: str, options: argparse.Namespace) -> list[str]:
    """A line of the table for each part of the rows."""
    import numpy as np

    from hyrt.config import build_config
    from hyrt.graph import open_graph
    from hyrt.machine.workers import Workers
    from hyrt.sampling.visits.row_ranking import rank_rows
    from hyrt.training.setup import build_sampler

    graph = open_graph(source, normalize="none")
    given: dict[str, Any] = {"kind": options.sampler}
    if options.sampler == "neighbor":
        given["fanout"] = [int(each) for each in options.fanout.split(",")]
    config = build_config({"sampler": given, "data": {"batch_size": options.batch}})
    targets, topology = graph.split("train"), graph.topology
    sampler = build_sampler(config, graph, targets)
    visits = np.zeros(graph.num_vertices)
    with Workers(2, "cache") as workers:
        asked = config.sampler, sampler, topology, targets, options.batch, config.fanouts, options.part
        ranking = rank_rows(*asked, workers)
        per_epoch = sampler.steps_per_epoch()
        # Steps that no ranking has looked at.
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
        given = f"{graph.name} | {part:.0%}"
        rates = {name: visits[order[:count]].sum() / visits.sum() for name, order in orders.items()}
        better = rates["mine"] / rates["in"]
        lines.append(
            f"| {given} | {ranking.hit_rate(count):.1%} | {rates['mine']:.1%} | "
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
        lines += rows_of(source, options)
    show("\n".join(lines), None)


if __name__ == "__main__":
    main()
