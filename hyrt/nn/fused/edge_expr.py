"""Element-wise expressions on edges, and their reverse-mode derivatives.

An expression has heads, each of `width` columns. A value is a row (`width` numbers per head) or a column (one
number per head). Operations take values of one kind; `spread` broadcasts a column to a row, `sum` reduces a
row to a column. This is enough for the layers that NeuGraph (section 3.3) fuses, and for their derivatives.
Keys are 64-bit values of the two ends; from them, every loop computes the same dropout mask of an edge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["row", "column", "key"]
End = Literal["source", "destination", "edge", "shared", "gathered"]
Op = Literal[
    "operand", "constant", "add", "subtract", "multiply", "divide", "negative", "exp", "log", "sqrt", "tanh",
    "sigmoid", "where_positive", "spread", "sum", "drawn",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operand:
    """Input of an expression on an edge."""

    end: End
    """Row space: sources, destinations, edges by id, one row for all edges, or the gathered destinations."""
    kind: Kind
    takes_gradient: bool = True
    """Whether its gradient may be needed."""


@dataclass(frozen=True, slots=True)
class Value:
    """One operation of an expression."""

    op: Op
    """`where_positive` selects the second argument if the first is above zero, otherwise the third."""
    kind: Kind
    arguments: tuple[int, ...] = ()
    """Positions of earlier values."""
    number: float = 0.0
    """Value of a constant, index of an operand, or threshold of `drawn` (see `EdgeExprBuilder.keep_mask`)."""


@dataclass(frozen=True, slots=True)
class EdgeExpr:
    """Element-wise function of an edge and its two ends."""

    heads: int
    width: int
    """Number of columns per head."""
    operands: tuple[Operand, ...]
    values: tuple[Value, ...]
    """Operations in topological order."""
    results: tuple[int, ...]
    """Positions of the resulting values."""

    @property
    def sums_inside(self) -> bool:
        """Return whether a value reads a sum over a row's columns; sums as results do not count."""
        sums = {at for at, value in enumerate(self.values) if value.op == "sum"}
        return any(sums & set(value.arguments) for value in self.values)

    def num_columns(self, operand: Operand) -> int:
        """Return the number of columns of an operand's matrix."""
        if operand.kind == "key":
            return 1
        return self.heads * (self.width if operand.kind == "row" else 1)

    def row_bytes(self, operand: Operand) -> int:
        """Return the bytes per row of an operand's matrix: keys are uint64, all others float32."""
        return (8 if operand.kind == "key" else 4) * self.num_columns(operand)


_ZERO = Value("constant", "column", (), 0.0)


class EdgeExprBuilder:
    """Builder of expressions, with common subexpression elimination and algebraic simplification."""

    def __init__(self, heads: int, width: int) -> None:
        self.heads = heads
        self.width = width
        self.operands: list[Operand] = []
        self.values: list[Value] = []
        self._positions: dict[Value, int] = {}

    @classmethod
    def from_expr(cls, form: EdgeExpr) -> EdgeExprBuilder:
        """Create a builder with the operands and values of an expression at the same positions."""
        builder = cls(form.heads, form.width)
        builder.operands = list(form.operands)
        builder.values = list(form.values)
        builder._positions = {value: at for at, value in enumerate(form.values)}
        return builder

    def build(self, results: Sequence[int]) -> EdgeExpr:
        """Build the expression of some results, with all operands but only the values that results need."""
        needed = set(results)
        for at in reversed(range(len(self.values))):
            if at in needed:
                needed.update(self.values[at].arguments)
        order = sorted(needed)
        place = {at: k for k, at in enumerate(order)}
        values = tuple(
            Value(v.op, v.kind, tuple(place[a] for a in v.arguments), v.number)
            for v in (self.values[at] for at in order)
        )
        return EdgeExpr(
            self.heads, self.width, tuple(self.operands), values, tuple(place[r] for r in results)
        )

    def operand(self, end: End, kind: Kind, *, takes_gradient: bool = True) -> int:
        """Add an operand; keys take no gradient."""
        self.operands.append(Operand(end, kind, takes_gradient and kind != "key"))
        return self._put(Value("operand", kind, (), len(self.operands) - 1))

    def constant(self, number: float, kind: Kind) -> int:
        return self._put(Value("constant", kind, (), float(number)))

    def add(self, a: int, b: int) -> int:
        if self._is(a, 0):
            return b
        if self._is(b, 0):
            return a
        sums = [self.values[each] for each in (a, b)]
        if all(value.op == "sum" for value in sums):
            return self.sum(self.add(*(value.arguments[0] for value in sums)))
        return self._put(Value("add", self.kind(a), (a, b)))

    def subtract(self, a: int, b: int) -> int:
        if self._is(b, 0):
            return a
        if self._is(a, 0):
            return self.negative(b)
        return self._put(Value("subtract", self.kind(a), (a, b)))

    def multiply(self, a: int, b: int) -> int:
        for one, other in ((a, b), (b, a)):
            if self._is(one, 1):
                return other
            if self._is(one, 0):
                return one
            if self._is(one, -1):
                return self.negative(other)
            value = self.values[other]
            # Move factors into a sum, so that the sum can be the last operation, once per vertex instead of
            # once per edge.
            if value.op == "sum":
                return self.sum(self.multiply(self.spread(one), value.arguments[0]))
        return self._put(Value("multiply", self.kind(a), (a, b)))

    def divide(self, a: int, b: int) -> int:
        if self._is(b, 1) or self._is(a, 0):
            return a
        if self.values[b].op == "constant":
            return self.multiply(a, self.constant(1 / self.values[b].number, self.kind(b)))
        return self._put(Value("divide", self.kind(a), (a, b)))

    def negative(self, a: int) -> int:
        value = self.values[a]
        if value.op == "constant":
            return self.constant(-value.number, value.kind)
        if value.op == "negative":
            return value.arguments[0]
        if value.op == "sum":
            return self.sum(self.negative(value.arguments[0]))
        return self._put(Value("negative", value.kind, (a,)))

    def function(self, op: Op, a: int) -> int:
        """Add one of `exp`, `log`, `sqrt`, `tanh` and `sigmoid`."""
        return self._put(Value(op, self.kind(a), (a,)))

    def where_positive(self, condition: int, there: int, elsewhere: int) -> int:
        if there == elsewhere:
            return there
        choice = [self.values[each] for each in (there, elsewhere)]
        if any(v.op == "sum" for v in choice) and all(v.op == "sum" or v == _ZERO for v in choice):
            zero = self.constant(0, "row")
            rows = [v.arguments[0] if v.op == "sum" else zero for v in choice]
            return self.sum(self.where_positive(self.spread(condition), *rows))
        return self._put(Value("where_positive", choice[0].kind, (condition, there, elsewhere)))

    def keep_mask(self, a: int, b: int, threshold: int) -> int:
        """Add the dropout mask of an edge, 1 or 0 per head, computed from the keys of both ends.

        The keys are added modulo 2^64. Four heads share 64 bits, 16 bits each, the lowest first: the bits of
        heads 4g to 4g + 3 are `mix64(a + b + g * GOLDEN)` of `hyrt.runtime.rng`. A head is kept if its
        bits are at least the threshold.
        """
        return self._put(Value("drawn", "column", (a, b), float(threshold)))

    def spread(self, a: int) -> int:
        """Broadcast a column to a row; rows are unchanged."""
        value = self.values[a]
        if value.kind == "row":
            return a
        if value.op == "constant":
            return self.constant(value.number, "row")
        return self._put(Value("spread", "row", (a,)))

    def sum(self, a: int) -> int:
        """Add the sum over a row's columns."""
        assert self.kind(a) == "row"
        if self._is(a, 0):
            return self.constant(0, "column")
        return self._put(Value("sum", "column", (a,)))

    def kind(self, a: int) -> Kind:
        return self.values[a].kind

    def broadcast(self, *values: int) -> list[int]:
        """Broadcast all values to rows if one of them is a row."""
        if any(self.kind(each) == "row" for each in values):
            return [self.spread(each) for each in values]
        return list(values)

    def _is(self, a: int, number: float) -> bool:
        return self.values[a].op == "constant" and self.values[a].number == number

    def _put(self, value: Value) -> int:
        at = self._positions.get(value)
        if at is None:
            at = self._positions[value] = len(self.values)
            self.values.append(value)
        return at


def append_gradients(builder: EdgeExprBuilder, form: EdgeExpr, seeds: Mapping[int, int]) -> dict[int, int]:
    """Append the gradients of an expression's operands to a builder from `EdgeExprBuilder.from_expr(form)`.

    `seeds` has gradients of values by their positions. Returns the positions of the gradients by operand
    index, without operands that have no gradient.
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
