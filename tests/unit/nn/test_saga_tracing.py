"""What a layer's methods may do, and what is said where they may not."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from block_cases import sparse_of
from torch import nn
from torch.nn import functional as F

import hyrt
from hyrt.errors import UnsupportedModelError
from hyrt.nn import SagaLayer, stack
from hyrt.nn.message_passing.program import EdgeProgram


class Tried(SagaLayer):
    """Does on edges, and at vertices, what a test wants."""

    def __init__(self, on_edge: Callable[[Any, Any], Any], at_vertex: Any = None) -> None:
        super().__init__(4, 4)
        self.product = nn.Linear(4, 4)
        self.both = nn.Linear(8, 4)
        self.unit = nn.GRUCell(4, 4)
        self.scale = nn.Parameter(torch.ones(4))
        self.on_edge = on_edge
        self.at_vertex = at_vertex or (lambda layer, vertex, gathered: gathered.flatten(1))

    def apply_edge(self, edge):
        return self.on_edge(self, edge)

    def apply_vertex(self, vertex, gathered):
        return self.at_vertex(self, vertex, gathered)


class Weighed(Tried):
    accumulate = "attention"


def program_of(on_edge: Callable[[Any, Any], Any], kind: type[Tried] = Tried) -> EdgeProgram:
    return kind(on_edge)._read()[0]


def chosen_by_a_value(layer, edge):
    if edge.src.sum() > 0:
        return edge.src
    return edge.dst


def counted_by_a_value(layer, edge):
    for row in edge.src:
        edge.dst = edge.dst + row
    return edge.dst


def computed_without_gradients(layer, edge):
    with torch.no_grad():
        weight = torch.sigmoid(edge.src)
    return weight * edge.dst


@pytest.mark.parametrize(
    ("on_edge", "says"),
    [
        (chosen_by_a_value, r"tracing.py, line \d+ \(`if edge.src.sum\(\) > 0:`\) branches .*torch.where"),
        (counted_by_a_value, r"line \d+ \(`for row in edge.src:`\) branches"),
        (lambda layer, edge: edge.src * float(edge.dst[0, 0]), r"float\(edge.dst.* cannot be traced"),
        (lambda layer, edge: edge.src * edge.dst.mean().item(), r"converts a tensor to .* \(item\)"),
        (lambda layer, edge: edge.data * edge.src, "reads edge.data, but .* is not set: set it to"),
        (lambda layer, edge: edge.source, "reads edge.source, which does not exist"),
        (lambda layer, edge: edge.src.relu_(), "changes a value in place.*'relu'"),
        (lambda layer, edge: F.dropout(edge.src), "draws random numbers .*model.dropout"),
        (lambda layer, edge: nn.Dropout(0.5)(edge.src), "draws random numbers"),
        (lambda layer, edge: edge.src * torch.rand(1), r"`.*torch.rand\(1\).*draws random numbers \(rand\)"),
        (lambda layer, edge: edge.src * torch.empty(1).uniform_(), r"draws random numbers \(uniform_\)"),
        (lambda layer, edge: edge.src - edge.src.mean(0), r"edge.src.mean\(0\).* combines rows"),
        (lambda layer, edge: edge.src.softmax(0), "combines rows"),
        (lambda layer, edge: edge.src.cumsum(0), "combines rows"),
        (lambda layer, edge: edge.src - edge.src[:1], "combines rows"),
        (lambda layer, edge: edge.src * edge.dst_degree.cumsum(0), "combines rows"),
        (computed_without_gradients, r"`weight = torch.sigmoid.*gradients disabled.*\.detach\(\)"),
        (lambda layer, edge: edge.src / edge.src.shape[0], "uses the number of rows"),
        (lambda layer, edge: layer.both(edge.src), r"layer.both\(edge.src\).* fails: .*shapes"),
        (lambda layer, edge: torch.sort(edge.src, 1).result, r"`.*torch.sort\(.* fails: .*'result'"),
        (lambda layer, edge: layer.scale, "is the same for all edges"),
        (lambda layer, edge: (edge.src, edge.dst), "returned 2 values, but accumulate='sum' expects one"),
        (lambda layer, edge: 3, "returned a value of type int: return what torch"),
        (lambda layer, edge: edge.src.view(-1, 2, 2, 1), r"shape \[2, 2, 1\] per edge"),
    ],
)  # fmt: skip
def test_what_an_edge_may_not_do_is_told_with_its_line(on_edge: Any, says: str) -> None:
    with pytest.raises(UnsupportedModelError, match=re.compile(says, re.DOTALL)) as told:
        program_of(on_edge)
    assert str(told.value).removeprefix("in ").startswith("Tried.apply_edge")


def test_a_layer_is_read_where_its_caller_has_turned_gradients_off() -> None:
    with torch.no_grad():
        assert program_of(lambda layer, edge: torch.sigmoid(edge.src).detach() * edge.dst).message_shape == (
            4,
        )


@pytest.mark.parametrize(
    "at_vertex",
    [
        lambda layer, vertex, gathered: layer.product(gathered),
        lambda layer, vertex, gathered: layer.product(vertex),
        lambda layer, vertex, gathered: layer.product(vertex) - gathered,
        lambda layer, vertex, gathered: layer.both(torch.cat([layer.product(vertex), gathered], 1)),
        lambda layer, vertex, gathered: layer.unit(gathered, vertex),
        lambda layer, vertex, gathered: gathered,
    ],
    ids=["product", "of own rows", "difference", "of a product", "recurrent unit", "as it came"],
)
def test_a_relu_that_a_model_asks_for_is_taken_of_the_result_alone(at_vertex: Any) -> None:
    torch.manual_seed(0)
    layer = Tried(lambda layer, edge: edge.src, at_vertex)
    own, gathered = torch.randn(9, 4), torch.randn(9, 4)
    own[torch.rand(own.shape) < 0.5] = 0
    result = at_vertex(layer, own, gathered)
    assert (result < 0).any()
    _, program = layer._read()
    for rows in (own, sparse_of(own.numpy())):
        torch.testing.assert_close(program(layer, rows, gathered), result)
        torch.testing.assert_close(program(layer, rows, gathered, relu=True), result.relu())


def test_what_a_vertex_may_not_do_is_told_with_its_line() -> None:
    with pytest.raises(
        UnsupportedModelError, match=r"apply_vertex, it returns shape \[2, 2\] per vertex: return 4"
    ):
        Tried(lambda layer, edge: edge.src.view(-1, 2, 2), lambda layer, vertex, gathered: gathered)._read()
    with pytest.raises(
        UnsupportedModelError, match=r"in Tried.apply_vertex, .* returns shape \[8\] per vertex: return 4"
    ):
        Tried(
            lambda layer, edge: edge.src, lambda layer, vertex, gathered: torch.cat([vertex, gathered], 1)
        )._read()
    with pytest.raises(UnsupportedModelError, match=r"in Tried.apply_vertex, .* combines rows"):
        Tried(
            lambda layer, edge: edge.src, lambda layer, vertex, gathered: gathered - gathered.amax(0)
        )._read()


def test_attention_wants_a_score_for_each_head() -> None:
    with pytest.raises(
        UnsupportedModelError, match="expects a pair: return the score of an edge and its message"
    ):
        program_of(lambda layer, edge: edge.src, Weighed)
    # One head has one number, with a dimension of its own or without.
    for score in (lambda edge: edge.src.sum(1), lambda edge: edge.src.sum(1, keepdim=True)):
        program = program_of(lambda layer, edge, score=score: (score(edge), edge.dst + edge.src), Weighed)
        assert program.fused is not None
        assert program.message_shape == (4,)
    with pytest.raises(
        UnsupportedModelError, match=r"scores of shape \[4\] for messages of shape \[2, 2\].*\[2\]"
    ):
        program_of(lambda layer, edge: (edge.src, edge.src.view(-1, 2, 2)), Weighed)


def test_an_unknown_accumulator_is_refused() -> None:
    class Middle(Tried):
        accumulate = "median"  # type: ignore[assignment]

    with pytest.raises(
        UnsupportedModelError, match=r"Middle\.accumulate is 'median': choose one of sum, mean, max"
    ):
        program_of(lambda layer, edge: edge.src, Middle)


@pytest.mark.parametrize(
    "on_edge",
    [
        lambda layer, edge: layer.both(torch.cat([edge.src, edge.dst], 1)).relu(),
        lambda layer, edge: layer.both(torch.cat((edge.dst, edge.src - edge.dst), dim=-1)),
        lambda layer, edge: layer.product(edge.src + edge.dst) * edge.src,
        lambda layer, edge: F.silu(edge.src @ layer.product.weight + edge.dst) * layer.scale,
        lambda layer, edge: torch.where(edge.src[:, :1] > 0, edge.src, edge.dst),
        lambda layer, edge: F.normalize(edge.src, dim=1) * (edge.src * edge.dst).mean(-1, keepdim=True),
        lambda layer, edge: (edge.src * edge.dst).view(-1, 2, 2) * edge.dst.view(-1, 2, 2).mean(-1, True),
        lambda layer, edge: edge.dst.view(-1, 2, 2) * (edge.src * edge.dst).view(-1, 2, 2).sum(2)[:, :, None],
        lambda layer, edge: edge.src.view(-1, 2, 2) * (edge.src_degree > edge.dst_degree)[:, None].float(),
        lambda layer, edge: 1 - torch.sqrt(edge.src.square() + edge.dst**2 + 1e-3) / edge.src_degree,
    ],
)  # fmt: skip
def test_products_are_taken_apart_and_the_rest_is_fused(on_edge: Any) -> None:
    program = program_of(on_edge)
    assert program.fused is not None
    assert not any("linear" in str(node.target) for node in program.on_edge)


@pytest.mark.parametrize(
    ("on_edge", "reason"),
    [
        (lambda layer, edge: layer.product((edge.src * edge.dst).relu()), "is 'linear'"),
        (lambda layer, edge: torch.cumsum(edge.src * edge.dst, 1), "is 'cumsum'"),
        (lambda layer, edge: nn.LayerNorm(4)(edge.src + edge.dst), "LayerNorm|layer_norm"),
        (lambda layer, edge: (edge.src * edge.dst).flip(1) + edge.src, "is 'flip'"),
    ],
)
def test_what_is_not_fused_is_told(on_edge: Any, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "hyrt"):
        assert program_of(on_edge).fused is None
    (line,) = caplog.messages
    assert re.search(rf"Tried.apply_edge is not fused .*test_saga_tracing.py, line \d+ .*({reason})", line)


def test_heads_that_are_cut_otherwise_are_not_fused(caplog: pytest.LogCaptureFixture) -> None:
    """One number for each of 4 heads of 2 columns, which as a 2 x 2 matrix meets a vector of 2."""

    def on_edge(layer, edge):
        turned = (edge.src * edge.dst).view(-1, 2, 2) * layer.scale[:2]
        return turned.view(-1, 4, 1) * layer.both.weight.view(4, 2, 4)[:, :, 0]

    layer = Tried(on_edge, lambda layer, vertex, gathered: layer.both(gathered.flatten(1)))
    with caplog.at_level(logging.WARNING, "hyrt"):
        program = layer._read()[0]
    assert program.message_shape == (4, 2)
    assert program.fused is None
    assert "has values of shape (2, 2), not 4 heads of 2 columns" in caplog.text


def test_a_parameter_that_edges_read_may_have_several_names() -> None:
    layer = Tried(lambda layer, edge: edge.src * edge.dst * layer.other)
    layer.other = layer.scale
    assert layer.parts(multiply_first=False).gather.parameters == [layer.scale]


def test_settings_of_a_layer_may_choose() -> None:
    class Chosen(Tried):
        def apply_edge(self, edge):
            return edge.src * edge.dst if self.training else edge.src

    layer = Chosen(lambda layer, edge: edge.src)
    assert layer._read()[0].source_message is None
    assert layer.eval()._read()[0].source_message is not None
    assert layer.train()._read()[0].source_message is None


def test_only_a_layer_that_looks_at_its_own_row_is_given_it() -> None:
    blind = Tried(lambda layer, edge: edge.src)
    seeing = Tried(lambda layer, edge: edge.src, lambda layer, vertex, gathered: vertex + gathered)
    assert not blind.parts(multiply_first=False).reads_self
    assert seeing.parts(multiply_first=False).reads_self


def test_layers_of_unequal_widths_are_no_stack() -> None:
    layer = Tried(lambda layer, edge: edge.src)
    layer.out_features = 5
    with pytest.raises(ValueError, match=r"layer 1 of stack.* returns 5 columns, but layer 2 expects 4"):
        stack(layer, Tried(lambda layer, edge: edge.src))
    with pytest.raises(ValueError, match="at least one layer"):
        stack()
    with pytest.raises(ValueError, match=r"layer 1 of stack.* has type Linear: use a hyrt.nn.SagaLayer"):
        stack(nn.Linear(4, 4))  # type: ignore[arg-type]


def test_the_names_of_the_package() -> None:
    assert hyrt.nn.SagaLayer is SagaLayer
    with pytest.raises(AttributeError, match="no attribute 'Saga'"):
        hyrt.nn.Saga  # noqa: B018
