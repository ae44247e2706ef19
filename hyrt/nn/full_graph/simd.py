"""Operations on vector registers for compiled loops."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,attr-defined,call-arg"

from __future__ import annotations

import math

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, models, register_model

from hyrt.runtime.intrinsics import float_to_half, half_to_float

# Products and sums may be fused, as in the other kernels. The order of sums is preserved.
_FLAGS = ("contract", "nsz")
_I32 = ir.IntType(32)


class Lanes(types.Type):
    """Numba type of a vector of `count` numbers."""

    def __init__(self, element: types.Number, count: int) -> None:
        self.element = element
        self.count = count
        super().__init__(name=f"lanes({element}, {count})")


@register_model(Lanes)
class LanesModel(models.PrimitiveModel):
    """Data model of `Lanes`: an LLVM vector."""

    def __init__(self, manager, lanes) -> None:
        super().__init__(manager, lanes, ir.VectorType(manager[lanes.element].get_value_type(), lanes.count))


def _is_half(element):
    return isinstance(element, types.Integer) and element.bitwidth == 16


def _number(element):
    """Return the number type in which elements of a type are computed."""
    return types.float32 if _is_half(element) else element


def _spread(builder, scalar, count):
    """Return a vector with `scalar` in all lanes."""
    vector = ir.VectorType(scalar.type, count)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, _I32(0))
    order = ir.Constant(ir.VectorType(_I32, count), [0] * count)
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), order)


def _integers(bits, count, number):
    """Return a constant vector of equal integers."""
    return ir.Constant(ir.VectorType(ir.IntType(bits), count), [number] * count)


def _pointer(context, builder, array_type, array, index, vector):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), vector.as_pointer())


def _mask(builder, used, count):
    """Return a mask with the first `used` lanes set."""
    width = used.type.width
    lanes = ir.Constant(ir.VectorType(ir.IntType(width), count), list(range(count)))
    return builder.icmp_signed("<", lanes, _spread(builder, used, count))


def _suffix(vector):
    kind = {ir.FloatType(): "f32", ir.DoubleType(): "f64"}.get(vector.element) or f"i{vector.element.width}"
    return f"v{vector.count}{kind}.p0"


def _widened(context, builder, stored, element, count):
    if not _is_half(element):
        return stored
    if element.signed:
        wide = builder.zext(stored, ir.VectorType(_I32, count))
        return builder.bitcast(
            builder.shl(wide, _integers(32, count, 16)), ir.VectorType(ir.FloatType(), count)
        )
    return half_to_float(context, builder, stored)


def _rounded(context, builder, number, element, count):
    if not _is_half(element):
        return number
    half_vector = ir.VectorType(ir.IntType(16), count)
    if not element.signed:
        return float_to_half(context, builder, number)
    # Round to nearest even: add half a unit minus one, plus one if the lowest retained bit is odd.
    bits = builder.bitcast(number, ir.VectorType(_I32, count))
    shift = _integers(32, count, 16)
    odd = builder.and_(builder.lshr(bits, shift), _integers(32, count, 1))
    up = builder.add(bits, builder.add(odd, _integers(32, count, 0x7FFF)))
    # Without this, rounding could turn a NaN into infinity.
    up = builder.select(builder.fcmp_unordered("uno", number, number), _integers(32, count, 0x7FC00000), up)
    return builder.trunc(builder.lshr(up, shift), half_vector)


@intrinsic(prefer_literal=True)
def load(typingctx, array, index, count, used):
    """Load `count` numbers of a C-contiguous array, starting at `index`; lanes from `used` on are zero.

    `count` is a constant. `used` is an integer, or None for all. Elements for unused lanes are not read.
    """
    if not isinstance(count, types.IntegerLiteral):
        return None
    num = count.literal_value
    result = Lanes(_number(array.dtype), num)

    def generate(context, builder, signature, args):
        element = context.get_data_type(array.dtype)
        vector = ir.VectorType(element, num)
        pointer = _pointer(context, builder, array, args[0], args[1], vector)
        align = context.get_abi_sizeof(element)
        if isinstance(used, types.NoneType):
            stored = builder.load(pointer)
            stored.align = align
        else:
            mask = _mask(builder, args[3], num)
            function = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(vector, [vector.as_pointer(), _I32, mask.type, vector]),
                f"llvm.masked.load.{_suffix(vector)}",
            )
            stored = builder.call(function, [pointer, _I32(align), mask, ir.Constant(vector, None)])
        return _widened(context, builder, stored, array.dtype, num)

    return result(array, types.intp, count, used), generate


@intrinsic
def store(typingctx, array, index, lanes, used):
    """Store the first `used` lanes into a C-contiguous array, starting at `index`."""

    def generate(context, builder, signature, args):
        element = context.get_data_type(array.dtype)
        vector = ir.VectorType(element, lanes.count)
        pointer = _pointer(context, builder, array, args[0], args[1], vector)
        align = context.get_abi_sizeof(element)
        stored = _rounded(context, builder, args[2], array.dtype, lanes.count)
        if isinstance(used, types.NoneType):
            builder.store(stored, pointer).align = align
        else:
            mask = _mask(builder, args[3], lanes.count)
            function = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(ir.VoidType(), [vector, vector.as_pointer(), _I32, mask.type]),
                f"llvm.masked.store.{_suffix(vector)}",
            )
            builder.call(function, [stored, pointer, _I32(align), mask])
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes, used), generate


@intrinsic(prefer_literal=True)
def filled(typingctx, number, count):
    """Return a vector of `count` equal numbers."""
    if not isinstance(count, types.IntegerLiteral):
        return None
    result = Lanes(number, count.literal_value)

    def generate(context, builder, signature, args):
        return _spread(builder, args[0], result.count)

    return result(number, count), generate


def _binary(operation):
    @intrinsic
    def lanewise(typingctx, a, b):
        def generate(context, builder, signature, args):
            return getattr(builder, operation)(*args, flags=_FLAGS)

        return a(a, a), generate

    return lanewise


add = _binary("fadd")
subtract = _binary("fsub")
multiply = _binary("fmul")
divide = _binary("fdiv")


@intrinsic
def scaled(typingctx, lanes, factor):
    """Multiply each lane by a scalar."""

    def generate(context, builder, signature, args):
        return builder.fmul(args[0], _spread(builder, args[1], lanes.count), flags=_FLAGS)

    return lanes(lanes, lanes.element), generate


@intrinsic
def above(typingctx, a, b):
    """Return whether any lane of a is greater than the same lane of b."""

    def generate(context, builder, signature, args):
        bits = ir.IntType(a.count)
        return builder.icmp_unsigned("!=", builder.bitcast(builder.fcmp_ordered(">", *args), bits), bits(0))

    return types.boolean(a, a), generate


@intrinsic
def where_positive(typingctx, condition, there, elsewhere):
    """Select lanes of `there` for positive lanes of `condition`, otherwise of `elsewhere`."""

    def generate(context, builder, signature, args):
        is_positive = builder.fcmp_ordered(">", args[0], ir.Constant(args[0].type, None))
        return builder.select(is_positive, args[1], args[2])

    return condition(condition, condition, condition), generate


@intrinsic
def where_above(typingctx, a, b, there, elsewhere):
    """Select lanes of `there` for lanes of a that are greater than b or NaN, otherwise of `elsewhere`."""

    def generate(context, builder, signature, args):
        row, best, *choice = args
        chosen = builder.or_(builder.fcmp_ordered(">", row, best), builder.fcmp_unordered("uno", row, row))
        return builder.select(chosen, *choice)

    return there(a, a, there, there), generate


@intrinsic
def where_equal(typingctx, integers, number, there, elsewhere):
    """Select lanes of `there` for integers that equal `number`, otherwise of `elsewhere`."""

    def generate(context, builder, signature, args):
        numbers = _spread(builder, args[1], integers.count)
        return builder.select(builder.icmp_signed("==", args[0], numbers), args[2], args[3])

    return there(integers, integers.element, there, there), generate


@intrinsic
def inverse_or_zero(typingctx, lanes):
    """Compute 1 / x per lane, and 0 for x = 0."""

    def generate(context, builder, signature, args):
        (x,) = args
        zero = ir.Constant(x.type, None)
        one = ir.Constant(x.type, [1.0] * lanes.count)
        return builder.select(builder.fcmp_ordered("==", x, zero), zero, builder.fdiv(one, x))

    return lanes(lanes), generate


# exp(x) = 2^n exp(r) with |r| <= ln 2 / 2. Values per type: bits of a number; position and bias of the
# exponent; constant that moves n into the lowest bits of a sum; number of terms of exp(r) up to the rounding
# error; the x below which the result is subnormal.
_EXPONENTS = {
    types.float32: (32, 23, 127, 1.5 * 2.0**23, 8, -87.0),
    types.float64: (64, 52, 1023, 1.5 * 2.0**52, 14, -708.0),
}
# ln 2 in two parts. The first part has few bits, so that its product with n is exact in both types.
_LN2_HIGH = 0.693359375
_LN2_LOW = math.log(2) - _LN2_HIGH


@intrinsic
def exp(typingctx, lanes):
    """Compute exp of numbers up to about 80 with an error of a few ulps; 0 for very negative numbers."""

    def generate(context, builder, signature, args):
        (x,) = args
        bits, start, bias, magic, terms, minimum = _EXPONENTS[lanes.element]

        def number(value):
            return ir.Constant(x.type, [value] * lanes.count)

        def multiply_add(a, b, c):
            return builder.fadd(builder.fmul(a, b, flags=_FLAGS), c, flags=_FLAGS)

        shifted = multiply_add(x, number(1 / math.log(2)), number(magic))
        n = builder.fsub(shifted, number(magic))
        r = multiply_add(n, number(-_LN2_HIGH), x)
        r = multiply_add(n, number(-_LN2_LOW), r)
        total = number(1 / math.factorial(terms - 1))
        for k in range(terms - 2, -1, -1):
            total = multiply_add(total, r, number(1 / math.factorial(k)))
        exponent = builder.bitcast(shifted, ir.VectorType(ir.IntType(bits), lanes.count))
        exponent = builder.add(exponent, _integers(bits, lanes.count, bias))
        power = builder.bitcast(builder.shl(exponent, _integers(bits, lanes.count, start)), x.type)
        result = builder.fmul(total, power)
        return builder.select(builder.fcmp_ordered("<", x, number(minimum)), number(0.0), result)

    return lanes(lanes), generate


@intrinsic
def log(typingctx, lanes):
    """Compute the natural logarithm."""

    def generate(context, builder, signature, args):
        kind = args[0].type
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(kind, [kind]), f"llvm.log.{_suffix(kind)[:-3]}"
        )
        return builder.call(function, args)

    return lanes(lanes), generate


@intrinsic(prefer_literal=True)
def spread(typingctx, heads, width, count):
    """Repeat the number of each head `width` times in a vector of `count` lanes."""
    if not isinstance(width, types.IntegerLiteral) or not isinstance(count, types.IntegerLiteral):
        return None
    result = Lanes(heads.element, count.literal_value)

    def generate(context, builder, signature, args):
        last = heads.count - 1
        order = [min(lane // width.literal_value, last) for lane in range(result.count)]
        return _shuffled(builder, args[0], order)

    return result(heads, width, count), generate


@intrinsic(prefer_literal=True)
def sums_of_heads(typingctx, lanes, width, heads):
    """Sum the `width` lanes of each head by pairwise addition of halves."""
    if not isinstance(width, types.IntegerLiteral) or not isinstance(heads, types.IntegerLiteral):
        return None
    result = Lanes(lanes.element, heads.literal_value)

    def generate(context, builder, signature, args):
        head_width, num = width.literal_value, heads.literal_value
        padded = 1 << (head_width - 1).bit_length()
        # Lane `lanes.count` is the first lane of the zero vector.
        order = [
            h * head_width + k if k < head_width else lanes.count for h in range(num) for k in range(padded)
        ]
        total = _shuffled(builder, args[0], order)
        while padded > 1:
            half = padded // 2
            low = [h * padded + k for h in range(num) for k in range(half)]
            high = [lane + half for lane in low]
            total = builder.fadd(
                _shuffled(builder, total, low), _shuffled(builder, total, high), flags=_FLAGS
            )
            padded = half
        return total

    return result(lanes, width, heads), generate


def _shuffled(builder, vector, order):
    """Permute the lanes of a vector; an index of its lane count or more selects zero."""
    lanes = ir.Constant(ir.VectorType(_I32, len(order)), order)
    return builder.shuffle_vector(vector, ir.Constant(vector.type, None), lanes)
