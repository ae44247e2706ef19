"""Matrix transpose in register-sized tiles, so that whole cache lines are read and written."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,attr-defined,call-arg"
from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from hyrt.machine.kernels.kept_kernels import nb

_TILE = 16


@intrinsic
def _transpose_tile(typingctx, source, at, stride, target, to, target_stride):
    """Transpose a 16 x 16 tile between two arrays, given the first element and the row stride in each."""

    def generate(context, builder, signature, args):
        element = context.get_value_type(signature.args[0].dtype)
        vector = ir.VectorType(element, _TILE)
        alignment = context.get_abi_sizeof(element)

        def row_pointer(array_type, array, start, distance, row):
            data = context.make_array(array_type)(context, builder, array).data
            offset = builder.add(start, builder.mul(distance, ir.Constant(distance.type, row)))
            return builder.bitcast(builder.gep(data, [offset]), vector.as_pointer())

        def pick(lanes):
            return ir.Constant(ir.VectorType(ir.IntType(32), _TILE), lanes)

        rows = [
            builder.load(row_pointer(signature.args[0], *args[:3], row), align=alignment)
            for row in range(_TILE)
        ]
        # Exchange the off-diagonal quarters of ever smaller squares.
        half = _TILE // 2
        while half:
            upper = pick([_TILE + k - half if k & half else k for k in range(_TILE)])
            lower = pick([_TILE + k if k & half else k + half for k in range(_TILE)])
            for row in range(_TILE):
                if not row & half:
                    a, b = rows[row], rows[row + half]
                    rows[row] = builder.shuffle_vector(a, b, upper)
                    rows[row + half] = builder.shuffle_vector(a, b, lower)
            half //= 2
        for row, content in enumerate(rows):
            builder.store(content, row_pointer(signature.args[3], *args[3:], row), align=alignment)
        return context.get_dummy_value()

    return types.void(source, types.intp, types.intp, target, types.intp, types.intp), generate


@nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
def transpose_into(rows, out):
    """Write the transpose of rows [n, k] into out [k, m], with zeros in the columns from n on."""
    num, width = rows.shape
    length = out.shape[1]
    source, target = rows.reshape(rows.size), out.reshape(out.size)
    tiled_rows, tiled_columns = num - num % _TILE, width - width % _TILE
    for j in range(0, tiled_columns, _TILE):
        for i in range(0, tiled_rows, _TILE):
            _transpose_tile(source, np.int64(i * width + j), width, target, np.int64(j * length + i), length)
        for i in range(tiled_rows, num):
            for k in range(j, j + _TILE):
                out[k, i] = rows[i, k]
    for k in range(tiled_columns, width):
        for i in range(num):
            out[k, i] = rows[i, k]
    for k in range(width):
        for i in range(num, length):
            out[k, i] = 0
