"""Time and memory of `hyrt data import` for an edge list.

    python tools/bench/import_speed.py 10M --check

The tool writes a CSV file with two integer columns, imports it in a separate process, and prints seconds,
peak memory and the processor. With --check, it compares the result with a sort of all edges.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from hyrt.formatting import format_bytes, format_duration
from hyrt.runtime.hardware import available_cores, processor_name

_PIECE = 1 << 22
_UNITS = {"k": 10**3, "M": 10**6, "G": 10**9}


def parse_count(text: str) -> int:
    return int(text[:-1]) * _UNITS[text[-1]] if text[-1] in _UNITS else int(text)


def write_edges(path: Path, num_edges: int, num_vertices: int, *, names: bool, weights: bool) -> None:
    """Write random edges with a skewed degree distribution."""
    rng = np.random.default_rng(0)
    kind = pa.string() if names else pa.int64()
    fields = [("src", kind), ("dst", kind)] + [("weight", pa.float64())] * weights
    schema = pa.schema(fields)
    places = rng.permutation(num_vertices)
    with csv.CSVWriter(path, schema) as writer:
        for start in range(0, num_edges, _PIECE):
            ends = rng.random((2, min(_PIECE, num_edges - start))) ** 2 * num_vertices
            columns = [pa.array(places[end.astype(np.int64)]) for end in ends]
            if names:
                columns = [
                    pc.binary_join_element_wise("vertex-", pc.cast(column, kind), "") for column in columns
                ]
            if weights:
                columns.append(pa.array(rng.integers(1, 1000, ends.shape[1]) / 8))
            writer.write(pa.table(columns, schema=schema))


def check(source: Path, folder: Path) -> None:
    table = csv.read_csv(source)
    src, dst = (table.column(name).to_numpy() for name in ("src", "dst"))
    indptr, indices = (np.load(folder / f"{key}.npy", mmap_mode="r") for key in ("indptr", "indices"))
    count = len(indptr) - 1
    expected = np.unique(dst * count + src)
    imported = np.repeat(np.arange(count), np.diff(indptr)) * count + indices
    print("the imported edges equal the edges of the file:", bool(np.array_equal(expected, imported)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("edges", type=parse_count, help="number of edges, such as 10M")
    parser.add_argument(
        "--vertices", type=parse_count, help="number of vertices; by default a twentieth of the edges"
    )
    parser.add_argument("--folder", type=Path, default=Path("build/import-speed"))
    parser.add_argument("--names", action="store_true", help="use text ids such as vertex-12")
    parser.add_argument("--weights", action="store_true", help="add edge weights")
    parser.add_argument(
        "--check", action="store_true", help="compare with a sort of all edges (integer ids only)"
    )
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    kinds = "-names" * options.names + "-weights" * options.weights
    source = options.folder / f"edges-{options.edges}{kinds}.csv"
    if not source.exists():
        how = {"names": options.names, "weights": options.weights}
        write_edges(source, options.edges, options.vertices or options.edges // 20, **how)
    destination = options.folder / "imported"
    print(f"{source.name}: {options.edges:,} edges, {format_bytes(source.stat().st_size)}")
    print(f"{processor_name()}, {available_cores()} cores, load before {os.getloadavg()[0]:.1f}")
    words = ["data", "import", str(source), "-o", str(destination), "--force"]
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "hyrt", *words], check=True)
    seconds = time.perf_counter() - started
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{format_duration(seconds)} ({format_duration(used.ru_utime + used.ru_stime)} of CPU time), peak "
        f"memory {format_bytes(used.ru_maxrss * 1024)}, load after {os.getloadavg()[0]:.1f}"
    )
    if options.check:
        check(source, destination)


if __name__ == "__main__":
    main()
