"""Write a Kronecker (R-MAT) graph as a folder that `hyrt run --data` opens: a billion edges at scale 25.

python tools/full_graph/kronecker.py FOLDER [--scale 25] [--edge-factor 16.4] [--features 150] [--threads 2]

The graph has 2^scale vertices and edge-factor times as many sampled edges, with the probabilities of Graph
500 (0.57, 0.19, 0.19, 0.05) and scrambled vertex numbers. Edges are stored in both directions, without
self-loops and duplicates. At scale 25, the default edge factor yields about as many edges as GraphPy's
Kron-25 (1.07 billion, including duplicates). Features are float16 and correlated with the class. All random
numbers come from a counter-based generator, so the bytes do not depend on the number of threads. Edges are
regenerated for each range of vertices, so no complete edge list ever exists.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numba as nb
import numpy as np
from numpy.typing import NDArray

from hyrt.graph.csr import ArrayBuilder, build_csr, map_in_order
from hyrt.graph.formats.dataset_files import write_folder
from hyrt.graph.formats.schema import Dataset, FeatureRows
from hyrt.runtime.rng import mix64, random_bits, stream_key, vertex_stream

CLASSES = 7
EDGES_OF_A_PIECE = 1 << 22
ROWS_OF_A_PIECE = 1 << 16
ENTRIES_AT_ONCE = 600_000_000
# RNG stream numbers of this tool, which differ from those of hyrt.runtime.rng.
EDGES, SCRAMBLE, VERTICES, FEATURES = 101, 102, 103, 104
# A quadrant is chosen by 16 random bits: 0.57, 0.19, 0.19, 0.05.
A, AB, ABC = (round(share * 2**16) for share in (0.57, 0.76, 0.95))

_compile = nb.njit(nogil=True, cache=True, boundscheck=False)


@_compile
def scramble_vertex(v, scale, key):
    """Return a permuted vertex number. All operations are invertible, so no two vertices collide."""
    mask = np.uint64((1 << scale) - 1)
    shift = np.uint64(scale // 2 + 1)
    for _ in range(3):
        key = mix64(key)
        v = (v * (key | np.uint64(1)) + (key >> np.uint64(32))) & mask
        v ^= v >> shift
    return v


@_compile
def generate_edges(key, scramble, scale, first, sources, targets):
    """Generate the edges with the numbers first, first + 1, ..."""
    for i in range(len(sources)):
        stream = vertex_stream(key, np.uint64(first + i))
        u = v = np.uint64(0)
        bits = np.uint64(0)
        for level in range(scale):
            if level % 4 == 0:
                bits = random_bits(stream, np.uint64(level // 4))
            draw = bits & np.uint64(0xFFFF)
            bits >>= np.uint64(16)
            lower = np.uint64(draw >= AB)
            right = np.uint64((draw >= A) & (draw < AB)) | np.uint64(draw >= ABC)
            u = (u << np.uint64(1)) | lower
            v = (v << np.uint64(1)) | right
        sources[i] = scramble_vertex(u, scale, scramble)
        targets[i] = scramble_vertex(v, scale, scramble)


@_compile
def generate_vertices(key, labels, train, val, test):
    """Generate the class and the split of each vertex; splits have 60, 1 and 1 % of the vertices."""
    for v in range(len(labels)):
        bits = vertex_stream(key, np.uint64(v))
        labels[v] = (bits & np.uint64(0xFFFFFF)) % np.uint64(CLASSES)
        share = (bits >> np.uint64(32)) % np.uint64(100)
        train[v], val[v], test[v] = share < 60, share == 60, share == 61


@_compile
def generate_rows(key, first, labels, plain, raised, out):
    """Generate feature rows: uniform random numbers, plus one in the columns of the class."""
    for i in range(len(out)):
        stream = vertex_stream(key, np.uint64(first + i))
        label = labels[first + i]
        bits = np.uint64(0)
        for c in range(out.shape[1]):
            if c % 8 == 0:
                bits = random_bits(stream, np.uint64(c // 8))
            byte = bits & np.uint64(0xFF)
            bits >>= np.uint64(8)
            out[i, c] = raised[byte] if c % CLASSES == label else plain[byte]


def edges_of(scale: int, count: int, seed: int, threads: int) -> Iterator[tuple[NDArray, NDArray]]:
    """Iterate over all edges in order, which threads generate in advance."""
    key, scramble = (stream_key(seed, purpose, 0, 0) for purpose in (EDGES, SCRAMBLE))

    def piece(first: int) -> tuple[NDArray, NDArray]:
        ends = np.empty((2, min(EDGES_OF_A_PIECE, count - first)), np.int32)
        generate_edges(key, scramble, scale, first, ends[0], ends[1])
        return ends[0], ends[1]

    with ThreadPoolExecutor(threads) as pool:
        yield from map_in_order(pool, piece, range(0, count, EDGES_OF_A_PIECE), threads)


def rows_of(labels: NDArray, width: int, seed: int, threads: int) -> Iterator[NDArray]:
    """Iterate over all feature rows in order, which threads generate in advance."""
    key = stream_key(seed, FEATURES, 0, 0)
    plain = (np.arange(256) / 128 - 1).astype(np.float16)
    plain, raised = (values.view(np.uint16) for values in (plain, (plain + 1).astype(np.float16)))

    def piece(first: int) -> NDArray:
        out = np.empty((min(ROWS_OF_A_PIECE, len(labels) - first), width), np.uint16)
        generate_rows(key, first, labels, plain, raised, out)
        return out.view(np.float16)

    with ThreadPoolExecutor(threads) as pool:
        yield from map_in_order(pool, piece, range(0, len(labels), ROWS_OF_A_PIECE), threads)


def kronecker(scale: int, edge_factor: float, width: int, seed: int, threads: int, scratch: Path) -> Dataset:
    """Return the dataset, with edges in a file of the scratch folder and lazily generated features."""
    num, name = 1 << scale, f"kronecker-{scale}"
    count = round(edge_factor * num)
    store = ArrayBuilder(np.dtype(np.int32), scratch / "indices.npy")
    indptr = build_csr(
        partial(edges_of, scale, count, seed, threads),
        num,
        symmetric=True,
        self_loops=False,
        emit=store.append,
        source=name,
        range_entries=ENTRIES_AT_ONCE,
        threads=threads,
    )
    labels = np.empty(num, np.int16)
    masks = np.empty((3, num), np.bool_)
    generate_vertices(stream_key(seed, VERTICES, 0, 0), labels, *masks)
    arrays = {"indptr": indptr, "indices": store.finish(), "labels": labels}
    arrays |= dict(zip(("train_mask", "val_mask", "test_mask"), masks, strict=True))
    rows = FeatureRows.from_blocks(
        (num, width), np.dtype(np.float16), lambda: rows_of(labels, width, seed, threads)
    )
    return Dataset(name, arrays, rows, symmetric=True)


def anonymous_bytes() -> int:
    """Return the anonymous memory of this process in bytes."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(status.split("RssAnon:")[1].split()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scale", type=int, default=25)
    parser.add_argument("--edge-factor", type=float, default=16.4)
    parser.add_argument("--features", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    began = time.perf_counter()

    def report(stage: str) -> None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(
            f"{stage}: {time.perf_counter() - began:.1f} s, {used.ru_utime + used.ru_stime:.1f} CPU s, "
            f"peak {used.ru_maxrss / 2**20:.2f} GiB with pages of files, now "
            f"{anonymous_bytes() / 2**30:.2f} GiB without",
            flush=True,
        )

    options.folder.mkdir()
    scratch = Path(tempfile.mkdtemp(dir=options.folder.absolute().parent))
    try:
        data = kronecker(
            options.scale, options.edge_factor, options.features, options.seed, options.threads, scratch
        )
        report(f"{int(data.arrays['indptr'][-1]):,} edges")
        write_folder(data, options.folder)
        report("written")
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
