"""The derivative of a form, as a form: reverse-mode differentiation, value by value."""

from __future__ import annotations

from collections.abc import Mapping

from hyrt.nn.fused.form import Form, FormBuilder


def gradients(builder: FormBuilder, form: Form, seeds: Mapping[int, int]) -> dict[int, int]:
    """Append the gradients of a form's operands to a builder.

    Parameters
    ----------
    builder
        Begun with `FormBuilder.after(form)`.
    form
        What is differentiated.
    seeds
        The gradients of some values of the form, by their positions.

    Returns
    -------
    The positions of the gradients by the position of the operand; operands without one have none.
    """
    b = builder
    along = dict(seeds)

    def give(to: int, gradient: int) -> None:
        along[to] = b.add(along[to], gradient) if to in along else gradient

    found = {}
    for at in reversed(range(len(form.values))):
        if at not in along:
            continue
        value, g = form.values[at], along[at]
        args = value.arguments
        match value.op:
            case "operand":
                found[int(value.number)] = g
            case "add":
                give(args[0], g)
                give(args[1], g)
            case "subtract":
                give(args[0], g)
                give(args[1], b.negative(g))
            case "multiply":
                give(args[0], b.multiply(g, args[1]))
                give(args[1], b.multiply(g, args[0]))
            case "divide":
                by = b.divide(b.constant(1, value.kind), args[1])
                give(args[0], b.multiply(g, by))
                give(args[1], b.negative(b.multiply(g, b.multiply(at, by))))
            case "negative":
                give(args[0], b.negative(g))
            case "exp":
                give(args[0], b.multiply(g, at))
            case "log":
                give(args[0], b.multiply(g, b.divide(b.constant(1, value.kind), args[0])))
            case "sqrt":
                half = b.constant(0.5, value.kind)
                give(args[0], b.multiply(g, b.divide(half, at)))
            case "tanh":
                slope = b.subtract(b.constant(1, value.kind), b.multiply(at, at))
                give(args[0], b.multiply(g, slope))
            case "sigmoid":
                slope = b.multiply(at, b.subtract(b.constant(1, value.kind), at))
                give(args[0], b.multiply(g, slope))
            case "where_positive":
                zero = b.constant(0, value.kind)
                give(args[1], b.where_positive(args[0], g, zero))
                give(args[2], b.where_positive(args[0], zero, g))
            case "spread":
                give(args[0], b.sum(g))
            case "sum":
                give(args[0], b.spread(g))
            case _:
                pass
    return found
