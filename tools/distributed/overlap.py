"""How much of a product's communication is hidden behind multiplying, measured from outside.

    python tools/distributed/overlap.py --data parts --rates 200mbit,1gbit --widths 16,64,128
    python tools/distributed/overlap.py --data parts --rates 3gbit --cores 0:1

One emulated node for each part of DATA (cluster.py; root is needed). For each width, every rank draws rows
and times, in turn and all ranks at once, what a product is made of, each by itself, and then a whole one as
full-graph training does it (`SumOnRanks`, sparsity-aware 1D), forward and backward:

own      multiplying the edges from own rows
rest     multiplying the edges from rows of other ranks, which are there
travel   the exchange of rows, or of their gradients, from packing them to the last that has arrived
product  all of it, as it overlaps

`hidden` is what overlapping saves, own + rest + travel - product, over the smaller of own and travel; no
clock inside the product has a part in it. Rows that arrive are multiplied while later ones travel, so that it
may be over 100 %. Times are medians over the rounds, in milliseconds, and means over ranks; `hidden` is of
the sums over ranks. Nodes share the cores of this machine: give as many parts as it has cores, or know that
a rank's multiplying waits for that of others. With `--cores M:T` all ranks multiply on core M, by turns, and
the threads of their connections run on core T, as if sockets had a core that nobody multiplies on.
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

from hyrt.distributed.full_graph.exchanges.needed_rows import NeededRows
from hyrt.distributed.full_graph.part_edges import PartEdges
from hyrt.distributed.full_graph.rank_grid import RankGrid
from hyrt.distributed.full_graph.spread_edges import GRADIENTS, ROWS, SpreadEdges
from hyrt.distributed.full_graph.sum_on_ranks import SumOnRanks
from hyrt.distributed.joined_ranks import JoinedRanks, joined_by_launcher
from hyrt.fullgraph.destinations import GatheringPass
from hyrt.graph.partition.manifest import read_manifest
from hyrt.graph.partition.one_part import open_part
from hyrt.machine.workers import Workers, working
from hyrt.nn.aggregation import Aggregation
from hyrt.nn.whole_graph.spmm import spmm_into

Array = NDArray[Any]
Steps = dict[str, Callable[[], object]]

_CLUSTER = Path(__file__).with_name("cluster.py")
_TIMEOUT_S = 120.0
STEPS = ("own", "rest", "travel", "product")


def in_ranks(data: Path, widths: Sequence[int], rounds: int, cores: tuple[int, int] | None) -> None:
    """What every process of a start does; rank 0 prints a line for each width and direction."""
    if cores is not None:
        # Threads that are started run where the one does that starts them.
        os.sched_setaffinity(0, {cores[1]})
    with joined_by_launcher(timeout_s=_TIMEOUT_S) as ranks:
        part = open_part(data, ranks.rank)
        grid = RankGrid(ranks.size, 1, ranks.rank)
        edges = PartEdges.of(grid, part.graph.topology, part.homes, oblivious=False)
        spread = SpreadEdges(edges, NeededRows(edges, ranks.group("products")), None)
        if cores is not None:
            os.sched_setaffinity(0, {cores[0]})
        with Workers(1, "overlap") as workers, working(workers):
            for width in widths:
                for direction, steps in both_ways(spread, width, workers):
                    told = {"width": width, "direction": direction, "ms": timed(ranks, steps, rounds)}
                    if ranks.rank == 0:
                        print(json.dumps(told), flush=True)


def both_ways(spread: SpreadEdges, width: int, workers: Workers) -> Iterator[tuple[str, Steps]]:
    """What a product forward and one backward are made of, ready to be timed."""
    edges, exchange = spread.edges, spread.exchange
    num = edges.num_own
    waves = [slice(*ends) for ends in pairwise(edges.wave_starts)]
    whole = SumOnRanks(spread, Aggregation("sum", "none"), np.dtype(np.float32))
    rows = np.random.default_rng(0).random((edges.num_rows, width), np.float32)
    sums = np.zeros((num, width), np.float32)
    over = GatheringPass(workers=workers)

    def rest() -> None:
        for block, wave in zip(edges.blocks[1:], waves, strict=True):
            spmm_into(*block, rows[wave], sums, accumulate=True, workers=workers)

    def travel() -> None:
        for arrival in exchange.begin(rows, ROWS):
            arrival.wait()

    yield (
        "forward",
        {
            "own": lambda: spmm_into(*edges.blocks[0], rows[:num], sums, workers=workers),
            "rest": rest,
            "travel": travel,
            "product": lambda: whole.forward((rows,), sums, over),
        },
    )
    turned = edges.topology.transposed

    def multiply_back(sources: slice) -> None:
        starts = turned.indptr[sources.start : sources.stop + 1]
        spmm_into(starts, turned.indices, sums, rows[sources], workers=workers)

    def travel_back() -> None:
        back = exchange.begin_back(rows, GRADIENTS)
        for number in range(len(waves)):
            back.send(number)
        back.add(rows[:num])

    yield (
        "backward",
        {
            "own": lambda: multiply_back(slice(0, num)),
            "rest": lambda: [multiply_back(wave) for wave in waves],
            "travel": travel_back,
            "product": lambda: whole.backward((rows,), (), sums, (rows,), over),
        },
    )


def timed(ranks: JoinedRanks, steps: Steps, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each step at each rank, the median over the rounds; one round more comes first."""
    taken = np.zeros((rounds + 1, len(STEPS)))
    for number in range(rounds + 1):
        for column, name in enumerate(STEPS):
            ranks.control.add(torch.zeros(1), "control")
            started = time.perf_counter()
            steps[name]()
            taken[number, column] = time.perf_counter() - started
    of_all = torch.zeros((ranks.size, len(STEPS)), dtype=torch.float64)
    of_all[ranks.rank] = torch.from_numpy(1e3 * np.median(taken[1:], axis=0))
    ranks.control.add(of_all, "control")
    return {name: of_all[:, column].tolist() for column, name in enumerate(STEPS)}


def measure(data: Path, rate: str, more: Sequence[str]) -> list[dict[str, Any]]:
    """The lines that rank 0 prints on a cluster whose links have a rate.

    Raises
    ------
    RuntimeError
        If a rank fails, with what the ranks have printed.
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
    """What overlapping saves, over the smaller of own and travel."""
    saved = least = 0.0
    for own, rest, travel, product in zip(*(ms[name] for name in STEPS), strict=True):
        saved += own + rest + travel - product
        least += min(own, travel)
    return saved / least


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="PARTS", help="of hyrt partition")
    parser.add_argument("--rates", default="200mbit,1gbit")
    parser.add_argument("--widths", default="16,64,128", help="columns of the rows")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cores", metavar="M:T", help="the core that multiplies, and that of connections")
    asked = parser.parse_args()
    widths = [int(width) for width in asked.widths.split(",")]
    if "RANK" in os.environ:
        cores = None
        if asked.cores:
            multiplies, travels = map(int, asked.cores.split(":"))
            cores = multiplies, travels
        in_ranks(asked.data, widths, asked.rounds, cores)
        return
    columns = ["rate", "direction", "columns", *(f"{name} (ms)" for name in STEPS), "own / travel", "hidden"]
    print(f"| {' | '.join(columns)} |\n| --- | --- | ---:{' | ---:' * (len(columns) - 3)} |", flush=True)
    more = ["--widths", asked.widths, "--rounds", str(asked.rounds)]
    if asked.cores:
        more += ["--cores", asked.cores]
    for rate in asked.rates.split(","):
        for line in measure(asked.data, rate, more):
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
