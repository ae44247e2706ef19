"""LLVM intrinsics that numba lacks: prefetch, widening of short floats, and reads from raw addresses."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,attr-defined,call-arg"
from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from hyrt.machine.kernels.half_floats import widen_half
from hyrt.machine.kernels.kept_kernels import nb

_BYTES = ir.IntType(8).as_pointer()


def _emit_prefetch(builder, address):
    """Emit a prefetch for reading into the second-level data cache."""
    number = ir.IntType(32)
    function = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(ir.VoidType(), [_BYTES, number, number, number]),
        "llvm.prefetch.p0",
    )
    builder.call(function, [address, number(0), number(2), number(1)])


@intrinsic
def prefetch(typingctx, array, index):
    """Prefetch the cache line that holds element `index` of a C-contiguous array.

    The line is loaded into the second-level cache: the first level tracks fewer outstanding lines and is too
    small for many rows.
    """

    def generate(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        _emit_prefetch(builder, builder.bitcast(builder.gep(data, [args[1]]), _BYTES))
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@intrinsic
def prefetch_at(typingctx, address):
    """Prefetch the cache line at a memory address, as `prefetch` does."""

    def generate(context, builder, signature, args):
        _emit_prefetch(builder, builder.inttoptr(args[0], _BYTES))
        return context.get_dummy_value()

    return types.void(types.intp), generate


@intrinsic
def element_at(typingctx, array, address, index):
    """Return element `index` of the values at a memory address, which have the dtype of `array`."""

    def generate(context, builder, signature, args):
        kind = context.get_data_type(signature.return_type)
        pointer = builder.gep(builder.inttoptr(args[1], kind.as_pointer()), [args[2]])
        return context.unpack_value(builder, signature.return_type, pointer)

    return array.dtype(array, types.intp, types.intp), generate


@nb.njit(inline="always", cache=True)
def prefetch_row(flat, width, row):
    """Prefetch one row of a matrix of `width` columns, passed as a flat array."""
    line = 64 // flat.itemsize
    for index in range(row * width, (row + 1) * width, line):
        prefetch(flat, index)
    # Rows start anywhere in a line, so the last value may be in one more line.
    prefetch(flat, (row + 1) * width - 1)


@intrinsic
def _value(typingctx, element):
    """Return a feature element as a number.

    numba has neither float16 nor bfloat16 on CPUs: float16 is stored as unsigned and bfloat16 as signed
    16-bit integers. int8 codes are converted to numbers without their scale.
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


# For mypy, which does not know the types of numba's decorators.
value: Any = _value
