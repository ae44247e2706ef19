from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from numba.core.caching import IndexDataCacheFile

from hyrt.machine.kernels import kept_kernels

# Imported for what it does to numba.
assert kept_kernels.nb


def _file(folder: Path, stamp: str = "source") -> Any:
    return IndexDataCacheFile(str(folder), "module.function-1.py311", stamp)


def test_two_processes_that_keep_kernels_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = _file(tmp_path), _file(tmp_path)
    # The second has read the index before the first writes it, and ends before the first writes its kernel.
    written: list[tuple[str, Any]] = []
    write = first._save_data
    monkeypatch.setattr(first, "_save_data", lambda *kernel: written.append(kernel))
    monkeypatch.setattr(second, "_load_index", dict)
    first.save("eight columns", "loop of eight")
    second.save("sixteen columns", "loop of sixteen")
    write(*written[0])
    # An entry that the other's index has replaced is compiled again.
    assert _file(tmp_path).load("eight columns") in (None, "loop of eight")
    assert _file(tmp_path).load("sixteen columns") == "loop of sixteen"


def test_a_kernel_of_an_earlier_source_is_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _file(tmp_path, "earlier").save("eight columns", "earlier loop")
    changed = _file(tmp_path, "changed")
    monkeypatch.setattr(changed, "_save_data", lambda *kernel: None)
    changed.save("eight columns", "changed loop")
    # The index is there, and the kernel is not yet.
    assert _file(tmp_path, "changed").load("eight columns") is None
