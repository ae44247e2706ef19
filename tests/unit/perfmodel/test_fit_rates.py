"""Rates from step times: what was put in comes out."""

from __future__ import annotations

import numpy as np
import pytest
from hyrt_perfmodel.calibration_fit import (
    MeasuredRun,
    fit_rates,
    fit_stage_overlap,
    fit_threaded_rates,
    with_sparse_launch,
)
from hyrt_perfmodel.model_workload import model_workload
from hyrt_perfmodel.platform import Host, Platform, TrainerRates
from hyrt_perfmodel.policy import Assignment, Threads
from hyrt_perfmodel.prediction.stage_times import stage_times
from hyrt_perfmodel.prediction.stages import split_layers, threaded_layers_s
from hyrt_perfmodel.workload import TrainingWorkload, Workload, proportional_workload

SHAPES = [
    ((30_000, 5_000, 500), (40_000, 6_000), (100, 64, 10)),
    ((30_000, 5_000, 500), (40_000, 6_000), (16, 256, 10)),
    ((3_000, 700, 64), (9_000, 900), (300, 64, 40)),
    ((500, 100, 8), (900, 60), (100, 64, 10)),
    ((60_000, 20_000, 1_000), (100_000, 90_000), (32, 32, 32)),
    ((60_000, 20_000, 1_000), (100_000, 25_000), (512, 128, 4)),
    ((4_000, 900, 300, 64), (5_000, 1_200, 700), (100, 64, 64, 10)),
    ((9_000, 3_000, 800, 100), (11_000, 3_500, 900), (32, 256, 256, 4)),
    ((60, 40, 20), (60, 30), (1_000, 512, 100)),
]
WORKLOADS = [model_workload("graphsage", *shape) for shape in SHAPES]


def seconds(work: Workload, rates: TrainerRates) -> float:
    """The model written out for GraphSAGE of two layers or more."""
    v, e, f = work.vertices[1:], work.edges, work.features
    layers = range(len(e))
    macs = sum((3 if i else 2) * v[i] * 2 * f[i] * f[i + 1] for i in layers)
    read = 4 * sum((2 if i else 1) * e[i] * f[i] for i in layers)
    values = sum(v[i] * (2 * f[i] + f[i + 1]) for i in layers)
    layer_s = rates.launch_s / 2 if rates.layer_s is None else rates.layer_s
    return (
        rates.launch_s
        + (len(e) - 2) * layer_s
        + macs / rates.macs_per_s
        + read / rates.memory_bytes_per_s
        + values / rates.values_per_s
        + sum((2 if i else 1) * e[i] for i in layers) / rates.edges_per_s
        + sum(2 * f[i] * f[i + 1] for i in layers) / rates.weights_per_s
        + sum(v[i] * f[i + 1] for i in layers) / rates.results_per_s
        + sum(v) / rates.rows_per_s
    )


def test_rates_come_back() -> None:
    true = TrainerRates(
        memory_gb_s=11.0,
        macs_per_s=9e10,
        launch_s=7e-4,
        values_per_s=6e8,
        edges_per_s=1.5e8,
        layer_s=6e-4,
        weights_per_s=5e8,
        results_per_s=8e8,
        rows_per_s=3e7,
    )
    fit = fit_rates(WORKLOADS, [seconds(work, true) for work in WORKLOADS])
    assert fit.rates.memory_gb_s == pytest.approx(11.0, rel=1e-6)
    assert fit.rates.macs_per_s == pytest.approx(9e10, rel=1e-6)
    assert fit.rates.launch_s == pytest.approx(7e-4, rel=1e-6)
    assert fit.rates.values_per_s == pytest.approx(6e8, rel=1e-6)
    assert fit.rates.edges_per_s == pytest.approx(1.5e8, rel=1e-6)
    assert fit.rates.layer_s == pytest.approx(6e-4, rel=1e-6)
    assert fit.rates.weights_per_s == pytest.approx(5e8, rel=1e-6)
    assert fit.rates.results_per_s == pytest.approx(8e8, rel=1e-6)
    assert fit.rates.rows_per_s == pytest.approx(3e7, rel=1e-6)
    assert max(abs(error) for error in fit.relative_errors) < 1e-9


def test_a_term_that_is_not_there_costs_nothing() -> None:
    true = TrainerRates(memory_gb_s=11.0, macs_per_s=9e10)
    fit = fit_rates(WORKLOADS, [seconds(work, true) for work in WORKLOADS])
    assert fit.rates.values_per_s > 1e14
    assert fit.rates.launch_s < 1e-9


def test_noise_gives_no_negative_rate() -> None:
    generator = np.random.default_rng(3)
    true = TrainerRates(memory_gb_s=40.0, macs_per_s=9e10, launch_s=5e-4, values_per_s=3e9)
    for _ in range(20):
        noisy = [seconds(work, true) * generator.lognormal(0, 0.1) for work in WORKLOADS]
        fit = fit_rates(WORKLOADS, noisy)
        assert np.mean(np.abs(fit.relative_errors)) < 0.15
        assert fit.rates.launch_s >= 0


def test_the_launch_of_a_step_over_sparse_rows_comes_back() -> None:
    """GraphSAGE multiplies 60 + 40 rows of 5 values by 8 columns, forward and for the gradient."""
    rates = TrainerRates(memory_gb_s=11.0, macs_per_s=1e6, launch_s=7e-4, layer_s=3e-4)
    work = model_workload("graphsage", (60, 40, 20), (60, 30), (50, 8, 2), row_entries=5)
    products_s = 2 * 100 * 5 * 8 / 1e6
    # Rows of the products are read along the first layer's edges twice, and then the second layer is left.
    rest_s = (2 * 60 + 2 * 30) * 8 * 4 / 11e9 + 3 * 20 * 2 * 8 * 2 / 1e6
    found = with_sparse_launch(rates, work, products_s + rest_s + 2e-3)
    assert found.sparse_launch_s == pytest.approx(2e-3)
    assert found.with_sparse_launch().fixed_s(3) == pytest.approx(2e-3 + 3e-4)
    assert found.fixed_s(3) == pytest.approx(7e-4 + 3e-4)


def test_too_few_measurements() -> None:
    with pytest.raises(ValueError, match="3 measurements are too few to fit 9 terms"):
        fit_rates(WORKLOADS[:3], [1.0, 1.0, 1.0])


def test_what_threads_spare_and_what_waking_them_costs_comes_back() -> None:
    """Two threads, 1.6 times as fast, in chunks of 1,000 rows, 0.2 ms a layer; written out for each layer."""
    alone = TrainerRates(memory_gb_s=11.0, macs_per_s=9e10, launch_s=7e-4, values_per_s=6e8, rows_per_s=4e7)

    def shared(work: Workload) -> float:
        total = alone.fixed_s(work.layers)
        for layer in range(work.layers):
            of_layer = model_workload(
                "graphsage",
                (0, *(rows if at == layer else 0 for at, rows in enumerate(work.vertices[1:]))),
                tuple(edges if at == layer else 0 for at, edges in enumerate(work.edges)),
                work.features,
            )
            rows = of_layer.vertices[layer + 1]
            one_s = seconds(of_layer, alone) - alone.fixed_s(work.layers)
            chunks = [min(1000.0, rows - start) for start in range(0, int(rows), 1000)]
            read_s = 4 * (2 if layer else 1) * work.edges[layer] * work.features[layer] / 11e9
            busiest = (sum(chunks[::2]) / rows) if len(chunks) > 1 else 1.0
            both_s = 2 * busiest * (one_s - read_s) / 1.6 + read_s / 1.6
            total += min(one_s, both_s + 2e-4)
        return total

    found = fit_threaded_rates(
        alone, WORKLOADS, [shared(work) for work in WORKLOADS], threads=2, chunk_rows=1000
    )
    assert found.macs_per_s == pytest.approx(1.6 * 9e10)
    assert found.rows_per_s == pytest.approx(1.6 * 4e7)
    assert found.waking_s == pytest.approx(2e-4)
    assert found.launch_s == 7e-4
    assert found.chunk_rows == 1000


def test_threads_that_spare_nothing_are_left_out() -> None:
    alone = TrainerRates(memory_gb_s=11.0, macs_per_s=9e10, launch_s=7e-4, values_per_s=6e8)
    found = fit_threaded_rates(
        alone, WORKLOADS, [seconds(work, alone) for work in WORKLOADS], threads=2, chunk_rows=1000
    )
    assert threaded_layers_s(split_layers(WORKLOADS[5]), alone, found, 2, 2, of_layer_s) == pytest.approx(
        sum(of_layer_s(alone, each) for each in split_layers(WORKLOADS[5]))
    )


def of_layer_s(rates: TrainerRates, work: Workload) -> float:
    return seconds(work, rates) - rates.fixed_s(work.layers)


GAP_S, LOCK_S = 1e-3, 4e-4


def run_of(host: Host, batch: int, step_s: float, synchronize_s: float, gap_s: float = GAP_S) -> MeasuredRun:
    work = WORKLOADS[0]
    return MeasuredRun(
        Platform(name="one", host=host),
        TrainingWorkload(
            at=proportional_workload(work, 500), targets_per_epoch=10_000, batch_size=batch, sample_s=0.0
        ),
        Assignment(split=(batch,), threads=Threads(sample=1, load=1, train=2)),
        step_s,
        synchronize_s,
        gap_s,
    )


WEIGHTS_BYTES = 2 * (200 * 64 + 128 * 10) * 4
SYNCHRONIZE_S = 4e-4 + WEIGHTS_BYTES / 0.5e9


def test_what_a_run_adds_to_its_stages_comes_back() -> None:
    """Of two cores that the trainer holds: loading lengthens a step by half of it over the efficiency."""
    rates = TrainerRates(memory_gb_s=1e3, macs_per_s=2.5e9)
    given = {"macs_per_s": 2.5e9, "cores": 2, "serial_part": 1.0, "models": {"": rates}}
    chain, cores = Host(memory_gb_s=1e3, **given), Host(memory_gb_s=1.0, **given)  # type: ignore[arg-type]
    work = WORKLOADS[0]
    runs = []
    for host, batch in ((chain, 500), (chain, 20), (chain, 8), (cores, 500), (cores, 200), (cores, 50)):
        part = work.scaled(batch / 500)
        load_s = part.vertices[0] * 100 * 4 / (host.memory_gb_s * 1e9)
        # Synchronization leaves one of the two cores free.
        taken_s = max(0.0, (load_s - SYNCHRONIZE_S) / 2 / 0.7)
        step_s = seconds(part, rates) + SYNCHRONIZE_S + taken_s + GAP_S + LOCK_S
        runs.append(run_of(host, batch, step_s, SYNCHRONIZE_S))
    # Other weights, of which synchronization depends alone.
    wide = TrainingWorkload(at=lambda units: WORKLOADS[5], targets_per_epoch=1000, batch_size=1, sample_s=0.0)
    wide_bytes = 2 * (1024 * 128 + 256 * 4) * 4
    wide_s = 4e-4 + wide_bytes / 0.5e9
    step_s = seconds(WORKLOADS[5], rates) + wide_s + GAP_S + LOCK_S
    one = Assignment(split=(1,), threads=Threads(sample=1, load=1, train=2))
    # A stage before the trainers was slow here: they waited for it, which is no wait of every step.
    runs.append(MeasuredRun(Platform(name="one", host=chain), wide, one, step_s, wide_s, 9e-3))
    fit = fit_stage_overlap(runs)
    assert max(abs(error) for error in fit.relative_errors) < 0.02
    assert fit.weights_gb_s == pytest.approx(0.5)
    assert fit.sharing_of.keys() == {"cpu"}
    assert fit.sharing_of["cpu"].step_s == pytest.approx(4e-4)
    assert fit.sharing_of["cpu"].efficiency == pytest.approx(0.7, abs=0.03)
    assert fit.sharing_of["cpu"].wait_s == pytest.approx(GAP_S)
    assert fit.sharing_of["cpu"].lock_s == pytest.approx(LOCK_S, rel=0.2)
    assert fit.apply_to(chain).core_contention("cpu") == fit.sharing_of["cpu"]
    # Of trainers that did not run together, the mean is what is known.
    assert fit.apply_to(chain).core_contention("cpu+opencl") == fit.sharing_of["cpu"]
    with pytest.raises(ValueError, match="no runs"):
        fit_stage_overlap([])


def test_runs_that_the_cores_do_not_bound_leave_the_efficiency_at_one() -> None:
    rates = TrainerRates(memory_gb_s=1e3, macs_per_s=2.5e9)
    host = Host(memory_gb_s=1e3, macs_per_s=2.5e9, cores=64, serial_part=1.0, models={"": rates})
    runs = [
        run_of(host, batch, seconds(WORKLOADS[0].scaled(batch / 500), rates) + 1e-3, 1e-3)
        for batch in (8, 100, 500)
    ]
    assert fit_stage_overlap(runs).sharing_of["cpu"].efficiency == 1.0


# Vertices of V^1 and V^2 .., edges of layers 2 .., and widths, as the probes of a calibration have them.
PROBED = [
    ((5781, 1024), (5120,), (128, 256, 48)),
    ((7140, 1376, 128), (6880, 1279), (128, 256, 256, 48)),
    ((384, 128), (256,), (128, 256, 48)),
    ((8847, 1024), (13217,), (100, 64, 47)),
    ((1366, 128), (1280,), (100, 64, 47)),
    ((5724, 1024), (5120,), (10, 512, 2)),
    ((2676, 256), (2560,), (10, 512, 2)),
    ((18591, 5085, 512), (47801, 6326), (10, 128, 128, 2)),
    ((2000, 1999, 1024), (49975, 25600), (10, 128, 128, 2)),
    ((2000, 1999, 1024), (49975, 25600), (10, 32, 32, 2)),
    ((372, 64), (317,), (10, 32, 2)),
    ((160, 60, 16), (120, 48), (10, 32, 32, 2)),
]


@pytest.mark.parametrize("width", [32, 256])
def test_values_are_not_taken_for_aggregation(width: int) -> None:
    """A subgraph with many edges, of a model whose values cost much, and times with noise."""
    generator = np.random.default_rng(5)
    true = TrainerRates(memory_gb_s=14.0, macs_per_s=3e10, launch_s=2e-3, values_per_s=4e8, edges_per_s=1.5e8)
    works = [
        model_workload("gin", (30_000, *vertices), (0, *edges), widths, hidden=widths[1])
        for vertices, edges, widths in PROBED
    ]
    wanted = model_workload("gin", (2475, 2475, 1856), (0, 90_000), (width, width, 2), hidden=width)

    def of_step(work: Workload, rates: TrainerRates) -> float:
        platform = Platform(
            name="one",
            host=Host(memory_gb_s=1.0, macs_per_s=1.0, forms=("in_place",), models={"gin": rates}),
            accelerators=(),
        )
        training = TrainingWorkload(
            at=lambda targets: work, targets_per_epoch=1, batch_size=1, model="gin", best_form="in_place"
        )
        one = Assignment(split=(1,), threads=Threads(sample=1, load=1, train=1))
        return stage_times(platform, training, one).trainer_propagate_s[0]

    errors = []
    for _ in range(10):
        noisy = [of_step(work, true) * generator.lognormal(0, 0.05) for work in works]
        errors.append(of_step(wanted, fit_rates(works, noisy).rates) / of_step(wanted, true) - 1)
    assert max(abs(error) for error in errors) < 0.2
