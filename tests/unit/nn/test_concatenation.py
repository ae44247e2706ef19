"""A layer that concatenates messages, over blocks, beside float64 vertex by vertex."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from block_cases import awkward_graph, sampled, tensor_block, values
from concatenated_layer import Concatenated, concatenated_result
from saga_blocks import assert_close, gradients

from hyrt.errors import UnsupportedModelError
from hyrt.nn.torch_threads import torch_threads

GRAPH = awkward_graph()
IN, OUT = GRAPH.num_features, 4


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


def test_messages_stand_beside_each_other_and_empty_slots_are_zero() -> None:
    torch.manual_seed(1)
    layer, block = Concatenated(IN, OUT, slots=6), sampled(GRAPH, range(40), [4]).blocks[0]
    x = torch.from_numpy(values(GRAPH)[block.sources]).requires_grad_()
    p = {key: value.detach().double().requires_grad_() for key, value in layer.named_parameters()}
    wide = x.detach().double().requires_grad_()
    expected = concatenated_result(p, wide, block.indptr, block.columns, 6)
    theirs = [expected, *gradients(expected, [wide, *p.values()])]
    for form in (block, tensor_block(block)):
        result = layer(form, x)
        for mine, other in zip([result, *gradients(result, [x, *layer.parameters()])], theirs, strict=True):
            assert_close(mine, other, 1e-4)


def test_a_vertex_with_too_many_edges_is_named() -> None:
    # Vertex 5 is the hub.
    block = sampled(GRAPH, [0, 5, 7], [-1]).blocks[0]
    degree = int(GRAPH.topology.in_degrees[5])
    x = torch.from_numpy(values(GRAPH)[block.sources])
    for form in (block, tensor_block(block)):
        with pytest.raises(
            UnsupportedModelError,
            match=rf"has {degree} message slots, .* vertex 5 has {degree + 1} edges: set",
        ):
            Concatenated(IN, OUT, slots=degree)(form, x)
        assert Concatenated(IN, OUT, slots=degree + 1)(form, x).shape == (3, OUT)


def test_a_layer_that_concatenates_says_how_many_slots_there_are() -> None:
    layer = Concatenated(IN, OUT, slots=2)
    layer.slots = 0
    with pytest.raises(UnsupportedModelError, match=r"Concatenated.slots is not set"):
        layer._read()
