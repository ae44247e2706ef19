"""Cycles of the update kernel's systolic array."""

from __future__ import annotations

from hyrt_perfmodel.cycles.design import LANES, FpgaDesign

FOLD_STEPS = 36
"""Steps to add up the partial sums (kernels/systolic.hpp).

Each multiply-accumulate keeps 8 partial sums and uses them in turn, so that one addition starts per cycle
although an addition takes several; three halvings of 12 steps reduce the partial sums to one."""


def systolic_cycles(rows: int, k: int, cols: int, design: FpgaDesign, *, overlapped: bool = False) -> int:
    """Return the cycles of the product of [rows, k] and [k, cols] without draining; 0 if a size is 0.

    The array is output stationary: R x C cells, each of which sums LANES values of an output tile.
    R is `FpgaDesign.mac_rows`, C is `mac_cells`. A value of the left matrix enters at the left of its row and
    moves right; a word of the right matrix enters at the top of its column and moves down; one step k starts
    every `update_ii` cycles. Delay lines skew the inputs by one cycle per row and column of distance from the
    corner, so the farthest cell starts R + C - 2 cycles after the first.

    A tile over K steps takes (K - 1) * update_ii + R + C - 1 cycles: K + R + C - 2 at an interval of 1.
    Partial tiles at the edges of a product take as long as full tiles. The kernel's tiles do not overlap: the
    array empties, the partial sums of a multiply-accumulate are added up, and the rows are written one after
    the other (`drain_cycles`). With `overlapped=True`, each tile immediately follows the previous one, as the
    array itself would allow: `hls/hyrt_hls/rtl/systolic_array.sv` is that array in SystemVerilog, and a test
    checks that it, a register-level simulation and `systolic_cycles` agree.

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
    """Return the number of tiles of a [rows, cols] product."""
    return -(-rows // design.mac_rows) * -(-cols // (design.mac_cells * LANES))


def drain_cycles(design: FpgaDesign) -> int:
    """Return the cycles between a tile's last operands and the next tile's first."""
    return FOLD_STEPS * design.update_ii + design.mac_rows
