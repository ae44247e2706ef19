"""The cases of the tools that the counts in benchmarks/ come from, on the one server of runs."""

from __future__ import annotations

import pytest
from fault_case import FaultSuite
from forked_runs import ForkedRuns


@pytest.fixture(scope="session")
def suite(runs: ForkedRuns, tmp_path_factory: pytest.TempPathFactory) -> FaultSuite:
    return FaultSuite(tmp_path_factory.mktemp("faults"), runs)
