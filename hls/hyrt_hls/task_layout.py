"""Task layout: the arrays of one trainer launch, their meaning and their invariants.

A task trains on some targets: forward through all layers, softmax cross-entropy, backward, weight gradients.
Layer l computes

    combined = A rows,    A sparse [num_dst * parts, num_src], one weighted edge per element;
    output = dropout(relu(combined viewed as [num_dst, parts * in_width] @ weight + bias))

Sum, mean, normalisation, self-loops and concatenation are thus expressed by edges. Arrays are C-contiguous. A
word is LANES floats (512 bits). A row takes ceil(width / LANES) words, called chunks, padded with zeros.
Feature values may have fewer bits (ROW_CODES): a word then holds two or four chunks.

The on-chip arena has one bank for each of the design's n gather units. Word c of row r of a matrix with C
chunks is stored in bank r % n at `offset + (r // n) * C + c`. Words below `row_base` are the sum memory
(combined, output_gradient), where the gather units accumulate; words from `row_base` on are the row memory
(output, combined_gradient), which the network reads at the same time. There are two memories because none has
enough ports for both.

The steps of a launch, which `arena_regions` counts, are: aggregate and update, layer by layer; the loss;
then, from the last layer to the first: mask (ReLU and dropout, in place on output_gradient), weight
gradients, and except in layer 1 the gradient of combined and its aggregation into the output_gradient of the
layer below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

import numpy as np
from hyrt_perfmodel.fpga_design import LANES, num_chunks, row_words
from numpy.typing import NDArray

VERSION = 2
HEADER_INTS = 16
"""Number of int32 values in the header of a task."""
RECORD_INTS = 24
"""Number of int32 values in the record of a layer."""
EDGE_INTS = 4
"""Number of int32 values per edge: source, destination, the bits of its float32 weight, and 0."""
ROW_CODES = {"float32": 0, "float16": 1, "bfloat16": 2, "int8": 3}
"""Header codes of the feature row formats, by their names in `hyrt.graph.quantized.row_format`."""
CODE_BYTES = (4, 2, 2, 1)
"""Number of bytes per value of each format, by header code."""
ARGUMENTS = (
    *("features", "edges", "weights", "labels", "target_weights", "vertices", "task"),
    *("scores", "gradients", "results"),
)
"""Arguments of the kernel in order: the inputs of a task, then the results of a launch."""
MAX_LAYERS = 8
MAX_CHUNKS = 512
"""Number of words in the widest row that a design supports, which is the size of its row buffer."""
PANEL_ROWS = 8192
"""Maximum rows (parts * in_chunks * LANES) and columns of a weight matrix: a panel is stored on chip."""

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


def row_base(arena_words: int) -> int:
    """Return the first word of a bank's row memory: the sum memory has 5/8 of the words, the row memory 3/8.

    If `arena_words` is a multiple of 32768, both consist of whole UltraRAMs.
    """
    return arena_words * 5 // 8


@dataclass(frozen=True, slots=True)
class Dropout:
    """Dropout of row values: zero if the 16 random bits of (key, vertex, column) are below the threshold."""

    threshold: int = 0
    """Dropout probability in units of 1/65536; 0 disables dropout."""
    scale: float = 1.0
    """Factor by which retained values are multiplied."""
    key: int = 0
    """Random 64-bit key from `hyrt.runtime.rng.stream_key`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHeader:
    """Header of a task: the first HEADER_INTS int32 values of its description."""

    layers: int
    targets: int
    classes: int
    num_sources: int
    in_chunks: int
    in_width: int
    dropout: Dropout = Dropout()  # Dropout of the input features.
    row_codes: int = 0  # Value of ROW_CODES.


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRecord:
    """Record of a layer: RECORD_INTS int32 values of a task's description.

    `rows` is the number of destinations. Edge positions are relative to the task's edge list. `weights` is an
    offset in words of the weight array. `combined`, `output`, `output_gradient` and `combined_gradient` are
    offsets in words of a bank (`combined_gradient` is -1 in layer 1).
    """

    rows: int
    parts: int
    num_src: int
    in_chunks: int
    out_chunks: int
    relu: bool
    dropout: Dropout = Dropout()
    first_edge: int = 0
    num_edges: int = 0
    first_backward_edge: int = 0
    num_backward_edges: int = 0
    weights: int = 0
    combined: int = 0
    output: int = 0
    output_gradient: int = 0
    combined_gradient: int = -1
    out_width: int
    in_width: int

    @property
    def depth(self) -> int:
        """Return the number of rows of the layer's weight matrix, including padding."""
        return self.parts * self.in_chunks * LANES

    @property
    def weight_words(self) -> int:
        """Return the number of words of the weight matrix and its bias row."""
        return (self.depth + 1) * self.out_chunks


_DROPOUT = np.dtype([("threshold", "<i4"), ("scale", "<f4"), ("key", "<u8")])


def _record_dtype(before_fields: str, after_fields: str, count: int) -> np.dtype[np.void]:
    """Return a dtype of `count` int32 values: the given fields around a dropout field, then unused values."""
    first, second = before_fields.split(), after_fields.split()
    unused = count - len(first) - len(second) - _DROPOUT.itemsize // 4
    numbers = [(name, "<i4") for name in second]
    return np.dtype(
        [*((name, "<i4") for name in first), ("dropout", _DROPOUT), *numbers, ("unused", "<i4", unused)]
    )


_HEADER = _record_dtype(
    "version layers targets classes num_sources in_chunks", "in_width row_codes", HEADER_INTS
)
_RECORD = _record_dtype(
    "rows parts num_src in_chunks out_chunks relu",
    "first_edge num_edges first_backward_edge num_backward_edges weights "
    "combined output output_gradient combined_gradient out_width in_width",
    RECORD_INTS,
)


@dataclass(frozen=True, slots=True)
class Region:
    """Matrix in the arena, with its location and the first and last step in which it holds data."""

    layer: int
    """Index of the matrix's layer, from 0."""
    matrix: str
    """Name of the field in the layer's record that contains the offset."""
    offset: int
    words: int
    """Number of words that the matrix takes in every bank, from `offset`."""
    in_row_memory: bool
    first_step: int
    last_step: int

    @property
    def name(self) -> str:
        return f"layer {self.layer + 1}: {self.matrix}"


def encode_task(header: TaskHeader, records: Sequence[LayerRecord]) -> Ints:
    """Encode the description of a task as [HEADER_INTS + layers * RECORD_INTS] int32.

    Raises ValueError if the number of records is not the header's number of layers.
    """
    if len(records) != header.layers:
        raise ValueError(
            f"task: there are {len(records)} layer records, but the header has {header.layers} layers"
        )
    task = np.zeros(HEADER_INTS + header.layers * RECORD_INTS, np.int32)
    task[0] = VERSION
    _write_fields(task[:HEADER_INTS].view(_HEADER)[0], header)
    for words, record in zip(task[HEADER_INTS:].view(_RECORD), records, strict=True):
        _write_fields(words, record)
    return task


def read_header(task: Ints) -> TaskHeader:
    """Decode the header of a description. Raises ValueError for an array of another version."""
    if task.dtype != np.int32 or task.ndim != 1 or len(task) < HEADER_INTS:
        raise ValueError(
            f"task: the description must be at least {HEADER_INTS} int32, got {task.dtype} {task.shape}"
        )
    if task[0] != VERSION:
        raise ValueError(f"task: the description has version {task[0]}, expected {VERSION}")
    layers = int(task[1])
    if not 1 <= layers <= MAX_LAYERS or len(task) != HEADER_INTS + layers * RECORD_INTS:
        raise ValueError(
            f"task: the description has {len(task)} int32 and {layers} layers (at most {MAX_LAYERS})"
        )
    return TaskHeader(**_read_fields(task[:HEADER_INTS].view(_HEADER)[0], TaskHeader))


def read_records(task: Ints) -> list[LayerRecord]:
    """Decode the layer records, layer 1 first. Raises ValueError for an array of another version."""
    read_header(task)
    records = [_read_fields(words, LayerRecord) for words in task[HEADER_INTS:].view(_RECORD)]
    return [LayerRecord(**{**values, "relu": bool(values["relu"])}) for values in records]


def arena_regions(records: Sequence[LayerRecord], pes: int) -> list[Region]:
    """Return the location and lifetime of every matrix of a launch in an arena of `pes` banks."""
    layers = len(records)
    matrices = []
    for i, r in enumerate(records):
        aggregate, loss = 2 * i, 2 * layers
        mask = loss + 1 + 4 * (layers - 1 - i)
        last = i == layers - 1
        output_read = mask if r.relu else loss if last else aggregate + 2
        output_gradient_born = loss if last else mask - 1
        combined_words = _words_per_bank(r.rows * r.parts, r.in_chunks, pes)
        output_words = _words_per_bank(r.rows, r.out_chunks, pes)
        lifetimes: list[tuple[str, int, bool, int, int]] = [
            ("combined", combined_words, False, aggregate, mask + 1),
            ("output", output_words, True, aggregate + 1, output_read),
            ("output_gradient", output_words, False, output_gradient_born, mask + (2 if i else 1)),
        ]
        if i:
            lifetimes.append(("combined_gradient", combined_words, True, mask + 2, mask + 3))
        for matrix, words, of_rows, born, dies in lifetimes:
            matrices.append(Region(i, matrix, getattr(r, matrix), words, of_rows, born, dies))
    return matrices


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Input arrays of a launch."""

    features: Floats | Ints
    """Features of the source vertices V^0: [num_sources, in_chunks * LANES] float32, or [num_sources,
    row_words * LANES] int32 that contain smaller values. The edge weights of layer 1 include the scales of
    int8 rows."""
    edges: Ints
    """Edges in consecutive sections: [edges, EDGE_INTS] int32. In the forward section of a layer, an edge
    leads from a source row to a row of combined; in the backward section of a layer l >= 2, from a row of
    combined to a source row. Each section is sorted by start, then by end."""
    weights: Floats
    """Weights of all layers: [words * LANES] float32. Those of a layer begin at `LayerRecord.weights`: [parts
    * in_chunks * LANES, out_chunks * LANES], then one row of biases."""
    labels: Ints
    """Class of each target: [targets] int32."""
    target_weights: Floats
    """Loss weight of each target: [targets] float32, all 1 if targets are not weighted."""
    vertices: NDArray[np.int64]
    """Vertex ids of the rows of V^0: [num_sources] int64. The rows of every later layer are a prefix."""
    task: Ints
    """Description of the task: int32 array from `encode_task`."""

    @property
    def header(self) -> TaskHeader:
        return read_header(self.task)

    @property
    def records(self) -> list[LayerRecord]:
        return read_records(self.task)

    @property
    def score_shape(self) -> tuple[int, int]:
        """Return the shape of a launch's scores: [targets, out_chunks of the last layer * LANES]."""
        return self.header.targets, self.records[-1].out_chunks * LANES

    def check(self, capacity_words: int, pes: int) -> None:
        """Raise ValueError naming the array, layer or edge if a launch would access memory out of range."""
        _check_arrays(self)
        header, records = self.header, self.records
        _check_chain(header, records, len(self.weights) // LANES)
        for i, r in enumerate(records):
            _check_edges(
                self.edges, f"layer {i + 1}, forward", r.first_edge, r.num_edges, r.num_src, r.rows * r.parts
            )
            if i:
                _check_edges(
                    self.edges,
                    f"layer {i + 1}, backward",
                    r.first_backward_edge,
                    r.num_backward_edges,
                    r.rows * r.parts,
                    r.num_src,
                )
        _check_regions(arena_regions(records, pes), capacity_words)


def _words_per_bank(rows: int, chunks: int, pes: int) -> int:
    return -(-rows // pes) * chunks


def _write_fields(words: Any, value: TaskHeader | LayerRecord) -> None:
    for field in fields(value):
        number = getattr(value, field.name)
        words[field.name] = astuple(number) if isinstance(number, Dropout) else number


def _read_fields(words: Any, kind: type[TaskHeader | LayerRecord]) -> dict[str, Any]:
    values = {field.name: words[field.name].item() for field in fields(kind)}
    return {**values, "dropout": Dropout(*values["dropout"])}


def _check_arrays(task: Task) -> None:
    header = task.header
    if not 0 <= header.row_codes < len(CODE_BYTES):
        raise ValueError(f"task: row_codes must be from 0 to {len(CODE_BYTES) - 1}, got {header.row_codes}")
    row_width = row_words(header.in_width, CODE_BYTES[header.row_codes]) * LANES
    shapes: dict[str, tuple[type[np.generic], tuple[int, ...]]] = {
        "features": (np.int32 if header.row_codes else np.float32, (header.num_sources, row_width)),
        "edges": (np.int32, (len(task.edges), EDGE_INTS)),
        "weights": (np.float32, (len(task.weights),)),
        "labels": (np.int32, (header.targets,)),
        "target_weights": (np.float32, (header.targets,)),
        "vertices": (np.int64, (header.num_sources,)),
    }
    for name, (dtype, shape) in shapes.items():
        array = getattr(task, name)
        if array.dtype != dtype or array.shape != shape:
            raise ValueError(
                f"task: {name} is {array.dtype} {array.shape}, but the description expects {np.dtype(dtype)} "
                f"{shape}"
            )
        if not array.flags.c_contiguous:
            raise ValueError(f"task: {name} must be contiguous")
    if header.targets < 1 or header.classes < 1:
        raise ValueError(
            f"task: targets and classes must be at least 1, got {header.targets} and {header.classes}"
        )
    bad = (task.labels < 0) | (task.labels >= header.classes)
    if bad.any():
        index = int(np.argmax(bad))
        raise ValueError(
            f"task: target {index} has label {task.labels[index]}, but there are {header.classes} classes"
        )


def _check_chain(header: TaskHeader, records: Sequence[LayerRecord], weight_words: int) -> None:
    """Check that each layer matches the layer below, and that widths, thresholds and weights are in range."""
    _check_dropout("the input", header.dropout)
    rows, width, chunks = header.num_sources, header.in_width, header.in_chunks
    end = 0
    for i, r in enumerate(records):
        name = f"layer {i + 1}"
        if (r.num_src, r.in_width, r.in_chunks) != (rows, width, chunks):
            raise ValueError(
                f"task: {name} reads {r.num_src} rows of {r.in_width} values in {r.in_chunks} chunks, "
                f"but its input has {rows} rows of {width} values in {chunks}"
            )
        if r.parts not in (1, 2) or not 1 <= r.rows <= r.num_src:
            raise ValueError(
                f"task: {name} must have 1 to {r.num_src} rows of 1 or 2 parts, got {r.rows} of {r.parts}"
            )
        for end_name, count, words in (
            ("input", r.in_width, r.in_chunks),
            ("output", r.out_width, r.out_chunks),
        ):
            if count < 1 or words != num_chunks(count) or words > MAX_CHUNKS:
                raise ValueError(
                    f"task: {name} has {end_name} of {count} values in {words} chunks "
                    f"(at most {MAX_CHUNKS} of {LANES} values)"
                )
        if r.depth > PANEL_ROWS:
            raise ValueError(
                f"task: {name} has a weight of {r.depth} rows, but a panel has room for {PANEL_ROWS}"
            )
        _check_dropout(name, r.dropout)
        if r.weights < end or r.weights + r.weight_words > weight_words:
            raise ValueError(
                f"task: {name} has weights at words {r.weights} to {r.weights + r.weight_words}, but there "
                f"are {weight_words} words, of which the previous layers use {end}"
            )
        end = r.weights + r.weight_words
        rows, width, chunks = r.rows, r.out_width, r.out_chunks
    if (rows, width) != (header.targets, header.classes):
        raise ValueError(
            f"task: the last layer has {rows} rows of {width} values, expected {header.targets} targets and "
            f"{header.classes} classes"
        )


def _check_dropout(name: str, dropout: Dropout) -> None:
    if not 0 <= dropout.threshold < 65536:
        raise ValueError(
            f"task: the dropout threshold of {name} must be from 0 to 65535, got {dropout.threshold}"
        )


def _check_edges(edges: Ints, name: str, first: int, count: int, num_from: int, num_to: int) -> None:
    if first < 0 or count < 0 or first + count > len(edges):
        raise ValueError(f"task: {name} uses edges {first} to {first + count}, but there are {len(edges)}")
    section = edges[first : first + count]
    for column, (direction, limit) in enumerate((("from", num_from), ("to", num_to))):
        bad = (section[:, column] < 0) | (section[:, column] >= limit)
        if bad.any():
            position = int(np.argmax(bad))
            raise ValueError(
                f"task: {name}: edge {position} goes {direction} row {section[position, column]}, but there "
                f"are {limit} rows"
            )
    step_from, step_to = np.diff(section[:, 0]), np.diff(section[:, 1])
    bad = (step_from < 0) | ((step_from == 0) & (step_to < 0))
    if bad.any():
        raise ValueError(
            f"task: {name}: edge {int(np.argmax(bad)) + 1} is out of order: sort by from, then to"
        )


def _check_regions(matrices: Sequence[Region], capacity_words: int) -> None:
    split = row_base(capacity_words)
    for a in matrices:
        low, high = (split, capacity_words) if a.in_row_memory else (0, split)
        if a.offset < low or a.offset + a.words > high:
            raise ValueError(
                f"task: {a.name} is at words {a.offset} to {a.offset + a.words} of a bank, but its memory "
                f"has words {low} to {high}"
            )
    for a in matrices:
        for b in matrices:
            disjoint = a.offset + a.words <= b.offset or b.offset + b.words <= a.offset
            if b is not a and not disjoint and a.first_step <= b.last_step and b.first_step <= a.last_step:
                raise ValueError(f"task: {a.name} and {b.name} share words of the arena at the same time")
