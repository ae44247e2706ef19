"""The part of each vertex, from a file of the user's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import ConfigError


def read_homes(file: Path, num_vertices: int) -> NDArray[Any]:
    """Read what `--homes` names: [V] integers from 0 on.

    Raises
    ------
    ConfigError
        If it is no such file, or has none for some vertex.
    """
    wanted = f"--homes {file}: give a .npy file of the part of each vertex, integers [{num_vertices}]"
    try:
        with file.open("rb") as opened:
            homes = np.lib.format.read_array(opened, allow_pickle=False)
    except OSError as error:
        raise ConfigError(f"{wanted}: {error.strerror or error}") from None
    # The last two where the header tells of more numbers than memory, or an int64, can hold.
    except (ValueError, MemoryError, OverflowError) as error:
        raise ConfigError(f"{wanted}: {error}") from None
    if homes.shape != (num_vertices,) or homes.dtype.kind not in "iu":
        raise ConfigError(f"{wanted}: it has {homes.dtype}{list(homes.shape)}")
    if num_vertices and homes.min() < 0:
        raise ConfigError(f"{wanted}, from 0 on: it has {homes.min()}")
    return homes
