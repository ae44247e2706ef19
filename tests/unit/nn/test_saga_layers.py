"""Layers of a user's own over blocks, beside the same layers for all pairs of vertices in float64."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from block_cases import awkward_graph, sampled, tensor_block, values
from saga_blocks import GRAPH, IN, OUT, assert_close, block_of, by_pairs, gradients, rows_of
from saga_layers import REFERENCES, Gated, layer_of
from tied_layer import Tied, first_edges_gradients

from hyrt.errors import UnsupportedModelError
from hyrt.nn import SagaLayer
from hyrt.nn.layer import InPlaceFeatures
from hyrt.nn.message_passing import block_gather
from hyrt.nn.torch_threads import torch_threads
from hyrt.runtime.workers import Workers, use_workers


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


# A mean is GraphSAGE's too, and loops GCN's.
@pytest.mark.parametrize("name", [name for name in REFERENCES if name != "gated mean"])
def test_a_layer_is_its_formula_for_all_pairs(name: str) -> None:
    layer, block = layer_of(name, IN, OUT), block_of(weighted=name in ("G-GCN", "perceptron", "GCN"))
    x = rows_of(block).requires_grad_()
    expected, expected_gradients = by_pairs(name, layer, block, x)
    for form in (block, tensor_block(block)):
        result = layer(form, x)
        assert_close(result, expected, 1e-4)
        for ours, theirs in zip(gradients(result, [x, *layer.parameters()]), expected_gradients, strict=True):
            assert_close(ours, theirs, 1e-4)
    # As a model's first layer is trained: features take no gradient.
    of_parameters = gradients(layer(block, x.detach()), list(layer.parameters()))
    for ours, theirs in zip(of_parameters, expected_gradients[1:], strict=True):
        assert_close(ours, theirs, 1e-4)
    assert (layer._read()[0].fused is not None) == REFERENCES[name].is_fused


def test_the_gradients_are_those_of_finite_differences() -> None:
    layer, block = layer_of("G-GCN", IN, 4).double(), sampled(GRAPH, range(8), [3]).blocks[0]
    torch.manual_seed(0)
    x = torch.randn(block.num_src, IN, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda rows, *_: layer(block, rows), (x, *layer.parameters()))


def test_the_first_of_equal_messages_gets_the_gradient() -> None:
    torch.manual_seed(0)
    layer, block = Tied(IN, OUT), block_of()
    x = rows_of(block)
    along = torch.sin(torch.arange(block.num_dst * OUT, dtype=torch.float64)).view(-1, OUT)
    expected = first_edges_gradients(along, x.double(), block.indptr, block.columns)
    for form in (block, tensor_block(block)):
        for mine, theirs in zip(gradients(layer(form, x), [*layer.parameters()]), expected, strict=True):
            assert_close(mine, theirs, 1e-5)


def test_a_second_derivative_of_compiled_loops_is_refused() -> None:
    layer, block = layer_of("G-GCN", IN, OUT), block_of()
    x = rows_of(block).requires_grad_()
    with pytest.raises(RuntimeError, match="compiled loops support only first derivatives: remove create_g"):
        torch.autograd.grad(layer(block, x).square().sum(), x, create_graph=True)


class Summed(Gated):
    """A number for each edge, which is a sum over the columns of both ends."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.update = torch.nn.Linear(1, out_features)

    def apply_edge(self, edge):
        return torch.tanh(self.gate_dst(edge.dst) + self.gate_src(edge.src)).sum(-1, keepdim=True)


def test_a_message_of_one_number_is_gathered_as_one() -> None:
    layer, block = Summed(IN, OUT), block_of()
    x = rows_of(block)
    wide = x.double()
    p = {name: value.double() for name, value in layer.named_parameters()}
    to = wide[: block.num_dst] @ p["gate_dst.weight"].T + p["gate_dst.bias"]
    come = wide @ p["gate_src.weight"].T
    gathered = torch.zeros(block.num_dst, 1, dtype=torch.float64)
    for i in range(block.num_dst):
        sources = block.columns[block.indptr[i] : block.indptr[i + 1]]
        if len(sources):
            messages = torch.tanh(to[i] + come[sources]).sum(1)
            gathered[i] = messages.mean() * int(block.degrees[i])
    assert_close(layer(block, x), (gathered @ p["update.weight"].T + p["update.bias"]).relu(), 1e-4)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("G-GCN", np.float32), ("G-GCN", np.float16), ("perceptron", np.float32)],
)
def test_rows_in_place_are_rows_that_were_gathered(name: str, dtype: type) -> None:
    layer, block = layer_of(name, IN, OUT), block_of()
    matrix = values(GRAPH).astype(dtype)
    place = sampled(GRAPH, range(40), [4], in_place=True).blocks[0]
    bits = matrix.view(np.uint16) if dtype is np.float16 else matrix
    with torch.no_grad():
        expected = layer(block, torch.from_numpy(matrix[block.sources].astype(np.float32)))
        result = layer(place, InPlaceFeatures(bits))
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "columns"), [("G-GCN", 40), ("GAT", IN), ("EdgeConv", IN), ("perceptron", IN)]
)
def test_threads_change_no_bit(name: str, columns: int) -> None:
    """Three threads share the passes over 40 columns; more take the gradients of each end by itself."""
    graph = awkward_graph(vertices=3000, degree=20.0, features=columns)
    block = sampled(graph, range(2500), [-1]).blocks[0]
    layer, x = layer_of(name, columns, OUT), torch.from_numpy(values(graph)[block.sources]).requires_grad_()
    found = []
    for count in (1, 3, 5):
        with Workers(count, "team") as team, use_workers(team):
            result = layer(replace(block, _transposed=None), x)
            found.append([result, *gradients(result, [x, *layer.parameters()])])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_what_depends_on_one_end_is_computed_once_a_vertex() -> None:
    layer, block = layer_of("EdgeConv", IN, OUT), block_of()
    program = layer._read()[0]
    assert not [node for node in program.on_edge if node.target is torch.nn.functional.linear]
    assert program.fused is not None
    assert sorted(each.end for each in program.inputs) == ["destination", "source"]
    assert layer(block, rows_of(block)).shape == (block.num_dst, OUT)


def test_no_array_has_a_row_for_each_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, block = layer_of("G-GCN", IN, OUT), sampled(awkward_graph(60, 30.0), range(60), [-1]).blocks[0]
    x = torch.from_numpy(values(awkward_graph(60, 30.0))[block.sources]).requires_grad_()
    longest, real = [], block_gather.empty_array

    def noted(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        longest.append(shape[0])
        return real(shape, dtype)

    monkeypatch.setattr(block_gather, "empty_array", noted)
    gradients(layer(block, x), [x])
    assert longest
    assert max(longest) <= block.num_src < block.num_edges


def test_a_copied_layer_is_its_own_and_a_pickled_one_is_read_again() -> None:
    layer, block = layer_of("G-GCN", IN, OUT), block_of()
    x = rows_of(block)
    expected = layer(block, x)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.testing.assert_close(other(block, x), expected)
        with torch.no_grad():
            other.update.weight.add_(1)
        assert not torch.allclose(other(block, x), expected)
    torch.testing.assert_close(layer(block, x), expected)


def test_no_part_may_have_a_name_that_is_taken() -> None:
    layer = Gated(IN, OUT)
    assert torch.nn.Sequential(layer).to(torch.float64)[0].gate_dst.weight.dtype == torch.float64
    for name in ("to", "train", "training", "in_features", "accumulate"):
        with pytest.raises(
            UnsupportedModelError, match=rf"Gated.{name} cannot be a submodule .* another name"
        ):
            setattr(layer, name, torch.nn.Linear(2, 2))
    layer.train()


class SortedParts(SagaLayer):
    """Operations that give several results, by name, by place and unpacked; one of them takes a size."""

    accumulate = "sum"

    def apply_edge(self, edge):
        ordered = torch.sort(edge.src - edge.dst, dim=1).values
        low, high = ordered.split(1 + edge.src.shape[1] // 2, 1)
        return torch.cat([low.square(), torch.topk(high, 1)[0]], 1)

    def apply_vertex(self, vertex, gathered):
        return gathered


def test_operations_on_an_edge_may_have_several_results() -> None:
    block = block_of(fanout=1000)  # All neighbours: sums are not scaled.
    x = rows_of(block).requires_grad_()
    half = 1 + IN // 2
    result = SortedParts(IN, half + 1)(block, x)
    rows = x.detach().double().requires_grad_()
    destinations = torch.from_numpy(np.repeat(np.arange(block.num_dst), np.diff(block.indptr)))
    ordered = (rows[torch.from_numpy(block.columns)] - rows[destinations]).sort(1).values
    messages = torch.cat([ordered[:, :half] ** 2, ordered[:, -1:]], 1)
    expected = torch.zeros(block.num_dst, half + 1, dtype=torch.float64).index_add(0, destinations, messages)
    assert_close(result, expected, 1e-4)
    assert_close(gradients(result, [x])[0], gradients(expected, [rows])[0], 1e-4)
