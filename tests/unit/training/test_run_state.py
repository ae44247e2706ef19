"""What a run's summary says of the times of its steps and epochs, against figures worked out here."""

from __future__ import annotations

import pytest

from hyrt.training.run_state import Totals


@pytest.mark.parametrize(
    ("epochs_s", "epoch_s"),
    [
        ([], 3.0 * 10 / 6),
        ([2.5], 2.5),
        # The first one compiles.
        ([2.5, 0.4], 0.4),
        ([2.5, 0.4, 0.5], 0.5),
    ],
)
def test_an_epochs_time_is_the_median(epochs_s: list[float], epoch_s: float) -> None:
    totals = Totals(steps=6, seconds=3.0, stage_s={"sample": 1.2}, epochs_s=epochs_s)
    means = totals.means(steps_per_epoch=10)
    assert means["epoch_s"] == pytest.approx(epoch_s)
    assert means["iteration_s"] == pytest.approx(0.5)
    assert means["stages_s"]["sample"] == pytest.approx(0.2)
    assert Totals().means(10) == {"epoch_s": 0.0}
