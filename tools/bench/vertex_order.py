"""CPU time of a sum over all edges, or of full-graph steps, for each vertex order.

    python tools/bench/vertex_order.py SOURCE
    python tools/bench/vertex_order.py SOURCE --steps 16 128 --orders random community

With `--steps`, the tool trains a GCN of each hidden width for some steps with all vertices as targets. The
first step is warm-up. The output has the minimum CPU milliseconds, and the first loss, which must be equal
for all orders.
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
from timed_runs import make_parser, prepared, settings, timed_run

from hyrt.config import build_config
from hyrt.graph.formats.reorder import ORDERS, find_order, reorder_vertices
from hyrt.graph.formats.schema import Dataset, to_graph
from hyrt.graph.source import open_dataset
from hyrt.nn.full_graph.aggregate import spmm_into
from hyrt.telemetry.events import EpochEnded

if TYPE_CHECKING:
    from hyrt.telemetry.events import Event

ROUNDS = 9
STEPS = 6


def measure(data: Dataset, widths: list[int]) -> str:
    """Return the minimum CPU time, in ms, of a sum over all edges for each row width, as table cells."""
    shown = []
    for width in widths:
        # Use torch, which aligns memory to cache lines.
        x, out = (torch.ones(len(data.arrays["labels"]), width).numpy() for _ in range(2))
        times = []
        for _ in range(ROUNDS):
            began = time.process_time()
            spmm_into(data.arrays["indptr"], data.arrays["indices"], x, out)
            times.append(time.process_time() - began)
        shown.append(f"{1e3 * min(times[1:]):.1f}")
    return " | ".join(shown)


def measure_steps(data: Dataset, widths: list[int]) -> str:
    """Return the minimum CPU milliseconds of a full-graph GCN step over all vertices, and its loss."""
    graph = to_graph(data)
    graph.masks["train"][:] = True
    shown = []
    for width in widths:
        run_settings = settings(
            "gcn", STEPS, hidden=width, sampler={"kind": "full"}, data={"normalize": "none"},
            balance={"predict": False}, runtime={"train_threads": 1},
        )  # fmt: skip
        del run_settings["sampler"]["fanout"], run_settings["data"]["batch_size"]
        marks: list[float] = []

        def on_event(event: Event, marks: list[float] = marks) -> None:
            if isinstance(event, EpochEnded):
                marks.append(time.process_time())

        run = timed_run(build_config(run_settings), graph, on_event=on_event)
        times = [after - before for before, after in pairwise(marks)]
        shown.append(f"{1e3 * min(times):.1f} ({run.groups[0].losses[0]:.6f})")
    return " | ".join(shown)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("source", help="any dataset that hyrt opens")
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 64], help="row widths")
    parser.add_argument("--steps", type=int, nargs="+", help="hidden widths of timed GCN steps")
    parser.add_argument("--orders", nargs="+", default=["as it is", "random", *ORDERS])
    options = parser.parse_args()
    prepared()
    measured, widths = (measure, options.widths) if options.steps is None else (measure_steps, options.steps)
    heading = "f =" if options.steps is None else "GCN, hidden"
    heads = ("order", "found in CPU s", "peak MiB", *(f"{heading} {width}, CPU ms" for width in widths))
    print(f"{options.source}\n\n| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    with tempfile.TemporaryDirectory() as scratch:
        data = open_dataset(options.source, Path(scratch))
        # Draw the random order once, based on the original vertex numbers.
        num = len(data.arrays["labels"])
        random = np.random.default_rng(0).permutation(num).astype(np.int32)
        for how in options.orders:
            began, ordered = time.process_time(), data
            if how != "as it is":
                order = random if how == "random" else find_order(data, how)
                found = time.process_time() - began
                folder = Path(scratch) / how
                folder.mkdir()
                ordered = reorder_vertices(data, order, folder)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
            seconds = f"{found:.2f}" if how in ORDERS else ""
            print(f"| {how} | {seconds} | {peak} | {measured(ordered, widths)} |", flush=True)


if __name__ == "__main__":
    main()
