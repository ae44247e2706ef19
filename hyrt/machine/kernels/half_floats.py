"""LLVM code that converts between float16 (stored as 16 bits) and float32, for scalars and vectors."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

from typing import Any

from llvmlite import ir

_INFINITY = 0x7F800000
# Float32 bits of the first number above the largest half, and of the smallest normal half.
_OVERFLOW, _NORMAL = (127 + 16) << 23, (127 - 14) << 23
# A float32 whose last bit has the value of the last bit of a subnormal half.
_SUBNORMAL_UNIT = (127 - 15 + 23 - 10 + 1) << 23


def _has_conversions(context: Any) -> bool:
    """Return whether the processor has instructions that convert halves.

    For other processors LLVM calls a function of its runtime library, which is not loaded in a numba process:
    the process would crash.
    """
    _, _, features = context.codegen().magic_tuple()
    return "+f16c" in features or "+fp16" in features or "+fullfp16" in features or "+neon" in features


def _like(kind: ir.Type, scalar: ir.Type) -> ir.Type:
    """Return the type of the same shape with another scalar type."""
    return ir.VectorType(scalar, kind.count) if isinstance(kind, ir.VectorType) else scalar


def _constant(kind: ir.Type, number: float) -> ir.Constant:
    return ir.Constant(kind, [number] * kind.count if isinstance(kind, ir.VectorType) else number)


def widen_half(context: Any, builder: Any, bits: Any) -> Any:
    """Convert the bits of halves (i16 or a vector of i16) to float32."""
    single, word = _like(bits.type, ir.FloatType()), _like(bits.type, ir.IntType(32))
    if _has_conversions(context):
        return builder.fpext(builder.bitcast(bits, _like(bits.type, ir.HalfType())), single)

    def number(value: int) -> ir.Constant:
        return _constant(word, value)

    wide = builder.zext(bits, word)
    magnitude = builder.shl(builder.and_(wide, number(0x7FFF)), number(13))
    # 2^112 is the ratio of both biases. The product is exact, and makes subnormal halves normal.
    scaled = builder.fmul(builder.bitcast(magnitude, single), _constant(single, 2.0**112))
    is_finite = builder.icmp_unsigned("<", magnitude, number(0x7C00 << 13))
    special = builder.or_(magnitude, number(_INFINITY))
    result = builder.select(is_finite, builder.bitcast(scaled, word), special)
    sign = builder.shl(builder.and_(wide, number(0x8000)), number(16))
    return builder.bitcast(builder.or_(result, sign), single)


def round_to_half(context: Any, builder: Any, numbers: Any) -> Any:
    """Round float32 (scalar or vector) to the nearest half, ties to even; return the bits, i16."""
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
    # Subnormal numbers: the floating-point addition itself rounds at the unit of the other summand.
    unit = builder.bitcast(number(_SUBNORMAL_UNIT), single)
    shifted = builder.bitcast(builder.fadd(builder.bitcast(magnitude, single), unit), word)
    subnormal = builder.sub(shifted, number(_SUBNORMAL_UNIT))
    is_nan = builder.icmp_unsigned(">", magnitude, number(_INFINITY))
    too_large = builder.select(is_nan, number(0x7E00), number(0x7C00))
    result = builder.select(builder.icmp_unsigned("<", magnitude, number(_NORMAL)), subnormal, normal)
    result = builder.select(builder.icmp_unsigned(">=", magnitude, number(_OVERFLOW)), too_large, result)
    return builder.trunc(builder.or_(result, builder.lshr(sign, number(16))), bits)
