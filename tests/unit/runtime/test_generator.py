from __future__ import annotations

import itertools

import numpy as np
import pytest
import reference_draws as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hyrt.runtime.rng import (
    DROPOUT,
    GOLDEN,
    PRESAMPLE,
    SAMPLE,
    SHUFFLE,
    WALK,
    mix64,
    random_below,
    random_bits,
    stream_key,
    vertex_stream,
)

words = st.integers(0, 2**64 - 1)


def draws(key: np.uint64, vertex: int, count: int) -> np.ndarray:
    stream = vertex_stream(key, np.uint64(vertex))
    return np.array([random_bits(stream, np.uint64(i)) for i in range(count)], dtype=np.uint64)


def test_splitmix64_known_sequence() -> None:
    # The first outputs of SplitMix64 seeded with 1234567, as the reference implementation in C prints them.
    known = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    state = 1234567
    for value in known:
        state = (state + int(GOLDEN)) & reference.MASK
        assert int(mix64(np.uint64(state))) == value == reference.mix64(state)


@settings(max_examples=200, deadline=None)
@given(words, words, st.integers(0, 2**40), st.integers(0, 2**32 - 1))
def test_compiled_draws_equal_plain_python(key: int, z: int, vertex: int, counter: int) -> None:
    assert int(mix64(np.uint64(z))) == reference.mix64(z)
    stream = vertex_stream(np.uint64(key), np.uint64(vertex))
    assert int(random_bits(stream, np.uint64(counter))) == reference.draw(key, vertex, counter)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**63 - 1), st.integers(1, 5), st.integers(0, 2**40), st.integers(0, 64))
def test_stream_key_equals_plain_python(seed: int, purpose: int, step: int, layer: int) -> None:
    assert int(stream_key(seed, purpose, step, layer)) == reference.stream_key(seed, purpose, step, layer)


@settings(max_examples=200, deadline=None)
@given(words, st.integers(1, 2**32 - 1))
def test_below_stays_in_range(bits: int, bound: int) -> None:
    value = int(random_below(np.uint64(bits), np.uint64(bound)))
    assert 0 <= value < bound
    assert value == reference.below(bits, bound)


def test_purposes_steps_and_layers_never_share_a_key() -> None:
    purposes = (SAMPLE, DROPOUT, WALK, SHUFFLE, PRESAMPLE)
    assert len(set(purposes)) == len(purposes)
    keys = {int(stream_key(*parts)) for parts in itertools.product(range(4), purposes, range(40), range(6))}
    assert len(keys) == 4 * len(purposes) * 40 * 6


@pytest.mark.parametrize("bound", [2, 3, 10, 1000])
def test_draws_are_uniform(bound: int) -> None:
    values = [
        int(random_below(bits, np.uint64(bound))) for bits in draws(stream_key(1, SAMPLE, 2, 1), 7, 20_000)
    ]
    counts = np.bincount(values, minlength=bound)
    assert stats.chisquare(counts).pvalue > 1e-3


def test_every_bit_is_fair() -> None:
    bits = draws(stream_key(3, WALK, 0, 0), 11, 20_000)
    ones = [(int(((bits >> np.uint64(k)) & np.uint64(1)).sum())) for k in range(64)]
    z = (np.array(ones) - 10_000) / np.sqrt(5_000)
    assert stats.chi2.sf((z**2).sum(), 64) > 1e-3


def test_neighbouring_streams_are_uncorrelated() -> None:
    n = 5_000
    key = stream_key(0, SAMPLE, 0, 1)
    steps = [stream_key(0, SAMPLE, step, 1) for step in range(n)]
    by_counter = draws(key, 5, n)
    by_vertex = np.concatenate([draws(key, v, 1) for v in range(n)])
    by_step = np.concatenate([draws(k, 5, 1) for k in steps])
    for sequence in (by_counter, by_vertex, by_step):
        assert joint_pvalue(sequence[:-1], sequence[1:]) > 1e-3
    assert joint_pvalue(by_counter, by_vertex) > 1e-3
    assert joint_pvalue(by_vertex, by_step) > 1e-3


def joint_pvalue(a: np.ndarray, b: np.ndarray) -> float:
    """Of independence of the top 3 bits of two sequences."""
    table = np.zeros((8, 8))
    np.add.at(table, ((a >> np.uint64(61)).astype(np.int64), (b >> np.uint64(61)).astype(np.int64)), 1)
    return float(stats.chi2_contingency(table).pvalue)
