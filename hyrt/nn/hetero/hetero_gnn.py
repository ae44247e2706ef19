"""GNNs over heterogeneous graphs, built from the layers of a model kind or from user-defined layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from hyrt.checks import check_type
from hyrt.errors import UnsupportedModelError
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import HeteroRows
from hyrt.nn.architecture import Architecture, GraphMetadata
from hyrt.nn.description import ModelDescription
from hyrt.nn.hetero.inputs import HeteroInPlaceInput, HeteroInput, HeteroInputProjection, project_sources
from hyrt.nn.layer import Layer, ModelInputs, Rows
from hyrt.nn.model import GNN, stack
from hyrt.sampling.block import Block


def get_graph_metadata(graph: Graph) -> GraphMetadata | None:
    """Return the types and relations of a heterogeneous graph; None for a homogeneous graph."""
    types = check_type("graph", graph, Graph, "pass a graph from hyrt.load").types
    if types is None:
        return None
    rows = graph.features
    assert isinstance(rows, HeteroRows)
    return GraphMetadata(
        types=tuple(types.vertex_types),
        counts=tuple(types.count(name) for name in types.vertex_types),
        widths=tuple(None if table is None else table.width for table in rows.tables),
        relations=tuple(
            (types.type_index(r.source), r.name, types.type_index(r.destination)) for r in types.relations
        ),
    )


class HeteroGNN(GNN):
    """GNN that first projects the rows of each vertex type to `architecture.in_features` columns.

    `architecture.shape` has the types. By default, the model kind creates the `layers`.
    """

    def __init__(self, architecture: Architecture, layers: Sequence[Layer] | None = None) -> None:
        super().__init__(architecture, layers)
        shape = architecture.shape
        assert shape is not None, "a heterogeneous model needs the vertex types of a graph"
        self.input = HeteroInputProjection(shape, architecture.in_features)

    @property
    def shape(self) -> GraphMetadata:
        """Vertex types and relations of the graph."""
        metadata = self.architecture.shape
        assert metadata is not None
        return metadata

    def inputs(self) -> ModelInputs:
        """Return the input forms: rows by type, and in-place tables if the first layer reads them."""
        a = self.architecture
        return ModelInputs(
            in_place=self._layer(0).takes_types and a.input_dropout == 0 and not self.adds_residual(0)
        )

    def description(self) -> ModelDescription:
        raise UnsupportedModelError(f"{type(self).__name__} (a model for heterogeneous graphs)")

    def forward(self, blocks: Sequence[Block], x: Rows) -> torch.Tensor:
        """Compute the scores [targets, classes] of the targets from the `HeteroInput` of the first block."""
        return super().forward(blocks, self._convert_input(x))

    def layer(self, i: int, block: Block, x: Rows) -> torch.Tensor:
        """Compute layer i like `GNN.layer`; the first layer also accepts a `HeteroInput`."""
        return super().layer(i, block, self._convert_input(x))

    def _convert_input(self, x: Rows) -> Rows:
        """Convert a heterogeneous input to a form for the first layer; return other inputs unchanged."""
        if isinstance(x, HeteroInPlaceInput):
            return self.input.forward_in_place(x)
        if not isinstance(x, HeteroInput):
            return x
        sources, a = self.input(x), self.architecture
        drops = self.training and a.input_dropout > 0
        if self._layer(0).takes_types and not drops and not self.adds_residual(0):
            return sources  # type: ignore[no-any-return]
        return project_sources(sources, low_precision=a.low_precision)


def hetero_stack(graph: Graph, *layers: Layer, **between: Any) -> HeteroGNN:
    """Build a model for `hyrt.train` from user-defined layers on a heterogeneous graph.

    Parameters
    ----------
    graph
        Graph from `hyrt.load`. Rows of each type are projected to the input width of the first layer; types
        without features have embeddings.
    *layers
        Layers, input layer first. If a layer reads `edge.type`, it is the relation of the edge.
    **between
        Operations between the layers: `norm`, `residual`, `dropout` and `input_dropout`, as for `stack`.

    Raises
    ------
    ValueError
        If the graph is not heterogeneous, or the widths of the layers do not match.
    """
    shape = get_graph_metadata(graph)
    if shape is None:
        raise ValueError(f"{graph.name} has only one vertex type: build the model with hyrt.nn.stack")
    return HeteroGNN(replace(stack(*layers, **between).architecture, shape=shape), layers)
