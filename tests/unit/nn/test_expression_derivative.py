"""Derivatives of forms, beside autograd over the same values."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyrt.nn.fused.edge_loop import EdgeExpr, EdgeExprBuilder, append_gradients

HEADS, WIDTH, EDGES = 2, 3, 4


def evaluated(form: EdgeExpr, operands: list[torch.Tensor]) -> list[torch.Tensor]:
    """The results for some edges, [E, heads, width] or [E, heads, 1], each value computed as its name says.

    An operand that edges share has one row.
    """
    num, values = max(map(len, operands)), list[torch.Tensor]()
    for value in form.values:
        a: list[Any] = [values[at] for at in value.arguments]
        width = form.width if value.kind == "row" else 1
        match value.op:
            case "operand":
                found = operands[int(value.number)]
            case "constant":
                found = torch.full((num, form.heads, width), value.number, dtype=torch.float64)
            case "negative":
                found = -a[0]
            case "where_positive":
                found = torch.where(a[0] > 0, a[1], a[2])
            case "spread":
                found = a[0].expand(-1, -1, form.width)
            case "sum":
                found = a[0].sum(2, keepdim=True)
            case _:
                found = getattr(torch, value.op)(*a)
        assert found.shape[1:] == (form.heads, width)
        values.append(found)
    return [values[at] for at in form.results]


@st.composite
def forms(draw: st.DrawFn) -> EdgeExpr:
    b = EdgeExprBuilder(HEADS, WIDTH)
    kinds = ("row", "column", "row")
    for kind, end in zip(kinds, ("source", "destination", "shared"), strict=True):
        b.operand(end, kind)  # type: ignore[arg-type]
    b.constant(draw(st.sampled_from([0.0, 1.0, -1.0, 0.5])), "row")
    one = b.constant(1, "row")
    for _ in range(draw(st.integers(2, 14))):
        some = st.integers(0, len(b.values) - 1)
        first, second, third = b.broadcast(draw(some), draw(some), draw(some))
        kind = b.kind(first)
        match draw(st.integers(0, 9)):
            case 0:
                b.add(first, second)
            case 1:
                b.subtract(first, second)
            case 2:
                b.multiply(first, second)
            case 3:
                # Never near zero.
                b.divide(first, b.add(b.constant(1, kind), b.multiply(second, second)))
            case 4:
                b.negative(first)
            case 5:
                b.function(draw(st.sampled_from(["tanh", "sigmoid"])), first)
            case 6:
                b.function("exp", b.function("tanh", first))
            case 7:
                b.function(
                    draw(st.sampled_from(["log", "sqrt"])),
                    b.add(b.constant(1.5, kind), b.function("sigmoid", first)),
                )
            case 8:
                b.where_positive(first, second, third)
            case _:
                b.sum(b.spread(first))
    return b.build([b.add(b.spread(len(b.values) - 1), b.multiply(one, 0))])


@given(forms())
@settings(max_examples=150, deadline=None)
def test_a_derivative_is_that_of_autograd(form: EdgeExpr) -> None:
    generator = torch.Generator().manual_seed(3)
    operands = [
        torch.randn(EDGES, HEADS, width, dtype=torch.float64, generator=generator).requires_grad_()
        for width in (WIDTH if each.kind == "row" else 1 for each in form.operands)
    ]  # fmt: skip
    (result,) = evaluated(form, operands)
    along = torch.randn(result.shape, dtype=torch.float64, generator=generator)
    expected = torch.autograd.grad(result, operands, along, allow_unused=True)
    builder = EdgeExprBuilder.from_expr(form)
    g = builder.operand("gathered", "row")
    found = append_gradients(builder, form, {form.results[0]: g})
    derivative = builder.build([found[k] for k in sorted(found)])
    ours = dict(zip(sorted(found), evaluated(derivative, [*operands, along]), strict=True))
    for k, theirs in enumerate(expected):
        if theirs is None:
            assert k not in ours or not ours[k].any()
        else:
            torch.testing.assert_close(ours[k], theirs, rtol=1e-8, atol=1e-8)
