"""Self loops of the data: kept by every source, and given to each model as PyG's layers take them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from dgl_stand_in import Heads, stand_in
from graphs import random_graph
from hyrt_devices.cuda.device import CudaDevice
from hyrt_devices.fpga.csim_device import FpgaCsimDevice
from hyrt_devices.opencl import OpenclDevice
from in_process import run_here
from unit.cuda.fake_driver import FakeDriver

import hyrt
from hyrt.config import build_config
from hyrt.device import DeviceInfo
from hyrt.errors import DataError
from hyrt.graph import topology as topology_module
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import DenseFeatures
from hyrt.graph.topology import Topology
from hyrt.inference.infer import infer_layerwise, infer_sampled
from hyrt.nn.layers import GatLayer, GcnLayer, SageLayer
from hyrt.nn.message_passing.layer import Edge, SagaLayer
from hyrt.nn.model_checks import drop_replaced_loops
from hyrt.pipeline.trainer import InputPlan
from hyrt.predict.workload import sampled_workload
from hyrt.report.plain_gnn import PlainGNN
from hyrt.report.trained_run import export_arguments
from hyrt.runtime.workers import Workers
from hyrt.telemetry.events import Notice
from hyrt.training.build_run import build_run
from hyrt.training.setup import build_model

V, F, C = 60, 6, 3
BARE = random_graph(V, 5, features=F, symmetric=False, seed=4)
LOOPS = np.arange(0, V, 3)
OWN_LOOPS = ("gcn", "deepgcn", "gat", "edge-gat")
"""Kinds of models whose layers add self loops of their own."""
SHAPES = {"deepgcn": {"layers": 3}}


def with_loops(graph: Graph = BARE, *, weights: float | None = None, features: int = 0) -> Graph:
    """The graph with self loops of a third of its vertices, and values of edges if wanted.

    `weights` is the weight of the self loops; other edges have random ones.
    """
    rng, num = np.random.default_rng(8), graph.num_vertices
    rows = np.repeat(np.arange(num), graph.topology.in_degrees)
    pairs = np.concatenate([np.stack([rows, graph.topology.indices], 1), np.stack([LOOPS, LOOPS], 1)])
    pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    each = rng.uniform(0.2, 2, len(pairs)).astype(np.float32)
    each[pairs[:, 0] == pairs[:, 1]] = weights or 1
    values = rng.standard_normal((len(pairs), features)).astype(np.float32)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(pairs[:, 0], minlength=num))]).astype(np.int64)
    topology = Topology(
        indptr,
        pairs[:, 1].astype(np.int32),
        edge_weights=None if weights is None else each,
        edge_features=values if features else None,
    )
    return replace(graph, name="with loops", topology=topology)


def removed(graph: Graph) -> Graph:
    """The graph without self loops, by numpy alone."""
    topology = graph.topology
    rows = np.repeat(np.arange(V), topology.in_degrees)
    kept = topology.indices != rows
    assert kept.sum() == len(kept) - len(LOOPS)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows[kept], minlength=V))]).astype(np.int64)
    values = (topology.edge_types, topology.edge_weights, topology.edge_features)
    return replace(
        graph,
        topology=Topology(
            indptr, topology.indices[kept], *(None if each is None else each[kept] for each in values)
        ),
    )


def edge_index(graph: Graph) -> torch.Tensor:
    rows = np.repeat(np.arange(graph.num_vertices), graph.topology.in_degrees)
    return torch.from_numpy(np.stack([graph.topology.indices.astype(np.int64), rows]))


def features_of(graph: Graph) -> torch.Tensor:
    rows = graph.features
    assert isinstance(rows, DenseFeatures)
    return torch.from_numpy(np.asarray(rows.values))


def config_of(kind: str, **model: Any) -> Any:
    shape = {"hidden": 8, "layers": 2, "norm": "none", "residual": False, **SHAPES.get(kind, {})}
    return build_config({"model": {"kind": kind, **shape, "dropout": 0, **model}})


def shaken(model: torch.nn.Module) -> torch.nn.Module:
    """The model with biases that are not 0."""
    random = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=random))
    return model.eval()


# --- every source keeps them

PAIRS = np.array([(4, 1), (2, 1), (1, 1), (2, 3), (5, 3), (3, 3), (0, 5), (5, 5)])
COUNT = 6


def tables() -> dict[str, np.ndarray]:
    masks = {f"{split}_mask": np.arange(COUNT) % 3 == k for k, split in enumerate(("train", "val", "test"))}
    return {"features": np.eye(COUNT, dtype=np.float32), "labels": np.arange(COUNT) % 2, **masks}


def of_npz(folder: Path) -> Any:
    order = np.lexsort(PAIRS.T)
    starts = np.concatenate([[0], np.cumsum(np.bincount(PAIRS[:, 1], minlength=COUNT))])
    np.savez(folder / "g.npz", indptr=starts, indices=PAIRS[order, 0].astype(np.int32), **tables())
    return folder / "g.npz"


def of_folder(folder: Path) -> Any:
    hyrt.save(of_npz(folder), folder / "g")
    return folder / "g"


def of_parts(folder: Path) -> Any:
    run_here("partition", "--data", "g.npz", "--parts", "2", "-o", "p", cwd=of_npz(folder).parent)
    return folder / "p"


def of_split_parts(folder: Path) -> Any:
    words = ("--parts", "2", "--topology", "split", "-o", "p")
    run_here("partition", "--data", "g.npz", *words, cwd=of_npz(folder).parent)
    return folder / "p"


def of_tables(folder: Path) -> Any:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    lines = "\n".join(f"{u},{v}" for u, v in PAIRS)
    (folder / "edges.csv").write_text(f"source,target\n{lines}\n")
    rows = "\n".join(f"{v},{v % 2},{v},{('train', 'val', 'test')[v % 3]}" for v in range(COUNT))
    (folder / "vertices.csv").write_text(f"id,label,height,split\n{rows}\n")
    run_here("data", "import", "edges.csv", "vertices.csv", "-o", "g.npz", cwd=folder)
    return folder / "g.npz"


def of_pyg(folder: Path) -> Any:
    given = tables()
    ends = torch.from_numpy(np.concatenate([PAIRS, PAIRS[[2, 2, 5]]]).T.copy())
    masks = {key: torch.from_numpy(given[key]) for key in given if key.endswith("_mask")}
    x, y = torch.from_numpy(given["features"]), torch.from_numpy(given["labels"])
    return SimpleNamespace(x=x, y=y, edge_index=ends, **masks)


def of_dgl(folder: Path) -> Any:
    given = tables()
    masks = {key: torch.from_numpy(given[key]) for key in given if key.endswith("_mask")}
    ndata = {"feat": torch.from_numpy(given["features"]), "label": torch.from_numpy(given["labels"]), **masks}
    ends = tuple(torch.from_numpy(np.concatenate([PAIRS, PAIRS[[2, 2, 5]]]).T.copy()))
    one = {"ntypes": ["_N"], "etypes": ["_E"], "is_block": False}
    return SimpleNamespace(ndata=ndata, edata={}, edges=lambda: ends, **one)


SOURCES = (of_npz, of_folder, of_parts, of_split_parts, of_tables, of_pyg, of_dgl)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)
@pytest.mark.filterwarnings("ignore:.*3 of 11 edges are duplicates and were merged")
def test_every_source_keeps_self_loops_once(source: Any, tmp_path: Path) -> None:
    graph = hyrt.load(source(tmp_path))
    assert sorted(map(tuple, edge_index(graph).T.tolist())) == sorted(map(tuple, PAIRS.tolist()))
    assert graph.topology.num_self_loops == 3
    assert graph.topology.is_self_loop.sum() == 3


def test_edges_from_other_vertices_stay_with_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology_module, "_ROWS_AT_ONCE", 7)
    graph = with_loops(weights=1.0, features=2)
    times = np.random.default_rng(0).integers(0, 99, graph.num_edges)
    types = (times % 3).astype(np.int8)
    topology = replace(graph.topology, edge_types=types, edge_times=times)
    assert topology.is_symmetric is False
    found = topology.without_self_loops
    wanted = removed(replace(graph, topology=topology)).topology
    for name in ("indptr", "indices", "edge_types", "edge_weights", "edge_features"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
    np.testing.assert_array_equal(found.edge_times, times[~topology.is_self_loop])
    assert found.without_self_loops is found
    assert removed(graph).topology.without_self_loops.num_self_loops == 0


# --- each model takes them as PyG's layers do


def pyg_of(kind: str, model: torch.nn.Module, edges: int) -> Any:
    """PyG's layers with the parameters of the model's, and what each is called with."""
    nn = pytest.importorskip("torch_geometric.nn", reason="torch_geometric is not installed")
    found = []
    for layer in model.layers:
        p, into, last = dict(layer.named_parameters()), 0, layer is model.layers[-1]
        with torch.no_grad():
            if kind in ("gcn", "deepgcn"):
                out, into = p["weight"].shape
                conv = nn.GCNConv(into, out)
                conv.lin.weight.copy_(p["weight"])
                conv.bias.copy_(p["bias"])
            elif kind in ("gat", "edge-gat"):
                heads, width = p["source"].shape
                into = layer.in_features if kind == "edge-gat" else p["weight"].shape[2]
                conv = nn.GATConv(into, width, heads, concat=not last, edge_dim=edges or None)
                weight = p["product.weight"] if kind == "edge-gat" else p["weight"].flatten(0, 1)
                conv.lin.weight.copy_(weight)
                conv.att_src.copy_(p["source"][None])
                conv.att_dst.copy_(p["destination"][None])
                conv.bias.copy_(p["bias"])
                if kind == "edge-gat":
                    conv.lin_edge.weight.copy_(p["edge_product.weight"])
                    conv.att_edge.copy_(p["edge"][None])
            elif kind.startswith("graphsage"):
                out, into = len(p["bias"]), p["weight"].shape[1] // 2
                conv = nn.SAGEConv(into, out, aggr=kind.partition(" ")[2])
                conv.lin_l.weight.copy_(p["weight"][:, into:])
                conv.lin_l.bias.copy_(p["bias"])
                conv.lin_r.weight.copy_(p["weight"][:, :into])
            elif kind == "gin":
                hidden, into = p["inner.weight"].shape
                two = torch.nn.Linear(into, hidden), torch.nn.Linear(hidden, len(p["bias"]))
                # It draws the weights anew.
                conv = nn.GINConv(torch.nn.Sequential(two[0], torch.nn.ReLU(), two[1]))
                two[0].weight.copy_(p["inner.weight"])
                two[0].bias.copy_(p["inner.bias"])
                two[1].weight.copy_(p["weight"])
                two[1].bias.copy_(p["bias"])
            else:
                hidden, into = p["inner.weight"].shape
                two = torch.nn.Linear(into, hidden), torch.nn.Linear(hidden, p["outer.weight"].shape[0])
                net = torch.nn.Sequential(two[0], torch.nn.ReLU(), two[1])
                conv = nn.GINEConv(net, edge_dim=edges)
                for mine, name in zip(two, ("inner", "outer"), strict=True):
                    mine.weight.copy_(p[f"{name}.weight"])
                    mine.bias.copy_(p[f"{name}.bias"])
                conv.lin.weight.copy_(p["edge.weight"])
                conv.lin.bias.copy_(p["edge.bias"])
        found.append(conv)
    return found


def scores_of_pyg(kind: str, model: torch.nn.Module, graph: Graph) -> torch.Tensor:
    topology, x = graph.topology, features_of(graph)
    weights, values = topology.edge_weights, topology.edge_features
    convs = pyg_of(kind, model, 0 if values is None else values.shape[1])
    given: dict[str, Any] = {}
    if values is not None:
        given = {"edge_attr": torch.from_numpy(values)}
    elif weights is not None:
        given = {"edge_weight": torch.from_numpy(weights)}
    with torch.no_grad():
        for number, conv in enumerate(convs, 1):
            x = conv(x, edge_index(graph), **given)
            x = x if number == len(convs) else x.relu()
    return x


KINDS = {
    "gcn": {},
    "deepgcn": {},
    "gat": {"heads": 2},
    "edge-gat": {"heads": 2},
    "graphsage mean": {"aggregate": "mean"},
    "graphsage sum": {"aggregate": "sum"},
    "graphsage max": {"aggregate": "max"},
    "gin": {},
    "gine": {},
}


@pytest.mark.parametrize("kind", KINDS)
def test_scores_of_a_graph_with_self_loops_are_those_of_pyg(kind: str) -> None:
    graph = with_loops(features=2) if kind in ("edge-gat", "gine") else with_loops()
    config = config_of(kind.split()[0], **KINDS[kind])
    model = shaken(build_model(config, graph))
    wanted = scores_of_pyg(kind, model, graph).numpy()
    everyone = np.arange(V, dtype=np.int32)
    given = {"fanouts": [-1] * config.model.layers, "batch_size": 9, "seed": 0, "plan": InputPlan("rows")}
    with Workers(1, "test") as workers:
        by_layers = infer_layerwise(model, graph, everyone, workers, memory_bytes=1 << 16)
        by_blocks = infer_sampled(model, graph, everyone, workers, **given)
    for found in (by_layers, by_blocks):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    if kind in OWN_LOOPS:
        assert np.abs(wanted - scores_of_pyg(kind, model, removed(graph)).numpy()).max() < 1e-5
    else:
        # The self loops count there: this is no test of nothing.
        assert np.abs(wanted - scores_of_pyg(kind, model, removed(graph)).numpy()).max() > 0.05


@pytest.mark.parametrize("kind", ["gcn", "gat", "gin", "graphsage mean", "graphsage sum", "graphsage max"])
def test_exported_modules_take_self_loops_as_pyg_does(kind: str) -> None:
    graph = with_loops()
    model = shaken(build_model(config_of(kind.split()[0], **KINDS[kind]), graph))
    plain = PlainGNN(**export_arguments(model.architecture))
    plain.load_state_dict(model.state_dict())
    wanted = scores_of_pyg(kind, model, graph)
    found = plain(features_of(graph), edge_index(graph))
    torch.testing.assert_close(found.detach(), wanted, rtol=1e-4, atol=1e-5)
    found.square().sum().backward()
    assert all(torch.isfinite(each.grad).all() for each in plain.parameters())


@pytest.mark.parametrize("kind", ["gcn", "gat"])
def test_exported_modules_take_repeated_self_loops_as_one(kind: str) -> None:
    graph = with_loops()
    model = shaken(build_model(config_of(kind, **KINDS[kind]), graph))
    plain = PlainGNN(**export_arguments(model.architecture))
    plain.load_state_dict(model.state_dict())
    edges = torch.cat([edge_index(graph), torch.tensor([[3, 3, 5], [3, 3, 5]])], 1)
    with torch.no_grad():
        torch.testing.assert_close(
            plain(features_of(graph), edges), plain(features_of(graph), edge_index(removed(graph)))
        )


def test_self_loops_of_weight_1_are_those_of_pyg_and_others_are_refused() -> None:
    config = config_of("gcn")
    graph = with_loops(weights=1.0)
    model = shaken(build_model(config, graph))
    plain = PlainGNN(**export_arguments(model.architecture))
    plain.load_state_dict(model.state_dict())
    everyone = np.arange(V, dtype=np.int32)
    with Workers(1, "test") as workers:
        found = infer_layerwise(model, graph, everyone, workers, memory_bytes=1 << 20)
        np.testing.assert_allclose(found, scores_of_pyg("gcn", model, graph), rtol=1e-4, atol=1e-5)
        heavy = with_loops(weights=2.5)
        said = (
            r"in with loops \(key 'edge_weight'\), 20 of 20 self loops have a weight other than 1, first "
            r"vertex 0 \(2.5\), but GcnLayer adds self loops with weight 1: set these weights"
        )
        with pytest.raises(DataError, match=said):
            infer_layerwise(model, heavy, everyone, workers, memory_bytes=1 << 20)
    with pytest.raises(DataError, match=said):
        hyrt.train(heavy, "gcn", train={"epochs": 1})
    with pytest.raises(DataError, match=said):
        sampled_workload(config, heavy)
    # A module that is alone with the data computes what PyG does.
    for each in (graph, heavy):
        weights = torch.from_numpy(each.topology.edge_weights)
        scores = plain(features_of(each), edge_index(each), weights).detach()
        torch.testing.assert_close(scores, scores_of_pyg("gcn", model, each), rtol=1e-4, atol=1e-5)
    # Models that take self loops as edges multiply by their weights.
    assert hyrt.train(heavy, "graphsage", train={"epochs": 1}).model


# --- on every path, training is that of the graph without them


class Gated(SagaLayer):
    """A layer of a user's own with self loops."""

    self_loops = True

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.product = torch.nn.Linear(in_features, out_features)

    def apply_edge(self, edge: Edge) -> torch.Tensor:
        return self.product(edge.src) * edge.dst_degree.add(1).rsqrt()

    def apply_vertex(self, vertex: torch.Tensor, gathered: torch.Tensor) -> torch.Tensor:
        return gathered


class Mine(torch.nn.Module):
    """A module of a user's own, made of hyrt's layers."""

    def __init__(self, second: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.second = GcnLayer(F, 8), second or GatLayer(8, C, 2, average=True)

    def forward(self, blocks: Any, x: torch.Tensor) -> torch.Tensor:
        return self.second(blocks[1], self.first(blocks[0], x, relu=True))


def module_of(name: str) -> Any:
    torch.manual_seed(3)
    if name == "own layers":
        return hyrt.nn.stack(Gated(F, 8), Gated(8, C))
    return Mine() if name == "own module" else {"kind": name, **config_of(name).model.model_dump(include=SET)}


SET = {"hidden", "layers", "norm", "residual", "dropout"}
NEIGHBOR = {"fanout": [3, 2]}
PATHS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "mini-batches": (("gcn", "gat", "edge-gat", "own layers", "own module"), {"sampler": NEIGHBOR}),
    "labor": (("gcn", "gat"), {"sampler": {"kind": "labor", **NEIGHBOR}}),
    "sampled degrees": (("gcn",), {"sampler": {"degrees": "sampled", **NEIGHBOR}}),
    "saint": (("gcn",), {"sampler": {"kind": "saint", "roots": 8}}),
    "fastgcn": (("gcn",), {"sampler": {"kind": "fastgcn", "layer_size": 16}}),
    "ladies": (("gcn", "gat"), {"sampler": {"kind": "ladies", "layer_size": 16}}),
    "cluster": (("gcn",), {"sampler": {"kind": "cluster", "parts": 4}}),
    "shadow": (("gat",), {"sampler": {"kind": "shadow", "hop_neighbors": 2}}),
    "full graph": (
        ("gcn", "deepgcn", "gat", "edge-gat", "own layers", "own module"),
        {"sampler": {"kind": "full"}},
    ),
    "chunks": (("gcn", "gat", "own layers"), {"sampler": {"kind": "full"}, "fullgraph": {"chunks": 3}}),
    "two trainers": (("gcn", "gat"), {"devices": ["cpu:0", "cpu:1"]}),
    "several full": (("gcn", "gat"), {"sampler": {"kind": "full"}, "devices": ["cpu:0", "cpu:1"]}),
    "torch device": (("gcn", "gat"), {"devices": ["cuda:0"]}),
    "torch device, chunks": (
        ("gcn",),
        {"devices": ["cuda:0"], "sampler": {"kind": "full"}, "fullgraph": {"chunks": 3}},
    ),
    "opencl": (("gcn",), {"devices": ["opencl:0"]}),
    "opencl, full graph": (("gcn", "gat"), {"devices": ["opencl:0"], "sampler": {"kind": "full"}}),
    "opencl, chunks": (
        ("gcn", "gat"),
        {"devices": ["opencl:0"], "sampler": {"kind": "full"}, "fullgraph": {"chunks": 3}},
    ),
    "fpga-csim": (("gcn",), {"devices": ["fpga-csim:0"]}),
    "sampled evaluation": (("gcn", "own module"), {"evaluate": {"mode": "sampled", "every": 1}}),
}


@pytest.fixture
def torch_device(monkeypatch: pytest.MonkeyPatch) -> None:
    info = DeviceInfo(
        whole_graphs=True, kind="cuda", index=0, description="a double", memory_bytes=1 << 30,
        forms=("rows", "ids"),
    )  # fmt: skip
    monkeypatch.setattr(CudaDevice, "probe", lambda: [info])
    monkeypatch.setattr(CudaDevice, "open", lambda info, options: CudaDevice(info, options, FakeDriver()))


@pytest.mark.parametrize(
    ("path", "name"), [(path, name) for path, (names, _) in PATHS.items() for name in names]
)
def test_training_is_that_of_the_graph_without_self_loops(path: str, name: str, torch_device: None) -> None:
    for kind, device in (("opencl", OpenclDevice), ("fpga-csim", FpgaCsimDevice)):
        if path.startswith(kind) and not device.probe():
            pytest.skip(f"there is no {kind} here")
    graph = with_loops(features=2) if name == "edge-gat" else with_loops()
    sections = {"sampler": NEIGHBOR, "train": {"epochs": 2}, **PATHS[path][1]}
    if sections["sampler"].get("kind") not in ("full", "saint", "cluster"):
        sections["data"] = {"batch_size": 12}
    said: list[str] = []

    def hear(event: Any) -> None:
        if isinstance(event, Notice):
            said.append(event.text)

    results = [
        hyrt.train(each, module_of(name), emit=hear if each is graph else None, **sections)
        for each in (graph, removed(graph))
    ]
    named = type(module_of(name)).__name__ if name.startswith("own") else name
    wanted = f"with loops: 20 self loops removed, because {named} adds its own self-loop to each vertex"
    assert said.count(wanted) == 1
    assert results[0].metrics == results[1].metrics
    for mine, theirs in zip(*(result.model.state_dict().values() for result in results), strict=True):
        assert torch.equal(mine, theirs)


def test_commands_of_a_graph_with_self_loops_are_those_of_one_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = with_loops()
    for name, each in (("loops", graph), ("bare", removed(graph))):
        hyrt.save(each, tmp_path / f"{name}.npz")
        words = ("--model", "gcn", "train.epochs=2", "data.batch_size=16", "--name", name)
        run_here("run", "--data", f"{name}.npz", *words, cwd=tmp_path)
        assert ("20 self loops removed" in "".join(capsys.readouterr())) == (name == "loops")
        run_here("infer", f"runs/{name}", "-o", f"{name}.npy", cwd=tmp_path)
    # Data with self loops is scored by a run of data without, and the other way round.
    run_here("infer", "runs/bare", "--data", "loops.npz", "-o", "crossed.npy", cwd=tmp_path)
    scores = [np.load(tmp_path / f"{name}.npy") for name in ("loops", "bare", "crossed")]
    np.testing.assert_array_equal(scores[0], scores[1])
    np.testing.assert_array_equal(scores[0], scores[2])
    trained = hyrt.load_run(tmp_path / "runs" / "loops")
    np.testing.assert_array_equal(trained.scores(), scores[0])
    # The data is what it was.
    assert trained.graph.num_edges == graph.num_edges


def test_parts_of_a_run_that_goes_on_have_the_graph_without_self_loops() -> None:
    graph = with_loops()
    for kind, left_out in (("gcn", 20), ("graphsage", 0)):
        parts = build_run(config_of(kind), graph)
        assert parts.graph.num_edges == graph.num_edges - left_out
        assert parts.graph.num_loops_left_out == left_out


def test_sizes_are_those_of_the_graph_without_self_loops() -> None:
    graph = with_loops()
    for kind, same in (("gcn", True), ("graphsage", False)):
        config = config_of(kind)
        found, bare = (sampled_workload(config, each).at(1.0).edges for each in (graph, removed(graph)))
        assert (found == bare) is same, kind


# --- models of several kinds of layers


def test_layers_of_both_kinds_are_refused() -> None:
    model = Mine(SageLayer(8, C))
    said = (
        r"with loops has 20 self loops, which GcnLayer would replace, but SageLayer would treat like other "
        r"edges: use layers of one kind, or remove"
    )
    with pytest.raises(DataError, match=said):
        hyrt.train(with_loops(), model, train={"epochs": 1})
    assert hyrt.train(removed(with_loops()), model, train={"epochs": 1}).model


def test_a_module_of_the_users_says_whether_it_adds_self_loops() -> None:
    class Says(torch.nn.Module):
        adds_self_loops = True

    class Wraps(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Mine()

    graph = with_loops()
    assert drop_replaced_loops(graph, torch.nn.Linear(2, 2)) is graph
    for model in (Says(), Wraps()):
        found = drop_replaced_loops(graph, model)
        assert found.num_edges == graph.num_edges - 20
        assert found.num_loops_left_out == 20
        assert drop_replaced_loops(found, model) is found
        # Evaluations ask again and again.
        assert drop_replaced_loops(graph, model).topology is found.topology


def test_convolutions_of_pyg_and_dgl_get_what_they_do_not_add(monkeypatch: pytest.MonkeyPatch) -> None:
    nn = pytest.importorskip("torch_geometric.nn", reason="torch_geometric is not installed")
    graph, counts = with_loops(), {}
    made = {
        "GATConv": lambda: hyrt.from_pyg(nn.GATConv(F, 4, 2), nn.GATConv(8, C)),
        "no loops": lambda: hyrt.from_pyg(nn.GATConv(F, 8, add_self_loops=False), nn.SAGEConv(8, C)),
        "both": lambda: hyrt.from_pyg(nn.GATConv(F, 8), nn.SAGEConv(8, C)),
    }
    for name, make in made.items():
        counts[name] = drop_replaced_loops(graph, make()).num_loops_left_out
    monkeypatch.setitem(sys.modules, "dgl", stand_in())
    for adds in (True, False):
        heads = (Heads(into, out, 1, allow_zero_in_degree=not adds) for into, out in ((F, 8), (8, C)))
        model = hyrt.from_dgl(*heads, self_loops=adds)
        counts[f"DGL, {adds}"] = drop_replaced_loops(graph, model).num_loops_left_out
    assert counts == {"GATConv": 20, "no loops": 0, "both": 0, "DGL, True": 20, "DGL, False": 0}
    # Both of PyG's on all neighbours, one of which removes the self loops that the other counts.
    model = made["both"]().eval()
    with torch.no_grad(), Workers(1, "test") as workers:
        x, edges = features_of(graph), edge_index(graph)
        wanted = model.convs[1](model.convs[0](x, edges).relu(), edges)
        given = {"fanouts": [-1, -1], "batch_size": 9, "seed": 0, "plan": InputPlan("rows")}
        found = infer_sampled(model, graph, np.arange(V, dtype=np.int32), workers, **given)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
