"""DeepGCN and GNN-FiLM as deep as their papers' use has them, beside dense float64 matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from block_cases import awkward_graph, sampled, values
from closeness import assert_close
from dense_reference import layer_norm, parameters_of
from kind_formulas import film, film_scores
from model_cases import direction_of, model_of, ours, reference

from hyrt.config import build_config
from hyrt.nn.architecture import Architecture
from hyrt.nn.layer import get_model_inputs
from hyrt.nn.model import GNN

GRAPH = awkward_graph()
SOME = [5, 3, 70, 11, 12, 0, 41, 40, 88, 19]


@pytest.mark.parametrize("norm", ["layer", "none"])
@pytest.mark.parametrize("fanout", [-1, 2], ids=["all neighbours", "sampled"])
def test_deepgcn_equals_the_dense_reference(fanout: int, norm: str) -> None:
    batch = sampled(GRAPH, SOME, [fanout] * 7)
    x = torch.from_numpy(values(GRAPH)[batch.blocks[0].sources]).double().requires_grad_()
    # Widths that are equal, so that the first layer could add its input, too, but does not.
    model = model_of("deepgcn", GRAPH.num_features, 7, hidden=10, norm=norm, residual=True)
    assert not [name for name, _ in model.named_parameters() if "shortcut" in name]
    wanted = reference("deepgcn", model, batch.blocks, x)
    assert_close(ours(model, batch.blocks, x), wanted, 1e-12)
    # The first layer alone reads the features, so that they may be aggregated while they are loaded.
    assert get_model_inputs(model).aggregation is not None


def test_gnn_film_of_ten_layers_equals_the_dense_formula() -> None:
    batch = sampled(GRAPH, SOME, [2] * 10)
    x = torch.from_numpy(values(GRAPH)[batch.blocks[0].sources]).requires_grad_()
    torch.manual_seed(4)
    model = GNN(
        Architecture(
            kind="gnn-film", in_features=10, hidden=10, num_classes=4, layers=10, norm="layer", residual=True
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():  # Some begin at zero.
            parameter.add_(0.05 * torch.randn(parameter.shape))
    found = ours(model, batch.blocks, x)
    exact = x.detach().double().requires_grad_()
    p, h = parameters_of(model), exact
    for i, block in enumerate(batch.blocks):
        counts = torch.zeros(block.num_dst, block.num_src, dtype=torch.float64)
        drawn = np.diff(block.indptr)
        rows = torch.from_numpy(np.repeat(np.arange(block.num_dst), drawn))
        times = torch.from_numpy((block.degrees / np.maximum(drawn, 1)).astype(np.float64))[rows]
        counts.index_put_((rows, torch.from_numpy(block.columns).long()), times, accumulate=True)
        mine = {n.removeprefix(f"layers.{i}."): each for n, each in p.items() if n.startswith(f"layers.{i}.")}
        own = h[: block.num_dst]
        if i == 9:
            h = film_scores(mine, own, h, counts)
        else:
            out = layer_norm(film(mine, own, h, counts), p[f"norms.{i}.weight"], p[f"norms.{i}.bias"]).relu()
            h = out + own if i else out
    h.backward(direction_of(h))
    gradients = {name: each.grad for name, each in [*p.items(), ("x", exact)]}
    assert all(each is not None for each in gradients.values())
    assert_close(found, {"scores": h.detach()} | gradients, 1e-4)  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "layers"), [("deepgcn", 7), ("gnn-film", 10)])
def test_deep_kinds_are_as_deep_as_in_their_papers_use(kind: str, layers: int) -> None:
    config = build_config({"model": {"kind": kind}})
    assert (config.model.layers, config.model.residual, config.model.norm) == (layers, True, "layer")
    assert config.fanouts == [25, 10, 10, 10, *[2] * (layers - 4)]
    assert build_config({"model": {"kind": kind, "layers": 2}}).fanouts == [25, 10]
