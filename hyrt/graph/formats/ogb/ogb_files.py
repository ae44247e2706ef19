"""File formats of the ogb package: gzipped CSV tables, splits, and torch files of plain arrays."""

from __future__ import annotations

import gzip
import itertools
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError, one_line
from hyrt.graph.labels.foreign_labels import as_labels, as_targets

Array = NDArray[Any]

MAX_EDGES_IN_MEMORY = 500_000_000
_LINES = 1 << 16


def labels_of(values: Array, folder: Path) -> Array:
    """Convert labels to hyrt's form; `folder` is the dataset's folder, for messages."""
    if values.ndim == 2 and values.shape[1] > 1:
        return as_targets(values, str(folder), "node label")
    return as_labels(values.reshape(-1), str(folder), "node label")


def csv_splits(folder: Path, vertex_type: str = "") -> dict[str, NDArray[np.int64]]:
    """Read the vertices of `train`, `val` and `test`.

    Parameters
    ----------
    folder
        Folder of the dataset.
    vertex_type
        Vertex type, in a heterogeneous dataset.

    Raises
    ------
    DataError
        If there is not exactly one split scheme, or a file is damaged.
    """
    schemes = sorted(path for path in (folder / "split").glob("*") if path.is_dir())
    if len(schemes) != 1:
        raise DataError(
            f"{folder / 'split'} has {len(schemes)} schemes, expected one folder: remove the others, or "
            "download it again"
        )
    files = {"train": "train", "val": "valid", "test": "test"}
    return {
        split: csv_table(schemes[0] / vertex_type / f"{file}.csv.gz", np.int64).reshape(-1).astype(np.int64)
        for split, file in files.items()
    }


def csv_blocks(file: Path, dtype: type[np.generic]) -> Iterator[Array]:
    """Yield tables [n, columns] of consecutive lines of a gzipped CSV file without header.

    Raises
    ------
    DataError
        If the file is missing or damaged. The message names the line.
    """
    line = 0
    try:
        with gzip.open(file, "rt", encoding="ascii") as handle:
            while lines := list(itertools.islice(handle, _LINES)):
                try:
                    yield np.loadtxt(lines, dtype=dtype, delimiter=",", ndmin=2, comments=None)
                except ValueError as error:
                    raise DataError(f"{file}: from line {line + 1} on: {error}: download it again") from error
                line += len(lines)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(
            f"{file} cannot be read: missing, damaged or truncated ({error}): download it again"
        ) from error


def csv_table(file: Path, dtype: type[np.generic]) -> Array:
    """Read the whole table [n, columns] of a gzipped CSV file without header."""
    blocks = list(csv_blocks(file, dtype))
    return np.concatenate(blocks) if blocks else np.empty((0, 1), dtype)


def load_tensors(file: Path) -> Any:
    """Load a torch file of numbers and arrays; all other contents of a pickle are refused.

    Raises
    ------
    DataError
        If the file is missing, damaged, or has other contents.
    """
    from _codecs import encode

    import torch

    reconstruct: Any = np.empty(0).__reduce__()[0]
    scalar: Any = np.int64(0).__reduce__()[0]
    allowed: list[Any] = [np.ndarray, np.dtype, encode, type(np.dtype(np.int64)), type(np.dtype(np.int32))]
    # numpy moved these functions; files contain the module name of the numpy version that wrote them.
    for module in ("numpy.core.multiarray", "numpy._core.multiarray"):
        allowed += [(reconstruct, f"{module}._reconstruct"), (scalar, f"{module}.scalar")]
    try:
        with torch.serialization.safe_globals(allowed):
            return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch may raise any exception on damaged data
        raise DataError(
            f"{file} cannot be read: missing, damaged or not plain arrays ({one_line(str(error))}): "
            "download it again"
        ) from error
