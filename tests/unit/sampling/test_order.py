from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from hyrt.sampling.block_builder import TargetShuffler


def epoch(order: TargetShuffler, number: int) -> list[np.ndarray]:
    first = number * order.steps_per_epoch
    return [order.batch(step) for step in range(first, first + order.steps_per_epoch)]


@pytest.mark.parametrize(("num", "batch_size"), [(10, 3), (12, 4), (5, 5), (5, 8), (1, 1), (1000, 37)])
def test_every_target_once_an_epoch_and_the_last_short_batch_is_kept(num: int, batch_size: int) -> None:
    targets = np.arange(100, 100 + num, dtype=np.int32)
    order = TargetShuffler(targets, batch_size, seed=0)
    for number in range(3):
        batches = epoch(order, number)
        np.testing.assert_array_equal(np.sort(np.concatenate(batches)), targets)
        assert all(len(batch) == batch_size for batch in batches[:-1])
        assert len(batches[-1]) == num - batch_size * (len(batches) - 1) > 0


def test_order_is_a_function_of_seed_and_epoch() -> None:
    targets = np.arange(500, dtype=np.int32)
    order = TargetShuffler(targets, 64, seed=3)
    epochs = [np.concatenate(epoch(order, number)) for number in range(4)]
    for a in range(4):
        for b in range(a):
            assert not np.array_equal(epochs[a], epochs[b])
    again = TargetShuffler(targets, 64, seed=3)
    # Going back and forth between epochs changes nothing: resuming starts anywhere.
    for number in (2, 0, 3, 1, 2):
        np.testing.assert_array_equal(np.concatenate(epoch(again, number)), epochs[number])
    other = TargetShuffler(targets, 64, seed=4)
    assert not np.array_equal(np.concatenate(epoch(other, 0)), epochs[0])
    np.testing.assert_array_equal(targets, np.arange(500))


def test_shuffles_are_uniform() -> None:
    order = TargetShuffler(np.arange(6, dtype=np.int32), 6, seed=0)
    counts = np.zeros((6, 6))
    for number in range(3000):
        counts[np.arange(6), order.batch(number)] += 1
    # Rows and columns both sum to 3000: (6 - 1)^2 degrees of freedom.
    statistic = ((counts - 500) ** 2 / 500).sum() * 5 / 6
    assert stats.chi2.sf(statistic, 25) > 1e-3
