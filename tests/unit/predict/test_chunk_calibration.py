"""What chunks take on the CPU is measured with the kernels that a run calls."""

from __future__ import annotations

from dataclasses import fields

import pytest

from hyrt.predict.calibrate import chunks
from hyrt.predict.calibrate.chunks import chunk_rates
from hyrt.predict.calibrate.disk import file_gb_s


def test_all_rates_are_measured_with_one_thread_and_with_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "_MATRIX_BYTES", (2**14, 2**16, 2**18))
    monkeypatch.setattr(chunks, "_EDGES", {16: 8000, 128: 2000})
    monkeypatch.setattr(chunks, "_ROWS", {16: 512, 128: 128})
    monkeypatch.setattr(chunks, "_REPETITIONS", 1)
    found = chunk_rates(2)
    assert [each.threads for each in found] == [1, 2]
    for rates in found:
        assert [each.matrix_bytes for each in rates.reads] == [2**14, 2**16, 2**18]
        assert all(getattr(rates, field.name) != 0 for field in fields(rates) if field.name.endswith("per_s"))
        assert 0 < rates.call_s < 1
        assert rates.copy_gb_s > 0


def test_a_file_is_written_and_read() -> None:
    rate = file_gb_s()
    assert rate is not None
    assert rate > 0
