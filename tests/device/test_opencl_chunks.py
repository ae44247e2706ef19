"""Whole graphs in chunks on OpenCL: equal to dense float64, for any number of chunks, within any budget."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from graphs import random_graph
from hyrt_devices.opencl import OpenclDevice
from opencl_steps import opened

from hyrt.errors import DeviceOutOfMemoryError
from hyrt.fullgraph.intervals import ChunkOptions, ChunkOrder
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import DenseFeatures
from hyrt.nn.architecture import Architecture
from hyrt.nn.layer import get_model_inputs
from hyrt.nn.model import GNN
from hyrt.nn.torch_threads import torch_threads
from hyrt.pipeline.trainer import InputPlan
from hyrt.sampling.minibatch import MiniBatch
from hyrt.testing.cases import ROWS, full_graph_batches, randomize_parameters
from hyrt.testing.trial import check_agreement, compute_reference, copy_result, load_model, run_step

pytestmark = pytest.mark.skipif(not OpenclDevice.probe(), reason=OpenclDevice.missing() or "no OpenCL device")
IN_PLACE = InputPlan("in_place")
MASKS = {"dropout": 0.4, "input_dropout": 0.2}
MODELS: dict[str, dict[str, Any]] = {
    "gcn": {"kind": "gcn"},
    "gcn, one layer": {"kind": "gcn", "layers": 1},
    "gcn, wide": {"kind": "gcn", "hidden": 290},
    "gcn, masks": {"kind": "gcn", "layers": 3, **MASKS},
    "graphsage": {"kind": "graphsage", "layers": 3},
    "graphsage, sum, masks": {"kind": "graphsage", "aggregate": "sum", **MASKS},
    "gin": {"kind": "gin", "layers": 3},
    "gin, one layer, masks": {"kind": "gin", "layers": 1, **MASKS},
}


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


@pytest.fixture(scope="module")
def devices() -> Iterator[dict[str, OpenclDevice]]:
    """One device for each way to cut kernels: a device compiles a kernel once."""
    found = {product: opened(product) for product in ("chosen", "tiled", "vector4")}
    yield found
    for device in found.values():
        device.close()


@pytest.fixture
def device(devices: dict[str, OpenclDevice]) -> Iterator[OpenclDevice]:
    memory = devices["chosen"]._memory.buffers
    limit = memory.limit_bytes
    yield devices["chosen"]
    memory.limit_bytes = limit


def model_of(graph: Graph, **more: Any) -> GNN:
    chosen = {"hidden": 21, "layers": 2, **more}
    model: GNN = randomize_parameters(
        GNN(Architecture(in_features=graph.num_features, num_classes=graph.num_classes, **chosen))
    )
    return model


def batches_of(
    graph: Graph, model: GNN, plan: InputPlan = ROWS, targets: int | None = None
) -> list[MiniBatch]:
    """Two steps, whose targets are not in the order of their vertices."""
    chosen = np.random.default_rng(2).permutation(graph.split("train"))[:targets]
    return full_graph_batches(graph, len(model.layers), chosen, plan, steps=[0, 1], class_weights=True)


def load_in_chunks(
    device: OpenclDevice,
    model: GNN,
    num: int,
    order: ChunkOrder = "column-row",
    in_flight: int = 1,
    filter_below: float | None = None,
) -> None:
    device.take_chunks(ChunkOptions(num, order, in_flight, filter_below))
    load_model(device, model)


@pytest.mark.parametrize(
    ("name", "product"),
    [*((name, "chosen") for name in MODELS), ("gin", "tiled"), ("gcn, masks", "tiled"), ("gcn", "vector4")],
)
def test_steps_in_chunks_are_those_of_the_dense_reference(
    devices: dict[str, OpenclDevice], name: str, product: str
) -> None:
    graph = random_graph(90, features=19, symmetric="graphsage" not in name)
    model, device = model_of(graph, **MODELS[name]), devices[product]
    for num, order, targets in ((1, "column-row", None), (4, "column-row", 20), (3, "row-column", None)):
        load_in_chunks(device, model, num, order)
        for batch in batches_of(graph, model, targets=targets):
            check_agreement(run_step(device, batch), compute_reference(model, batch, graph))
            assert device.num_chunks == num


@pytest.mark.parametrize("name", ["gcn", "graphsage, sum, masks", "gin, one layer, masks"])
@pytest.mark.parametrize("order", ["column-row", "row-column"])
def test_copies_that_run_ahead_change_no_bit(device: OpenclDevice, name: str, order: ChunkOrder) -> None:
    graph = random_graph(400, features=19, degree=8)
    model = model_of(graph, **MODELS[name])
    batches = batches_of(graph, model)
    found = []
    for in_flight in (1, 2, 3):
        load_in_chunks(device, model, 5, order, in_flight)
        found.append([copy_result(run_step(device, batch)) for batch in [*batches, batches[0]]])
    for steps in found:
        assert [each.loss_sum for each in steps] == [each.loss_sum for each in found[0]]
        for mine, wanted in zip(steps, found[0], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine.gradients, wanted.gradients, strict=True))
    check_agreement(found[2][0], compute_reference(model, batches[0], graph))


@pytest.mark.parametrize("name", ["gcn", "gcn, masks", "graphsage, sum, masks"])
def test_rows_that_are_filtered_change_no_bit(device: OpenclDevice, name: str) -> None:
    graph = random_graph(400, features=19, degree=2, symmetric="graphsage" not in name)
    model = model_of(graph, **MODELS[name])
    batches = batches_of(graph, model, IN_PLACE, targets=60)
    found, copied = [], []
    for in_flight, filter_below in ((1, None), (1, 1.0), (2, 1.0), (3, 0.6), (2, 0.0)):
        load_in_chunks(device, model, 5, "column-row", in_flight, filter_below)
        found.append([copy_result(run_step(device, batch)) for batch in [*batches, batches[0]]])
        told = run_step(device, batches[1]).chunks
        assert told is not None
        # This device reads the host's memory in place: nothing is filtered that is not asked for.
        assert (told.filtered > 0) == bool(filter_below)
        assert told.filtered <= told.reads
        copied.append((told.in_bytes, told.spared_bytes, told.filtered))
    for steps in found:
        assert [each.loss_sum for each in steps] == [each.loss_sum for each in found[0]]
        for mine, wanted in zip(steps, found[0], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine.gradients, wanted.gradients, strict=True))
    (whole, _, _), (_, spared, many), again, (_, fewer_spared, fewer), none = copied
    assert copied[1] == again
    assert none == copied[0]
    assert 0 < fewer <= many
    assert 0 < fewer_spared <= spared
    # Beside rows, their factors are spared, along edges and for the vertices' own rows.
    assert whole - spared * (1 + 2 / 19) <= again[0] <= whole - spared


def test_rows_in_half_precision_are_filtered_too(device: OpenclDevice) -> None:
    graph = random_graph(300, features=19, degree=3)
    assert isinstance(graph.features, DenseFeatures)
    graph = graph.with_features(DenseFeatures(graph.features.values.astype(np.float16)))
    model = model_of(graph, kind="gcn", input_dropout=0.3)
    load_in_chunks(device, model, 4, filter_below=1.0)
    both = zip(batches_of(graph, model, IN_PLACE), batches_of(graph, model, ROWS), strict=True)
    for batch, relabelled in both:
        made = run_step(device, batch)
        assert made.chunks is not None
        assert made.chunks.filtered
        check_agreement(made, compute_reference(model, relabelled, graph))


@pytest.mark.parametrize("form", ["in_place", "half", "aggregated"])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_features_come_in_any_form(device: OpenclDevice, form: str, layers: int) -> None:
    graph = random_graph(70, features=19)
    if form == "half":
        assert isinstance(graph.features, DenseFeatures)
        graph = graph.with_features(DenseFeatures(graph.features.values.astype(np.float16)))
    model = model_of(graph, kind="gcn", layers=layers)
    aggregation = get_model_inputs(model).aggregation
    plan = InputPlan("aggregated", aggregation) if form == "aggregated" else IN_PLACE
    load_in_chunks(device, model, 3)
    for batch, relabelled in zip(batches_of(graph, model, plan), batches_of(graph, model, ROWS), strict=True):
        check_agreement(run_step(device, batch), compute_reference(model, relabelled, graph))


def test_as_many_chunks_as_vertices_and_more(device: OpenclDevice) -> None:
    graph = random_graph(17, features=19)
    model = model_of(graph, kind="gcn")
    for num in (17, 40):
        load_in_chunks(device, model, num)
        [batch, _] = batches_of(graph, model)
        check_agreement(run_step(device, batch), compute_reference(model, batch, graph))
        assert device.num_chunks == 17


def test_equal_chunks_give_equal_bits(device: OpenclDevice) -> None:
    graph = random_graph(90, features=19)
    model = model_of(graph, **MODELS["gcn, masks"])
    found = []
    for _ in range(2):
        load_in_chunks(device, model, 4)
        found.append([copy_result(run_step(device, batch)) for batch in batches_of(graph, model)])
    for mine, other in zip(*found, strict=True):
        assert mine.loss_sum == other.loss_sum
        for a, b in zip(mine.gradients, other.gradients, strict=True):
            assert np.array_equal(a, b)


def test_the_least_number_of_chunks_stays_within_the_budget(device: OpenclDevice) -> None:
    graph = random_graph(600, features=19, degree=6)
    model = model_of(graph, kind="gcn")
    batches = batches_of(graph, model)
    wanted = [compute_reference(model, batch, graph) for batch in batches]
    memory, found = device._memory.buffers, []
    for budget in (120_000, 200_000, 8_000_000):
        device._release_chunks()
        memory._drop_free()
        memory.limit_bytes, memory.peak_bytes = budget, 0
        load_in_chunks(device, model, 0)
        for batch, reference in zip(batches, wanted, strict=True):
            check_agreement(run_step(device, batch), reference)
        assert memory.peak_bytes <= budget
        num = device.num_chunks
        assert num is not None
        found.append(num)
        if num > 1:
            load_in_chunks(device, model, num - 1)
            with pytest.raises(DeviceOutOfMemoryError, match=rf"{num - 1} x {num - 1} chunks need") as told:
                run_step(device, batches[0])
            assert "raise fullgraph.chunks or fullgraph.device_memory" in told.value.remedy
            # It goes on with what fits.
            load_in_chunks(device, model, num)
            check_agreement(run_step(device, batches[0]), wanted[0])
    assert found == sorted(found, reverse=True)
    assert found[0] > found[2] == 1


def test_what_does_not_fit_at_once_is_cut_without_being_asked() -> None:
    graph = random_graph(600, features=19, degree=6)
    model = model_of(graph, kind="gcn")
    device = opened("chosen", memory_bytes=200_000)
    load_model(device, model)
    for batch in batches_of(graph, model):
        check_agreement(run_step(device, batch), compute_reference(model, batch, graph))
    assert device.num_chunks is not None
    assert device.num_chunks > 1
    assert device._memory.buffers.peak_bytes <= 200_000
    device.close()


def test_a_driver_with_less_memory_than_it_says_makes_chunks_smaller(
    device: OpenclDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = random_graph(600, features=19)
    model = model_of(graph, kind="gcn")
    load_in_chunks(device, model, 0)
    [batch, _] = batches_of(graph, model)
    memory, make = device._memory.buffers, device._memory.buffers._make
    limit = memory.used_bytes + 120_000

    def short(place: Any, size: int) -> Any:
        if memory.allocated_bytes + size > limit:
            raise MemoryError("the driver has no more")
        return make(place, size)

    memory._drop_free()
    monkeypatch.setattr(memory, "_make", short)
    check_agreement(run_step(device, batch), compute_reference(model, batch, graph))
    assert device.num_chunks is not None
    assert device.num_chunks > 1


def test_a_device_without_room_for_any_chunk_says_so(device: OpenclDevice) -> None:
    graph = random_graph(300, features=19)
    model = model_of(graph, kind="gcn")
    load_in_chunks(device, model, 0)
    device._memory.buffers.limit_bytes = device._memory.buffers.used_bytes + 3000
    with pytest.raises(DeviceOutOfMemoryError, match="even single-vertex chunks need") as told:
        run_step(device, batches_of(graph, model)[0])
    assert "fullgraph.device_memory" in told.value.remedy


def test_a_trace_names_what_ran_by_its_chunk() -> None:
    graph = random_graph(90, features=19)
    model = model_of(graph, kind="gcn")
    device = opened("chosen")
    heard: dict[str, list[tuple[str, int, int]]] = {}
    load_in_chunks(device, model, 3)
    device.trace(lambda queue, spans: heard.setdefault(queue, []).extend(spans))
    run_step(device, batches_of(graph, model)[0])
    device.close()
    assert set(heard) == {"copy in", "compute", "copy out"}
    chunks = [(i, j) for i in range(1, 4) for j in range(1, 4)]
    gathered = [name for name, _, _ in heard["compute"] if name.startswith("accumulate, layer 1,")]
    # Column by column; the second launch of a chunk on the diagonal is the vertices' own rows.
    wanted = [f"accumulate, layer 1, chunk {j} → {i}" for i, j in chunks for _ in range(1 + (i == j))]
    assert gathered == wanted
    back = [name for name, _, _ in heard["compute"] if name.startswith("accumulate, layer 2 back,")]
    assert [name.split()[-3] for name in back] == sorted(name.split()[-3] for name in back), "row by row"
    assert any(name.startswith("copy in, layer 2 back, chunk 3 → ") for name, _, _ in heard["copy in"])
    assert all(name.startswith("copy out") for name, _, _ in heard["copy out"])
    for spans in heard.values():
        assert all(start <= stop for _, start, stop in spans)


def test_a_trace_says_which_rows_were_filtered() -> None:
    graph = random_graph(200, features=19, degree=2)
    model = model_of(graph, kind="gcn", layers=1)
    device = opened("chosen")
    heard: dict[str, list[tuple[str, int, int]]] = {}
    load_in_chunks(device, model, 4, in_flight=2, filter_below=1.0)
    device.trace(lambda queue, spans: heard.setdefault(queue, []).extend(spans))
    told = run_step(device, batches_of(graph, model)[0]).chunks
    device.close()
    assert told is not None
    named = [name for name, _, _ in heard["copy in"] if name.endswith(" rows")]
    assert len(named) == told.filtered > 0
    assert all(re.fullmatch(r"copy in, layer 1, chunk \d → \d, \d+ of 50 rows", name) for name in named)


def test_a_step_says_what_was_copied_and_swapped() -> None:
    """Of a model of one layer, which gathers at the targets: all by hand."""
    graph = random_graph(40, features=19)
    model = model_of(graph, kind="gcn", layers=1)
    device = opened("chosen")
    load_in_chunks(device, model, 2)
    [batch, _] = batches_of(graph, model)
    told = run_step(device, batch).chunks
    assert told is not None
    assert (told.intervals, told.vertices) == (2, 20)
    targets = np.sort(batch.targets)
    length = -(-len(targets) // -(-len(targets) // 20))
    wanted = 0
    for start in range(0, len(targets), length):
        mine = targets[start : start + length]
        # A label, and a weight, of each.
        wanted += 12 * len(mine)
        for first in (0, 20):
            sources = [
                graph.topology.indices[graph.topology.indptr[v] : graph.topology.indptr[v + 1]] for v in mine
            ]
            edges = sum(int(((each >= first) & (each < first + 20)).sum()) for each in sources)
            rows = sum(bool(((each >= first) & (each < first + 20)).any()) for each in sources)
            own = int(((mine >= first) & (mine < first + 20)).sum())
            # The rows of the interval, the edges with their rows and starts, and the factors of both ends.
            wanted += 4 * (20 * 19 + edges + rows + rows + 1 + len(mine) + 20)
            # A vertex's own row is an edge, too, whose factor is of its row.
            wanted += 4 * (own + own + own + 1 + len(mine)) if own else 0
    assert told.in_bytes == wanted
    # Loss and hits of each interval of targets, and the gradients at the end.
    gradients = 4 * (19 + 1) * graph.num_classes
    assert told.out_bytes == 8 * -(-len(targets) // length) + gradients
    assert told.file_bytes == 0
    assert told.copy_s > 0
    assert told.compute_s > 0
    assert told.hidden_s == 0, "one queue does one thing at a time"
    device.close()


def test_other_targets_of_the_same_graph_are_cut_again(device: OpenclDevice) -> None:
    graph = random_graph(90, features=19)
    model = model_of(graph)
    first, other = batches_of(graph, model)[0], batches_of(graph, model, targets=20)[0]
    other.full_graph = first.full_graph
    load_in_chunks(device, model, 3)
    for batch in (first, other, first):
        check_agreement(run_step(device, batch), compute_reference(model, batch, graph))
