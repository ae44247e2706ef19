"""Element-wise expressions on edges with their derivatives, and loops over edges that compute expressions.

An expression has heads with `width` columns each. A value is a row (`width` numbers per head) or a column
(one number per head). Operations take values of one kind: `spread` broadcasts a column to a row, and `sum`
reduces a row to a column. This is enough for the layers that NeuGraph (section 3.3) fuses, and for their
derivatives. Keys are 64-bit values of both endpoints, from which every loop computes the same dropout mask of
an edge. One loop type serves an expression and its derivatives. Each row of a loop is the near endpoint of
its edges: its operands are read once, and the values of its edges are accumulated in registers. The other
endpoints are far. In the forward pass, destinations are near. The backward pass runs twice: once with near
destinations, and once over the transpose, with near sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from numpy.typing import NDArray

from hyrt.formatting import short_repr

Kind = Literal["row", "column", "key"]
End = Literal["source", "destination", "edge", "shared", "gathered"]
Op = Literal[
    "operand", "constant", "add", "subtract", "multiply", "divide", "negative", "exp", "log", "sqrt", "tanh",
    "sigmoid", "where_positive", "spread", "sum", "drawn",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operand:
    """Input of an expression."""

    end: End
    """Rows: sources, destinations, edges by id, one row for all edges, or gathered destinations."""
    kind: Kind
    takes_gradient: bool = True
    """Whether the operand may need a gradient."""


@dataclass(frozen=True, slots=True)
class Value:
    """Operation of an expression, and its result."""

    op: Op
    """Operation. `where_positive` is the second argument if the first is positive, otherwise the third."""
    kind: Kind
    arguments: tuple[int, ...] = ()
    """Positions of the arguments, which are earlier values."""
    number: float = 0.0
    """Value of a constant, index of an operand, or threshold of `drawn` (see `EdgeExprBuilder.keep_mask`)."""


@dataclass(frozen=True, slots=True)
class EdgeExpr:
    """Element-wise function of an edge and its two endpoints."""

    heads: int
    width: int
    """Number of columns per head."""
    operands: tuple[Operand, ...]
    values: tuple[Value, ...]
    """Operations in topological order."""
    results: tuple[int, ...]
    """Positions of the results."""

    @property
    def sums_inside(self) -> bool:
        """Return whether a value reads a sum over the columns of a row; sums as results do not count."""
        sums = {at for at, value in enumerate(self.values) if value.op == "sum"}
        return any(sums & set(value.arguments) for value in self.values)

    def num_columns(self, operand: Operand) -> int:
        """Return the number of columns in the matrix of an operand."""
        if operand.kind == "key":
            return 1
        return self.heads * (self.width if operand.kind == "row" else 1)

    def row_bytes(self, operand: Operand) -> int:
        """Return the bytes per row in the matrix of an operand: keys are uint64, all others float32."""
        return (8 if operand.kind == "key" else 4) * self.num_columns(operand)


_ZERO = Value("constant", "column", (), 0.0)


class EdgeExprBuilder:
    """Builder of expressions that eliminates common subexpressions and simplifies algebraically."""

    def __init__(self, heads: int, width: int) -> None:
        self.heads = heads
        self.width = width
        self.operands: list[Operand] = []
        self.values: list[Value] = []
        self._positions: dict[Value, int] = {}

    @classmethod
    def from_expr(cls, form: EdgeExpr) -> EdgeExprBuilder:
        """Create a builder that has the operands and values of an expression at the same positions."""
        builder = cls(form.heads, form.width)
        builder.operands = list(form.operands)
        builder.values = list(form.values)
        builder._positions = {value: at for at, value in enumerate(form.values)}
        return builder

    def build(self, results: Sequence[int]) -> EdgeExpr:
        """Build an expression with the given results, all operands, and only the values that the results
        need.
        """
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
        """Add an operand. Keys have no gradient."""
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
            # Move factors into a sum, so that the sum comes last and is computed per vertex instead of per
            # edge.
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
        """Add the dropout mask of an edge: 1 or 0 per head, computed from the keys of both endpoints.

        The keys are added modulo 2^64. Four heads share 64 bits with 16 bits each, beginning with the lowest:
        the bits of heads 4g to 4g + 3 are `mix64(a + b + g * GOLDEN)` of `hyrt.runtime.rng`. A head is kept
        if its bits are at least the threshold.
        """
        return self._put(Value("drawn", "column", (a, b), float(threshold)))

    def spread(self, a: int) -> int:
        """Broadcast a column to a row; return a row unchanged."""
        value = self.values[a]
        if value.kind == "row":
            return a
        if value.op == "constant":
            return self.constant(value.number, "row")
        return self._put(Value("spread", "row", (a,)))

    def sum(self, a: int) -> int:
        """Add the sum over the columns of a row."""
        assert self.kind(a) == "row"
        if self._is(a, 0):
            return self.constant(0, "column")
        return self._put(Value("sum", "column", (a,)))

    def kind(self, a: int) -> Kind:
        return self.values[a].kind

    def broadcast(self, *values: int) -> list[int]:
        """Broadcast all values to rows if any value is a row."""
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
    """Append the gradients of the operands to a builder from `EdgeExprBuilder.from_expr(form)`.

    `seeds` has the gradients of some values by position. Returns the position of each operand's gradient by
    operand index, without operands that have no gradient.
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


Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """Edges sorted by one endpoint, with their factors."""

    indptr: Array
    """Index of the first edge of each row, [n + 1] int32 or int64."""
    columns: Array
    """Far endpoint of each edge, [E] int32 or int64."""
    rows: Array | None = None
    """Rows to compute [m]; None for all rows."""
    positions: Array | None = None
    """Index of each destination among the gathered rows [num_dst], negative if absent; None: identity."""
    numbers: Array | None = None
    """Id of each edge in the order by destination [E]; None if the ids are consecutive."""
    by_number: bool = False
    """Whether the argmax is recorded as an edge id instead of a source."""
    factors: Array | None = None
    """Factor of each edge by edge id, [E] floating-point."""
    row_scale: Array | None = None
    """Common factor of all edges into each destination, [num_dst] floating-point."""
    loop_scale: Array | None = None
    """Self-loop weight of each destination, [num_dst] floating-point."""
    loops: int = 0
    """Number of leading rows that have a self-loop in addition to their edges."""

    __repr__ = short_repr


Combine = Literal["sum", "max", "attention"]


@dataclass(frozen=True)
class EdgeLoop:
    """Loop over edges that computes an expression and reduces it per row.

    The hash is cached, because hashing takes as long as running the loop over a small block.
    """

    form: EdgeExpr
    near: Literal["source", "destination"]
    """Near endpoint of the edges, to which the rows belong."""
    combine: Combine
    """Reduction over a row's edges. For `attention`, the results are a score and the weighted message."""
    has_loops: bool
    """Whether rows have a self-loop in addition to their edges."""
    masked: bool = False
    """Whether the last operand, the gradient of the gathered rows, applies to argmax edges only."""
    by_chunk: tuple[bool, ...] = ()
    """Whether each result is summed over all rows of a call instead of per row."""
    to_far: tuple[bool, ...] = ()
    """Whether each result is added to the rows of far endpoints. Only the host runs such loops."""

    @cached_property
    def _hash(self) -> int:
        return hash((
            self.form, self.near, self.combine, self.has_loops, self.masked, self.by_chunk, self.to_far,
        ))  # fmt: skip

    def __hash__(self) -> int:
        return self._hash

    @property
    def is_whole(self) -> bool:
        """Return whether the columns of a head must be in one pass."""
        return self.combine == "attention" or self.form.sums_inside

    @property
    def num_outputs(self) -> int:
        """Return the number of output arrays: the results, or the gathered rows and the saved state."""
        return {"sum": len(self.form.results), "max": 2, "attention": 2}[self.combine]

    @property
    def is_backward(self) -> bool:
        """Return whether the last operand is the gradient of the gathered rows."""
        operands = self.form.operands
        return self.combine == "sum" and bool(operands) and operands[-1].end == "gathered"

    def is_far(self, operand: Operand) -> bool:
        """Return whether an operand is read for each edge instead of once per row."""
        if operand.end in ("shared", "edge"):
            return operand.end == "edge"
        return (operand.end == "source") != (self.near == "source")

    def is_total(self, k: int) -> bool:
        """Return whether result k is summed over all rows of a call."""
        return bool(self.by_chunk) and self.by_chunk[k]

    def adds_to_far(self, k: int) -> bool:
        """Return whether result k is added to the rows of far endpoints."""
        return bool(self.to_far) and self.to_far[k]

    def summand(self, k: int) -> int:
        """Return the value accumulated for result k; for a sum over columns, the row before the sum."""
        at = self.form.results[k]
        value = self.form.values[at]
        return value.arguments[0] if value.op == "sum" else at
