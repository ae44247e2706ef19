"""The least number of intervals that fits, found in few trials."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyrt.fullgraph.chunk_grid import NoFeasibleSizeError, smallest_feasible


@given(st.integers(1, 4096), st.integers(1, 4096), st.integers(1, 4096), st.integers(1, 4096))
def test_of_what_falls_the_least_is_found_in_few_trials(most: int, first: int, fits: int, low: int) -> None:
    tried: list[int] = []

    def needs(number: int) -> int:
        tried.append(number)
        return int(number < fits)

    def bound(number: int) -> int:
        return int(number < min(low, fits))

    if fits > most:
        with pytest.raises(NoFeasibleSizeError) as told:
            smallest_feasible(bound, needs, 0, minimum=first, maximum=most)
        assert told.value.needed == 1
        return
    assert smallest_feasible(bound, needs, 0, minimum=first, maximum=most) == max(min(first, most), fits)
    assert len(tried) < 60


@given(st.lists(st.integers(0, 9), min_size=1, max_size=32), st.integers(0, 9))
def test_of_few_the_very_least_is_found(takes: list[int], most_taken: int) -> None:
    """What a number takes may rise from one to the next."""
    fitting = [number for number, taken in enumerate(takes, 1) if taken <= most_taken]

    def found() -> int:
        return smallest_feasible(
            lambda number: 0, lambda number: takes[number - 1], most_taken, minimum=1, maximum=len(takes)
        )

    if fitting:
        assert found() == fitting[0]
    else:
        with pytest.raises(NoFeasibleSizeError):
            found()
