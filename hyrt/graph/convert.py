"""Writing a dataset from any source to a file or a folder, block by block, all or nothing."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.check import reject
from hyrt.graph.csr import RANGE_ENTRIES
from hyrt.graph.folder import write_folder
from hyrt.graph.normalize import scaled
from hyrt.graph.npy import CHUNK_BYTES
from hyrt.graph.npz import write_npz
from hyrt.graph.schema import Dataset, FeatureRows
from hyrt.graph.source import SYNTHETIC, open_dataset

Array = NDArray[Any]

DTYPES = ("float16", "float32")
_BLOCKS_BYTES = 12 * CHUNK_BYTES


@dataclass(frozen=True, slots=True)
class Conversion:
    """What to write where.

    Parameters
    ----------
    source
        Any source of `open_graph`.
    destination
        A `.npz` file, or a folder when it does not end so.
    dtype
        `float16` or `float32` for dense features; None keeps theirs.
    normalize
        As for `open_graph`.
    force
        Replace what is at the destination.
    """

    source: str
    destination: Path
    dtype: str | None = None
    normalize: str = "none"
    force: bool = False


def convert(job: Conversion, announce: Callable[[str], None] = lambda line: None) -> None:
    """Write a dataset; the destination appears complete or not at all, also on Ctrl-C.

    Parameters
    ----------
    job
        What to do.
    announce
        Takes one line about the memory that will be needed, before the work starts.

    Raises
    ------
    DataError
        For bad input, for a destination that exists, and where a value does not fit the dtype.
    """
    destination = job.destination
    if job.dtype is not None and job.dtype not in DTYPES:
        raise DataError(f"dtype {job.dtype!r} is not one of {', '.join(DTYPES)}")
    if destination.exists() and not job.force:
        raise DataError(f"{destination}: exists already; --force replaces it")
    if not destination.parent.is_dir():
        raise DataError(f"{destination}: there is no folder {destination.parent}")
    bound = memory_bound(job.source)
    if bound is not None:
        announce(f"memory: at most {bound / 2**30:.2f} GiB beside the interpreter")
    work = destination.with_name(f".{destination.name}.{os.getpid()}.partial")
    work.mkdir()
    try:
        scratch, result = work / "scratch", work / "result"
        scratch.mkdir()
        data = open_dataset(job.source, scratch)
        data = _finite(scaled(_finite(data), job.normalize))
        if job.dtype is not None:
            data = _cast(data, np.dtype(job.dtype))
        if destination.suffix == ".npz":
            write_npz(data, result)
        else:
            result.mkdir()
            write_folder(data, result)
        if destination.exists():
            destination.rename(work / "replaced")
        result.rename(destination)
    finally:
        shutil.rmtree(work)


def memory_bound(source: str) -> int | None:
    """Bytes of memory that converting a source needs at most, beside the interpreter's own; None if not known beforehand.

    Files that are mapped do not count: the system takes their pages back whenever it wants.

    Raises
    ------
    DataError
        If the source is a spec that cannot be read.
    """
    if source.startswith(SYNTHETIC):
        from hyrt.graph.synthetic import parse_spec

        spec = parse_spec(source)
        return 80 * spec.vertices + 4 * min(2 * spec.edges, RANGE_ENTRIES) + _BLOCKS_BYTES + (64 << 20)
    path = Path(source)
    if path.is_dir():
        return None if (path / "raw").is_dir() or (path / "processed").is_dir() else _BLOCKS_BYTES
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return _BLOCKS_BYTES + sum(
                m.file_size for m in archive.infolist() if m.filename != "features.npy"
            )
    return None


def _finite(data: Dataset) -> Dataset:
    """The dataset, whose features are checked as they pass."""
    rows = data.rows
    if rows is None:
        return data

    def blocks() -> Iterator[Array]:
        at = 0
        for block in rows.blocks():
            finite = np.isfinite(block)
            if not finite.all():
                i, j = np.unravel_index(int(finite.argmin()), finite.shape)
                raise reject(
                    data.name, "features", f"value {block[i, j]} at row {at + i}, column {j} is not finite"
                )
            at += len(block)
            yield block

    return replace(data, rows=replace(rows, blocks=blocks))


def _cast(data: Dataset, dtype: np.dtype[np.generic]) -> Dataset:
    rows = data.rows
    if rows is None:
        raise DataError(
            f"{data.name}: its features are sparse, whose values stay float32: leave out the dtype"
        )

    def blocks() -> Iterator[Array]:
        at = 0
        limit = float(np.finfo(dtype.name).max)
        for block in rows.blocks():
            beyond = np.abs(block) > limit
            if beyond.any():
                i, j = np.unravel_index(int(beyond.argmax()), beyond.shape)
                raise reject(
                    data.name,
                    "features",
                    f"value {block[i, j]} at row {at + i}, column {j} is beyond {dtype.name}'s {limit:,}: keep float32",
                )
            at += len(block)
            yield block.astype(dtype, copy=False)

    def whole() -> Array:
        return np.concatenate(list(blocks()))

    return replace(data, rows=FeatureRows(rows.shape, dtype, blocks, whole))
