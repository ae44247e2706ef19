"""Rows that a device keeps, and those that it is sent, are together the rows that were asked for."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyrt.graph.feature_cache import CachedRows, CacheIndex, invert_ranking


@given(
    st.integers(1, 60).flatmap(
        lambda count: st.tuples(
            st.just(count),
            st.lists(st.integers(0, count - 1), unique=True),
            st.lists(st.integers(0, count - 1)),
            st.sampled_from([np.int32, np.int64]),
        )
    ),
    st.floats(0, 1),
)
def test_every_row_is_found_where_its_place_says(case: tuple, part: float) -> None:
    count, ranking, ids, dtype = case
    matrix = np.random.default_rng(count).standard_normal((count, 3))
    kept = int(part * len(ranking))
    places = CacheIndex(invert_ranking(np.array(ranking, dtype), count), kept)
    wanted = np.array(ids, dtype)
    found, missing = np.full(len(ids), 99, np.int32), np.full(len(ids), -7, dtype)
    sent = matrix[missing[: places.find(wanted, found, missing)]]
    cache = matrix[ranking[:kept]]
    joined = [cache[place] if place >= 0 else sent[-1 - place] for place in found]
    np.testing.assert_array_equal(np.reshape(joined, (-1, 3)), matrix[wanted])
    held = set(ranking[:kept])
    assert len(sent) == sum(each not in held for each in ids)
    assert (places.hits, places.lookups) == (len(ids) - len(sent), len(ids))
    CachedRows(found, sent.astype(np.float32)).check(len(ids), kept, 3)


@pytest.mark.parametrize(
    ("places", "sent", "words"),
    [
        ([0, 1], 0, "slots are int32 of shape (2,), expected int32 of shape (3,)"),
        ([0, 1, 4], 0, "slots are from 0 to 4, but 4 rows are cached and 0 are sent"),
        ([0, -1, -3], 2, "slots are from -3 to 0"),
        ([0, 1, 2], 1, ""),
    ],
)
def test_a_place_without_a_row_is_refused(places: list[int], sent: int, words: str) -> None:
    rows = CachedRows(np.array(places, np.int32), np.zeros((sent, 5), np.float32))
    if not words:
        rows.check(3, 4, 5)
        return
    with pytest.raises(ValueError, match=re.escape(words)):
        rows.check(3, 4, 5)
    with pytest.raises(ValueError, match="expected 6 columns"):
        CachedRows(np.zeros(3, np.int32), np.zeros((1, 5), np.float32)).check(3, 4, 6)
