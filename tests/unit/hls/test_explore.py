"""The explorer, against every design tried one by one."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hyrt_hls.arena_limits import needed_words
from hyrt_hls.design_space import Candidate, evaluate_design, explore_designs, pareto_front
from hyrt_hls.fpga_part import FpgaPart, load_part
from hyrt_hls.resources import estimate_resources
from hyrt_hls.task_layout import row_base
from hyrt_perfmodel.fpga_cycles import TaskShape, task_seconds
from hyrt_perfmodel.fpga_design import FpgaDesign
from hyrt_perfmodel.workload import Workload, proportional_workload

WORK = Workload(
    vertices=(20_000.0, 3_000.0, 256.0), edges=(24_000.0, 3_500.0), features=(100, 64, 47), concat=True
)
AT = proportional_workload(WORK, 256)
RESOURCES = ("dsp", "lut", "bram36", "uram")


def cost(part: FpgaPart, candidate: Candidate) -> float:
    return max(getattr(candidate.resources, name) / getattr(part, name) for name in RESOURCES)


@pytest.mark.parametrize("name", ["u250", "u50"])
def test_nothing_on_a_grid_beats_the_front(name: str) -> None:
    """No design of a grid of its own is cheaper and faster than all of the front.

    Arenas of other sizes are among them.
    """
    part = load_part(name)
    base = FpgaDesign(ddr_bytes_per_s=part.bank_bytes_per_s)
    found = explore_designs(part, AT, 256, base)
    costs, times = [each.cost for each in found], [each.step_s for each in found]
    assert costs == sorted(costs)
    assert times == sorted(times, reverse=True)
    tried = 0
    for pes, rows, cols, words in product((1, 4, 8, 16), (8, 16, 32), (16, 64), (7_000, 20_000, 33_000)):
        if rows % pes:
            continue
        try:
            other = evaluate_design(
                part, AT, 256, replace(base, pes=pes, mac_rows=rows, mac_cols=cols), words
            )
        except ValueError:
            continue
        tried += 1
        assert any(each.cost <= other.cost and each.step_s <= other.step_s for each in found), other
    assert tried > 20


def test_a_candidate_is_what_its_parts_say() -> None:
    part = load_part("u250")
    base = FpgaDesign(fifo_depth=8, clock_hz=200e6)
    for each in explore_designs(part, AT, 256, base):
        assert (each.design.fifo_depth, each.design.clock_hz) == (8, 200e6)
        assert each.resources == estimate_resources(each.design, each.arena_words)
        assert all(getattr(each.resources, name) <= getattr(part, name) for name in RESOURCES)
        assert each.cost == cost(part, each)
        work = AT(256 / each.tasks)
        assert each.step_s == pytest.approx(
            each.tasks * task_seconds(TaskShape.from_workload(work), each.design)
        )
        sums, rows = needed_words(work, each.design.pes)
        assert sums <= row_base(each.arena_words)
        assert rows <= each.arena_words - row_base(each.arena_words)


def test_the_front_by_brute_force() -> None:
    one = explore_designs(load_part("u250"), AT, 256, FpgaDesign())[0]
    points = [(0.5, 3.0), (0.2, 9.0), (0.5, 2.0), (0.2, 8.0), (0.9, 2.0), (0.7, 2.5), (0.1, 20.0), (0.2, 8.0)]
    kept = pareto_front([replace(one, cost=c, step_s=s) for c, s in points])
    beaten = {(c, s) for c, s in points for d, t in points if (d, t) != (c, s) and d <= c and t <= s}
    assert [(each.cost, each.step_s) for each in kept] == sorted(set(points) - beaten)


def test_a_larger_part_is_no_slower() -> None:
    times = {
        name: explore_designs(load_part(name), AT, 256, FpgaDesign())[-1].step_s for name in ("u50", "u250")
    }
    assert times["u250"] <= times["u50"]


def test_the_papers_design() -> None:
    part = load_part("u250")
    paper = evaluate_design(part, AT, 256, FpgaDesign(), part.arena_words)
    assert paper.resources.dsp == 11_136
    assert paper.step_s > 0
    with pytest.raises(ValueError, match="does not fit u50, because it needs dsp 11,136 of 5,952"):
        evaluate_design(load_part("u50"), AT, 256, FpgaDesign(), 32_768)
    with pytest.raises(ValueError, match="mac_cols must be a multiple of 16"):
        evaluate_design(part, AT, 256, FpgaDesign(mac_cols=24), 32_768)


def test_no_design_fits() -> None:
    wide = Workload(vertices=(9e6, 9e6), edges=(9e6,), features=(4000, 4000), concat=False)
    with pytest.raises(ValueError, match=r"no trainer fits u250: arena: one target needs"):
        explore_designs(load_part("u250"), lambda targets: wide, 1, FpgaDesign())
    with pytest.raises(ValueError, match="no trainer fits u250: layer 1 maps rows of 9000 values to 4"):
        explore_designs(
            load_part("u250"),
            lambda targets: Workload(vertices=(9, 9), edges=(9,), features=(9000, 4), concat=False),
            1,
            FpgaDesign(),
        )
    tiny = replace(load_part("u250"), lut=20_000)
    with pytest.raises(ValueError, match="no trainer fits u250: it is too small"):
        explore_designs(tiny, AT, 256, FpgaDesign())
