from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numba.core.caching import IndexDataCacheFile

from hyrt.errors import MachineWarning
from hyrt.runtime import numba_cache

# Imported for what it does to numba.
assert numba_cache.nb


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


def test_a_kernel_without_a_checksum_is_compiled_again(tmp_path: Path) -> None:
    """Earlier versions saved kernels without checksums."""
    file = _file(tmp_path)
    file._save_index({"eight columns": "module.function-1.py311.1.nbc"})
    (tmp_path / "module.function-1.py311.1.nbc").write_bytes(file._dump("loop of eight"))
    assert file.load("eight columns") is None
    file.save("eight columns", "loop of eight, again")
    assert _file(tmp_path).load("eight columns") == "loop of eight, again"


@pytest.mark.parametrize("name", ["module/function-1.py311.5.checked.nbc", 3, None])
def test_an_index_with_wrong_names_is_replaced(name: Any, tmp_path: Path) -> None:
    """As flipped bits may leave names: in a folder that does not exist, or of another type."""
    numba_cache._WARNED.set()
    file = _file(tmp_path)
    file._save_index({"eight columns": name})
    assert file.load("eight columns") is None
    file.save("eight columns", "loop of eight")
    assert _file(tmp_path).load("eight columns") == "loop of eight"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ending=st.sampled_from(["nbi", "nbc"]), at=st.floats(0, 1, exclude_max=True), bit=st.integers(-2, 7))
def test_damaged_files_are_replaced(ending: str, at: float, bit: int, tmp_path: Path) -> None:
    """A flipped bit of a kernel and a truncated or empty file give one warning, and are written again."""
    file = _file(tmp_path)
    file.save("eight columns", "loop of eight")
    (damaged,) = tmp_path.glob(f"*.{ending}")
    content = bytearray(damaged.read_bytes())
    place = int(at * len(content))
    if bit >= 0:
        content[place] ^= 1 << bit
    damaged.write_bytes(content if bit >= 0 else content[:place] if bit == -1 else b"")
    numba_cache._WARNED.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = _file(tmp_path).load("eight columns")
        # A flipped bit of the index may be outside of the kernel's name and key.
        assert loaded is None or (ending == "nbi" and bit >= 0 and loaded == "loop of eight")
        _file(tmp_path).load("eight columns")
    if ending == "nbc" or bit < 0:
        (warned,) = caught
        assert warned.category is MachineWarning
        assert str(warned.message).startswith(f"compiled kernels in {tmp_path}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _file(tmp_path).save("eight columns", "loop of eight")
        assert _file(tmp_path).load("eight columns") == "loop of eight"
    for path in tmp_path.iterdir():
        path.unlink()
