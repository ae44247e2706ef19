"""User-defined partitions of a graph, read from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import ConfigError


def read_homes(file: Path, num_vertices: int) -> NDArray[Any]:
    """Read the file given by `--homes`: [V] integers of at least 0.

    Raises
    ------
    ConfigError
        If the file is not such an array, or does not match the number of vertices.
    """
    usage = f"--homes {file}: give a .npy file of the part of each vertex, integers [{num_vertices}]"
    try:
        with file.open("rb") as opened:
            homes = np.lib.format.read_array(opened, allow_pickle=False)
    except OSError as error:
        raise ConfigError(f"{usage}: {error.strerror or error}") from None
    # MemoryError and OverflowError occur if the header declares more values than memory or int64 can hold.
    except (ValueError, MemoryError, OverflowError) as error:
        raise ConfigError(f"{usage}: {error}") from None
    if homes.shape != (num_vertices,) or homes.dtype.kind not in "iu":
        raise ConfigError(f"{usage}: it has {homes.dtype}{list(homes.shape)}")
    if num_vertices and homes.min() < 0:
        raise ConfigError(f"{usage}, from 0 on: it has {homes.min()}")
    return homes
