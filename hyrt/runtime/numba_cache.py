"""Kernel cache for numba that is safe for concurrent processes, and rebuilt if it is damaged."""

from __future__ import annotations

import hashlib
import os
import pickle
import secrets
import threading
from pathlib import Path
from typing import Any

import numba as nb
from numba.core.caching import IndexDataCacheFile

from hyrt.errors import MachineWarning, warn_user

__all__ = ["nb"]

_CHECKED = ".checked.nbc"
_DIGEST_BYTES = 32
_load_index: Any = IndexDataCacheFile._load_index
_load: Any = IndexDataCacheFile.load


def _data_name(self: Any, number: int) -> str:
    """Return a unique file name for a kernel of a function, instead of a name with numba's counter.

    numba counts up from 1 and takes no lock. Two processes that save kernels of one function at the same time
    may use the same number, and later runs would load one kernel in place of the other one, for example a
    loop for another row width. A process that reads the new index of a changed source before the kernel is
    written would load the kernel of the old source.
    """
    name: str = self._data_name_pattern.format(number=secrets.randbits(63))
    return name.removesuffix(".nbc") + _CHECKED


def _save_data(self: Any, name: str, data: Any) -> None:
    """Write a kernel with its checksum, because a kernel with a flipped bit would be executed."""
    content = self._dump(data)
    with self._open_for_write(self._data_path(name)) as file:
        file.write(content + _digest(content))


def _load_data(self: Any, name: str) -> Any:
    content = Path(self._data_path(name)).read_bytes()
    content, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    if _digest(content) != digest:
        raise ValueError(f"{name} differs from its checksum")
    return pickle.loads(content)


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()


def _checked_index(self: Any) -> dict[Any, str]:
    """Return the kernel file names of a function; empty if the index is damaged and must be replaced."""
    try:
        # A flipped bit may turn a name into a path in a folder that does not exist.
        return {
            key: name
            for key, name in _load_index(self).items()
            if name.endswith(_CHECKED) and os.path.basename(name) == name
        }
    except OSError:
        raise
    except Exception:  # Damaged pickles may raise any exception.
        _warn(self._cache_path)
        return {}


def _checked_load(self: Any, key: Any) -> Any:
    """Return a kernel, or None if it is missing or damaged, so that it is compiled and saved again."""
    try:
        return _load(self, key)
    except OSError:
        raise
    except Exception:  # Recompiling is always safe, and raises the compiler's errors.
        _warn(self._cache_path)
        return None


_WARNED = threading.Event()


def _warn(folder: str) -> None:
    """Warn only once per process, because usually several kernels are damaged."""
    if not _WARNED.is_set():
        _WARNED.set()
        warn_user(f"compiled kernels in {folder} are damaged and will be recompiled", MachineWarning)


IndexDataCacheFile._data_name = _data_name  # type: ignore[method-assign]
IndexDataCacheFile._save_data = _save_data  # type: ignore[method-assign]
IndexDataCacheFile._load_data = _load_data  # type: ignore[method-assign]
IndexDataCacheFile._load_index = _checked_index  # type: ignore[method-assign]
IndexDataCacheFile.load = _checked_load  # type: ignore[method-assign]
