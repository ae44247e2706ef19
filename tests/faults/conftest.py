"""The tools that the counts in benchmarks/ come from, on the path, and one server of runs for all tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools" / "faults"))

from fault_case import FaultSuite
from forked_runs import ForkedRuns


@pytest.fixture(scope="session")
def runs() -> Iterator[ForkedRuns]:
    with ForkedRuns() as started:
        yield started


@pytest.fixture(scope="session")
def suite(runs: ForkedRuns, tmp_path_factory: pytest.TempPathFactory) -> FaultSuite:
    return FaultSuite(tmp_path_factory.mktemp("faults"), runs)
