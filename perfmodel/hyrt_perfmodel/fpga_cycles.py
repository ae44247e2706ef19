"""Cycles of a task on the FPGA trainer by phase, with a closed form for its aggregation network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, comb, floor, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.fpga_design import (
    EDGE_BYTES,
    LANES,
    VALUE_BYTES,
    FpgaDesign,
    drain_cycles,
    num_chunks,
    num_tiles,
    row_words,
    systolic_cycles,
)
from hyrt_perfmodel.workload import Workload

Floats = NDArray[np.float64]

RUN_AHEAD = 3.0
SPREAD = 2.5
MEETING = 6.5
_MAX_WINDOW = 1024
# Latency from the duplicator to the gather unit, through the scatter unit's register and the queue.
_FILL = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLoad:
    """Statistics of a layer's edges that determine the time in the network."""

    groups: float
    edges: float
    """Exact or expected number of edges; `groups` is that of groups."""
    bank_loads: tuple[tuple[float, ...], ...]
    """Fraction of groups with 0, 1, .. n edges to each bank, excluding edges in order: [n][n + 1]."""
    spread: float
    """Variance of the number of edges per group, excluding edges in order."""
    bank_share: float
    row_share: float = 0.0
    """Fraction of all edges into the busiest row; `bank_share` is that into the busiest bank."""
    in_order: float = 0.0
    """Fraction of edges in order: their row is one above the highest row so far, so they visit the banks in
    turn. In a sampled block, transposed edges are such, because sources are numbered in order of first
    occurrence. The other edges are modeled as random."""

    def __post_init__(self) -> None:
        if not self.bank_loads or any(len(bank) != len(self.bank_loads) + 1 for bank in self.bank_loads):
            lengths = [len(bank) for bank in self.bank_loads]
            raise ValueError(
                f"network load: there are {len(lengths)} banks with {lengths} parts, expected n banks of n "
                "+ 1 parts"
            )
        if min(self.groups, self.edges, self.spread) < 0:
            raise ValueError(
                f"network load: groups, edges and spread must be at least 0, got {self.groups}, {self.edges} "
                f"and {self.spread}"
            )
        parts = (
            self.bank_share,
            self.row_share,
            self.in_order,
            *(p for bank in self.bank_loads for p in bank),
        )
        if not all(-1e-9 <= part <= 1 + 1e-9 for part in parts):
            raise ValueError("network load: loads, shares and in_order must be fractions from 0 to 1")

    @property
    def pes(self) -> int:
        return len(self.bank_loads)

    @classmethod
    def from_edges(
        cls, destinations: NDArray[Any], pes: int, sources: NDArray[Any] | None = None
    ) -> NetworkLoad:
        """Compute the statistics of an edge list. Parameters and errors are those of `edge_groups`."""
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

        `degrees` maps a number of edges to the number of sources with so many edges. `bank_shares` [n]
        contains the fractions of all edges that lead to each bank, which are equal by default.
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
    """Return the expected cycles of an aggregation whose rows have `chunks` words.

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
        raise ValueError(
            f"the network load was counted for {load.pes} PEs, but the design has {design.pes}: count it "
            "again"
        )
    if chunks < 1:
        raise ValueError(f"network load: chunks must be at least 1, got {chunks}")
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
    """Return the duplicator's output: result rows of each group's edges, [groups, pes] int64, padded with -1.

    `destinations` [E] contains the result rows of the edges in kernel order. A new group begins when the row
    in `sources` [E] changes. Without `sources`, all groups but the last are full. Raises ValueError if the
    arrays differ in length, or `destinations` is not one-dimensional or contains negative rows.
    """
    rows = np.asarray(destinations)
    if rows.ndim != 1:
        raise ValueError(f"aggregate network: destinations has shape {rows.shape}, expected [E]")
    if len(rows) and int(rows.min()) < 0:
        raise ValueError(
            f"aggregate network: destinations must be at least 0, but edge {int(np.argmin(rows))} has "
            f"{int(rows.min())}"
        )
    first = np.zeros(len(rows), np.bool_)
    first[:1] = True
    if sources is not None:
        source_rows = np.asarray(sources)
        if source_rows.shape != rows.shape:
            raise ValueError(
                f"aggregate network: sources has shape {source_rows.shape}, expected one per edge, "
                f"{rows.shape}"
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
    """Return the cycles per chunk and group: the mean of max(groups, largest load) / window."""
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
    """Return the cumulative distribution of a sum of `number` values with distribution `one`: [length]."""
    total = np.fft.irfft(np.fft.rfft(one, length) ** number, length)
    return np.clip(np.cumsum(total), 0.0, 1.0)


def _binomials(parts: Floats, share: float, pes: int) -> tuple[float, ...]:
    """Return the fraction of groups with 0 .. n hits for group sizes 1 .. n and hit chance `share`."""
    fractions = [0.0] * (pes + 1)
    for size, fraction in enumerate(parts.tolist(), 1):
        for hits in range(size + 1):
            fractions[hits] += fraction * comb(size, hits) * share**hits * (1.0 - share) ** (size - hits)
    return tuple(fractions)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EdgeList:
    """Edges in kernel order, which is sorted by source."""

    sources: NDArray[Any]
    destinations: NDArray[Any]
    """Result row of each edge: [E] integers. `sources` contains the source rows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerSizes:
    """Sizes of one layer of a task. Counts may be expected values, which need not be whole numbers."""

    rows: float
    """Number of destinations."""
    parts: int
    """Number of rows of the combined matrix per destination: 2 if the self row and the aggregate are stored
    separately, otherwise 1."""
    num_src: float
    in_width: int
    out_width: int
    """Number of values per output row; `in_width` is that per source row."""
    edges: float
    """Number of edges in the forward section, including those from self rows."""
    self_edges: float = 0.0
    """Number of edges from self rows."""
    value_bytes: int = VALUE_BYTES
    """Number of bytes per value of a source row that is read from memory."""
    forward: EdgeList | None = None
    backward: EdgeList | None = None
    """`forward` and `backward` are the edge lists, if known. Otherwise, statistics follow from the counts: a
    source's edges beyond the first are distributed geometrically, and sources that are no destinations are
    numbered in order of first occurrence."""

    def __post_init__(self) -> None:
        if min(self.rows, self.num_src, self.edges, self.self_edges) < 0 or self.self_edges > self.edges:
            raise ValueError(
                f"layer shape: counts must be at least 0, and self_edges at most edges, got {self.rows} "
                f"rows, {self.num_src} sources, {self.edges} edges and {self.self_edges} self_edges"
            )
        if self.parts not in (1, 2):
            raise ValueError(f"layer shape: parts must be 1 or 2, got {self.parts}")
        if min(self.in_width, self.out_width) < 1:
            raise ValueError(
                f"layer shape: widths must be at least 1, got {self.in_width} and {self.out_width}"
            )

    def forward_load(self, pes: int) -> NetworkLoad:
        """Return the network load of the edges from source rows to combined rows."""
        if self.forward is not None:
            return NetworkLoad.from_edges(self.forward.destinations, pes, self.forward.sources)
        new_rows = max(self.num_src - self.rows, 0.0)
        sampled = self.edges - self.self_edges
        # Each source that is not a destination has an edge, and all sources share the remaining edges.
        excess = max(sampled - new_rows, 0.0) / self.num_src if self.num_src else 0.0
        self_edges = self.self_edges / self.rows if self.rows else 0.0
        degrees: dict[int, float] = {}
        for count, first in ((new_rows, 1.0), (self.num_src - new_rows, self_edges)):
            for more, fraction in _geometric(excess).items():
                for degree, weight in (
                    (floor(first) + more, 1 - first % 1),
                    (floor(first) + 1 + more, first % 1),
                ):
                    degrees[degree] = degrees.get(degree, 0.0) + count * fraction * weight
        return NetworkLoad.from_degrees(degrees, pes, bank_shares=self._bank_shares(pes))

    def backward_load(self, pes: int) -> NetworkLoad:
        """Return the network load of the edges from combined rows to source rows."""
        if self.backward is not None:
            return NetworkLoad.from_edges(self.backward.destinations, pes, self.backward.sources)
        degrees: dict[int, float] = {}
        if self.parts == 2:
            degrees[1] = self.self_edges
            _add_even(degrees, self.rows, self.edges - self.self_edges)
        else:
            _add_even(degrees, self.rows, self.edges)
        new_rows = max(self.num_src - self.rows, 0.0)
        return NetworkLoad.from_degrees(
            degrees, pes, in_order=min(new_rows / self.edges, 1.0) if self.edges else 0.0
        )

    def _bank_shares(self, pes: int) -> list[float] | None:
        """Return each bank's share of the edges, or None if all shares are equal.

        With two parts, even banks contain self rows and odd banks contain aggregates.
        """
        if self.parts == 1 or pes % 2 or self.edges == 0:
            return None
        self_fraction = self.self_edges / self.edges
        return [self_fraction * 2 / pes, (1.0 - self_fraction) * 2 / pes] * (pes // 2)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskShape:
    """Layers of a task, input layer first, and the number of classes of its targets."""

    layers: tuple[LayerSizes, ...]
    classes: int

    def __post_init__(self) -> None:
        if not self.layers or self.classes < 1:
            raise ValueError(
                f"task shape: there must be at least 1 layer and 1 class, got {len(self.layers)} and "
                f"{self.classes}"
            )

    @property
    def targets(self) -> float:
        return self.layers[-1].rows

    @classmethod
    def from_workload(cls, workload: Workload) -> TaskShape:
        """Derive the shape from expected sizes. Each destination's self row counts as an edge."""
        layers = tuple(
            LayerSizes(
                rows=workload.vertices[layer],
                parts=2 if workload.concat else 1,
                num_src=workload.vertices[layer - 1],
                in_width=workload.features[layer - 1],
                out_width=workload.features[layer],
                edges=workload.edges[layer - 1] + workload.vertices[layer],
                self_edges=workload.vertices[layer],
                value_bytes=_value_bytes(workload) if layer == 1 else VALUE_BYTES,
            )
            for layer in range(1, workload.layers + 1)
        )
        return cls(layers=layers, classes=workload.features[-1])


def _value_bytes(workload: Workload) -> int:
    """Return the bytes per input value, without the quantization scale of the row."""
    return next((size for size in (4, 2) if workload.dense_row_bytes >= size * workload.features[0]), 1)


def _geometric(mean: float) -> Mapping[int, float]:
    """Return geometric probabilities of 0, 1, .. with a given mean; the last entry includes the tail."""
    ratio = mean / (1.0 + mean)
    probabilities = {}
    remaining = 1.0
    for number in range(256):
        probabilities[number] = remaining * (1.0 - ratio)
        remaining *= ratio
        if remaining < 1e-4:
            break
    probabilities[number] += remaining
    return probabilities


def _add_even(degrees: dict[int, float], rows: float, edges: float) -> None:
    """Add rows to `degrees` that share `edges` edges as evenly as whole numbers allow."""
    if rows <= 0:
        return
    quotient = floor(edges / rows)
    remainder = edges - quotient * rows
    for degree, count in ((quotient, rows - remainder), (quotient + 1, remainder)):
        if degree > 0:
            degrees[degree] = degrees.get(degree, 0.0) + count


_WORD_BYTES = LANES * VALUE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCycles:
    """Cycles of the phases of a layer."""

    aggregate: float
    update: float
    """Cycles of the update in the forward pass; `aggregate` is that of the aggregation."""
    backward: float
    """Cycles of the gradient of the combined rows and its aggregation; 0 for the first layer."""
    weight_gradient: float
    """Cycles of the weight gradient, including the mask of the layer's output."""
    memory: float
    """Cycles in which the memory moves the layer's bytes, which the other counts include."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCycles:
    """Cycles of the phases of a task."""

    layers: tuple[LayerCycles, ...]
    """Cycles of each layer, input layer first."""
    loss: float
    """Cycles of softmax, its gradient, and the count of correct predictions."""
    pipelined: bool
    """Whether aggregation and update of a layer overlap in the forward pass."""
    assumed: frozenset[str]
    """Names of the design's fields that no build or board has confirmed."""

    @property
    def forward(self) -> float:
        if self.pipelined:
            return sum(max(layer.aggregate, layer.update) for layer in self.layers)
        return sum(layer.aggregate + layer.update for layer in self.layers)

    @property
    def backward(self) -> float:
        return sum(layer.backward + layer.weight_gradient for layer in self.layers)

    @property
    def total(self) -> float:
        return self.forward + self.loss + self.backward


def task_cycles(shape: TaskShape, design: FpgaDesign, *, pipelined: bool = False) -> TaskCycles:
    """Return the expected cycles of a task.

    The phases of the kernel of `hyrt_hls` run one after the other: forward, the aggregation and update of
    each layer; the loss; and backward, for each layer the mask, the weight gradient, and except in the first
    layer the gradient of the combined rows and its aggregation over the transposed edges. A phase takes as
    long as the slowest of its concurrent parts:

        aggregation      the network; reading its edges, one per cycle (or per interval of the design);
                         memory traffic (layer 1 feature rows once, in whole words; edges)
        a product        per panel of mac_cols columns: loading the panel, then for every tile the slowest of
                         the array including draining, transposing the left matrix (LANES columns of
                         mac_rows rows at a time), and writing the results
        weight gradient  the same array with the tile's rows of the gradient on the left, while all rows
                         of the layer stream through

    `pipelined=True` is the paper's form: aggregation and update of a layer overlap in the forward pass, and
    the longer one counts (equation 10). In the kernel, they do not overlap; docs/fpga.md explains why.

    Not counted: latencies of loops and of starting processes (tens of cycles per region), and refresh and
    turn-around of the memory beyond `ddr_efficiency`.
    """
    layers = tuple(
        _layer_cycles(layer, design, first=number == 0) for number, layer in enumerate(shape.layers)
    )
    chunks = num_chunks(shape.classes)
    loss = shape.targets * (shape.classes + 2 * chunks + LANES)
    return TaskCycles(layers=layers, loss=loss, pipelined=pipelined, assumed=design.assumed)


def task_seconds(shape: TaskShape, design: FpgaDesign) -> float:
    """Return the seconds of a task on the card, including its launch but not the link."""
    return design.launch_s + task_cycles(shape, design).total / design.clock_hz


def _layer_cycles(layer: LayerSizes, design: FpgaDesign, *, first: bool) -> LayerCycles:
    chunks, out_chunks = num_chunks(layer.in_width), num_chunks(layer.out_width)
    load = layer.forward_load(design.pes)
    sources = min(layer.num_src, load.groups)
    row_bytes = row_words(layer.in_width, layer.value_bytes) * _WORD_BYTES
    read = layer.edges * EDGE_BYTES + (sources * row_bytes if first else 0.0)
    aggregate = _aggregate(load, layer.rows * layer.parts, chunks, read, design)
    steps = layer.parts * chunks * LANES
    weight_bytes = (steps + 1) * out_chunks * _WORD_BYTES
    update = _product(layer.rows, layer.parts, chunks, layer.out_width, design, transposed=False)
    gradient = _weight_gradient(layer, design) + _blocks(layer.rows, design.pes) * out_chunks
    moved = read + 2 * weight_bytes
    backward = 0.0
    if not first:
        edge_bytes = layer.edges * EDGE_BYTES
        moved += edge_bytes + weight_bytes
        backward = _product(
            layer.rows, 1, out_chunks, layer.parts * chunks * LANES, design, transposed=True
        ) + _aggregate(layer.backward_load(design.pes), layer.num_src, chunks, edge_bytes, design)
    return LayerCycles(
        aggregate=aggregate,
        update=update,
        backward=backward,
        weight_gradient=gradient,
        memory=moved / design.ddr_bytes_per_cycle,
    )


def _aggregate(load: NetworkLoad, rows: float, chunks: int, read_bytes: float, design: FpgaDesign) -> float:
    """Return the cycles of an aggregation, including clearing the sums (one word per bank and cycle)."""
    clear = _blocks(rows, design.pes) * chunks
    # If the interval of the network is 2, iterations already count the adder hazard, so all cycles double.
    network = network_cycles_expected(load, chunks, design) * design.network_ii
    return clear + max(network, load.edges * design.edge_ii, read_bytes / design.ddr_bytes_per_cycle)


def _product(
    rows: float, parts: int, chunks: int, columns: int, design: FpgaDesign, *, transposed: bool
) -> float:
    """Return the cycles of the product [rows, parts * chunks * LANES] x [parts * chunks * LANES, columns].

    These include loading the panels.
    """
    if rows <= 0:
        return 0.0
    cells, steps = design.mac_cells, parts * chunks * LANES
    panels = ceil(num_chunks(columns) / cells)
    # A transposed panel is loaded in squares of LANES x LANES values, which are written by rows and read by
    # columns.
    taken = cells * chunks * 2 * LANES if transposed else cells * (steps + 1)
    panel = max(taken, cells * (steps + 1) * _WORD_BYTES / design.ddr_bytes_per_cycle)
    fills = ceil(design.mac_rows / design.pes) * parts
    turn = chunks * max(fills, LANES * parts)
    write = design.mac_rows * cells
    tile = max(_tile(steps, design), turn, write)
    return panels * (panel + tile * ceil(rows / design.mac_rows))


def _weight_gradient(layer: LayerSizes, design: FpgaDesign) -> float:
    """Return the cycles of a weight gradient.

    The tiles cover the weight rows and the bias row, and the steps are the rows of the layer.
    """
    if layer.rows <= 0:
        return 0.0
    weight_rows = layer.parts * num_chunks(layer.in_width) * LANES + 1
    blocks = _blocks(layer.rows, design.pes)
    fills = max(design.mac_rows // LANES, 1) * layer.parts + design.mac_cells
    scatter = (blocks + 1) * max(fills, design.pes)
    write = design.mac_rows * design.mac_cells
    tile = max(_tile(blocks * design.pes, design), scatter, write)
    return tile * num_tiles(weight_rows, num_chunks(layer.out_width) * LANES, design)


def _tile(steps: int, design: FpgaDesign) -> int:
    return systolic_cycles(1, steps, 1, design) + drain_cycles(design)


def _blocks(rows: float, pes: int) -> int:
    return ceil(rows / pes)
