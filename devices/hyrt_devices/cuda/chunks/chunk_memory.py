"""Device memory of chunks, and the times of their copies and computations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch

from hyrt.device import QueueListener, Span
from hyrt.fullgraph.chunks.chunk_grid import BufferSizes, ChunkSizes
from hyrt.fullgraph.chunks.chunk_stats import ChunkStats
from hyrt.nn.description import ModelDescription
from hyrt_devices.cuda.driver import Driver, Timeline

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
    """`accumulated`, `returned_nodes`: float32, the other places."""

    @classmethod
    def take(cls, places: BufferSizes, device: torch.device, in_flight: int = 1) -> ChunkMemory:
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
    places = BufferSizes.from_model(model, chunks)
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


Track = Literal["copy in", "compute", "copy out"]
TRACKS: tuple[Track, ...] = ("copy in", "compute", "copy out")


class ChunkTimes:
    """Marks the begin and the end of all that is done with chunks in a step.

    Parameters
    ----------
    driver
        The hardware.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._timeline: Timeline | None = None
        self._marks: list[tuple[Track, str, Any, Any]] = []
        self.about = ""
        """What is being done, as a person reads it; empty for nothing in particular."""
        self.in_bytes = self.out_bytes = 0
        """Bytes copied to the device, and from it, since `begin`."""

    def begin(self, stream: Any) -> None:
        """Count from here on; `stream` is the one that computes."""
        self._timeline = Timeline(self._driver, stream)
        self._marks = []
        self.about = ""
        self.in_bytes = self.out_bytes = 0

    @contextmanager
    def span(self, track: Track, what: str, stream: Any) -> Iterator[None]:
        """Inside, something is given to a stream."""
        name = f"{what}, {self.about}" if self.about else what
        begun = self._driver.mark(stream)
        yield
        self._marks.append((track, name, begun, self._driver.mark(stream)))

    def add(self, track: Track, what: str, begun: Any, ended: Any) -> None:
        """Note what is between two marks."""
        self._marks.append((track, f"{what}, {self.about}" if self.about else what, begun, ended))

    def spans(self, timeline: Timeline) -> dict[Track, list[Span]]:
        """What there was since `begin`, in the order of each track; all of it is over."""
        found: dict[Track, list[Span]] = {track: [] for track in TRACKS}
        for track, name, begun, ended in self._marks:
            found[track] += timeline.spans([(name, begun, ended)])
            timeline.follow(ended)
        return found

    def tell(self, hear: QueueListener, timeline: Timeline) -> None:
        """Hand over what there was since `begin`; all of it is over."""
        for track, spans in self.spans(timeline).items():
            hear(track, spans)

    def forget(self) -> None:
        """What there was is known."""
        self._marks = []

    def seconds(self) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
        """Begins and ends of copies, and of what was computed, since `begin`; all of it is over."""
        assert self._timeline is not None
        found = self.spans(self._timeline)
        copied, computed = ([*found["copy in"], *found["copy out"]], found["compute"])
        return _in_seconds(copied), _in_seconds(computed)

    def work(self) -> ChunkStats:
        """What was done since `begin`; all of it is over."""
        return ChunkStats.from_spans(self.in_bytes, self.out_bytes, *self.seconds())


def _in_seconds(spans: Sequence[Span]) -> list[tuple[float, float]]:
    return [(begun * 1e-9, ended * 1e-9) for _, begun, ended in spans]
