"""Fraction of a distributed SpMM's communication that overlaps with computation, without clocks inside it.

    python tools/distributed/comm_overlap.py --data parts --rates 200mbit,1gbit --widths 16,64,128
    python tools/distributed/comm_overlap.py --data parts --rates 3gbit --cores 0:1

There is one emulated node per part of DATA (cluster.py; needs root). For each width, all ranks generate rows,
and time first the separate parts of a distributed SpMM and then a complete SpMM as in full-graph training
(`DistributedSpMM`, sparsity-aware 1D), forward and backward:

local    multiplication of the edges from local rows
rest     multiplication of the edges from rows of other ranks, which are already received
exchange halo exchange of rows or of their gradients, from packing to the last arrival
product  complete operation with overlap

`hidden` is the time saved by overlapping, local + rest + exchange - product, divided by the smaller of local
and exchange; it needs no clock inside the product. Received rows are multiplied while later rows are in
transit, so `hidden` may exceed 100 %. Times are medians over the rounds, in milliseconds, averaged over
ranks; `hidden` is computed from the sums over ranks. Nodes share the cores of this machine: use at most as
many parts as cores, otherwise ranks wait for each other's multiplications. With `--cores M:T` all ranks
multiply on core M in turn, and connection threads run on core T, as if a core were reserved for
communication.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.distributed.context import DistributedContext, init_from_launcher
from hyrt.distributed.gather_ops import DistributedSpMM
from hyrt.distributed.halo_exchange import SparseHaloExchange
from hyrt.distributed.local_edges import GRADIENTS, ROWS, LocalEdges
from hyrt.distributed.rank_grid import PartEdges, RankGrid
from hyrt.fullgraph.plan import GatherContext
from hyrt.graph.partition.manifest import read_manifest
from hyrt.graph.partition.read_parts import open_part
from hyrt.nn.architecture import Aggregation
from hyrt.nn.full_graph.aggregate import spmm_into
from hyrt.runtime.workers import Workers, use_workers

Array = NDArray[Any]
Steps = dict[str, Callable[[], object]]

_CLUSTER = Path(__file__).with_name("cluster.py")
_TIMEOUT_S = 120.0
STEPS = ("local", "rest", "exchange", "product")


def run_ranks(data: Path, widths: Sequence[int], rounds: int, cores: tuple[int, int] | None) -> None:
    """Run as the entry point of every process; rank 0 prints a line per width and direction."""
    if cores is not None:
        # Pin the connection threads: threads inherit the affinity of their parent thread.
        os.sched_setaffinity(0, {cores[1]})
    with init_from_launcher(timeout_s=_TIMEOUT_S) as ranks:
        part = open_part(data, ranks.rank)
        grid = RankGrid(ranks.size, 1, ranks.rank)
        edges = PartEdges.select(grid, part.graph.topology, part.part_ids, oblivious=False)
        spread = LocalEdges(edges, SparseHaloExchange(edges, ranks.group("products")), None)
        if cores is not None:
            os.sched_setaffinity(0, {cores[0]})
        with Workers(1, "overlap") as workers, use_workers(workers):
            for width in widths:
                for direction, steps in time_steps(spread, width, workers):
                    record = {"width": width, "direction": direction, "ms": time_all(ranks, steps, rounds)}
                    if ranks.rank == 0:
                        print(json.dumps(record), flush=True)


def time_steps(spread: LocalEdges, width: int, workers: Workers) -> Iterator[tuple[str, Steps]]:
    """Yield the steps to time of a forward SpMM and of a backward SpMM."""
    edges, exchange = spread.edges, spread.exchange
    num = edges.num_local
    rounds = [slice(*ends) for ends in pairwise(edges.round_starts)]
    spmm = DistributedSpMM(spread, Aggregation("sum", "none"), np.dtype(np.float32))
    rows = np.random.default_rng(0).random((edges.num_rows, width), np.float32)
    sums = np.zeros((num, width), np.float32)
    over = GatherContext(workers=workers)

    def rest() -> None:
        for block, round_index in zip(edges.blocks[1:], rounds, strict=True):
            spmm_into(*block, rows[round_index], sums, accumulate=True, workers=workers)

    def exchange_rows() -> None:
        for arrival in exchange.begin(rows, ROWS):
            arrival.wait()

    yield (
        "forward",
        {
            "local": lambda: spmm_into(*edges.blocks[0], rows[:num], sums, workers=workers),
            "rest": rest,
            "exchange": exchange_rows,
            "product": lambda: spmm.forward((rows,), sums, over),
        },
    )
    transposed = edges.topology.transposed

    def multiply_backward(sources: slice) -> None:
        starts = transposed.indptr[sources.start : sources.stop + 1]
        spmm_into(starts, transposed.indices, sums, rows[sources], workers=workers)

    def exchange_gradients() -> None:
        pending = exchange.begin_backward(rows, GRADIENTS)
        for number in range(len(rounds)):
            pending.send(number)
        pending.add(rows[:num])

    yield (
        "backward",
        {
            "local": lambda: multiply_backward(slice(0, num)),
            "rest": lambda: [multiply_backward(round_index) for round_index in rounds],
            "exchange": exchange_gradients,
            "product": lambda: spmm.backward((rows,), (), sums, (rows,), over),
        },
    )


def time_all(ranks: DistributedContext, steps: Steps, rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds of each step at each rank, as medians over the rounds after a warm-up round."""
    taken = np.zeros((rounds + 1, len(STEPS)))
    for number in range(rounds + 1):
        for column, name in enumerate(STEPS):
            ranks.control.all_reduce(torch.zeros(1), "control")
            started = time.perf_counter()
            steps[name]()
            taken[number, column] = time.perf_counter() - started
    of_all = torch.zeros((ranks.size, len(STEPS)), dtype=torch.float64)
    of_all[ranks.rank] = torch.from_numpy(1e3 * np.median(taken[1:], axis=0))
    ranks.control.all_reduce(of_all, "control")
    return {name: of_all[:, column].tolist() for column, name in enumerate(STEPS)}


def measure(data: Path, rate: str, more: Sequence[str]) -> list[dict[str, Any]]:
    """Return the lines that rank 0 prints on a cluster with the given link rate.

    Raises
    ------
    RuntimeError
        If a rank fails. The message contains the output of the ranks.
    """
    nodes = read_manifest(data).num_parts
    with tempfile.TemporaryDirectory(prefix="hyrt-overlap-") as folder:
        command = [sys.executable, str(_CLUSTER), "--nodes", str(nodes), "--rate", rate, "--logs", folder]
        command += ["--", sys.executable, str(Path(__file__).resolve()), "--data", str(data.resolve())]
        command += more
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        logs = sorted(Path(folder).glob("*.log"))
        if done.returncode:
            printed = "\n".join(log.read_text()[-1000:] for log in logs)
            raise RuntimeError(f"exit code {done.returncode}\n{done.stderr}\n{printed}")
        return [json.loads(line) for line in logs[0].read_text().splitlines() if line.startswith("{")]


def hidden(ms: dict[str, list[float]]) -> float:
    """Return the time saved by overlapping, divided by the smaller of local and exchange time."""
    saved = overlappable = 0.0
    for local, rest, exchange, product in zip(*(ms[name] for name in STEPS), strict=True):
        saved += local + rest + exchange - product
        overlappable += min(local, exchange)
    return saved / overlappable


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, required=True, metavar="PARTS", help="output folder of hyrt partition"
    )
    parser.add_argument("--rates", default="200mbit,1gbit")
    parser.add_argument("--widths", default="16,64,128", help="row widths")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--cores", metavar="M:T", help="core for multiplications, and core for connection threads"
    )
    options = parser.parse_args()
    widths = [int(width) for width in options.widths.split(",")]
    if "RANK" in os.environ:
        cores = None
        if options.cores:
            multiply_core, connection_core = map(int, options.cores.split(":"))
            cores = multiply_core, connection_core
        run_ranks(options.data, widths, options.rounds, cores)
        return
    columns = [
        "rate",
        "direction",
        "columns",
        *(f"{name} (ms)" for name in STEPS),
        "local / exchange",
        "hidden",
    ]
    print(f"| {' | '.join(columns)} |\n| --- | --- | ---:{' | ---:' * (len(columns) - 3)} |", flush=True)
    more = ["--widths", options.widths, "--rounds", str(options.rounds)]
    if options.cores:
        more += ["--cores", options.cores]
    for rate in options.rates.split(","):
        for line in measure(options.data, rate, more):
            ms = line["ms"]
            means = [float(np.mean(ms[name])) for name in STEPS]
            print(
                f"| {rate} | {line['direction']} | {line['width']} | "
                f"{' | '.join(f'{mean:.1f}' for mean in means)} | {means[0] / means[2]:.2f} | "
                f"{hidden(ms):.0%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
