"""The cycles of a task: parts by hand, and expected sizes against simulated edges like a mini-batch's."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import numpy as np
import pytest
from aggregate_network import edge_list, network_cycles
from hyrt_perfmodel.fpga_cycles import (
    EdgeList,
    LayerSizes,
    NetworkLoad,
    TaskShape,
    network_cycles_expected,
    task_cycles,
    task_seconds,
)
from hyrt_perfmodel.fpga_design import FpgaDesign
from hyrt_perfmodel.workload import Workload
from numpy.typing import NDArray

DESIGN = FpgaDesign(pes=4, mac_rows=8, mac_cols=32, fifo_depth=16, adder_latency=4)


def block(
    num_dst: int, fanout: int, vertices: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """A sampled block's edges (source, row): sources are numbered as they are met, destinations first."""
    random = np.random.default_rng(seed)
    number = {vertex: vertex for vertex in range(num_dst)}
    picks = [random.choice(vertices, fanout, replace=False) for _ in range(num_dst)]
    sources = [number.setdefault(int(vertex), len(number)) for pick in picks for vertex in pick]
    return np.array(sources), np.repeat(np.arange(num_dst), fanout), len(number)


def layer(parts: int, seed: int = 0, *, first: bool = True) -> LayerSizes:
    sources, rows, num_src = block(300, 10, 4_000, seed)
    own = np.arange(300)
    sources, combined = (
        np.concatenate([own, sources]),
        np.concatenate([own * parts, rows * parts + parts - 1]),
    )
    return LayerSizes(
        rows=300,
        parts=parts,
        num_src=num_src,
        in_width=100,
        out_width=48,
        edges=len(sources),
        self_edges=300,
        forward=edge_list(sources, combined),
        backward=None if first else edge_list(combined, sources),
    )


def network_of(edges: EdgeList | None, chunks: int) -> float:
    assert edges is not None
    load = NetworkLoad.from_edges(edges.destinations, DESIGN.pes, edges.sources)
    return network_cycles_expected(load, chunks, DESIGN)


def simulated(edges: EdgeList | None, rows: int, chunks: int) -> int:
    """The aggregation with the network simulated: clearing the sums, then the network."""
    assert edges is not None
    return ceil(rows / 4) * chunks + network_cycles(edges.destinations, chunks, DESIGN, sources=edges.sources)


def test_forward_by_hand() -> None:
    """Widths 100 and 48 are 7 and 3 words; with 8 rows and 2 cells an output is two panels wide."""
    for parts in (1, 2):
        shape = layer(parts)
        cycles = task_cycles(TaskShape(layers=(shape,), classes=48), DESIGN)
        clear = ceil(300 * parts / 4) * 7
        assert cycles.layers[0].aggregate == clear + network_of(shape.forward, 7)
        steps = parts * 7 * 16
        tile = steps + 8 + 2 - 2 + 36 + 8
        assert cycles.layers[0].update == 2 * (2 * (steps + 1) + ceil(300 / 8) * tile)
        assert cycles.layers[0].backward == 0


def test_backward_by_hand() -> None:
    below, shape = layer(1), layer(2, 1, first=False)
    cycles = task_cycles(TaskShape(layers=(below, shape), classes=48), DESIGN).layers[1]
    # The gradient of 300 x 224 combined values from 48: 7 panels of 32; each comes in 2 x 3 squares of 2 x 16
    # cycles.
    product = 7 * (2 * 3 * 32 + ceil(300 / 8) * (48 + 8 + 2 - 2 + 36 + 8))
    aggregate = ceil(shape.num_src / 4) * 7 + network_of(shape.backward, 7)
    assert cycles.backward == product + aggregate
    # 225 rows of weights and bias in 29 tiles, two panels; 300 steps in blocks of 4, one more block to fill.
    spread = (75 + 1) * 4
    tile = max(300 + 8 + 2 - 2 + 36 + 8, spread)
    assert cycles.weight_gradient == 29 * 2 * tile + 75 * 3


def test_a_slow_memory_bounds_what_reads_it() -> None:
    shape = TaskShape(layers=(layer(1),), classes=48)
    slow = replace(DESIGN, ddr_bytes_per_s=1e9, ddr_efficiency=0.5)
    assert shape.layers[0].forward is not None
    rows_read = len(np.unique(shape.layers[0].forward.sources))
    rows_bytes, edge_bytes = rows_read * 7 * 64, 3300 * 16
    found = task_cycles(shape, slow).layers[0]
    assert found.aggregate == pytest.approx(75 * 7 + (rows_bytes + edge_bytes) / 5e8 * 300e6, rel=0.02)
    assert found.memory > task_cycles(shape, DESIGN).layers[0].memory


@pytest.mark.parametrize(("value_bytes", "words"), [(4, 7), (2, 4), (1, 2)])
def test_narrow_rows_are_read_in_fewer_words(value_bytes: int, words: int) -> None:
    """Of 100 values, 7 chunks; two or four of them share a word. Layers above read no memory."""
    shape = replace(layer(1), value_bytes=value_bytes)
    slow = replace(DESIGN, ddr_bytes_per_s=1e9, ddr_efficiency=0.5)
    assert shape.forward is not None
    rows_read = len(np.unique(shape.forward.sources))
    found = task_cycles(TaskShape(layers=(shape,), classes=48), slow).layers[0]
    read = (rows_read * words * 64 + 3300 * 16) / 5e8 * 300e6
    assert found.aggregate == pytest.approx(75 * 7 + read, rel=0.02)
    work = Workload(vertices=(9, 4, 2), edges=(9, 4), features=(100, 48, 8), concat=True)
    row_bytes = 100 * value_bytes + (4 if value_bytes == 1 else 0)
    layers = TaskShape.from_workload(replace(work, input_bytes=row_bytes)).layers
    assert [each.value_bytes for each in layers] == [value_bytes, 4]


def test_the_total_adds_what_runs_one_after_the_other() -> None:
    shape = TaskShape(layers=(layer(1), layer(2, 1, first=False)), classes=48)
    plain, paper = task_cycles(shape, DESIGN), task_cycles(shape, DESIGN, pipelined=True)
    parts = plain.layers
    backward = sum(part.backward + part.weight_gradient for part in parts)
    assert plain.total == pytest.approx(sum(p.aggregate + p.update for p in parts) + plain.loss + backward)
    assert paper.total == pytest.approx(
        sum(max(p.aggregate, p.update) for p in parts) + plain.loss + backward
    )
    assert task_seconds(shape, DESIGN) == pytest.approx(DESIGN.launch_s + plain.total / DESIGN.clock_hz)
    assert plain.assumed == DESIGN.assumed


@pytest.mark.parametrize("parts", [1, 2])
def test_counts_give_nearly_what_the_edges_give(parts: int) -> None:
    known = TaskShape(layers=(layer(parts), layer(parts, 1, first=False)), classes=48)
    counted = TaskShape(
        layers=tuple(replace(each, forward=None, backward=None) for each in known.layers), classes=48
    )
    for shape in (known, counted):
        for found, exact in zip(task_cycles(shape, DESIGN).layers, known.layers, strict=True):
            assert found.aggregate == pytest.approx(simulated(exact.forward, 300 * parts, 7), rel=0.1)
        upper = known.layers[1]
        # What is beside the network: the product, as by hand above.
        product = ceil(7 * parts / 2) * (2 * 3 * 32 + ceil(300 / 8) * (48 + 8 + 2 - 2 + 36 + 8))
        assert found.backward - product == pytest.approx(
            simulated(upper.backward, int(upper.num_src), 7), rel=0.1
        )


def test_a_workload_gives_the_shape() -> None:
    workload = Workload(vertices=(4000.5, 900.2, 64), edges=(5000, 600), features=(100, 64, 7), concat=True)
    shape = TaskShape.from_workload(workload)
    assert [each.edges for each in shape.layers] == [5900.2, 664]
    assert [each.parts for each in shape.layers] == [2, 2]
    assert (shape.targets, shape.classes) == (64, 7)
    one, two = task_seconds(shape, DESIGN), task_seconds(TaskShape.from_workload(workload.scaled(2)), DESIGN)
    assert 1.7 < (two - DESIGN.launch_s) / (one - DESIGN.launch_s) < 2.1


def test_an_empty_task_takes_no_time() -> None:
    workload = Workload(vertices=(0, 0, 0), edges=(0, 0), features=(100, 64, 7), concat=False)
    assert task_cycles(TaskShape.from_workload(workload), DESIGN).total == 0


def test_wrong_shapes_are_refused() -> None:
    good = layer(1)
    for change, words in (
        ({"rows": -1.0}, "-1.0 rows"),
        ({"parts": 3}, "parts must be 1 or 2, got 3"),
        ({"out_width": 0}, "widths"),
        ({"self_edges": 1e9}, "self_edges at most edges"),
    ):
        with pytest.raises(ValueError, match=words):
            replace(good, **change)
    with pytest.raises(ValueError, match="at least 1 layer and 1 class, got 0 and 3"):
        TaskShape(layers=(), classes=3)


def test_intervals_that_a_build_missed() -> None:
    """By hand: the network and the reading of edges take as many times as long, and the longer counts.

    Nothing else changes.
    """
    shape = TaskShape(layers=(layer(1),), classes=48)
    roomy = replace(DESIGN, ddr_bytes_per_s=1e15)
    edges = shape.layers[0].edges
    network = network_of(shape.layers[0].forward, 7)
    clear = ceil(300 / 4) * 7
    before = task_cycles(shape, roomy)
    assert before.layers[0].aggregate == clear + max(network, edges)
    for network_ii, edge_ii in ((2, 1), (1, 20), (3, 2)):
        slow = replace(roomy, network_ii=network_ii, edge_ii=edge_ii)
        after = task_cycles(shape, slow)
        assert after.layers[0].aggregate == clear + max(network_ii * network, edge_ii * edges)
        assert replace(after.layers[0], aggregate=0) == replace(before.layers[0], aggregate=0)
    assert edges < network < 20 * edges
