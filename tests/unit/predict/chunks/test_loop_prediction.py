"""Epochs in chunks of a model whose edges are loops of the CPU, beside its operators without chunks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hyrt_perfmodel.degrees import DegreeDistribution
from hyrt_perfmodel.measured_costs import FullGraphRates, GatherCost
from hyrt_perfmodel.platform import Host, Platform
from hyrt_perfmodel.prediction.predict import predict

from hyrt.config import build_config
from hyrt.predict.chunk_prediction import ChunkPrediction, chunk_prediction_gap, predict_chunks
from hyrt.predict.dataset_sizes import DatasetSizes
from hyrt.predict.workload import expected_workload

VERTICES = 100_000
DATASET = DatasetSizes.in_memory(
    DegreeDistribution.assumed(VERTICES, 2_000_000), features=64, classes=8, targets=5000, value_bytes=4
)
CONFIG = build_config(
    {
        "devices": ["cpu"],
        "model": {"kind": "gat", "hidden": 32},
        "sampler": {"kind": "full"},
        "fullgraph": {"chunks": 3},
    }
)
WORK = expected_workload(CONFIG, DATASET)
RATES = FullGraphRates(
    threads=1,
    reads=tuple(
        GatherCost(kind=kind, back=back, matrix_bytes=1e6, row_s=row_s, gb_s=4.0)  # type: ignore[arg-type]
        for kind, back, row_s in (("sum", False, 1e-9), ("attention", False, 5e-9), ("attention", True, 9e-9))
    ),
    mask_s=0.0,
    call_s=1e-5,
    macs_per_s=1e11,
    values_per_s=1e9,
)


def machine(**looped: float) -> Platform:
    times = {what.replace("_", " "): factor for what, factor in looped.items()}
    rates = replace(RATES, looped=times)
    return Platform(
        name="made up",
        source="made up",
        host=Host(memory_gb_s=20.0, macs_per_s=1e11, cores=1, whole_graph=rates),
        accelerators=(),
    )


def found(**looped: float) -> ChunkPrediction:
    said = predict_chunks(machine(**looped), WORK, CONFIG)
    assert said is not None
    return said


def test_loops_take_as_many_times_as_long_as_was_measured() -> None:
    alike = found(attention=1.0, attention_back=1.0)
    [without_s] = predict(machine(), WORK).stages.trainer_propagate_s
    assert alike.epoch.seconds == pytest.approx(without_s)
    assert (alike.intervals, alike.columns, alike.vertices) == (3, (3,), -(-VERTICES // 3))
    more, back = (
        found(attention=forward, attention_back=backward).epoch.seconds - alike.epoch.seconds
        for forward, backward in ((2.0, 1.0), (1.0, 2.0))
    )
    # As many rows are read back as forward, and each of them takes longer.
    assert 0 < more < back
    gathered_s = alike.gather_fraction * alike.epoch.seconds
    assert more + back == pytest.approx(gathered_s)
    assert alike.bound == f"computing: reading rows along edges {alike.gather_fraction:.0%}"


def test_loops_have_the_threads_of_the_settings() -> None:
    """All cores if none are given."""
    four = machine(attention=1.0, attention_back=1.0)
    four = replace(four, host=replace(four.host, cores=4))
    seconds = {}
    for threads in (None, 1, 2, 4):
        runtime = CONFIG.runtime.model_copy(update={"train_threads": threads})
        said = predict_chunks(four, WORK, CONFIG.model_copy(update={"runtime": runtime}))
        assert said is not None
        seconds[threads] = said.epoch.seconds
    assert seconds[1] > seconds[2] > seconds[4] == seconds[None]


def test_loops_that_were_not_measured_are_not_predicted() -> None:
    assert predict_chunks(machine(attention=2.0), WORK, CONFIG) is None
    assert predict_chunks(machine(), WORK, CONFIG) is None
    # Only on this machine something can be done.
    why = "the cost of full-graph chunks on the CPU was not measured"
    assert chunk_prediction_gap(machine(), WORK, CONFIG) == why
    here = replace(machine(), name="this-machine")
    assert chunk_prediction_gap(here, WORK, CONFIG) == f"{why}: run `hyrt calibrate`"
