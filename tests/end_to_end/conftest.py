"""One server of processes for all end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from end_to_end.terminal import served_by
from forked_runs import ForkedRuns


@pytest.fixture(scope="session", autouse=True)
def _server(runs: ForkedRuns, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with served_by(runs, tmp_path_factory.mktemp("printed")):
        yield
