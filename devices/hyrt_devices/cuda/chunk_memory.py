"""Device memory for chunks, and times of the copies and computations of chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch

from hyrt.device import QueueListener, Span
from hyrt.fullgraph.chunk_grid import BufferSizes, ChunkSizes
from hyrt.fullgraph.chunk_stats import ChunkStats
from hyrt.nn.description import ModelDescription
from hyrt_devices.cuda.driver import Driver, Timeline

# Allocation granularity of torch in bytes.
_ROUND_BYTES = 512
WORK_NUMBERS = 1 << 20
"""Maximum number of elements in a temporary matrix of an operator, unless a single row is longer."""
_WORK_MATRICES = 4
# Number of score matrices of the targets that autograd needs at the same time for the loss.
_SCORE_MATRICES = 6


@dataclass(frozen=True, slots=True)
class EdgeMemory:
    """Flat tensors that contain the edges of a chunk."""

    rows: torch.Tensor
    starts: torch.Tensor
    columns: torch.Tensor
    """`rows`, `starts` and `columns` are int32, as in `TileEdges`."""
    row_scale: torch.Tensor
    column_scale: torch.Tensor
    """`row_scale` and `column_scale` are float32 scales of the destinations and the sources."""


@dataclass(frozen=True, slots=True)
class ChunkMemory:
    """Flat tensors for all chunk buffers, with the sizes of the largest chunk."""

    read: tuple[torch.Tensor, ...]
    """Buffers named `read` in `ChunkKernels`, float32, one per chunk in flight."""
    edges: tuple[EdgeMemory, ...]
    """Edge buffers, one per chunk in flight."""
    accumulated: torch.Tensor
    results: tuple[torch.Tensor, ...]
    """`accumulated` and `results` are the other buffers of `ChunkKernels`, float32."""

    @classmethod
    def take(cls, places: BufferSizes, device: torch.device, in_flight: int = 1) -> ChunkMemory:
        """Allocate tensors of the sizes that `needed_bytes` counts."""

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
    """Return the bytes of device memory that a step in chunks needs besides the weights.

    The tensors of `ChunkMemory` are counted exactly for the largest chunks, and temporary memory of operators
    by its maximum. `counts_work` adds the temporary rows of operators: a few MiB for any chunk size.
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
    """Recorder of the start and end marks of chunk copies and computations in a step."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._timeline: Timeline | None = None
        self._marks: list[tuple[Track, str, Any, Any]] = []
        self.about = ""
        """Trace label of the current work, or "" for no label."""
        self.in_bytes = self.out_bytes = 0
        """Bytes copied to the device and from the device since `begin`."""

    def begin(self, stream: Any) -> None:
        """Start measuring a step, whose compute stream is `stream`."""
        self._timeline = Timeline(self._driver, stream)
        self._marks = []
        self.about = ""
        self.in_bytes = self.out_bytes = 0

    @contextmanager
    def span(self, track: Track, operation: str, stream: Any) -> Iterator[None]:
        """Record marks before and after the work that the block submits to a stream."""
        name = f"{operation}, {self.about}" if self.about else operation
        start = self._driver.mark(stream)
        yield
        self._marks.append((track, name, start, self._driver.mark(stream)))

    def add(self, track: Track, operation: str, start: Any, end: Any) -> None:
        """Record the span between two marks."""
        self._marks.append((track, f"{operation}, {self.about}" if self.about else operation, start, end))

    def spans(self, timeline: Timeline) -> dict[Track, list[Span]]:
        """Return the spans since `begin` by track, in order. All work must have finished."""
        found: dict[Track, list[Span]] = {track: [] for track in TRACKS}
        for track, name, start, end in self._marks:
            found[track] += timeline.spans([(name, start, end)])
            timeline.follow(end)
        return found

    def report(self, listener: QueueListener, timeline: Timeline) -> None:
        """Report the spans since `begin` by track. All work must have finished."""
        for track, spans in self.spans(timeline).items():
            listener(track, spans)

    def forget(self) -> None:
        """Discard all recorded spans."""
        self._marks = []

    def seconds(self) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
        """Return (start, end) of copies and of computations since `begin`. All work must have ended."""
        assert self._timeline is not None
        found = self.spans(self._timeline)
        copied, computed = ([*found["copy in"], *found["copy out"]], found["compute"])
        return _in_seconds(copied), _in_seconds(computed)

    def work(self) -> ChunkStats:
        """Return the statistics of the work since `begin`. All work must have finished."""
        return ChunkStats.from_spans(self.in_bytes, self.out_bytes, *self.seconds())


def _in_seconds(spans: Sequence[Span]) -> list[tuple[float, float]]:
    return [(start * 1e-9, end * 1e-9) for _, start, end in spans]
