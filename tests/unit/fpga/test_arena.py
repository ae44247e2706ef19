"""Places in the arena, against a board of words and steps that is filled one by one."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hyrt_devices.fpga.tasks import Shortage, lay_out
from hyrt_hls.task_layout import LayerRecord, arena_regions, row_base

LARGE = SimpleNamespace(pes=4, arena_words=1 << 16)


def record(rows: int, num_src: int, parts: int, chunks: tuple[int, int], relu: bool) -> LayerRecord:
    return LayerRecord(
        rows=rows,
        parts=parts,
        num_src=num_src,
        in_chunks=chunks[0],
        out_chunks=chunks[1],
        relu=relu,
        first_edge=0,
        num_edges=0,
        first_backward_edge=0,
        num_backward_edges=0,
        weights=0,
        combined=0,
        output=0,
        output_gradient=0,
        combined_gradient=-1,
        out_width=16 * chunks[1],
        in_width=16 * chunks[0],
    )


@st.composite
def models(draw: st.DrawFn) -> list[LayerRecord]:
    layers = draw(st.integers(1, 4))
    counts = sorted(
        draw(st.lists(st.integers(1, 60), min_size=layers + 1, max_size=layers + 1)), reverse=True
    )
    chunks = draw(st.lists(st.integers(1, 6), min_size=layers + 1, max_size=layers + 1))
    return [
        record(
            counts[i + 1], counts[i], draw(st.integers(1, 2)), (chunks[i], chunks[i + 1]), draw(st.booleans())
        )
        for i in range(layers)
    ]


def most_at_once(records: list[LayerRecord], of_rows: bool) -> int:
    """Words that hold data in the worst step: no layout takes fewer."""
    kept = [region for region in arena_regions(records, LARGE.pes) if region.in_row_memory == of_rows]
    steps = range(1 + max((region.last_step for region in kept), default=0))
    return max(sum(r.words for r in kept if r.first_step <= step <= r.last_step) for step in steps)


@given(models())
def test_no_two_matrices_hold_the_same_word_in_the_same_step(records: list[LayerRecord]) -> None:
    placed = lay_out(records, LARGE)
    assert not isinstance(placed, Shortage)
    kept = arena_regions(placed, LARGE.pes)
    board = np.zeros((1 + max(region.last_step for region in kept), LARGE.arena_words), np.int8)
    for region in kept:
        low, high = (
            (row_base(LARGE.arena_words), LARGE.arena_words)
            if region.in_row_memory
            else (0, row_base(LARGE.arena_words))
        )
        assert low <= region.offset
        assert region.offset + region.words <= high
        board[region.first_step : region.last_step + 1, region.offset : region.offset + region.words] += 1
    assert board.max() == 1


@given(models())
def test_a_bank_of_what_is_needed_is_enough_and_of_less_is_not(records: list[LayerRecord]) -> None:
    for of_rows, memory in ((False, "sums"), (True, "rows")):
        least = most_at_once(records, of_rows)
        # Of so many words less than `least` are for this memory, whatever the other's are.
        words = max(1, (least - 1) * 8 // (3 if of_rows else 5))
        while (words - row_base(words) if of_rows else row_base(words)) >= least:
            words -= 1
        missing = lay_out(records, SimpleNamespace(pes=LARGE.pes, arena_words=words))
        assert isinstance(missing, Shortage)
        if missing.memory == memory:
            assert missing.needed >= least > missing.available


def test_matrices_that_do_not_meet_share_words() -> None:
    """Layer 1's output is not read again after layer 2's aggregation, where no ReLU asks for it."""
    records = [record(64, 64, 1, (1, 4), relu=False), record(64, 64, 1, (4, 4), relu=False)]
    placed = lay_out(records, LARGE)
    assert not isinstance(placed, Shortage)
    together = sum(region.words for region in arena_regions(placed, LARGE.pes) if region.in_row_memory)
    highest = max(r.offset + r.words for r in arena_regions(placed, LARGE.pes) if r.in_row_memory)
    assert highest - row_base(LARGE.arena_words) < together


def test_the_shortage_says_what_is_missing() -> None:
    missing = lay_out([record(4000, 4000, 1, (2, 1), relu=True)], SimpleNamespace(pes=4, arena_words=1000))
    # 1000 rows a bank of 2 chunks combined and of 1 chunk of gradient, of 5/8 of the words.
    assert missing == Shortage("sums", 3000, 625)
