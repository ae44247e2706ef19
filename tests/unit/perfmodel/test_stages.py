"""The equations against figures worked out by hand."""

from __future__ import annotations

import pytest
from hyrt_perfmodel.platform import Host
from hyrt_perfmodel.prediction.stage_times import StageTimes, iteration_s
from hyrt_perfmodel.prediction.stages import ExtraTerms, aggregate_s, load_s, trainer_s, update_s
from hyrt_perfmodel.workload import Workload

WORK = Workload(vertices=(1000, 200, 50), edges=(2000, 500), features=(10, 20, 5), concat=True)


def test_load_reads_every_input_row_once() -> None:
    assert load_s(WORK, 1e6) == pytest.approx(1000 * 10 * 4 / 1e6)


def test_aggregation_reads_a_row_an_edge() -> None:
    assert aggregate_s(WORK, 1, 1e6) == pytest.approx(2000 * 10 * 4 / 1e6)
    assert aggregate_s(WORK, 2, 1e6) == pytest.approx(500 * 20 * 4 / 1e6)


def test_a_layer_that_concatenates_multiplies_twice_the_width() -> None:
    assert update_s(WORK, 1, 1e6) == pytest.approx(200 * 20 * 20 / 1e6)
    plain = Workload(vertices=(1000, 200, 50), edges=(2000, 500), features=(10, 20, 5), concat=False)
    assert update_s(plain, 1, 1e6) == pytest.approx(200 * 10 * 20 / 1e6)


def test_backward_leaves_the_first_aggregation_out() -> None:
    agg1, agg2 = aggregate_s(WORK, 1, 2e6), aggregate_s(WORK, 2, 2e6)
    upd1, upd2 = update_s(WORK, 1, 3e6), update_s(WORK, 2, 3e6)
    assert trainer_s(WORK, 2e6, 3e6) == pytest.approx(agg1 + upd1 + agg2 + upd2 + upd1 + agg2 + upd2)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"vertices": (1, 2)}, r"vertices must be 3 numbers of at least 0 \(edges has 2\), got \(1, 2\)"),
        ({"features": (1, 2)}, r"features must be 3 numbers of at least 0 \(edges has 2\), got \(1, 2\)"),
        (
            {"widths_in": (1, 2, 3)},
            r"widths_in must be 2 numbers of at least 0 \(edges has 2\), got \(1, 2, 3\)",
        ),
        ({"edges": (-1, 5)}, r"edges must be numbers of at least 0, got \(-1, 5\)"),
        ({"bytes_per_value": -4}, "workload: bytes_per_value must be a number of at least 0, got -4"),
        ({"input_bytes": "4"}, "workload: input_bytes must be a number of at least 0, got '4'"),
    ],
)
def test_sizes_that_do_not_belong_together(change: dict, says: str) -> None:
    settings = {"vertices": (3, 2, 1), "edges": (2, 1), "features": (4, 4, 4), "concat": False}
    with pytest.raises(ValueError, match=says):
        Workload(**{**settings, **change})


@pytest.mark.parametrize("overlap", ["all", "trainers", "nothing"])
def test_what_follows_each_other_adds_up(overlap: str) -> None:
    times = StageTimes(
        sample_s=1.0,
        load_s=2.0,
        transfer_s=4.0,
        propagate_s=8.5,
        synchronize_s=0.5,
        trainer_transfer_s=(0.0, 4.0),
        trainer_propagate_s=(3.0, 8.0),
    )
    host = Host(memory_gb_s=1.0, macs_per_s=1.0)
    wanted = {"all": 8.5, "trainers": 1 + 2 + 4 + 8.5, "nothing": 1 + 2 + 4 + 3 + 8 + 0.5}
    terms = ExtraTerms(overlap=overlap)  # type: ignore[arg-type]
    assert iteration_s(times, host, terms) == wanted[overlap]
    with pytest.raises(ValueError, match=r"overlap must be one of .*, got 'some'"):
        ExtraTerms(overlap="some")  # type: ignore[arg-type]
