"""Measurement of the host (memory and disk bandwidth, sampling, loading) and of the network between ranks."""

from __future__ import annotations

import datetime
import itertools
import os
import platform
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from hyrt_perfmodel.calibration_fit import fit_nonnegative
from hyrt_perfmodel.expected_sizes import BlockSizes
from hyrt_perfmodel.measured_costs import LoadCost, SampleCost, SparseCost, WalkCost
from hyrt_perfmodel.network import FittedNetwork, TimedCollective, fit_network
from hyrt_perfmodel.traffic import all_reduce_bytes, busiest_link_bytes
from hyrt_perfmodel.workload import LoadForm
from numpy.typing import NDArray

from hyrt.distributed.context import DistributedContext
from hyrt.distributed.process_group import RankGroup
from hyrt.formatting import pluralize
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import DenseFeatures, SparseFeatures
from hyrt.graph.topology import Topology
from hyrt.nn.architecture import Aggregation
from hyrt.nn.operators.sparse import SparseRows, sparse_linear
from hyrt.pipeline.load import Loader
from hyrt.pipeline.trainer import InputPlan
from hyrt.runtime.buffer_pool import BufferPool
from hyrt.runtime.workers import Workers, use_workers
from hyrt.sampling.neighbor_sampler import NeighborSampler
from hyrt.sampling.saint_sampler import SaintSampler
from hyrt.sampling.settings.saint_settings import SaintSettings

# Any reasonable disk writes and reads this many bytes in a fraction of a second.
_BYTES = 64 << 20


def measure_file_gb_s() -> float | None:
    """Return the disk bandwidth of a temporary file in GB/s, or None if no file can be written."""
    block = os.urandom(1 << 20)
    try:
        with tempfile.TemporaryFile(prefix="hyrt-disk-", buffering=0) as file:
            started = time.perf_counter()
            for _ in range(_BYTES // len(block)):
                file.write(block)
            os.fsync(file.fileno())
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, _BYTES, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            while file.read(len(block)):
                pass
            seconds = time.perf_counter() - started
    except OSError:
        return None
    return 2 * _BYTES / seconds / 1e9


REPETITIONS, _SHORT_REPETITIONS = 5, 15
# Stop when the median and the lower quartile of the repetitions differ by at most this fraction.
_MIN_REPETITIONS, _MAX_SPREAD = 3, 0.02
# Graphs to measure. TINY fits in a core's private cache, as do graphs of a few thousand vertices; SMALL and
# its rows fit in the last-level cache of a usual CPU; LARGE fits in no cache.
TINY = "synthetic:tiny"
SMALL = "synthetic:community,vertices=30k"
LARGE = "synthetic:products-s,vertices=300k,features=4"
# Graph whose rows span more memory pages than the TLB covers, which doubles the cost per row.
HUGE = "synthetic:papers-s,features=4"
# Minimum available memory in bytes for HUGE: its widest rows need 1.3 GB, and its edges are copied.
HUGE_BYTES = 6e9
_WIDTHS = (32, 160)
_FANOUTS = (10, 10)
_BATCHES = (64, 1024, 4096)
_LOAD_BATCH = 1024
# Approximate bytes per target that a step reads and writes between two mini-batches of one stage: source rows
# and results of all layers, forward and backward. On cores with 2 MiB of private cache and a larger shared
# cache, sampling and loading take up to 2.5 times as long after a large step as after a small one.
_STEP_BYTES_PER_TARGET, _MAX_SWEEP_BYTES = 80_000, 2**28
# Stored values per sparse row. A core's private cache would hold many shorter rows.
_ROW_ENTRIES = (16, 128)
# Use few targets, so that a mini-batch skips most sparse rows. If it read almost all rows in order, hardware
# prefetching would hide the cost, which it cannot do in a run.
_SPARSE_BATCH = 128
# Number of targets of the mini-batch that measures the fixed cost of loading.
_FEW_TARGETS = 2
# Number of walks per subgraph, and per very small subgraph; walk length; and edges per vertex of a graph on
# which the steps of walks dominate the cost.
_ROOTS, _FEW_ROOTS, _WALK_LENGTH, _FEW_EDGES = 1000, 20, 2, 3
# Columns of sparse rows, whose frequencies are as skewed as those of words; and columns of their products,
# with weights that fit in a core's private cache or do not. One thread sums the gradient of products with up
# to 32 columns.
_SPARSE_WIDTHS, _PRODUCT_WIDTHS = (512, 8192), (16, 32, 64, 256)
# Enough rows for the products to take much longer than the cost per weight.
_SPARSE_ROWS, _SPARSE_ENTRIES, _SPARSE_REPETITIONS = 4000, 64, 8
# Input plans of first layers, by form and by aggregation.
_PLANS: dict[tuple[LoadForm, str], InputPlan] = {
    ("rows", ""): InputPlan("rows"),
    ("sparse", ""): InputPlan("sparse"),
    ("aggregated", "graphsage"): InputPlan("aggregated", Aggregation("mean", "concat")),
    ("aggregated", "gcn"): InputPlan("aggregated", Aggregation("gcn", "add")),
    ("aggregated", "gin"): InputPlan("aggregated", Aggregation("sum", "add")),
}


@dataclass(frozen=True, slots=True)
class Timing:
    """Statistics of the times of repeated calls."""

    seconds: float
    """Lower quartile of the times, because disturbances only add time."""
    spread: float
    """Relative difference between median and lower quartile."""


class CacheSweep:
    """Callable that evicts cached data, as other stages of a run do between two mini-batches of a stage.

    `targets` is the number of targets per mini-batch, which determines how much is evicted.
    """

    def __init__(self, targets: int = 400) -> None:
        self._buffer = np.ones(min(targets * _STEP_BYTES_PER_TARGET, _MAX_SWEEP_BYTES) // 8)

    def __call__(self) -> None:
        self._buffer += 1


def time_call(
    work: Callable[[], object], repetitions: int = REPETITIONS, before: Callable[[], None] = lambda: None
) -> Timing:
    """Time up to `repetitions` calls, each after a call of `before`, until their times agree.

    An additional first call, which may compile, is not timed.
    """
    work()
    spent: list[float] = []
    while len(spent) < repetitions and not has_converged(spent):
        before()
        started = time.perf_counter()
        work()
        spent.append(time.perf_counter() - started)
    return summarize(spent)


def has_converged(spent: Sequence[float]) -> bool:
    """Return whether there are at least three times, and their lower quartile and median almost agree."""
    return len(spent) >= _MIN_REPETITIONS and summarize(spent).spread <= _MAX_SPREAD


def summarize(spent: Sequence[float]) -> Timing:
    """Return the lower quartile and the spread of times."""
    ordered = sorted(spent)
    low = ordered[len(ordered) // 4]
    return Timing(low, statistics.median(ordered) / low - 1)


def thread_counts(cores: int) -> list[int]:
    """Return the numbers of threads to measure: the powers of two, and one thread per core."""
    counts = [2**power for power in range(cores.bit_length()) if 2**power <= cores]
    return sorted({*counts, cores})


def measure_copy(workers: Workers) -> Timing:
    """Time copying with the worker threads, in seconds per 1e9 bytes read and written."""
    source = np.ones(2**25, np.float32)
    target = np.empty_like(source)

    def copy() -> None:
        workers.run(lambda start, stop: np.copyto(target[start:stop], source[start:stop]), len(source), 2**20)

    measured = time_call(copy)
    return Timing(measured.seconds * 1e9 / (2 * source.nbytes), measured.spread)


def measure_sampling(graph: Graph, graph_bytes: float, cores: int) -> Iterator[tuple[SampleCost, float]]:
    """Measure the sampling costs of a graph, and yield each cost with its spread."""
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
                    batch_sample = sampler.sample(step, sampler.units(step), workers, in_place=in_place)
                    edges.append(batch_sample.num_edges)
                    batch_sample.release()

                measured = time_call(sample, before=sweep)
                median_edges = statistics.median(edges)
                cost = SampleCost(
                    renumbers=renumbers,
                    graph_bytes=graph_bytes,
                    edges=median_edges,
                    threads=threads,
                    edges_per_s=median_edges / measured.seconds,
                )
                yield cost, measured.spread


def measure_walks(graph: Graph, graph_bytes: float, cores: int) -> Iterator[WalkCost]:
    """Measure the costs of random walks on a graph.

    The costs per walk step and per scanned edge follow from a comparison with the same graph with few edges
    per vertex. The fixed cost of a mini-batch follows from a small number of walks.
    """
    sparse_graph = _with_few_edges(graph)
    for threads in thread_counts(cores):
        rows, seconds = [], []
        with Workers(threads, "hyrt.calibrate.sample") as workers:
            for probe_graph, roots in ((graph, _ROOTS), (sparse_graph, _ROOTS), (sparse_graph, _FEW_ROOTS)):
                settings = SaintSettings(kind="saint", roots=roots, walk_length=_WALK_LENGTH)
                # The number of normalization samples does not affect the sampling time.
                sampler = SaintSampler(
                    probe_graph,
                    probe_graph.split("train"),
                    2,
                    roots,
                    _WALK_LENGTH,
                    1,
                    0,
                    coverage=1,
                    workers=workers,
                )
                sizes, spent = _sample_walks(sampler, settings, workers, CacheSweep(roots))
                rows.append([1.0, sizes.walk_steps, sizes.scanned_edges])
                seconds.append(spent)
        launch_s, step_s, scan_s = fit_nonnegative(np.array(rows) / np.array(seconds)[:, None]).tolist()
        yield WalkCost(
            graph_bytes=graph_bytes, threads=threads, step_s=step_s, scan_s=scan_s, launch_s=launch_s
        )


def _sample_walks(
    sampler: SaintSampler, settings: SaintSettings, workers: Workers, sweep: CacheSweep
) -> tuple[BlockSizes, float]:
    """Return the sizes of a sampled subgraph and the sampling time in seconds."""
    spent: list[float] = []
    for step in range(_SHORT_REPETITIONS + 2):
        if has_converged(spent[2:]):
            break
        sweep()
        started = time.perf_counter()
        batch = sampler.sample(step, sampler.units(step), workers)
        spent.append(time.perf_counter() - started)
        sizes = settings.batch_sizes(batch, 1)
        batch.release()
    return sizes, summarize(spent[2:]).seconds


def _with_few_edges(graph: Graph) -> Graph:
    indptr, indices = graph.topology.indptr, graph.topology.indices
    position = np.arange(len(indices)) - np.repeat(indptr[:-1], np.diff(indptr))
    is_selected = position < _FEW_EDGES
    degrees = np.minimum(np.diff(indptr), _FEW_EDGES)
    new_indptr = np.zeros_like(indptr)
    np.cumsum(degrees, out=new_indptr[1:])
    return replace(graph, topology=Topology(new_indptr, indices[is_selected]))


def measure_sparse_products(cores: int) -> Iterator[SparseCost]:
    """Measure the costs of products with sparse rows."""
    for threads, columns, width in itertools.product(thread_counts(cores), _SPARSE_WIDTHS, _PRODUCT_WIDTHS):
        # Use a buffer pool, as the CPU trainer does.
        with Workers(threads, "hyrt.calibrate.train", pool=BufferPool()) as workers, use_workers(workers):
            many_rows_s, one_row_s = (_product_s(rows, columns, width) for rows in (_SPARSE_ROWS, 1))
        yield SparseCost(
            product_width=width,
            weight_bytes=4 * columns * width,
            threads=threads,
            macs_per_s=2
            * _SPARSE_ROWS
            * _SPARSE_ENTRIES
            * width
            / max(many_rows_s - one_row_s, many_rows_s / 10),
            weight_s=one_row_s / (columns * width),
        )


def _product_s(rows: int, columns: int, width: int) -> float:
    """Return the time in seconds of a product with sparse rows and of its weight gradient."""
    sparse = SparseRows.from_features(sparse_features(rows, columns, _SPARSE_ENTRIES))
    weight = torch.ones(width, columns, requires_grad=True)
    grad = torch.ones(rows, width)

    def multiply() -> None:
        weight.grad = None
        torch.autograd.backward(sparse_linear(sparse, weight), grad)

    return time_call(multiply, _SPARSE_REPETITIONS, before=CacheSweep()).seconds


def sparse_features(rows: int, columns: int, entries: int) -> SparseFeatures:
    """Return rows of `entries` values each; the k-th column's frequency is proportional to 1 / (10 + k)."""
    random = np.random.default_rng(0)
    frequency = 1.0 / (10.0 + np.arange(columns))
    sampled = np.searchsorted(np.cumsum(frequency) / frequency.sum(), random.random(rows * entries))
    column_indices = random.permutation(columns).astype(np.int32)[np.minimum(sampled, columns - 1)]
    indptr = np.arange(0, rows * entries + 1, entries, dtype=np.int64)
    return SparseFeatures(indptr, column_indices, np.ones(rows * entries, np.float32), columns)


def measure_loading(
    graph: Graph, cores: int, forms: Collection[LoadForm] = ("rows", "sparse", "aggregated")
) -> Iterator[tuple[LoadCost, float]]:
    """Measure the loading costs for a graph of this size, and yield each cost with its spread.

    Costs per row and per byte follow from two row widths, and the fixed cost from few targets.
    """
    samplers = {
        form: (NeighborSampler(graph, graph.split("train"), _FANOUTS, batch, 0), CacheSweep(batch))
        for form, batch in (("dense", _LOAD_BATCH), ("sparse", _SPARSE_BATCH), ("few", _FEW_TARGETS))
    }
    count = graph.num_vertices
    dense = [DenseFeatures(np.ones((count, width), np.float32)) for width in _WIDTHS]
    # The cost of a gather depends on the number of stored values, not on their columns.
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
        many, few = samplers["sparse" if form == "sparse" else "dense"], samplers["few"]
        with Workers(threads, "hyrt.calibrate.load") as workers:
            for source, (sampler, sweep) in ((sources[0], few), (sources[0], many), (sources[1], many)):
                loader = Loader(source)
                spent: list[float] = []
                loaded: list[int] = []
                # Use a new mini-batch each time, because the rows of the previous one may still be cached.
                for step in range(REPETITIONS + 2):
                    if has_converged(spent[2:]):
                        break
                    batch = sampler.sample(step, sampler.units(step), workers, in_place=plan.in_place)
                    sweep()
                    started = time.perf_counter()
                    loader.load(batch, plan, workers)
                    spent.append(time.perf_counter() - started)
                    block = batch.blocks[0]
                    loaded.append(block.num_edges + block.num_dst if form == "aggregated" else block.num_src)
                    batch.release()
                # Skip the first two repetitions, which compile kernels and allocate buffers.
                measured.append(summarize(spent[2:]))
                rows.append(statistics.median(loaded[2:]))
        first_bytes, second_bytes = (source.nbytes / count for source in sources)
        byte_s = max(
            1e-13, (measured[2].seconds - measured[1].seconds) / rows[2] / (second_bytes - first_bytes)
        )
        first_row_s = max(0.0, (measured[1].seconds - measured[0].seconds) / (rows[1] - rows[0]))
        row_s = max(0.0, first_row_s - byte_s * first_bytes)
        cost = LoadCost(
            form=form,
            model=model,
            matrix_bytes=statistics.fmean(source.nbytes for source in sources),
            threads=threads,
            row_s=row_s,
            gb_s=1e-9 / byte_s,
            launch_s=max(0.0, measured[0].seconds - rows[0] * first_row_s),
        )
        yield cost, max(entry.spread for entry in measured)


_PURPOSE = "calibration"
_MIN_BYTES, _GROWTH = 64, 4
# Larger operations would add no information, and each rank would need as much memory.
_MAX_BYTES = 2**26
_LONG_S = 0.25
# Repeat short operations more often, because disturbances have a larger effect.
_MIN_REPEATS, _MAX_REPEATS, _REPEATS_S = 3, 25, 0.1
# Range of block sizes relative to their mean, approximately that of a graph partitioner.
_SIZE_RANGE = (0.5, 1.5)
_NUM_UNEVEN = 3


def measure_network(ranks: DistributedContext, name: str, long_s: float = _LONG_S) -> FittedNetwork:
    """Measure exchanges and all-reduces between all ranks, of which there must be at least two.

    This is a collective operation with the same result on every rank. Sizes grow until an operation takes
    `long_s` seconds or a rank sends 64 MiB. Raises RankFailureError if a rank is lost, and ValueError if the
    bandwidth cannot be fitted.
    """
    # Exchange these first: a rank learns that another rank refuses before connections are made.
    host = zlib.crc32(platform.node().encode())
    hosts = len(set(ranks.control.exchange_counts([host] * ranks.size, "control")))
    timing = _CollectiveTimer(ranks.group("calibration"))
    all_reduces: list[TimedCollective] = []
    exchanges: list[TimedCollective] = []
    size = _MIN_BYTES
    while True:
        all_reduces.append(timing.all_reduce(size))
        exchanges.append(timing.exchange("exchanges", _equal(ranks.size, size)))
        longest_s = max(all_reduces[-1].seconds, exchanges[-1].seconds)
        if longest_s > long_s or (ranks.size - 1) * size * _GROWTH > _MAX_BYTES:
            break
        size *= _GROWTH
    exchanges += [
        timing.exchange("uneven exchanges", _unequal(ranks.size, size, seed)) for seed in range(_NUM_UNEVEN)
    ]
    today = datetime.datetime.now(tz=datetime.UTC).date()
    where = pluralize(hosts, "machine") if hosts > 1 else "one machine"
    return fit_network(
        all_reduces,
        exchanges,
        name=name,
        machines=0 if hosts == ranks.size else hosts,
        source=f"measured {today.isoformat()} between {pluralize(ranks.size, 'rank')} on {where} with gloo",
    )


class _CollectiveTimer:
    """Timer for the collective operations of a rank group."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group

    def exchange(self, operation: str, num_bytes: NDArray[np.int64]) -> TimedCollective:
        """Time an all-to-all exchange of `num_bytes` [N, N], from each rank to each other rank."""
        rank = self._group.rank
        send_sizes, receive_sizes = num_bytes[rank].tolist(), num_bytes[:, rank].tolist()
        sent = torch.zeros((sum(send_sizes), 1), dtype=torch.uint8)
        received = torch.zeros((sum(receive_sizes), 1), dtype=torch.uint8)
        seconds, core_s = self._measure(
            lambda: self._group.all_to_all(sent, send_sizes, received, receive_sizes, _PURPOSE)
        )
        busiest = busiest_link_bytes(num_bytes.astype(float))
        # The CPU time is a mean over ranks; scale it to the bytes of the busiest rank.
        core_s *= busiest * len(num_bytes) / float(num_bytes.sum())
        return TimedCollective(operation, len(num_bytes) - 1, busiest, seconds, core_s)

    def all_reduce(self, size: int) -> TimedCollective:
        """Time an all-reduce in which each rank sends `size` bytes to each other rank."""
        ranks = self._group.size
        values = torch.zeros(size * ranks // 2 // 4)
        times = self._measure(lambda: self._group.all_reduce(values, _PURPOSE))
        sent_bytes = all_reduce_bytes(values.nbytes, ranks)
        return TimedCollective("all-reduces", 2 * (ranks - 1), sent_bytes, *times)

    def _measure(self, operation: Callable[[], None]) -> tuple[float, float]:
        """Return, on every rank, the median time of the slowest rank and the mean CPU time."""
        (first,) = self._times(operation, 1)
        # Warm up: the first operation sets up connections and memory.
        (second,) = self._times(operation, 1)
        shorter = max(min(first[0], second[0]), 1e-9)
        repeats = min(max(int(_REPEATS_S / shorter), _MIN_REPEATS), _MAX_REPEATS)
        seconds, core_seconds = zip(second, *self._times(operation, repeats), strict=True)
        return statistics.median(seconds), statistics.median(core_seconds)

    def _times(self, operation: Callable[[], None], repeats: int) -> list[tuple[float, float]]:
        times = torch.zeros((2, self._group.size, repeats), dtype=torch.float64)
        barrier = torch.zeros(1)
        for repeat in range(repeats):
            self._group.all_reduce(barrier, _PURPOSE)
            # Measure the CPU time of the process, because another thread sends and receives.
            start, spent = time.perf_counter(), time.process_time()
            operation()
            times[0, self._group.rank, repeat] = time.perf_counter() - start
            times[1, self._group.rank, repeat] = time.process_time() - spent
        self._group.all_reduce(times, _PURPOSE)
        return list(zip(times[0].amax(dim=0).tolist(), times[1].mean(dim=0).tolist(), strict=True))


def _equal(ranks: int, size: int) -> NDArray[np.int64]:
    return np.full((ranks, ranks), size) * (1 - np.eye(ranks, dtype=np.int64))


def _unequal(ranks: int, size: int, seed: int) -> NDArray[np.int64]:
    factors = np.random.default_rng(seed).uniform(*_SIZE_RANGE, (ranks, ranks))
    return np.round(_equal(ranks, size) * factors).astype(np.int64)
