"""Matrix products of one chunk of rows, by the library that is fastest on this processor.

MKL multiplies matrices in place, transposed or not, and is fastest on Intel processors and on all processors
whose widest vectors are AVX2. It does not use AVX-512 on other processors, on which oneDNN is about twice as
fast at equal (fp32) precision; oneDNN is also the library with bfloat16 instructions. But oneDNN does not
accept a transposed left matrix, allocates its own results, and has a higher cost per call: small matrices are
multiplied by MKL.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch

from hyrt.machine.aligned_arrays import ALIGNMENT
from hyrt.machine.cores import processor_vendor, vector_instructions
from hyrt.machine.workers import Chunk, current_workers
from hyrt.nn.operators.biased_rows import add_bias
from hyrt.nn.operators.tiled_transpose import transpose_into
from hyrt.nn.torch_threads import torch_threads, use_one_torch_thread


def _onednn() -> Any:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)


ONEDNN = _onednn()


def _onednn_dtypes() -> Iterator[torch.dtype]:
    has_mkl = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    if ONEDNN is not None:
        uses_widest = processor_vendor() == "GenuineIntel" or "AVX2" in vector_instructions()
        if not (has_mkl and uses_widest):
            yield torch.float32
        # Without bfloat16 instructions oneDNN refuses bfloat16; torch's own product is then slow but correct.
        if torch.ops.mkldnn._is_mkldnn_bf16_supported():
            yield torch.bfloat16


BY_ONEDNN = frozenset(_onednn_dtypes())
"""Precisions that oneDNN multiplies on this machine; MKL, or torch's replacement for it, multiplies all
others.
"""

FEW_WEIGHTS = (1 << 13) if torch.backends.mkl.is_available() else 0  # type: ignore[no-untyped-call]
"""MKL multiplies in fp32 by all matrices with at most this many elements: their products are dominated by the
cost of a call, which is higher for oneDNN.
"""

# oneDNN compiles and caches a kernel per shape: without padding, the last chunk of every step would add a
# cache entry.
_PAD = 128


def in_chunks(work: Chunk, count: int, grain: int) -> None:
    """Call `work(start, stop)` for chunks of `count` rows, shared by the calling thread's team.

    Each chunk is multiplied by a single thread. MKL may sum in another order with more threads; the team's
    threads use one torch thread each, but the calling thread may use several, so the result would depend on
    the thread that computed it.
    """
    if 0 < count <= grain and torch.get_num_threads() == 1:
        # For a small product, the calls below would take longer than the product.
        work(0, count)
        return

    def work_on_one_thread(start: int, stop: int) -> None:
        use_one_torch_thread()
        work(start, stop)

    # Traces name shared work by function name; `functools.wraps` would copy much more.
    work_on_one_thread.__qualname__ = work.__qualname__
    with torch_threads(1):
        current_workers().run(work_on_one_thread, count, grain)


def align(matrix: torch.Tensor) -> torch.Tensor:
    """Return the matrix, or a copy of it if it does not begin at a cache line.

    MKL may round a product differently if an operand does not begin at a multiple of 16 bytes (rows, results)
    or 64 bytes (transposed weights; measured on AMD Zen 3 and 4). Bits of aligned operands depend on
    shapes alone.
    """
    if matrix.data_ptr() % ALIGNMENT == 0:
        return matrix
    if matrix.stride(0) == 1:
        return matrix.t().clone(memory_format=torch.contiguous_format).t()
    return matrix.clone(memory_format=torch.contiguous_format)


def multiply(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    *,
    precision: torch.dtype,
    bias: torch.Tensor | None = None,
    relu: bool = False,
    adds: bool = False,
) -> None:
    """Write the product of rows and a matrix.

    Parameters
    ----------
    a
        [n, k] rows.
    b
        [k, m] in `precision`; may be a transposed view.
    out
        [n, m], receives a b (+ bias) (then ReLU).
    precision
        The dtype to multiply in.
    bias
        [m] in `precision`, or None.
    relu
        Apply a ReLU to the result.
    adds
        Add the product to `out`; without a bias and a ReLU.
    """
    if out.data_ptr() % ALIGNMENT:
        aligned = out.clone(memory_format=torch.contiguous_format) if adds else out.new_empty(out.shape)
        multiply(a, b, aligned, precision=precision, bias=bias, relu=relu, adds=adds)
        out.copy_(aligned)
        return
    rows, b = align(a if a.dtype == precision else a.to(precision)), align(b)
    if _uses_onednn(precision, b.numel()):
        padded = _onednn_product(_padded(rows), b.t(), bias, relu)
        _put(padded[: a.shape[0]], out, adds=adds)
        return
    # On some processors MKL's results depend on the row stride.
    rows = rows.contiguous()
    if out.dtype != precision:
        product = torch.mm(rows, b) if bias is None else torch.addmm(bias, rows, b)
        _put(product.relu_() if relu else product, out, adds=adds)
    elif adds:
        torch.addmm(out, rows, b, out=out)
    else:
        torch.mm(rows, b, out=out)
        if bias is not None:
            # Torch would first copy the bias to all rows, which takes as long as the product of rows with few
            # columns.
            add_bias(out.numpy(), bias.numpy(), relu)
        elif relu:
            out.relu_()


def _put(product: torch.Tensor, out: torch.Tensor, *, adds: bool) -> None:
    if adds:
        out.add_(product)
    else:
        out.copy_(product)


def multiply_turned(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *, precision: torch.dtype) -> None:
    """Write the product of transposed rows and rows.

    Parameters
    ----------
    a
        [n, k] rows.
    b
        [n, m] rows.
    out
        [m, k], receives b' a.
    precision
        The dtype to multiply in.
    """
    if _uses_onednn(precision, out.numel()):
        # Numpy has no bfloat16, which may be b's dtype.
        smaller, larger = (a, b) if b.dtype != a.dtype or a.shape[1] < b.shape[1] else (b, a)
        transposed = torch.empty((smaller.shape[1], a.shape[0] + -a.shape[0] % _PAD), dtype=a.dtype)
        transpose_into(smaller.contiguous().numpy(), transposed.numpy())
        product = _onednn_product(transposed.to(precision), _padded(larger.to(precision)).t(), None, False)
        out.copy_(product if smaller is b else product.t())
    elif precision == out.dtype and out.data_ptr() % ALIGNMENT == 0:
        # If b has few columns, MKL takes five times as long for a' b.
        torch.mm(align(b).t(), align(a), out=out)
    else:
        out.copy_(torch.mm(align(b.to(precision)).t(), align(a.to(precision))))


def _uses_onednn(precision: torch.dtype, weights: int) -> bool:
    """Return whether oneDNN multiplies by a weight of this many elements, or computes its gradient."""
    return precision in BY_ONEDNN and (precision != torch.float32 or weights > FEW_WEIGHTS)


def _onednn_product(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, relu: bool) -> torch.Tensor:
    """Return a b' (+ bias) (then ReLU)."""
    if not (b.is_contiguous() or b.t().is_contiguous()):
        b = b.contiguous()  # If b is a column slice of a matrix, oneDNN takes a thousand times as long.
    return cast(torch.Tensor, ONEDNN(a, b, bias, "relu" if relu else "none", [], ""))


def _padded(rows: torch.Tensor) -> torch.Tensor:
    """Pad the rows of a chunk with zeros to a multiple of `_PAD`."""
    surplus = -rows.shape[0] % _PAD
    return rows if not surplus else torch.nn.functional.pad(rows, (0, 0, 0, surplus))
