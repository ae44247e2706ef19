"""Steps over sparse rows: every term by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hyrt_perfmodel.measured_costs import LoadCost, SparseCost
from hyrt_perfmodel.model_workload import model_workload
from hyrt_perfmodel.platform import Accelerator, Host, Platform
from hyrt_perfmodel.policy import Assignment, Threads
from hyrt_perfmodel.prediction.initial_assignment import activations_bytes, mini_batch_bytes
from hyrt_perfmodel.prediction.stage_times import StageTimes, stage_times
from hyrt_perfmodel.prediction.stages import (
    sparse_entries,
    sparse_macs,
    sparse_weights,
    trainer_s,
    without_sparse_product,
)
from hyrt_perfmodel.workload import TrainingWorkload, Workload

ONE = Threads(sample=1, load=1, train=1)
# 900 sources, 200 of them destinations, 40 targets; rows of 5,000 columns hold 30 values.
VERTICES, EDGES, WIDTHS = (900, 200, 40), (1600, 300), (5000, 64, 8)


def work(kind: str, row_entries: float | None = 30.0) -> Workload:
    return model_workload(kind, VERTICES, EDGES, WIDTHS, heads=4, row_entries=row_entries)


def times(workload: Workload, host: Host, *accelerators: Accelerator) -> StageTimes:
    training = TrainingWorkload(
        at=lambda units: workload,
        targets_per_epoch=100,
        batch_size=40,
        best_form="sparse",
        feature_bytes=1e6,
    )
    platform = Platform(name="m", host=host, accelerators=accelerators)
    split = (40,) * len(platform.trainers())
    return stage_times(platform, training, Assignment(split=split, threads=ONE))


def test_a_stored_value_is_multiplied_once_a_column_forward_and_backward() -> None:
    gcn, sage, gat = work("gcn"), work("graphsage"), work("gat")
    assert sparse_entries(gcn) == 900 * 30
    assert sparse_macs(gcn) == 2 * 900 * 30 * 64
    # GraphSAGE multiplies the destinations' own rows too, by weights of their own.
    assert sparse_macs(sage) == 2 * (900 + 200) * 30 * 64
    assert sparse_weights(sage) == 2 * 5000 * 64
    assert sparse_weights(gat) == 5000 * 64
    dense = work("gcn", None)
    assert (sparse_entries(dense), sparse_macs(dense), sparse_weights(dense)) == (0, 0, 0)


def test_a_layer_that_averages_its_heads_has_a_product_for_each() -> None:
    last = model_workload("gat", (900, 40), (1600,), (5000, 8), heads=4, row_entries=30.0)
    assert sparse_macs(last) == 2 * 900 * 30 * 4 * 8
    assert without_sparse_product(last).features == (8, 8)


def test_what_is_left_aggregates_products_forward_and_backward() -> None:
    """Bandwidth and rate 1: seconds are bytes, and multiply-accumulates."""
    # By hand: the second layer's products of a row of 64 columns, GIN's through 64 hidden ones.
    uppers = {"gcn": 64 * 8, "graphsage": 2 * 64 * 8, "gin": 64 * 64 + 64 * 8}
    for kind, second in (("gcn", 0), ("graphsage", 0), ("gin", 64)):
        left = without_sparse_product(work(kind))
        assert left.sparse is None
        read = trainer_s(left, 1.0, math.inf)
        # The first layer's 64 wide products twice, the second layer's rows twice.
        assert read == 4 * (2 * 1600 * 64 + 2 * 300 * 64)
        multiplied = trainer_s(left, math.inf, 1.0)
        assert multiplied == 2 * 200 * second * 64 + 2 * 40 * uppers[kind]
    # Attention reads a row of a quarter of the width for each of four heads.
    assert trainer_s(without_sparse_product(work("gat")), 1.0, math.inf) == 4 * (
        2 * 1600 * 64 + 2 * 300 * 4 * 64
    )


def test_sparse_rows_are_loaded_as_they_are_stored() -> None:
    """By hand: 900 rows of 30 values, 8 bytes each and 8 for the offset."""
    host = Host(
        memory_gb_s=1.0,
        macs_per_s=1e9,
        forms=("rows", "sparse"),
        loading=(
            LoadCost(form="sparse", matrix_bytes=1e6, threads=1, row_s=2e-9, gb_s=0.5),
            LoadCost(form="rows", matrix_bytes=1e6, threads=1, row_s=1e-9, gb_s=4.0),
        ),
    )
    gathered = 900 * (2e-9 + 248 / 0.5e9)
    assert times(work("gcn"), host).load_s == pytest.approx(gathered)
    # A trainer that does not take them gets dense rows, which are written once more.
    written = 900 * (1e-9 + 20_000 / 4e9)
    assert times(work("gcn"), replace(host, forms=("rows",))).load_s == pytest.approx(gathered + written)
    # Where only a bandwidth is known, bytes over it.
    assert times(work("gcn"), replace(host, loading=())).load_s == pytest.approx(900 * 248 / 1e9)
    assert times(work("gcn"), replace(host, loading=(), forms=("rows",))).load_s == pytest.approx(
        900 * 20_000 / 1e9
    )


def test_transfers_carry_what_the_device_takes() -> None:
    host = Host(memory_gb_s=1.0, macs_per_s=1e9, trains=False)
    device = Accelerator(kind="gpu", memory_gb_s=1e3, macs_per_s=1e12, link_gb_s=2.0)
    topology = 1900 * 4 + 240 * 8
    dense = times(work("gcn"), host, device).transfer_s
    assert dense == pytest.approx((900 * 20_000 + topology) / 2e9)
    sparse = times(work("gcn"), host, replace(device, forms=("rows", "sparse"))).transfer_s
    assert sparse == pytest.approx((900 * 248 + topology) / 2e9)


def test_the_product_takes_what_was_measured() -> None:
    cost = SparseCost(product_width=64, weight_bytes=1e6, threads=1, macs_per_s=2e9, weight_s=3e-9)
    bare = Host(memory_gb_s=1.0, macs_per_s=1e9, forms=("rows", "sparse"))
    without = times(without_sparse_product(work("graphsage")), bare).propagate_s
    product = 2 * 1100 * 30 * 64
    found = times(work("graphsage"), replace(bare, sparse=(cost,))).propagate_s
    weights_s = 3e-9 * 2 * 5000 * 64
    assert found - without == pytest.approx(product / 2e9 + weights_s)
    # Without a table: at the rate of dense products.
    assert times(work("graphsage"), bare).propagate_s - without == pytest.approx(product / 1e9)
    # Whoever takes no sparse rows multiplies dense ones.
    dense = times(work("graphsage", None), bare).propagate_s
    assert times(work("graphsage"), replace(bare, forms=("rows",))).propagate_s == pytest.approx(dense)


def test_memory_holds_sparse_rows_and_their_products() -> None:
    topology = 1900 * 4 + 240 * 8
    assert mini_batch_bytes(work("gcn")) == 900 * 248 + topology
    products = 900 * 64
    # Kept: products, the first layer's result, what the second multiplies and gives; the largest's gradient.
    assert activations_bytes(work("gcn")) == 4 * (products + 200 * 64 + 40 * (64 + 8) + products)
