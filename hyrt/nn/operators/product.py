"""Dense products of tall matrices, in chunks of rows that stay in cache.

Each chunk is multiplied by one thread of the stage's team, so a bias, a ReLU and its derivative are applied
while the rows are in cache, and the result does not depend on the number of threads. Weight gradients are
summed chunk by chunk in a fixed order.

oneDNN's kernels are used where torch has them: on processors for which MKL has no tuned path they are about
twice as fast at equal (fp32) precision.
"""

from __future__ import annotations

from typing import Any, cast

import torch

from hyrt.machine.workers import current_workers
from hyrt.nn.operators.result_memory import empty
from hyrt.nn.tensor_operators.tensor_ops import linear_tensors

_GRAIN = 1024


def _onednn() -> Any:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)


_LINEAR = _onednn()
# Without the processor's bfloat16 instructions oneDNN refuses; torch's own product then is slow but right.
_HAS_BF16 = _LINEAR is not None and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())

# oneDNN compiles and keeps a kernel for every shape it meets: without padding, the last chunk of every step
# would leave one behind.
_PAD = 128


def _times_transposed(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None, relu: bool = False
) -> torch.Tensor:
    """A b' (+ bias) (then ReLU) for one chunk of rows."""
    if _LINEAR is not None and (a.dtype == torch.float32 or (a.dtype == torch.bfloat16 and _HAS_BF16)):
        return cast(torch.Tensor, _LINEAR(a, b, bias, "relu" if relu else "none", [], ""))
    out = torch.nn.functional.linear(a, b, bias)
    return out.relu_() if relu else out


def _padded(rows: torch.Tensor) -> torch.Tensor:
    """The rows of a chunk, followed by zeros up to a multiple of `_PAD`."""
    surplus = -len(rows) % _PAD
    return rows if not surplus else torch.nn.functional.pad(rows, (0, 0, 0, surplus))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        relu: bool,
        low_precision: bool,
    ) -> torch.Tensor:
        out = empty((len(x), len(weight)), x)
        narrow = torch.bfloat16 if low_precision else x.dtype
        w = weight.detach().to(narrow)
        b = None if bias is None else bias.detach().to(narrow)

        def multiply(start: int, stop: int) -> None:
            with torch.no_grad():
                rows = _padded(x[start:stop].to(narrow))
                out[start:stop] = _times_transposed(rows, w, b, relu)[: stop - start]

        current_workers().run(multiply, len(x), _GRAIN)
        ctx.save_for_backward(x, weight, out if relu else None)
        ctx.has_bias = bias is not None
        ctx.narrow = narrow
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, out = ctx.saved_tensors
        narrow = ctx.narrow
        grad = grad.detach().contiguous()
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        chunks = -(-len(x) // _GRAIN)
        x_grad = empty(tuple(x.shape), x) if needs_x else None
        turned_parts = empty((chunks, x.shape[1], len(weight)), weight) if needs_weight else None
        bias_parts = weight.new_empty(chunks, len(weight)) if ctx.has_bias else None
        turned_weight = weight.detach().t().to(narrow).contiguous() if needs_x else None

        def multiply(start: int, stop: int) -> None:
            chunk = start // _GRAIN
            with torch.no_grad():
                g = grad[start:stop]
                if out is not None:
                    g = torch.ops.aten.threshold_backward(g, out[start:stop], 0)
                if bias_parts is not None:
                    torch.sum(g, 0, out=bias_parts[chunk])
                g = _padded(g.to(narrow))
                if x_grad is not None and turned_weight is not None:
                    x_grad[start:stop] = _times_transposed(g, turned_weight)[: stop - start]
                if turned_parts is not None:
                    # x' g rather than g' x: the input is the narrower one to turn, and it is turned in cache.
                    turned_x = _padded(x[start:stop].to(narrow)).t().contiguous()
                    turned_parts[chunk] = _times_transposed(turned_x, g.t())

        current_workers().run(multiply, len(x), _GRAIN)
        return (
            x_grad,
            None if turned_parts is None else turned_parts.sum(0).t().contiguous(),
            None if bias_parts is None else bias_parts.sum(0),
            None,
            None,
        )


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    relu: bool = False,
    low_precision: bool = False,
) -> torch.Tensor:
    """Multiply rows by a transposed weight and add a bias, optionally through a ReLU.

    Parameters
    ----------
    x
        [n, in] float32 or float64.
    weight
        [out, in].
    bias
        [out] or None.
    relu
        Apply a ReLU to the result.
    low_precision
        Multiply in bfloat16 (and accumulate in float32 within a product); weights, gradients and results keep
        their dtype.

    Returns
    -------
    [n, out].

    Raises
    ------
    ValueError
        If the shapes or dtypes of x, weight and bias do not go together.
    """
    if x.ndim != 2 or weight.ndim != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(
            f"x has shape {tuple(x.shape)} and the weight {tuple(weight.shape)}: x must be [n, in] for "
            "a weight [out, in]"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"the bias has shape {tuple(bias.shape)}, but the weight has {len(weight)} rows: give a "
            f"bias of shape [{len(weight)}]"
        )
    if x.dtype != weight.dtype or (bias is not None and bias.dtype != weight.dtype):
        raise ValueError(
            f"x is {x.dtype}, the weight {weight.dtype}, the bias {None if bias is None else bias.dtype}: "
            "give equal dtypes"
        )
    if x.device.type != "cpu":
        return linear_tensors(x, weight, bias, relu=relu, low_precision=low_precision)
    return cast(torch.Tensor, _Linear.apply(x, weight, bias, relu, low_precision))  # type: ignore[no-untyped-call]
