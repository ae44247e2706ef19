"""What gathering over whole graphs is predicted to take, from what was measured."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hyrt_perfmodel.measured_costs import FullGraphRates, GatherCost, LoopCost
from hyrt_perfmodel.workload import EdgeReads, FullGraphStep

NS = 1e-9
READS = tuple(
    GatherCost(kind=kind, back=back, matrix_bytes=size, row_s=row_ns * NS, gb_s=4.0)  # type: ignore[arg-type]
    for kind, back, row_ns in (("sum", False, 1), ("attention", False, 5), ("attention", True, 7))
    for size in (1e6, 1e8)
)
RATES = FullGraphRates(threads=2, reads=READS, mask_s=NS, call_s=1e-3, macs_per_s=1e9, values_per_s=1e8)


def reads(**other: Any) -> EdgeReads:
    return EdgeReads(
        **{"kind": "sum", "is_backward": False, "rows": 1e6, "width": 16, "sources": 1e5, **other}
    )


@pytest.mark.parametrize(
    ("what", "ns"),
    [
        # 64 bytes at 4 GB/s take 16 ns; sums are read alike in both directions.
        (reads(), 17),
        (reads(is_backward=True), 17),
        (reads(width=32), 33),
        (reads(kind="attention"), 21),
        (reads(kind="attention", is_backward=True, masked_heads=3), 26),
        (reads(kind="max"), 17),
        (reads(kind="max", is_backward=True), 34),
        # An edge that leads to no row costs the look at one number.
        (reads(num_skipped=1e6), 17 + 2),
    ],
)
def test_rows_that_are_read_along_edges(what: EdgeReads, ns: float) -> None:
    assert RATES.reads_s([what], 2) == pytest.approx(1e6 * ns * NS)
    assert RATES.reads_s([what, what], 1) == pytest.approx(4e6 * ns * NS)


def test_loops_take_what_those_of_their_kind_took() -> None:
    rates = replace(RATES, loops={"ggcn": LoopCost(edge_s=3 * NS, value_s=2 * NS)})
    looped = reads(kind="loops", width=8)
    assert rates.reads_s([looped, reads()], 2, "ggcn") == pytest.approx(1e6 * (3 + 16 + 17) * NS)
    assert rates.reads_s([looped], 1, "ggcn") == pytest.approx(2e6 * 19 * NS)
    step = FullGraphStep(arrays={}, reads=(looped,), calls=0, macs=0, values=0)
    assert rates.covers(step, "ggcn")
    assert not rates.covers(step, "gcn")
    assert not RATES.covers(step, "ggcn")
    assert RATES.covers(replace(step, reads=(reads(),)), "gcn")


def test_loops_of_chunks_take_longer_by_what_they_combine() -> None:
    rates = replace(RATES, looped={"sum": 2.0, "attention": 3.0, "attention back": 5.0})
    back = reads(kind="attention", is_backward=True, masked_heads=3)
    each = [reads(), reads(is_backward=True), reads(kind="attention"), back]
    assert rates.loop_reads_s(each, 2) == pytest.approx(1e6 * (2 * 17 + 2 * 17 + 3 * 21 + 5 * 26) * NS)
    assert rates.loop_reads_s(each, 1) == pytest.approx(2e6 * (2 * 17 + 2 * 17 + 3 * 21 + 5 * 26) * NS)
    # Nobody has measured maxima; loops of no kind are loops anyway.
    assert rates.loop_reads_s([*each, reads(kind="max")], 2) is None
    assert RATES.loop_reads_s(each, 2) is None
    known = replace(RATES, loops={"ggcn": LoopCost(edge_s=3 * NS, value_s=2 * NS)})
    assert known.loop_reads_s([reads(kind="loops", width=8)], 2, "ggcn") == pytest.approx(1e6 * 19 * NS)


def test_larger_matrices_are_read_more_slowly() -> None:
    slower = [GatherCost(kind="sum", back=False, matrix_bytes=1e8, row_s=100 * NS, gb_s=4.0), READS[0]]
    rates = FullGraphRates(
        threads=1, reads=tuple(slower), mask_s=0, call_s=0, macs_per_s=1e9, values_per_s=1e8
    )
    small, between, large, huge = (
        rates.reads_s([reads(sources=size / 64)], 1) for size in (1e5, 1e7, 1e8, 1e10)
    )
    assert small == pytest.approx(1e6 * 17 * NS)
    assert between == pytest.approx(1e6 * math.sqrt(17 * 116) * NS)
    assert large == huge == pytest.approx(1e6 * 116 * NS)


def test_passes_over_rows() -> None:
    step = FullGraphStep(arrays={}, reads=(), calls=5, macs=2e9, values=3e8)
    assert RATES.rows_s(step, 2) == pytest.approx(0.005 + 2 + 3)
    assert RATES.rows_s(step, 1) == pytest.approx(2 * RATES.rows_s(step, 2))


def test_rates_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="gb_s must be a number above 0, got 0"):
        GatherCost(kind="sum", back=False, matrix_bytes=1e6, row_s=0, gb_s=0)
