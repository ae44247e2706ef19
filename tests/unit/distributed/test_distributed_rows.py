"""Rows that other ranks have arrive where they are asked for, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from unit.distributed.ranks_in_threads import results_of

from hyrt.distributed.joined_ranks import JoinedRanks
from hyrt.distributed.rows.distributed_rows import DistributedRows
from hyrt.distributed.rows.distributed_sparse_rows import DistributedSparseRows
from hyrt.errors import DataError
from hyrt.graph.row_source import DenseFeatures, FetchedRows, SparseFeatures, SparseSource
from hyrt.machine.workers import Workers

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


@pytest.mark.parametrize("dtype", ["float32", "float16", None])
def test_each_rank_gets_the_rows_it_asks_for(dtype: str | None) -> None:
    rows, homes, places = parted(dtype)

    def work(ranks: JoinedRanks) -> dict[str, int]:
        mine = rows[homes == ranks.rank]
        source: FetchedRows
        if dtype is None:
            source = DistributedSparseRows(sparse(mine), places, homes, ranks.rows)
        else:
            source = DistributedRows(DenseFeatures(mine.astype(dtype)), places, homes, ranks.rows)
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
            remote += len({int(v) for share in shares for v in share if homes[v] != ranks.rank})
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
            assert before["rows"] == remote * WIDTH * np.dtype(dtype).itemsize
        return {**ranks.counts.sent(), **{f"received {name}": n for name, n in before.items()}}

    found = results_of(RANKS, work)
    for purpose in ("rows", "indices"):
        sent, received = (sum(each[name] for each in found) for name in (purpose, f"received {purpose}"))
        assert sent == received > 0


def test_rows_that_nobody_needs_any_more_free_who_waits_for_them() -> None:
    rows, homes, places = parted("float32")

    def work(ranks: JoinedRanks) -> str:
        import threading

        from hyrt.flow.channel import ChannelClosed

        if ranks.rank:
            return ""
        source = DistributedRows(DenseFeatures(rows[homes == 0]), places, homes, ranks.rows)
        threading.Timer(0.2, source.end).start()
        try:
            source.fetch(0, [np.arange(VERTICES, dtype=np.int32)], Workers(1, "test"))
        except ChannelClosed as closed:
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

    def work(ranks: JoinedRanks) -> None:
        mine = rows[homes == ranks.rank]
        source: DistributedRows | DistributedSparseRows
        if wire is None:
            source = DistributedSparseRows(sparse(mine), places, homes, ranks.rows)
        else:
            source = DistributedRows(DenseFeatures(mine), places, homes, ranks.rows, wire)
        workers = Workers(1, "test")
        others = np.random.default_rng(9).permutation(np.flatnonzero(homes != ranks.rank)).astype(np.int32)
        cached = source.fitting(others, num_bytes, workers)
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

    def work(ranks: JoinedRanks) -> None:
        local = DenseFeatures(rows[homes == ranks.rank])
        source = DistributedRows(local, places, homes, ranks.rows, "float16")
        source.fetch(0, [np.arange(VERTICES, dtype=np.int32)], Workers(1, "test"))

    with pytest.raises(DataError, match=r"a feature is -70000.*at most 65,504.*bfloat16"):
        results_of(2, work)
