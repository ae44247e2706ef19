"""An epoch in chunks is predicted by simulating its copies: against sums that are written out here."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hyrt_perfmodel.chunk_costs import GridSizes, expected_grid, expected_target_grid
from hyrt_perfmodel.degrees import DegreeDistribution
from hyrt_perfmodel.measured_costs import ChunkReadCost, HostChunkRates
from hyrt_perfmodel.platform import Accelerator, Host, Platform
from hyrt_perfmodel.prediction.initial_assignment import full_graph_arrays

from hyrt.config import Config, build_config
from hyrt.predict.chunk_prediction import ChunkPrediction, chunk_prediction_gap, predict_chunks
from hyrt.predict.chunked_work import ChunkedWork
from hyrt.predict.dataset_sizes import DatasetSizes
from hyrt.predict.predict_platform import predict_platform
from hyrt.predict.workload import expected_workload

VERTICES, EDGES, FEATURES, HIDDEN, CLASSES, TARGETS = 100_000, 2_000_000, 64, 32, 8, 5000
DATASET = DatasetSizes.in_memory(
    DegreeDistribution.assumed(VERTICES, EDGES),
    features=FEATURES,
    classes=CLASSES,
    targets=TARGETS,
    value_bytes=4,
)
LINK, MEMORY, MACS = 2e9, 40e9, 1e12


def settings(model: dict[str, Any] | None = None, **fullgraph: Any) -> Config:
    chosen = {"kind": "gcn", "hidden": HIDDEN, "dropout": 0.0, **(model or {})}
    return build_config({"model": chosen, "sampler": {"kind": "full"}, "fullgraph": fullgraph})


def platform(**changes: Any) -> Platform:
    device = {"kind": "gpu", "memory_gb_s": MEMORY / 1e9, "macs_per_s": MACS, "link_gb_s": LINK / 1e9}
    return Platform(
        name="made up",
        source="made up",
        host=Host(memory_gb_s=20.0, macs_per_s=1e11),
        accelerators=(Accelerator(**{**device, "memory_gib": 16.0, **changes}),),
    )


def predicted(config: Config, **changes: Any) -> ChunkPrediction | None:
    return predict_chunks(platform(**changes), expected_workload(config, DATASET), config)


def found(config: Config, **changes: Any) -> ChunkPrediction:
    said = predicted(config, **changes)
    assert said is not None
    return said


def test_one_chunk_at_a_time_takes_the_sum_of_its_copies_and_its_computing() -> None:
    said = found(settings(chunks=1, in_flight=1, filter_below=0))
    rows, edge, share = 4 * VERTICES, 8, TARGETS / VERTICES
    copied = [
        rows * FEATURES,  # What the first layer has gathered before,
        rows * HIDDEN,  # and the rows that come of it.
        rows * HIDDEN + edge * (EDGES * share + TARGETS),  # Layer 2 at the targets, with their own rows,
        share * rows * HIDDEN,  # and the gradient of what they have gathered.
        share * rows * HIDDEN + edge * (EDGES * share + TARGETS),  # Back along its edges,
        rows * FEATURES,  # to the weights of layer 1.
    ]
    gathered = 2 * (EDGES * share + TARGETS) * (4 * HIDDEN + edge)
    # Layer 1 forward, again, and its weights' gradient.
    macs = 3 * VERTICES * FEATURES * HIDDEN + 3 * share * VERTICES * HIDDEN * CLASSES
    assert said.epoch.copy_s == pytest.approx(sum(copied) / LINK)
    assert said.epoch.compute_s == pytest.approx(gathered / MEMORY + macs / MACS)
    assert said.epoch.seconds == pytest.approx(said.epoch.copy_s + said.epoch.compute_s)
    assert said.epoch.hidden_fraction == 0
    assert said.bound == "copying over its link (2 GB/s)"


def test_more_in_flight_hides_copies_and_takes_no_less_memory() -> None:
    alone, ahead = (found(settings(chunks=6, in_flight=number), memory_gb_s=0.5) for number in (1, 2))
    assert ahead.epoch.seconds < alone.epoch.seconds
    assert ahead.epoch.hidden_fraction > alone.epoch.hidden_fraction == 0
    assert ahead.epoch.seconds >= max(ahead.epoch.copy_s, ahead.epoch.compute_s)
    budget = {"device_memory": "16MiB"}
    fewest = [found(settings(in_flight=number, **budget)).intervals for number in (1, 2, 3)]
    assert fewest == sorted(fewest)
    assert fewest[0] < fewest[2]


@pytest.mark.parametrize("budget", [8, 16, 64])
def test_the_least_number_of_chunks_is_said(budget: int) -> None:
    said = found(settings(device_memory=f"{budget}MiB"))

    def needed(num: int) -> int:
        """Rows that are read and edges twice; sums, results, and weights with their gradients once."""
        rows, edges = math.ceil(VERTICES / num), math.ceil(EDGES / num**2)
        of_edges = 4 * (2 * max(rows, min(rows, edges)) + 1 + max(rows, edges)) + 8 * rows
        weights = FEATURES * HIDDEN + HIDDEN * CLASSES
        read, sums, results = rows * FEATURES, rows * FEATURES, rows * HIDDEN
        return 2 * (4 * read + of_edges) + 4 * (sums + results + 2 * weights)

    assert needed(said.intervals) <= budget * 2**20
    assert said.intervals == 1 or needed(said.intervals - 1) > budget * 2**20
    assert said.vertices == math.ceil(VERTICES / said.intervals)


def test_a_device_that_reads_host_memory_in_place_copies_nothing() -> None:
    said = found(settings(chunks=3), link_gb_s=math.inf)
    assert said.in_flight == 1
    assert said.epoch.copy_s == 0
    assert said.epoch.seconds == pytest.approx(said.epoch.compute_s)
    assert said.bound.startswith("computing: ")
    assert "reads host memory in place" in said.lines()[0]


def test_what_is_swapped_and_what_of_it_is_in_a_file() -> None:
    said = found(settings(chunks=4, host_memory="10MiB", filter_below=0))
    # What layer 2 gathers has the memory of the edges between all vertices, which the first step gives back.
    assert set(said.swapped) == {
        "edges, chunk after chunk",
        "what layer 1 gathers",
        "rows between two layers",
    }
    assert said.swapped["what layer 1 gathers"] == 4 * VERTICES * FEATURES
    assert said.swapped["rows between two layers"] == 4 * VERTICES * HIDDEN
    # Into and from the targets, and all: an edge has a column, and a row of a chunk a number and a start.
    columns = 4 * EDGES * (1 + 2 * TARGETS / VERTICES)
    rows = 2 * 4 * 4 * (VERTICES + 2 * TARGETS) * 2
    assert columns < said.swapped["edges, chunk after chunk"] < columns + rows
    deeper = found(settings(model={"layers": 3}, chunks=4, filter_below=0)).swapped
    # Those that a layer is given, and those that it makes.
    assert deeper["rows between two layers"] == 2 * 4 * VERTICES * HIDDEN
    assert deeper["what layer 2 gathers"] == 4 * VERTICES * HIDDEN
    assert said.file_bytes == sum(said.swapped.values()) - 10 * 2**20
    assert "of it in a file" in said.lines()[1]
    assert said.to_json()["swapped_bytes"] == said.swapped


def test_rows_that_are_filtered_take_less_of_a_slow_link() -> None:
    sparse = {"chunks": 24, "in_flight": 1}
    whole, chosen = (found(settings(**sparse, filter_below=limit)) for limit in (0.0, None))
    assert whole.num_filtered == 0
    assert 0 < chosen.num_filtered <= chosen.num_reads == whole.num_reads
    assert chosen.epoch.copy_s < whole.epoch.copy_s
    assert chosen.epoch.seconds < whole.epoch.seconds
    assert {"numbers of useful rows", "rows that are filtered"} <= set(chosen.swapped)
    assert f"rows filtered for {chosen.num_filtered:,} of {chosen.num_reads:,} chunks" in chosen.lines()[0]
    assert found(settings(**sparse), link_gb_s=math.inf).num_filtered == 0


def test_what_is_not_trained_in_chunks_has_no_prediction_of_them() -> None:
    assert predicted(settings()) is None, "it fits"
    assert predicted(settings(), memory_gib=0.05) is not None, "it does not"
    work = expected_workload(settings(), DATASET)
    whole_gib = sum(full_graph_arrays(work.at(float(work.batch_size)), work).values()) / 2**30
    assert predicted(settings(), memory_gib=1.05 * whole_gib) is not None, "a tenth stays free"
    assert predicted(settings(), memory_gib=1.15 * whole_gib) is None
    assert predicted(settings(model={"kind": "gat", "hidden": 32}, chunks=2)) is None
    assert predicted(settings(), memory_gib=0.05, count=0) is None
    batches = build_config({"model": {"kind": "gcn"}})
    assert predict_chunks(platform(memory_gib=0.05), expected_workload(batches, DATASET), batches) is None


def test_more_chunks_than_are_simulated_have_no_prediction_and_a_reason() -> None:
    """A run that asks for thousands of intervals is predicted before it starts, too."""
    config = settings(chunks=4096)
    assert predicted(config) is None
    why = chunk_prediction_gap(platform(), expected_workload(config, DATASET), config)
    assert why == "more than 256 x 256 chunks are not simulated (fullgraph.chunks=4096)"
    assert not chunk_prediction_gap(
        platform(), expected_workload(config, DATASET), settings(chunks=256, device_memory="1GiB")
    )


def test_the_whole_prediction_has_it() -> None:
    config = settings(chunks=2)
    whole = predict_platform(platform(), expected_workload(config, DATASET), config)
    assert whole.chunked is not None
    assert whole.chunked.intervals == 2
    assert whole.chunked.lines()[0].startswith("in chunks on gpu:0: epoch ")


def test_all_accelerators_of_a_platform_hand_rows_on_under_their_switch() -> None:
    asked = settings(chunks=4, filter_below=0)
    one = found(asked)
    assert one.on_all_devices is None
    said = found(asked, count=2, switch_gb_s=LINK / 1e9)
    both = said.on_all_devices
    assert both is not None
    assert both.device == "gpu:0+gpu:1"
    assert both.columns == (2, 2)
    # The targets are one interval: forward one device reads, back both do, twice.
    assert both.num_forwarded == 2
    assert said.num_forwarded == 0
    assert said.epoch.seconds == pytest.approx(one.epoch.seconds)
    assert "rows of 2 chunks forwarded under a switch" in said.lines()[-1]
    apart = found(asked, count=2).on_all_devices
    assert apart is not None
    assert apart.num_forwarded == 0
    assert apart.epoch.seconds < both.epoch.seconds < said.epoch.seconds


def test_devices_that_share_the_graph_are_simulated_with_their_columns() -> None:
    base = settings(chunks=8, in_flight=1, filter_below=0)

    def on(*devices: str) -> ChunkPrediction:
        return found(base.model_copy(update={"devices": list(devices)}))

    shared, alone = on("cpu=1", "gpu=3"), on("gpu")
    assert shared.device == "cpu:0+gpu:0"
    assert shared.columns == (2, 6)
    assert alone.columns == (8,)
    assert "2, 6 columns each" in shared.lines()[0]
    # The link carries six of eight columns, and all that the targets gather, which are one interval.
    forward = [t.seconds for t in alone.epoch.tasks if t.queue == "copy in 0" and t.name[:8] == "layer 2:"]
    rest = alone.epoch.copy_s - sum(forward)
    assert shared.epoch.copy_s == pytest.approx(6 / 8 * rest + sum(forward), rel=0.05)
    assert shared.swapped == alone.swapped
    # Without shares, the faster one gets more.
    dealt = on("cpu", "gpu").columns
    assert sum(dealt) == 8
    assert on("cpu=1", "gpu=0").device == alone.device


HOST_CHUNKS = HostChunkRates(
    threads=1,
    copy_gb_s=1e6,
    reads=(ChunkReadCost(matrix_bytes=1e6, edge_s=0.0, gb_s=1e9),),
    factor_s=0.0,
    factor_value_s=0.0,
    row_s=0.0,
    row_value_s=0.0,
    call_s=0.0,
    macs_per_s=math.inf,
    values_per_s=math.inf,
    drawn_per_s=math.inf,
    scores_per_s=math.inf,
)


@pytest.mark.parametrize(
    ("slow", "bound"),
    [
        ({"copy_gb_s": 0.25}, "copying rows in memory (0.25 GB/s)"),
        ({"row_s": 1e-3}, "computing: reading rows along edges 100%"),
        ({"macs_per_s": 1e3}, "computing: products 100%"),
    ],
)
def test_the_cpu_is_bound_by_what_it_does_longest(slow: dict[str, float], bound: str) -> None:
    config = settings(chunks=4, in_flight=3).model_copy(update={"devices": ["cpu"]})
    host = Host(memory_gb_s=20.0, macs_per_s=1e11, chunks=(replace(HOST_CHUNKS, **slow),))  # type: ignore
    machine = Platform(name="made up", source="made up", host=host, accelerators=())
    said = predict_chunks(machine, expected_workload(config, DATASET), config)
    assert said is not None
    assert said.bound == bound
    assert "1 in flight" in said.lines()[0], "it has one chunk at a time, whatever others may hold"
    assert "copying sums and results in memory" in said.lines()[0]


def test_the_number_of_counted_chunks_is_found_in_few_counts() -> None:
    """Of a graph with a dense corner, whose largest chunk gets small only in many intervals."""
    config = settings()
    work = expected_workload(config, DATASET)
    asked: list[int] = []

    def counts(num: int) -> tuple[GridSizes, GridSizes]:
        asked.append(num)
        every = expected_grid(DegreeDistribution.assumed(VERTICES, EDGES), num)
        into = expected_target_grid(DegreeDistribution.assumed(VERTICES, EDGES), num, TARGETS, 20.0 * TARGETS)
        dense = every.edges.copy()
        dense[0, 0] = EDGES if num < 150 else 1
        return replace(every, edges=dense), into

    chunked = ChunkedWork.from_config(replace(work, chunk_counts=counts), config, "gpu")
    assert chunked is not None
    assert chunked.min_intervals(12 * 2**20, 2) == 150
    assert len(set(asked)) < 60
