"""Matrix products of chunks of rows with MKL or oneDNN, whichever is faster on this processor."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,attr-defined,call-arg"

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import torch
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from hyrt.nn.torch_threads import torch_threads, use_one_torch_thread
from hyrt.runtime.buffer_pool import ALIGNMENT
from hyrt.runtime.hardware import processor_vendor, vector_instructions
from hyrt.runtime.numba_cache import nb
from hyrt.runtime.workers import Chunk, current_workers

_TILE = 16


@intrinsic
def _transpose_tile(typingctx, source, at, stride, target, to, target_stride):
    """Transpose a 16 x 16 tile between arrays, given its first element and row stride in each."""

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
        # Exchange the off-diagonal quarters of squares that get smaller and smaller.
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
    """Write the transpose of rows [n, k] to out [k, m], with zeros in the columns from n on."""
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


@nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
def add_bias(rows, bias, relu):
    """Add a bias [k] to each of the rows [n, k] in place, then apply a ReLU if `relu`."""
    zero = rows.dtype.type(0)
    for i in range(rows.shape[0]):
        row = rows[i]
        if relu:
            for k in range(row.shape[0]):
                value = row[k] + bias[k]
                # The comparison is chosen such that a NaN stays a NaN.
                row[k] = zero if value <= zero else value
        else:
            for k in range(row.shape[0]):
                row[k] += bias[k]


def _onednn() -> Any:
    if not torch.backends.mkldnn.is_available():
        return None
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)


ONEDNN = _onednn()


def _onednn_dtypes() -> Iterator[torch.dtype]:
    has_mkl = torch.backends.mkl.is_available()
    if ONEDNN is not None:
        uses_widest = processor_vendor() == "GenuineIntel" or "AVX2" in vector_instructions()
        if not (has_mkl and uses_widest):
            yield torch.float32
        # Without bfloat16 instructions, oneDNN refuses bfloat16. torch's own product is slow, but correct.
        if torch.ops.mkldnn._is_mkldnn_bf16_supported():
            yield torch.bfloat16


ONEDNN_DTYPES = frozenset(_onednn_dtypes())
"""Precisions for which oneDNN is used on this machine; all others use MKL or torch's replacement."""

MKL_MAX_WEIGHTS = (1 << 13) if torch.backends.mkl.is_available() else 0
"""Largest float32 matrix, in elements, for which MKL is used: oneDNN costs more per call."""

# oneDNN compiles and caches one kernel per shape. Without padding, the last chunk of each step would add one.
_PAD = 128


def run_in_chunks(work: Chunk, count: int, grain: int) -> None:
    """Split `count` rows into chunks; call `work(start, stop)` for each in the calling thread's team.

    torch computes each chunk on one thread. With several threads, MKL may sum in another order. Since only
    the calling thread may use several, the result would depend on which thread computes the chunk.
    """
    if 0 < count <= grain and torch.get_num_threads() == 1:
        # For a small product, the calls below would take longer than the product itself.
        work(0, count)
        return

    def work_on_one_thread(start: int, stop: int) -> None:
        use_one_torch_thread()
        work(start, stop)

    # Traces use the name of the function as a label; `functools.wraps` would copy much more.
    work_on_one_thread.__qualname__ = work.__qualname__
    with torch_threads(1):
        current_workers().run(work_on_one_thread, count, grain)


def align(matrix: torch.Tensor) -> torch.Tensor:
    """Return the matrix, or an aligned copy if it does not begin at a cache line.

    MKL may round a product differently if rows or results do not begin at a multiple of 16 bytes, or
    transposed weights at a multiple of 64 bytes (measured on AMD Zen 3 and 4). With aligned operands, the
    bits of a product depend only on shapes and values.
    """
    if matrix.data_ptr() % ALIGNMENT == 0:
        return matrix
    if matrix.stride(0) == 1:
        return matrix.t().clone(memory_format=torch.contiguous_format).t()
    return matrix.clone(memory_format=torch.contiguous_format)


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    *,
    precision: torch.dtype,
    bias: torch.Tensor | None = None,
    relu: bool = False,
    accumulate: bool = False,
) -> None:
    """Write the product of rows `a` [n, k] and `b` [k, m] to `out` [n, m], with an optional bias and ReLU.

    The product is computed in dtype `precision`, which must be the dtype of `b` and `bias` [m]; `b` may be a
    transposed view. If `accumulate`, the product is added to `out`, and there must be no bias and no ReLU.
    """
    if out.data_ptr() % ALIGNMENT:
        aligned = out.clone(memory_format=torch.contiguous_format) if accumulate else out.new_empty(out.shape)
        matmul(a, b, aligned, precision=precision, bias=bias, relu=relu, accumulate=accumulate)
        out.copy_(aligned)
        return
    rows, b = align(a if a.dtype == precision else a.to(precision)), align(b)
    if _uses_onednn(precision, b.numel()):
        padded = _onednn_product(_padded(rows), b.t(), bias, relu)
        _put(padded[: a.shape[0]], out, adds=accumulate)
        return
    # On some processors, the rounding of MKL depends on the row stride.
    rows = rows.contiguous()
    if out.dtype != precision:
        product = torch.mm(rows, b) if bias is None else torch.addmm(bias, rows, b)
        _put(product.relu_() if relu else product, out, adds=accumulate)
    elif accumulate:
        torch.addmm(out, rows, b, out=out)
    else:
        torch.mm(rows, b, out=out)
        if bias is not None:
            # torch.addmm would first copy the bias to all rows. If rows have few columns, this takes as long
            # as the product.
            add_bias(out.numpy(), bias.numpy(), relu)
        elif relu:
            out.relu_()


def _put(product: torch.Tensor, out: torch.Tensor, *, adds: bool) -> None:
    if adds:
        out.add_(product)
    else:
        out.copy_(product)


def matmul_transposed(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *, precision: torch.dtype) -> None:
    """Write the product of transposed `b` [n, m] and `a` [n, k] to `out` [m, k], computed in `precision`."""
    if _uses_onednn(precision, out.numel()):
        # Transpose the smaller matrix, but never b in bfloat16, which numpy does not support.
        smaller, larger = (a, b) if b.dtype != a.dtype or a.shape[1] < b.shape[1] else (b, a)
        transposed = torch.empty((smaller.shape[1], a.shape[0] + -a.shape[0] % _PAD), dtype=a.dtype)
        transpose_into(smaller.contiguous().numpy(), transposed.numpy())
        product = _onednn_product(transposed.to(precision), _padded(larger.to(precision)).t(), None, False)
        out.copy_(product if smaller is b else product.t())
    elif precision == out.dtype and out.data_ptr() % ALIGNMENT == 0:
        # If b has few columns, MKL takes five times as long for the product a' b.
        torch.mm(align(b).t(), align(a), out=out)
    else:
        out.copy_(torch.mm(align(b.to(precision)).t(), align(a.to(precision))))


def _uses_onednn(precision: torch.dtype, weights: int) -> bool:
    """Return whether oneDNN computes products with a weight of this size, and their gradients."""
    return precision in ONEDNN_DTYPES and (precision != torch.float32 or weights > MKL_MAX_WEIGHTS)


def _onednn_product(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, relu: bool) -> torch.Tensor:
    """Return a b', plus the bias if any, followed by a ReLU if `relu`."""
    if not (b.is_contiguous() or b.t().is_contiguous()):
        b = b.contiguous()  # For a column slice of a matrix, oneDNN takes a thousand times as long.
    return cast(torch.Tensor, ONEDNN(a, b, bias, "relu" if relu else "none", [], ""))


def _padded(rows: torch.Tensor) -> torch.Tensor:
    """Pad the rows of a chunk with zero rows to a multiple of `_PAD`."""
    surplus = -rows.shape[0] % _PAD
    return rows if not surplus else torch.nn.functional.pad(rows, (0, 0, 0, surplus))
