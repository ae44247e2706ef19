"""The closed form against the cycle simulation, on cases it was not fitted to, and against its bounds."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from aggregate_network import network_cycles
from hyrt_perfmodel.fpga_cycles import NetworkLoad, network_cycles_expected
from hyrt_perfmodel.fpga_design import FpgaDesign

TOOLS = Path(__file__).parents[3] / "tools" / "predictions"


@pytest.fixture
def fit_cycles(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOOLS))
    return import_module("fit_cycles")


def test_it_is_within_a_tenth_of_the_simulation(fit_cycles: ModuleType) -> None:
    """A few of the range's cases; tools/predictions/fit_cycles.py prints the errors of 400."""
    measured = [m for m in fit_cycles.measure(range(50_000, 50_050)) if m.case.design.fifo_depth >= 8]
    found = fit_cycles.errors(measured)
    worst = int(np.argmax(abs(found)))
    assert abs(found).max() < 0.10, measured[worst].case
    assert abs(found).mean() < 0.03
    # The cases are no easy ones: the ideal, all units busy, misses most of them by far.
    ideal = [m.load.edges * m.case.chunks / m.case.design.pes / m.cycles - 1 for m in measured]
    assert np.mean(np.abs(ideal) > 0.2) > 0.5


def test_counts_alone_tell_it_too() -> None:
    random = np.random.default_rng(3)
    for pes, degree, depth, chunks in (
        (8, 8, 32, 16),
        (8, 25, 32, 7),
        (4, 3, 8, 4),
        (16, 2, 8, 16),
        (8, 1, 8, 4),
    ):
        design = FpgaDesign(pes=pes, fifo_depth=depth)
        sources = np.repeat(np.arange(2_000), degree)
        to = random.integers(0, 5_000, len(sources))
        cycles = network_cycles(to, chunks, design, sources=sources)
        load = NetworkLoad.from_degrees({degree: 2_000}, pes)
        assert network_cycles_expected(load, chunks, design) == pytest.approx(cycles, rel=0.1)


def test_statistics_of_an_edge_list() -> None:
    sources = np.array([0, 0, 0, 1, 2, 2])
    to = np.array([3, 1, 5, 5, 6, 7])
    load = NetworkLoad.from_edges(to, 2, sources)
    # Groups (3, 1), (5), (5), (6, 7); 6 and 7 are next in order.
    assert (load.groups, load.edges) == (4, 6)
    assert load.bank_share == pytest.approx(5 / 6)
    assert load.row_share == pytest.approx(2 / 6)
    assert load.in_order == pytest.approx(2 / 6)
    assert load.bank_loads == ((1.0, 0.0, 0.0), (0.25, 0.5, 0.25))
    assert load.spread == pytest.approx(np.var([2, 1, 1, 0]))


def test_expected_counts_make_the_groups_of_their_sources() -> None:
    load = NetworkLoad.from_degrees({1: 10.0, 9: 2.0, 8: 1.5}, 8)
    assert load.groups == pytest.approx(10 + 2 * 2 + 1.5)
    assert load.edges == pytest.approx(10 + 18 + 12)
    assert sum(sum(bank) for bank in load.bank_loads) == pytest.approx(8)


@pytest.mark.parametrize("latency", [1, 7])
def test_one_hot_row_takes_the_adders_latency_each_time(latency: int) -> None:
    design = FpgaDesign(pes=4, adder_latency=latency)
    to, sources = np.full(500, 6), np.arange(500)
    expected = network_cycles_expected(NetworkLoad.from_edges(to, 4, sources), 2, design)
    assert expected == pytest.approx(network_cycles(to, 2, design, sources=sources), rel=0.02)
    assert expected >= 500 * max(latency, 2)


def test_deep_queues_leave_the_larger_of_groups_and_busiest_bank() -> None:
    random = np.random.default_rng(5)
    sources = np.repeat(np.arange(4_000), 4)
    to = np.where(
        random.random(16_000) < 0.4, 8 * random.integers(0, 50, 16_000), random.integers(0, 400, 16_000)
    )
    load = NetworkLoad.from_edges(to, 8, sources)
    bound = 10 * max(4_000, np.bincount(to % 8).max())
    assert bound <= network_cycles_expected(load, 10, FpgaDesign(fifo_depth=4096)) < 1.01 * bound


def test_wrong_loads_are_refused() -> None:
    load = NetworkLoad.from_degrees({3: 5.0}, 4)
    with pytest.raises(ValueError, match="counted for 4 PEs, but the design has 8"):
        network_cycles_expected(load, 1, FpgaDesign())
    with pytest.raises(ValueError, match="chunks must be at least 1, got 0"):
        network_cycles_expected(load, 0, FpgaDesign(pes=4))
    with pytest.raises(ValueError, match="must be fractions from 0 to 1"):
        NetworkLoad.from_degrees({3: 5.0}, 4, row_share=1.5)
    assert network_cycles_expected(NetworkLoad.from_degrees({}, 4), 3, FpgaDesign(pes=4)) == 0
    assert (
        network_cycles_expected(NetworkLoad.from_edges(np.zeros(0, np.int64), 4), 3, FpgaDesign(pes=4)) == 0
    )
