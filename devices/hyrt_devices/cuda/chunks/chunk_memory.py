"""The device memory of chunks: tensors that are taken once, and what the operators take for a while."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hyrt.fullgraph.grid.least_grid import ChunkSizes
from hyrt.fullgraph.grid.place_sizes import PlaceSizes
from hyrt.nn.description import ModelDescription

# Torch's allocators round sizes up to this at least.
_ROUND_BYTES = 512
WORK_NUMBERS = 1 << 20
"""Numbers of the rows that operators make for a while, of which there are a few at a time. A single row is
made whole, however long it is."""
_WORK_MATRICES = 4
# Of the targets' scores, at the same time: autograd's of the loss.
_SCORE_MATRICES = 6


@dataclass(frozen=True, slots=True)
class EdgeMemory:
    """Flat tensors for the edges of a chunk."""

    rows: torch.Tensor
    starts: torch.Tensor
    columns: torch.Tensor
    """`rows`, `starts`, `columns`: int32."""
    row_scale: torch.Tensor
    column_scale: torch.Tensor
    """`row_scale`, `column_scale`: float32, the factors of their ends."""


@dataclass(frozen=True, slots=True)
class ChunkMemory:
    """A flat tensor for each purpose, as large as the largest chunk needs it; more of what comes and goes."""

    read: tuple[torch.Tensor, ...]
    """float32, the place of `ChunkKernels`, as often as chunks are there at once."""
    edges: tuple[EdgeMemory, ...]
    """As often."""
    accumulated: torch.Tensor
    results: tuple[torch.Tensor, ...]
    """`accumulated`, `results`: float32, the other places."""

    @classmethod
    def take(cls, places: PlaceSizes, device: torch.device, in_flight: int = 1) -> ChunkMemory:
        """Allocate what `needed_bytes` counts."""

        def floats(numbers: int) -> torch.Tensor:
            return torch.empty(max(1, numbers), device=device)

        def ints(numbers: int) -> torch.Tensor:
            return torch.empty(max(1, numbers), dtype=torch.int32, device=device)

        def edges() -> EdgeMemory:
            return EdgeMemory(
                rows=ints(places.edge_rows),
                starts=ints(places.edge_rows + 1),
                columns=ints(places.edges),
                row_scale=floats(places.vertices),
                column_scale=floats(places.vertices),
            )

        return cls(
            read=tuple(floats(places.read) for _ in range(in_flight)),
            edges=tuple(edges() for _ in range(in_flight)),
            accumulated=floats(places.accumulated),
            results=tuple(map(floats, places.results)),
        )


def needed_bytes(
    model: ModelDescription, chunks: ChunkSizes, in_flight: int = 1, *, counts_work: bool = True
) -> int:
    """What a step takes of the device for chunks of such sizes, beside weights.

    The tensors of `ChunkMemory` are counted to the byte, and what operators take for a while at its most.

    Parameters
    ----------
    model
        The model.
    chunks
        The largest chunks.
    in_flight
        How many are there at once.
    counts_work
        Whether rows that operators make for a while count: some MiB, however small the chunks are.
    """
    places = PlaceSizes.of(model, chunks)
    several = [places.read, places.edge_rows, places.edge_rows + 1, places.edges]
    several += [places.vertices, places.vertices]
    words = [*(several * in_flight), places.accumulated, *places.results]
    widest = max(max(product.weight.shape) for layer in model.layers for product in layer.products)
    classes = model.layers[-1].products[-1].weight.shape[0]
    scores = _SCORE_MATRICES * chunks.targets * classes + 4 * chunks.targets
    work = _WORK_MATRICES * max(WORK_NUMBERS, 2 * widest)
    gradients = sum(
        parameter.numel()
        for layer in model.layers
        for product in layer.products
        for parameter in (product.weight, product.bias)
        if parameter is not None
    )
    passing = max(scores, 2 * work if counts_work else 0) + 2 * gradients
    return sum(-(-4 * each // _ROUND_BYTES) * _ROUND_BYTES for each in words) + 4 * passing
