"""The products of one chunk of rows, by the library that is the fastest on this processor.

MKL multiplies matrices where they lie, turned or not, and is the fastest on the processors of its maker, and
on all whose widest vectors are those of AVX2. It leaves AVX-512 unused on others, where oneDNN is about twice
as fast at equal (fp32) precision; everywhere oneDNN has the instructions for bfloat16. But it takes no turned
matrix on its left, gives results in memory of its own, and a call costs more: small matrices are MKL's.
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


def _by_onednn() -> Iterator[torch.dtype]:
    has_mkl = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    if ONEDNN is not None:
        uses_widest = processor_vendor() == "GenuineIntel" or "AVX2" in vector_instructions()
        if not (has_mkl and uses_widest):
            yield torch.float32
        # Without the processor's bfloat16 instructions it refuses; torch's own product then is slow but
        # right.
        if torch.ops.mkldnn._is_mkldnn_bf16_supported():
            yield torch.bfloat16


BY_ONEDNN = frozenset(_by_onednn())
"""The precisions in which oneDNN multiplies here; in all others it is MKL, or what torch has in its place."""

FEW_WEIGHTS = (1 << 13) if torch.backends.mkl.is_available() else 0  # type: ignore[no-untyped-call]
"""By a matrix of at most so many numbers MKL multiplies in fp32 everywhere: what a call costs beside the
multiplications is most of it there, and oneDNN's costs more."""

# oneDNN compiles and keeps a kernel for every shape it meets: without padding, the last chunk of every step
# would leave one behind.
_PAD = 128


def in_chunks(work: Chunk, count: int, grain: int) -> None:
    """Call `work(start, stop)` for chunks of `count` rows, shared by the calling thread's team.

    Each chunk is multiplied by one thread. With more, MKL may add up in another order, so that a result would
    depend on which thread has computed it: the team's have one each, but the calling thread may have several.
    """
    if 0 < count <= grain and torch.get_num_threads() == 1:
        # The calls below would take longer than a small product.
        work(0, count)
        return

    def work_on_one_thread(start: int, stop: int) -> None:
        use_one_torch_thread()
        work(start, stop)

    # A trace names what is shared by the function's name; `functools.wraps` copies much more.
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
        Add the product to what is in `out`; without a bias and a ReLU.
    """
    if out.data_ptr() % ALIGNMENT:
        aligned = out.clone(memory_format=torch.contiguous_format) if adds else out.new_empty(out.shape)
        multiply(a, b, aligned, precision=precision, bias=bias, relu=relu, adds=adds)
        out.copy_(aligned)
        return
    rows, b = align(a if a.dtype == precision else a.to(precision)), align(b)
    if _is_by_onednn(precision, b.numel()):
        padded = _onednn_product(_padded(rows), b.t(), bias, relu)
        _put(padded[: a.shape[0]], out, adds=adds)
        return
    # On some processors MKL's results depend on how rows lie in memory.
    rows = rows.contiguous()
    if out.dtype != precision:
        product = torch.mm(rows, b) if bias is None else torch.addmm(bias, rows, b)
        _put(product.relu_() if relu else product, out, adds=adds)
    elif adds:
        torch.addmm(out, rows, b, out=out)
    else:
        torch.mm(rows, b, out=out)
        if bias is not None:
            # Torch would first copy the bias to all rows, which takes as long as the product of narrow ones.
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
    if _is_by_onednn(precision, out.numel()):
        # numpy has no bfloat16, in which b may come.
        narrow, wide = (a, b) if b.dtype != a.dtype or a.shape[1] < b.shape[1] else (b, a)
        turned = torch.empty((narrow.shape[1], a.shape[0] + -a.shape[0] % _PAD), dtype=a.dtype)
        transpose_into(narrow.contiguous().numpy(), turned.numpy())
        product = _onednn_product(turned.to(precision), _padded(wide.to(precision)).t(), None, False)
        out.copy_(product if narrow is b else product.t())
    elif precision == out.dtype and out.data_ptr() % ALIGNMENT == 0:
        # With a narrow b, MKL takes five times as long for a' b.
        torch.mm(align(b).t(), align(a), out=out)
    else:
        out.copy_(torch.mm(align(b.to(precision)).t(), align(a.to(precision))))


def _is_by_onednn(precision: torch.dtype, weights: int) -> bool:
    """Whether oneDNN multiplies by a weight of so many numbers, or gives its gradient."""
    return precision in BY_ONEDNN and (precision != torch.float32 or weights > FEW_WEIGHTS)


def _onednn_product(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, relu: bool) -> torch.Tensor:
    """A b' (+ bias) (then ReLU)."""
    if not (b.is_contiguous() or b.t().is_contiguous()):
        b = b.contiguous()  # With some columns of a matrix oneDNN takes a thousand times as long.
    return cast(torch.Tensor, ONEDNN(a, b, bias, "relu" if relu else "none", [], ""))


def _padded(rows: torch.Tensor) -> torch.Tensor:
    """The rows of a chunk, followed by zeros up to a multiple of `_PAD`."""
    surplus = -rows.shape[0] % _PAD
    return rows if not surplus else torch.nn.functional.pad(rows, (0, 0, 0, surplus))
