"""What an order of vertices gives: CPU time of a sum over all edges, in each of the orders.

python tools/bench/vertex_order.py SOURCE [WIDTH ...]
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from hyrt.graph.formats.schema import Dataset
from hyrt.graph.formats.vertex_order import ORDERS, find_order, in_vertex_order
from hyrt.graph.source import open_dataset
from hyrt.nn.whole_graph.spmm import spmm_into

ROUNDS = 9


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


def main() -> None:
    source, *widths = sys.argv[1:]
    columns = [int(width) for width in widths] or [16, 64]
    heads = ("order", "found in CPU s", "peak MiB", *(f"f = {width}, CPU ms" for width in columns))
    print(f"{source}\n\n| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    with tempfile.TemporaryDirectory() as scratch:
        data = open_dataset(source, Path(scratch))
        # Drawn at random, what numbers the vertices had before is of no use.
        num = len(data.arrays["labels"])
        random = np.random.default_rng(0).permutation(num).astype(np.int32)
        for how in (None, "random", *ORDERS):
            began, ordered = time.process_time(), data
            if how is not None:
                order = random if how == "random" else find_order(data, how)
                found = time.process_time() - began
                folder = Path(scratch) / how
                folder.mkdir()
                ordered = in_vertex_order(data, order, folder)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
            seconds = "" if how in (None, "random") else f"{found:.2f}"
            print(f"| {how or 'as it is'} | {seconds} | {peak} | {measure(ordered, columns)} |", flush=True)


if __name__ == "__main__":
    main()
