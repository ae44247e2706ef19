"""Which assignment a step runs under, against a table of all steps."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hyrt_perfmodel.policy import Assignment, Threads

from hyrt.pipeline.work_items import Schedule

STEPS = 40


def assignment(units: int) -> Assignment:
    return Assignment(split=(units, 100 - units), threads=Threads(sample=1 + units % 3, load=2, train=1))


@given(
    ahead=st.integers(1, 6),
    changes=st.lists(st.tuples(st.integers(0, STEPS), st.integers(0, 100)), max_size=20),
    resumed_at=st.integers(0, STEPS),
)
def test_every_step_in_flight_or_to_come_has_what_was_decided(ahead: int, changes, resumed_at: int) -> None:
    schedule = Schedule(assignment(50))
    schedule.ahead = ahead
    table = [assignment(50)] * (3 * STEPS)
    by_step = sorted(changes, key=lambda change: change[0])
    for step in range(STEPS):
        assert schedule.of(step) == table[step]
        for _, units in (change for change in by_step if change[0] == step):
            first = schedule.change(step, assignment(units))
            assert first == step + ahead
            table[first:] = [assignment(units)] * (len(table) - first)
        for later in range(step, step + 2 * ahead + 2):
            assert schedule.of(later) == table[later]
        assert schedule.latest == table[-1]
        # What is over is forgotten.
        assert len(schedule.state()) <= ahead + 2
        if step == resumed_at:
            state = json.loads(json.dumps(schedule.state()))
            schedule = Schedule(assignment(1))
            schedule.ahead = ahead
            schedule.restore(state, step + 1)


def test_a_state_that_says_nothing_of_the_step_is_refused() -> None:
    schedule = Schedule(assignment(50))
    for state in ([], [(7, (1, 2), (1, 1, 1))]):
        with pytest.raises(ValueError, match="do not cover step 6"):
            schedule.restore(state, 6)
    assert schedule.latest == assignment(50)
