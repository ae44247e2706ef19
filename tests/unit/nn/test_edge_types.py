"""Layers that tell types of edges apart, over blocks and whole graphs, beside float64 edge by edge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from block_cases import awkward_graph, sampled, tensor_block, values
from hetero_layers import TYPED, TYPES, typed_layer, typed_result, with_types
from saga_blocks import assert_close, gradients

from hyrt.errors import DataError, UnsupportedModelError
from hyrt.nn import SagaLayer, stack
from hyrt.nn.layer import InPlaceFeatures
from hyrt.nn.model_checks import check_types
from hyrt.nn.torch_threads import torch_threads
from hyrt.sampling.block import Block

GRAPH = with_types(awkward_graph())
IN, OUT = GRAPH.num_features, 6


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


def by_edges(name: str, layer: SagaLayer, block: Block, x: torch.Tensor) -> list[torch.Tensor]:
    """The result in float64, and the gradients of x and all parameters."""
    p = {key: value.detach().double().requires_grad_() for key, value in layer.named_parameters()}
    rows = x.detach().double().requires_grad_()
    result = typed_result(name, p, rows, (block.indptr, block.columns, block.edge_types), block.degrees)
    return [result, *gradients(result, [rows, *p.values()])]


@pytest.mark.parametrize("name", TYPED)
def test_a_layer_is_its_formula_edge_by_edge(name: str) -> None:
    layer, block = typed_layer(name, IN, OUT), sampled(GRAPH, range(40), [4]).blocks[0]
    x = torch.from_numpy(values(GRAPH)[block.sources]).requires_grad_()
    expected = by_edges(name, layer, block, x)
    for form in (block, tensor_block(block)):
        result = layer(form, x)
        for ours, theirs in zip(
            [result, *gradients(result, [x, *layer.parameters()])], expected, strict=True
        ):
            assert_close(ours, theirs, 1e-4)
    assert (layer.unfused_reason == "") == (name != "perceptron")
    place = sampled(GRAPH, range(40), [4], in_place=True).blocks[0]
    with torch.no_grad():
        assert_close(layer(place, InPlaceFeatures(values(GRAPH))), expected[0], 1e-4)


@pytest.mark.parametrize("dtype", [np.int8, np.int64])
def test_a_sampled_edge_has_the_type_that_it_has_in_the_graph(dtype: type) -> None:
    graph = with_types(awkward_graph(), dtype)
    topology = graph.topology
    for block in sampled(graph, range(30), [3, -1]).blocks:
        assert block.edge_types is not None
        assert block.edge_types.dtype == dtype
        for i, vertex in enumerate(block.destinations):
            first, last = topology.indptr[vertex : vertex + 2]
            known = dict(zip(topology.indices[first:last], topology.edge_types[first:last], strict=True))
            for e in range(block.indptr[i], block.indptr[i + 1]):
                assert block.edge_types[e] == known[block.sources[block.columns[e]]]


def test_types_that_are_not_there_or_not_known_are_an_error() -> None:
    layer, block = typed_layer("relational", IN, OUT), sampled(GRAPH, range(9), [-1]).blocks[0]
    x = torch.from_numpy(values(GRAPH)[block.sources])
    bare = replace(block, edge_types=None)
    for form in (bare, tensor_block(bare)):
        with pytest.raises(
            UnsupportedModelError, match=r"Relational reads edge.type, but the edges have no types"
        ):
            layer(form, x)
    block.edge_types[5] = TYPES
    with pytest.raises(UnsupportedModelError, match=r"has edge_types=3, but edge 5 has type 3: create"):
        layer(block, x)


def test_a_layer_says_how_many_types_there_are() -> None:
    layer = typed_layer("relational", IN, OUT)
    layer.edge_types = 0
    with pytest.raises(UnsupportedModelError, match=r"Relational.edge_types is not set: set it to"):
        layer._read()
    layer = typed_layer("relational", IN, OUT)
    layer.self_loops = True  # type: ignore[misc]
    with pytest.raises(UnsupportedModelError, match=r"a self-loop has no type: remove self_loops"):
        layer._read()


def test_a_graph_has_the_types_that_its_model_reads() -> None:
    typed, bare = (stack(typed_layer(name, IN, OUT)) for name in ("relational", "GG-NN")), awkward_graph()
    for model in typed:
        check_types(model, GRAPH)
        with pytest.raises(UnsupportedModelError, match="the edges have no types: add the key edge_type"):
            check_types(model, bare)
    untyped = torch.nn.Linear(2, 2)
    check_types(untyped, bare)
    with pytest.raises(DataError, match=r"no layer of the model uses the edge types of"):
        check_types(untyped, GRAPH)
