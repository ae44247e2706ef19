"""What chunks take on the CPU: terms by hand, and whole epochs against a loop over what a run does."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hyrt_perfmodel.chunk_costs import (
    ChunkMachine,
    GridSizes,
    expected_grid,
    expected_target_grid,
    group_machine,
)
from hyrt_perfmodel.chunk_schedule import ChunkSchedule
from hyrt_perfmodel.chunked_epoch import simulate_epoch
from hyrt_perfmodel.degrees import DegreeDistribution
from hyrt_perfmodel.measured_costs import ChunkReadCost, HostChunkRates
from hyrt_perfmodel.platform import Accelerator, Host, Platform
from hyrt_perfmodel.prediction.stages import page_miss_s
from hyrt_perfmodel.workload import ChunkShape, GatherLayer

NS = 1e-9
RATES = HostChunkRates(
    threads=2,
    copy_gb_s=4.0,
    reads=(
        ChunkReadCost(matrix_bytes=1e4, edge_s=2 * NS, gb_s=8.0),
        ChunkReadCost(matrix_bytes=1e6, edge_s=6 * NS, gb_s=4.0),
    ),
    factor_s=3 * NS,
    factor_value_s=0.5 * NS,
    row_s=50 * NS,
    row_value_s=1 * NS,
    call_s=1e-5,
    macs_per_s=1e10,
    values_per_s=1e9,
    drawn_per_s=1e8,
    scores_per_s=2e8,
)
SHAPE = ChunkShape(edges=1000, rows=200, width=16, read_rows=100)


def test_a_chunk_by_hand() -> None:
    """64 bytes at 8 GB/s are 8 ns; 200 rows take 50 and 16 ns each."""
    assert RATES.gather_s(SHAPE, fused=True) == pytest.approx(1e-5 + (1000 * 10 + 200 * 66) * NS)
    scaled = replace(SHAPE, scaled=True)
    assert RATES.gather_s(scaled, fused=True) == pytest.approx(1e-5 + (1000 * 21 + 200 * 66) * NS)
    # A megabyte of rows is read at 4 GB/s; of more edges than one piece has, each piece is called.
    large = replace(SHAPE, read_rows=1e6 / 64, edges=3 * 2**16)
    assert RATES.gather_s(large, fused=True) == pytest.approx(3e-5 + (3 * 2**16 * 22 + 200 * 66) * NS)
    assert RATES.gather_s(replace(SHAPE, edges=0), fused=True) == 0
    assert RATES.copy_s(8000) == pytest.approx(2000 * NS)


def test_products_by_hand() -> None:
    """Two products, as GIN has them: only the first one's input may do without a gradient."""
    layer = GatherLayer(gather_width=8, out_width=4, shapes=((8, 16), (16, 4)), has_dropout=True)
    assert RATES.forward_s(100, layer) == pytest.approx(
        1e-5 + 100 * (0.1 * (8 * 16 + 16 * 4) + 20 + 4 * 10) * NS
    )
    both = 8 * 16 + 16 * 4
    assert RATES.backward_s(100, layer, needs_input_grad=False) == pytest.approx(
        1e-5 + 100 * (0.1 * (both + 16 * 4) + 20) * NS
    )
    assert RATES.backward_s(100, layer, needs_input_grad=True) == pytest.approx(
        1e-5 + 100 * (0.1 * 2 * both + 20) * NS
    )
    assert RATES.loss_s(10, 7) == pytest.approx(1e-5 + 70 * 5 * NS)


def test_rates_without_reads_are_refused() -> None:
    with pytest.raises(ValueError, match="reads must contain the cost of reading rows"):
        replace(RATES, reads=())


LAYERS = (
    GatherLayer(
        gather_width=32, out_width=16, has_input_grad=False, is_cached=True, reads_self=True, has_dropout=True
    ),
    GatherLayer(gather_width=16, out_width=8, shapes=((32, 8),), reads_self=True, scales_sources=True),
    GatherLayer(gather_width=8, out_width=5, reads_self=True),
)
DEGREES = DegreeDistribution.assumed(4000, 60_000)
EVERY, INTO = expected_grid(DEGREES, 5), expected_target_grid(DEGREES, 5, 1500, 22_000)


def on_host(rates: HostChunkRates = RATES) -> ChunkMachine:
    trainer = Platform(name="cpu", host=Host(memory_gb_s=9.0, macs_per_s=1e9, chunks=(rates,))).trainers()[0]
    return group_machine([trainer], Host(memory_gb_s=9.0, macs_per_s=1e9, chunks=(rates,)))


def by_loops(layers: tuple[GatherLayer, ...], every: GridSizes, into: GridSizes) -> float:
    """One epoch as `ChunkedReplica` and the CPU's kernels go through it, chunk by chunk."""
    total, last = 0.0, len(layers) - 1

    def copy(rows: float, width: int) -> None:
        nonlocal total
        total += RATES.copy_s(4 * rows * width)

    def gather(layer: GatherLayer, grid: GridSizes, column: int, *, back: bool) -> None:
        nonlocal total
        for read in range(grid.parts):
            own = grid.in_both[read, column] if layer.reads_self else 0.0
            if not grid.edges[read, column] and not own:
                continue
            if layer.has_source_dropout and not back:
                # They are copied at 4 GB/s, and 1e8 numbers are drawn a second.
                total += grid.rows[read] * layer.gather_width * (4 / 4e9 + 1 / 1e8)
            for edges, rows, scaled in (
                (grid.edges[read, column], grid.destinations[read, column], back or layer.scales_sources),
                (own, own, back),
            ):
                shape = ChunkShape(
                    edges=float(edges), rows=float(rows), width=layer.gather_width,
                    read_rows=float(grid.rows[read]), scaled=scaled,
                )  # fmt: skip
                total += RATES.gather_s(shape, fused=True)

    for layer in layers[:last]:
        for column, rows in enumerate(every.rows):
            if not layer.is_cached:
                gather(layer, every, column, back=False)
                copy(rows, layer.sum_width)
            total += RATES.forward_s(rows, layer)
            copy(rows, layer.out_width)
    top = layers[last]
    for column, rows in enumerate(into.rows_into):
        gather(top, into, column, back=False)
        total += (
            RATES.forward_s(rows, top)
            + RATES.loss_s(rows, top.out_width)
            + RATES.backward_s(rows, top, needs_input_grad=True)
        )
        copy(rows, top.sum_width)
    for number in range(last, 0, -1):
        grid, below = (into if number == last else every).transposed, layers[number - 1]
        for column, rows in enumerate(every.rows):
            gather(layers[number], grid, column, back=True)
            total += RATES.forward_s(rows, below) + RATES.backward_s(rows, below, needs_input_grad=number > 1)
            if number > 1:
                copy(rows, below.sum_width)
    return total


DROPPED = (replace(LAYERS[0], is_cached=False, has_source_dropout=True), *LAYERS[1:])


@pytest.mark.parametrize("room", [1, 3])
@pytest.mark.parametrize("layers", [LAYERS, DROPPED], ids=["kept", "dropped"])
def test_an_epoch_is_the_sum_of_what_a_run_does(layers: tuple[GatherLayer, ...], room: int) -> None:
    """The CPU copies and computes by turns, however many chunks others hold at once."""
    plan = ChunkSchedule(fused=True, selective=True, filter_below=1.0, max_resident=room)
    epoch = simulate_epoch(EVERY, layers, on_host(), plan, INTO)
    assert epoch.seconds == pytest.approx(by_loops(layers, EVERY, INTO))
    assert epoch.copy_s + epoch.compute_s == pytest.approx(epoch.seconds)
    assert not [task for task in epoch.tasks if task.queue.startswith("filter")]


def test_chunks_without_edges_bring_no_rows() -> None:
    def entries(*rows: list[float]) -> np.ndarray:
        return np.array(rows, float)

    diagonal = GridSizes(
        rows=np.array([10.0, 20.0]),
        edges=entries([30, 0], [0, 50]),
        sources=entries([9, 0], [0, 19]),
        destinations=entries([8, 0], [0, 18]),
    )
    epoch = simulate_epoch(diagonal, LAYERS, on_host(), ChunkSchedule(fused=True))
    assert epoch.seconds == pytest.approx(by_loops(LAYERS, diagonal, diagonal))
    read = [task.name for task in epoch.tasks if ": rows " in task.name and task.name.startswith("layer 3:")]
    assert read == ["layer 3: rows 0", "layer 3: rows 1"]


def test_targets_like_all_others_have_their_part_of_everything() -> None:
    assert INTO.rows_into.tolist() == [750.0, 750.0]
    assert INTO.edges.sum() == pytest.approx(22_000)
    assert INTO.in_both.sum() == pytest.approx(1500)
    assert INTO.in_both[:, 0].tolist() == pytest.approx([300, 300, 150, 0, 0])
    whole = expected_target_grid(DEGREES, 5, 4000, 60_000)
    np.testing.assert_allclose(whole.sources, EVERY.sources)
    np.testing.assert_allclose(whole.destinations, EVERY.destinations)
    np.testing.assert_allclose(whole.in_both, EVERY.in_both, atol=1e-9)
    turned = INTO.transposed
    assert turned.rows.tolist() == INTO.rows_into.tolist()
    assert turned.transposed.edges.tolist() == INTO.edges.tolist()
    assert turned.transposed.in_both.tolist() == INTO.in_both.tolist()


def test_threads_that_were_measured() -> None:
    one = replace(RATES, threads=1)
    host = Host(memory_gb_s=9.0, macs_per_s=1e9, chunks=(RATES, one))
    assert host.chunk_rates() is RATES
    assert host.chunk_rates(1) is one
    assert host.chunk_rates(5) is RATES
    assert replace(host, chunks=()).chunk_rates() is None


def test_the_cpu_beside_a_device_takes_turns_alone() -> None:
    """Columns of the device are hidden behind its copies; those of the CPU take what they take."""
    device = Accelerator(kind="gpu", memory_gb_s=40.0, macs_per_s=1e12, link_gb_s=2.0)
    host = Host(memory_gb_s=9.0, macs_per_s=1e9, chunks=(RATES,))
    trainers = Platform(name="both", host=host, accelerators=(device,)).trainers()
    plan = ChunkSchedule(fused=True, max_resident=2, shares=(1.0, 4.0))
    epoch = simulate_epoch(EVERY, LAYERS, group_machine(trainers, host), plan, INTO)
    mine = sum(task.seconds for task in epoch.tasks if task.queue.endswith(" 0"))
    alone = simulate_epoch(EVERY, LAYERS, on_host(), ChunkSchedule(fused=True), INTO)
    # One column of five, with about a fifth of the targets' edges; both columns of these are the device's.
    forward = sum(task.seconds for task in alone.tasks if task.name.startswith("layer 3: "))
    assert mine == pytest.approx((alone.seconds - forward) / 5, rel=0.01)
    assert not [task for task in epoch.tasks if task.queue.endswith(" 0") and task.uses]


@pytest.mark.parametrize(
    ("cached", "seconds"), [(math.inf, 0.0), (4e9, 0.0), (1e9, 12e9 * 0.75 / 2e9), (0.0, 6.0)]
)
def test_pages_that_no_memory_keeps(cached: float, seconds: float) -> None:
    assert page_miss_s(4e9, 12e9, cached, 2e9) == pytest.approx(seconds)
    assert page_miss_s(0.0, 0.0, 0.0, 2e9) == 0
