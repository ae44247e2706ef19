"""A step over a whole graph on a device that holds a few chunks of it at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from hyrt_perfmodel.chunks.dealt_columns import dealt_columns
from numpy.typing import NDArray

from hyrt.fullgraph.chunks.chunk_kernels import ChunkKernels, Place
from hyrt.fullgraph.chunks.layer_edges import LayerEdges
from hyrt.fullgraph.chunks.row_chain import ChainedRows, ChunkNumbers, RowChain, handed_on
from hyrt.fullgraph.chunks.row_reader import RowReader
from hyrt.fullgraph.chunks.together import Together
from hyrt.fullgraph.chunks.travelling_rows import ComingRows, TravellingRows, remote_features
from hyrt.fullgraph.grid.intervals import Cut, Intervals
from hyrt.fullgraph.grid.least_grid import ChunkGrid
from hyrt.fullgraph.grid.place_sizes import given_width
from hyrt.fullgraph.grid.visits import Order, visits
from hyrt.fullgraph.input_rows import InputRows
from hyrt.fullgraph.recycled_matrices import RecycledMatrices
from hyrt.fullgraph.unfinished.step_progress import StepProgress
from hyrt.nn.description import ModelDescription
from hyrt.nn.inputs import Aggregated, InPlace
from hyrt.nn.operators.sparse import SparseRows
from hyrt.objective import Objective
from hyrt.objective.objective import added
from hyrt.sampling.full.whole_graph import WholeGraph
from hyrt.sampling.minibatch import MiniBatch

Array = NDArray[Any]
Inputs = Aggregated | InPlace | SparseRows
_FLOAT = np.dtype(np.float32)


class ChunkedReplica:
    """Computes a model and its gradients over a graph, chunk by chunk (NeuGraph, section 3.1).

    What a layer has gathered is its state: it stays on the host, where its gradient takes its place, and the
    rows in between are computed twice. The last layer is computed at the targets alone, which have intervals
    of their own. What the first layer gathers of features that are not dropped is computed once. Several
    devices compute columns each, and all matrices are the host's.

    Where other processes have the other vertices, the rows that edges name come between the layers: chunks of
    own rows are computed while they travel, then those of remote ones. Backward, what own rows add to the
    gradients of remote ones is computed first, and travels while own gradients are. The order in which rows
    are added up is the same however long they travel. Where several processes compute the same rows along
    some of the edges each (1.5D), the host adds their sums up before rows are computed of them.

    Parameters
    ----------
    model
        The model.
    whole
        The graph, or this process's part of it.
    inputs
        The features of all vertices that are computed, or what the first layer gathers of them.
    targets
        [n] the targets of every step.
    grid
        How vertices and targets are cut: `ChunkGrid.of` of the sorted targets.
    order
        In which order chunks are read.
    memory
        Where matrices on the host are taken from.
    shares
        How fast each device is that computes some of the columns, in any unit.
    limits
        For each of them, the useful fraction of an interval's rows below which only those are copied for a
        chunk; used where what is accumulated stays.
    chains
        Devices that hand rows on to each other, in their order; where they do so, what is accumulated stays.
    """

    def __init__(
        self,
        model: ModelDescription,
        whole: WholeGraph,
        inputs: Any,
        targets: Array,
        grid: ChunkGrid,
        order: Order,
        memory: RecycledMatrices,
        shares: Sequence[float] = (1.0,),
        limits: Sequence[float] = (0.0,),
        chains: Sequence[Sequence[int]] = (),
    ) -> None:
        self.whole = whole
        self.targets = targets
        self.grid = grid
        self._model = model
        self._order: Order = order
        self._memory = memory
        others = whole.gatherings
        self._travelling: TravellingRows | None = None if others is None else others.travelling
        self._adds_up = self._travelling is not None and self._travelling.is_replicated
        """Whether other processes have some of the edges into the same vertices."""
        self._multiplies_own = self._travelling is None or self._travelling.multiplies_own
        self._numbers = whole.vertices if self._travelling is None else self._travelling.vertices
        """The numbers in the graph of all rows that are read."""
        # What each device computes of the vertices, and of the targets.
        self._columns: dict[Cut, list[list[int]]] = {
            cut: dealt_columns(cut.num, tuple(shares)) for cut in (grid.vertices, grid.targets)
        }
        self._waves = _dealt_waves(grid.sources, tuple(shares))
        """What each device computes of the gradients of remote rows, for each exchange."""
        self._aggregated = inputs.values.numpy() if isinstance(inputs, Aggregated) else None
        assert self._aggregated is None or self._travelling is None
        self._features = None if self._aggregated is not None else InputRows(inputs, _FLOAT)
        # The targets in the order of their vertices.
        self._sorted = np.argsort(targets, kind="stable")
        cut = grid.sources
        filters: dict[str, Any] = {
            "limits": self._limits(limits),
            "owns": self._multiplies_own
            and any(layer.aggregation.self_path != "none" for layer in model.layers),
        }
        self._into_targets = LayerEdges(
            *(whole, grid.targets, cut, memory),
            counts=grid.target_edges,
            chosen=targets[self._sorted],
            turns=len(model.layers) > 1,
            **filters,
        )
        self._into_all: LayerEdges | None = None
        if grid.all_edges is not None:
            self._into_all = LayerEdges(
                *(whole, grid.vertices, cut, memory),
                counts=grid.all_edges,
                turns=len(model.layers) > 2,
                **filters,
            )
        most = max(edges.most_useful for edges in (self._into_targets, self._into_all) if edges is not None)
        widest = max(max(self._given_width(i), self._widths(i)[0]) for i in range(len(model.layers)))
        self.readers = [RowReader(most * widest, memory) for _ in shares]
        """What brings rows to each device."""
        self._chains = [chain for chain in chains if len(chain) > 1]
        # What is handed on in the pass of a layer in a direction.
        self._handed: dict[tuple[int, bool], dict[ChunkNumbers, ChunkNumbers]] = {}
        self._first: Array | None = None
        self._remote: Array | None = None
        """[h, features] of remote vertices, while they are read."""

    @property
    def num_passes(self) -> int:
        """Passes over columns that a step has, where all vertices are here."""
        return 2 * len(self._model.layers) - 1

    def step(
        self, together: Together, batch: MiniBatch, objective: Objective | None, progress: StepProgress
    ) -> tuple[float, dict[str, float]]:
        """Loss sum and counts; the kernels add up the gradients.

        Parameters
        ----------
        together
            The devices that compute.
        batch
            Its targets are those of the constructor; labels and weights count, and the seed and step of its
            blocks.
        objective
            What the host computes of the scores; None for plain classification.
        progress
            Where the step begins, and where it is; it keeps nothing where other processes have vertices.
        """
        together.run(lambda _, kernels: kernels.begin(batch.blocks[0].seed, batch.blocks[0].step))
        for reader in self.readers:
            reader.begin()
        last = len(self._model.layers) - 1
        rows: Array | None = None
        gathered: list[Array] = []
        for i in range(last):
            made = self._matrix(self.grid.sources, self._widths(i)[1])
            progress.matrices[_rows_name(i + 1)] = made
            gathered.append(self._forward(together, i, rows, made, progress))
            self._memory.give(rows)
            progress.matrices.pop(_rows_name(i), None)
            rows = made
        grad = self._matrix(self.grid.targets, self._widths(last)[0]) if last else None
        if grad is not None:
            progress.matrices["gradient"] = grad
        self._last(together, last, rows, batch, objective, grad, progress)
        self._memory.give(rows)
        progress.matrices.pop(_rows_name(last), None)
        for i in reversed(range(last)):
            assert grad is not None
            self._backward(together, i, gathered[i], grad, progress)
            self._memory.give(grad)
            # What the layer after this one has gathered is not needed any more, nor its gradient.
            progress.matrices.pop("gradient" if i == last - 1 else _gathered_name(i + 1))
            grad = gathered[i] if i else None
        together.end()
        if gathered and gathered[0] is not self._first:
            self._memory.give(gathered[0])
        told = [progress.losses[q]() for q in range(self.grid.targets.num)]
        return sum((loss for loss, _ in told), 0.0), added([counts for _, counts in told])

    def _widths(self, i: int) -> tuple[int, int]:
        """Columns of what layer i has gathered, and of the rows that it makes."""
        products = self._model.layers[i].products
        return products[0].weight.shape[1], products[-1].weight.shape[0]

    def _given_width(self, i: int) -> int:
        """Columns of the rows that layer i is given."""
        return given_width(self._model.layers[i])

    def _limits(self, of_devices: Sequence[float]) -> dict[Cut, list[float]]:
        """For each interval that is added to, that of the device that computes it."""
        grid, found = self.grid, {}
        own = self._columns[grid.vertices]
        for cut, dealings in (
            (grid.vertices, [own]),
            (grid.targets, [self._columns[grid.targets]]),
            (grid.sources, [own, *self._waves]),
        ):
            limits = found[cut] = [0.0] * cut.num
            for dealt in dealings:
                for mine, limit in zip(dealt, of_devices, strict=True):
                    for column in mine:
                        limits[column] = 0.0 if self._moves else limit
        return found

    def _matrix(self, rows: Cut, width: int) -> Array:
        return self._memory.take((rows.num_rows, width), _FLOAT)

    def _edges(self, i: int) -> LayerEdges:
        """The edges along which layer i gathers."""
        if i == len(self._model.layers) - 1:
            return self._into_targets
        assert self._into_all is not None
        return self._into_all

    def _forward(
        self, together: Together, i: int, rows: Array | None, made: Array, progress: StepProgress
    ) -> Array:
        """Compute a layer that is not the last at all vertices; what it has gathered."""
        cut = self.grid.vertices
        if i == 0 and self._keeps_first:
            ready = self._aggregated if self._first is None else self._first
            if ready is not None:
                self._first = ready
                if ready is not self._aggregated:
                    # A process that goes on with this step does not have it.
                    progress.matrices[_gathered_name(i)] = ready
                progress.run(
                    *(together, self._columns[cut], RowChain),
                    lambda _, kernels, mine, chain: self._kept(kernels, mine, ready, made),
                )
                return ready
        gathered = progress.matrices[_gathered_name(i)] = self._matrix(cut, self._widths(i)[0])

        def done(kernels: ChunkKernels, j: int) -> None:
            kernels.name(_interval_name(i, "vertices", j, cut))
            if not self._adds_up:
                kernels.get("accumulated", _part(gathered, cut, j))
            self._compute(kernels, i, "accumulated", j, made)

        self._gather_into(together, i, rows, gathered, done, progress)
        if i == 0 and self._keeps_first:
            self._first = gathered
            self._memory.give(self._remote)
            self._remote = None
            if len(self._model.layers) == 2 and self._into_all is not None:
                self._into_all.release()  # No other layer gathers along them.
                self._into_all = None
        return gathered

    def _kept(self, kernels: ChunkKernels, columns: Iterable[int], ready: Array, made: Array) -> None:
        """The rows that the first layer makes of what it has gathered in a step before."""
        cut = self.grid.vertices
        for j in columns:
            kernels.name(_interval_name(0, "vertices", j, cut))
            kernels.put("read", _part(ready, cut, j))
            self._compute(kernels, 0, "read", j, made)

    @property
    def _keeps_first(self) -> bool:
        """Whether what the first layer gathers of the features stays from step to step."""
        return not self._model.input_dropout and len(self._model.layers) > 1

    def _compute(self, kernels: ChunkKernels, i: int, place: Place, j: int, made: Array) -> None:
        cut = self.grid.vertices
        kernels.compute(i, place, self._vertices(j))
        kernels.get("result", _part(made, cut, j))

    def _vertices(self, j: int) -> Array:
        """The numbers in the graph of an interval's vertices."""
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
        """Bring the rows of an interval that layer i is given, or the useful ones."""
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
            part = self._features.part(*cut.range(j))
            dense = part.dense() if isinstance(part, SparseRows) else part
            reader.read(kernels, np.ascontiguousarray(dense.numpy(), _FLOAT), None)
        else:
            reader.read(kernels, self._features.stored(*cut.range(j)), useful)
        rate = self._model.input_dropout
        if rate:
            vertices = self._vertices(j) if useful is None else self._vertices(j)[useful]
            kernels.drop("read", vertices, self._given_width(i), 0, rate)

    def _last(
        self,
        together: Together,
        i: int,
        rows: Array | None,
        batch: MiniBatch,
        objective: Objective | None,
        grad: Array | None,
        progress: StepProgress,
    ) -> None:
        """The last layer at the targets, the losses of their intervals, and the gradient of what they have
        gathered.
        """
        cut = self.grid.targets
        vertices = self.whole.vertices[self._into_targets.vertices]
        labels = batch.labels[self._sorted]
        weights = None if batch.target_weights is None else batch.target_weights[self._sorted]

        def done(kernels: ChunkKernels, q: int) -> None:
            start, stop = cut.range(q)
            kernels.name(_interval_name(i, "targets", q, cut))
            kernels.compute(i, "accumulated", vertices[start:stop])
            given = None if weights is None else weights[start:stop]
            progress.losses[q] = kernels.lose(labels[start:stop], given, objective)
            kernels.turn_back(i, "accumulated", "read", vertices[start:stop], wanted=grad is not None)
            if grad is not None:
                kernels.get("result", _part(grad, cut, q))

        if self._aggregated is None or i:
            moves = self._moves or self._travelling is not None
            moved = self._matrix(cut, self._widths(i)[0]) if moves else None
            self._gather_into(together, i, rows, moved, done, progress)
            self._memory.give(moved)
            return
        of_targets = self._aggregated[vertices]

        def compute(member: int, kernels: ChunkKernels, mine: Iterable[int], chain: RowChain) -> None:
            for q in mine:
                kernels.name(_interval_name(i, "targets", q, cut))
                kernels.put("accumulated", _part(of_targets, cut, q))
                done(kernels, q)

        progress.run(together, self._columns[cut], RowChain, compute)

    def _gather_into(
        self,
        together: Together,
        i: int,
        rows: Array | None,
        moved: Array | None,
        done: Callable[[ChunkKernels, int], None],
        progress: StepProgress,
    ) -> None:
        """Add up what layer i gathers, at its destinations.

        Parameters
        ----------
        together, i
            The devices and the layer.
        rows
            [sources, width] what it is given; None for the features. Remote rows are filled in.
        moved
            [destinations, width] where sums wait on the host while others are added to; None where all stay.
            Where other processes add to them, it has complete sums at the end.
        done
            Called with an interval when its sums are complete.
        progress
            Where the step is.
        """
        own, every = range(self.grid.vertices.num), range(self.grid.sources.num)
        cut = self._edges(i).destinations
        columns = self._columns[cut]

        def begin() -> RowChain:
            return self._chain(i, columns, every, back=False)

        def keep(kernels: ChunkKernels, j: int) -> None:
            assert moved is not None
            kernels.get("accumulated", _part(moved, cut, j))

        def gather(
            member: int,
            kernels: ChunkKernels,
            into: Iterable[int],
            reads: Sequence[int],
            chain: RowChain,
            **ends: bool,
        ) -> None:
            read = partial(self._read, kernels, self.readers[member], i, rows)
            chained = ChainedRows(chain, kernels, self.readers[member])
            at_end = partial(keep if self._adds_up else done, kernels)
            self._gather(kernels, i, into, reads, read, chained, moved, at_end, back=False, **ends)

        coming = self._coming(together, rows)
        ahead = [0] * len(columns)
        if coming is not None and len(every) > len(own):
            assert moved is not None

            def own_chunks(member: int, kernels: ChunkKernels) -> None:
                """Those of as many columns as there is time for."""
                for j in columns[member]:
                    if coming.arrived:
                        break
                    gather(member, kernels, [j], own, RowChain(), ends=False)
                    kernels.settle(_part(moved, cut, j))
                    ahead[member] += 1

            together.run(own_chunks)
            coming.wait()

        def compute(member: int, kernels: ChunkKernels, mine: Iterable[int], chain: RowChain) -> None:
            if ahead[member]:
                mine = columns[member][ahead[member] :]
                gather(
                    member, kernels, columns[member][: ahead[member]], every[len(own) :], chain, begins=False
                )
            gather(member, kernels, mine, every, chain)

        progress.run(together, columns, begin, compute, by_column=not self._moves)
        if coming is not None and len(every) == len(own):
            coming.wait()
        if self._adds_up:
            assert moved is not None
            self._add_up(together, i, moved, cut, done)

    def _add_up(
        self, together: Together, i: int, sums: Array, cut: Cut, done: Callable[[ChunkKernels, int], None]
    ) -> None:
        """Complete sums [destinations, width] to which other processes add; `done` hears of each interval."""
        assert self._travelling is not None
        together.wait()
        self._travelling.add_up(sums)

        def compute(member: int, kernels: ChunkKernels) -> None:
            for j in self._columns[cut][member]:
                kernels.name(_interval_name(i, "sums", j, cut))
                kernels.put("accumulated", _part(sums, cut, j))
                done(kernels, j)

        together.run(compute)

    def _coming(self, together: Together, rows: Array | None) -> ComingRows | None:
        """Remote rows on their way; None where there are none, or they are there."""
        if self._travelling is None:
            return None
        if rows is not None:
            together.wait()  # For what is to travel.
            return self._travelling.begin(rows)
        if self._remote is None:
            assert self._features is not None
            width = self._given_width(0)
            self._remote = remote_features(self._features, width, self._travelling, self._memory)
        return None

    @property
    def _moves(self) -> bool:
        """Whether what is accumulated comes and goes."""
        return self._order == "row-column"

    def _backward(
        self, together: Together, i: int, gathered: Array, grad: Array, progress: StepProgress
    ) -> None:
        """Take the gradient of what layer i + 1 has gathered back to what layer i has."""
        cut, edges = self.grid.sources, self._edges(i + 1)
        own = self._columns[self.grid.vertices]
        moves = self._moves or self._travelling is not None
        moved = self._matrix(cut, self._widths(i)[1]) if moves else None

        def gather(columns: list[list[int]], done: Callable[[ChunkKernels, int], None]) -> None:
            reads = range(edges.destinations.num)

            def begin() -> RowChain:
                return self._chain(i + 1, columns, reads, back=True)

            def compute(member: int, kernels: ChunkKernels, mine: Iterable[int], chain: RowChain) -> None:
                reader, at_end = self.readers[member], partial(done, kernels)
                chained = ChainedRows(chain, kernels, reader)

                def read(j: int, useful: Array | None) -> None:
                    reader.read(kernels, _part(grad, edges.destinations, j), useful)

                self._gather(kernels, i + 1, mine, reads, read, chained, moved, at_end, back=True)

            progress.run(together, columns, begin, compute, by_column=not self._moves)

        def turn(kernels: ChunkKernels, k: int) -> None:
            kernels.name(_interval_name(i, "vertices", k, cut, back=True))
            kernels.put("read", _part(gathered, cut, k))
            kernels.compute(i, "read", self._vertices(k))
            kernels.turn_back(i, "read", "accumulated", self._vertices(k), wanted=i > 0)
            if i:
                kernels.get("result", _part(gathered, cut, k))

        if self._travelling is None:
            gather(own, turn)
        else:
            assert moved is not None
            sums = moved

            def keep(kernels: ChunkKernels, k: int) -> None:
                kernels.get("accumulated", _part(sums, cut, k))

            back = self._travelling.begin_back(sums)
            for wave, remote in enumerate(self._waves):
                gather(remote, keep)
                together.wait()
                back.send(wave)
            gather(own, keep)
            together.wait()
            mine = sums[: self.grid.vertices.num_rows]
            back.add(mine)
            self._travelling.share(mine)

            def compute(member: int, kernels: ChunkKernels) -> None:
                for k in own[member]:
                    kernels.name(_interval_name(i, "vertices", k, cut, back=True))
                    kernels.put("accumulated", _part(sums, cut, k))
                    turn(kernels, k)

            together.run(compute)
        self._memory.give(moved)

    def _chain(
        self, i: int, columns: Sequence[Sequence[int]], reads: Sequence[int], *, back: bool
    ) -> RowChain:
        """What devices hand on in a pass of layer i; nothing where rows change after they were brought."""
        changes = self._model.input_dropout > 0 and i == 0
        if not self._chains or self._moves or changes or self._travelling is not None:
            return RowChain()
        if (i, back) not in self._handed:
            edges, aggregation = self._edges(i), self._model.layers[i].aggregation
            needs = partial(edges.reads_all, aggregation=aggregation, back=back)
            self._handed[i, back] = {}
            for chain in self._chains:
                self._handed[i, back] |= handed_on(chain, columns, reads, needs)
        return RowChain(self._handed[i, back])

    def _gather(
        self,
        kernels: ChunkKernels,
        i: int,
        columns: Iterable[int],
        reads: Sequence[int],
        read: Callable[[int, Array | None], None],
        chained: ChainedRows,
        moved: Array | None,
        done: Callable[[int], None],
        *,
        back: bool,
        begins: bool = True,
        ends: bool = True,
    ) -> None:
        """Visit the chunks of layer i between some intervals.

        Parameters
        ----------
        kernels, i, back
            The device's, the layer, and the direction.
        columns, reads
            The intervals that are added to, and those that are read.
        read
            Brings the rows of an interval, or some of them, that are read.
        chained
            Brings them from another device instead, or hands them on.
        moved
            [rows, width] where sums wait on the host while others are added to.
        done
            Called with an interval when its sums are complete, on the device; may use the place of what is
            read.
        begins, ends
            Whether nothing was added to the sums before, and nothing will be later. Otherwise they come from
            `moved`, and go there.
        """
        edges, aggregation = self._edges(i), self._model.layers[i].aggregation
        accumulated, others = (
            (edges.sources, edges.destinations) if back else (edges.destinations, edges.sources)
        )
        width, read_width = self._given_width(i), self._widths(i)[0]
        if not back:
            width, read_width = read_width, width
        if not reads:
            # Of a process without targets.
            for column in columns:
                kernels.clear("accumulated", accumulated.length(column), width)
                done(column)
        here: int | None = None
        there: int | None = None
        for visit in visits(columns, reads, self._order):
            name = _name(i, visit.accumulated, visit.read, back=back)
            kernels.name(name)
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
            for own, chunks in ((False, edges.chunk), (True, edges.own)):
                chunk = chunks(visit.accumulated, visit.read, aggregation, back=back)
                if chunk is None:
                    continue
                if visit.read != there:
                    if chunk.useful is not None:
                        kernels.name(f"{name}, {len(chunk.useful):,} of {others.length(visit.read):,} rows")
                    chained.bring(
                        (visit.accumulated, visit.read),
                        partial(read, visit.read, chunk.useful),
                        others.length(visit.read),
                        read_width,
                    )
                    kernels.name(name)
                    there = visit.read
                kernels.gather(i, chunk.edges, chunk.row_scale, chunk.column_scale, own=own, back=back)
            if visit.is_last:
                chained.settle()
                if ends:
                    done(visit.accumulated)
                else:
                    assert moved is not None
                    kernels.get("accumulated", _part(moved, accumulated, visit.accumulated))
                here = there = None


def _dealt_waves(sources: Cut, shares: tuple[float, ...]) -> list[list[list[int]]]:
    """The intervals of remote rows that each device computes, for each exchange."""
    if isinstance(sources, Intervals):
        return []
    found = []
    for group in range(1, len(sources.groups)):
        intervals = sources.of_group(group)
        found.append([[intervals[k] for k in mine] for mine in dealt_columns(len(intervals), shares)])
    return found


def _part(matrix: Array, cut: Cut, i: int) -> Array:
    part: Array = matrix[slice(*cut.range(i))]
    return part


def _name(layer: int, accumulated: int, read: int, *, back: bool) -> str:
    """A chunk as people read it: from its source to its destination, counted from 1."""
    source, destination = (accumulated, read) if back else (read, accumulated)
    return f"layer {layer + 1}{' back' if back else ''}, chunk {source + 1} → {destination + 1}"


def _interval_name(layer: int, what: str, i: int, cut: Cut, *, back: bool = False) -> str:
    """What is computed of an interval's rows, as people read it, counted from 1."""
    return f"layer {layer + 1}{' back' if back else ''}, {what} {i + 1} of {cut.num}"


def _rows_name(layer: int) -> str:
    """The rows that a layer, counted from 0, is given."""
    return f"rows of layer {layer + 1}"


def _gathered_name(layer: int) -> str:
    """What a layer, counted from 0, has gathered; in the backward pass its gradient takes its place."""
    return f"gathered by layer {layer + 1}"
