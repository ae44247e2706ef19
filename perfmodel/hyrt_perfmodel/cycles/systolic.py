"""The update kernel's array, output stationary: R x C cells, each sums LANES values of a tile of the product.

R is `FpgaDesign.mac_rows`, C its `mac_cells`. A value of the left matrix enters at the left of its row and
moves right, a word of the right matrix enters at the top of its column and moves down, one step k of all of
them every `update_ii` cycles; delay lines hold them back by a cycle for each row and column they are away
from the corner, so that the farthest cell starts R + C - 2 cycles after the first.

A tile over K steps takes (K - 1) * update_ii + R + C - 1 cycles: K + R + C - 2 at an interval of 1. Tiles at
the edges of a product take as long as full ones. The kernel's tiles do not overlap: the array empties, the
partial sums of a multiply-accumulate are added up, and the rows leave one after the other (`drain_cycles`).
With `overlapped=True` each tile follows right behind the one before, as the array itself could:
`hls/hyrt_hls/rtl/systolic_array.sv` is that array in SystemVerilog, and a test holds it, a simulation by
registers and `systolic_cycles` equal.
"""

from __future__ import annotations

from hyrt_perfmodel.cycles.design import LANES, FpgaDesign

FOLD_STEPS = 36
"""Steps that adding up the partial sums takes (kernels/systolic.hpp).

Each multiply-accumulate keeps 8 in turn, so that one is added to in each cycle though an addition takes
several; three halvings of 12 steps make one of them.
"""


def systolic_cycles(rows: int, k: int, cols: int, design: FpgaDesign, *, overlapped: bool = False) -> int:
    """Cycles of the product of [rows, k] and [k, cols] without draining; 0 where a size is 0.

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
