"""What the host's own stages take: reading memory, sampling, loading."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from hyrt_perfmodel.platforms.host_tables import LoadCost, SampleCost
from hyrt_perfmodel.workloads.workload import LoadForm

from hyrt.graph.graph import Graph
from hyrt.graph.row_source import DenseFeatures
from hyrt.machine.workers import Workers
from hyrt.nn.aggregation import Aggregation
from hyrt.pipeline.load import Loader
from hyrt.pipeline.trainer import InputPlan
from hyrt.sampling.neighbor import NeighborSampler

REPETITIONS = 7
# The smaller graph and its rows fit into most last-level caches, the larger ones into none.
SMALL = "synthetic:community,vertices=30k"
LARGE = "synthetic:products-s,features=4"
_WIDTHS = (32, 160)
_FANOUTS = (10, 10)
_BATCHES = (64, 1024, 4096)
_LOADED_BATCH = 1024
# More than most last-level caches hold.
_CACHE_BYTES = 2**26
# As the models' first layers aggregate.
_PLANS: dict[tuple[LoadForm, str], InputPlan] = {
    ("rows", ""): InputPlan("rows"),
    ("aggregated", "graphsage"): InputPlan("aggregated", Aggregation("mean", "concat")),
    ("aggregated", "gcn"): InputPlan("aggregated", Aggregation("gcn", "add")),
    ("aggregated", "gin"): InputPlan("aggregated", Aggregation("sum", "add")),
}


@dataclass(frozen=True, slots=True)
class Timing:
    """Repetitions of one measurement."""

    seconds: float
    """The lower quartile: whatever else the machine does only adds."""
    spread: float
    """How far the median is above it, relatively."""


class CacheSweep:
    """Empties the caches, as the other stages of a run do between two mini-batches of one stage."""

    def __init__(self) -> None:
        self._buffer = np.ones(_CACHE_BYTES // 8)

    def __call__(self) -> None:
        self._buffer += 1


def timing(
    work: Callable[[], object], repetitions: int = REPETITIONS, before: Callable[[], None] = lambda: None
) -> Timing:
    """Time a call several times, each after `before`; the first one, which may compile, is left out."""
    work()
    spent = []
    for _ in range(repetitions):
        before()
        started = time.perf_counter()
        work()
        spent.append(time.perf_counter() - started)
    return summarize(spent)


def summarize(spent: Sequence[float]) -> Timing:
    """Lower quartile and spread of repetitions."""
    ordered = sorted(spent)
    low = ordered[len(ordered) // 4]
    return Timing(low, statistics.median(ordered) / low - 1)


def thread_counts(cores: int) -> list[int]:
    """What is measured: powers of two and all cores."""
    counts = [2**power for power in range(cores.bit_length()) if 2**power <= cores]
    return sorted({*counts, cores})


def sequential_gb_s(workers: Workers) -> Timing:
    """Seconds to copy 1e9 bytes there and back again (read and written) with a team of threads."""
    source = np.ones(2**25, np.float32)
    target = np.empty_like(source)

    def copy() -> None:
        workers.run(lambda start, stop: np.copyto(target[start:stop], source[start:stop]), len(source), 2**20)

    measured = timing(copy)
    return Timing(measured.seconds * 1e9 / (2 * source.nbytes), measured.spread)


def sampling(graph: Graph, graph_bytes: float, cores: int) -> Iterator[tuple[SampleCost, float]]:
    """The sampling table of a graph, with the spread of every entry."""
    targets = graph.split("train")
    sweep = CacheSweep()
    for threads, batch in itertools.product(thread_counts(cores), _BATCHES):
        sampler = NeighborSampler(graph, targets, _FANOUTS, batch, 0)
        with Workers(threads, "hyrt.calibrate.sample") as workers:
            for renumbers in (True, False):
                steps = itertools.count()
                edges: list[int] = []

                def sample(
                    sampler: NeighborSampler = sampler,
                    steps: Iterator[int] = steps,
                    edges: list[int] = edges,
                    in_place: bool = not renumbers,
                    workers: Workers = workers,
                ) -> None:
                    step = next(steps)
                    drawn = sampler.sample(step, sampler.units(step), workers, in_place=in_place)
                    edges.append(drawn.num_edges)
                    drawn.release()

                measured = timing(sample, before=sweep)
                drawn_edges = statistics.median(edges)
                cost = SampleCost(
                    renumbers=renumbers,
                    graph_bytes=graph_bytes,
                    edges=drawn_edges,
                    threads=threads,
                    edges_per_s=drawn_edges / measured.seconds,
                )
                yield cost, measured.spread


def loading(graph: Graph, cores: int) -> Iterator[tuple[LoadCost, float]]:
    """The loading table of a graph's size: costs of a row and of its bytes, from two widths."""
    sampler = NeighborSampler(graph, graph.split("train"), _FANOUTS, _LOADED_BATCH, 0)
    matrices = [np.ones((graph.num_vertices, width), np.float32) for width in _WIDTHS]
    sweep = CacheSweep()
    for threads, ((form, model), plan) in itertools.product(thread_counts(cores), _PLANS.items()):
        rows = 0.0
        measured = []
        with Workers(threads, "hyrt.calibrate.load") as workers:
            for matrix in matrices:
                loader = Loader(DenseFeatures(matrix))
                spent = []
                # Another mini-batch each time: rows of the last one may still be in a cache.
                for step in range(REPETITIONS + 2):
                    batch = sampler.sample(step, sampler.units(step), workers, in_place=plan.in_place)
                    sweep()
                    started = time.perf_counter()
                    loader.load(batch, plan, workers)
                    spent.append(time.perf_counter() - started)
                    block = batch.blocks[0]
                    rows = block.num_edges + block.num_dst if form == "aggregated" else block.num_src
                    batch.release()
                # The first ones compile and make the buffers.
                measured.append(summarize(spent[2:]))
        narrow, wide = (matrix.shape[1] * matrix.itemsize for matrix in matrices)
        byte_s = max(1e-13, (measured[1].seconds - measured[0].seconds) / rows / (wide - narrow))
        row_s = max(0.0, measured[0].seconds / rows - byte_s * narrow)
        cost = LoadCost(
            form=form,
            model=model,
            matrix_bytes=statistics.fmean(matrix.nbytes for matrix in matrices),
            threads=threads,
            row_s=row_s,
            gb_s=1e-9 / byte_s,
        )
        yield cost, max(entry.spread for entry in measured)
