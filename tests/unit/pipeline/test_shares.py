"""Cutting a step's units, and cutting what failed anew."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hyrt.pipeline.recovery import handed_over, reassign_units
from hyrt.pipeline.work_items import cut

splits = st.lists(st.integers(0, 500), min_size=1, max_size=5).filter(any)


@given(split=splits, size=st.integers(0, 1500))
def test_cut_holds_every_unit_once_and_in_order(split: list[int], size: int) -> None:
    units = np.arange(size)
    pieces = cut(units, split)
    assert len(pieces) == len(split)
    assert np.array_equal(np.concatenate(pieces), units)
    if size == sum(split):
        assert [len(piece) for piece in pieces] == split
    for piece, share in zip(pieces, split, strict=True):
        assert abs(len(piece) - size * share / sum(split)) <= 1


@st.composite
def failures(draw):
    split = draw(splits)
    trainer = draw(st.integers(0, len(split) - 1))
    is_lost = draw(st.booleans())
    healthy = [
        i
        for i in range(len(split))
        if (i == trainer and not is_lost) or (i != trainer and draw(st.booleans()))
    ]
    return split, trainer, healthy, is_lost, draw(st.integers(1, 600))


@given(failures())
def test_recut_gives_every_unit_to_one_healthy_trainer_and_keeps_the_sum(failure) -> None:
    split, trainer, healthy, is_lost, size = failure
    units = np.arange(100, 100 + size)
    new = reassign_units(units, trainer, split, [i for i in healthy if i != trainer], is_lost=is_lost)
    others = [i for i in healthy if i != trainer]
    if new is None:
        assert not others
        assert is_lost or size == 1
        return
    after, pieces = new
    assert sum(after) == sum(split)
    assert min(after) >= 0
    assert np.array_equal(np.concatenate([piece for _, piece in pieces]), units)
    assert {index for index, _ in pieces} <= set(healthy)
    mine = sum(len(piece) for index, piece in pieces if index == trainer)
    if is_lost:
        assert after[trainer] == mine == 0
    elif others:
        assert mine < size
        assert after[trainer] == mine == (split[trainer] if split[trainer] < size else size // 2)
    else:
        assert after == split
        assert max(len(piece) for _, piece in pieces) <= -(-size // 2)


def test_those_who_have_more_take_more() -> None:
    assert handed_over([8, 30, 10], 0, 8, [1, 2]) == [0, 36, 12]
    assert handed_over([8, 0, 0], 0, 8, [1, 2]) == [0, 4, 4]
