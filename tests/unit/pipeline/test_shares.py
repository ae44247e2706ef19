"""Cutting a step's units, cutting what failed anew, and adding up the times of all shares."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hyrt.device.protocol import StepResult
from hyrt.pipeline.recovery import handed_over, reassign_units
from hyrt.pipeline.work_items import StepWork, WorkShare, cut

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


def test_the_times_of_a_step_are_those_of_all_its_time_steps_and_retries() -> None:
    """Two trainers, two time steps, and a retried share; trainer 1 measures its transfers itself."""
    work = StepWork(0, num_times=2, synchronize_s=0.25)
    seconds = [
        (0, 0, {"sample": 1.0, "load": 2.0, "transfer": 1.0, "propagate": 4.0}),
        (1, 0, {"sample_on_device": 3.0, "fetch": 1.0, "transfer": 9.0, "propagate": 5.0}),
        (0, 1, {"sample": 2.0, "load": 1.0, "transfer": 2.0, "propagate": 3.0}),
        (1, 1, {"sample_on_device": 1.0, "fetch": 2.0, "transfer": 1.0, "propagate": 1.0}),
        (0, 1, {"sample": 0.5, "load": 0.5, "transfer": 0.5, "propagate": 6.0}),
    ]
    for number, (trainer, time, share_s) in enumerate(seconds):
        device_s = {"transfer": 0.75} if trainer else {}
        result = StepResult(loss_sum=0.0, counts={}, normalizer=1.0, gradients=[], seconds=device_s)
        work.shares.append(
            WorkShare(work, trainer, np.arange(1), number, time=time, result=result, seconds=share_s)
        )
    times = work.times(99.0)
    assert times.iteration_s == 99.0
    assert times.stage_s == {
        "sample": 1.0 + 3.0 + 2.0 + 1.0 + 0.5,
        "load": 2.0 + 1.0 + 1.0 + 2.0 + 0.5,
        "transfer": 9.0 + 2.0,
        "propagate": 5.0 + 6.0,
        "synchronize": 0.25,
    }
    assert times.trainers_s == {
        "sample": (3.5, 0.0),
        "sample_on_device": (0.0, 4.0),
        "fetch": (0.0, 3.0),
        "load": (3.5, 0.0),
        "transfer": (3.5, 1.5),
        "propagate": (13.0, 6.0),
        "update": (0.0, 0.0),
    }
