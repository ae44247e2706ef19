"""LLVM intrinsics that numba lacks: prefetch, reads from raw addresses, and conversions of 16-bit floats."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,attr-defined,call-arg"

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from hyrt.runtime.numba_cache import nb

_INFINITY = 0x7F800000
# Bits of two float32 values: the first value above the largest half, and the smallest normal half.
_OVERFLOW, _NORMAL = (127 + 16) << 23, (127 - 14) << 23
# Bits of the float32 value whose last bit has the weight of a subnormal half's last bit.
_SUBNORMAL_UNIT = (127 - 15 + 23 - 10 + 1) << 23


def _has_conversions(context: Any) -> bool:
    """Return whether the processor has instructions that convert halves.

    For other processors, LLVM calls a function of its runtime library. A numba process does not load this
    library and would crash.
    """
    _, _, features = context.codegen().magic_tuple()
    return "+f16c" in features or "+fp16" in features or "+fullfp16" in features or "+neon" in features


def _like(kind: ir.Type, scalar: ir.Type) -> ir.Type:
    """Return a type with the shape of `kind` and another scalar type."""
    return ir.VectorType(scalar, kind.count) if isinstance(kind, ir.VectorType) else scalar


def _constant(kind: ir.Type, number: float) -> ir.Constant:
    return ir.Constant(kind, [number] * kind.count if isinstance(kind, ir.VectorType) else number)


def half_to_float(context: Any, builder: Any, bits: Any) -> Any:
    """Convert the bits of halves (i16 or a vector of i16) to float32."""
    single, word = _like(bits.type, ir.FloatType()), _like(bits.type, ir.IntType(32))
    if _has_conversions(context):
        return builder.fpext(builder.bitcast(bits, _like(bits.type, ir.HalfType())), single)

    def number(value: int) -> ir.Constant:
        return _constant(word, value)

    wide = builder.zext(bits, word)
    magnitude = builder.shl(builder.and_(wide, number(0x7FFF)), number(13))
    # 2^112 is the ratio of the exponent biases. The product is exact, and makes subnormal halves normal.
    scaled = builder.fmul(builder.bitcast(magnitude, single), _constant(single, 2.0**112))
    is_finite = builder.icmp_unsigned("<", magnitude, number(0x7C00 << 13))
    special = builder.or_(magnitude, number(_INFINITY))
    result = builder.select(is_finite, builder.bitcast(scaled, word), special)
    sign = builder.shl(builder.and_(wide, number(0x8000)), number(16))
    return builder.bitcast(builder.or_(result, sign), single)


def float_to_half(context: Any, builder: Any, numbers: Any) -> Any:
    """Round float32 (scalar or vector) to the nearest half, ties to even; return its bits as i16."""
    kind = numbers.type
    single, word, bits = _like(kind, ir.FloatType()), _like(kind, ir.IntType(32)), _like(kind, ir.IntType(16))
    if _has_conversions(context):
        return builder.bitcast(builder.fptrunc(numbers, _like(kind, ir.HalfType())), bits)

    def number(value: int) -> ir.Constant:
        return _constant(word, value)

    wide = builder.bitcast(numbers, word)
    sign = builder.and_(wide, number(0x80000000))
    magnitude = builder.xor(wide, sign)
    # Normal numbers: add half a unit minus one, plus one if the last remaining bit is odd (ties to even).
    odd = builder.and_(builder.lshr(magnitude, number(13)), number(1))
    rebased = builder.sub(magnitude, number((127 - 15) << 23))
    normal = builder.lshr(builder.add(builder.add(rebased, number(0xFFF)), odd), number(13))
    # Subnormal numbers: adding `unit` in floating point rounds to its last bit.
    unit = builder.bitcast(number(_SUBNORMAL_UNIT), single)
    shifted = builder.bitcast(builder.fadd(builder.bitcast(magnitude, single), unit), word)
    subnormal = builder.sub(shifted, number(_SUBNORMAL_UNIT))
    is_nan = builder.icmp_unsigned(">", magnitude, number(_INFINITY))
    too_large = builder.select(is_nan, number(0x7E00), number(0x7C00))
    result = builder.select(builder.icmp_unsigned("<", magnitude, number(_NORMAL)), subnormal, normal)
    result = builder.select(builder.icmp_unsigned(">=", magnitude, number(_OVERFLOW)), too_large, result)
    return builder.trunc(builder.or_(result, builder.lshr(sign, number(16))), bits)


_BYTES = ir.IntType(8).as_pointer()


def _emit_prefetch(builder, address):
    """Emit a prefetch for reading into the L2 cache."""
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

    The line is loaded into the L2 cache, because the L1 cache tracks fewer outstanding lines and is too small
    for many rows.
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
    """Return element `index` of an array at a memory address, with the dtype of `array`."""

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
    # A row may start anywhere in a cache line, so its last value may be in one more line.
    prefetch(flat, (row + 1) * width - 1)


@intrinsic
def _value(typingctx, element):
    """Return the numeric value of an element of a feature matrix.

    numba supports neither float16 nor bfloat16 on CPUs: unsigned 16-bit integers hold float16, and signed
    ones bfloat16. int8 codes are converted without their scale.
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
        return half_to_float(context, builder, bits)

    is_known = element.bitwidth == 16 or element == types.int8
    return (types.float32(element), generate) if is_known else None


# For mypy, which does not know the types of numba's decorators.
value: Any = _value
