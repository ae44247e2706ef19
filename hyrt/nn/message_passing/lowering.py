"""Lowering of traced element-wise torch operations to edge expressions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from hyrt.nn.fused.edge_loop import EdgeExpr, EdgeExprBuilder, End, Kind
from hyrt.nn.message_passing.tracing import Shapes, operation_name, source_line

_SAME = ("contiguous", "clone", "float", "double", "Identity")
_RESHAPED = ("view", "reshape", "unsqueeze", "squeeze", "flatten", "unflatten", "expand", "getitem")
_COMPARED = {"gt": (0, 1, False), "lt": (1, 0, False), "le": (0, 1, True), "ge": (1, 0, True)}


class NotElementwiseError(Exception):
    """Error for an operation that has no equivalent in edge expressions; the message gives its line."""


@dataclass(frozen=True, slots=True)
class EdgeExprInput:
    """Operand of an edge expression with the traced node that computes it."""

    node: Node
    end: End
    kind: Kind


@dataclass(frozen=True, slots=True)
class Condition:
    """Comparison of a value with zero: value > 0, or value <= 0 if `negated`."""

    value: int
    negated: bool


def _keeps_all(index: Any) -> bool:
    """Return whether an index only adds dimensions, as in x[:, :, None]."""
    items = index if isinstance(index, tuple) else (index,)
    return all(item is None or item is ... or item == slice(None) for item in items)


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise NotElementwiseError(f"a constant is {number} instead of a large finite number such as -1e9")
    return number


class ExprLowering:
    """Lowering of traced operations to an edge expression.

    `shapes` has the shapes of results, `ends` the endpoint of each input value of an edge, and `constants`
    the numbers that are equal for all edges.
    """

    def __init__(self, shapes: Shapes, ends: Mapping[Node, End], constants: Mapping[Node, float]) -> None:
        self._shapes = shapes
        self._ends = ends
        self._constants = constants
        self._values: dict[Node, int | Condition] = {}
        self.operands: list[EdgeExprInput] = []

    def lower(self, nodes: Sequence[Node], results: Sequence[Node]) -> EdgeExpr:
        """Lower the operations of an edge, in order, to an expression for a message, or for a score and a
        message.

        Raises NotElementwiseError for the first operation that cannot be lowered.
        """
        self._heads, self._width = self._size(nodes, results)
        self._builder = EdgeExprBuilder(self._heads, self._width)
        for node in nodes:
            self._values[node] = self._translate(node)
        b = self._builder
        values = [self._number(node) for node in results]
        message = self._shapes[results[-1]]
        if math.prod(message) != self._heads * self._width:
            raise NotElementwiseError(
                f"{source_line(results[-1])} returns messages of shape {message}, not {self._shape_text()}"
            )
        values[-1] = b.spread(values[-1])
        if len(values) > 1 and b.kind(values[0]) == "row":
            if self._width != 1:
                raise NotElementwiseError(
                    f"the score in {source_line(results[0])} has {self._width} columns per head instead of "
                    "one"
                )
            # If heads have one column, a value is both a row and a column.
            values[0] = b.sum(values[0])
        return b.build(values)

    def _size(self, nodes: Sequence[Node], results: Sequence[Node]) -> tuple[int, int]:
        """Infer the number of heads and the number of columns per head."""
        seen = {*nodes, *results, *(operand for node in nodes for operand in node.all_input_nodes)}
        edge_shapes = [self._shapes.get(node, ()) for node in seen if self._ends.get(node) != "shared"]
        by_head = [shape for shape in edge_shapes if len(shape) == 2]
        if by_head:
            return max(s[0] for s in by_head), max(s[1] for s in by_head)
        return 1, max([1, *(s[0] for s in (self._shapes.get(node, ()) for node in seen) if len(s) == 1)])

    def _kind(self, shape: tuple[int, ...], *, shared: bool = False) -> Kind | None:
        """Return whether values of a shape are rows or columns; None for other shapes."""
        heads, width = self._heads, self._width
        if shared:
            # Shared values have no edge dimension: torch aligns shapes at their last dimensions.
            while shape and shape[0] == 1:
                shape = shape[1:]
            if shape in ((), (1,)):
                return "column"
            if heads == 1 or len(shape) == 2:
                return {(heads, width): "row", (width,): "row", (heads, 1): "column"}.get(shape)  # type: ignore[return-value]
            if shape in ((width,), (heads * width,)):
                return "row"
            return "column" if shape == (heads,) else None
        if shape in ((heads, 1), (heads,)) or math.prod(shape) == 1:
            return "column"
        return "row" if shape in ((heads, width), (heads * width,)) else None

    def _operand(self, node: Node) -> int:
        end, shape = self._ends[node], self._shapes[node]
        kind = self._kind(shape, shared=end == "shared")
        if kind is None and end != "shared":
            # torch would broadcast such values over heads, so they are broadcast before the loop.
            kind = "row" if shape == (1, self._width) else None
        if kind is None:
            raise NotElementwiseError(
                f"{source_line(node)} has values of shape {shape}, not {self._shape_text()}"
            )
        self.operands.append(EdgeExprInput(node, end, kind))
        return self._builder.operand(end, kind)

    def _shape_text(self) -> str:
        columns = f"{self._width} columns"
        return columns if self._heads == 1 else f"{self._heads} heads of {columns}"

    def _number(self, argument: Any, kind: Kind = "column") -> int:
        """Return an argument of an operation as the position of a value."""
        b = self._builder
        if isinstance(argument, bool | int | float):
            return b.constant(_finite(float(argument)), kind)
        if not isinstance(argument, Node):
            raise NotElementwiseError(f"the argument {argument!r} is not a number or a tensor")
        if argument in self._constants:
            return b.constant(_finite(self._constants[argument]), kind)
        if argument not in self._values:
            self._values[argument] = self._operand(argument)
        value = self._values[argument]
        if isinstance(value, Condition):
            one, zero = b.constant(1, b.kind(value.value)), b.constant(0, b.kind(value.value))
            return b.where_positive(value.value, *((zero, one) if value.negated else (one, zero)))
        return value

    def _condition(self, argument: Any) -> Condition:
        if isinstance(argument, Node) and isinstance(self._values.get(argument), Condition):
            return self._values[argument]  # type: ignore[return-value]
        return Condition(self._number(argument), negated=False)

    def _translate(self, node: Node) -> int | Condition:
        if node.op == "call_module":
            raise NotElementwiseError(f"{source_line(node)} is a torch module ({operation_name(node)})")
        name, shape = operation_name(node), self._shapes.get(node)
        value = self._lower_by_name(name, node)
        if value is None:
            raise NotElementwiseError(
                f"{source_line(node)} is '{name}', which is not an element-wise operation"
            )
        kind = self._builder.kind(value if isinstance(value, int) else value.value)
        if shape is None or self._kind(shape) != kind:
            # With one column per head, a value is both a row and a column. A constant can be either.
            if (
                shape is not None
                and kind == "column"
                and self._kind(shape) == "row"
                and isinstance(value, int)
            ):
                return self._builder.spread(value)
            if not (self._width == 1 and shape is not None and math.prod(shape) == self._heads):
                raise NotElementwiseError(
                    f"{source_line(node)} has values of shape {shape}, not {self._shape_text()}"
                )
        return value

    def _lower_by_name(self, name: str, node: Node) -> int | Condition | None:
        b, args, kwargs = self._builder, node.args, dict(node.kwargs)
        kwargs.pop("inplace", None)
        if name in _SAME:
            return self._number(args[0])
        if name in _RESHAPED:
            return self._lower_reshape(node)
        if name in ("sum", "mean"):
            return self._lower_sum(node, name)
        if name == "where":
            return self._lower_where(node)
        if name in ("eq", "ne"):
            return self._type_condition(args, negated=name == "ne")
        if name in _COMPARED:
            first, second, negated = _COMPARED[name]
            values = b.broadcast(*(self._number(each) for each in args))
            return Condition(b.subtract(values[first], values[second]), negated)
        if name in ("add", "sub", "mul", "div", "truediv", "maximum", "minimum") and len(args) == 2:
            if kwargs:
                return None
            return self._lower_binary(name, *b.broadcast(*(self._number(each) for each in args)))
        if name in ("clamp", "clip", "hardtanh", "relu6"):
            return self._lower_clamp(name, node)
        if name == "pow":
            return self._lower_power(node)
        if not args or not isinstance(args[0], Node):
            return None
        return self._lower_unary(name, self._number(args[0]), [*args[1:]], kwargs)

    def _lower_where(self, node: Node) -> int | None:
        """Lower `torch.where(condition, a, b)` or `a.where(condition, b)`."""
        names = ["condition", "input", "other"]
        if node.op == "call_method":
            names = ["input", "condition", "other"]
        arguments = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
        if sorted(arguments) != sorted(names):
            return None
        test = self._condition(arguments["condition"])
        values = [self._number(arguments[name]) for name in ("input", "other")]
        condition, *choice = self._builder.broadcast(test.value, *values)
        return self._builder.where_positive(condition, *(reversed(choice) if test.negated else choice))

    def _type_condition(self, args: Sequence[Any], *, negated: bool) -> Condition | None:
        """Lower the comparison of an edge type with a number; reject other values, which may be NaN."""
        b = self._builder
        values = b.broadcast(*(self._number(each) for each in args))
        if not any(self._ends.get(each) == "edge" for each in args if isinstance(each, Node)):
            return None
        above, below = b.subtract(*values), b.subtract(*reversed(values))
        zero, one = (b.constant(number, b.kind(above)) for number in (0, 1))
        equal = b.where_positive(above, zero, b.where_positive(below, zero, one))
        return Condition(equal, negated)

    def _lower_binary(self, name: str, a: int, c: int) -> int:
        b = self._builder
        match name:
            case "add":
                return b.add(a, c)
            case "sub":
                return b.subtract(a, c)
            case "mul":
                return b.multiply(a, c)
            case "maximum" | "minimum":
                if name == "minimum":
                    first, second = b.subtract(c, a), b.subtract(a, c)
                else:
                    first, second = b.subtract(a, c), b.subtract(c, a)
                # As in torch, each of two equal values gets half of the gradient.
                both = b.add(b.where_positive(first, a, c), b.where_positive(second, c, a))
                return b.multiply(b.constant(0.5, b.kind(both)), both)
            case _:
                return b.divide(a, c)

    def _lower_unary(self, name: str, a: int, rest: list[Any], kwargs: dict[str, Any]) -> int | None:
        """Lower a function of one value that has constant parameters."""
        b = self._builder
        kind = b.kind(a)

        def constant(number: float) -> int:
            return b.constant(number, kind)

        def parameter(position: int, name: str, default: float) -> float:
            return float(kwargs.get(name, rest[position] if len(rest) > position else default))

        def positive_part(value: int) -> int:
            return b.where_positive(value, value, constant(0))

        def absolute(value: int) -> int:
            # As in torch, the gradient at zero is zero. Zeros are frequent, as both endpoints often have
            # equal rows.
            minus = b.negative(value)
            both = b.add(b.where_positive(value, value, minus), b.where_positive(minus, minus, value))
            return b.multiply(constant(0.5), both)

        match name:
            case "neg" | "negative":
                return b.negative(a)
            case "exp" | "log" | "sqrt" | "tanh" | "sigmoid":
                return b.function(name, a)
            case "abs" | "absolute":
                return absolute(a)
            case "rsqrt":
                return b.divide(constant(1), b.function("sqrt", a))
            case "reciprocal":
                return b.divide(constant(1), a)
            case "square":
                return b.multiply(a, a)
            case "relu":
                return positive_part(a)
            case "leaky_relu":
                return b.where_positive(a, a, b.multiply(constant(parameter(0, "negative_slope", 0.01)), a))
            case "elu":
                # The exponential of positive numbers may overflow, so only the others are passed to it. As in
                # torch, the gradient at zero is alpha.
                power = b.function("exp", b.where_positive(a, constant(0), a))
                below = b.multiply(constant(parameter(0, "alpha", 1.0)), b.subtract(power, constant(1)))
                return b.where_positive(a, a, below)
            case "silu":
                return b.multiply(a, b.function("sigmoid", a))
            case "softplus":
                # Above the threshold, torch returns the value itself: this is inexact for a low threshold.
                if parameter(0, "beta", 1.0) != 1 or parameter(1, "threshold", 20.0) < 20:
                    return None
                return self._softplus(a)
            case "logsigmoid" | "log_sigmoid":
                return b.negative(self._softplus(b.negative(a)))
            case _:
                return None

    def _softplus(self, a: int) -> int:
        """Lower log(1 + exp(a)) such that no exponential exceeds 1."""
        b = self._builder
        zero, one = b.constant(0, b.kind(a)), b.constant(1, b.kind(a))
        minus_size = b.where_positive(a, b.negative(a), a)
        rest = b.function("log", b.add(one, b.function("exp", minus_size)))
        return b.add(b.where_positive(a, a, zero), rest)

    def _lower_clamp(self, name: str, node: Node) -> int:
        b = self._builder
        value, *rest = node.args
        limits: dict[str, Any] = dict(zip(("min", "max"), rest, strict=False)) | dict(node.kwargs)
        limits |= {"min": 0, "max": 6} if name == "relu6" else {}
        if name == "hardtanh":
            limits = {"min": limits.get("min_val", limits.get("min", -1)),
                      "max": limits.get("max_val", limits.get("max", 1))}  # fmt: skip
        a = self._number(value)
        for word in ("min", "max"):
            limit = limits.get(word)
            if limit is not None:
                end, a = b.broadcast(self._number(limit), a)
                inside, beyond = b.subtract(a, end), b.subtract(end, a)
                if word == "max":
                    inside, beyond = beyond, inside
                # At the limit, torch.clamp passes the gradient, whereas the activations do not.
                is_activation = name in ("hardtanh", "relu6")
                a = b.where_positive(inside, a, end) if is_activation else b.where_positive(beyond, end, a)
        return a

    def _lower_power(self, node: Node) -> int | None:
        b = self._builder
        value, power = node.args[0], node.args[1] if len(node.args) > 1 else node.kwargs.get("exponent")
        if not isinstance(value, Node) or not isinstance(power, int | float):
            return None
        a = self._number(value)
        one = b.constant(1, b.kind(a))
        if power in (0.5, -0.5):
            root = b.function("sqrt", a)
            return root if power > 0 else b.divide(one, root)
        if power != int(power) or not 0 < abs(power) <= 8:
            return None
        product = a
        for _ in range(int(abs(power)) - 1):
            product = b.multiply(product, a)
        return product if power > 0 else b.divide(one, product)

    def _lower_reshape(self, node: Node) -> int | None:
        """Lower a reshape that preserves the numbers, their order and the kind."""
        source = node.args[0]
        if operation_name(node) == "getitem" and not _keeps_all(node.args[1]):
            return None
        value = self._number(source)
        before, after = self._shapes[source], self._shapes[node]  # type: ignore[index]
        if math.prod(before) != math.prod(after):
            return (
                self._builder.spread(value)
                if self._kind(after) == "row" and operation_name(node) == "expand"
                else None
            )
        return value

    def _lower_sum(self, node: Node, name: str) -> int | None:
        """Lower a sum or mean over the columns of each head."""
        names = ("input", "dim", "keepdim")
        arguments: dict[str, Any] = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
        value, dims = arguments["input"], arguments.get("dim")
        shape = self._shapes[value]
        dims = [dims] if isinstance(dims, int) else list(dims or [])
        if dims not in ([-1], [len(shape)]) or shape[-1] != self._width or "dtype" in arguments:
            return None
        if self._width == 1 and shape[-1] == 1:
            return self._number(value)
        if self._kind(shape) != "row" or (len(shape) == 1 and self._heads > 1):
            return None
        b = self._builder
        total = b.sum(b.spread(self._number(value)))
        return total if name == "sum" else b.multiply(b.constant(1 / self._width, "column"), total)
