"""Limit of the host memory for matrices, and temporary files for matrices beyond the limit."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import HostMemoryExhausted
from hyrt.quantities import size


@dataclass(frozen=True, slots=True)
class HostBudget:
    """Limit of the host memory for matrices, and the folder of files for matrices beyond it."""

    limit_bytes: int | None = None
    """Maximum bytes of the matrices in memory; None for no limit."""
    folder: Path | None = None
    """Folder of the files; None for the system's temporary folder."""

    def allows(self, used_bytes: int, more_bytes: int) -> bool:
        """Return whether `more_bytes` fit into the budget if `used_bytes` are in use."""
        return self.limit_bytes is None or used_bytes + more_bytes <= self.limit_bytes

    def in_file(self, size_bytes: int) -> NDArray[np.uint8]:
        """Allocate memory that is backed by an unnamed temporary file.

        The system writes pages back under memory pressure. The file has no name, so it is deleted with the
        array or with the process, however the process ends. Its blocks are allocated at once, since writing
        to a map on a full disk would kill the process with SIGBUS.

        Parameters
        ----------
        size_bytes
            Number of bytes, at least 1.

        Returns
        -------
        [size_bytes] uint8, uninitialised.

        Raises
        ------
        HostMemoryExhausted
            If the file cannot be allocated; nothing is left on the disk.
        """
        folder = Path(tempfile.gettempdir()) if self.folder is None else self.folder
        try:
            with tempfile.TemporaryFile(dir=folder, prefix="hyrt-matrix-") as file:
                os.posix_fallocate(file.fileno(), 0, size_bytes)
                mapped = mmap.mmap(file.fileno(), size_bytes)
        except OSError as error:
            # The partial file is already deleted.
            free = shutil.disk_usage(folder).free if folder.is_dir() else 0
            raise HostMemoryExhausted(
                f"{folder}: a matrix of {size(size_bytes)} beyond fullgraph.host_memory"
                f"={size(self.limit_bytes or 0)} cannot be kept in a file there, where {size(free)} "
                f"are free: {error.strerror or error}. Free space, give a run folder on a larger disk, or "
                "raise fullgraph.host_memory"
            ) from error
        return np.frombuffer(mapped, np.uint8)
