"""Reverse-mode differentiation of an edge expression."""

from __future__ import annotations

from collections.abc import Mapping

from hyrt.nn.fused.form import Form, FormBuilder


def gradients(builder: FormBuilder, form: Form, seeds: Mapping[int, int]) -> dict[int, int]:
    """Append the gradients of an expression's operands to a builder.

    Parameters
    ----------
    builder
        Builder from `FormBuilder.after(form)`.
    form
        The expression to differentiate.
    seeds
        Gradients of values of the expression, by their positions.

    Returns
    -------
    Positions of the gradients by operand index; operands without a gradient are missing.
    """
    b = builder
    grads = dict(seeds)

    def accumulate(to: int, gradient: int) -> None:
        grads[to] = b.add(grads[to], gradient) if to in grads else gradient

    operand_grads = {}
    for at in reversed(range(len(form.values))):
        if at not in grads:
            continue
        value, g = form.values[at], grads[at]
        args = value.arguments
        match value.op:
            case "operand":
                operand_grads[int(value.number)] = g
            case "add":
                accumulate(args[0], g)
                accumulate(args[1], g)
            case "subtract":
                accumulate(args[0], g)
                accumulate(args[1], b.negative(g))
            case "multiply":
                accumulate(args[0], b.multiply(g, args[1]))
                accumulate(args[1], b.multiply(g, args[0]))
            case "divide":
                by = b.divide(b.constant(1, value.kind), args[1])
                accumulate(args[0], b.multiply(g, by))
                accumulate(args[1], b.negative(b.multiply(g, b.multiply(at, by))))
            case "negative":
                accumulate(args[0], b.negative(g))
            case "exp":
                accumulate(args[0], b.multiply(g, at))
            case "log":
                accumulate(args[0], b.multiply(g, b.divide(b.constant(1, value.kind), args[0])))
            case "sqrt":
                half = b.constant(0.5, value.kind)
                accumulate(args[0], b.multiply(g, b.divide(half, at)))
            case "tanh":
                slope = b.subtract(b.constant(1, value.kind), b.multiply(at, at))
                accumulate(args[0], b.multiply(g, slope))
            case "sigmoid":
                slope = b.multiply(at, b.subtract(b.constant(1, value.kind), at))
                accumulate(args[0], b.multiply(g, slope))
            case "where_positive":
                zero = b.constant(0, value.kind)
                accumulate(args[1], b.where_positive(args[0], g, zero))
                accumulate(args[2], b.where_positive(args[0], zero, g))
            case "spread":
                accumulate(args[0], b.sum(g))
            case "sum":
                accumulate(args[0], b.spread(g))
            case _:
                pass
    return operand_grads
