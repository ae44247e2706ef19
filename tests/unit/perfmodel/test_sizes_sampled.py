"""Sizes between sampled ones."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hyrt_perfmodel.expected_sizes import BlockSizes, SampledSizes

SMALL = BlockSizes(vertices=(300, 80, 10), edges=(400, 90))
LARGE = BlockSizes(vertices=(4800, 2000, 160), edges=(9000, 1440))
SIZES = SampledSizes({160: LARGE, 10: SMALL})


def test_measured_numbers_come_back() -> None:
    for targets, sizes in ((10, SMALL), (160, LARGE)):
        assert SIZES.at(targets).vertices == pytest.approx(sizes.vertices)
        assert SIZES.at(targets).edges == pytest.approx(sizes.edges)


def test_between_two_the_geometric_mean() -> None:
    found = SIZES.at(40)
    assert found.vertices == pytest.approx((math.sqrt(300 * 4800), math.sqrt(80 * 2000), 40))


def test_above_the_largest_with_the_last_slope_at_most_in_proportion() -> None:
    """Of two measurements, one may be off: vertices that grow threefold for twice the targets are noise."""
    noisy = BlockSizes(vertices=(300.0, 20.0), edges=(150.0,))
    sizes = SampledSizes({10: BlockSizes(vertices=(100.0, 10.0), edges=(100.0,)), 20: noisy})
    assert sizes.at(80).vertices == pytest.approx((1200.0, 80.0))
    assert sizes.at(80).edges == pytest.approx((150.0 * 1.5**2,))


def test_below_the_smallest_in_proportion() -> None:
    assert SIZES.at(5).edges == pytest.approx((200, 45))
    assert SIZES.at(0) == BlockSizes(vertices=(0, 0, 0), edges=(0, 0))


def test_above_the_largest_as_before() -> None:
    assert SIZES.at(320).vertices[0] == pytest.approx(9600)
    assert SampledSizes({10: SMALL}).at(20).vertices == pytest.approx((600, 160, 20))


def test_a_layer_without_edges() -> None:
    found = SampledSizes({4: BlockSizes(vertices=(4, 4), edges=(0,))}).at(8)
    assert found.vertices == pytest.approx((8, 8))
    assert found.edges == (0,)


@given(
    st.dictionaries(
        st.integers(1, 5000), st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), min_size=1, max_size=5
    ),
    st.lists(st.floats(0, 1e4), min_size=2, max_size=6),
)
def test_never_falls(measured: dict, asked: list[float]) -> None:
    sizes = SampledSizes({n: BlockSizes(vertices=(v, n), edges=(e,)) for n, (v, e) in measured.items()})
    found = [sizes.at(targets) for targets in sorted(asked)]
    for less, more in pairwise(found):
        assert more.vertices[0] >= less.vertices[0] * (1 - 1e-9)
        assert more.edges[0] >= less.edges[0] * (1 - 1e-9)


@pytest.mark.parametrize(
    "measured", [{}, {0: SMALL}, {1: SMALL, 2: BlockSizes(vertices=(1, 1), edges=(1,))}], ids=str
)
def test_what_was_not_measured(measured: dict) -> None:
    with pytest.raises(ValueError, match="sampled sizes"):
        SampledSizes(measured)
