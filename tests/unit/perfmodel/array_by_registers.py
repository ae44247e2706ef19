"""The systolic array by registers: what `systolic_cycles` and the SystemVerilog are compared with."""

from __future__ import annotations

import numpy as np
from hyrt_perfmodel.fpga_design import FpgaDesign
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def simulate_tiles(a: Integers, b: Integers, design: FpgaDesign) -> tuple[Integers, int]:
    """Run tiles through the array, each right behind the one before, register by register.

    One lane of each cell is simulated.

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
