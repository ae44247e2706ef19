"""The update kernel's array, output stationary: R x C cells, each sums LANES values of a tile of the product.

R is `FpgaDesign.mac_rows`, C its `mac_cells`. A value of the left matrix enters at the left of its row and moves right, a word of the
right matrix enters at the top of its column and moves down, one step k of all of them every `update_ii` cycles; delay lines hold them back by a
cycle for each row and column they are away from the corner, so that the farthest cell starts R + C - 2 cycles after the first.

A tile over K steps takes (K - 1) * update_ii + R + C - 1 cycles: K + R + C - 2 at an interval of 1. Tiles at the edges of a product take
as long as full ones. The kernel's tiles do not overlap: the array empties, the partial sums of a multiply-accumulate are added up, and the rows
leave one after the other (`drain_cycles`). With `overlapped=True` each tile follows right behind the one before, as the array itself could:
`hls/hyrt_hls/rtl/systolic_array.sv` is that array in SystemVerilog, and a test holds it, `simulate_tiles` and `systolic_cycles` equal.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.cycles.design import LANES, FpgaDesign

Integers = NDArray[np.int64]

FOLD_STEPS = 36
"""What adding up the partial sums takes: each multiply-accumulate of the kernel keeps 8 in turn, so that one is added to in each cycle though
an addition takes several; three halvings of 12 steps (kernels/systolic.hpp) make one of them."""


def systolic_cycles(rows: int, k: int, cols: int, design: FpgaDesign, *, overlapped: bool = False) -> int:
    """Cycles of the product of [rows, k] and [k, cols]; 0 where one of them is 0. Without what draining takes.

    Raises
    ------
    ValueError
        If a size is negative.
    """
    if min(rows, k, cols) < 0:
        raise ValueError(
            f"systolic array: a product of [{rows}, {k}] and [{k}, {cols}]: give sizes of at least 0"
        )
    if min(rows, k, cols) == 0:
        return 0
    tiles = num_tiles(rows, cols, design)
    skew = design.mac_rows + design.mac_cells - 1
    if overlapped:
        return (tiles * k - 1) * design.update_ii + skew
    return tiles * ((k - 1) * design.update_ii + skew)


def num_tiles(rows: int, cols: int, design: FpgaDesign) -> int:
    """Tiles of a product with so many rows and columns."""
    return -(-rows // design.mac_rows) * -(-cols // (design.mac_cells * LANES))


def drain_cycles(design: FpgaDesign) -> int:
    """What a tile takes between its last operands and the next tile's first."""
    return FOLD_STEPS * design.update_ii + design.mac_rows


def simulate_tiles(a: Integers, b: Integers, design: FpgaDesign) -> tuple[Integers, int]:
    """Run tiles through the array, each right behind the one before, register by register. One lane of each cell is simulated.

    Parameters
    ----------
    a, b
        [tiles, R, K] and [tiles, K, C] int64.
    design
        Its mac_rows, mac_cells and update_ii.

    Returns
    -------
    products
        [tiles, R, C] int64.
    cycles
        Until the last cell of the last tile is complete.

    Raises
    ------
    ValueError
        If the shapes do not fit each other or the array.
    """
    tiles, rows, depth = a.shape
    cols = b.shape[2]
    if b.shape[:2] != (tiles, depth) or (rows, cols) != (design.mac_rows, design.mac_cells) or a.size == 0:
        raise ValueError(
            f"systolic array: tiles {a.shape} and {b.shape} on {design.mac_rows} x {design.mac_cells} cells"
        )
    steps = tiles * depth
    row_operands, col_operands = a.transpose(0, 2, 1).reshape(steps, rows), b.reshape(steps, cols)
    row, col = np.arange(rows), np.arange(cols)
    # Step numbers travel with the operands; -1 where nothing does.
    left, above = np.zeros((rows, cols), np.int64), np.zeros((rows, cols), np.int64)
    step = np.full((rows, cols), -1, np.int64)
    sums = np.zeros((rows, cols), np.int64)
    products = np.zeros((tiles, rows, cols), np.int64)
    complete = cycle = 0
    while complete < products.size:
        left[:, 1:], above[1:], step[:, 1:] = left[:, :-1].copy(), above[:-1].copy(), step[:, :-1].copy()
        left[:, 0], step[:, 0] = _entering(row_operands, cycle - row, design.update_ii)
        above[0] = _entering(col_operands, cycle - col, design.update_ii)[0]
        here = step >= 0
        sums = np.where(here, np.where(step % depth == 0, 0, sums) + left * above, sums)
        ends = here & (step % depth == depth - 1)
        products[step[ends] // depth, *np.nonzero(ends)] = sums[ends]
        complete += int(ends.sum())
        cycle += 1
    return products, cycle


def _entering(operands: Integers, since: Integers, interval: int) -> tuple[Integers, Integers]:
    """What enters each row or column (operands: [steps, lines]) `since` its first, and which step it is."""
    step = since // interval
    here = (since >= 0) & (since % interval == 0) & (step < len(operands))
    step = np.where(here, step, -1)
    return np.where(here, operands[step, np.arange(len(since))], 0), step
