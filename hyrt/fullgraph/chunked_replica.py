"""Full-graph step on devices that hold only a few chunks of the graph at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from hyrt_perfmodel.chunk_schedule import assign_columns
from numpy.typing import NDArray

from hyrt.fullgraph.chunk_grid import ChunkGrid, input_width
from hyrt.fullgraph.chunk_kernels import (
    ChunkBuffer,
    ChunkKernels,
    DeviceGroup,
    PendingHalo,
    RowExchange,
    fetch_remote_features,
)
from hyrt.fullgraph.device_relay import (
    ChunkIndex,
    DeviceRelay,
    RelayedRows,
    RowReader,
    StepProgress,
    plan_forwarding,
)
from hyrt.fullgraph.input_rows import InputRows
from hyrt.fullgraph.intervals import ChunkOrder, Intervals, RowIntervals, iterate_chunks
from hyrt.fullgraph.layer_edges import LayerEdges
from hyrt.fullgraph.matrix_pool import MatrixPool
from hyrt.nn.description import ModelDescription
from hyrt.nn.layer import AggregatedFeatures, InPlaceFeatures
from hyrt.nn.operators.sparse import SparseRows
from hyrt.objective import Objective
from hyrt.objective.objective import sum_counts
from hyrt.sampling.minibatch import FullGraph, MiniBatch

Array = NDArray[Any]
Inputs = AggregatedFeatures | InPlaceFeatures | SparseRows
_FLOAT = np.dtype(np.float32)


class ChunkedReplica:
    """Computation of a model and its gradients over a graph, chunk by chunk (NeuGraph, section 3.1).

    The only saved state of a layer is its gathered rows. They are offloaded to the host, where their gradient
    later overwrites them; all other rows are recomputed in the backward pass. The last layer is computed only
    at the targets, which have separate intervals. If features are not dropped out, the first layer's gather
    is computed once and cached. If there are several devices, each one computes some of the columns, and all
    matrices are on the host.

    If other processes have some of the vertices, the halo exchange of a layer's rows overlaps with the chunks
    of local rows, after which the chunks of remote rows are computed. In the backward pass, gradients of
    remote rows are computed first and sent while gradients of local rows are computed. The order of the sums
    does not depend on timing. If several processes compute the same rows, each along some of the edges
    (1.5D), the host sums their gathered rows before the dense stage.

    `inputs` are the features of all local vertices, or the first layer's gather of the features. `grid` is
    the result of `ChunkGrid.build` for the sorted `targets` [n] of every step. `shares` are the relative
    speeds of the devices, and `limits` are their filter limits: if the fraction of rows that a chunk needs is
    smaller, only these rows are copied. Devices forward rows to each other in the order of `relays`. Filters
    and relays are used only if the accumulated rows stay on the device.
    """

    def __init__(
        self,
        model: ModelDescription,
        full_graph: FullGraph,
        inputs: Any,
        targets: Array,
        grid: ChunkGrid,
        order: ChunkOrder,
        memory: MatrixPool,
        shares: Sequence[float] = (1.0,),
        limits: Sequence[float] = (0.0,),
        relays: Sequence[Sequence[int]] = (),
    ) -> None:
        self.full_graph = full_graph
        self.targets = targets
        self.grid = grid
        self._model = model
        self._order: ChunkOrder = order
        self._memory = memory
        gather_ops = full_graph.gather_ops
        self._exchange: RowExchange | None = None if gather_ops is None else gather_ops.halo_exchange
        self._reduces_sums = self._exchange is not None and self._exchange.is_replicated
        """Whether other processes have some of the edges into the same vertices."""
        self._multiplies_local = self._exchange is None or self._exchange.multiplies_local
        self._numbers = full_graph.vertices if self._exchange is None else self._exchange.vertices
        """Vertex ids of all rows that are read."""
        # Columns that each device computes, for vertices and for targets.
        self._columns: dict[RowIntervals, list[list[int]]] = {
            cut: assign_columns(cut.num, tuple(shares)) for cut in (grid.vertices, grid.targets)
        }
        self._rounds = _assign_rounds(grid.sources, tuple(shares))
        """Intervals of remote rows whose gradients each device computes, for each exchange round."""
        self._aggregated = inputs.values.numpy() if isinstance(inputs, AggregatedFeatures) else None
        assert self._aggregated is None or self._exchange is None
        self._features = None if self._aggregated is not None else InputRows(inputs, _FLOAT)
        # Positions of the targets, sorted by vertex.
        self._sorted = np.argsort(targets, kind="stable")
        cut = grid.sources
        filters: dict[str, Any] = {
            "limits": self._limits(limits),
            "reads_self": self._multiplies_local
            and any(layer.aggregation.self_path != "none" for layer in model.layers),
        }
        self._into_targets = LayerEdges(
            *(full_graph, grid.targets, cut, memory),
            counts=grid.target_edges,
            chosen=targets[self._sorted],
            has_backward=len(model.layers) > 1,
            **filters,
        )
        self._into_all: LayerEdges | None = None
        if grid.all_edges is not None:
            self._into_all = LayerEdges(
                *(full_graph, grid.vertices, cut, memory),
                counts=grid.all_edges,
                has_backward=len(model.layers) > 2,
                **filters,
            )
        max_selected = max(
            edges.max_selected_rows for edges in (self._into_targets, self._into_all) if edges is not None
        )
        widest = max(max(self._input_width(i), self._widths(i)[0]) for i in range(len(model.layers)))
        self.readers = [RowReader(max_selected * widest, memory) for _ in shares]
        """Row reader of each device."""
        self._chains = [chain for chain in relays if len(chain) > 1]
        # Chunks whose rows another device forwards, by layer and direction.
        self._forwarded: dict[tuple[int, bool], dict[ChunkIndex, ChunkIndex]] = {}
        self._first: Array | None = None
        self._remote: Array | None = None
        """Features of remote vertices, [h, features], while they are needed."""

    @property
    def num_passes(self) -> int:
        """Return the number of passes over columns in a step, if all vertices are local."""
        return 2 * len(self._model.layers) - 1

    def step(
        self, group: DeviceGroup, batch: MiniBatch, objective: Objective | None, progress: StepProgress
    ) -> tuple[float, dict[str, float]]:
        """Compute a step and return its loss sum and counts; the kernels hold the gradient sums.

        `batch` has the labels and weights of the targets that were passed to the constructor; its blocks
        determine seed and step. `objective` is None if the devices compute the loss of plain classification.
        The step resumes from `progress`, which writes no checkpoints if vertices are distributed.
        """
        group.run(lambda _, kernels: kernels.begin_step(batch.blocks[0].seed, batch.blocks[0].step))
        for reader in self.readers:
            reader.reset()
        last = len(self._model.layers) - 1
        rows: Array | None = None
        gathered: list[Array] = []
        for i in range(last):
            output = self._matrix(self.grid.sources, self._widths(i)[1])
            progress.matrices[_rows_name(i + 1)] = output
            gathered.append(self._forward(group, i, rows, output, progress))
            self._memory.release(rows)
            progress.matrices.pop(_rows_name(i), None)
            rows = output
        grad = self._matrix(self.grid.targets, self._widths(last)[0]) if last else None
        if grad is not None:
            progress.matrices["gradient"] = grad
        self._last(group, last, rows, batch, objective, grad, progress)
        self._memory.release(rows)
        progress.matrices.pop(_rows_name(last), None)
        for i in reversed(range(last)):
            assert grad is not None
            self._backward(group, i, gathered[i], grad, progress)
            self._memory.release(grad)
            # The next layer's gathered rows and their gradient are no longer needed.
            progress.matrices.pop("gradient" if i == last - 1 else _gathered_name(i + 1))
            grad = gathered[i] if i else None
        group.finish()
        if gathered and gathered[0] is not self._first:
            self._memory.release(gathered[0])
        totals = [progress.losses[q]() for q in range(self.grid.targets.num)]
        return sum((loss for loss, _ in totals), 0.0), sum_counts([counts for _, counts in totals])

    def _widths(self, i: int) -> tuple[int, int]:
        """Return the widths of layer i's gathered rows and of its output rows."""
        products = self._model.layers[i].products
        return products[0].weight.shape[1], products[-1].weight.shape[0]

    def _input_width(self, i: int) -> int:
        """Return the width of layer i's input rows."""
        return input_width(self._model.layers[i])

    def _limits(self, of_devices: Sequence[float]) -> dict[RowIntervals, list[float]]:
        """Return the filter limit of each accumulated interval: the limit of the device that computes it."""
        grid, limits_of = self.grid, {}
        local = self._columns[grid.vertices]
        for cut, assignments in (
            (grid.vertices, [local]),
            (grid.targets, [self._columns[grid.targets]]),
            (grid.sources, [local, *self._rounds]),
        ):
            limits = limits_of[cut] = [0.0] * cut.num
            for columns_per_device in assignments:
                for columns, limit in zip(columns_per_device, of_devices, strict=True):
                    for column in columns:
                        limits[column] = 0.0 if self._swaps_sums else limit
        return limits_of

    def _matrix(self, rows: RowIntervals, width: int) -> Array:
        return self._memory.take((rows.num_rows, width), _FLOAT)

    def _edges(self, i: int) -> LayerEdges:
        """Return the edges along which layer i gathers."""
        if i == len(self._model.layers) - 1:
            return self._into_targets
        assert self._into_all is not None
        return self._into_all

    def _forward(
        self, together: DeviceGroup, i: int, rows: Array | None, made: Array, progress: StepProgress
    ) -> Array:
        """Compute layer i, which is not the last, at all vertices, and return its gathered rows."""
        cut = self.grid.vertices
        if i == 0 and self._caches_first_gather:
            ready = self._aggregated if self._first is None else self._first
            if ready is not None:
                self._first = ready
                if ready is not self._aggregated:
                    # A process that resumes this step would otherwise lack this matrix.
                    progress.matrices[_gathered_name(i)] = ready
                progress.run(
                    *(together, self._columns[cut], DeviceRelay),
                    lambda _, kernels, mine, chain: self._compute_from_cache(kernels, mine, ready, made),
                )
                return ready
        gathered = progress.matrices[_gathered_name(i)] = self._matrix(cut, self._widths(i)[0])

        def done(kernels: ChunkKernels, j: int) -> None:
            kernels.set_trace_label(_interval_name(i, "vertices", j, cut))
            if not self._reduces_sums:
                kernels.get("accumulated", _part(gathered, cut, j))
            self._compute(kernels, i, "accumulated", j, made)

        self._gather_into(together, i, rows, gathered, done, progress)
        if i == 0 and self._caches_first_gather:
            self._first = gathered
            self._memory.release(self._remote)
            self._remote = None
            if len(self._model.layers) == 2 and self._into_all is not None:
                self._into_all.release()  # No other layer gathers along these edges.
                self._into_all = None
        return gathered

    def _compute_from_cache(
        self, kernels: ChunkKernels, columns: Iterable[int], ready: Array, made: Array
    ) -> None:
        """Compute the first layer's output rows from its cached gather."""
        cut = self.grid.vertices
        for j in columns:
            kernels.set_trace_label(_interval_name(0, "vertices", j, cut))
            kernels.put("read", _part(ready, cut, j))
            self._compute(kernels, 0, "read", j, made)

    @property
    def _caches_first_gather(self) -> bool:
        """Whether the first layer's gather of the features is cached between steps."""
        return not self._model.input_dropout and len(self._model.layers) > 1

    def _compute(self, kernels: ChunkKernels, i: int, place: ChunkBuffer, j: int, made: Array) -> None:
        cut = self.grid.vertices
        kernels.compute(i, place, self._vertices(j))
        kernels.get("result", _part(made, cut, j))

    def _vertices(self, j: int) -> Array:
        """Return the vertex ids of an interval."""
        return self._numbers[slice(*self.grid.sources.range(j))]

    def _read(
        self,
        kernels: ChunkKernels,
        reader: RowReader,
        i: int,
        rows: Array | None,
        j: int,
        useful: Array | None,
    ) -> None:
        """Upload the rows of an interval that layer i reads, or only the `useful` rows."""
        cut = self.grid.sources
        if rows is not None:
            reader.read(kernels, _part(rows, cut, j), useful)
            return
        assert self._features is not None
        if j >= self.grid.vertices.num:
            assert self._remote is not None
            start, stop = (row - self.grid.vertices.num_rows for row in cut.range(j))
            reader.read(kernels, self._remote[start:stop], useful)
        elif useful is None:
            part = self._features.read_range(*cut.range(j))
            dense = part.to_dense() if isinstance(part, SparseRows) else part
            reader.read(kernels, np.ascontiguousarray(dense.numpy(), _FLOAT), None)
        else:
            reader.read(kernels, self._features.read_stored_range(*cut.range(j)), useful)
        rate = self._model.input_dropout
        if rate:
            vertices = self._vertices(j) if useful is None else self._vertices(j)[useful]
            kernels.apply_dropout("read", vertices, self._input_width(i), 0, rate)

    def _last(
        self,
        together: DeviceGroup,
        i: int,
        rows: Array | None,
        batch: MiniBatch,
        objective: Objective | None,
        grad: Array | None,
        progress: StepProgress,
    ) -> None:
        """Compute the last layer at the targets, the loss, and the gradient of the gathered rows."""
        cut = self.grid.targets
        vertices = self.full_graph.vertices[self._into_targets.vertices]
        labels = batch.labels[self._sorted]
        weights = None if batch.target_weights is None else batch.target_weights[self._sorted]

        def done(kernels: ChunkKernels, q: int) -> None:
            start, stop = cut.range(q)
            kernels.set_trace_label(_interval_name(i, "targets", q, cut))
            kernels.compute(i, "accumulated", vertices[start:stop])
            interval_weights = None if weights is None else weights[start:stop]
            progress.losses[q] = kernels.compute_loss(labels[start:stop], interval_weights, objective)
            kernels.backward_linear(
                i, "accumulated", "read", vertices[start:stop], needs_input_gradient=grad is not None
            )
            if grad is not None:
                kernels.get("result", _part(grad, cut, q))

        if self._aggregated is None or i:
            moves = self._swaps_sums or self._exchange is not None
            swapped = self._matrix(cut, self._widths(i)[0]) if moves else None
            self._gather_into(together, i, rows, swapped, done, progress)
            self._memory.release(swapped)
            return
        target_rows = self._aggregated[vertices]

        def compute(member: int, kernels: ChunkKernels, mine: Iterable[int], chain: DeviceRelay) -> None:
            for q in mine:
                kernels.set_trace_label(_interval_name(i, "targets", q, cut))
                kernels.put("accumulated", _part(target_rows, cut, q))
                done(kernels, q)

        progress.run(together, self._columns[cut], DeviceRelay, compute)

    def _gather_into(
        self,
        together: DeviceGroup,
        i: int,
        rows: Array | None,
        moved: Array | None,
        done: Callable[[ChunkKernels, int], None],
        progress: StepProgress,
    ) -> None:
        """Sum the rows that layer i gathers at its destinations.

        `rows` [sources, width] are the input rows, or None for the features; the remote rows are filled in.
        `moved` [destinations, width] receives offloaded partial sums, or is None if all sums stay on the
        device; if other processes add to the sums, it has the complete sums at the end. `done` is called with
        each interval whose sums are complete.
        """
        local, every = range(self.grid.vertices.num), range(self.grid.sources.num)
        cut = self._edges(i).destinations
        columns = self._columns[cut]

        def begin() -> DeviceRelay:
            return self._chain(i, columns, every, backward=False)

        def keep(kernels: ChunkKernels, j: int) -> None:
            assert moved is not None
            kernels.get("accumulated", _part(moved, cut, j))

        def gather(
            member: int,
            kernels: ChunkKernels,
            into: Iterable[int],
            reads: Sequence[int],
            chain: DeviceRelay,
            **ends: bool,
        ) -> None:
            read = partial(self._read, kernels, self.readers[member], i, rows)
            chained = RelayedRows(chain, kernels, self.readers[member])
            at_end = partial(keep if self._reduces_sums else done, kernels)
            self._gather(kernels, i, into, reads, read, chained, moved, at_end, backward=False, **ends)

        exchange = self._start_exchange(together, rows)
        num_done = [0] * len(columns)
        if exchange is not None and len(every) > len(local):
            assert moved is not None

            def local_chunks(member: int, kernels: ChunkKernels) -> None:
                """Process the chunks of local rows during the exchange."""
                for j in columns[member]:
                    if exchange.is_complete:
                        break
                    gather(member, kernels, [j], local, DeviceRelay(), ends=False)
                    kernels.wait_for_array(_part(moved, cut, j))
                    num_done[member] += 1

            together.run(local_chunks)
            exchange.wait()

        def compute(member: int, kernels: ChunkKernels, mine: Iterable[int], chain: DeviceRelay) -> None:
            if num_done[member]:
                mine = columns[member][num_done[member] :]
                gather(
                    member,
                    kernels,
                    columns[member][: num_done[member]],
                    every[len(local) :],
                    chain,
                    begins=False,
                )
            gather(member, kernels, mine, every, chain)

        progress.run(together, columns, begin, compute, by_column=not self._swaps_sums)
        if exchange is not None and len(every) == len(local):
            exchange.wait()
        if self._reduces_sums:
            assert moved is not None
            self._reduce_sums(together, i, moved, cut, done)

    def _reduce_sums(
        self,
        together: DeviceGroup,
        i: int,
        sums: Array,
        cut: RowIntervals,
        done: Callable[[ChunkKernels, int], None],
    ) -> None:
        """Reduce the sums [destinations, width] over processes, and call `done` with each interval."""
        assert self._exchange is not None
        together.wait()
        self._exchange.reduce_sums(sums)

        def compute(member: int, kernels: ChunkKernels) -> None:
            for j in self._columns[cut][member]:
                kernels.set_trace_label(_interval_name(i, "sums", j, cut))
                kernels.put("accumulated", _part(sums, cut, j))
                done(kernels, j)

        together.run(compute)

    def _start_exchange(self, together: DeviceGroup, rows: Array | None) -> PendingHalo | None:
        """Start the exchange of remote rows; return None if there are none or they are cached."""
        if self._exchange is None:
            return None
        if rows is not None:
            together.wait()  # The local rows must be complete before they are sent.
            return self._exchange.begin(rows)
        if self._remote is None:
            assert self._features is not None
            width = self._input_width(0)
            self._remote = fetch_remote_features(self._features, width, self._exchange, self._memory)
        return None

    @property
    def _swaps_sums(self) -> bool:
        """Whether accumulated rows are swapped between host and device."""
        return self._order == "row-column"

    def _backward(
        self, together: DeviceGroup, i: int, gathered: Array, grad: Array, progress: StepProgress
    ) -> None:
        """Propagate the gradient of layer i + 1's gathered rows to layer i's gathered rows."""
        cut, edges = self.grid.sources, self._edges(i + 1)
        local = self._columns[self.grid.vertices]
        moves = self._swaps_sums or self._exchange is not None
        swapped = self._matrix(cut, self._widths(i)[1]) if moves else None

        def gather(columns: list[list[int]], done: Callable[[ChunkKernels, int], None]) -> None:
            reads = range(edges.destinations.num)

            def begin() -> DeviceRelay:
                return self._chain(i + 1, columns, reads, backward=True)

            def compute(member: int, kernels: ChunkKernels, mine: Iterable[int], chain: DeviceRelay) -> None:
                reader, at_end = self.readers[member], partial(done, kernels)
                chained = RelayedRows(chain, kernels, reader)

                def read(j: int, useful: Array | None) -> None:
                    reader.read(kernels, _part(grad, edges.destinations, j), useful)

                self._gather(kernels, i + 1, mine, reads, read, chained, swapped, at_end, backward=True)

            progress.run(together, columns, begin, compute, by_column=not self._swaps_sums)

        def turn(kernels: ChunkKernels, k: int) -> None:
            kernels.set_trace_label(_interval_name(i, "vertices", k, cut, backward=True))
            kernels.put("read", _part(gathered, cut, k))
            kernels.compute(i, "read", self._vertices(k))
            kernels.backward_linear(i, "read", "accumulated", self._vertices(k), needs_input_gradient=i > 0)
            if i:
                kernels.get("result", _part(gathered, cut, k))

        if self._exchange is None:
            gather(local, turn)
        else:
            assert swapped is not None
            sums = swapped

            def keep(kernels: ChunkKernels, k: int) -> None:
                kernels.get("accumulated", _part(sums, cut, k))

            exchange = self._exchange.begin_backward(sums)
            for round_index, remote in enumerate(self._rounds):
                gather(remote, keep)
                together.wait()
                exchange.send(round_index)
            gather(local, keep)
            together.wait()
            mine = sums[: self.grid.vertices.num_rows]
            exchange.add(mine)
            self._exchange.broadcast_gradients(mine)

            def compute(member: int, kernels: ChunkKernels) -> None:
                for k in local[member]:
                    kernels.set_trace_label(_interval_name(i, "vertices", k, cut, backward=True))
                    kernels.put("accumulated", _part(sums, cut, k))
                    turn(kernels, k)

            together.run(compute)
        self._memory.release(swapped)

    def _chain(
        self, i: int, columns: Sequence[Sequence[int]], reads: Sequence[int], *, backward: bool
    ) -> DeviceRelay:
        """Return the relay for a pass of layer i; empty if rows change after their upload."""
        changes = self._model.input_dropout > 0 and i == 0
        if not self._chains or self._swaps_sums or changes or self._exchange is not None:
            return DeviceRelay()
        if (i, backward) not in self._forwarded:
            edges, aggregation = self._edges(i), self._model.layers[i].aggregation
            needs = partial(edges.reads_all_rows, aggregation=aggregation, backward=backward)
            self._forwarded[i, backward] = {}
            for chain in self._chains:
                self._forwarded[i, backward] |= plan_forwarding(chain, columns, reads, needs)
        return DeviceRelay(self._forwarded[i, backward])

    def _gather(
        self,
        kernels: ChunkKernels,
        i: int,
        columns: Iterable[int],
        reads: Sequence[int],
        read: Callable[[int, Array | None], None],
        chained: RelayedRows,
        moved: Array | None,
        done: Callable[[int], None],
        *,
        backward: bool,
        begins: bool = True,
        ends: bool = True,
    ) -> None:
        """Process the chunks of layer i: accumulate the intervals `columns`, and read the intervals `reads`.

        `read` uploads the rows of an interval, or some of them; `chained` copies them from another device
        instead, and forwards them. `done` is called with each interval whose sums are complete on the device,
        and may overwrite the buffer `read`. Unless `begins`, the sums start from the partial sums in `moved`
        [rows, width]; unless `ends`, they are written back there.
        """
        edges, aggregation = self._edges(i), self._model.layers[i].aggregation
        accumulated, others = (
            (edges.sources, edges.destinations) if backward else (edges.destinations, edges.sources)
        )
        width, read_width = self._input_width(i), self._widths(i)[0]
        if not backward:
            width, read_width = read_width, width
        if not reads:
            # There are no rows to read if this process has no targets.
            for column in columns:
                kernels.clear("accumulated", accumulated.length(column), width)
                done(column)
        here: int | None = None
        there: int | None = None
        for visit in iterate_chunks(columns, reads, self._order):
            name = _name(i, visit.accumulated, visit.read, backward=backward)
            kernels.set_trace_label(name)
            if visit.accumulated != here:
                if here is not None:
                    assert moved is not None
                    kernels.get("accumulated", _part(moved, accumulated, here))
                here = visit.accumulated
                if visit.is_first and begins:
                    kernels.clear("accumulated", accumulated.length(here), width)
                else:
                    assert moved is not None
                    kernels.put("accumulated", _part(moved, accumulated, here))
            for is_self, chunks in ((False, edges.chunk), (True, edges.self_edges)):
                chunk = chunks(visit.accumulated, visit.read, aggregation, backward=backward)
                if chunk is None:
                    continue
                if visit.read != there:
                    if chunk.selected is not None:
                        kernels.set_trace_label(
                            f"{name}, {len(chunk.selected):,} of {others.length(visit.read):,} rows"
                        )
                    chained.fetch(
                        (visit.accumulated, visit.read),
                        partial(read, visit.read, chunk.selected),
                        others.length(visit.read),
                        read_width,
                    )
                    kernels.set_trace_label(name)
                    there = visit.read
                kernels.gather(
                    i, chunk.edges, chunk.row_scale, chunk.column_scale, self_rows=is_self, backward=backward
                )
            if visit.is_last:
                chained.wait_until_copied()
                if ends:
                    done(visit.accumulated)
                else:
                    assert moved is not None
                    kernels.get("accumulated", _part(moved, accumulated, visit.accumulated))
                here = there = None


def _assign_rounds(sources: RowIntervals, shares: tuple[float, ...]) -> list[list[list[int]]]:
    """Assign the intervals of remote rows to devices, for each exchange round."""
    if isinstance(sources, Intervals):
        return []
    rounds = []
    for group in range(1, len(sources.groups)):
        intervals = sources.group_intervals(group)
        rounds.append([[intervals[k] for k in mine] for mine in assign_columns(len(intervals), shares)])
    return rounds


def _part(matrix: Array, cut: RowIntervals, i: int) -> Array:
    part: Array = matrix[slice(*cut.range(i))]
    return part


def _name(layer: int, accumulated: int, read: int, *, backward: bool) -> str:
    """Return the trace label of a chunk, with the numbers of its source and destination intervals from 1."""
    source, destination = (accumulated, read) if backward else (read, accumulated)
    return f"layer {layer + 1}{' back' if backward else ''}, chunk {source + 1} → {destination + 1}"


def _interval_name(layer: int, rows: str, i: int, cut: RowIntervals, *, backward: bool = False) -> str:
    """Return the trace label of work on the rows of interval i, with numbers from 1."""
    return f"layer {layer + 1}{' back' if backward else ''}, {rows} {i + 1} of {cut.num}"


def _rows_name(layer: int) -> str:
    """Return the checkpoint name of the input rows of a layer; `layer` counts from 0."""
    return f"rows of layer {layer + 1}"


def _gathered_name(layer: int) -> str:
    """Return the checkpoint name of a layer's gathered rows or their gradient; `layer` counts from 0."""
    return f"gathered by layer {layer + 1}"
