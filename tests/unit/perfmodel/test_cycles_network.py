"""The simulated aggregate network against worked cases, bounds, and the same network built of objects."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from itertools import groupby

import numpy as np
import pytest
from aggregate_network import network_cycles
from hypothesis import given, settings
from hypothesis import strategies as st
from hyrt_perfmodel.fpga_cycles import edge_groups
from hyrt_perfmodel.fpga_design import FpgaDesign
from unit.perfmodel.network_by_parts import cycles_of


def design(pes: int = 4, depth: int = 8, latency: int = 3) -> FpgaDesign:
    return FpgaDesign(pes=pes, fifo_depth=depth, adder_latency=latency)


def groups_by_hand(sources: list[int], to: list[int], pes: int) -> list[list[int]]:
    found = []
    for _, edges in groupby(zip(sources, to, strict=True), key=lambda edge: edge[0]):
        rows = [row for _, row in edges]
        found += [rows[start : start + pes] for start in range(0, len(rows), pes)]
    return found


EDGES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), min_size=1, max_size=40).map(
    lambda edges: sorted(edges, key=lambda edge: edge[0])
)


@settings(max_examples=150)
@given(EDGES, st.sampled_from([1, 2, 3, 4]), st.integers(1, 4), st.integers(1, 5), st.integers(1, 6))
def test_it_equals_the_network_of_objects(
    edges: list[tuple[int, int]], pes: int, chunks: int, depth: int, latency: int
) -> None:
    sources, to = (list(column) for column in zip(*edges, strict=True))
    groups = groups_by_hand(sources, to, pes)
    expected, order = cycles_of(groups, pes, chunks, depth, latency)
    assert Counter(order) == Counter((row, chunk) for row in to for chunk in range(chunks))
    built = design(pes, depth, latency)
    assert network_cycles(np.array(to), chunks, built, sources=np.array(sources)) == expected


@settings(max_examples=50)
@given(EDGES, st.integers(1, 5))
def test_groups_are_of_one_source_and_keep_the_order(edges: list[tuple[int, int]], pes: int) -> None:
    sources, to = (list(column) for column in zip(*edges, strict=True))
    found = edge_groups(np.array(to), pes, np.array(sources))
    assert [[row for row in group if row >= 0] for group in found.tolist()] == groups_by_hand(
        sources, to, pes
    )


def test_one_edge_passes_register_queue_and_adder() -> None:
    # Taken by the register in cycle 0, by the queue in 1, by the gather unit in 2; the sum is there 3 later.
    assert network_cycles(np.array([5]), 1, design()) == 5
    assert network_cycles(np.array([5]), 10, design()) == 14


def test_one_row_waits_for_the_adder_each_time() -> None:
    # A group of four to one row, one chunk: taken in cycles 2, 2 + A, 2 + 2A, 2 + 3A.
    assert network_cycles(np.full(4, 7), 1, design(latency=3)) == 2 + 3 * 3 + 3
    # With an adder of one cycle nothing waits but for the one message a cycle.
    assert network_cycles(np.full(4, 7), 1, design(latency=1)) == 2 + 3 + 1


def test_groups_to_different_banks_take_a_cycle_each() -> None:
    assert network_cycles(np.arange(400), 1, design()) == 99 + 2 + 3
    # One edge a source fills a unit of four.
    assert network_cycles(np.arange(400), 1, design(), sources=np.arange(400)) == 399 + 2 + 3


def test_deeper_queues_are_no_slower_and_bounds_hold() -> None:
    random = np.random.default_rng(1)
    to = random.integers(0, 500, 20_000)
    cycles = [network_cycles(to, 2, design(8, depth, 7)) for depth in (1, 2, 8, 32, 128)]
    assert cycles == sorted(cycles, reverse=True)
    assert cycles[-1] >= 2 * max(len(to) / 8, np.bincount(to % 8).max())
    assert cycles[0] > 1.2 * cycles[-1]


def test_no_edges_take_no_cycles() -> None:
    assert network_cycles(np.zeros(0, np.int64), 3, design()) == 0


@pytest.mark.parametrize(
    ("to", "sources", "chunks", "words"),
    [
        (np.array([1, -2]), None, 1, "edge 1 has -2"),
        (np.array([1, 2]), np.array([1]), 1, "expected one per edge"),
        (np.array([[1]]), None, 1, "shape"),
        (np.array([1]), None, 0, "chunks must be at least 1, got 0"),
    ],
)
def test_wrong_edges_are_refused(to: np.ndarray, sources: np.ndarray | None, chunks: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        network_cycles(to, chunks, design(), sources=sources)


def test_the_model_is_imported_without_numba() -> None:
    code = (
        "import sys; sys.modules['numba'] = None\n"
        "import hyrt_perfmodel.fpga_cycles, hyrt_perfmodel.prediction.predict\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
