"""Cycles of the FPGA's aggregate network from edge statistics, in closed form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, comb, floor, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.fpga_design import FpgaDesign

Floats = NDArray[np.float64]

RUN_AHEAD = 3.0
SPREAD = 2.5
MEETING = 6.5
_MAX_WINDOW = 1024
# Latency from the duplicator to the gather unit: the scatter unit's register and the queue.
_FILL = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLoad:
    """Statistics of a layer's edges that determine the network's time."""

    groups: float
    edges: float
    """`groups` and `edges`: exact or expected counts."""
    bank_loads: tuple[tuple[float, ...], ...]
    """[n][n + 1] fractions of groups with 0, 1, .. n edges to each bank, excluding edges in order."""
    spread: float
    """Variance of the number of edges per group, excluding edges in order."""
    bank_share: float
    row_share: float = 0.0
    """`bank_share` and `row_share`: fractions of all edges into the busiest bank and the busiest row."""
    in_order: float = 0.0
    """Fraction of edges whose row is one above the highest row so far. They visit the banks in turn, like the
    transposed edges of a sampled block, whose sources are numbered in order of first occurrence. The other
    edges are modeled as random."""

    def __post_init__(self) -> None:
        if not self.bank_loads or any(len(bank) != len(self.bank_loads) + 1 for bank in self.bank_loads):
            lengths = [len(bank) for bank in self.bank_loads]
            raise ValueError(
                f"network load: {len(lengths)} banks with {lengths} parts: give n banks of n + 1 parts each"
            )
        if min(self.groups, self.edges, self.spread) < 0:
            raise ValueError(f"network load: {self.groups} groups, {self.edges} edges, spread {self.spread}")
        parts = (
            self.bank_share,
            self.row_share,
            self.in_order,
            *(p for bank in self.bank_loads for p in bank),
        )
        if not all(-1e-9 <= part <= 1 + 1e-9 for part in parts):
            raise ValueError(
                "network load: loads, shares and in_order are fractions: give numbers from 0 to 1"
            )

    @property
    def pes(self) -> int:
        return len(self.bank_loads)

    @classmethod
    def from_edges(
        cls, destinations: NDArray[Any], pes: int, sources: NDArray[Any] | None = None
    ) -> NetworkLoad:
        """Compute the statistics of an edge list; parameters and errors as in `edge_groups`."""
        rows = np.asarray(destinations)
        groups = edge_groups(rows, pes, sources)
        if len(rows) == 0:
            return cls.from_degrees({}, pes)
        is_in_order = np.zeros(len(rows), np.bool_)
        is_in_order[1:] = rows[1:] == np.maximum.accumulate(rows)[:-1] + 1
        # Groups keep the original order of their edges.
        banks = np.where(groups < 0, pes, groups % pes)
        banks[groups >= 0] = np.where(is_in_order, pes, banks[groups >= 0])
        loads = np.stack([(banks == bank).sum(1) for bank in range(pes)])
        counts = np.stack([np.bincount(bank, minlength=pes + 1) for bank in loads]) / len(groups)
        return cls(
            groups=len(groups),
            edges=len(rows),
            bank_loads=tuple(tuple(bank) for bank in counts.tolist()),
            spread=float(loads.sum(0).var()),
            bank_share=float(np.bincount(rows % pes).max()) / len(rows),
            row_share=float(np.unique(rows, return_counts=True)[1].max()) / len(rows),
            in_order=float(is_in_order.mean()),
        )

    @classmethod
    def from_degrees(
        cls,
        degrees: Mapping[int, float],
        pes: int,
        *,
        bank_shares: Sequence[float] | None = None,
        row_share: float = 0.0,
        in_order: float = 0.0,
    ) -> NetworkLoad:
        """Compute the statistics from expected counts.

        `degrees` maps numbers of edges to the number of sources with as many. `bank_shares` [n] are the
        fractions of all edges that lead to each bank; by default they are equal.
        """
        sizes = [0.0] * pes
        for degree, count in degrees.items():
            full, rest = divmod(degree, pes)
            sizes[pes - 1] += full * count
            if rest:
                sizes[rest - 1] += count
        groups = sum(sizes)
        shares = [1.0 / pes] * pes if bank_shares is None else list(bank_shares)
        free = 1.0 - in_order
        number = np.arange(1, pes + 1)
        parts = np.array(sizes) / groups if groups > 0 else np.zeros(pes)
        mean = float(parts @ number)
        variance = float(parts @ number**2) - mean**2
        return cls(
            groups=groups,
            edges=groups * mean,
            bank_loads=tuple(
                _binomials(parts, min(max(share - in_order / pes, 0.0), 1.0), pes) for share in shares
            ),
            # Each edge is independently in order with probability `in_order`.
            spread=max(free**2 * variance + free * in_order * mean, 0.0),
            bank_share=max(shares),
            row_share=row_share,
            in_order=in_order,
        )


def network_cycles_expected(load: NetworkLoad, chunks: int, design: FpgaDesign) -> float:
    """Return the expected cycles of an aggregation of rows of `chunks` words.

    The queues let the duplicator run ahead of the busiest bank for a while. Groups are therefore processed in
    windows of w: per chunk, a window takes as many cycles as it has groups, or as its busiest bank has
    messages, whichever is larger. w grows with the queue depth per chunk of a row, d = D / chunks: w = 1 +
    RUN_AHEAD d + SPREAD d^2 (a random walk of the loads reaches depth d after about d^2 groups). With short
    queues w = 1: a group waits for its busiest bank. With infinite queues, the cycles are the larger of the
    number of groups and the busiest bank's edges. The loads of a window are sums of binomials, so the
    expected maximum is computed and only the three constants are fitted. A row's sum occupies the adder for A
    cycles per edge. If that exceeds the time of the row's chunks, it may be the bottleneck: the two times are
    joined by a power mean, (t^MEETING + (A * edges of the row with the most)^MEETING)^(1 / MEETING), since
    queues wait behind such messages.

    Fitted on 2026-11-21 by tools/predictions/fit_cycles.py to 400 cycle simulations and compared with 400
    others. Range: n 4 to 16, D 8 to 128, A 1 to 8, 1 to 64 chunks, 1,500 to 40,000 edges, 1 to 32 edges per
    source on average, destinations from uniform to Zipf with exponent 1.5 over 512 to 16,384 rows, no two
    edges of a source to the same destination, and up to 0.9 of the edges in order. In this range all errors
    are below 10 % (largest 9.1 %, mean absolute 0.8 %). With D of 4 to 7, one of 90 cases had an error of
    10.2 %; shallower queues were not fitted. Figures: benchmarks/2026-11-21-cycles.md.
    """
    if load.pes != design.pes:
        raise ValueError(f"network load of {load.pes} units on a design with {design.pes}")
    if chunks < 1:
        raise ValueError(f"network load: chunks is {chunks}: give at least 1")
    if load.groups == 0:
        return 0.0
    depth = design.fifo_depth / chunks
    window = min(1.0 + RUN_AHEAD * depth + SPREAD * depth**2, max(load.groups, 1.0), _MAX_WINDOW)
    below, above = _pace(load, floor(window)), _pace(load, ceil(window))
    pace = below + (above - below) * (window - floor(window))
    cycles = chunks * max(load.groups * pace, load.edges * load.bank_share)
    if design.adder_latency > chunks:
        adder_cycles = load.edges * load.row_share * design.adder_latency
        cycles *= (1.0 + (adder_cycles / cycles) ** MEETING) ** (1.0 / MEETING)
    return cycles + _FILL + design.adder_latency


def edge_groups(
    destinations: NDArray[Any], pes: int, sources: NDArray[Any] | None = None
) -> NDArray[np.int64]:
    """Return the duplicator's output: [groups, pes] int64 rows of each group's edges, padded with -1.

    `destinations` [E] are the result rows of the edges in kernel order. A new group begins when the row in
    `sources` [E] changes; without sources, all groups but the last are full. Raises ValueError if the arrays
    differ in length, or `destinations` is not one-dimensional or contains negative rows.
    """
    rows = np.asarray(destinations)
    if rows.ndim != 1:
        raise ValueError(f"aggregate network: `to` has shape {rows.shape}: give one row per edge")
    if len(rows) and int(rows.min()) < 0:
        raise ValueError(f"aggregate network: edge {int(np.argmin(rows))} leads to row {int(rows.min())}")
    first = np.zeros(len(rows), np.bool_)
    first[:1] = True
    if sources is not None:
        source_rows = np.asarray(sources)
        if source_rows.shape != rows.shape:
            raise ValueError(
                f"aggregate network: {source_rows.shape} sources for {rows.shape} edges: give one per edge"
            )
        first[1:] = source_rows[1:] != source_rows[:-1]
    starts = np.flatnonzero(first)
    lengths = np.diff(np.append(starts, len(rows)))
    position = np.arange(len(rows)) - np.repeat(starts, lengths)
    groups_per_source = -(-lengths // pes)
    group = np.repeat(np.cumsum(groups_per_source) - groups_per_source, lengths) + position // pes
    groups = np.full((int(groups_per_source.sum()), pes), -1, np.int64)
    groups[group, position % pes] = rows
    return groups


@lru_cache(maxsize=4096)
def _pace(load: NetworkLoad, window: int) -> float:
    """Return the cycles per chunk and group for a window size: mean of max(groups, largest load) / window."""
    pes, mean = load.pes, load.edges / load.groups
    length = window * pes + 1
    number = np.arange(pes + 1)
    banks = np.array(load.bank_loads)
    means = banks @ number
    variances = np.maximum(banks @ number**2 - means**2, 0.0)
    # A message is in exactly one bank, so the bank loads of a group are negatively correlated.
    covariance = float(np.sqrt(variances).sum()) ** 2 - float(variances.sum())
    correlation = (load.spread - float(variances.sum())) / covariance if covariance > 0 else 0.0
    below = np.ones(length)
    for bank in set(load.bank_loads):
        below *= _sum_distribution(np.array(bank), window, length) ** load.bank_loads.count(bank)
    top = float(means.max()) * window
    loads = top + (np.arange(length) - top) * sqrt(max(1.0 - correlation, 0.0))
    times = np.maximum(loads + load.in_order * mean * window / pes, window)
    return float(np.diff(below, prepend=0.0) @ times) / window


def _sum_distribution(one: Floats, number: int, length: int) -> Floats:
    """Return the [length] cumulative distribution of a sum of `number` values distributed as `one`."""
    total = np.fft.irfft(np.fft.rfft(one, length) ** number, length)
    return np.clip(np.cumsum(total), 0.0, 1.0)


def _binomials(parts: Floats, share: float, pes: int) -> tuple[float, ...]:
    """Return the fraction of groups with 0 .. n hits, for group sizes 1 .. n and hit probability `share`."""
    fractions = [0.0] * (pes + 1)
    for size, fraction in enumerate(parts.tolist(), 1):
        for hits in range(size + 1):
            fractions[hits] += fraction * comb(size, hits) * share**hits * (1.0 - share) ** (size - hits)
    return tuple(fractions)
