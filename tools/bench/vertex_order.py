"""What an order of vertices gives: CPU time of a sum over all edges, or of full-graph steps, in each order.

    python tools/bench/vertex_order.py SOURCE
    python tools/bench/vertex_order.py SOURCE --steps 16 128 --orders random community

With `--steps`, a GCN of each hidden width is trained for some steps whose targets are all vertices, in place
of the sums; the first step is left out, and the first loss, which is that of equal weights and the same
graph, is printed beside the fewest CPU milliseconds.
"""

from __future__ import annotations

import resource
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from timed_runs import parser, prepared, settings, timed_run

from hyrt.config import build_config
from hyrt.graph.formats.schema import Dataset, to_graph
from hyrt.graph.formats.vertex_order import ORDERS, find_order, in_vertex_order
from hyrt.graph.source import open_dataset
from hyrt.nn.whole_graph.spmm import spmm_into
from hyrt.observe.events import EpochEnded

if TYPE_CHECKING:
    from hyrt.observe.events import Event

ROUNDS = 9
STEPS = 6


def measure(data: Dataset, widths: list[int]) -> str:
    """The fewest CPU milliseconds of a sum over all edges, for rows of each width."""
    shown = []
    for width in widths:
        # torch's memory begins at a cache line.
        x, out = (torch.ones(len(data.arrays["labels"]), width).numpy() for _ in range(2))
        times = []
        for _ in range(ROUNDS):
            began = time.process_time()
            spmm_into(data.arrays["indptr"], data.arrays["indices"], x, out)
            times.append(time.process_time() - began)
        shown.append(f"{1e3 * min(times[1:]):.1f}")
    return " | ".join(shown)


def measure_steps(data: Dataset, widths: list[int]) -> str:
    """The fewest CPU milliseconds of a full-graph step of GCN, all vertices targets, and the first loss."""
    graph = to_graph(data)
    graph.masks["train"][:] = True
    shown = []
    for width in widths:
        asked = settings(
            "gcn", STEPS, hidden=width, sampler={"kind": "full"}, data={"normalize": "none"},
            balance={"predict": False}, runtime={"train_threads": 1},
        )  # fmt: skip
        del asked["sampler"]["fanout"], asked["data"]["batch_size"]
        marks: list[float] = []

        def hear(event: Event, marks: list[float] = marks) -> None:
            if isinstance(event, EpochEnded):
                marks.append(time.process_time())

        run = timed_run(build_config(asked), graph, hear=hear)
        times = [after - before for before, after in pairwise(marks)]
        shown.append(f"{1e3 * min(times):.1f} ({run.groups[0].losses[0]:.6f})")
    return " | ".join(shown)


def main() -> None:
    asked = parser(__doc__)
    asked.add_argument("source", help="any dataset that hyrt opens")
    asked.add_argument("--widths", type=int, nargs="+", default=[16, 64], help="columns of the rows summed")
    asked.add_argument("--steps", type=int, nargs="+", help="hidden widths of a GCN whose steps are timed")
    asked.add_argument("--orders", nargs="+", default=["as it is", "random", *ORDERS])
    options = asked.parse_args()
    prepared()
    measured, widths = (measure, options.widths) if options.steps is None else (measure_steps, options.steps)
    what = "f =" if options.steps is None else "GCN, hidden"
    heads = ("order", "found in CPU s", "peak MiB", *(f"{what} {width}, CPU ms" for width in widths))
    print(f"{options.source}\n\n| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    with tempfile.TemporaryDirectory() as scratch:
        data = open_dataset(options.source, Path(scratch))
        # Drawn at random, what numbers the vertices had before is of no use.
        num = len(data.arrays["labels"])
        random = np.random.default_rng(0).permutation(num).astype(np.int32)
        for how in options.orders:
            began, ordered = time.process_time(), data
            if how != "as it is":
                order = random if how == "random" else find_order(data, how)
                found = time.process_time() - began
                folder = Path(scratch) / how
                folder.mkdir()
                ordered = in_vertex_order(data, order, folder)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
            seconds = f"{found:.2f}" if how in ORDERS else ""
            print(f"| {how} | {seconds} | {peak} | {measured(ordered, widths)} |", flush=True)


if __name__ == "__main__":
    main()
