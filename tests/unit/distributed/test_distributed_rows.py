"""Rows that other ranks have arrive where they are asked for, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from unit.distributed.ranks_in_threads import results_of

from hyrt.distributed.context import DistributedContext
from hyrt.distributed.distributed_rows import DistributedRows, DistributedSparseRows
from hyrt.distributed.remote_rows import RowLocations, group_by_matrix
from hyrt.errors import DataError, UnsupportedModelError
from hyrt.graph.row_source import DenseFeatures, PrefetchedRowSource, SparseFeatures, SparseSource
from hyrt.nn.architecture import Aggregation
from hyrt.pipeline.trainer import AggregatedRows
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block

VERTICES, WIDTH, RANKS, STEPS = 97, 5, 3, 4


def parted(dtype: str | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All rows as float32, the home of each vertex, and its place there; the last rank has none."""
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((VERTICES, WIDTH)).astype(dtype or np.float32).astype(np.float32)
    if dtype is None:
        rows[rng.random(rows.shape) < 0.7] = 0
    homes = rng.integers(0, RANKS - 1, VERTICES).astype(np.uint8)
    places = np.zeros(VERTICES, np.int32)
    for rank in range(RANKS):
        places[homes == rank] = np.arange((homes == rank).sum())
    return rows, homes, places


def sparse(rows: np.ndarray) -> SparseFeatures:
    where, columns = np.nonzero(rows)
    indptr = np.concatenate([[0], np.cumsum((rows != 0).sum(1))]).astype(np.int64)
    return SparseFeatures(indptr, columns.astype(np.int32), rows[where, columns], WIDTH)


# The machine of each rank: of those on one machine, each reads the rows of the others where they lie.
APART, TWO_TOGETHER, TOGETHER = (0, 1, 2), (0, 1, 0), (0, 0, 0)


def beside(
    rows: np.ndarray, homes: np.ndarray, rank: int, machines: tuple[int, ...]
) -> dict[int, DenseFeatures]:
    """The rows of the other ranks on a rank's machine."""
    return {
        other: DenseFeatures(rows[homes == other])
        for other in range(RANKS)
        if other != rank and machines[other] == machines[rank]
    }


@pytest.mark.parametrize(
    ("dtype", "machines"),
    [
        *(("float32", APART), ("float16", APART), (None, APART)),
        *(("float32", TWO_TOGETHER), ("float16", TWO_TOGETHER), ("float32", TOGETHER)),
    ],
)
def test_each_rank_gets_the_rows_it_asks_for(dtype: str | None, machines: tuple[int, ...]) -> None:
    rows, homes, places = parted(dtype)
    machine_of = np.array(machines)

    def work(ranks: DistributedContext) -> dict[str, int]:
        mine = rows[homes == ranks.rank]
        source: PrefetchedRowSource
        if dtype is None:
            source = DistributedSparseRows(sparse(mine), places, homes, ranks.rows)
        else:
            source = DistributedRows(
                DenseFeatures(mine.astype(dtype)),
                *(places, homes, ranks.rows),
                same_host_rows=beside(rows.astype(dtype), homes, ranks.rank, machines),
            )
        is_sent = machine_of[homes] != machines[ranks.rank]
        rng = np.random.default_rng(ranks.rank)
        workers = Workers(1, "test")
        wanted = [
            [
                rng.permutation(VERTICES)[: rng.integers(0, VERTICES)].astype(np.int32)
                for _ in range(rng.integers(0, 3))
            ]
            for _ in range(STEPS)
        ]
        remote = 0
        for step, shares in enumerate(wanted):
            source.fetch(step, shares, workers)
            remote += len({int(v) for share in shares for v in share if is_sent[v]})
            for share in shares:
                out = np.full((len(share), WIDTH), np.nan, np.float32)
                source.rows(share, out, workers)
                np.testing.assert_array_equal(out, rows[share])
                if isinstance(source, SparseSource):
                    whole = source.take(share, workers)
                    np.testing.assert_array_equal(np.diff(whole.indptr), (rows[share] != 0).sum(1))
        # A share that is done again finds its rows where they were, without asking anybody.
        before = ranks.counts.received()
        for share in wanted[1]:
            source.fetch(1, [share], workers)
            out = np.empty((len(share), WIDTH), np.float32)
            source.rows(share, out, workers)
            np.testing.assert_array_equal(out, rows[share])
        assert ranks.counts.received() == before
        for step in range(STEPS):
            source.release(step)
        if dtype is not None:
            assert before.get("rows", 0) == remote * WIDTH * np.dtype(dtype).itemsize
        return {**ranks.counts.sent(), **{f"received {name}": n for name, n in before.items()}}

    found = results_of(RANKS, work)
    for purpose in ("rows", "indices"):
        sent, received = (
            sum(each.get(name, 0) for each in found) for name in (purpose, f"received {purpose}")
        )
        assert sent == received
        assert (sent > 0) == (machines != TOGETHER)


def drawn_block(seed: int, *, weighted: bool = False) -> Block:
    """A block that is read in place; some destinations have no edge, and sources come several times."""
    rng = np.random.default_rng(seed)
    destinations = rng.permutation(VERTICES)[:20].astype(np.int32)
    counts = rng.integers(0, 9, len(destinations))
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    columns = rng.integers(0, VERTICES, indptr[-1]).astype(np.int32)
    all_degrees = np.random.default_rng(4).integers(9, 30, VERTICES).astype(np.int32)
    return Block(
        indptr=indptr,
        columns=columns,
        destinations=destinations,
        sources=None,
        num_src=VERTICES,
        degrees=all_degrees[destinations],
        source_degrees=all_degrees,
        layer=1,
        weights=rng.uniform(0.5, 2, len(columns)).astype(np.float32) if weighted else None,
    )


def aggregated(aggregation: Aggregation, block: Block, x: np.ndarray) -> np.ndarray:
    """What the aggregation is by its formula, destination by destination."""
    found = []
    for i, v in enumerate(block.destinations):
        edges = range(block.indptr[i], block.indptr[i + 1])
        rows, degree = x[block.columns[edges]], int(block.degrees[i])
        factors = np.ones(len(rows)) if block.weights is None else block.weights[edges].astype(float)
        scaled_up = degree / max(len(rows), 1) if block.weights is None else 1.0
        own = x[v] * (1 + aggregation.epsilon)
        if aggregation.reduce == "mean":
            total = factors @ rows / (max(len(rows), 1) if block.weights is None else degree)
        elif aggregation.reduce == "sum":
            total = scaled_up * (factors @ rows)
        elif aggregation.reduce == "gcn":
            of_sources = 1 / np.sqrt(block.source_degrees[block.columns[edges]] + 1.0)
            total = scaled_up / np.sqrt(degree + 1) * ((factors * of_sources) @ rows)
            own = x[v] / (degree + 1)
        else:
            total = rows.max(axis=0) if len(rows) else np.zeros(x.shape[1])
        if aggregation.self_path == "add":
            total = total + own
        found.append(np.concatenate([x[v], total]) if aggregation.self_path == "concat" else total)
    return np.array(found)


@pytest.mark.parametrize(
    ("stored", "wire", "aggregation", "weighted", "machines"),
    [
        ("float32", "float32", Aggregation("mean", "concat"), False, APART),
        ("float32", "float32", Aggregation("mean", "concat"), False, TOGETHER),
        ("float32", "float32", Aggregation("mean", "none"), True, APART),
        ("float32", "float16", Aggregation("gcn", "add"), False, TWO_TOGETHER),
        ("float32", "bfloat16", Aggregation("sum", "add", epsilon=0.3), True, APART),
        ("float16", "float32", Aggregation("max", "concat"), False, TWO_TOGETHER),
    ],
)
def test_rows_are_aggregated_where_they_have_come_to(
    stored: str, wire: str, aggregation: Aggregation, weighted: bool, machines: tuple[int, ...]
) -> None:
    machine_of = np.array(machines)
    rows, homes, places = parted(stored)
    as_sent = torch.from_numpy(rows).to(getattr(torch, wire)).double().numpy()

    def work(ranks: DistributedContext) -> None:
        with Workers(2, "test") as workers:
            aggregate(ranks, workers)

    def aggregate(ranks: DistributedContext, workers: Workers) -> None:
        local = DenseFeatures(rows[homes == ranks.rank].astype(stored))
        is_here = machine_of[homes] == machines[ranks.rank]
        seen = np.where(is_here[:, None], rows.astype(np.float64), as_sent)
        others = np.flatnonzero(~is_here).astype(np.int32)
        near = beside(rows.astype(stored), homes, ranks.rank, machines)
        # A cache may hold nothing: where it is smaller than a row, or a rank needs none.
        for cached in (None, others[:0], others[::3]):
            source = DistributedRows(local, places, homes, ranks.rows, wire, same_host_rows=near)
            assert isinstance(source, AggregatedRows)
            if cached is not None:
                source.cache(cached, workers)
            kept = set() if cached is None else set(cached.tolist())
            hits = lookups = 0
            for step in range(2):
                # Shares of a step, one of which reads gathered rows.
                seed = 10 * ranks.rank + 2 * step
                blocks = [drawn_block(seed + number, weighted=weighted) for number in range(2)]
                gathered = np.random.default_rng(seed).permutation(VERTICES)[:30].astype(np.int32)
                read = [each for block in blocks for each in (block.columns, block.destinations)]
                source.fetch(step, [*read, gathered], workers)
                needed = {int(v) for each in [*read, gathered] for v in each if not is_here[v]}
                hits, lookups = hits + len(needed & kept), lookups + len(needed)
                assert source.cache_counts()[2:] == (hits, lookups)
                for block in blocks:
                    out = np.full((block.num_dst, aggregation.width(WIDTH)), np.nan, np.float32)
                    source.aggregate(aggregation, block, out, workers)
                    right = aggregated(aggregation, block, seen)
                    np.testing.assert_allclose(out, right, rtol=1e-5, atol=1e-6)
                out = np.full((len(gathered), WIDTH), np.nan, np.float32)
                source.rows(gathered, out, workers)
                np.testing.assert_array_equal(out, seen[gathered].astype(np.float32))
                source.release(step)

    results_of(RANKS, work)


def test_a_maximum_does_not_leave_weights_of_edges_out() -> None:
    rows, _, _ = parted("float32")
    places, homes = np.arange(VERTICES, dtype=np.int32), np.zeros(VERTICES, np.uint8)
    block = drawn_block(1)
    block.edge_weights = np.ones(len(block.columns), np.float32)

    def work(ranks: DistributedContext) -> None:
        source = DistributedRows(DenseFeatures(rows), places, homes, ranks.rows)
        out = np.empty((block.num_dst, WIDTH), np.float32)
        source.aggregate(Aggregation("max", "none"), block, out, Workers(1, "test"))

    with pytest.raises(UnsupportedModelError, match="a maximum would ignore the edge weights"):
        results_of(1, work)


@given(
    homes=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    reads=st.lists(st.lists(st.integers(0, 10**6), max_size=30), max_size=4),
    kept=st.sets(st.integers(0, 10**6), max_size=10),
    near=st.permutations([0, 2, 3]).flatmap(lambda ranks: st.integers(0, 3).map(lambda most: ranks[:most])),
)
def test_addresses_say_where_each_row_is(
    homes: list[int], reads: list[list[int]], kept: set[int], near: list[int]
) -> None:
    size, rank, num = 4, 1, len(homes)
    at_home = np.array(homes, np.uint8)
    places = np.array([homes[:v].count(home) for v, home in enumerate(homes)], np.int32)
    addresses = RowLocations(at_home, places, rank, size, near)
    here = [rank, *near]
    cached = [v for v in sorted({k % num for k in kept}) if homes[v] not in here]
    addresses.set_cached(np.array(cached, np.int32))
    fetched: list[np.ndarray] = []
    for read in reads:
        ids = np.array([v % num for v in read], np.int32)
        met = addresses.mark_needed_rows([ids, ids[::2]])
        wanted = {int(v) for v in ids if homes[v] not in here and v not in cached}
        assert sorted(met.missing) == sorted(wanted)
        assert [homes[v] for v in met.missing] == sorted(homes[v] for v in wanted)
        assert met.counts == [sum(homes[v] == each for v in wanted) for each in range(size)]
        assert met.num_cached == len({int(v) for v in ids if v in cached})
        fetched.append(met.missing)
    for step in [*range(len(fetched)), 0][: len(fetched) + 1 if fetched else 0]:
        addresses.set_fetched(fetched[step])
        known = np.array([v for v in range(num) if homes[v] in here or v in cached], np.int32)
        ids = np.concatenate([known, fetched[step]]).astype(np.int32)
        out = np.empty(len(ids), addresses.table.dtype)
        addresses.look_up(ids, out, Workers(1, "test"))
        (own, own_at), (there, there_at), (kept_rows, kept_at) = group_by_matrix(out)
        np.testing.assert_array_equal(own >> addresses.bits, places[ids[own_at]])
        np.testing.assert_array_equal(np.array(here)[own & ((1 << addresses.bits) - 1)], at_home[ids[own_at]])
        np.testing.assert_array_equal(fetched[step][there], ids[there_at])
        np.testing.assert_array_equal(np.array(cached, np.int32)[kept_rows], ids[kept_at])
        assert len(own) + len(there) + len(kept_rows) == len(ids)


def test_rows_that_nobody_needs_any_more_free_who_waits_for_them() -> None:
    rows, homes, places = parted("float32")

    def work(ranks: DistributedContext) -> str:
        import threading

        from hyrt.runtime.stage_threads import ChannelClosedError

        if ranks.rank:
            return ""
        source = DistributedRows(DenseFeatures(rows[homes == 0]), places, homes, ranks.rows)
        threading.Timer(0.2, source.end).start()
        try:
            source.fetch(0, [np.arange(VERTICES, dtype=np.int32)], Workers(1, "test"))
        except ChannelClosedError as closed:
            return str(closed)
        return "went on"

    assert results_of(2, work) == ["no more rows are fetched", ""]


@pytest.mark.parametrize("wire", ["float32", "float16", "bfloat16", None])
def test_cached_rows_are_those_that_travel_and_are_never_asked_for_again(wire: str | None) -> None:
    rows, homes, places = parted(None if wire is None else "float32")
    as_sent = rows
    if wire is not None:
        as_sent = torch.from_numpy(rows).to(getattr(torch, wire)).float().numpy()
    num_bytes = 400

    def work(ranks: DistributedContext) -> None:
        mine = rows[homes == ranks.rank]
        source: DistributedRows | DistributedSparseRows
        if wire is None:
            source = DistributedSparseRows(sparse(mine), places, homes, ranks.rows)
        else:
            source = DistributedRows(DenseFeatures(mine), places, homes, ranks.rows, wire)
        workers = Workers(1, "test")
        others = np.random.default_rng(9).permutation(np.flatnonzero(homes != ranks.rank)).astype(np.int32)
        cached = source.select_fitting(others, num_bytes, workers)
        if wire is None:
            lengths = (rows[others] != 0).sum(1)
            wanted = next(
                n for n in range(len(others)) if 8 * (n + 2) + 8 * lengths[: n + 1].sum() > num_bytes
            )
        else:
            wanted = num_bytes // (WIDTH * (4 if wire == "float32" else 2))
        np.testing.assert_array_equal(cached, others[:wanted])
        source.cache(cached, workers)
        counts = source.cache_counts()
        assert counts.rows == wanted > 0
        assert num_bytes - 4 * WIDTH - 8 * WIDTH - 8 < counts.num_bytes <= num_bytes
        lookups = hits = 0
        for step, share in enumerate(
            [others, others[: len(others) // 2], np.arange(VERTICES, dtype=np.int32)]
        ):
            source.fetch(step, [share, share[::-1]], workers)
            out = np.full((len(share), WIDTH), np.nan, np.float32)
            source.rows(share, out, workers)
            is_own = homes[share] == ranks.rank
            np.testing.assert_array_equal(out[is_own], rows[share[is_own]])
            np.testing.assert_array_equal(out[~is_own], as_sent[share[~is_own]])
            lookups += int((~is_own).sum())
            hits += len(np.intersect1d(share, cached))
            source.release(step)
        assert source.cache_counts()[2:] == (hits, lookups)
        if wire is not None:
            value = 4 if wire == "float32" else 2
            assert ranks.counts.received()["rows"] == (lookups - hits) * WIDTH * value
            assert ranks.counts.received()["cache"] == wanted * WIDTH * value

    results_of(RANKS, work)


def test_a_feature_that_halves_cannot_hold_is_an_error() -> None:
    rows, homes, places = parted("float32")
    rows[np.flatnonzero(homes == 0)[3], 2] = -70_000

    def work(ranks: DistributedContext) -> None:
        local = DenseFeatures(rows[homes == ranks.rank])
        source = DistributedRows(local, places, homes, ranks.rows, "float16")
        source.fetch(0, [np.arange(VERTICES, dtype=np.int32)], Workers(1, "test"))

    with pytest.raises(DataError, match=r"a feature is -70000.*at most 65,504.*bfloat16"):
        results_of(2, work)
