"""Numba code generation for edge loops, with the SIMD functions of `hyrt.nn.full_graph.simd`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hyrt.nn.fused.edge_loop import EdgeExpr, EdgeLoop, Operand, Value
from hyrt.runtime.hardware import vector_instructions

# Maximum number of columns per pass over the edges. Wider values would leave too few registers for others.
_MAX_LANES = 32
# Loops with few values fit AVX-512 registers with twice the lanes, which halves the passes over the edges.
_FEW_VALUES = 6
_MAX_LANES_OF_FEW = 64 if "AVX-512" in vector_instructions() else _MAX_LANES
# Maximum number of columns if a value reads their sum. The head cannot be split into passes then.
MAX_UNSPLIT_LANES = 256


@dataclass(frozen=True, slots=True)
class ColumnPass:
    """Column range that one call of a loop computes."""

    head: int
    """Index of the first head."""
    heads: int
    at: int
    """Index of the first column within the head."""
    columns: int
    """Number of columns of all heads in the pass."""

    @property
    def lanes(self) -> int:
        """Return the number of lanes per row: a power of two, because others compile to slow code."""
        return 1 << (self.columns - 1).bit_length()


def column_passes(form: EdgeExpr, *, whole: bool) -> list[ColumnPass]:
    """Split the columns of an expression into passes over the edges; `whole` forbids splitting heads."""
    heads, width = form.heads, form.width
    held: list[Operand | Value] = [*form.operands, *(form.values[at] for at in form.results)]
    rows = sum(each.kind == "row" for each in held)
    limit = _MAX_LANES_OF_FEW if rows <= _FEW_VALUES and heads == 1 else _MAX_LANES
    if whole or width <= limit:
        # Use the largest number of heads per pass that fits and divides the number of heads.
        together = max(n for n in range(1, heads + 1) if not heads % n and (n == 1 or n * width <= limit))
        return [ColumnPass(head, together, 0, together * width) for head in range(0, heads, together)]
    return [
        ColumnPass(head, 1, at, min(limit, width - at))
        for head in range(heads)
        for at in range(0, width, limit)
    ]


class NumbaCodegen:
    """Code generator of a loop."""

    def __init__(self, loop: EdgeLoop) -> None:
        self._loop = loop
        self._form = loop.form

    def generate(self, part: ColumnPass) -> str:
        """Generate the function `loop` for passes with the shape of `part`."""
        return "\n".join([_HEAD, *self._lines(part), ""])

    def _lines(self, part: ColumnPass) -> Iterator[str]:
        form = self._form
        inputs = ", ".join(f"x{k}" for k in range(len(form.operands)))
        outs = ", ".join(f"o{k}" for k in range(self._loop.num_outputs))
        yield "@nb.njit(nogil=True, cache=True, error_model='numpy', boundscheck=False)"
        yield (
            "def loop(indptr, columns, rows, positions, edges, factors, row_scale, loop_scale, loops, "
            f"by_edge, winners, {inputs}, {outs}, head, at, chunk, zero, start, stop):"
        )
        yield f"    no_row = vectors.filled(zero, {part.lanes})"
        yield f"    no_column = vectors.filled(zero, {part.heads})"
        yield "    line = 64 // o0.itemsize"
        for k, operand in enumerate(form.operands):
            if operand.end == "shared":
                yield f"    v_x{k} = {self._load(k, '0', part)}"
        for k, is_total in enumerate(self._loop.by_chunk):
            if is_total:
                yield f"    t{k} = {self._zero(k)}"
        yield "    for k in range(start, stop):"
        yield "        i = np.int64(k) if rows is None else np.int64(rows[k])"
        yield "        first, end = np.int64(indptr[i]), np.int64(indptr[i + 1])"
        yield "        # Rows that follow each other ask for each other's far ends."
        yield "        final = (np.int64(indptr[stop]) if rows is None else end) - 1"
        for k, operand in enumerate(form.operands):
            if operand.end != "shared" and not self._loop.is_far(operand):
                yield f"        v_x{k} = {self._load(k, 'k' if operand.end == 'gathered' else 'i', part)}"
        for line in self._begin(part):
            yield "        " + line
        if self._loop.has_loops:
            yield "        begin = first - 1 if i < loops else first"
        else:
            yield "        begin = first"
        yield "        for e in range(begin, end):"
        for line in self._edge(part):
            yield "            " + line
        for line in self._end(part):
            yield "        " + line
        for k, is_total in enumerate(self._loop.by_chunk):
            if is_total:
                yield from self._store_sum(k, f"t{k}", "chunk", part, "    ")

    def _edge(self, part: ColumnPass) -> Iterator[str]:
        form = self._form
        far = [k for k, operand in enumerate(form.operands) if self._loop.is_far(operand)]
        is_loop_first = self._loop.has_loops
        yield "c = i"
        indent = ""
        if is_loop_first:
            yield "if e >= first:"
            indent = "    "
        yield indent + "c = np.int64(columns[e])"
        yield indent + "ahead = np.int64(columns[min(e + AHEAD, final)])"
        gathered = [k for k in far if form.operands[k].end == "gathered"]
        if gathered:
            yield indent + "later = ahead"
            yield indent + "if positions is not None:"
            yield indent + "    later = np.int64(positions[ahead])"
        of_edges = [k for k in far if form.operands[k].end == "edge"]
        for k in far:
            if k in of_edges:
                continue
            row = "later" if k in gathered else "ahead"
            if form.operands[k].kind == "row":
                yield indent + f"for s in range(0, {part.columns}, line):"
                yield indent + f"    prefetch(x{k}, {self._place(k, row)} + s)"
            else:
                yield indent + f"prefetch(x{k}, {self._place(k, row)})"
        for k in self._far_results():
            yield indent + f"for s in range(0, {part.columns}, line):"
            yield indent + f"    prefetch(o{k}, {self._row('ahead')} + s)"
        if gathered:
            yield "p = c"
            yield "if positions is not None:"
            yield "    p = np.int64(positions[c])"
            yield "if positions is not None:"
            yield "    if p < 0:"
            yield "        continue"
        if self._loop.masked:
            yield "if not by_edge and e > first and columns[e - 1] == columns[e]:"
            yield "    continue"
        if of_edges:
            yield f"n = {self._ordinal}"
        for k in far:
            row = "n" if k in of_edges else "p" if k in gathered else "c"
            yield f"v_x{k} = {self._load(k, row, part)}"
        if self._loop.masked or self._loop.combine == "max":
            yield from self._number()
        if self._loop.masked:
            last = len(form.operands) - 1
            row = "p" if last in gathered else "k"
            used = self._used(part)
            yield f"won = vectors.load(winners, {self._place(last, row)}, {part.lanes}, {used})"
            yield f"g = vectors.where_equal(won, number, v_x{last}, no_row)"
        elif self._loop.is_backward:
            yield f"g = v_x{len(form.operands) - 1}"
        if self._loop.is_backward:
            yield from self._scaled("g")
        for at, value in enumerate(form.values):
            yield f"v{at} = {self._expression(value, part)}"
        yield from self._combine(part)

    @property
    def _ordinal(self) -> str:
        """Return the expression for the id of an edge."""
        if edges_are_consecutive(self._loop.near):
            return "e"
        return "(np.int64(e) if edges is None else np.int64(edges[e]))"

    def _number(self) -> Iterator[str]:
        """Generate the identity of an edge in the argmax: its id or its source."""
        source = "c" if self._loop.near == "destination" else "i"
        yield f"number = np.int32({self._ordinal} if by_edge else {source})"
        if self._loop.has_loops:
            yield "if e < first:"
            yield "    number = np.int32(-2)"

    def _scaled(self, name: str) -> Iterator[str]:
        """Generate the multiplication by the factors of an edge and of its destination."""
        destination = "i" if self._loop.near == "destination" else "c"
        edge_index = "e" if edges_are_consecutive(self._loop.near) else "edges[e]"
        indent = ""
        if self._loop.has_loops:
            yield "if e < first:"
            yield "    if loop_scale is not None:"
            yield f"        {name} = vectors.scaled({name}, loop_scale[{destination}])"
            yield "else:"
            indent = "    "
        yield indent + "if row_scale is not None:"
        yield indent + f"    {name} = vectors.scaled({name}, row_scale[{destination}])"
        yield indent + "if factors is not None:"
        yield indent + f"    {name} = vectors.scaled({name}, factors[{edge_index}])"

    def _begin(self, part: ColumnPass) -> Iterator[str]:
        if self._loop.combine == "sum":
            for k in range(len(self._form.results)):
                if not self._loop.is_total(k) and not self._loop.adds_to_far(k):
                    yield f"a{k} = {self._zero(k)}"
        elif self._loop.combine == "max":
            yield "best = no_row"
            yield f"winner = vectors.filled(np.int32(-1), {part.lanes})"
        else:
            yield f"top = vectors.filled(o0.dtype.type(-np.inf), {part.heads})"
            yield "total, weights = no_row, no_column"

    def _combine(self, part: ColumnPass) -> Iterator[str]:
        results = self._form.results
        if self._loop.combine == "sum":
            scaled = not self._loop.is_backward
            for k in range(len(results)):
                yield f"r = v{self._loop.summand(k)}"
                if scaled:
                    yield from self._scaled("r")
                if self._loop.adds_to_far(k):
                    used = self._used(part)
                    yield f"to = {self._row('c')}"
                    yield f"there = vectors.load(o{k}, to, {part.lanes}, {used})"
                    yield f"vectors.store(o{k}, to, functions.add(there, r), {used})"
                    continue
                name = f"t{k}" if self._loop.is_total(k) else f"a{k}"
                yield f"{name} = functions.add({name}, r)"
        elif self._loop.combine == "max":
            yield f"owner = vectors.filled(number, {part.lanes})"
            yield "if e == begin:"
            yield f"    best, winner = v{results[0]}, owner"
            yield "else:"
            yield f"    winner = vectors.where_above(v{results[0]}, best, owner, winner)"
            yield f"    best = vectors.where_above(v{results[0]}, best, v{results[0]}, best)"
        else:
            score, message = (f"v{at}" for at in results)
            yield f"if vectors.above({score}, top):"
            yield f"    higher = vectors.where_positive(vectors.subtract({score}, top), {score}, top)"
            yield "    shrink = vectors.exp(vectors.subtract(top, higher))"
            yield f"    total = vectors.multiply(total, {self._spread('shrink', part)})"
            yield "    weights = vectors.multiply(weights, shrink)"
            yield "    top = higher"
            yield f"weight = vectors.exp(vectors.subtract({score}, top))"
            yield f"total = vectors.add(total, vectors.multiply({self._spread('weight', part)}, {message}))"
            yield "weights = vectors.add(weights, weight)"

    def _end(self, part: ColumnPass) -> Iterator[str]:
        form = self._form
        row, used = self._row("k"), self._used(part)
        if self._loop.combine == "sum":
            for k in range(len(form.results)):
                if not self._loop.is_total(k) and not self._loop.adds_to_far(k):
                    yield from self._store_sum(k, f"a{k}", "i" if self._loop.by_chunk else "k", part, "")
        elif self._loop.combine == "max":
            yield f"vectors.store(o0, {row}, best, {used})"
            yield "if o1 is not None:"
            yield f"    vectors.store(o1, {row}, winner, {used})"
        else:
            yield "inverse = vectors.inverse_or_zero(weights)"
            spread = self._spread("inverse", part)
            yield f"vectors.store(o0, {row}, vectors.multiply(total, {spread}), {used})"
            yield "if o1 is not None:"
            yield (
                f"    vectors.store(o1, k * {form.heads} + head, "
                "vectors.add(top, vectors.log(weights)), None)"
            )

    def _store_sum(self, k: int, name: str, row: str, part: ColumnPass, indent: str) -> Iterator[str]:
        """Store the accumulated result k."""
        form, value = self._form, self._form.values[self._form.results[k]]
        if value.kind == "row":
            yield f"{indent}vectors.store(o{k}, {self._row(row)}, {name}, {self._used(part)})"
            return
        to = f"{row} * {form.heads} + head"
        if value.op == "sum":
            columns = part.columns // part.heads
            yield f"{indent}s{k} = vectors.sums_of_heads({name}, {columns}, {part.heads})"
            # Later column passes over a head add to the result of the first pass.
            yield f"{indent}if at > 0:"
            yield f"{indent}    s{k} = vectors.add(s{k}, vectors.load(o{k}, {to}, {part.heads}, None))"
            yield f"{indent}vectors.store(o{k}, {to}, s{k}, None)"
        else:
            yield f"{indent}if at == 0:"
            yield f"{indent}    vectors.store(o{k}, {to}, {name}, None)"

    def _zero(self, k: int) -> str:
        return "no_row" if self._form.values[self._loop.summand(k)].kind == "row" else "no_column"

    def _far_results(self) -> list[int]:
        return [k for k in range(len(self._form.results)) if self._loop.adds_to_far(k)]

    def _used(self, part: ColumnPass) -> str:
        """Return the number of lanes of a row that have columns; None for all lanes."""
        return "None" if part.columns == part.lanes else str(part.columns)

    def _row(self, row: str) -> str:
        """Return the offset of a row in a matrix of width heads * width."""
        return f"{row} * {self._form.heads * self._form.width} + head * {self._form.width} + at"

    def _place(self, k: int, row: str) -> str:
        """Return the offset of a row in operand k."""
        form = self._form
        if form.operands[k].kind == "key":
            return row
        if form.operands[k].kind == "column":
            return f"{row} * {form.heads} + head"
        return self._row(row)

    def _load(self, k: int, row: str, part: ColumnPass) -> str:
        if self._form.operands[k].kind == "key":
            return f"x{k}[{row}]"
        if self._form.operands[k].kind == "column":
            return f"vectors.load(x{k}, {self._place(k, row)}, {part.heads}, None)"
        return f"vectors.load(x{k}, {self._place(k, row)}, {part.lanes}, {self._used(part)})"

    def _spread(self, name: str, part: ColumnPass) -> str:
        return f"vectors.spread({name}, {part.columns // part.heads}, {part.lanes})"

    def _expression(self, value: Value, part: ColumnPass) -> str:
        a = [f"v{at}" for at in value.arguments]
        zero = "no_row" if value.kind == "row" else "no_column"
        match value.op:
            case "operand":
                k = int(value.number)
                if self._loop.is_backward and k == len(self._form.operands) - 1:
                    return "g"
                return f"v_x{k}"
            case "constant":
                return f"functions.number({zero}, {value.number!r})" if value.number else zero
            case "multiply" | "divide":
                return f"vectors.{value.op}({a[0]}, {a[1]})"
            case "add" | "subtract":
                # Neither operation is fused with a product, so a value has the same bits in every loop.
                return f"functions.{value.op}({a[0]}, {a[1]})"
            case "drawn":
                return f"functions.drawn(no_column, {a[0]} + {a[1]}, head, {int(value.number)})"
            case "where_positive":
                return f"vectors.where_positive({a[0]}, {a[1]}, {a[2]})"
            case "log":
                return f"vectors.log({a[0]})"
            case "spread":
                return self._spread(a[0], part)
            case "sum":
                return f"vectors.sums_of_heads({a[0]}, {part.columns // part.heads}, {part.heads})"
            case _:
                return f"functions.{value.op}({a[0]})"


def edges_are_consecutive(near: str) -> bool:
    """Return whether the edge ids of consecutive rows are consecutive, as for near destinations."""
    return near == "destination"


_HEAD = """\
from hyrt.runtime.numba_cache import nb
import numpy as np

from hyrt.runtime.intrinsics import prefetch
from hyrt.nn.fused import simd_math as functions
from hyrt.nn.full_graph import simd as vectors
from hyrt.nn.full_graph.traversal import AHEAD

"""
