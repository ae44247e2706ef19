"""What `hyrt export` writes computes the scores that hyrt computes, in an interpreter that has no hyrt."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graphs import random_graph, with_values
from in_process import refused, run_here

from hyrt.config import build_config
from hyrt.errors import UnsupportedModelError
from hyrt.graph.graph import Graph
from hyrt.graph.run_schema import build_run_schema
from hyrt.inference.infer import infer_layerwise
from hyrt.nn.architecture import Architecture
from hyrt.nn.model import GNN
from hyrt.report.plain_gnn import PlainGNN
from hyrt.report.trained_run import TrainedRun, export_arguments, write_export
from hyrt.runtime.workers import Workers

GRAPH = random_graph(70, features=9, symmetric=False)
EDGES = np.stack(
    [GRAPH.topology.indices.astype(np.int64), np.repeat(np.arange(70), np.diff(GRAPH.topology.indptr))]
)
X = GRAPH.features.values  # type: ignore[attr-defined]


def model_of(**settings: Any) -> GNN:
    torch.manual_seed(1)
    widths = {"in_features": 9, "hidden": 8, "num_classes": 3}
    model = GNN(Architecture(**{**widths, **settings}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return model.eval()


def scores_of(model: GNN, graph: Graph = GRAPH) -> np.ndarray:
    with Workers(1, "test") as workers:
        return infer_layerwise(model, graph, np.arange(70), workers, memory_bytes=1 << 26)


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "gcn", "dropout": 0.5},
        {"kind": "gcn", "layers": 3, "norm": "layer", "residual": True},
        {"kind": "graphsage"},
        {"kind": "graphsage", "aggregate": "sum", "layers": 1},
        {"kind": "graphsage", "aggregate": "max", "residual": True},
        {"kind": "gin"},
        {"kind": "gin", "norm": "layer", "layers": 3},
        {"kind": "gat", "heads": 2, "attention_dropout": 0.6},
        {"kind": "gat", "heads": 4, "norm": "layer", "residual": True, "layers": 3},
    ],
    ids=lambda settings: " ".join(map(str, settings.values())),
)
def test_the_plain_module_has_hyrts_parameters_and_scores(settings: dict[str, Any]) -> None:
    model = model_of(**settings)
    plain = PlainGNN(**export_arguments(model.architecture))
    plain.load_state_dict(model.state_dict())
    found = plain(torch.from_numpy(X), torch.from_numpy(EDGES))
    np.testing.assert_allclose(found.detach().numpy(), scores_of(model), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["gcn", "graphsage", "gin"])
def test_the_plain_module_takes_weights_of_edges(kind: str) -> None:
    model, graph = model_of(kind=kind), with_values(GRAPH)
    plain = PlainGNN(**export_arguments(model.architecture))
    plain.load_state_dict(model.state_dict())
    weights = torch.from_numpy(graph.topology.edge_weights)
    found = plain(torch.from_numpy(X), torch.from_numpy(EDGES), weights)
    np.testing.assert_allclose(found.detach().numpy(), scores_of(model, graph), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    "settings",
    [{"kind": "gcn"}, {"kind": "graphsage", "residual": True}, {"kind": "gin"}, {"kind": "gat", "heads": 2}],
    ids=lambda settings: settings["kind"],
)
def test_torch_exports_the_plain_module_for_any_number_of_vertices(settings: dict[str, Any]) -> None:
    model = model_of(**settings)
    plain = PlainGNN(**export_arguments(model.architecture)).eval()
    plain.load_state_dict(model.state_dict())
    random = torch.Generator().manual_seed(0)
    size = torch.export.Dim
    program = torch.export.export(
        plain,
        (torch.randn(20, 9, generator=random), torch.randint(0, 20, (2, 60), generator=random)),
        dynamic_shapes={"x": {0: size("V")}, "edge_index": {1: size("E")}},
    )
    found = program.module()(torch.from_numpy(X), torch.from_numpy(EDGES))
    np.testing.assert_allclose(found.detach().numpy(), scores_of(model), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["gcn", "graphsage", "gin", "gat"])
def test_onnx_has_the_scores_for_any_number_of_vertices(kind: str, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    reference = pytest.importorskip("onnx.reference")
    model = model_of(kind=kind)
    plain = PlainGNN(**export_arguments(model.architecture)).eval()
    plain.load_state_dict(model.state_dict())
    random, size = torch.Generator().manual_seed(0), torch.export.Dim
    torch.onnx.export(
        plain,
        (torch.randn(20, 9, generator=random), torch.randint(0, 20, (2, 60), generator=random)),
        tmp_path / "model.onnx",
        dynamo=True,
        verbose=False,
        dynamic_shapes={"x": {0: size("V")}, "edge_index": {1: size("E")}},
    )
    session = reference.ReferenceEvaluator(onnx.load(tmp_path / "model.onnx"))
    (found,) = session.run(None, {"x": X, "edge_index": EDGES})
    np.testing.assert_allclose(found, scores_of(model), rtol=1e-5, atol=1e-5)


def test_the_folder_works_without_hyrt(tmp_path: Path) -> None:
    model = model_of(kind="gat", heads=2)
    trained = TrainedRun(
        model=model,
        config=build_config({}),
        metrics={},
        graph=GRAPH,
        weights="step 3",
        schema=build_run_schema(GRAPH),
        scratch=None,
    )
    assert not write_export(trained, tmp_path / "out")
    facts = json.loads((tmp_path / "out" / "arguments.json").read_text())
    assert (facts["labels"], facts["weights"], facts["model"]["heads"]) == ("classes", "step 3", 2)
    np.savez(tmp_path / "given.npz", x=X, edges=EDGES)
    code = (
        "import sys; sys.modules['hyrt'] = None\n"
        "import numpy, torch; from model import load\n"
        "given = numpy.load('../given.npz')\n"
        "found = load('.')(*(torch.from_numpy(given[key]) for key in ('x', 'edges')))\n"
        "numpy.save('../scores.npy', found.detach().numpy())\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "out", check=True)
    np.testing.assert_allclose(np.load(tmp_path / "scores.npy"), scores_of(model), rtol=1e-5, atol=1e-5)


def test_what_cannot_be_exported_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedModelError,
        match=r"model.kind=ggnn cannot be exported as a plain PyTorch module: .* gat, gcn",
    ):
        export_arguments(Architecture(kind="ggnn", in_features=2, num_classes=2))
    (tmp_path / "there").mkdir()
    assert "already exists" in refused("export", "runs/x", "-o", "there", cwd=tmp_path)
    told = refused("export", "runs/x", "-o", "there", "--force", cwd=tmp_path)
    assert "--force replaces only the output of hyrt export" in told


def test_the_command_writes_what_a_run_has_learned(tmp_path: Path) -> None:
    run_here(
        *("run", "--data", "synthetic:tiny", "data.batch_size=256", "train.epochs=1", "--name", "r"),
        *("--quiet", "balance.predict=false"),
        cwd=tmp_path,
    )
    run_here("export", "runs/r", "-o", "out", cwd=tmp_path)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "model.py",
        "arguments.json",
        "weights.safetensors",
    }
    metrics = json.loads((tmp_path / "out" / "arguments.json").read_text())["metrics"]
    assert metrics == json.loads((tmp_path / "runs" / "r" / "summary.json").read_text())["metrics"]
    run_here("export", "runs/r", "-o", "out", "--force", cwd=tmp_path)
