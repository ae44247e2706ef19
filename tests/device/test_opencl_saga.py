"""Layers of a user's own on OpenCL, for any number of chunks: dense float64's steps, and the CPU's losses."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from graphs import adjacency, dense_features, random_graph
from hetero_layers import assert_step, typed_layer, typed_step, with_types
from hyrt_devices.opencl import OpenclDevice
from kind_formulas import commnet, film, gated, recurrent
from opencl_steps import opened
from saga_layers import dense_result, layer_of
from tied_layer import Tied, first_edges_gradients

import hyrt
from hyrt.errors import DeviceOutOfMemoryError, UnsupportedModelError
from hyrt.fullgraph.intervals import ChunkOptions, ChunkOrder
from hyrt.graph.graph import Graph
from hyrt.nn import SagaLayer, stack
from hyrt.nn.message_passing.layers import CommNetLayer, FilmLayer, GatedLayer, RecurrentLayer
from hyrt.nn.model import GNN
from hyrt.nn.torch_threads import torch_threads
from hyrt.pipeline.trainer import InputPlan
from hyrt.telemetry.events import StepMetrics
from hyrt.testing.cases import full_graph_batches
from hyrt.testing.trial import load_model, run_step

pytestmark = pytest.mark.skipif(not OpenclDevice.probe(), reason=OpenclDevice.missing() or "no OpenCL device")
WIDTH = 6


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


@pytest.fixture(scope="module")
def devices() -> Iterator[dict[str, OpenclDevice]]:
    """One device for each way to cut loops: a device compiles a loop once."""
    found = {product: opened(product) for product in ("chosen", "tiled")}
    yield found
    for device in found.values():
        device.close()


def model_of(*names: str) -> GNN:
    return stack(*(layer_of(name, WIDTH, WIDTH) for name in names))


def by_pairs(names: tuple[str, ...], model: GNN, graph: Graph, targets: np.ndarray) -> tuple[float, list]:
    """Loss sum and gradients in float64, all pairs of vertices at once."""
    topology, num = graph.topology, graph.num_vertices
    counts = torch.zeros(num, num, dtype=torch.float64)
    for i in range(num):
        for e in range(topology.indptr[i], topology.indptr[i + 1]):
            counts[i, topology.indices[e]] += 1
    degrees = torch.from_numpy(topology.in_degrees.astype(np.float64))
    x = torch.from_numpy(np.asarray(graph.features.matrix)).double()
    taken = []
    for i, (name, layer) in enumerate(zip(names, model.layers, strict=True)):
        parameters = {n: p.detach().double().requires_grad_() for n, p in layer.named_parameters()}
        x = dense_result(name, parameters, x, counts, counts, degrees, degrees)
        x = x.relu() if i < len(names) - 1 else x
        taken += parameters.values()
    labels = torch.from_numpy(graph.labels.astype(np.int64))
    losses = torch.nn.functional.cross_entropy(x[targets], labels[targets], reduction="sum")
    return float(losses.detach()), list(torch.autograd.grad(losses, taken))


@pytest.mark.parametrize(
    ("names", "product"),
    [
        (("G-GCN", "GAT"), "chosen"),
        # Nothing but a barrier keeps a thread from reading what another one writes: scores need no sums.
        (("GAT", "G-GCN"), "tiled"),
        (("EdgeConv", "GCN"), "chosen"),
        (("GATv2", "GraphSAGE"), "tiled"),
        (("mixed", "GIN"), "chosen"),
    ],
)
def test_steps_in_chunks_are_those_of_all_pairs(
    devices: dict[str, OpenclDevice], names: tuple[str, str], product: str
) -> None:
    graph = random_graph(90, features=WIDTH, classes=WIDTH, symmetric="GAT" in names)
    model, device = model_of(*names), devices[product]
    shuffled = np.random.default_rng(2).permutation(graph.split("train"))
    grids: list[tuple[int, ChunkOrder, int | None]] = [
        (1, "column-row", None), (2, "column-row", 20), (5, "column-row", None), (3, "row-column", None),
    ]  # fmt: skip
    for num, order, some in grids:
        targets = shuffled[:some]
        loss, gradients = by_pairs(names, model, graph, targets)
        device.take_chunks(ChunkOptions(num, order))
        load_model(device, model)
        (batch,) = full_graph_batches(graph, 2, targets, InputPlan("in_place"), steps=[0])
        found = run_step(device, batch)
        assert device.num_chunks == num
        assert found.loss_sum == pytest.approx(loss, rel=1e-4)
        largest = max(float(each.abs().max()) for each in gradients)
        for mine, theirs in zip(found.gradients, gradients, strict=True):
            bound = 1e-4 * max(float(theirs.abs().max()), 1e-3 * largest)
            assert float((mine.double() - theirs).abs().max()) <= bound


@pytest.mark.parametrize("name", ["GG-NN", "attention", "largest"])
def test_types_stay_with_their_edges_in_chunks(devices: dict[str, OpenclDevice], name: str) -> None:
    graph = with_types(random_graph(90, features=WIDTH, classes=WIDTH, symmetric=name != "largest"))
    device, model = devices["chosen"], stack(*(typed_layer(name, WIDTH, WIDTH) for _ in range(2)))
    shuffled = np.random.default_rng(2).permutation(graph.split("train"))
    for num, some in [(1, None), (2, 20), (5, None)]:
        device.take_chunks(ChunkOptions(num, "column-row"))
        load_model(device, model)
        (batch,) = full_graph_batches(graph, 2, shuffled[:some], InputPlan("in_place"), steps=[0])
        found = run_step(device, batch)
        assert device.num_chunks == num
        expected = typed_step((name, name), model.layers, graph, shuffled[:some])
        assert_step(found.loss_sum, found.gradients, expected)


@pytest.mark.parametrize(
    ("kind", "formula"),
    [(GatedLayer, gated), (CommNetLayer, commnet), (RecurrentLayer, recurrent), (FilmLayer, film)],
    ids=["ggcn", "commnet", "ggnn", "gnn-film"],
)
def test_the_built_in_layers_are_their_formulas_in_chunks(
    devices: dict[str, OpenclDevice], kind: type[SagaLayer], formula: Callable[..., torch.Tensor]
) -> None:
    graph = random_graph(90, features=WIDTH, classes=WIDTH, symmetric=False)
    torch.manual_seed(1)
    device, model, targets = (
        devices["chosen"],
        stack(kind(WIDTH, WIDTH), kind(WIDTH, WIDTH)),
        graph.split("train"),
    )
    x, counts = (torch.from_numpy(each) for each in (dense_features(graph), adjacency(graph)))
    taken = []
    for i, layer in enumerate(model.layers):
        p = {name: value.detach().double().requires_grad_() for name, value in layer.named_parameters()}
        x = x.relu() if i else x
        x = formula(p, x, x, counts)
        taken += p.values()
    labels = torch.from_numpy(graph.labels[targets].astype(np.int64))
    loss = torch.nn.functional.cross_entropy(x[targets], labels, reduction="sum")
    expected = float(loss.detach()), list(torch.autograd.grad(loss, taken))
    for num in (1, 2, 5):
        device.take_chunks(ChunkOptions(num, "column-row"))
        load_model(device, model)
        (batch,) = full_graph_batches(graph, 2, targets, InputPlan("in_place"), steps=[0])
        found = run_step(device, batch)
        assert device.num_chunks == num
        assert_step(found.loss_sum, found.gradients, expected)


def test_the_first_of_equal_messages_gets_the_gradient_in_chunks(devices: dict[str, OpenclDevice]) -> None:
    graph = random_graph(90, features=WIDTH, classes=WIDTH, symmetric=False)
    topology, targets = graph.topology, graph.split("train")
    torch.manual_seed(0)
    device, model = devices["chosen"], stack(Tied(WIDTH, WIDTH))
    # All scores are zero, so all classes are as likely.
    grad = torch.zeros(graph.num_vertices, WIDTH, dtype=torch.float64)
    grad[targets] = 1 / WIDTH - torch.eye(WIDTH, dtype=torch.float64)[graph.labels[targets].astype(np.int64)]
    x = torch.from_numpy(np.asarray(graph.features.matrix)).double()
    expected = first_edges_gradients(grad, x, topology.indptr, topology.indices)
    grids: list[tuple[int, ChunkOrder]] = [(1, "column-row"), (2, "row-column"), (5, "column-row")]
    for num, order in grids:
        device.take_chunks(ChunkOptions(num, order))
        load_model(device, model)
        (batch,) = full_graph_batches(graph, 1, targets, InputPlan("in_place"), steps=[0])
        for mine, theirs in zip(run_step(device, batch).gradients, expected, strict=True):
            assert float((mine.double() - theirs).abs().max()) <= 1e-4 * float(theirs.abs().max())


def test_the_least_number_of_chunks_keeps_the_budget(devices: dict[str, OpenclDevice]) -> None:
    graph, device = random_graph(600, features=WIDTH, classes=WIDTH), devices["tiled"]
    model, memory = model_of("G-GCN", "GAT"), device._memory.buffers
    limit, steps, cuts = memory.limit_bytes, [], []
    try:
        for budget in (limit, 40_000, 12_000):
            device.take_chunks(ChunkOptions())
            load_model(device, model)
            memory.limit_bytes, memory.peak_bytes = budget, 0
            (batch,) = full_graph_batches(graph, 2, graph.split("train"), InputPlan("in_place"), steps=[0])
            steps.append(run_step(device, batch))
            cuts.append(device.num_chunks)
            assert 0 < memory.peak_bytes <= budget
        assert cuts[0] == 1
        assert cuts[0] < cuts[1] < cuts[2]
        for other in steps[1:]:
            assert other.loss_sum == pytest.approx(steps[0].loss_sum, rel=1e-5)
        device.take_chunks(ChunkOptions(2))
        load_model(device, model)
        with pytest.raises(DeviceOutOfMemoryError, match="2 x 2 chunks need"):
            run_step(device, batch)
    finally:
        memory.limit_bytes = limit


def losses_of(devices: str, model: Any, graph: Graph, *, epochs: int, full_graph: bool = True) -> list[float]:
    heard: list[float] = []

    def hear(event: object) -> None:
        if isinstance(event, StepMetrics):
            heard.extend(event.losses)

    hyrt.train(
        graph,
        model,
        full_graph=full_graph,
        devices=devices,
        train={"epochs": epochs, "lr": 0.02},
        evaluate={"every": epochs},
        emit=hear,
    )
    return heard


@pytest.mark.parametrize("kind", ["ggnn", "commnet"])
def test_losses_are_those_of_the_cpu(kind: str) -> None:
    graph = hyrt.load("synthetic:tiny")
    # Of equal widths, so that the loops of all layers are the same.
    model = {"kind": kind, "hidden": graph.num_classes}
    cpu, opencl = (losses_of(devices, model, graph, epochs=20) for devices in ("cpu", "opencl:0"))
    assert len(cpu) == 20
    np.testing.assert_allclose(opencl, cpu, rtol=1e-4)
    assert cpu[-1] < 0.9 * cpu[0]


@pytest.mark.parametrize("full_graph", [True, False], ids=["whole graph", "blocks"])
def test_losses_of_a_users_own_layers_are_those_of_the_cpu(full_graph: bool) -> None:
    graph, found = hyrt.load("synthetic:tiny"), []
    for devices in ("cpu", "opencl:0"):
        width = graph.num_classes
        first = layer_of("GIN", graph.num_features, width)
        model = stack(first, layer_of("G-GCN", width, width), dropout=0.2)
        found.append(losses_of(devices, model, graph, full_graph=full_graph, epochs=20 if full_graph else 2))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4)


def test_what_is_no_loop_is_refused_by_its_name(devices: dict[str, OpenclDevice]) -> None:
    device = devices["chosen"]
    with pytest.raises(UnsupportedModelError, match=r"'layers.1' \(Perceptron\) in one .*'linear'"):
        device.load(model_of("G-GCN", "perceptron"), [])
    with pytest.raises(
        UnsupportedModelError, match=r"has parameters of torch\.float64, but .* supports only float32"
    ):
        device.load(model_of("G-GCN").double(), [])


def test_rows_that_are_read_in_place_stay_as_long_as_the_device_holds_them(
    devices: dict[str, OpenclDevice],
) -> None:
    """Also beyond `finish`: the next column of chunks may read the same rows, which nobody else has."""
    room = devices["chosen"].loop_member(stack(GatedLayer(WIDTH, WIDTH)))
    assert room.reads_in_place
    rows = np.ones((64, WIDTH), np.float32)
    there, held = weakref.ref(rows), room.put(rows)
    del rows
    room.finish()
    assert there() is not None
    room.release_arrays([held])
    assert there() is not None, "what is in the queue reads it"
    del held
    room.finish()
    assert there() is None
