"""Math functions of SIMD vectors for all floating-point inputs, based on `hyrt.nn.full_graph.simd`."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,attr-defined,call-arg"
# mypy: disable-error-code="var-annotated,unreachable"

from __future__ import annotations

from fractions import Fraction

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from hyrt.nn.full_graph import simd
from hyrt.runtime.numba_cache import nb
from hyrt.runtime.rng import GOLDEN, MIX_A, MIX_B

# Largest input for which `vectors.exp` is exact. The square of the result is infinite.
_MAX_EXP = {types.float32: 80.0, types.float64: 700.0}
# Number of terms in the x^2 series of tanh(x) / x that exceed a rounding error for |x| up to 1/4.
_TERMS = {types.float32: 5, types.float64: 11}

_compile = nb.njit(nogil=True, error_model="numpy", boundscheck=False, inline="always")


def _tanh_series(terms: int) -> list[float]:
    """Return the first coefficients of tanh(x) = x (c_0 + c_1 x^2 + ...), derived from tanh' = 1 - tanh^2."""
    found = [Fraction(1)]
    for k in range(1, terms):
        square = sum((found[i] * found[k - 1 - i] for i in range(k)), Fraction(0))
        found.append(-square / (2 * k + 1))
    return [float(each) for each in found]


def _constant(lanes, value):
    return ir.Constant(ir.VectorType(ir.FloatType() if lanes.element == types.float32 else ir.DoubleType(),
                                     lanes.count), [value] * lanes.count)  # fmt: skip


@intrinsic
def number(typingctx, lanes, value):
    """Return a vector with the type of `lanes` and equal numbers."""

    def generate(context, builder, signature, args):
        scalar = context.cast(builder, args[1], signature.args[1], lanes.element)
        empty = ir.Constant(args[0].type, ir.Undefined)
        first = builder.insert_element(empty, scalar, ir.IntType(32)(0))
        order = ir.Constant(ir.VectorType(ir.IntType(32), lanes.count), [0] * lanes.count)
        return builder.shuffle_vector(first, empty, order)

    return lanes(lanes, value), generate


@intrinsic
def drawn(typingctx, lanes, bits, head, threshold):
    """Return the dropout mask of consecutive heads, starting at `head`; see `EdgeExprBuilder.keep_mask`."""

    def generate(context, builder, signature, args):
        wide = ir.IntType(64)
        _, key, first, minimum = args
        first, minimum = (
            builder.zext(value, wide) if value.type.width < 64 else value for value in (first, minimum)
        )
        result = ir.Constant(args[0].type, ir.Undefined)
        for lane in range(lanes.count):
            at = builder.add(first, wide(lane))
            group = builder.lshr(at, wide(2))
            mixed = builder.add(key, builder.mul(group, wide(int(GOLDEN))))
            for shift, factor in ((30, MIX_A), (27, MIX_B), (31, None)):
                mixed = builder.xor(mixed, builder.lshr(mixed, wide(shift)))
                if factor is not None:
                    mixed = builder.mul(mixed, wide(int(factor)))
            shift = builder.mul(builder.and_(at, wide(3)), wide(16))
            lane_bits = builder.and_(builder.lshr(mixed, shift), wide(0xFFFF))
            one, zero = (ir.Constant(args[0].type.element, each) for each in (1.0, 0.0))
            flag = builder.select(builder.icmp_unsigned(">=", lane_bits, minimum), one, zero)
            result = builder.insert_element(result, flag, ir.IntType(32)(lane))
        return result

    return lanes(lanes, types.uint64, types.intp, types.intp), generate


def _without_contraction(operation):
    """Create an addition or subtraction that LLVM does not fuse with a preceding product."""

    @intrinsic
    def lanewise(typingctx, a, b):
        def generate(context, builder, signature, args):
            return getattr(builder, operation)(*args, flags=("nsz",))

        return a(a, a), generate

    return lanewise


add = _without_contraction("fadd")
subtract = _without_contraction("fsub")


@intrinsic
def _max_exp(typingctx, lanes):
    def generate(context, builder, signature, args):
        return _constant(lanes, _MAX_EXP[lanes.element])

    return lanes(lanes), generate


@intrinsic
def _tanh_over(typingctx, lanes):
    """Evaluate the series of tanh(x) / x for the given x^2."""

    def generate(context, builder, signature, args):
        *rest, total = (_constant(lanes, each) for each in _tanh_series(_TERMS[lanes.element]))
        for term in reversed(rest):
            total = builder.fadd(builder.fmul(total, args[0], flags=("contract",)), term, flags=("contract",))
        return total

    return lanes(lanes), generate


@intrinsic
def negative(typingctx, lanes):
    """Negate each number."""

    def generate(context, builder, signature, args):
        return builder.fneg(args[0])

    return lanes(lanes), generate


@intrinsic
def sqrt(typingctx, lanes):
    """Return the square root."""

    def generate(context, builder, signature, args):
        bits = 32 if lanes.element == types.float32 else 64
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(args[0].type, [args[0].type]),
            f"llvm.sqrt.v{lanes.count}f{bits}",
        )
        return builder.call(function, args)

    return lanes(lanes), generate


@_compile
def _clamp(x):
    """Clamp each number to the largest input whose exponential is exact."""
    limit = _max_exp(x)
    return simd.where_positive(simd.subtract(x, limit), limit, x)


@_compile
def exp(x):
    """Return the exponential; infinity on overflow."""
    root = simd.exp(_clamp(simd.multiply(x, number(x, 0.5))))
    return simd.multiply(root, root)


@_compile
def sigmoid(x):
    """Return 1 / (1 + exp(-x))."""
    one = number(x, 1.0)
    return simd.divide(one, simd.add(one, simd.exp(_clamp(negative(x)))))


@_compile
def tanh(x):
    """Return the hyperbolic tangent, which is also exact near zero."""
    size = simd.where_positive(x, x, negative(x))
    one, two = number(x, 1.0), number(x, 2.0)
    power = simd.exp(_clamp(simd.multiply(two, size)))
    far = simd.subtract(one, simd.divide(two, simd.add(power, one)))
    near = simd.multiply(size, _tanh_over(simd.multiply(x, x)))
    result = simd.where_positive(simd.subtract(size, number(x, 0.25)), far, near)
    return simd.where_positive(x, result, negative(result))
