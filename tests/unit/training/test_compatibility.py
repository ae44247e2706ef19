"""The feature compatibility tables in the documentation: every cell trains a step, or is refused."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dgl_stand_in import Heads, Mean, OfEdges, stand_in
from graphs import random_graph, with_values
from hetero_cases import small_typed
from hyrt_devices.cuda.device import CudaDevice
from hyrt_devices.fpga.csim_device import FpgaCsimDevice
from hyrt_devices.opencl import OpenclDevice
from in_process import refused as refused_command
from in_process import run_here
from unit.cuda.fake_driver import FakeDriver
from unit.distributed.ranks_in_threads import results_of
from unit.distributed.test_distributed_training import settings as settings_of_ranks
from unit.distributed.test_distributed_training import trained_on
from unit.distributed.test_full_graph_on_ranks import settings as settings_of_full_ranks
from unit.distributed.test_full_graph_on_ranks import trained_on as trained_full_on
from unit.distributed.test_hetero_ranks import trained_on as typed_on_ranks

import hyrt
from hyrt.config import build_config
from hyrt.device import DeviceInfo
from hyrt.distributed.strategies.registry import find_rank_problem
from hyrt.errors import HyrtError
from hyrt.graph.graph import Graph
from hyrt.nn.message_passing.layer import Edge, SagaLayer
from hyrt.report.trained_run import export_arguments
from hyrt.sampling.sampler_settings import SAMPLERS
from hyrt.training.open_graph import link_graph

DOCS = Path(__file__).parents[3] / "docs"
HEADING = "## Feature compatibility"
BARE = random_graph(60, 5, features=4)
WEIGHTED, FEATURED = with_values(BARE), with_values(BARE, 1)
RICH = replace(FEATURED, topology=replace(FEATURED.topology, edge_weights=None))
TYPED, TYPED_WEIGHTED = small_typed(), small_typed(weights=True)
OWN = {
    "saint": {"roots": 8},
    "fastgcn": {"layer_size": 16},
    "ladies": {"layer_size": 16},
    "cluster": {"parts": 4},
    "full": {},
    "shadow": {"hop_neighbors": 2},
}
"""Settings of kinds of samplers that have no fan-outs."""


@dataclass
class Cell:
    """What a check of a cell has found: how often something worked, and how often it was refused."""

    folder: Path
    worked: int = 0
    refusals: int = 0
    devices: list[str] = field(default_factory=lambda: ["cpu:0"])

    def trains(self, graph: Any, model: Any, **sections: Any) -> Any:
        """A run of one epoch, which has few steps."""
        result = hyrt.train(graph, described(model), **self._settings(sections))
        assert all(torch.isfinite(each).all() for each in result.model.parameters())
        self.worked += 1
        return result

    def refuses(self, words: str, graph: Any, model: Any, **sections: Any) -> None:
        with pytest.raises(HyrtError, match=words) as caught:
            hyrt.train(graph, described(model), **self._settings(sections))
        assert "\n" not in str(caught.value)
        self.refusals += 1

    def _settings(self, sections: dict[str, Any]) -> dict[str, Any]:
        given = {
            "train": {"epochs": 1},
            "balance": {"policy": "static", "predict": False},
            "evaluate": {"every": 0},
            "devices": self.devices,
            **sections,
        }
        kind = given.setdefault("sampler", {}).get("kind", "neighbor")
        if given.get("full_graph"):
            del given["sampler"]
        elif kind not in OWN:
            given["sampler"] = {"fanout": [3, 2], **given["sampler"]}
            given["data"] = {"batch_size": 32, **given.get("data", {})}
        return given


def described(model: Any) -> Any:
    """A model by its kind, with few columns."""
    if not isinstance(model, str):
        return model
    heads = {"heads": 2} if model in ("gat", "edge-gat", "rgat", "hgt") else {}
    return {"kind": model, "hidden": 8, "layers": 2, **heads}


A_MACHINE = ("--platform", "a100")
"""A machine that need not be measured."""
CHECKS: dict[tuple[str, str, str], Callable[[Cell], None]] = {}


def cell(page: str, row: str, *columns: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Enter the check of a row's cells; one of several columns is told which."""

    def enter(check: Callable[..., None]) -> Callable[..., None]:
        for column in columns:
            CHECKS[page, row, column] = check if len(columns) == 1 else _bound(check, column)
        return check

    return enter


def _bound(check: Callable[..., None], column: str) -> Callable[[Cell], None]:
    return lambda found: check(found, column)


@cache
def cells() -> dict[tuple[str, str, str], str]:
    """The texts of all cells, by page, row and column."""
    found = {}
    for page in ("edges", "heterogeneous", "links"):
        lines = (DOCS / f"{page}.md").read_text(encoding="utf-8").split(HEADING)[1].splitlines()
        rows = [
            [part.strip() for part in line.strip("|").split("|")] for line in lines if line.startswith("|")
        ]
        for row in rows[2:]:
            assert len(row) == len(rows[0]), row
            for column, text in zip(rows[0][1:], row[1:], strict=True):
                found[page, row[0], column] = text
    return found


def test_every_cell_has_a_check() -> None:
    assert set(CHECKS) == set(cells())


@pytest.mark.parametrize("place", CHECKS, ids=" · ".join)
def test_a_cell_holds(place: tuple[str, str, str], tmp_path: Path) -> None:
    found, text = Cell(tmp_path), cells()[place]
    CHECKS[place](found)
    assert bool(found.refusals) == bool(re.search(r"\brefused\b", text)), text
    assert bool(found.worked) == (not text.startswith("refused")), text


# --- docs/edges.md


class Bare(SagaLayer):
    """A layer of one's own that looks at rows alone."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.product = torch.nn.Linear(in_features, out_features)

    def apply_edge(self, edge: Edge) -> torch.Tensor:
        return self.product(edge.src)

    def apply_vertex(self, vertex: torch.Tensor, gathered: torch.Tensor) -> torch.Tensor:
        return gathered


class Shared(Bare):
    """One that reads the features of edges, in one loop."""

    edge_features = 1

    def apply_edge(self, edge: Edge) -> torch.Tensor:
        return super().apply_edge(edge) * edge.data


class WeightedSum(Bare):
    """One that reads the weights of edges."""

    def apply_edge(self, edge: Edge) -> torch.Tensor:
        return super().apply_edge(edge) * edge.weight


def of_column(column: str) -> tuple[Graph, str]:
    """A graph whose edges have what a column is of, and a model that reads it."""
    return (WEIGHTED, "gcn") if column == "weights" else (RICH, "gine")


def needs(device: Any) -> None:
    if not device.probe():
        pytest.skip(device.missing() or "there is no such device")


@cell("edges", "samplers", "weights", "features")
def samplers(found: Cell, column: str) -> None:
    graph, model = of_column(column)
    for kind in sorted(SAMPLERS.entries_by_name()):
        # One that draws by weights needs some.
        drawn = FEATURED if (kind, column) == ("weighted", "features") else graph
        found.trains(drawn, model, sampler={"kind": kind, **OWN.get(kind, {})})
    if column == "weights":
        found.refuses("remove sampler.degrees", graph, model, sampler={"degrees": "sampled"})


@cell("edges", "CPU, mini-batches", "weights", "features")
def cpu_batches(found: Cell, column: str) -> None:
    found.trains(*of_column(column))


@cell("edges", "CPU, full graph", "weights", "features")
def cpu_whole(found: Cell, column: str) -> None:
    found.trains(*of_column(column), full_graph=True)


@pytest.fixture(autouse=True)
def torch_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """`cuda:0` is the torch device over a double of its driver."""
    info = DeviceInfo(
        kind="cuda",
        index=0,
        description="a test's",
        memory_bytes=1 << 30,
        whole_graphs=True,
        forms=("rows", "quantized", "cached", "ids", "hetero"),
    )
    monkeypatch.setattr(CudaDevice, "probe", lambda: [info])
    monkeypatch.setattr(CudaDevice, "open", lambda info, options: CudaDevice(info, options, FakeDriver()))


@cell("edges", "torch devices (`cuda`, `mps`, `xpu`), mini-batches", "weights", "features")
def torch_batches(found: Cell, column: str) -> None:
    found.trains(*of_column(column), devices=["cuda:0"])


@cell("edges", "torch devices, full graph", "weights", "features")
def torch_whole(found: Cell, column: str) -> None:
    found.trains(*of_column(column), devices=["cuda:0"], full_graph=True)
    if column == "weights":
        in_chunks = {"devices": ["cuda:0"], "fullgraph": {"chunks": 2}, "full_graph": True}
        found.refuses("edge_weight.* in chunks", *of_column(column), **in_chunks)


@cell("edges", "`opencl`, mini-batches", "weights", "features")
def opencl_batches(found: Cell, column: str) -> None:
    opencl(found, column)


@cell("edges", "`opencl`, full graph", "weights", "features")
def opencl_whole(found: Cell, column: str) -> None:
    opencl(found, column, full_graph=True)
    if column == "weights":
        for kind in ("gcn", "graphsage", "gin"):
            model = {"kind": kind, "hidden": 8, "norm": "none"}
            for chunks in ({"chunks": 2}, {"device_memory": "1GiB"}, {"host_memory": "1MiB"}):
                settings = {"fullgraph": chunks, "full_graph": True}
                found.refuses("edge_weight.* in chunks", WEIGHTED, model, devices=["opencl:0"], **settings)


def opencl(found: Cell, column: str, **sections: Any) -> None:
    needs(OpenclDevice)
    if column == "weights":
        found.trains(WEIGHTED, "gcn", devices=["opencl:0"], **sections)
        return
    found.trains(RICH, hyrt.nn.stack(Shared(4, 8), Shared(8, 3)), devices=["opencl:0"], **sections)
    found.refuses("gine|edge-gat|opencl", RICH, "gine", devices=["opencl:0"], **sections)


@cell("edges", "`fpga`, `fpga-csim`", "weights", "features")
def fpga(found: Cell, column: str) -> None:
    needs(FpgaCsimDevice)
    if column == "weights":
        found.trains(WEIGHTED, "gcn", devices=["fpga-csim:0"])
    else:
        found.refuses("fpga-csim:0", RICH, "gine", devices=["fpga-csim:0"])


@cell("edges", "several ranks, mini-batches and full graph", "weights", "features")
def ranks(found: Cell, column: str) -> None:
    graph, kind = of_column(column)
    homes = np.arange(60) % 2
    given = settings_of_ranks(kind, train={"epochs": 1}, evaluate={"every": 0})
    for split in (False, True):
        results_of(2, lambda each, split=split: trained_on(each, graph, homes, given, split=split))
    whole = settings_of_full_ranks({"kind": kind}, train={"epochs": 1})
    for split in (False, True):
        results_of(2, lambda each, split=split: trained_full_on(each, graph, homes, whole, split=split))
    found.worked += 4


@cell("edges", "evaluation and `hyrt infer`", "weights", "features")
def evaluation(found: Cell, column: str) -> None:
    for mode in ("full", "sampled"):
        result = found.trains(*of_column(column), evaluate={"every": 1, "mode": mode})
        assert 0 <= result.metrics["test"]["accuracy"] <= 1
    hyrt.save(of_column(column)[0], found.folder / "g.npz")
    model = of_column(column)[1]
    command(found, "run", "--data", "g.npz", "--model", model, "train.epochs=1", "--name", "r", "--quiet")
    command(found, "infer", "runs/r", "-o", "scores.npy")
    assert np.load(found.folder / "scores.npy").shape == (60, 3)


def command(found: Cell, *words: str) -> None:
    run_here(*words, cwd=found.folder)
    found.worked += 1


@cell("edges", "`hyrt export`", "weights", "features")
def export(found: Cell, column: str) -> None:
    graph, kind = of_column(column)
    exports(
        found,
        found.trains(graph, kind).model,
        told=None if column == "weights" else "gine cannot be exported as a plain",
    )
    if column == "features":
        # It was trained, and is not exported.
        found.worked = 0


def exports(found: Cell, model: Any, told: str | None) -> None:
    if told is None:
        assert export_arguments(model.architecture)["kind"]
        found.worked += 1
        return
    with pytest.raises(HyrtError, match=told):
        export_arguments(model.architecture)
    found.refusals += 1


@cell("edges", "PyG's convolutions (`hyrt.from_pyg`)", "weights", "features")
def convolutions(found: Cell, column: str) -> None:
    pyg = pytest.importorskip("torch_geometric.nn")
    if column == "weights":
        found.trains(WEIGHTED, hyrt.from_pyg(pyg.GraphConv(4, 8), pyg.GraphConv(8, 3)))
        found.refuses("edge_weight", WEIGHTED, hyrt.from_pyg(pyg.SAGEConv(4, 8), pyg.SAGEConv(8, 3)))
    else:
        made = [pyg.GATv2Conv(*ends, edge_dim=1, add_self_loops=False) for ends in ((4, 8), (8, 3))]
        found.trains(RICH, hyrt.from_pyg(*made))
        found.refuses("edge_features", RICH, hyrt.from_pyg(pyg.SAGEConv(4, 8), pyg.SAGEConv(8, 3)))


@cell("edges", "DGL's convolutions (`hyrt.from_dgl`)", "weights", "features")
def convolutions_of_dgl(found: Cell, column: str) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "dgl", stand_in())
        means = hyrt.from_dgl(Mean(4, 8), Mean(8, 3))
        if column == "weights":
            found.trains(WEIGHTED, means)
            heads = hyrt.from_dgl(Heads(4, 8, 1), Heads(8, 3, 1), self_loops=True)
            found.refuses("edge_weight", WEIGHTED, heads)
        else:
            found.trains(RICH, hyrt.from_dgl(OfEdges(4, 8, 1), OfEdges(8, 3, 1)))
            found.refuses("edge_features", RICH, means)


@cell("edges", "heterogeneous graphs", "weights", "features")
def typed_edges(found: Cell, column: str) -> None:
    weights(found) if column == "weights" else features(found)


# --- docs/heterogeneous.md

ON = "heterogeneous graphs"
KINDS = ("rgcn", "rsage", "rgat", "hgt", "ggnn")


@cell("heterogeneous", "one or several `cpu` trainers", ON)
def typed_cpu(found: Cell) -> None:
    for kind in KINDS:
        found.trains(TYPED, kind)
    found.trains(TYPED, "rgcn", devices=["cpu:0", "cpu:1"])


@cell("heterogeneous", "torch devices (`cuda`, `mps`, `xpu`), alone or together with `cpu`", ON)
def typed_torch(found: Cell) -> None:
    found.trains(TYPED, "rgcn", devices=["cuda:0"])
    found.trains(TYPED, "rgcn", devices=["cpu:0", "cuda:0"])
    found.refuses("cuda:0", TYPED, "rgcn", devices=["cuda:0"], full_graph=True)
    found.refuses("data.cache", TYPED, "rgcn", devices=["cuda:0"], data={"batch_size": 32, "cache": 0.5})


@cell("heterogeneous", "`opencl`, `fpga`, `fpga-csim`", ON)
def typed_kernels(found: Cell) -> None:
    needs(OpenclDevice)
    for device in ["opencl:0", *(["fpga-csim:0"] if FpgaCsimDevice.probe() else [])]:
        found.refuses(f"{device} does not support heterogeneous graphs", TYPED, "rgcn", devices=[device])


@cell("heterogeneous", "evaluation, sampled and full; `hyrt eval`, `hyrt infer`", ON)
def typed_evaluation(found: Cell) -> None:
    for mode in ("full", "sampled"):
        found.trains(TYPED, "rgcn", evaluate={"every": 1, "mode": mode})
    typed_run(found)
    command(found, "eval", "runs/r")
    command(found, "infer", "runs/r", "-o", "scores.npy")
    assert np.load(found.folder / "scores.npy").shape == (205, 4)


def typed_run(found: Cell, *words: str) -> None:
    hyrt.save(TYPED, found.folder / "g.npz")
    given = ("--data", "g.npz", "--model", "rgcn", "model.hidden=8", "train.epochs=1", "--name", "r")
    command(found, "run", *given, "--quiet", "data.batch_size=32", *words)


@cell("heterogeneous", "multiple machines (`torchrun`)", ON)
def typed_ranks(found: Cell) -> None:
    given = {
        "model": {"kind": "rgcn", "hidden": 8},
        "train": {"epochs": 1},
        "data": {"batch_size": 32},
        "balance": {"policy": "static", "predict": False},
        "devices": ["cpu:0"],
    }
    for more in ({}, {"sampler": {"kind": "full"}, "data": {}}):
        results_of(2, lambda each, more=more: typed_on_ranks(each, {**given, **more}))
        found.worked += 1
    with pytest.raises(HyrtError, match=r"does not support distributed\.strategy=p3"):
        results_of(2, lambda each: typed_on_ranks(each, {**given, "distributed": {"strategy": "p3"}}))
    found.refusals += 1


@cell("heterogeneous", "checkpoints and `--resume`", ON)
def typed_checkpoints(found: Cell) -> None:
    typed_run(found)
    command(found, "run", "--resume", "runs/r", "train.epochs=2", "--quiet")


@cell("heterogeneous", "`train.objective=links`", ON)
def typed_links(found: Cell) -> None:
    links_of_a_relation(found)


@cell("heterogeneous", "edge weights", ON)
def weights(found: Cell) -> None:
    for kind in KINDS:
        if kind in ("rgcn", "rsage", "rgat"):
            found.trains(TYPED_WEIGHTED, kind)
        else:
            found.refuses("no layer of the model uses the edge weights", TYPED_WEIGHTED, kind)
    own = hyrt.nn.hetero_stack(TYPED_WEIGHTED, OfWeights(4, 4), OfWeights(4, 4))
    found.trains(TYPED_WEIGHTED, own)


class OfTypes(Bare):
    """A layer of one's own that tells relations apart."""

    edge_types = 5

    def apply_edge(self, edge: Edge) -> torch.Tensor:
        return super().apply_edge(edge) * torch.where(edge.type == 0, 0.5, 1.0)


class OfWeights(OfTypes, WeightedSum):
    """One that reads weights, too."""


class OfFeatures(OfTypes, Shared):
    """One that reads features of edges, too."""


@cell("heterogeneous", "edge features", ON)
def features(found: Cell) -> None:
    rows = np.ones((TYPED.num_edges, 1), np.float32)
    graph = replace(TYPED, topology=replace(TYPED.topology, edge_features=rows))
    found.trains(graph, hyrt.nn.hetero_stack(graph, OfFeatures(4, 4), OfFeatures(4, 4)))
    found.trains(graph, "rgat")
    for kind in set(KINDS) - {"rgat"}:
        found.refuses("no layer of the model uses the edge features", graph, kind)


@cell("heterogeneous", "`hyrt partition`", ON)
def typed_partition(found: Cell) -> None:
    hyrt.save(TYPED, found.folder / "g.npz")
    words = refused_command("partition", "--data", "g.npz", "--parts", "2", "-o", "parts", cwd=found.folder)
    assert "is heterogeneous, which hyrt partition does not support" in words
    found.refusals += 1


@cell("heterogeneous", "`hyrt predict`", ON)
def typed_predict(found: Cell) -> None:
    hyrt.save(TYPED, found.folder / "g.npz")
    drawn = "synthetic:hetero,vertices=400,edges=2000"
    for data, kind in (*(("g.npz", kind) for kind in KINDS), (drawn, "rgcn"), (drawn, "ggnn")):
        given = ("predict", *A_MACHINE, "--data", data, "--model", kind)
        if kind == "ggnn":
            words = refused_command(*given, cwd=found.folder)
            assert "model.kind=ggnn can be predicted only for this machine" in words
            found.refusals += 1
        else:
            command(found, *given)


@cell("heterogeneous", "`hyrt export`", ON)
def typed_export(found: Cell) -> None:
    for kind in KINDS:
        told = (
            None
            if kind in ("rgcn", "rsage", "rgat", "hgt")
            else f"model.kind={kind} cannot be exported as a plain PyTorch"
        )
        exports(found, found.trains(TYPED, kind).model, told)


@cell("heterogeneous", "custom torch modules", ON)
def typed_module(found: Cell) -> None:
    found.trains(TYPED, hyrt.nn.hetero_stack(TYPED, OfTypes(4, 4), OfTypes(4, 4)))
    found.refuses("Linear does not support heterogeneous graphs", TYPED, torch.nn.Linear(3, 2))


# --- docs/links.md

LINKS = {"train": {"objective": "links", "epochs": 1}}


@cell("links", "`sampler.kind=neighbor`", "links")
def links_of_batches(found: Cell) -> None:
    for kind in ("graphsage", "gat"):
        found.trains(BARE, kind, **LINKS, devices=["cpu:0", "cpu:1"])
    found.trains(BARE, "gcn", **LINKS, devices=["cuda:0"], links={"decoder": "mlp"})
    if OpenclDevice.probe():
        found.trains(BARE, "gcn", **LINKS, devices=["opencl:0"])


@cell("links", "[heterogeneous graphs](#links-in-heterogeneous-graphs)", "links")
def links_of_a_relation(found: Cell) -> None:
    of_relation = {**LINKS, "links": {"relation": "writes"}}
    found.trains(TYPED, "rgcn", **of_relation)
    found.trains(TYPED, "rgcn", **of_relation, full_graph=True)
    given = {
        "model": {"kind": "rgcn", "hidden": 8},
        "data": {"batch_size": 64},
        "balance": {"policy": "static", "predict": False},
        "devices": ["cpu:0"],
        **of_relation,
    }
    graph = link_graph(build_config(given), TYPED)
    results_of(2, lambda each: typed_on_ranks(each, given, graph))


@cell("links", "`--full-graph`", "links")
def links_of_the_whole(found: Cell) -> None:
    found.trains(BARE, "gcn", **LINKS, full_graph=True)
    found.refuses(
        "does not support --full-graph on",
        BARE,
        "gcn",
        **LINKS,
        full_graph=True,
        devices=["cpu:0", "cpu:1"],
    )


@cell("links", "multiple machines (`torchrun`)", "links")
def links_of_ranks(found: Cell) -> None:
    for strategy in ("home", "model-centric"):
        given = settings_of_ranks("graphsage", **LINKS, distributed={"strategy": strategy})
        graph = link_graph(build_config(given), BARE)
        results_of(2, lambda each, g=graph, s=given: trained_on(each, g, np.arange(60) % 2, s))
        found.worked += 1
    for words, more in (
        ("set distributed.strategy to model-centric or home", {"distributed": {"strategy": "p3"}}),
        ("distributed.cache=0.5 does not support", {"distributed": {"cache": 0.5}}),
        ("does not support --full-graph on several ranks", {"sampler": {"kind": "full"}, "data": {}}),
    ):
        given = {**settings_of_ranks("graphsage", **LINKS), **more}
        try:
            problem = find_rank_problem(build_config(given))
        except HyrtError as error:
            problem = str(error)
        assert words in problem
        found.refusals += 1


@cell("links", "`hyrt predict`", "links")
def links_predicted(found: Cell) -> None:
    given = ("predict", *A_MACHINE, "--data", "synthetic:tiny", "train.objective=links")
    command(found, *given)
    command(found, *given, "--full-graph")
    command(found, *given, "--ranks", "2")


@cell("links", "custom modules", "links")
def links_of_modules(found: Cell) -> None:
    own = hyrt.nn.stack(Bare(4, 8), Bare(8, 6))
    found.trains(BARE, own, **LINKS, links={"width": 6})
    found.refuses("links.decoder=mlp has trainable weights", BARE, own, **LINKS, links={"decoder": "mlp"})


@cell("links", "`hyrt export`", "links")
def links_exported(found: Cell) -> None:
    words = ("--data", "synthetic:tiny", "train.objective=links", "train.epochs=1", "--quiet")
    command(found, "run", *words, "--name", "r")
    command(found, "export", "runs/r", "-o", "out")
    command(found, "run", *words, "--name", "s", "links.decoder=mlp")
    told = refused_command("export", "runs/s", "-o", "other", cwd=found.folder)
    assert "links.decoder=mlp cannot be exported as a plain PyTorch module" in told
    found.refusals += 1
