"""One edge loop on a device, chunk by chunk, with the matrices that it accumulates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.fullgraph.chunk_grid import EdgeChunk, EdgeChunks, max_intervals
from hyrt.fullgraph.intervals import ChunkOrder, Intervals, RowIntervals, iterate_chunks
from hyrt.fullgraph.loop_device import DeviceArray, LoopDevice, LoopEdges, LoopGridSizes
from hyrt.nn.fused.c_codegen import LoopCall
from hyrt.nn.fused.edge_loop import EdgeLoop, Edges

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class StatePart:
    """Accumulator matrix of a loop."""

    name: str
    """Name of the kernel argument."""
    rows: Array
    """Accumulated rows on the host, [near, width]."""
    start: int


class LoopState:
    """Accumulators of a loop.

    `outs` are as in `hyrt.nn.fused.loop_backend.LoopBackend`. `positions` [num_near] are the positions of the
    near rows in `outs`, or None if these are in order. If the loop `continues`, the device adds to existing
    values, otherwise it writes final results.
    """

    def __init__(
        self,
        loop: EdgeLoop,
        outs: Sequence[Array | None],
        num_near: int,
        positions: Array | None,
        *,
        continues: bool,
    ) -> None:
        self._loop = loop
        self._continues = continues
        self._places = positions if loop.by_chunk else None
        self._outs = outs
        self.parts = list(self._made(num_near))
        self.totals = [k for k in range(len(loop.form.results)) if loop.is_total(k)]
        """Indices of results that are summed over all rows."""

    def _made(self, num: int) -> Iterator[StatePart]:
        loop, outs = self._loop, list(self._outs)
        if loop.combine == "sum":
            row_results = [k for k in range(len(loop.form.results)) if not loop.is_total(k)]
            for k, out in zip(row_results, outs, strict=True):
                assert out is not None
                rows = out if self._places is None else np.empty((num, out.shape[1]), out.dtype)
                yield StatePart(f"o{k}", rows, 0)
            return
        out, saved = outs
        assert out is not None
        yield StatePart("o0", out, 0)
        if loop.combine == "max":
            if saved is not None or self._continues:
                yield StatePart("o1", np.empty(out.shape, np.int32) if saved is None else saved, -1)
        elif self._continues:
            for name in ("o1", "o2"):
                yield StatePart(name, np.empty((num, loop.form.heads), out.dtype), 0)
        elif saved is not None:
            yield StatePart("o1", saved, 0)

    def finish(self, start: int, stop: int) -> None:
        """Compute the final results of rows that have been copied back to the host."""
        if self._places is not None:
            outs = [out for out in self._outs if out is not None]
            for out, part in zip(outs, self.parts, strict=True):
                out[self._places[start:stop]] = part.rows[start:stop]
        if self._loop.combine == "attention" and self._continues:
            gathered, lse = (None if out is None else out[start:stop] for out in self._outs)
            assert gathered is not None
            top, weights = (part.rows[start:stop] for part in self.parts[1:])
            there = weights > 0
            inverse = np.divide(1, weights, out=np.zeros_like(weights), where=there)
            by_head = gathered.reshape(*weights.shape, gathered.shape[1] // weights.shape[1])
            by_head *= inverse[:, :, None]
            if lse is not None:
                lse[:] = top + np.log(weights, out=np.zeros_like(weights), where=there)


_INT, _FLOAT = np.dtype(np.int32), np.dtype(np.float32)


@dataclass(frozen=True, slots=True)
class _LaunchedEdges:
    """Edges between two intervals, with numbers relative to the intervals."""

    rows: Array | None
    """Near rows that have edges; None for the first rows."""
    starts: Array
    columns: Array
    numbers: Array | None = None
    """Edge numbers, if rows of edges are read; None if they are consecutive."""
    is_loops: bool = False
    """Whether these edges are self-loops."""


class LoopRun:
    """A loop over matrices in host memory, with the arguments of `hyrt.nn.fused.loop_backend.LoopBackend`."""

    def __init__(
        self,
        device: LoopDevice,
        loop: EdgeLoop,
        edges: Edges,
        operands: Sequence[Array],
        outs: Sequence[Array | None],
        winners: Array | None,
        trace_label: str = "",
    ) -> None:
        self.edges = edges
        self._about = trace_label or "loop"
        self.near = loop.near
        self._device, self._loop = device, loop
        self._operands, self._outs, self._winners = operands, outs, winners
        self._read = sorted({int(each.number) for each in loop.form.values if each.op == "operand"})
        self._near: dict[str, DeviceArray] = {}
        self._far: dict[str, DeviceArray] = {}
        self._chosen = self._destinations()
        self.in_bytes = 0
        self.out_bytes = 0
        """Bytes copied from the device; `in_bytes` are the bytes copied to it."""

    def _destinations(self) -> Array | None:
        """Return the destinations; None if they are all vertices, or the first ones in order."""
        if self.edges.rows is not None or self.edges.positions is None:
            return self.edges.rows
        there = np.flatnonzero(self.edges.positions >= 0)
        found = np.empty(len(there), np.int64)
        found[self.edges.positions[there]] = there
        return found

    @property
    def _is_near_destination(self) -> bool:
        return self._loop.near == "destination"

    @property
    def num_near(self) -> int:
        return len(self.edges.indptr) - 1 if self.edges.rows is None else len(self.edges.rows)

    @cached_property
    def num_far(self) -> int:
        far = [
            k for k in self._read if self._loop.is_far(self._loop.form.operands[k]) and self._end(k) != "edge"
        ]
        if not self._is_near_destination and self._chosen is not None:
            return len(self._chosen)
        if far:
            return max(len(self._operands[k]) for k in far)
        return int(self.edges.columns.max(initial=0)) + 1

    @cached_property
    def loop_edges(self) -> LoopEdges:
        """Edges grouped by near row; slow to compute if only some destinations gather."""
        return LoopEdges.from_edges(self.edges, self.num_far)

    @cached_property
    def reads_edges(self) -> bool:
        """Whether the loop reads rows or factors of edges."""
        return self.edges.factors is not None or any(self._end(k) == "edge" for k in self._read)

    @property
    def max_intervals(self) -> int:
        """Maximum number of intervals of the longer end."""
        return max_intervals(max(self.num_near, self.num_far))

    @property
    def is_plain(self) -> bool:
        """Whether the edges are one chunk that needs no copy."""
        chooses = self.edges.rows is not None or self.edges.positions is not None
        return not chooses and int(self.edges.indptr[-1]) < 2**31

    def _put(self, array: Array, *, writes: bool = False) -> DeviceArray:
        if writes or not self._device.reads_in_place:
            self.in_bytes += array.nbytes
        return self._device.put(array, writes=writes)

    def _get(self, held: DeviceArray, out: Array) -> None:
        self.out_bytes += out.nbytes
        self._device.get(held, out)

    @cached_property
    def row_bytes(self) -> tuple[int, int]:
        """Bytes of a near row and of a far row."""
        near = sum(part.rows.itemsize * part.rows.shape[1] for part in self._state(continues=True).parts)
        both = {True: 0, False: near}
        for k in self._read:
            operand = self._loop.form.operands[k]
            if operand.end not in ("shared", "edge"):
                both[self._loop.is_far(operand)] += self._loop.form.row_bytes(operand)
        if self._winners is not None:
            both[not self._is_near_destination] += 4 * self._winners.shape[1]
        both[not self._is_near_destination] += 4  # Each destination also has a scale.
        return both[False], both[True]

    def required_bytes(self, sizes: LoopGridSizes) -> int:
        """Return the maximum number of bytes that chunks of these sizes need."""
        near, far = self.row_bytes
        shared = sum(4 * self._operands[k].size for k in self._read if self._end(k) == "shared")
        totals = 0
        if any(self._loop.by_chunk):
            wide = sum(self._total_width(k) for k in range(len(self._loop.form.results)))
            totals = 4 * wide * self._device.num_totals(self._loop, sizes.near)
        # Row offsets, rows and far ends of the edges. Self-loops are a chunk with one edge per row.
        edges = _INT.itemsize * (2 * sizes.near + 2 + max(sizes.edges, sizes.near))
        of_edges = sum(int(self._operands[k].shape[1]) for k in self._read if self._end(k) == "edge")
        edges += _FLOAT.itemsize * sizes.edges * of_edges
        if self.edges.factors is not None:
            edges += (_FLOAT.itemsize + _INT.itemsize) * sizes.edges
        return near * sizes.near + far * sizes.far + shared + totals + edges

    def _end(self, k: int) -> str:
        return self._loop.form.operands[k].end

    def _total_width(self, k: int) -> int:
        form = self._loop.form
        if not self._loop.is_total(k):
            return 0
        return form.heads * (form.width if form.values[form.results[k]].kind == "row" else 1)

    def _state(self, *, continues: bool) -> LoopState:
        num = self.num_near
        places = self._chosen if self._is_near_destination else None
        return LoopState(self._loop, self._outs, num, places, continues=continues)

    @property
    def is_empty(self) -> bool:
        """Whether one end has no rows, as in a process without targets."""
        return not (self.num_near and self.num_far)

    def run_empty(self) -> list[Array]:
        """Return the result of a loop without edges."""
        state = self._state(continues=True)
        for part in state.parts:
            part.rows[:] = part.start
        state.finish(0, self.num_near)
        return [np.zeros(self._total_width(k), _FLOAT) for k in state.totals]

    def run(
        self,
        cut: EdgeChunks | None,
        order: ChunkOrder,
        numbers: Array | None = None,
        columns: Sequence[int] | None = None,
    ) -> list[Array]:
        """Run the loop over all chunks, or only over the near intervals `columns`; return the totals over all
        rows.

        `cut` has the edges in chunks, or is None for a single chunk. `numbers` [E] are the edge numbers in
        chunk order, or None if they are consecutive.
        """
        near = Intervals(self.num_near, 1) if cut is None else cut.rows
        far = Intervals(self.num_far, 1) if cut is None else cut.columns
        continues = cut is not None or self.edges.loops > 0
        state = self._state(continues=continues)
        totals = [np.zeros(self._total_width(k), _FLOAT) for k in state.totals]
        shared = {f"x{k}": self._put(self._operands[k]) for k in self._read if self._end(k) == "shared"}
        here: int | None = None
        there: int | None = None
        near_intervals = range(near.num) if columns is None else columns
        for visit in iterate_chunks(near_intervals, range(far.num), order):
            i, j = visit.accumulated, visit.read
            if i != here:
                self._leave(state, near, here)
            source, destination = (j, i) if self._is_near_destination else (i, j)
            chunk_name = f"chunk {source + 1} → {destination + 1}, into {self._loop.near}s"
            self._device.set_trace_label(f"{self._about}, {chunk_name}")
            if i != here:
                here = i
                self._enter(state, near.range(i), is_first=visit.is_first, continues=continues)
            for chunk in self._chunks(cut, numbers, near.range(i), far.range(j), (i, j)):
                if j != there:
                    self._device.release_arrays(self._far.values())
                    self._far = self._rows(far.range(j), far=True)
                    there = j
                partial = self._launch(chunk, state, shared, near.range(i), far.range(j), continues=continues)
                for total, part in zip(totals, partial, strict=True):
                    total += part
        self._leave(state, near, here)
        self._device.set_trace_label("")
        self._device.release_arrays([*self._far.values(), *shared.values()])
        self._device.finish()
        self._device.report_trace()
        for i in near_intervals:
            state.finish(*near.range(i))
        return totals

    def _enter(self, state: LoopState, near: tuple[int, int], *, is_first: bool, continues: bool) -> None:
        """Upload the near rows of an interval and their accumulators."""
        start, stop = near
        self._near = self._rows(near, far=False)
        for part in state.parts:
            rows = part.rows[start:stop]
            if not continues:
                self._near[part.name] = self._device.empty(rows.shape, rows.dtype)
                continue
            initial = np.full(rows.shape, part.start, rows.dtype) if is_first else rows
            self._near[part.name] = self._put(initial, writes=True)

    def _leave(self, state: LoopState, near: RowIntervals, here: int | None) -> None:
        """Write the accumulators of interval `here` back to the host."""
        if here is None:
            return
        start, stop = near.range(here)
        for part in state.parts:
            self._get(self._near[part.name], part.rows[start:stop])
        # Wait here, because uploaded arrays may be temporaries that are still being read.
        self._device.finish()
        self._device.release_arrays(self._near.values())
        self._near = {}

    def _rows(self, interval: tuple[int, int], *, far: bool) -> dict[str, DeviceArray]:
        """Upload the rows of an interval."""
        start, stop = interval
        arrays = {}
        is_destination = far != self._is_near_destination
        chosen = None if self._chosen is None else self._chosen[start:stop]
        for k in self._read:
            operand = self._loop.form.operands[k]
            if operand.end in ("shared", "edge") or self._loop.is_far(operand) != far:
                continue
            rows = self._operands[k]
            is_listed = operand.end == "destination" and chosen is not None
            arrays[f"x{k}"] = self._put(rows[chosen] if is_listed else rows[start:stop])
        if is_destination:
            if self._winners is not None:
                arrays["winners"] = self._put(self._winners[start:stop])
            for name, scale in (("scale", self.edges.row_scale), ("loop_scale", self.edges.loop_scale)):
                if scale is not None:
                    mine = scale[start:stop] if chosen is None else scale[chosen]
                    arrays[name] = self._put(np.ascontiguousarray(mine, _FLOAT))
        return arrays

    def _chunks(
        self,
        cut: EdgeChunks | None,
        numbers: Array | None,
        near: tuple[int, int],
        far: tuple[int, int],
        at: tuple[int, int],
    ) -> Iterator[_LaunchedEdges]:
        """Yield the edges between two intervals, self-loops first."""
        if self.edges.loops:
            loops = self._loops(near, far)
            if len(loops.columns):
                assert loops.rows is not None
                yield _LaunchedEdges(loops.rows, loops.starts, loops.columns, is_loops=True)
        if cut is None:
            edges = self.loop_edges
            yield _LaunchedEdges(None, edges.indptr, edges.columns, numbers)
            return
        chunk = cut.chunk(*at)
        if len(chunk.columns):
            first = cut.edge_starts[at[0] * cut.columns.num + at[1]]
            mine = None if numbers is None else numbers[first : first + len(chunk.columns)]
            yield _LaunchedEdges(chunk.rows, chunk.starts, chunk.columns, mine)

    def _loops(self, near: tuple[int, int], far: tuple[int, int]) -> EdgeChunk:
        rows = np.arange(*near)
        if self._is_near_destination:
            other = rows if self._chosen is None else self._chosen[slice(*near)]
            counts = other < self.edges.loops
        else:
            positions = self.edges.positions
            counts = rows < self.edges.loops
            other = rows if positions is None else positions[slice(*near)]
        there = counts & (other >= far[0]) & (other < far[1])
        return EdgeChunk.diagonal(rows[there] - near[0], other[there] - far[0])

    def _launch(
        self,
        chunk: _LaunchedEdges,
        state: LoopState,
        shared: dict[str, DeviceArray],
        near: tuple[int, int],
        far: tuple[int, int],
        *,
        continues: bool,
    ) -> list[Array]:
        """Run the loop over a chunk and return its contribution to the totals."""
        edges, device, loop = self.edges, self._device, self._loop
        arrays = {**self._near, **self._far, **shared}
        brought = {"starts": chunk.starts, "columns": chunk.columns}
        if chunk.rows is not None:
            brought["rows"] = chunk.rows
        scale = arrays.pop("loop_scale", None)
        if chunk.is_loops:
            arrays.pop("scale", None)
            if scale is not None:
                arrays["scale"] = scale
        has_factors = edges.factors is not None and not chunk.is_loops
        if edges.numbers is not None and not chunk.is_loops:
            brought["numbers"] = edges.numbers
        if edges.factors is not None and has_factors:
            brought["factors"] = edges.factors
            if chunk.numbers is not None:
                # Put the factors into the order of the chunk's edges.
                brought["factors"] = edges.factors[chunk.numbers]
                brought["numbers"] = np.arange(len(chunk.columns))
        call = LoopCall(
            edge_identity="loop" if chunk.is_loops else "edge" if edges.by_number else "source",
            has_rows=chunk.rows is not None,
            has_factors=has_factors,
            has_scale="scale" in arrays,
            continues=continues,
            keeps=len(state.parts) > 1,
        )
        held = {
            name: self._put(np.ascontiguousarray(array, _FLOAT if name == "factors" else _INT))
            for name, array in brought.items()
        }
        for k in self._read:
            if self._end(k) == "edge":
                rows = self._operands[k] if chunk.numbers is None else self._operands[k][chunk.numbers]
                held[f"x{k}"] = self._put(rows)
        num_rows = len(chunk.starts) - 1
        parts = device.num_totals(loop, num_rows)
        totals = {f"o{k}": device.empty((parts, self._total_width(k)), _FLOAT) for k in state.totals}
        first = far[0] if self._is_near_destination else near[0]
        device.launch(loop, call, {**arrays, **held, **totals}, num_rows, first)
        found = []
        for k in state.totals:
            partial = np.empty((parts, self._total_width(k)), _FLOAT)
            self._get(totals[f"o{k}"], partial)
            found.append(partial)
        if found:
            device.finish()
        device.release_arrays([*held.values(), *totals.values()])
        return [partial.sum(0) for partial in found]
