"""How large the places are in which a device keeps chunks, for a model."""

from __future__ import annotations

from dataclasses import dataclass

from hyrt.fullgraph.grid.least_grid import ChunkSizes
from hyrt.nn.description import LayerDescription, ModelDescription


@dataclass(frozen=True, slots=True)
class PlaceSizes:
    """Numbers of each place of `ChunkKernels`, and of the edges of a chunk."""

    read: int
    accumulated: int
    results: tuple[int, ...]
    """What each product of a layer makes; in the backward pass, the gradient of what it was made of."""
    edge_rows: int
    """Rows of a chunk of edges, one less than the numbers of their starts."""
    edges: int
    vertices: int
    """Vertices of an interval: factors of either end, and the keys of dropout where there is some."""
    targets: int

    @classmethod
    def of(cls, model: ModelDescription, chunks: ChunkSizes) -> PlaceSizes:
        """The sizes that hold every chunk of every layer.

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
            gathered, given = layer.products[0].weight.shape[1], given_width(layer)
            # Forward, and backward: what is read forward is added to.
            read = max(read, chunks.vertices * given, rows * gathered)
            accumulated = max(accumulated, rows * gathered, chunks.vertices * given if i else 0)
            for p, product in enumerate(layer.products):
                made, of = product.weight.shape
                results[p] = max(results[p], rows * max(made, of if p or i else 0))
        classes = model.layers[-1].products[-1].weight.shape[0]
        return cls(
            read=max(read, chunks.targets * classes),  # The gradient of scores comes here, too.
            accumulated=accumulated,
            results=tuple(results),
            # The rows that destinations were given themselves are added as a chunk of one edge each.
            edge_rows=max(chunks.edge_rows, chunks.vertices),
            edges=max(chunks.edges, chunks.vertices),
            vertices=chunks.vertices,
            targets=chunks.targets,
        )


def given_width(layer: LayerDescription) -> int:
    """Columns of the rows that a layer gathers."""
    width: int = layer.products[0].weight.shape[1]
    return width // 2 if layer.aggregation.self_path == "concat" else width


def drops(model: ModelDescription) -> bool:
    """Whether anything in a model is dropped."""
    return bool(model.input_dropout or any(layer.dropout for layer in model.layers))
