"""What numba does not name: asking for a cache line, widening a short float, reading at an address."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,attr-defined,call-arg"
from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from hyrt.machine.kernels.half_floats import widen_half
from hyrt.machine.kernels.kept_kernels import nb

_BYTES = ir.IntType(8).as_pointer()


def _ask(builder, place):
    """Read access, from the second cache on, data cache."""
    number = ir.IntType(32)
    function = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(ir.VoidType(), [_BYTES, number, number, number]),
        "llvm.prefetch.p0",
    )
    builder.call(function, [place, number(0), number(2), number(1)])


@intrinsic
def prefetch(typingctx, array, index):
    """Ask for the cache line that holds element `index` of a C-contiguous array, without waiting for it.

    It comes into the second cache: the first one has fewer lines under way, and no room for many rows.
    """

    def generate(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        _ask(builder, builder.bitcast(builder.gep(data, [args[1]]), _BYTES))
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@intrinsic
def prefetch_at(typingctx, address):
    """Ask for the cache line at an address of memory, as `prefetch` does."""

    def generate(context, builder, signature, args):
        _ask(builder, builder.inttoptr(args[0], _BYTES))
        return context.get_dummy_value()

    return types.void(types.intp), generate


@intrinsic
def element_at(typingctx, array, address, index):
    """Element `index` of values that begin at an address of memory and have the dtype of an array."""

    def generate(context, builder, signature, args):
        kind = context.get_data_type(signature.return_type)
        place = builder.gep(builder.inttoptr(args[1], kind.as_pointer()), [args[2]])
        return context.unpack_value(builder, signature.return_type, place)

    return array.dtype(array, types.intp, types.intp), generate


@nb.njit(inline="always", cache=True)
def prefetch_row(flat, width, row):
    """Ask for the cache lines of one row of a matrix of `width` columns, given as one array."""
    line = 64 // flat.itemsize
    for at in range(row * width, (row + 1) * width, line):
        prefetch(flat, at)
    # Rows begin anywhere in a line, so the last value may lie in one more.
    prefetch(flat, (row + 1) * width - 1)


@intrinsic
def _value(typingctx, element):
    """A feature element as a number.

    Halves are stored as 16 bits without a sign and bfloat16 as 16 bits with one, as numba has neither type
    on CPUs; codes of int8 are numbers, still without their scale.
    """
    if not isinstance(element, types.Integer):
        return element(element), lambda context, builder, signature, args: args[0]

    def generate(context, builder, signature, args):
        (bits,) = args
        if element.bitwidth == 8:
            return builder.sitofp(bits, ir.FloatType())
        if element.signed:
            word = builder.zext(bits, ir.IntType(32))
            return builder.bitcast(builder.shl(word, ir.IntType(32)(16)), ir.FloatType())
        return widen_half(context, builder, bits)

    is_known = element.bitwidth == 16 or element == types.int8
    return (types.float32(element), generate) if is_known else None


# For mypy, which takes what numba returns for nothing.
value: Any = _value
