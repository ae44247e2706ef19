"""What devices tell of the chunks of a whole graph: spans as the plan says, and figures that they come to."""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pytest
from device.test_mixed_devices import needs_opencl, team_of
from device.test_torch_saga import emulated, needs_compiler
from graphs import adjacency, dense_features, random_graph
from hyrt_devices.cuda.device import CudaDevice
from unit.cuda.fake_driver import FakeDriver, Mark

from hyrt.device import Device, Span
from hyrt.device.capabilities import Traceable
from hyrt.fullgraph.intervals import ChunkOptions
from hyrt.graph.graph import Graph
from hyrt.nn.architecture import Architecture
from hyrt.nn.model import GNN
from hyrt.nn.torch_threads import torch_threads
from hyrt.pipeline.trainer import InputPlan
from hyrt.testing.cases import ROWS, full_graph_batches, randomize_parameters
from hyrt.testing.trial import check_agreement, compute_reference, load_model, run_step
from hyrt.training.chunk_device_group import ChunkDeviceGroup

NUM, LENGTH, TARGETS = 3, 30, 60
TRACKS = ["copy in", "compute", "copy out"]


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


class Heard:
    """Spans by track."""

    def __init__(self, device: Device) -> None:
        self.spans: defaultdict[str, list[Span]] = defaultdict(list)
        assert isinstance(device, Traceable)
        device.trace(self)

    def __call__(self, track: str, spans: Sequence[Span]) -> None:
        self.spans[track] += spans

    def names(self, track: str, pattern: str) -> Counter[str]:
        return Counter(name for name, _, _ in self.spans[track] if re.match(pattern, name))

    def seconds(self, track: str) -> float:
        return sum(end - start for _, start, end in self.spans[track]) * 1e-9


def chosen_targets() -> np.ndarray:
    return np.sort(np.random.default_rng(2).permutation(NUM * LENGTH)[:TARGETS])


def chunks_of(graph: Graph, destinations: np.ndarray) -> Counter[tuple[int, int]]:
    """How often each chunk is gathered along, as (source, destination), from the dense matrix: once for its
    edges, once for the vertices' own rows.
    """
    num, dense = graph.num_vertices, adjacency(graph)
    found: Counter[tuple[int, int]] = Counter()
    for first in range(0, len(destinations), LENGTH):
        mine = destinations[first : first + LENGTH]
        for start in range(0, num, LENGTH):
            place = start // LENGTH + 1, first // LENGTH + 1
            found[place] += int(dense[mine, start : start + LENGTH].any())
            found[place] += int(((mine >= start) & (mine < start + LENGTH)).any())
    return +found


def named(what: str, layer: str, chunks: Counter[tuple[int, int]]) -> Counter[str]:
    return Counter(
        {f"{what}, {layer}, chunk {source} → {end}": count for (source, end), count in chunks.items()}
    )


def sum_of(heard: Sequence[Heard], track: str, pattern: str) -> Counter[str]:
    """What all devices did, whatever kernels are called."""
    total: Counter[str] = Counter()
    for each in heard:
        for name, count in each.names(track, pattern).items():
            total[name.replace("accumulate, ", "gather, ")] += count
    return total


@pytest.mark.parametrize(
    "kinds",
    [
        ["cpu"],
        ["torch"],
        ["torch", "cpu"],
        pytest.param(["opencl with memory", "cpu"], marks=needs_opencl),
    ],
    ids="+".join,
)
def test_every_chunk_of_a_step_is_a_span_of_the_device_that_computes_it(kinds: list[str]) -> None:
    graph = random_graph(NUM * LENGTH, features=19)
    model: GNN = randomize_parameters(
        GNN(Architecture(kind="gcn", in_features=19, hidden=21, num_classes=graph.num_classes, layers=2))
    )
    team = team_of(kinds, [1.0] * len(kinds))
    team.take_chunks(ChunkOptions(NUM, in_flight=2, filter_below=0.0))
    load_model(team, model)
    heard = [Heard(device) for device in team.members]
    targets = chosen_targets()
    batches = full_graph_batches(graph, 2, targets, ROWS, steps=[0, 1], class_weights=True)
    begun = time.perf_counter()
    result = run_step(team, batches[0])
    took_s = time.perf_counter() - begun
    check_agreement(result, compute_reference(model, batches[0], graph))

    into_all, into_targets = (
        chunks_of(graph, vertices) for vertices in (np.arange(graph.num_vertices), targets)
    )
    assert len(into_all) == NUM * NUM
    for layer, chunks in (("layer 1", into_all), ("layer 2", into_targets), ("layer 2 back", into_targets)):
        assert sum_of(heard, "compute", rf"(gather|accumulate), {layer},") == named("gather", layer, chunks)
    # Rows once a chunk, and edges each time; the host's cores read both where they lie.
    copied = sum_of(heard, "copy in", r"copy in, layer \d( back)?, chunk")
    for kind, each in zip(kinds, heard, strict=True):
        assert bool(each.names("copy in", "copy in, .* chunk")) == (kind != "cpu")
        assert each.names("copy out", "copy out, layer 1, vertices")
    if kinds == ["torch"]:
        wanted = named("copy in", "layer 1", into_all + Counter(set(into_all)))
        assert {name: copied[name] for name in wanted} == wanted
    if not any(kind.startswith("opencl") for kind in kinds):
        of_intervals = sum_of(heard, "compute", r"[a-z ]+, layer \d( back)?, (vertices|targets)")
        each_vertex = ("products, layer 1", "products, layer 1 back", "products back, layer 1 back")
        each_target = ("products, layer 2", "loss, layer 2", "products back, layer 2")
        assert of_intervals == Counter(
            [f"{what}, vertices {k} of {NUM}" for what in each_vertex for k in (1, 2, 3)]
            + [f"{what}, targets {k} of 2" for what in each_target for k in (1, 2)]
        )

    assert result.chunks is not None
    assert list(result.chunks.by_device) == [device.info.name for device in team.members]
    for each, work in zip(heard, result.chunks.by_device.values(), strict=True):
        for spans in each.spans.values():
            assert all(a[2] <= b[1] for a, b in pairwise(sorted(spans, key=lambda span: span[1:])))
        # Weights and gradients go between two steps.
        computed_s = sum((end - begin) * 1e-9 for name, begin, end in each.spans["compute"] if "," in name)
        assert computed_s == pytest.approx(work["compute_s"], rel=0.05, abs=1e-4)
        assert 0 < work["copy_s"] <= each.seconds("copy in") + each.seconds("copy out") + 1e-6
        assert 0 <= work["hidden_s"] <= min(work["copy_s"], work["compute_s"])
        assert work["compute_s"] + work["copy_s"] - work["hidden_s"] <= took_s
    assert 0 < result.chunks.step_s <= took_s

    for each in heard:
        each.spans.clear()
    check_agreement(run_step(team, batches[1]), compute_reference(model, batches[1], graph))
    assert not sum_of(heard, "compute", "(gather|accumulate), layer 1,"), "what it has gathered is kept"
    last = sum_of(heard, "compute", "(gather|accumulate), layer 2,")
    assert last == named("gather", "layer 2", into_targets)
    team.close()


def test_a_torch_device_alone_tells_of_both_of_its_streams() -> None:
    from device.test_torch_chunks import batches_of, model_of, opened

    graph = random_graph(90, features=19)
    model = model_of(graph, kind="gcn")
    device = opened()
    device.take_chunks(ChunkOptions(NUM, in_flight=2))
    load_model(device, model)
    heard = Heard(device)
    result = run_step(device, batches_of(graph, model)[0])
    device.close()
    assert sorted(heard.spans) == sorted(TRACKS)
    assert heard.names("compute", "gather, layer 1, chunk 3 → 2$")
    assert heard.names("copy in", "copy in, layer 1, chunk 3 → 2$")
    assert result.chunks is not None
    [work] = result.chunks.by_device.values()
    assert (work["in_bytes"], work["out_bytes"]) == (result.chunks.in_bytes, result.chunks.out_bytes)


class WaitingDriver(FakeDriver):
    """Tells times between marks that somebody has waited for, as hardware does, and of no others."""

    def __init__(self, *, reaches: bool = False) -> None:
        super().__init__(reaches=reaches)
        self._reached: set[Mark] = set()
        # What is over before each mark, and before whatever a stream is given next.
        self._before: dict[Mark, list[Mark]] = {}
        self._last: defaultdict[str, list[Mark]] = defaultdict(list)

    def mark(self, stream: str) -> Mark:
        mark = super().mark(stream)
        self._before[mark], self._last[stream] = self._last[stream], [mark]
        return mark

    def order(self, stream: str, mark: Mark) -> None:
        super().order(stream, mark)
        self._last[stream] = [*self._last[stream], mark]

    def wait(self, mark: Mark) -> None:
        super().wait(mark)
        over = [mark]
        while over:
            each = over.pop()
            if each not in self._reached:
                self._reached.add(each)
                over += self._before.pop(each)

    def seconds(self, start: Mark, end: Mark) -> float:
        if not {start, end} <= self._reached:
            raise RuntimeError("device not ready")
        return super().seconds(start, end)


@pytest.mark.parametrize("alone", [True, False])
def test_times_are_asked_for_when_all_is_over(alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from device import test_mixed_devices, test_torch_chunks

    graph = random_graph(90, features=19)
    model = test_torch_chunks.model_of(graph, kind="gcn")
    for module in (test_torch_chunks, test_mixed_devices):
        monkeypatch.setattr(module, "FakeDriver", WaitingDriver)
    device: CudaDevice | ChunkDeviceGroup = test_torch_chunks.opened() if alone else team_of(["torch"], [1.0])
    device.take_chunks(ChunkOptions(NUM, in_flight=2))
    load_model(device, model)
    heard = Heard(device if isinstance(device, CudaDevice) else device.members[0])
    for batch in test_torch_chunks.batches_of(graph, model):
        check_agreement(run_step(device, batch), compute_reference(model, batch, graph))
    device.close()
    assert heard.names("compute", "gradients to the host")


def test_rows_that_are_read_where_they_lie_stay_as_they_are() -> None:
    """Also where they are dropped, which other devices do in their own copies."""
    graph = random_graph(90, features=19)
    given = dense_features(graph)
    model: GNN = randomize_parameters(
        GNN(
            Architecture(
                kind="gcn", in_features=19, hidden=21, num_classes=graph.num_classes, input_dropout=0.5
            )
        )
    )
    team = team_of(["cpu"], [1.0])
    team.take_chunks(ChunkOptions(NUM))
    load_model(team, model)
    heard = Heard(team.members[0])
    in_place, copied = (
        full_graph_batches(graph, 2, chosen_targets(), plan, steps=[0, 1])
        for plan in (InputPlan("in_place"), ROWS)
    )
    for batch, same in zip(in_place, copied, strict=True):
        check_agreement(run_step(team, batch), compute_reference(model, same, graph))
    team.close()
    assert np.array_equal(dense_features(graph), given)
    assert heard.names("copy in", r"copy in, layer 1, chunk \d → \d$"), "rows that are to be dropped"
    assert heard.names("compute", r"dropout, layer 1, chunk \d → \d$")


def of_loops(heard: Heard, layer: str) -> set[tuple[int, int]]:
    """The chunks of a layer's loops, as (source, destination)."""
    names = heard.names("compute", rf"edge_loop, {layer}, chunk")
    found = [re.search(r"chunk (\d) → (\d), into (source|destination)s$", name) for name in names]
    return {(int(each[1]), int(each[2])) for each in found if each is not None}


def loops_of(device: Device, graph: Graph, model: GNN) -> tuple[Heard, dict[str, dict[str, float]]]:
    load_model(device, model)
    heard = Heard(device)
    plan = InputPlan("in_place")
    result = run_step(device, full_graph_batches(graph, 2, np.arange(graph.num_vertices), plan, steps=[0])[0])
    assert result.chunks is not None
    return heard, {name: dict(work) for name, work in result.chunks.by_device.items()}


@needs_compiler
def test_loops_over_edges_are_named_by_layer_direction_and_chunk() -> None:
    graph = random_graph(90, features=19, degree=3)
    model: GNN = randomize_parameters(
        GNN(Architecture(kind="gat", in_features=19, hidden=8, heads=2, num_classes=graph.num_classes))
    )
    device, _ = emulated()
    device.take_chunks(ChunkOptions(NUM))
    heard, works = loops_of(device, graph, model)
    device.close()
    # An attention layer has a loop from each vertex to itself.
    wanted = set(chunks_of(graph, np.arange(graph.num_vertices)))
    for layer in ("layer 1", "layer 2", "layer 1 back", "layer 2 back"):
        assert of_loops(heard, layer) == wanted
    for track in ("copy in", "copy out"):
        assert heard.names(track, rf"{track}, layer 2 back, chunk")
    [work] = works.values()
    assert work["compute_s"] == pytest.approx(heard.seconds("compute"), rel=0.05, abs=1e-4)
    assert work["copy_s"] > 0
    for spans in heard.spans.values():
        assert all(a[2] <= b[1] for a, b in pairwise(sorted(spans, key=lambda span: span[1:])))


@needs_opencl
def test_intervals_that_the_hosts_threads_loop_into_are_spans_too() -> None:
    graph = random_graph(90, features=19, degree=3)
    model: GNN = randomize_parameters(
        GNN(Architecture(kind="gat", in_features=19, hidden=8, heads=2, num_classes=graph.num_classes))
    )
    team = team_of(["cpu", "opencl"], [1.0, 2.0])
    team.take_chunks(ChunkOptions(NUM))
    load_model(team, model)
    cpu, other = (Heard(device) for device in team.members)
    [batch] = full_graph_batches(graph, 2, np.arange(graph.num_vertices), ROWS, steps=[0])
    result = run_step(team, batch)
    check_agreement(result, compute_reference(model, batch, graph))
    team.close()
    for layer in ("layer 1", "layer 2"):
        mine = cpu.names("compute", rf"edge_loop, {layer}, into destinations, interval \d of {NUM}$")
        intervals = {int(name.split()[-3]) for name in mine}
        columns = {destination for _, destination in of_loops(other, layer)}
        assert len(intervals) == 1
        assert intervals | columns == {1, 2, 3}
        assert not intervals & columns
    assert list(cpu.spans) == ["compute"]
    for track in ("copy in", "copy out"):
        assert other.names(track, rf"{track}, layer 2 back, chunk")
    assert result.chunks is not None
    for each, work in zip((cpu, other), result.chunks.by_device.values(), strict=True):
        assert work["compute_s"] == pytest.approx(each.seconds("compute"), rel=0.05, abs=1e-4)
    assert bool(work["copy_s"])
    assert work["out_bytes"] > 0
