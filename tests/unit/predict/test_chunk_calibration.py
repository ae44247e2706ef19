"""What chunks take on the CPU is measured with the kernels that a run calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest

from hyrt.predict.calibrate import full_graph
from hyrt.predict.calibrate.full_graph import measure_chunk_rates
from hyrt.predict.calibrate.host import measure_file_gb_s

SIZES = (2**14, 2**16, 2**18)
ROWS = {16: 512, 128: 128}


@pytest.fixture(autouse=True)
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_graph, "_CHUNK_MATRIX_BYTES", SIZES)
    monkeypatch.setattr(full_graph, "_EDGES", {16: 8000, 128: 2000})
    monkeypatch.setattr(full_graph, "_ROWS", ROWS)
    monkeypatch.setattr(full_graph, "_CHUNK_REPETITIONS", 1)


def test_all_rates_are_measured_with_one_thread_and_with_all() -> None:
    found = measure_chunk_rates(2)
    assert [each.threads for each in found] == [1, 2]
    for rates in found:
        assert [each.matrix_bytes for each in rates.reads] == list(SIZES)
        assert all(getattr(rates, field.name) != 0 for field in fields(rates) if field.name.endswith("per_s"))
        assert 0 < rates.call_s < 1
        assert rates.copy_gb_s > 0


def test_rates_that_are_known_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of kernels that take so long for an edge, a byte, a row that is added to, a factor, a product."""
    edge_s = dict(zip(SIZES, (2e-9, 3e-9, 7e-9), strict=True))
    byte_s = dict(zip(SIZES, (1e-10, 2e-10, 5e-10), strict=True))
    row_s, row_value_s, factor_s, factor_value_s = 4e-8, 3e-10, 1e-9, 2e-10
    mac_s, value_s = 5e-11, 1e-9

    @contextmanager
    def kernels(threads: int, width: int, vertices: int, edges: int) -> Iterator[Any]:
        yield SimpleNamespace(width=width)

    def seconds(self: Any, kernels: Any, *, scaled: bool = False) -> float:
        edges, rows, width = len(self.edges.columns), len(self.edges.rows), kernels.width
        matrix = 4 * width * len(self.of_columns)
        of_edge = edge_s[matrix] + 4 * width * byte_s[matrix]
        of_edge += (factor_s + width * factor_value_s) * scaled
        return edges * of_edge + rows * (row_s + width * row_value_s)

    def products_s(kernels: Any, width: int) -> float:
        """A product and its two gradients; a result and its gradient."""
        return ROWS[width] * (3 * width * width * mac_s + 2 * width * value_s)

    monkeypatch.setattr(full_graph, "_kernels", kernels)
    monkeypatch.setattr(full_graph._MeasuredChunk, "seconds", seconds)
    monkeypatch.setattr(full_graph, "_products_s", products_s)
    for what, costs in (("_copy_s", 5e-10), ("_dropout_s", 2e-9), ("_loss_s", 4e-9)):
        monkeypatch.setattr(full_graph, what, lambda *arguments, costs=costs: costs)
    [rates] = measure_chunk_rates(1)
    for read in rates.reads:
        assert read.edge_s == pytest.approx(edge_s[int(read.matrix_bytes)])
        assert read.gb_s == pytest.approx(1e-9 / byte_s[int(read.matrix_bytes)])
    assert (rates.row_s, rates.row_value_s) == pytest.approx((row_s, row_value_s))
    assert (rates.factor_s, rates.factor_value_s) == pytest.approx((factor_s, factor_value_s))
    assert (rates.macs_per_s, rates.values_per_s) == pytest.approx((1 / mac_s, 1 / value_s))
    assert (rates.copy_gb_s, rates.drawn_per_s, rates.scores_per_s) == pytest.approx((2.0, 5e8, 2.5e8))


def test_a_file_is_written_and_read() -> None:
    rate = measure_file_gb_s()
    assert rate is not None
    assert rate > 0
