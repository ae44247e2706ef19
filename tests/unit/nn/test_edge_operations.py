"""Operations of torch on edges, rewritten as forms: values and gradients are torch's, also at ties."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_expression_derivative import evaluated
from test_saga_tracing import Tried, Weighed, program_of
from torch.nn import functional as F

from hyrt.nn.message_passing.program import EdgeProgram

EDGES, WIDTH = 60, 4
OnEdge = Callable[[Any, Any], Any]


def powers(layer: Any, edge: Any) -> Any:
    x = edge.src - edge.dst
    x **= 2
    return x * edge.src


def remainders(layer: Any, edge: Any) -> Any:
    x = edge.src - edge.dst
    x %= 2
    return x * edge.src


def operands_of(
    program: EdgeProgram, layer: Tried, src: torch.Tensor, dst: torch.Tensor
) -> list[torch.Tensor]:
    rows = {
        end: iter(program.vertex_values(layer, x, end)) for end, x in (("source", src), ("destination", dst))
    }
    shared = iter(program.shared_values(layer))
    return [next(shared) if each.end == "shared" else next(rows[each.end]) for each in program.inputs]


@pytest.mark.parametrize(
    "on_edge",
    [
        lambda layer, edge: edge.src.where(edge.src > edge.dst, 2 * edge.dst),
        lambda layer, edge: edge.src.where(edge.src <= 0, edge.dst),
        lambda layer, edge: torch.where(edge.src > edge.dst, input=edge.src, other=3 * edge.dst),
        lambda layer, edge: torch.where(condition=edge.src >= edge.dst, input=edge.dst, other=1.0),
        powers,
        lambda layer, edge: (edge.src - edge.dst).abs() * layer.scale,
        lambda layer, edge: torch.maximum(edge.src, edge.dst) - torch.minimum(edge.src, 2 * edge.dst),
        lambda layer, edge: (edge.src - edge.dst).relu() + F.leaky_relu(edge.dst - edge.src, 0.3),
        lambda layer, edge: F.elu(edge.src - edge.dst, alpha=0.7) + F.silu(edge.src - edge.dst),
        lambda layer, edge: (edge.src - edge.dst).clamp(-1, 1) + F.relu6(3 * (edge.src - edge.dst)),
        lambda layer, edge: F.hardtanh(edge.src - edge.dst),
        lambda layer, edge: torch.clamp(edge.src * edge.dst, max=edge.src),
        lambda layer, edge: F.softplus(edge.src - edge.dst) + F.logsigmoid(edge.src * edge.dst),
        lambda layer, edge: (edge.src - edge.dst) ** 3 + (3 + edge.src * edge.dst) ** -2,
        lambda layer, edge: (edge.src > edge.dst) * edge.src,
    ],
)  # fmt: skip
def test_a_form_has_the_values_and_the_gradients_of_torch(on_edge: OnEdge) -> None:
    torch.manual_seed(0)
    layer = Tried(on_edge).double()
    program, _ = layer._read()
    assert program.fused is not None
    # Small whole numbers: zeros, and equal values at both ends.
    src, dst = (torch.randint(-2, 3, (EDGES, WIDTH)).double().requires_grad_() for _ in range(2))
    form = program.fused.form
    given = [each.view(len(each), form.heads, -1) for each in operands_of(program, layer, src, dst)]
    ours = evaluated(form, given)[-1].reshape(EDGES, -1)
    theirs = on_edge(layer, SimpleNamespace(src=src, dst=dst))
    torch.testing.assert_close(ours, theirs)
    along = torch.randn(theirs.shape, dtype=torch.float64)
    inputs = [src, dst, *layer.parameters()]
    found, wanted = (
        torch.autograd.grad(each, inputs, along, allow_unused=True, materialize_grads=True)
        for each in (ours, theirs)
    )
    for mine, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize(
    "on_edge",
    [
        remainders,
        # What one end has of comparisons is computed once a vertex.
        lambda layer, edge: torch.where((edge.src > 0) & (edge.dst > 0), edge.src, edge.dst),
        lambda layer, edge: torch.where(edge.dst > 0, layer.product(edge.src * edge.dst), 0),
        lambda layer, edge: torch.cat([edge.src, edge.dst], 1).gather(1, (edge.src > 0).long()) * edge.dst,
        lambda layer, edge: torch.where(edge.src == edge.dst, edge.src, 2 * edge.dst),
        lambda layer, edge: F.softplus(edge.src - edge.dst, threshold=0.5),
        lambda layer, edge: F.softplus(edge.src - edge.dst, 1, 0.5),
    ],
)
def test_what_is_no_form_is_done_as_torch_does_it(on_edge: OnEdge) -> None:
    torch.manual_seed(0)
    layer = Tried(on_edge).double()
    program, _ = layer._read()
    assert program.fused is None
    src, dst = (torch.randint(-2, 3, (EDGES, WIDTH)).double().requires_grad_() for _ in range(2))
    before = src.detach().clone()
    given = operands_of(program, layer, src, dst)
    of_ends = {
        each.node: rows for each, rows in zip(program.inputs, given, strict=True) if each.end != "shared"
    }
    (ours,) = program.edge_values(layer, of_ends)
    assert torch.equal(src, before)
    theirs = on_edge(layer, SimpleNamespace(src=1 * src, dst=1 * dst))
    torch.testing.assert_close(ours, theirs)
    for mine, other in zip(
        *(torch.autograd.grad(each.sum(), [src, dst]) for each in (ours, theirs)), strict=True
    ):
        torch.testing.assert_close(mine, other)


def test_constants_that_are_no_numbers_are_for_torch() -> None:
    """Loops are printed, and have no word for them: a model whose scores had one could not be compiled."""
    program = program_of(
        lambda layer, edge: (
            torch.where(edge.src[:, 0] > edge.dst[:, 0], edge.src.sum(1), float("-inf")),
            edge.src,
        ),
        Weighed,
    )
    assert program.fused is None
    assert "a constant is -inf" in program.unfused_reason
    program = program_of(lambda layer, edge: torch.minimum(edge.src * edge.dst, torch.tensor(float("inf"))))
    assert program.fused is None
