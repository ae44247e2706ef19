"""How much host memory some matrices may take, and the file in which the rest of them live."""

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
    """A limit for matrices in host memory, and where a file for the others is made."""

    limit_bytes: int | None = None
    """The most that the matrices may take in memory; None is no limit."""
    folder: Path | None = None
    """Where the file is made; None is the system's folder for temporary files."""

    def allows(self, used_bytes: int, more_bytes: int) -> bool:
        """Whether there is room for `more_bytes` beside `used_bytes`."""
        return self.limit_bytes is None or used_bytes + more_bytes <= self.limit_bytes

    def in_file(self, size_bytes: int) -> NDArray[np.uint8]:
        """Memory that is the page cache of a file: the system writes it out where it needs the room.

        The file has no name, so that it is gone with the array, or with the process, however that ends. Its
        blocks are taken now: a disk that is full later would kill the process (SIGBUS).

        Parameters
        ----------
        size_bytes
            How much, at least 1.

        Returns
        -------
        [size_bytes] uint8, of undefined content.

        Raises
        ------
        HostMemoryExhausted
            If the file cannot be written; what was written of it is gone.
        """
        folder = Path(tempfile.gettempdir()) if self.folder is None else self.folder
        try:
            with tempfile.TemporaryFile(dir=folder, prefix="hyrt-matrix-") as file:
                os.posix_fallocate(file.fileno(), 0, size_bytes)
                mapped = mmap.mmap(file.fileno(), size_bytes)
        except OSError as error:
            # What was taken is free again by now.
            free = shutil.disk_usage(folder).free if folder.is_dir() else 0
            raise HostMemoryExhausted(
                f"{folder}: a matrix of {size(size_bytes)} beyond fullgraph.host_memory"
                f"={size(self.limit_bytes or 0)} cannot be kept in a file there, where {size(free)} "
                f"are free: {error.strerror or error}. Free space, give a run folder on a larger disk, or "
                "raise fullgraph.host_memory"
            ) from error
        return np.frombuffer(mapped, np.uint8)
