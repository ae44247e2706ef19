"""The description of a task is read as it was written; what would go out of range is refused by name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from golden import GOLDEN_ARENA, GOLDEN_PES, golden_tasks, random_task
from hypothesis import given
from hypothesis import strategies as st
from hyrt_hls.task_layout import (
    Dropout,
    LayerRecord,
    Task,
    TaskHeader,
    arena_regions,
    encode_task,
    read_header,
    read_records,
)

COUNT = st.integers(0, 2**31 - 1)
DROPOUTS = st.builds(Dropout, st.integers(0, 65535), st.floats(1, 65536, width=32), st.integers(0, 2**64 - 1))
NUMBERS = {name: COUNT for name in LayerRecord.__dataclass_fields__ if name not in ("relu", "dropout")}
RECORDS = st.builds(LayerRecord, **NUMBERS, relu=st.booleans(), dropout=DROPOUTS)


@given(st.lists(RECORDS, min_size=1, max_size=8), st.tuples(*[COUNT] * 5), DROPOUTS)
def test_round_trip(records: list[LayerRecord], counts: tuple[int, ...], dropout: Dropout) -> None:
    header = TaskHeader(
        layers=len(records),
        targets=counts[0],
        classes=counts[1],
        num_sources=counts[2],
        in_chunks=counts[3],
        in_width=counts[4],
        dropout=dropout,
    )
    task = encode_task(header, records)
    assert task.dtype == np.int32
    assert read_header(task) == header
    assert read_records(task) == records


def test_places_in_the_description() -> None:
    """The order that kernels in other languages rely on."""
    names = [
        "rows",
        "parts",
        "num_src",
        "in_chunks",
        "out_chunks",
        "relu",
        "-",
        "-",
        "-",
        "-",
        "first_edge",
        "num_edges",
        "first_backward_edge",
        "num_backward_edges",
        "weights",
        "combined",
        "output",
        "output_gradient",
        "combined_gradient",
        "out_width",
        "in_width",
    ]
    numbers = {name: place for place, name in enumerate(names) if name not in ("-", "relu")}
    record = LayerRecord(**numbers, relu=True, dropout=Dropout(6, 1.5, 9 << 32 | 8))
    task = encode_task(
        TaskHeader(
            layers=1,
            targets=2,
            classes=3,
            num_sources=4,
            in_chunks=5,
            in_width=10,
            row_codes=3,
            dropout=Dropout(6, 2.0, 9 << 32 | 8),
        ),
        [record],
    )
    scale = np.array([2.0, 1.5], np.float32).view(np.int32)
    assert task[:16].tolist() == [2, 1, 2, 3, 4, 5, 6, scale[0], 8, 9, 10, 3, 0, 0, 0, 0]
    assert task[16:].tolist() == [0, 1, 2, 3, 4, 1, 6, scale[1], 8, 9, *range(10, 21), 0, 0, 0]


@pytest.mark.parametrize("pes", [2, 4, 8])
def test_golden_tasks_pass(pes: int) -> None:
    for _, task in golden_tasks(pes):
        task.check(GOLDEN_ARENA, pes)


def example() -> Task:
    return random_task(2, widths=[20, 18, 5], counts=[12, 9, 6], density=0.4)


def with_layer(task: Task, layer: int, **changes: object) -> Task:
    records = task.records
    records[layer] = replace(records[layer], **changes)  # type: ignore[arg-type]
    return replace(task, task=encode_task(task.header, records))


def with_edge(task: Task, edge: int, column: int, value: int) -> Task:
    edges = task.edges.copy()
    edges[edge, column] = value
    return replace(task, edges=edges)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: replace(t, features=t.features[:-1]), "features is float32"),
        (lambda t: replace(t, features=t.features.astype(np.float64)), "features is float64"),
        (lambda t: replace(t, features=np.asfortranarray(t.features)), "features must be contiguous"),
        (lambda t: replace(t, labels=t.labels + 5), "target 0 has label .*, but there are 5 classes"),
        (lambda t: replace(t, weights=t.weights[:-16]), "layer 2 has weights at words"),
        (lambda t: with_layer(t, 1, weights=0), "layer 2 has weights at words 0"),
        (lambda t: with_layer(t, 1, num_src=8), "layer 2 reads 8 rows"),
        (lambda t: with_layer(t, 1, in_width=17), "layer 2 reads"),
        (lambda t: with_layer(t, 0, parts=3), "layer 1 must have .*, got 9 of 3"),
        (lambda t: with_layer(t, 0, out_chunks=3), "layer 1 has output of 18 values in 3 chunks"),
        (lambda t: with_layer(t, 1, out_width=6), "the last layer has 6 rows of 6 values"),
        (lambda t: with_layer(t, 0, dropout=Dropout(65536, 1.0, 0)), "dropout threshold of layer 1"),
        (lambda t: with_layer(t, 0, num_edges=10**6), "layer 1, forward uses edges 0 to 1000000"),
        (lambda t: with_edge(t, 3, 0, 12), "layer 1, forward: edge 3 goes from row 12, but there are 12"),
        (lambda t: with_edge(t, 3, 1, -1), "layer 1, forward: edge 3 goes to row -1, but there are 9 rows"),
        (lambda t: with_edge(t, len(t.edges) - 1, 1, 9), "layer 2, backward: edge .* goes to row 9, but"),
        (lambda t: with_edge(t, 0, 0, 5), "layer 1, forward: edge 1 is out of order"),
        (lambda t: with_layer(t, 0, combined=-1), "layer 1: combined is at words -1"),
        (lambda t: with_layer(t, 0, output=0), "layer 1: output is at words 0 to 6 .* 2560 to 4096"),
        (lambda t: with_layer(t, 0, output_gradient=2560), "layer 1: output_gradient is at words 2560"),
        (lambda t: with_layer(t, 1, output=4096), "layer 2: output is at words 4096"),
        (lambda t: with_layer(t, 1, combined=0), "layer 1: combined and layer 2: combined share words"),
        (lambda t: replace(t, task=t.task[:-1]), "63 int32 and 2 layers"),
        (lambda t: replace(t, task=np.concatenate([[1], t.task[1:]]).astype(np.int32)), "version 1"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(change: object, message: str) -> None:
    task = change(example())  # type: ignore[operator]
    with pytest.raises(ValueError, match=message):
        task.check(GOLDEN_ARENA, GOLDEN_PES)


def test_regions_may_share_words_at_different_times() -> None:
    """Layer 1's gradient is born when layer 2's combined rows have been used for the last time."""
    task = example()
    by_name = {region.name: region for region in arena_regions(task.records, GOLDEN_PES)}
    assert by_name["layer 2: combined"].last_step < by_name["layer 1: output_gradient"].first_step
    with_layer(task, 0, output_gradient=task.records[1].combined).check(GOLDEN_ARENA, GOLDEN_PES)
