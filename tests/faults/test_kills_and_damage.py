"""A few of the trials of the tools in tools/faults/.

They are kills of kill_nine.py, damages of flip_bytes.py and runs of soak.py, and the fit of memory_growth.py.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from fault_case import FaultSuite
from flip_bytes import FORMS, Sample, make_samples, run_trial, truncate_everywhere
from forked_runs import ForkedRuns
from kill_nine import TRAINERS, kill_and_resume
from memory_growth import slope
from soak import check, random_plan


@pytest.mark.parametrize("number", range(4))
def test_killed_runs_go_on_bit_equal(number: int, suite: FaultSuite) -> None:
    # Two CPU trainers, whose results depend on every bit, and two whose devices compute nothing.
    trainers = TRAINERS[0 if number < 2 else 2]
    result = kill_and_resume(suite, trainers, random.Random(number), is_early=number == 3)
    assert result.problems == ()
    assert result.kills >= 1


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Sample]:
    return make_samples(tmp_path_factory.mktemp("samples"))


@pytest.mark.parametrize("form", FORMS)
def test_damaged_files(form: str, made: dict[str, Sample]) -> None:
    answers = [run_trial(made[form], seed) for seed in range(150)]
    assert set(answers) <= {"detected", "equal", *(["legal"] if form == "bare" else [])}
    assert answers.count("detected") > 90


def test_checkpoints_cut_at_every_block(made: dict[str, Sample]) -> None:
    answers = truncate_everywhere(made["checkpoint"])
    assert len(answers) > 30
    assert set(answers) == {"detected"}


def test_the_slope_of_memory() -> None:
    rise, error = slope([10.0, 12.0, 14.0, 16.0])
    assert rise == pytest.approx(2.0)
    assert error == pytest.approx(0.0, abs=1e-9)
    rise, error = slope([1.0, 2.0, 1.0, 2.0, 1.0, 2.0])
    assert abs(rise) < 2 * error


@pytest.mark.parametrize("number", range(3))
def test_soaking(number: int, suite: FaultSuite, runs: ForkedRuns, tmp_path: Path) -> None:
    draw = random.Random(f"ci {number}")
    plan = random_plan(draw)
    assert check(runs, tmp_path, suite.data, plan, draw) == []
