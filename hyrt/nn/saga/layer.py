"""A layer of a user's own, as what is done on edges and what is done at vertices."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import nn

from hyrt.checks import check_whole
from hyrt.errors import UnsupportedModel
from hyrt.nn.aggregation import Aggregation
from hyrt.nn.fused.loop_runner import is_on_device
from hyrt.nn.inputs import Rows, source_rows
from hyrt.nn.layer import Footprint, Layer
from hyrt.nn.layer_parts import LayerParts
from hyrt.nn.operators.sparse import SparseRows
from hyrt.nn.saga.blocks.over_block import gather_over_block, relabelled
from hyrt.nn.saga.combining import Accumulator
from hyrt.nn.saga.gather import SagaSum
from hyrt.nn.saga.program import EdgeProgram, read_edge
from hyrt.nn.saga.reading import number_of
from hyrt.nn.saga.tensors.over_tensors import gather_over_tensors
from hyrt.nn.saga.vertex_program import VertexProgram, read_vertex
from hyrt.nn.tensor_operators.tensor_block import TensorBlock
from hyrt.sampling.block import Block

# What each layer has besides what its class has.
_TAKEN = frozenset({*vars(nn.Module()), "in_features", "out_features", "_programs"})


class Edge(Protocol):
    """What `SagaLayer.apply_edge` is given: all edges at once, one a row."""

    src: torch.Tensor
    """[E, in] the source's row."""
    dst: torch.Tensor
    """[E, in] the destination's row."""
    src_degree: torch.Tensor
    """[E, 1] the number of edges into the source, in the whole graph."""
    dst_degree: torch.Tensor
    """[E, 1] the number of edges into the destination, in the whole graph."""
    type: torch.Tensor
    """[E, 1] the edge's type, from 0 to the layer's `edge_types` - 1, as a floating-point number."""
    weight: torch.Tensor
    """[E, 1] the edge's weight; 1 of one from a vertex to itself."""
    data: torch.Tensor
    """[E, d] the edge's features, of which the layer says in `edge_features` how many there are; its weight
    where edges have no features. One from a vertex to itself has the mean of the vertex's others."""


class SagaLayer(Layer):
    """A layer as Scatter, ApplyEdge, Gather and ApplyVertex (NeuGraph, section 2.2).

    A layer of your own derives from it, makes its parameters in `__init__`, and has two methods:
    `apply_edge` computes an edge's message, `apply_vertex` the vertex's new row from its old one and what
    `accumulate` has made of the messages that it received. Both are torch code, which is read once, before
    there are rows. What depends on one end alone is computed once a vertex; where the rest is element-wise,
    it becomes one loop that gathers, forward and backward, without an array of a row an edge. What is neither
    is computed by torch in chunks of edges.

    Parameters
    ----------
    in_features, out_features
        Columns of vertices' rows before and after the layer.
    """

    accumulate: ClassVar[Accumulator] = "sum"
    """What becomes of messages: `sum`, where each of k sampled neighbours out of d counts d / k times;
    `mean`; `max`, element-wise; `attention`, where `apply_edge` returns a pair of the edge's score, [E] or
    [E, heads], and its message, [E, width] or [E, heads, width], and messages are summed with the softmax of
    the scores over a vertex's edges as weights; `concatenation`, where they stand beside each other in the
    order of the edges, in `slots` places. Without edges all are zero."""
    slots: int = 0
    """For `concatenation`, the most edges that a vertex may have, its own loop among them; a place without an
    edge is zero."""
    self_loops: ClassVar[bool] = False
    """Whether each vertex has an edge from itself, which takes the place of any in the data."""
    edge_types: int = 0
    """How many types of edges the layer tells apart; 0 where it does not look at `edge.type`."""
    edge_features: int = 0
    """How many columns `edge.data` has; 0 where the layer does not look at it."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features = check_whole("in_features", in_features, 1, 2**31 - 1)
        self.out_features = check_whole("out_features", out_features, 1, 2**31 - 1)
        self._programs: dict[bool, tuple[EdgeProgram, VertexProgram] | tuple[None, None]] = {}

    @abstractmethod
    def apply_edge(self, edge: Edge) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """[E, width] or [E, heads, width] messages of edges; for `attention`, their scores and messages."""

    @abstractmethod
    def apply_vertex(self, vertex: torch.Tensor, gathered: torch.Tensor) -> torch.Tensor:
        """[n, out_features] new rows of vertices.

        Parameters
        ----------
        vertex
            [n, in_features] their rows.
        gathered
            [n, width] or [n, heads, width], as the messages; for `concatenation` [n, slots, ...].
        """

    def __setattr__(self, name: str, value: Any) -> None:
        is_taken = hasattr(type(self), name) or name in _TAKEN
        is_part = isinstance(value, nn.Module | nn.Parameter)
        if is_part and is_taken and name != "to":
            raise UnsupportedModel(
                f"{type(self).__name__}.{name} cannot be a part of the layer: torch.nn.Module, "
                "hyrt.nn.SagaLayer or the class itself has something else of that name: give the part "
                "another name"
            )
        super().__setattr__(name, value)
        if is_part and is_taken:
            # The one word that layers with edges want: found before the method, which nobody calls of a part
            # of a model.
            self.__dict__[name] = value

    def forward(self, block: Block | TensorBlock, x: Rows, *, relu: bool = False) -> torch.Tensor:
        """[num_dst, out_features] from [num_src, in_features] rows."""
        program, vertex = self._read()
        if isinstance(block, TensorBlock):
            dense = _tensor(x)
            gathered = gather_over_tensors(program, self, block, dense, loops=self.self_loops)
            own: torch.Tensor | SparseRows = dense[: block.num_dst]
        else:
            block, rows = relabelled(block, x, number_of(self).dtype)
            gathered, own = gather_over_block(self._combination(program), block, rows)
        return self._updated(vertex, gathered, own, relu=relu)

    def parts(self, *, multiply_first: bool) -> LayerParts:
        program, vertex = self._read()

        def apply(
            gathered: torch.Tensor, own: torch.Tensor | SparseRows | None, *, relu: bool
        ) -> torch.Tensor:
            return self._updated(vertex, gathered, own, relu=relu)

        def part(
            scatter: Callable[[torch.Tensor | SparseRows], tuple[torch.Tensor, ...]] | None,
            widths: tuple[int, ...],
            gather: Aggregation | SagaSum,
        ) -> LayerParts:
            return LayerParts(
                scatter=scatter,
                message_widths=widths,
                gather=gather,
                gathered_width=program.gathered_width,
                apply=apply,
                reads_own=vertex.reads_own,
            )

        if program.sent is not None and not is_on_device():
            # Messages of sources alone are added up as those of the built-in layers.
            assert program.accumulate != "attention"
            assert program.accumulate != "concatenation"
            gather = Aggregation(program.accumulate, "none", weighted=False)
            if program.sent.op == "placeholder":
                return part(None, (self.in_features,), gather)
            return part(
                lambda rows: tuple(program.rows(self, rows, "source")), (program.gathered_width,), gather
            )
        combination = self._combination(program)
        return part(
            lambda rows: (*program.rows(self, rows, "source"), *program.rows(self, rows, "destination")),
            combination.message_widths,
            combination,
        )

    @property
    def gathers_rows(self) -> bool:
        return True

    @property
    def adds_self_loops(self) -> bool:
        return self.self_loops

    @property
    def edge_reads(self) -> tuple[str, ...]:
        """What `apply_edge` looks at of edges, of `type`, `weight` and `data`."""
        return self._read()[0].edge_reads

    @property
    def unfused(self) -> str:
        """Why what is left on edges is not one loop; empty where it is."""
        return self._read()[0].unfused

    def footprint(self, *, multiplied: bool = False) -> Footprint:
        program, vertex = self._read()
        sources = sum(each.width for each in program.of_end("source"))
        destinations = sum(each.width for each in program.of_end("destination"))
        # Every edge may have a source of its own, whose row is copied and whose values are made twice: as
        # they are computed, and as a matrix.
        row = self.in_features + 2 * (sources + destinations) + program.gathered_width + vertex.numbers
        return Footprint(row + self.out_features, self.in_features + 2 * sources)

    def _combination(self, program: EdgeProgram) -> SagaSum:
        return SagaSum(program, self, self.self_loops)

    def _read(self) -> tuple[EdgeProgram, VertexProgram]:
        """The layer's methods, read at the first call; they may differ between training and evaluation."""
        edge, vertex = self._programs.get(self.training, (None, None))
        if edge is None or vertex is None:
            edge = read_edge(self, self.accumulate, self.in_features, loops=self.self_loops)
            if "type" in edge.edge_reads:
                self._check_types()
            vertex = read_vertex(self, self.in_features, self.out_features, edge.gathered_shape)
            self._programs[self.training] = (edge, vertex)
        return edge, vertex

    def _check_types(self) -> None:
        name = type(self).__name__
        if self.edge_types < 1:
            raise UnsupportedModel(
                f"{name}.apply_edge reads edge.type: say how many types there are, in {name}.edge_types"
            )
        if self.self_loops:
            raise UnsupportedModel(
                f"{name} has self_loops and reads edge.type, but an edge from a vertex to itself has no "
                "type: leave out self_loops, and add the vertex's message to itself in apply_vertex"
            )

    def _updated(
        self,
        vertex: VertexProgram,
        gathered: torch.Tensor,
        own: torch.Tensor | SparseRows | None,
        *,
        relu: bool,
    ) -> torch.Tensor:
        edge, _ = self._read()
        return vertex(self, own, gathered.view(-1, *edge.gathered_shape), relu=relu)


def _tensor(x: Rows) -> torch.Tensor:
    if isinstance(x, SparseRows):
        return x.dense()
    rows = source_rows(x)
    return rows if isinstance(rows, torch.Tensor) else torch.from_numpy(np.asarray(rows))
