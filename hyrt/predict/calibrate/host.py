"""What the host's own stages take: reading memory, sampling, loading."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from hyrt_perfmodel.calibration.fit_rates import non_negative
from hyrt_perfmodel.platforms.host_tables import LoadCost, SampleCost, SparseCost, WalkCost
from hyrt_perfmodel.sizes.expected_sizes import BlockSizes
from hyrt_perfmodel.workloads.workload import LoadForm

from hyrt.graph.graph import Graph
from hyrt.graph.row_source import DenseFeatures, SparseFeatures
from hyrt.graph.topology import Topology
from hyrt.machine.buffer_pool import BufferPool
from hyrt.machine.workers import Workers, working
from hyrt.nn.aggregation import Aggregation
from hyrt.nn.operators.sparse import SparseRows, sparse_linear
from hyrt.pipeline.load import Loader
from hyrt.pipeline.trainer import InputPlan
from hyrt.sampling.neighbor import NeighborSampler
from hyrt.sampling.saint.saint_sampler import SaintSampler
from hyrt.sampling.saint_settings import SaintSettings

REPETITIONS, _SHORT_REPETITIONS = 5, 15
# So many repetitions are enough where their median is this little above the lower quartile.
_ENOUGH, _AGREE = 3, 0.02
# The smaller graph and its rows fit into most last-level caches, the larger ones into none. The least one is
# in a core's own cache, as graphs of a few thousand vertices are.
LEAST = "synthetic:tiny"
SMALL = "synthetic:community,vertices=30k"
LARGE = "synthetic:products-s,vertices=300k,features=4"
# Its rows lie on more pages of memory than a processor keeps the addresses of: each costs twice as much.
HUGE = "synthetic:papers-s,features=4"
# It is left out where less memory is free: its widest rows take 1.3 GB, and its edges are copied.
HUGE_BYTES = 6e9
_WIDTHS = (32, 160)
_FANOUTS = (10, 10)
_BATCHES = (64, 1024, 4096)
_LOADED_BATCH = 1024
# What a step reads and writes for each target between two mini-batches of one stage, about: the rows of
# sources and results of all layers, forward and backward. Where cores have 2 MiB of cache each and share
# more, sampling and loading take up to 2.5 times as long after a large step as after a small one.
_STEP_BYTES_PER_TARGET, _MOST_SWEPT_BYTES = 80_000, 2**28
# Stored values of sparse rows. Shorter ones lie in so few bytes that a core's own cache holds many of them.
_ROW_ENTRIES = (16, 128)
# Targets whose sparse rows are loaded: few enough that most rows are left out. Where nearly all are read in
# their order, the processor fetches the next one ahead, which it cannot do in a run.
_SPARSE_BATCH = 128
# Targets of a mini-batch that is loaded for what it costs whatever its rows.
_FEW_TARGETS = 2
# Walks of a subgraph and of a very small one, and the edges a vertex keeps where steps of walks shall be most
# of the work.
_ROOTS, _FEW_ROOTS, _WALK_LENGTH, _FEW_EDGES = 1000, 20, 2, 3
# Columns of sparse rows, as unevenly frequent as words are, and of their products: weights that a core's own
# cache holds, and others. The gradient of products of up to 32 columns is added up by one thread.
_SPARSE_WIDTHS, _PRODUCT_WIDTHS = (512, 8192), (16, 32, 64, 256)
# So many rows that the products take much longer than what each weight costs.
_SPARSE_ROWS, _SPARSE_ENTRIES, _SPARSE_REPETITIONS = 4000, 64, 8
# As the models' first layers aggregate.
_PLANS: dict[tuple[LoadForm, str], InputPlan] = {
    ("rows", ""): InputPlan("rows"),
    ("sparse", ""): InputPlan("sparse"),
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
    """Empties the caches as far as the other stages of a run do between two mini-batches of one stage.

    Parameters
    ----------
    targets
        The targets of a mini-batch.
    """

    def __init__(self, targets: int = 400) -> None:
        self._buffer = np.ones(min(targets * _STEP_BYTES_PER_TARGET, _MOST_SWEPT_BYTES) // 8)

    def __call__(self) -> None:
        self._buffer += 1


def timing(
    work: Callable[[], object], repetitions: int = REPETITIONS, before: Callable[[], None] = lambda: None
) -> Timing:
    """Time a call several times, each after `before`; the first one, which may compile, is left out.

    Parameters
    ----------
    work, before
        The call, and what is done before each.
    repetitions
        How often at most; fewer are enough where they agree.
    """
    work()
    spent: list[float] = []
    while len(spent) < repetitions and not agree(spent):
        before()
        started = time.perf_counter()
        work()
        spent.append(time.perf_counter() - started)
    return summarize(spent)


def agree(spent: Sequence[float]) -> bool:
    """Whether repetitions are enough: three or more whose lower quartile and median are nearly equal."""
    return len(spent) >= _ENOUGH and summarize(spent).spread <= _AGREE


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
    for threads, batch in itertools.product(thread_counts(cores), _BATCHES):
        sampler, sweep = NeighborSampler(graph, targets, _FANOUTS, batch, 0), CacheSweep(batch)
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


def walking(graph: Graph, graph_bytes: float, cores: int) -> Iterator[WalkCost]:
    """The table of random walks over a graph.

    What a step costs and what an edge costs that is looked at follow from two graphs: this one, and the same
    with few edges a vertex. What a mini-batch costs whatever its size follows from a few walks.
    """
    few = _with_few_edges(graph)
    for threads in thread_counts(cores):
        rows, seconds = [], []
        with Workers(threads, "hyrt.calibrate.sample") as workers:
            for each, roots in ((graph, _ROOTS), (few, _ROOTS), (few, _FEW_ROOTS)):
                settings = SaintSettings(kind="saint", roots=roots, walk_length=_WALK_LENGTH)
                # The counts of its normalisation change nothing in what sampling takes.
                sampler = SaintSampler(
                    each, each.split("train"), 2, roots, _WALK_LENGTH, 1, 0, coverage=1, workers=workers
                )
                sizes, spent = _walked(sampler, settings, workers, CacheSweep(roots))
                rows.append([1.0, sizes.walk_steps, sizes.scanned_edges])
                seconds.append(spent)
        launch_s, step_s, scan_s = non_negative(np.array(rows) / np.array(seconds)[:, None]).tolist()
        yield WalkCost(
            graph_bytes=graph_bytes, threads=threads, step_s=step_s, scan_s=scan_s, launch_s=launch_s
        )


def _walked(
    sampler: SaintSampler, settings: SaintSettings, workers: Workers, sweep: CacheSweep
) -> tuple[BlockSizes, float]:
    """The sizes of a subgraph, and seconds to sample one."""
    spent: list[float] = []
    for step in range(_SHORT_REPETITIONS + 2):
        if agree(spent[2:]):
            break
        sweep()
        started = time.perf_counter()
        batch = sampler.sample(step, sampler.units(step), workers)
        spent.append(time.perf_counter() - started)
        sizes = settings.sizes_of(batch, 1)
        batch.release()
    return sizes, summarize(spent[2:]).seconds


def _with_few_edges(graph: Graph) -> Graph:
    indptr, indices = graph.topology.indptr, graph.topology.indices
    place = np.arange(len(indices)) - np.repeat(indptr[:-1], np.diff(indptr))
    kept = place < _FEW_EDGES
    degrees = np.minimum(np.diff(indptr), _FEW_EDGES)
    few = np.zeros_like(indptr)
    np.cumsum(degrees, out=few[1:])
    return replace(graph, topology=Topology(few, indices[kept]))


def sparse_products(cores: int) -> Iterator[SparseCost]:
    """The table of products of sparse rows."""
    for threads, columns, width in itertools.product(thread_counts(cores), _SPARSE_WIDTHS, _PRODUCT_WIDTHS):
        # With recycled memory, as the CPU trainer has it.
        with Workers(threads, "hyrt.calibrate.train", pool=BufferPool()) as workers, working(workers):
            many, one = (_product_s(rows, columns, width) for rows in (_SPARSE_ROWS, 1))
        yield SparseCost(
            product_width=width,
            weight_bytes=4 * columns * width,
            threads=threads,
            macs_per_s=2 * _SPARSE_ROWS * _SPARSE_ENTRIES * width / max(many - one, many / 10),
            weight_s=one / (columns * width),
        )


def _product_s(rows: int, columns: int, width: int) -> float:
    """Seconds for a product of sparse rows and the weights' gradient."""
    sparse = SparseRows.of(sparse_features(rows, columns, _SPARSE_ENTRIES))
    weight = torch.ones(width, columns, requires_grad=True)
    grad = torch.ones(rows, width)

    def multiply() -> None:
        weight.grad = None
        torch.autograd.backward(sparse_linear(sparse, weight), grad)

    return timing(multiply, _SPARSE_REPETITIONS, before=CacheSweep()).seconds


def sparse_features(rows: int, columns: int, entries: int) -> SparseFeatures:
    """Rows of equally many stored values; column k is 10 / (10 + k) times as frequent as the first."""
    random = np.random.default_rng(0)
    frequency = 1.0 / (10.0 + np.arange(columns))
    drawn = np.searchsorted(np.cumsum(frequency) / frequency.sum(), random.random(rows * entries))
    found = random.permutation(columns).astype(np.int32)[np.minimum(drawn, columns - 1)]
    indptr = np.arange(0, rows * entries + 1, entries, dtype=np.int64)
    return SparseFeatures(indptr, found, np.ones(rows * entries, np.float32), columns)


def loading(
    graph: Graph, cores: int, forms: Collection[LoadForm] = ("rows", "sparse", "aggregated")
) -> Iterator[tuple[LoadCost, float]]:
    """The loading table of a graph's size: costs of a row and of its bytes, from two widths, and of a
    mini-batch, from one with few targets.
    """
    drawn = {
        form: (NeighborSampler(graph, graph.split("train"), _FANOUTS, batch, 0), CacheSweep(batch))
        for form, batch in (("dense", _LOADED_BATCH), ("sparse", _SPARSE_BATCH), ("few", _FEW_TARGETS))
    }
    count = graph.num_vertices
    dense = [DenseFeatures(np.ones((count, width), np.float32)) for width in _WIDTHS]
    # What is gathered depends on how many values are stored, not on which.
    sparse = [
        SparseFeatures(
            np.arange(0, count * entries + 1, entries, dtype=np.int64),
            np.zeros(count * entries, np.int32),
            np.ones(count * entries, np.float32),
            max(_ROW_ENTRIES),
        )
        for entries in (_ROW_ENTRIES if "sparse" in forms else ())
    ]
    for threads, ((form, model), plan) in itertools.product(thread_counts(cores), _PLANS.items()):
        if form not in forms:
            continue
        rows = []
        measured = []
        sources: Sequence[DenseFeatures | SparseFeatures] = sparse if form == "sparse" else dense
        many, few = drawn["sparse" if form == "sparse" else "dense"], drawn["few"]
        with Workers(threads, "hyrt.calibrate.load") as workers:
            for source, (sampler, sweep) in ((sources[0], few), (sources[0], many), (sources[1], many)):
                loader = Loader(source)
                spent: list[float] = []
                loaded: list[int] = []
                # Another mini-batch each time: rows of the last one may still be in a cache.
                for step in range(REPETITIONS + 2):
                    if agree(spent[2:]):
                        break
                    batch = sampler.sample(step, sampler.units(step), workers, in_place=plan.in_place)
                    sweep()
                    started = time.perf_counter()
                    loader.load(batch, plan, workers)
                    spent.append(time.perf_counter() - started)
                    block = batch.blocks[0]
                    loaded.append(block.num_edges + block.num_dst if form == "aggregated" else block.num_src)
                    batch.release()
                # The first ones compile and make the buffers.
                measured.append(summarize(spent[2:]))
                rows.append(statistics.median(loaded[2:]))
        narrow, wide = (source.nbytes / count for source in sources)
        byte_s = max(1e-13, (measured[2].seconds - measured[1].seconds) / rows[2] / (wide - narrow))
        # Of a narrow row.
        whole_s = max(0.0, (measured[1].seconds - measured[0].seconds) / (rows[1] - rows[0]))
        row_s = max(0.0, whole_s - byte_s * narrow)
        cost = LoadCost(
            form=form,
            model=model,
            matrix_bytes=statistics.fmean(source.nbytes for source in sources),
            threads=threads,
            row_s=row_s,
            gb_s=1e-9 / byte_s,
            launch_s=max(0.0, measured[0].seconds - rows[0] * whole_s),
        )
        yield cost, max(entry.spread for entry in measured)
