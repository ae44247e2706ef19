"""Sizes of the device buffers that hold the chunks of a model."""

from __future__ import annotations

from dataclasses import dataclass

from hyrt.fullgraph.grid.least_grid import ChunkSizes
from hyrt.nn.description import LayerDescription, ModelDescription


@dataclass(frozen=True, slots=True)
class PlaceSizes:
    """Number of values of each buffer of `ChunkKernels`, and of the edges of a chunk."""

    read: int
    accumulated: int
    results: tuple[int, ...]
    """Output of each product of a layer; in the backward pass, the gradient of its input."""
    edge_rows: int
    """Rows of a chunk of edges, one less than the number of their offsets."""
    edges: int
    vertices: int
    """Vertices per interval: scales of either end, and keys of dropout if there is any."""
    targets: int

    @classmethod
    def of(cls, model: ModelDescription, chunks: ChunkSizes) -> PlaceSizes:
        """Compute the sizes that hold every chunk of every layer.

        Parameters
        ----------
        model
            The model.
        chunks
            The largest chunks.
        """
        last = len(model.layers) - 1
        read = accumulated = 0
        results = [0] * max(len(layer.products) for layer in model.layers)
        for i, layer in enumerate(model.layers):
            rows = chunks.targets if i == last else chunks.vertices
            gathered, input_columns = layer.products[0].weight.shape[1], given_width(layer)
            # The backward pass accumulates into the rows that the forward pass reads.
            read = max(read, chunks.vertices * input_columns, rows * gathered)
            accumulated = max(accumulated, rows * gathered, chunks.vertices * input_columns if i else 0)
            for p, product in enumerate(layer.products):
                outputs, inputs = product.weight.shape
                results[p] = max(results[p], rows * max(outputs, inputs if p or i else 0))
        classes = model.layers[-1].products[-1].weight.shape[0]
        return cls(
            read=max(read, chunks.targets * classes),  # Also holds the gradient of the scores.
            accumulated=accumulated,
            results=tuple(results),
            # The self loops of destinations are a chunk of one edge per row.
            edge_rows=max(chunks.edge_rows, chunks.vertices),
            edges=max(chunks.edges, chunks.vertices),
            vertices=chunks.vertices,
            targets=chunks.targets,
        )


def given_width(layer: LayerDescription) -> int:
    """Return the columns of the rows that a layer gathers."""
    width: int = layer.products[0].weight.shape[1]
    return width // 2 if layer.aggregation.self_path == "concat" else width


def drops(model: ModelDescription) -> bool:
    """Return whether a model has any dropout."""
    return bool(model.input_dropout or any(layer.dropout for layer in model.layers))
