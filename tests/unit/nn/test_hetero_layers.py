"""The layers of relations against dense float64 ones: values and all gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hetero_cases import dense_means, dense_relations, shape_of_small, small_batch, small_typed, types_of
from torch.nn import functional

from hyrt.graph.graph import Graph
from hyrt.nn.architecture import Architecture
from hyrt.nn.hetero import relation_sums
from hyrt.nn.hetero.hetero_gnn import HeteroGNN
from hyrt.nn.hetero.inputs import find_embeddings, take_sparse_gradients
from hyrt.nn.hetero.layers import HgtLayer, RgatLayer
from hyrt.runtime.workers import Workers, use_workers
from hyrt.sampling.block import Block

HIDDEN = 8
Values = dict[str, torch.Tensor]


def relation_weights(p: Values, layer: str, num: int) -> torch.Tensor:
    weight = p[f"{layer}.weight"]
    if f"{layer}.coefficients" in p:
        return torch.stack(
            [sum(c * w for c, w in zip(row, weight, strict=False)) for row in p[f"{layer}.coefficients"]]
        )
    if weight.ndim == 4:
        return torch.stack([torch.block_diag(*blocks) for blocks in weight])
    return weight


def rgcn(p: Values, layer: str, means: torch.Tensor, x: torch.Tensor, kinds: Any, heads: int) -> torch.Tensor:
    weights = relation_weights(p, layer, len(means))
    out = x[: means.shape[1]] @ p[f"{layer}.own"].T + p[f"{layer}.bias"]
    for mean, weight in zip(means, weights, strict=False):
        out = out + mean @ x @ weight.T
    return out


def rsage(
    p: Values, layer: str, means: torch.Tensor, x: torch.Tensor, kinds: Any, heads: int
) -> torch.Tensor:
    own = torch.stack(
        [p[f"{layer}.own"][t] @ row for t, row in zip(kinds, x[: means.shape[1]], strict=False)]
    )
    for mean, weight in zip(means, p[f"{layer}.weight"], strict=False):
        own = own + mean @ x @ weight.T
    return own + p[f"{layer}.bias"]


def softmax_rows(scores: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Softmax over the edges that there are, each as often as it is there."""
    top = torch.where(count > 0, scores, -torch.inf).amax(1, keepdim=True)
    weight = count * (scores - torch.where(top.isinf(), 0, top)).exp()
    return weight / weight.sum(1, keepdim=True).clamp(min=1e-300)


def rgat(
    p: Values,
    layer: str,
    counts: torch.Tensor,
    x: torch.Tensor,
    kinds: Any,
    heads: int,
    features: torch.Tensor | None = None,
) -> torch.Tensor:
    weights, n = p[f"{layer}.weight"], counts.shape[1]
    per_head = []
    for h in range(heads):
        total = 0
        for r, count in enumerate(counts):
            z = x @ weights[r, h].T
            scores = (z[:n] @ p[f"{layer}.destination"][r, h])[:, None] + (z @ p[f"{layer}.source"][r, h])[
                None
            ]
            if features is not None:
                scores = scores + features[r] @ p[f"{layer}.edge"][r, h]
            total = total + softmax_rows(functional.leaky_relu(scores, 0.2), count) @ z
        per_head.append(total)
    own = x[:n] @ p[f"{layer}.own"].T + p[f"{layer}.bias"]
    together = torch.stack(per_head).mean(0) if layer == "layers.1" else torch.cat(per_head, 1)
    return own + together


def hgt(p: Values, layer: str, counts: torch.Tensor, x: torch.Tensor, kinds: Any, heads: int) -> torch.Tensor:
    n = counts.shape[1]

    def typed(name: str, rows: torch.Tensor) -> torch.Tensor:
        return torch.stack(
            [
                p[f"{layer}.{name}"][t] @ row + p[f"{layer}.{name}_bias"][t]
                for t, row in zip(kinds, rows, strict=False)
            ]
        )

    keys, values, queries = typed("key", x), typed("value", x), typed("query", x[:n])
    width = keys.shape[1] // heads
    gathered = []
    for h in range(heads):
        part = slice(h * width, (h + 1) * width)
        scores = [
            (queries[:, part] @ p[f"{layer}.attention"][r, h].T @ keys[:, part].T)
            * (p[f"{layer}.prior"][r, h] / width**0.5)
            for r in range(len(counts))
        ]
        wide, often = torch.cat(scores, 1), torch.cat(list(counts), 1)
        alpha = softmax_rows(wide, often).split(counts.shape[2], 1)
        gathered.append(
            sum(alpha[r] @ values[:, part] @ p[f"{layer}.message"][r, h] for r in range(len(counts)))
        )
    out = typed("result", functional.gelu(torch.cat(gathered, 1)))
    if f"{layer}.gate" in p:
        gate = torch.stack([p[f"{layer}.gate"][t].sigmoid() for t in kinds[:n]])[:, None]
        out = gate * out + (1 - gate) * x[:n]
    return out


def dense_features(block: Block, num_relations: int) -> torch.Tensor:
    """[R, num_dst, num_src, d] the features of the edge of each relation between two rows."""
    assert block.edge_types is not None
    assert block.edge_features is not None
    shape = (num_relations, block.num_dst, block.num_src, block.edge_features.shape[1])
    out = torch.zeros(shape, dtype=torch.float64)
    for i in range(block.num_dst):
        for e in range(block.indptr[i], block.indptr[i + 1]):
            out[int(block.edge_types[e]), i, int(block.columns[e])] = torch.from_numpy(block.edge_features[e])
    return out


LAYERS: dict[str, Any] = {"rgcn": rgcn, "rsage": rsage, "rgat": rgat, "hgt": hgt}


def dense_scores(
    kind: str, p: Values, graph: Graph, blocks: list[Block], inputs: Any, heads: int
) -> torch.Tensor:
    """The scores of a model of two layers, in float64."""
    shape = shape_of_small(graph)
    types = types_of(shape, blocks[0].sources)
    following = [0] * len(shape.types)
    rows = []
    for t in types:
        at = following[t]
        following[t] += 1
        if inputs.tables[t] is not None:
            rows.append(p[f"table.{t}"][inputs.tables[t][at]])
        else:
            raw = inputs.matrices[t][at].double()
            rows.append(p[f"input.maps.{t}.weight"] @ raw + p[f"input.maps.{t}.bias"])
    x = torch.stack(rows)
    for i, block in enumerate(blocks):
        takes_means = kind in ("rgcn", "rsage")
        counts = dense_means(graph, block) if takes_means else dense_relations(block, shape.num_relations)
        given = () if block.edge_features is None else (dense_features(block, shape.num_relations),)
        x = LAYERS[kind](p, f"layers.{i}", counts, x, types_of(shape, block.sources), heads, *given)
        if i == 0:
            x = x.relu()
    return x


@pytest.mark.parametrize(
    ("kind", "options"),
    [("rgcn", {}), ("rgcn", {"bases": 3}), ("rgcn", {"blocks": 4}), ("rsage", {}), ("rgat", {}), ("hgt", {})],
)
@pytest.mark.parametrize("fanouts", [(3, 2), (-1, -1)])
def test_model_equals_a_dense_one_in_float64(
    kind: str, options: dict[str, Any], fanouts: tuple[int, int]
) -> None:
    check_model(kind, options, fanouts)


@pytest.mark.parametrize("kind", ["rgcn", "rsage"])
@pytest.mark.parametrize("fanouts", [(3, 2), (-1, -1)])
def test_means_of_relations_are_weighted(kind: str, fanouts: tuple[int, int]) -> None:
    check_model(kind, {}, fanouts, weights=True)


@pytest.mark.parametrize("kind", ["rgcn", "rsage"])
def test_sources_may_be_multiplied_before_they_are_combined(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    multiplied: list[int] = []
    linear = relation_sums.linear

    def watched(x: torch.Tensor, *given: Any, **more: Any) -> torch.Tensor:
        multiplied.append(len(x))
        return linear(x, *given, **more)

    monkeypatch.setattr(relation_sums, "linear", watched)
    check_model(kind, {}, (3, 2))
    before = sum(multiplied)
    # As if reading a row took long: the last layer, which makes rows narrower, multiplies all sources.
    monkeypatch.setattr(relation_sums, "_READ", 10**6)
    check_model(kind, {}, (3, 2), weights=True)
    assert sum(multiplied) > 2 * before


@pytest.mark.parametrize("fanouts", [(3, 2), (-1, -1)])
def test_attention_of_relations_looks_at_features_of_edges(fanouts: tuple[int, int]) -> None:
    check_model("rgat", {"edge_features": 3}, fanouts)


def with_edge_features(graph: Graph, columns: int) -> Graph:
    rows = np.random.default_rng(5).standard_normal((graph.num_edges, columns)).astype(np.float32)
    return replace(graph, topology=replace(graph.topology, edge_features=rows))


def check_model(
    kind: str, options: dict[str, Any], fanouts: tuple[int, int], *, weights: bool = False
) -> None:
    graph = small_typed(edges=250, weights=weights)
    if "edge_features" in options:
        graph = with_edge_features(graph, options["edge_features"])
    shape, heads = shape_of_small(graph), 2
    batch = small_batch(graph, fanouts)
    architecture = Architecture(
        kind=kind, in_features=HIDDEN, hidden=HIDDEN, num_classes=4, heads=heads, options=options, shape=shape
    )
    torch.manual_seed(1)
    model = HeteroGNN(architecture)
    for parameter in model.parameters():
        # Biases and priors start at constants, which would hide what they do.
        parameter.data += 0.1 * torch.randn_like(parameter)
    learned = {
        f"table.{t}": table.values
        for t, table in zip(shape.learned_types, find_embeddings(model), strict=True)
    }
    exact = {
        name: value.detach().double().requires_grad_()
        for name, value in (*model.named_parameters(), *learned.items())
    }
    with Workers(2, "test") as workers, use_workers(workers):
        scores = model(batch.blocks, batch.inputs)
        factors = torch.from_numpy(np.random.default_rng(2).standard_normal(tuple(scores.shape)))
        (scores * factors.float()).sum().backward()
    wanted = dense_scores(kind, exact, graph, batch.blocks, batch.inputs, heads)
    (wanted * factors).sum().backward()
    torch.testing.assert_close(
        scores.double(), wanted, rtol=1e-4, atol=1e-4 * float(wanted.detach().abs().max())
    )
    for name, parameter in model.named_parameters():
        gradient = exact[name].grad
        assert parameter.grad is not None, name
        assert gradient is not None, name
        scale = float(gradient.abs().max())
        assert scale > 0 or kind == "hgt", name
        torch.testing.assert_close(
            parameter.grad.double(),
            gradient,
            rtol=1e-4,
            atol=1e-4 * scale + 1e-9,
            msg=lambda m, name=name: f"{name}: {m}",
        )
    (found,) = take_sparse_gradients(model)
    dense = torch.zeros_like(exact["table.2"])
    dense[torch.from_numpy(found.rows)] = found.values.double()
    gradient = exact["table.2"].grad
    assert gradient is not None
    assert float(gradient.abs().max()) > 0
    torch.testing.assert_close(dense, gradient, rtol=1e-4, atol=1e-4 * float(gradient.abs().max()))


def test_matrices_of_each_relation_begin_within_their_glorot_bound() -> None:
    """Each relation's, type's or head's matrix by itself has the deviation of one of its shape."""
    shape = shape_of_small(small_typed())
    torch.manual_seed(3)
    rgat = RgatLayer(20, 6, 4, shape, edge_features=9)
    hgt = HgtLayer(20, 24, 3, shape)
    stacks = [rgat.weight.flatten(1, 2), rgat.source, rgat.destination, rgat.edge, rgat.own[None]]
    stacks += [hgt.key, hgt.query, hgt.value, hgt.result]
    stacks += [each.flatten(0, 1) for each in (hgt.attention, hgt.message)]
    for stack in stacks:
        assert stack is not None
        bound = (6 / sum(stack.shape[1:])) ** 0.5
        for matrix in stack:
            assert 0.8 * bound < float(matrix.detach().abs().max()) <= bound
