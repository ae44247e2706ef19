"""Full graphs on ranks: the formulas of *Sparsity-Aware Communication*, and the shape of its Fig. 3 and 7."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hyrt_perfmodel.distributed_epoch import AlgorithmEpoch, BlockVolumes, FullGraphWork, algorithm_epoch
from hyrt_perfmodel.network import Network, find_network

from tools.predictions.sparsity_aware_paper import GRAPHS, metis_parts, random_parts, sweep_1d, sweep_15d

# 1 ms a message, 2 MB/s, of which uneven exchanges reach half.
SLOW = Network(name="slow", latency_s=1e-3, gb_s=2e-3, uneven_part=0.5)
# Four products of 16, 8, 8 and 4 columns, of a machine that computes in no time.
WIDTHS = ((16, 8), (8, 4))
TRAVEL = FullGraphWork(
    forward_widths=WIDTHS[0],
    backward_widths=WIDTHS[1],
    has_only_sums=True,
    edges_s=0.0,
    rows_s=0.0,
    gradient_bytes=0.0,
    matrix_bytes=0.0,
    feature_bytes=0.0,
    graph_bytes=0.0,
)
ROW_BYTES = [4 * width for width in (16, 8, 8, 4)]


def paper_1d_s(ranks: int, cut: int) -> float:
    """Section 4.1: alpha (P - 1) + beta (P - 1) cut f, for each product; cut is the largest of all pairs."""
    beta = 1 / (SLOW.gb_s * 1e9 * SLOW.uneven_part)
    return sum((ranks - 1) * (SLOW.latency_s + beta * cut * row) for row in ROW_BYTES)


def of_pairs(rows: Sequence[int], needed: np.ndarray) -> BlockVolumes:
    return BlockVolumes(rows=np.array(rows), needed=needed, edges=np.ones((len(rows), len(rows)), np.int64))


@given(
    needed=st.integers(2, 6).flatmap(
        lambda ranks: st.lists(
            st.lists(st.integers(0, 1000), min_size=ranks, max_size=ranks), min_size=ranks, max_size=ranks
        )
    )
)
def test_aware_1d_takes_at_most_what_the_paper_bounds_it_by(needed: list[list[int]]) -> None:
    pairs = np.array(needed) * (1 - np.eye(len(needed), dtype=np.int64))
    found = algorithm_epoch("1d", of_pairs([1000] * len(pairs), pairs), len(pairs), TRAVEL, SLOW)
    assert found.products_s <= paper_1d_s(len(pairs), int(pairs.max())) * (1 + 1e-12)
    # Equal pairs reach the bound.
    equal = np.full_like(pairs, pairs.max())
    found = algorithm_epoch("1d", of_pairs([1000] * len(pairs), equal), len(pairs), TRAVEL, SLOW)
    assert found.products_s == pytest.approx(paper_1d_s(len(pairs), int(pairs.max())))


@pytest.mark.parametrize(("ranks", "copies"), [(4, 2), (8, 2), (16, 4), (18, 3)])
def test_aware_15d_exchanges_in_columns_and_adds_up_in_rows(ranks: int, copies: int) -> None:
    """Section 4.2; one rank sends a block to its column, which is more than what any of them receives."""
    blocks, rows, cut = ranks // copies, 900, 70
    parts = of_pairs([rows] * blocks, np.full((blocks, blocks), cut))
    found = algorithm_epoch("1.5d", parts, ranks, TRAVEL, SLOW)
    byte_s = 1 / (SLOW.gb_s * 1e9)
    expected = 0.0
    for row in ROW_BYTES:
        expected += (blocks - 1) * (SLOW.latency_s + byte_s / SLOW.uneven_part * cut * row)
        expected += 2 * (copies - 1) * (SLOW.latency_s + byte_s * rows * row / copies)
    assert found.products_s == pytest.approx(expected)


SLINGSHOT = find_network("slingshot-11")
# What a message of a library for GPUs may cost; with 2 us the least points lie beyond the paper's 256.
LATE = replace(SLINGSHOT, latency_s=2e-5)


def times(epochs: Sequence[AlgorithmEpoch], *, travel: bool = False) -> list[float]:
    return [each.products_s if travel else each.epoch_s for each in epochs]


def falls(values: Sequence[float]) -> bool:
    return all(after < before for before, after in itertools.pairwise(values))


@pytest.mark.parametrize("name", list(GRAPHS))
def test_broadcasts_get_slower_with_ranks(name: str) -> None:
    """Fig. 3, sparsity-oblivious: what a rank computes gets less, but not what it receives."""
    found = sweep_1d(name, SLINGSHOT)["oblivious"]
    assert falls(times(found, travel=True)[::-1])
    assert falls(times(found[2:])[::-1])


def test_aware_exchanges_get_faster_with_ranks() -> None:
    """Fig. 3, sparsity-aware, on Amazon and Protein, with random parts and with better ones."""
    for name in ("amazon", "protein"):
        for way, found in sweep_1d(name, SLINGSHOT).items():
            assert falls(times(found)) == (way != "oblivious"), (name, way)
    amazon = sweep_1d("amazon", SLINGSHOT)
    random, metis = times(amazon["aware, random parts"]), times(amazon["aware, METIS"])
    even = times(amazon["aware, METIS's total evenly sent"])
    # From 16 ranks on: fewer are not in Table 2.
    assert all(best < other for best, other in zip(even[2:], random[2:], strict=True))
    assert all(best < other for best, other in zip(even[2:], metis[2:], strict=True))
    # What the largest sender costs grows with ranks: its imbalance does, from 67 to 165 %.
    assert falls([best / other for best, other in zip(even[2:], metis[2:], strict=True)])


@pytest.mark.parametrize("copies", [2, 4])
def test_15d_has_a_least_point(copies: int) -> None:
    """Fig. 7 on Amazon: with parts that cut little, epochs get shorter up to some ranks, and then longer."""
    found = sweep_15d(copies, LATE, max_ranks=512 * copies)
    aware = times(found["aware, METIS"])
    lowest = aware.index(min(aware))
    assert 0 < lowest < len(aware) - 1
    assert falls(aware[: lowest + 1])
    assert falls(aware[lowest:][::-1])
    # All-reduces cost the aware ones more than replication saves; the oblivious ones gain by it.
    alone = sweep_15d(1, LATE, max_ranks=256)
    assert all(one < more for one, more in zip(times(alone["aware, METIS"])[:4], aware, strict=False))
    few = times(alone["oblivious"])
    assert all(more < one for one, more in zip(few, times(found["oblivious"]), strict=False))


def test_parts_send_what_is_said() -> None:
    graph = GRAPHS["amazon"]
    sent = random_parts(graph, 8).needed.sum(axis=0)
    # By drawing: 200,000 vertices of 16 neighbours each, in 8 parts.
    drawn = np.random.default_rng(0).integers(0, 8, (200_000, 16))
    there = np.zeros((200_000, 8), bool)
    there[np.arange(200_000)[:, None], drawn] = True
    # Of other parts than the vertex's own, which is the first one's number here.
    others = there[:, 1:].sum() / 200_000 * graph.vertices / 8
    assert sent == pytest.approx([others] * 8, rel=0.02)
    average, most = 83.9e6 / 64, 164.0e6 / 64
    metis = metis_parts(64).needed.sum(axis=0)
    assert metis.max() == pytest.approx(most, rel=1e-4)
    assert metis.mean() == pytest.approx(average, rel=1e-3)
    # Between and beyond published numbers of parts: within a few per cent of them where they are known.
    assert metis_parts(512).needed.sum(axis=0).mean() == pytest.approx(32.6e6 / 64 * 2**-0.66, rel=0.05)
