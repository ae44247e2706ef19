"""C code generation for edge loops (OpenCL C and CUDA C++), and the interface of devices that run loops.

Several threads share a row, and each has its own columns, so sums need no atomics and have a fixed order.
Values with one number per head are computed by every thread. If other values read a column sum, it is reduced
across the threads, and the values that depend on it form a later stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from hyrt.nn.fused.c_dialects import Dialect, LoopTiling
from hyrt.nn.fused.edge_loop import EdgeLoop, Value

_FUNCTIONS = ("exp", "log", "sqrt", "tanh")
_SIGNS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopCall:
    """Variant of a generated loop: its optional arguments, types and outputs."""

    edge_identity: Literal["edge", "source", "loop"] = "edge"
    """Identity of argmax edges for `max`: the edge id, the source, or -2 if all edges are self-loops."""
    has_rows: bool = False
    """Whether the rows to compute are listed; otherwise, the first rows are computed."""
    has_factors: bool = False
    """Whether edges have factors."""
    has_scale: bool = False
    """Whether destinations have factors."""
    continues: bool = False
    """Whether sums are added to the outputs. Attention then outputs undivided rows and its softmax state."""
    keeps: bool = True
    """Whether the loop writes the state for the backward pass."""
    real: Literal["float", "double"] = "float"
    starts: Literal["int", "long"] = "int"
    columns: Literal["int", "long"] = "int"
    """Integer type of far endpoints. `starts`: type of edge offsets and ids. `real`: type of numbers."""


@dataclass(frozen=True, slots=True)
class CKernel:
    """Source of a generated kernel `edge_loop`, and the names of the kernel's arguments.

    The arguments are, in order: `rows`, `starts`, `columns`, `numbers` (edge ids), `factors`, `scale`,
    `winners`, the operands `x0`, ... that the loop reads (edge rows in the order of `columns`), the outputs
    `o0`, ..., `num_rows`, and `first_source` if sources identify the edges. Arguments that the loop does not
    need are omitted.
    """

    source: str
    arguments: tuple[str, ...]


def generate_kernel(loop: EdgeLoop, call: LoopCall, tiling: LoopTiling, dialect: Dialect) -> CKernel:
    """Generate the C kernel of a loop."""
    return _CPrinter(loop, call, tiling, dialect).printed()


class _CPrinter:
    def __init__(self, loop: EdgeLoop, call: LoopCall, cut: LoopTiling, dialect: Dialect) -> None:
        self._loop, self._call, self._cut, self._dialect = loop, call, cut, dialect
        self._form = loop.form
        self._is_near_destination = loop.near == "destination"
        self._read = sorted({int(value.number) for value in loop.form.values if value.op == "operand"})
        self._stages = self._compute_stages()
        self._saved_rows = self._find_saved_rows()

    def printed(self) -> CKernel:
        arguments = list(self._declare_arguments())
        lines = [
            *self._dialect.vector_definitions(self._cut.vector, self._call.real),
            f"typedef {self._integer(self._call.starts)} start_t;",
            f"typedef {self._integer(self._call.columns)} column_t;",
            f"typedef unsigned {self._dialect.long} bits_t;",
            *(f"#define {name} {value}" for name, value in self._sizes()),
            self._dialect.functions,
            *(
                _mask_function(self._dialect)
                if any(value.op == "drawn" for value in self._form.values)
                else []
            ),
            f"{self._dialect.kernel} edge_loop({', '.join(f'{kind}{name}' for kind, name in arguments)})",
            "{",
            *([self._dialect.scratch] if self._dialect.scratch else []),
            *(f"    {line}" for line in self._kernel()),
            "}",
            "",
        ]
        return CKernel("\n".join(lines), tuple(name for _, name in arguments))

    def _sizes(self) -> Iterator[tuple[str, int]]:
        yield "HEADS", self._form.heads
        yield "WIDTH", self._form.width
        yield "LANES", self._cut.lanes
        yield "SLOTS", self._cut.slots
        yield "VECTOR", self._cut.vector
        yield "COLUMNS", self._cut.columns
        yield "GRAIN", self._cut.grain

    def _integer(self, kind: str) -> str:
        return self._dialect.long if kind == "long" else "int"

    @property
    def _reads_numbers(self) -> bool:
        by_edge = self._loop.masked and self._call.edge_identity == "edge"
        return not self._is_near_destination and (self._call.has_factors or by_edge)

    @property
    def _tracks_argmax(self) -> bool:
        return self._loop.masked or self._loop.combine == "max"

    @property
    def _writes_state(self) -> bool:
        return self._call.keeps or self._call.continues

    def _declare_arguments(self) -> Iterator[tuple[str, str]]:
        memory, call = self._dialect.memory, self._call

        def read(kind: str) -> str:
            return f"{memory}const {kind} *{self._dialect.restrict} "

        if call.has_rows:
            yield read("int"), "rows"
        yield read("start_t"), "starts"
        yield read("column_t"), "columns"
        if self._reads_numbers:
            yield read("start_t"), "numbers"
        if call.has_factors:
            yield read("real_t"), "factors"
        if call.has_scale:
            yield read("real_t"), "scale"
        if self._loop.masked:
            yield read("int"), "winners"
        for k in self._read:
            yield read("bits_t" if self._form.operands[k].kind == "key" else "real_t"), f"x{k}"
        for k in range(self._num_outputs):
            kind = "int" if self._loop.combine == "max" and k == 1 else "real_t"
            yield f"{memory}{kind} *{self._dialect.restrict} ", f"o{k}"
        yield "const int ", "num_rows"
        if self._tracks_argmax and call.edge_identity == "source":
            yield "const int ", "first_source"

    @property
    def _num_outputs(self) -> int:
        if self._loop.combine == "sum":
            return len(self._form.results)
        if not self._writes_state:
            return 1
        return 3 if self._loop.combine == "attention" and self._call.continues else 2

    def _compute_stages(self) -> list[int]:
        """Return the stage of each value: how many successive sums over columns it depends on."""
        stages: list[int] = []
        for value in self._form.values:
            before = max((stages[a] for a in value.arguments), default=0)
            stages.append(before + (value.op == "sum"))
        return stages

    def _find_saved_rows(self) -> set[int]:
        """Return the rows that are computed in one stage and read in a later stage."""
        form, saved = self._form, set()
        for at, value in enumerate(form.values):
            stage = self._stages[at] - (value.op == "sum")
            saved |= {a for a in value.arguments if form.values[a].kind == "row" and self._stages[a] < stage}
        if self._loop.combine == "attention":
            message = form.results[1]
            if self._stages[message] < self._last_stage:
                saved.add(message)
        return {at for at in saved if form.values[at].op != "constant" and not self._is_near(at)}

    @property
    def _last_stage(self) -> int:
        """Return the stage in which `max` and `attention` combine their results."""
        return max(self._stages[at] for at in self._form.results)

    def _is_near(self, at: int) -> bool:
        """Return whether a value is an operand that is equal for all edges of a row."""
        value = self._form.values[at]
        if value.op != "operand":
            return False
        k = int(value.number)
        if self._is_gradient(k) and (self._loop.masked or self._has_factor):
            return False
        return not self._loop.is_far(self._form.operands[k])

    def _is_gradient(self, k: int) -> bool:
        return self._loop.is_backward and k == len(self._form.operands) - 1

    @property
    def _has_factor(self) -> bool:
        return self._call.has_factors or self._call.has_scale

    def _kernel(self) -> Iterator[str]:
        loop, form = self._loop, self._form
        yield f"const int group = {self._dialect.group}, lane = {self._dialect.lane};"
        yield "const int begin = group * GRAIN;"
        # All threads that share these rows return here, so none waits for another at a barrier.
        yield "if (begin >= num_rows) return;"
        yield "const int stop = begin + GRAIN < num_rows ? begin + GRAIN : num_rows;"
        yield "for (int head = 0; head < HEADS; head++)"
        yield "for (int at = 0; at < WIDTH; at += COLUMNS) {"
        for k in self._read:
            if form.operands[k].end == "shared":
                yield from self._load_near(k, "0", "    ")
        totals = [k for k in range(len(form.results)) if loop.is_total(k)]
        for k in totals:
            yield from self._clear(k, f"t{k}", "    ")
        yield "    for (int n = begin; n < stop; n++) {"
        yield f"        const int i = {'rows[n]' if self._call.has_rows else 'n'};"
        yield "        const start_t first = starts[n], end = starts[n + 1];"
        for k in self._read:
            operand = form.operands[k]
            if operand.end != "shared" and not loop.is_far(operand):
                yield from self._load_near(k, "i", "        ")
        yield from self._init_accumulators("        ")
        yield "        for (start_t e = first; e < end; e++) {"
        for line in self._edge():
            yield f"            {line}"
        yield "        }"
        yield from self._finish_row("        ")
        yield "    }"
        for k in totals:
            yield from self._store(k, f"t{k}", "group", "    ", adds=False)
        yield "}"

    def _each_slot(self, lines: Sequence[str], indent: str) -> Iterator[str]:
        """Wrap lines in a loop over the columns of a thread; `c` is the first column of each vector."""
        if not lines:
            return
        yield f"{indent}for (int s = 0; s < SLOTS; s++) {{"
        is_cut = self._form.width % self._cut.columns > 0
        if is_cut or any("+ c" in line for line in lines):
            yield f"{indent}    const int c = at + (s * LANES + lane) * VECTOR;"
        if is_cut:
            yield f"{indent}    if (c >= WIDTH) continue;"
        for line in lines:
            yield f"{indent}    {line}"
        yield f"{indent}}}"

    def _place(self, row: str) -> str:
        return f"(size_t){row} * (HEADS * WIDTH) + head * WIDTH + c"

    def _column(self, row: str) -> str:
        return f"(size_t){row} * HEADS + head"

    def _load_near(self, k: int, row: str, indent: str) -> Iterator[str]:
        """Load an operand that is equal for all edges of a row."""
        if self._form.operands[k].kind != "row":
            yield f"{indent}const {self._single(k, 'n', row)}"
            return
        yield f"{indent}row_t n{k}[SLOTS];"
        yield from self._each_slot([f"n{k}[s] = LOAD(x{k} + {self._place(row)});"], indent)

    def _single(self, k: int, name: str, row: str) -> str:
        """Return the declaration of an operand that has one number per head, or one key per row."""
        if self._form.operands[k].kind == "key":
            return f"bits_t {name}{k} = x{k}[{row}];"
        return f"real_t {name}{k} = x{k}[{self._column(row)}];"

    def _clear(self, k: int, name: str, indent: str) -> Iterator[str]:
        if self._form.values[self._loop.summand(k)].kind == "row":
            yield f"{indent}row_t {name}[SLOTS];"
            yield f"{indent}for (int s = 0; s < SLOTS; s++) {name}[s] = (row_t)(0);"
        else:
            yield f"{indent}real_t {name} = 0;"

    def _init_accumulators(self, indent: str) -> Iterator[str]:
        loop, call = self._loop, self._call
        if loop.combine == "sum":
            for k in range(len(self._form.results)):
                if not loop.is_total(k):
                    yield from self._clear(k, f"a{k}", indent)
            return
        yield f"{indent}row_t a0[SLOTS];"
        start = f"LOAD(o0 + {self._place('i')})" if call.continues else "(row_t)(0)"
        lines = [f"a0[s] = {start};"]
        if loop.combine == "max":
            yield f"{indent}flags_t winner[SLOTS];"
            known = f"LOAD_FLAGS(o1 + {self._place('i')})" if call.continues else "(flags_t)(-1)"
            lines.append(f"winner[s] = {known};")
        else:
            top, weights = (f"o{k}[{self._column('i')}]" if call.continues else "0" for k in (1, 2))
            yield f"{indent}real_t top = {top}, weights = {weights};"
            if call.continues:
                # All lanes must have read these values before one lane overwrites the values.
                yield f"{indent}TOGETHER;"
        yield from self._each_slot(lines, indent)

    def _edge(self) -> Iterator[str]:
        body = list(self._edge_body())
        # If no value depends on the far endpoint, `other` would be unused.
        is_read = any("other" in line for line in body)
        yield "const column_t other = columns[e];" if is_read else "(void)columns;"
        yield from body

    def _edge_body(self) -> Iterator[str]:
        loop, form, call = self._loop, self._form, self._call
        if loop.masked and call.edge_identity == "source":
            yield "// Edges of the same two ends are one where the largest is chosen."
            yield "if (e > first && columns[e - 1] == other) continue;"
        if self._tracks_argmax:
            yield f"const int number = {self._number()};"
        if self._has_factor:
            yield f"const real_t factor = {self._factor()};"
        for k in self._read:
            if loop.is_far(form.operands[k]) and form.operands[k].kind != "row":
                yield f"const {self._single(k, 'far', self._far_row(k))}"
        for at in sorted(self._saved_rows):
            yield f"row_t k{at}[SLOTS];"
        last = max([*self._stages, self._last_stage])
        for stage in range(last + 1):
            yield from self._stage(stage)

    def _number(self) -> str:
        if self._call.edge_identity == "loop":
            return "-2"
        if self._call.edge_identity == "source":
            return f"first_source + (int){'other' if self._is_near_destination else 'i'}"
        return "(int)e" if self._is_near_destination else "(int)numbers[e]"

    def _factor(self) -> str:
        terms = []
        if self._call.has_scale:
            terms.append("scale[i]" if self._is_near_destination else "scale[other]")
        if self._call.has_factors:
            terms.append("factors[e]" if self._is_near_destination else "factors[numbers[e]]")
        return " * ".join(terms)

    def _stage(self, stage: int) -> Iterator[str]:
        """Generate the values and reductions of one stage."""
        form, loop = self._form, self._loop
        rows: list[str] = []
        sums = []
        for at, value in enumerate(form.values):
            if value.op == "sum":
                if self._stages[at] == stage + 1 and self._is_sum_read(at):
                    yield f"real_t v{at} = 0;"
                    rows.append(f"v{at} += OVER({self._name(value.arguments[0])});")
                    sums.append(at)
            elif self._stages[at] != stage or value.op == "constant" or self._is_near(at):
                continue
            elif value.kind != "row":
                if value.op != "operand":
                    yield f"const real_t v{at} = {self._expression(value)};"
            else:
                to = f"k{at}[s]" if at in self._saved_rows else f"const row_t v{at}"
                rows.append(f"{to} = {self._expression(value)};")
        if loop.combine == "sum":
            for k in range(len(form.results)):
                added = loop.summand(k)
                if self._stages[added] != stage:
                    continue
                name = f"t{k}" if loop.is_total(k) else f"a{k}"
                term = self._name(added)
                if self._has_factor and not loop.is_backward:
                    term = f"factor * {term}"
                if form.values[added].kind == "row":
                    rows.append(f"{name}[s] += {term};")
                else:
                    yield f"{name} += {term};"
        elif stage == self._last_stage:
            rows += self._max_lines() if loop.combine == "max" else []
            if loop.combine == "attention":
                yield from self._softmax_lines()
                rows.append(f"a0[s] = a0[s] * shrink + weight * {self._name(form.results[1])};")
        yield from self._each_slot(rows, "")
        for at in sums:
            yield f"v{at} = ACROSS(v{at});"

    def _is_sum_read(self, at: int) -> bool:
        """Return whether other values read a sum. A sum that is only a result is reduced after all edges."""
        reads = any(at in value.arguments for value in self._form.values)
        return reads or (self._loop.combine == "attention" and at == self._form.results[0])

    def _max_lines(self) -> list[str]:
        """Generate the maximum; the smallest edge id wins a tie, independently of the edge order."""
        value = self._name(self._form.results[0])
        return [
            f"const row_t given = {value};",
            "const flags_t better = (winner[s] == -1) | (given > a0[s]) | "
            "((given == a0[s]) & (winner[s] > number));",
            "a0[s] = better ? given : a0[s];",
            "winner[s] = better ? (flags_t)(number) : winner[s];",
        ]

    def _softmax_lines(self) -> Iterator[str]:
        """Generate the online softmax: the weight of an edge, and the factor for previous weights."""
        score = self._name(self._form.results[0])
        yield f"const real_t higher = weights == 0 || {score} > top ? {score} : top;"
        yield "const real_t shrink = weights == 0 ? 0 : exp(top - higher);"
        yield f"const real_t weight = exp({score} - higher);"
        yield "weights = weights * shrink + weight;"
        yield "top = higher;"

    def _finish_row(self, indent: str) -> Iterator[str]:
        loop, call = self._loop, self._call
        if loop.combine == "sum":
            for k in range(len(self._form.results)):
                if not loop.is_total(k):
                    yield from self._store(k, f"a{k}", "i", indent, adds=call.continues)
            return
        lines = [f"STORE(a0[s], o0 + {self._place('i')});"]
        if loop.combine == "max" and self._writes_state:
            lines.append(f"STORE_FLAGS(winner[s], o1 + {self._place('i')});")
        if loop.combine == "attention":
            column = self._column("i")
            if call.continues:
                yield f"{indent}if (lane == 0) {{"
                yield f"{indent}    o1[{column}] = top;"
                yield f"{indent}    o2[{column}] = weights;"
                yield f"{indent}}}"
            else:
                yield f"{indent}const real_t inverse = weights == 0 ? 0 : 1 / weights;"
                lines = [f"STORE(a0[s] * inverse, o0 + {self._place('i')});"]
                if call.keeps:
                    lse = "weights == 0 ? 0 : top + log(weights)"
                    yield f"{indent}if (lane == 0) o1[{column}] = {lse};"
        yield from self._each_slot(lines, indent)

    def _store(self, k: int, name: str, row: str, indent: str, *, adds: bool) -> Iterator[str]:
        """Store the accumulated result k."""
        value = self._form.values[self._form.results[k]]
        if value.kind == "row":
            to = f"o{k} + {self._place(row)}"
            term = f"LOAD({to}) + {name}[s]" if adds else f"{name}[s]"
            yield from self._each_slot([f"STORE({term}, {to});"], indent)
            return
        to = f"o{k}[{self._column(row)}]"
        if value.op != "sum":
            yield f"{indent}if (lane == 0 && at == 0) {to} {'+=' if adds else '='} {name};"
            return
        yield f"{indent}{{"
        yield f"{indent}    real_t sum = 0;"
        yield from self._each_slot([f"sum += OVER({name}[s]);"], f"{indent}    ")
        yield f"{indent}    sum = ACROSS(sum);"
        # Later column passes over a head add to the result of the first pass.
        before = to if adds else f"(at > 0 ? {to} : 0)"
        yield f"{indent}    if (lane == 0) {to} = {before} + sum;"
        yield f"{indent}}}"

    def _literal(self, number: float, kind: str) -> str:
        suffix = "f" if self._call.real == "float" else ""
        return f"({'row_t' if kind == 'row' else 'real_t'})({number!r}{suffix})"

    def _name(self, at: int) -> str:
        """Return the C expression that reads a value."""
        value = self._form.values[at]
        if value.op == "constant":
            return self._literal(value.number, value.kind)
        if self._is_near(at):
            return f"n{int(value.number)}" + ("[s]" if value.kind == "row" else "")
        if value.op == "operand" and value.kind != "row":
            return f"far{int(value.number)}"
        return f"k{at}[s]" if at in self._saved_rows else f"v{at}"

    def _expression(self, value: Value) -> str:
        a = [self._name(at) for at in value.arguments]
        one = self._literal(1.0, value.kind)
        if value.op in _SIGNS:
            return f"{a[0]} {_SIGNS[value.op]} {a[1]}"
        if value.op in _FUNCTIONS:
            return f"{value.op}({a[0]})"
        match value.op:
            case "operand":
                return self._row_of_edge(int(value.number))
            case "negative":
                return f"-{a[0]}"
            case "drawn":
                return f"drawn({a[0]} + {a[1]}, head, {int(value.number)})"
            case "sigmoid":
                return f"{one} / ({one} + exp(-{a[0]}))"
            case "where_positive":
                return f"{a[0]} > 0 ? {a[1]} : {a[2]}"
            case _:
                assert value.op == "spread"
                return f"(row_t)({a[0]})"

    def _far_row(self, k: int) -> str:
        """Return the row index of an operand that is read once per edge."""
        return "e" if self._form.operands[k].end == "edge" else "other"

    def _row_of_edge(self, k: int) -> str:
        """Return an operand row of an edge. The gradient of gathered rows is masked and scaled."""
        is_far = self._loop.is_far(self._form.operands[k])
        row = f"LOAD(x{k} + {self._place(self._far_row(k))})" if is_far else f"n{k}[s]"
        if self._is_gradient(k):
            if self._loop.masked:
                winner = f"LOAD_FLAGS(winners + {self._place('other' if is_far else 'i')})"
                row = f"({winner} == number ? {row} : (row_t)(0))"
            if self._has_factor:
                row = f"factor * {row}"
        return row


def _mask_function(dialect: Dialect) -> list[str]:
    """Return the C code of `EdgeExprBuilder.keep_mask`, with 64-bit integer types in both dialects."""
    return [
        "#define GOLDEN ((bits_t)0x9E3779B97F4A7C15UL)",
        f"{dialect.inline}real_t drawn(bits_t bits, int head, int threshold)",
        "{",
        "    bits += (bits_t)(head / 4) * GOLDEN;",
        "    bits = (bits ^ (bits >> 30)) * (bits_t)0xBF58476D1CE4E5B9UL;",
        "    bits = (bits ^ (bits >> 27)) * (bits_t)0x94D049BB133111EBUL;",
        "    bits ^= bits >> 31;",
        "    return (int)(bits >> 16 * (head % 4) & 0xFFFF) < threshold ? 0 : 1;",
        "}",
    ]


class TensorLoops(Protocol):
    """Runner of edge loops on the current stream of a torch device."""

    def num_totals(self, loop: EdgeLoop, num_rows: int) -> int:
        """Return the number of partial sums of a result that is summed over `num_rows` rows."""
        ...

    def __call__(
        self,
        loop: EdgeLoop,
        call: LoopCall,
        tensors: Mapping[str, torch.Tensor],
        num_rows: int,
        first: int = 0,
    ) -> None:
        """Run a loop.

        Parameters
        ----------
        loop, call
            The loop and its variant.
        tensors
            Contiguous tensors by argument name (see `CKernel`); results that are summed over all rows are
            [num_totals, width].
        num_rows
            Number of rows to compute.
        first
            Id of the first source, if sources identify the edges.
        """
        ...
