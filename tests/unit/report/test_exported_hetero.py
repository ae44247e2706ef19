"""What `hyrt export` writes of a model for heterogeneous graphs computes hyrt's scores, without hyrt."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hetero_cases import COUNTS, shape_of_small, small_typed

from hyrt.config import build_config
from hyrt.graph.graph import Graph
from hyrt.graph.hetero.dataset import get_edge_lists
from hyrt.graph.run_schema import build_run_schema
from hyrt.inference.infer import infer_layerwise
from hyrt.nn.architecture import Architecture
from hyrt.nn.hetero.hetero_gnn import HeteroGNN
from hyrt.nn.hetero.inputs import find_embeddings
from hyrt.report.plain_hetero_gnn import PlainHeteroGNN
from hyrt.report.trained_run import TrainedRun, export_arguments, write_export
from hyrt.runtime.workers import Workers

PLAIN, WEIGHTED = small_typed(), small_typed(weights=True)


def model_of(graph: Graph, **settings: Any) -> HeteroGNN:
    torch.manual_seed(1)
    widths = {"in_features": 8, "hidden": 8, "num_classes": 4, "heads": 2}
    model = HeteroGNN(Architecture(**{**widths, **settings}, shape=shape_of_small(graph)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return model.eval()


def inputs_of(graph: Graph) -> tuple[dict[str, Any], dict[Any, Any], dict[Any, Any] | None]:
    """Rows, edges and weights as PyG has them."""
    types, topology = graph.types, graph.topology
    assert types is not None
    rows = {
        name: torch.from_numpy(np.asarray(table.values))  # type: ignore[union-attr]
        for name, table in zip(types.vertex_types, graph.features.tables, strict=True)  # type: ignore[attr-defined]
        if table is not None
    }
    edges, weights = {}, {}
    for number, (relation, ends) in enumerate(get_edge_lists(graph).items()):
        triple = (relation.source, relation.name, relation.destination)
        edges[triple] = torch.from_numpy(np.stack(ends).astype(np.int64))
        if topology.edge_weights is not None:
            # Both are by destination, then by source.
            weights[triple] = torch.from_numpy(topology.edge_weights[topology.edge_types == number])
    return rows, edges, weights or None


def scores_of(model: HeteroGNN, graph: Graph) -> dict[str, np.ndarray[Any, Any]]:
    with Workers(1, "test") as workers:
        scores = infer_layerwise(model, graph, np.arange(graph.num_vertices), workers, memory_bytes=1 << 26)
    return dict(zip(COUNTS, np.split(scores, np.cumsum(list(COUNTS.values()))[:-1]), strict=True))


@pytest.mark.parametrize(
    ("graph", "settings"),
    [
        (WEIGHTED, {"kind": "rgcn"}),
        (PLAIN, {"kind": "rgcn", "options": {"bases": 2}, "norm": "layer", "residual": True, "layers": 3}),
        (PLAIN, {"kind": "rgcn", "options": {"blocks": 4}, "num_classes": 3}),
        (WEIGHTED, {"kind": "rsage"}),
        (PLAIN, {"kind": "rgat"}),
        (WEIGHTED, {"kind": "rgat", "options": {"edge_features": 1}}),
        (PLAIN, {"kind": "hgt"}),
        (PLAIN, {"kind": "hgt", "num_classes": 8, "layers": 3}),
    ],
    ids=["rgcn", "bases", "blocks", "rsage", "rgat", "rgat of edges", "hgt", "gates"],
)
def test_the_plain_module_has_hyrts_parameters_and_scores(graph: Graph, settings: dict[str, Any]) -> None:
    model = model_of(graph, **settings)
    plain = PlainHeteroGNN(**export_arguments(model.architecture))
    plain.load_state_dict(model.state_dict())
    rows, edges, weights = inputs_of(graph)
    if plain.edge_features:
        assert weights is not None
        found = plain(rows, edges, edge_attr={triple: each[:, None] for triple, each in weights.items()})
    else:
        found = plain(rows, edges, weights)
    for name, wanted in scores_of(model, graph).items():
        np.testing.assert_allclose(found[name].detach().numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_the_folder_works_without_hyrt(tmp_path: Path) -> None:
    model = model_of(PLAIN, kind="rgcn")
    assert find_embeddings(model)
    config = build_config({"model": {"kind": "rgcn"}})
    trained = TrainedRun(
        model=model,
        config=config,
        metrics={},
        graph=PLAIN,
        weights="step 3",
        schema=build_run_schema(PLAIN),
        scratch=None,
    )
    write_export(trained, tmp_path / "out")
    torch.save(inputs_of(PLAIN)[:2], tmp_path / "given.pt")
    code = (
        "import sys; sys.modules['hyrt'] = None\n"
        "import torch; from model import load\n"
        "torch.save(load('.')(*torch.load('../given.pt'))['paper'], '../scores.pt')\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "out", check=True)
    found = torch.load(tmp_path / "scores.pt").detach().numpy()
    np.testing.assert_allclose(found, scores_of(model, PLAIN)["paper"], rtol=1e-4, atol=1e-5)
