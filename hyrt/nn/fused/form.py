"""What remains to be computed on an edge, as a small data structure: element-wise operations on two ends.

A form has heads, each of `width` columns. A value is a row (`width` numbers a head) or a column (one number a
head). Operations take values of one kind; `spread` makes a row of a column, `sum` a column of a row. Nothing
else is needed for the layers that NeuGraph (section 3.3) fuses, nor for their derivatives.

Keys are there for dropout on edges: 64 bits of either end, of which `drawn` makes a column of ones and zeros,
the same wherever the edge is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """What a form is given for an edge."""

    end: End
    """Whose rows it has: those of sources, those of destinations, those of edges by their numbers, one row
    that all edges share, or rows of the destinations that have gathered, which may be some of all."""
    kind: Kind
    takes_gradient: bool = True
    """Whether its gradient is ever wanted."""


@dataclass(frozen=True, slots=True)
class Value:
    """One step of a form."""

    op: Op
    """What is computed. `where_positive` takes a condition and two values, and gives the first of them where
    the condition is above zero. `drawn` takes two keys: see `FormBuilder.drawn`."""
    kind: Kind
    arguments: tuple[int, ...] = ()
    """Positions of earlier values."""
    number: float = 0.0
    """Of a constant, its number; of an operand, its position; of what is drawn, its threshold."""


@dataclass(frozen=True, slots=True)
class Form:
    """An element-wise function of an edge's two ends."""

    heads: int
    width: int
    """Columns of a head."""
    operands: tuple[Operand, ...]
    values: tuple[Value, ...]
    """In an order in which each can be computed after those before it."""
    results: tuple[int, ...]
    """Positions of the values that it gives."""

    @property
    def sums_inside(self) -> bool:
        """Whether a sum over a row's columns is computed with; a result that is a sum does not count."""
        sums = {at for at, value in enumerate(self.values) if value.op == "sum"}
        return any(sums & set(value.arguments) for value in self.values)

    def numbers(self, operand: Operand) -> int:
        """Columns of an operand's matrix."""
        if operand.kind == "key":
            return 1
        return self.heads * (self.width if operand.kind == "row" else 1)

    def row_bytes(self, operand: Operand) -> int:
        """Bytes of a row of an operand's matrix: keys are uint64, all others float32."""
        return (8 if operand.kind == "key" else 4) * self.numbers(operand)


_ZERO = Value("constant", "column", (), 0.0)


class FormBuilder:
    """Builds a form, each value once; what adds nothing is left out.

    Parameters
    ----------
    heads, width
        The size of the form's values.
    """

    def __init__(self, heads: int, width: int) -> None:
        self.heads = heads
        self.width = width
        self.operands: list[Operand] = []
        self.values: list[Value] = []
        self._there: dict[Value, int] = {}

    @classmethod
    def after(cls, form: Form) -> FormBuilder:
        """A builder that has a form's operands and values already, at the same positions."""
        builder = cls(form.heads, form.width)
        builder.operands = list(form.operands)
        builder.values = list(form.values)
        builder._there = {value: at for at, value in enumerate(form.values)}
        return builder

    def form(self, results: Sequence[int]) -> Form:
        """The form of some results, without the values that they do not need.

        All operands stay.
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
        return Form(self.heads, self.width, tuple(self.operands), values, tuple(place[r] for r in results))

    def operand(self, end: End, kind: Kind, *, takes_gradient: bool = True) -> int:
        """A new operand; keys take no gradient."""
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
            # A factor of a sum goes into it: so a sum can be the last thing that is done, once a vertex and
            # not once an edge.
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
        """One of `exp`, `log`, `sqrt`, `tanh` and `sigmoid`."""
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

    def drawn(self, a: int, b: int, threshold: int) -> int:
        """Whether each head is kept, 1 or 0, by the keys of both ends.

        The two are added up modulo 2^64. Four heads share 64 bits, 16 each, the lowest first: those of heads
        4g to 4g + 3 are `mix64(a + b + g * GOLDEN)` of `hyrt.machine.generator`. A head is kept where its
        bits are no less than the threshold.
        """
        return self._put(Value("drawn", "column", (a, b), float(threshold)))

    def spread(self, a: int) -> int:
        """The row of which each column is a column value; a row as it is."""
        value = self.values[a]
        if value.kind == "row":
            return a
        if value.op == "constant":
            return self.constant(value.number, "row")
        return self._put(Value("spread", "row", (a,)))

    def sum(self, a: int) -> int:
        """The sum over a row's columns."""
        assert self.kind(a) == "row"
        if self._is(a, 0):
            return self.constant(0, "column")
        return self._put(Value("sum", "column", (a,)))

    def kind(self, a: int) -> Kind:
        return self.values[a].kind

    def alike(self, *values: int) -> list[int]:
        """The values as rows, if one of them is a row."""
        if any(self.kind(each) == "row" for each in values):
            return [self.spread(each) for each in values]
        return list(values)

    def _is(self, a: int, number: float) -> bool:
        return self.values[a].op == "constant" and self.values[a].number == number

    def _put(self, value: Value) -> int:
        at = self._there.get(value)
        if at is None:
            at = self._there[value] = len(self.values)
            self.values.append(value)
        return at
