"""No loop over a whole graph reads behind its arrays, not even to ask for what comes."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys

import numpy as np
import pytest
from full_graphs import topology

from hyrt.nn.full_graph.aggregate import max_aggregate_backward_into, max_aggregate_into, spmm_into
from hyrt.nn.full_graph.attention import attend_backward_into, attend_into
from hyrt.nn.full_graph.edge_operators import (
    broadcast_to_edges_into,
    combine_into,
    dot_into,
    reduce_edges_into,
    softmax_edges_into,
)

V = 40
NAMES = ("spmm", "largest", "edges", "attention")
_MAPS: list[mmap.mmap] = []


def at_the_end(array: np.ndarray) -> np.ndarray:
    """A copy that ends where memory ends that may be read."""
    page = mmap.PAGESIZE
    pages = -(-array.nbytes // page)
    _MAPS.append(mmap.mmap(-1, (pages + 1) * page))
    memory = np.frombuffer(_MAPS[-1], np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(memory.ctypes.data + pages * page), ctypes.c_size_t(page), 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    last = pages * page
    copy = memory[last - array.nbytes : last].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def run(name: str) -> None:
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> np.ndarray:
        return at_the_end(rng.standard_normal(shape).astype(np.float32))

    of = topology("directed")
    # The last vertices have edges: a range's last row must be cut short, too.
    both = at_the_end(of.indptr), at_the_end(of.indices)
    turned = at_the_end(of.transposed.indptr), at_the_end(of.transposed.indices)
    rows = at_the_end(np.arange(0, V, 2, dtype=np.int32))
    positions = np.full(V, -1, np.int32)
    positions[rows] = np.arange(len(rows))
    positions = at_the_end(positions)
    x, out, along = drawn(V, 5), drawn(V, 5), drawn(of.num_edges, 5)
    if name == "spmm":
        spmm_into(*both, x, out, row_scale=drawn(V), source_scale=drawn(V), self_scale=drawn(V))
        spmm_into(*both, x, out, weights=drawn(of.num_edges), edge_ids=at_the_end(of.transposed_edges))
        spmm_into(*both, drawn(len(rows), 5), drawn(len(rows), 5), rows=rows, positions=positions)
    elif name == "largest":
        winners = at_the_end(np.zeros((V, 5), np.int32))
        max_aggregate_into(*both, x, out, winners)
        max_aggregate_backward_into(*turned, x, winners, out)
        some, few = at_the_end(winners[: len(rows)]), drawn(len(rows), 5)
        max_aggregate_into(*both, x, few, some, rows=rows)
        max_aggregate_backward_into(*turned, few, some, out, positions=positions)
    elif name == "edges":
        combine_into(*both, x, x, along, "add")
        combine_into(*both, along, x, along, "mul", "edge", "source")
        dot_into(*both, drawn(V, 1, 5), drawn(V, 1, 5), drawn(of.num_edges, 1))
        reduce_edges_into(both[0], along, out, largest=True)
        broadcast_to_edges_into(both[0], x, along)
        softmax_edges_into(both[0], along, along)
    else:
        p, scores = drawn(V, 3, 5), [drawn(V, 3) for _ in range(2)]
        for chosen, where in ((None, None), (rows, positions)):
            size = V if chosen is None else len(chosen)
            kept = [drawn(size, 3, 5), drawn(size, 3), drawn(size, 3, 5), drawn(size, 3)]
            attend_into(*both, p, *scores, *kept, rows=chosen)
            found = drawn(V, 3, 5), drawn(V, 3), drawn(size, 3)
            attend_backward_into(
                *turned, p, *scores, *kept, drawn(size, 3, 5), *found, rows=chosen, positions=where
            )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="protects a page with mprotect")
def test_nothing_behind_an_array_is_read() -> None:
    """In a process of its own, which a read of the page behind an array ends."""
    done = subprocess.run(
        [sys.executable, __file__], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"ended with {done.returncode} after {done.stdout.split()}: {done.stderr}"
    assert done.stdout.split() == list(NAMES)


if __name__ == "__main__":
    for name in NAMES:
        run(name)
        print(name, flush=True)
