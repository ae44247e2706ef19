"""The cycle model equals its SystemVerilog twins cycle for cycle, and the twins compute what they should."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from aggregate_network import network_cycles
from hyrt_perfmodel.fpga_cycles import edge_groups
from hyrt_perfmodel.fpga_design import LANES, FpgaDesign, systolic_cycles
from numpy.typing import NDArray
from unit.hls import rtl_twins
from unit.perfmodel.array_by_registers import simulate_tiles

pytestmark = pytest.mark.skipif(bool(rtl_twins.missing()), reason=rtl_twins.missing())

Integers = NDArray[np.int64]
SHAPES = ((4, 4), (2, 8), (5, 3))


@dataclass(frozen=True)
class Edges:
    """A seeded edge list, sorted by source."""

    sources: Integers
    to: Integers
    weights: Integers
    rows: int


def edges(kind: str, seed: int, num: int = 600, rows: int = 96) -> Edges:
    random = np.random.default_rng(seed)
    degrees = random.integers(1, 20, num)
    sources = np.repeat(np.arange(num), degrees)[:num]
    if kind == "uniform":
        to = random.integers(0, rows, num)
    elif kind == "power-law":
        share = 1.0 / np.arange(1, rows + 1) ** 1.5
        to = random.choice(rows, num, p=share / share.sum())
    elif kind == "one-hot":
        to = np.full(num, 5)
    elif kind == "runs":
        to = np.repeat(random.integers(0, rows, num), random.integers(1, 25, num))[:num]
    else:
        sources, to = np.arange(num), random.integers(0, rows, num)
    return Edges(sources, to.astype(np.int64), random.integers(-9, 10, num), rows)


KINDS = ("uniform", "power-law", "one-hot", "runs", "one-edge-each")
CASES = [
    (kind, FpgaDesign(pes=pes, fifo_depth=depth, adder_latency=latency), chunks)
    for index, kind in enumerate(KINDS)
    for turn, (depth, latency, chunks) in enumerate(((2, 7, 1 + index), (8, 4, 3), (32, 8, 1), (1, 1, 2)))
    for pes in ((4, 8)[(index + turn) % 2],)
]


@pytest.fixture(scope="module")
def program() -> Path:
    return rtl_twins.build()


def network_case(case: Edges, design: FpgaDesign, chunks: int) -> str:
    groups = edge_groups(case.to, design.pes, case.sources)
    of_edge = edge_groups(np.arange(len(case.to)), design.pes, case.sources)
    weights = np.where(of_edge < 0, 0, case.weights[of_edge])
    lines = np.column_stack([case.sources[of_edge[:, 0]], groups, weights])
    head = (
        f"network {design.pes} {design.fifo_depth} {design.adder_latency} {chunks} {case.rows} {len(groups)}"
    )
    return f"{head} {' '.join(map(str, lines.reshape(-1)))}"


def dense(case: Edges, chunks: int) -> Integers:
    """What the banks hold in the end: [rows, chunks]."""
    feature = 1 + (31 * case.sources[:, None] + np.arange(chunks)) % 97
    sums = np.zeros((case.rows, chunks), np.int64)
    np.add.at(sums, case.to, case.weights[:, None] * feature)
    return sums


def test_the_network_equals_its_twin_cycle_for_cycle(program: Path) -> None:
    inputs = [edges(kind, seed) for seed, (kind, _, _) in enumerate(CASES)]
    found = rtl_twins.run(
        program,
        [network_case(case, design, chunks) for case, (_, design, chunks) in zip(inputs, CASES, strict=True)],
    )
    for case, (kind, design, chunks), (cycles, *sums) in zip(inputs, CASES, found, strict=True):
        where = f"{kind}, {design.pes} units, depth {design.fifo_depth}, {chunks} chunks"
        assert network_cycles(case.to, chunks, design, sources=case.sources) == cycles, where
        np.testing.assert_array_equal(np.reshape(sums, (case.rows, chunks)), dense(case, chunks), where)


@pytest.mark.parametrize("interval", [1, 3])
def test_the_array_equals_its_twin_cycle_for_cycle(program: Path, interval: int) -> None:
    random = np.random.default_rng(interval)
    cases, expected = [], []
    for shape, (rows, cols) in enumerate(SHAPES):
        for depth, tiles in ((1, 1), (7, 1), (16, 3), (2, 4)):
            a, b = (
                random.integers(-9, 10, (tiles, rows, depth)),
                random.integers(-9, 10, (tiles, depth, cols)),
            )
            both = np.concatenate([a.transpose(0, 2, 1).reshape(tiles, -1), b.reshape(tiles, -1)], 1)
            values = " ".join(map(str, both.reshape(-1)))
            cases.append(f"array {shape} {rows} {cols} {depth} {tiles} {interval} {values}")
            expected.append((a, b, FpgaDesign(mac_rows=rows, mac_cols=LANES * cols, update_ii=interval)))
    for (cycles, *sums), (a, b, design) in zip(rtl_twins.run(program, cases), expected, strict=True):
        products, simulated = simulate_tiles(a, b, design)
        np.testing.assert_array_equal(products, a @ b)
        np.testing.assert_array_equal(np.reshape(sums, products.shape[1:]), (a @ b)[-1])
        assert cycles == simulated
        whole = (len(a) * design.mac_rows, a.shape[2], design.mac_cols)
        assert cycles == systolic_cycles(*whole, design, overlapped=True)
        if len(a) == 1 and interval == 1:
            assert cycles == a.shape[2] + design.mac_rows + design.mac_cells - 2


def test_a_wrong_latency_is_seen(program: Path) -> None:
    """The comparison can fail: one cycle more in the adder changes a run with hazards."""
    case = edges("power-law", 1)
    design = FpgaDesign(pes=4, fifo_depth=8, adder_latency=4)
    ((cycles, *_),) = rtl_twins.run(program, [network_case(case, design, 1)])
    longer = FpgaDesign(pes=4, fifo_depth=8, adder_latency=5)
    assert network_cycles(case.to, 1, longer, sources=case.sources) > cycles + 1
