"""Dense products in chunks: values, gradients, and the error of bfloat16."""

from __future__ import annotations

import pytest
import torch
from closeness import distance

from hyrt.nn.operators import blocked_matmul
from hyrt.nn.operators.blocked_matmul import add_bias, transpose_into
from hyrt.nn.operators.linear import linear, linear_backward, relu_backward
from hyrt.nn.torch_threads import torch_threads
from hyrt.runtime.workers import Workers, use_workers


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.fixture(params=["oneDNN", "MKL"], autouse=True)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Multiply with either library, whichever is the faster here."""
    by_onednn = blocked_matmul.ONEDNN_DTYPES
    if request.param == "MKL":
        monkeypatch.setattr(blocked_matmul, "ONEDNN_DTYPES", frozenset())
    elif blocked_matmul.ONEDNN is None:
        pytest.skip("this torch has no oneDNN")
    else:
        monkeypatch.setattr(blocked_matmul, "ONEDNN_DTYPES", by_onednn | {torch.float32})
        monkeypatch.setattr(blocked_matmul, "MKL_MAX_WEIGHTS", 0)
    return str(request.param)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_gradcheck(relu: bool, biased: bool) -> None:
    x, weight, bias = (
        drawn(*shape, seed=seed, dtype=torch.float64).requires_grad_()
        for seed, shape in enumerate([(6, 3), (4, 3), (4,)])
    )
    inputs = (x, weight, bias) if biased else (x, weight)
    assert torch.autograd.gradcheck(lambda *t: linear(*t, relu=relu), inputs)


@pytest.mark.bits
@pytest.mark.parametrize("rows", [0, 1, 127, 128, 1023, 1024, 1025, 2500])
@pytest.mark.parametrize("relu", [False, True])
def test_float32_is_float64_rounded_for_any_number_of_rows(rows: int, relu: bool) -> None:
    x, weight, bias = drawn(rows, 17).requires_grad_(), drawn(9, 17, seed=1), drawn(9, seed=2)
    weight, bias = weight.requires_grad_(), bias.requires_grad_()
    exact = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
    out = linear(x, weight, bias, relu=relu)
    expected = exact[0] @ exact[1].T + exact[2]
    # The ReLU of the reference opens where ours did: next to zero, rounding decides.
    expected = expected * (out.detach() > 0) if relu else expected
    assert distance(out, expected) < 1e-6
    direction = drawn(rows, 9, seed=3)
    out.backward(direction)
    expected.backward(direction.double())
    for mine, theirs in zip((x, weight, bias), exact, strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert distance(mine.grad, theirs.grad) < 2e-6


@pytest.mark.parametrize(("width", "made"), [(5, 40), (40, 5)])
def test_a_weight_gradient_is_right_whichever_side_is_narrow(width: int, made: int) -> None:
    x, weight = drawn(1300, width), drawn(made, width, seed=1).requires_grad_()
    direction = drawn(1300, made, seed=2)
    linear(x, weight).backward(direction)
    assert weight.grad is not None
    assert weight.grad.is_contiguous()
    assert distance(weight.grad, direction.double().T @ x.double()) < 2e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_masked_gradient_is_that_of_a_relu_with_its_sums(dtype: torch.dtype) -> None:
    grad, result = drawn(1000, 13, dtype=dtype), drawn(1000, 13, seed=1, dtype=dtype)
    result[3, 2], result[4], result[5, 1] = 0, 0, torch.nan
    out, sums = torch.full_like(grad, torch.nan), torch.full((13,), torch.nan, dtype=dtype)
    relu_backward(*(t.numpy() for t in (grad, result, out, sums)))
    assert torch.equal(out, torch.ops.aten.threshold_backward(grad, result, 0))
    exact = out.double().sum(0)
    assert (sums - exact).abs().max() < (1e-5 if dtype == torch.float32 else 1e-12)


def test_a_very_wide_product() -> None:
    x, weight = drawn(2, 1 << 17), drawn(3, 1 << 17, seed=1)
    expected = (x.double() @ weight.double().T).float()
    torch.testing.assert_close(linear(x, weight), expected, rtol=1e-4, atol=1e-2)


def test_only_what_is_asked_for_gets_a_gradient() -> None:
    x, weight = drawn(5, 3), drawn(2, 3).requires_grad_()
    linear(x, weight).sum().backward()
    assert x.grad is None
    assert weight.grad is not None
    x, weight = drawn(5, 3).requires_grad_(), drawn(2, 3)
    linear(x, weight).sum().backward()
    assert x.grad is not None


def test_a_strided_input_is_read_right() -> None:
    """Up to rounding: how rows lie may decide in which order a library adds up."""
    wide, weight = drawn(300, 8), drawn(4, 5, seed=1)
    for rows in (wide[:, 1:6], drawn(5, 300).t()):
        torch.testing.assert_close(linear(rows, weight), (rows.double() @ weight.double().T).float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("rows", "columns", "length"),
    [(0, 3, 128), (1, 1, 1), (16, 16, 16), (17, 33, 128), (40, 15, 64), (130, 48, 256)],
)
def test_a_turned_matrix_is_the_transpose_and_zeros(
    rows: int, columns: int, length: int, dtype: torch.dtype
) -> None:
    x = drawn(rows, columns, dtype=dtype)
    out = torch.full((columns, length), torch.nan, dtype=dtype)
    transpose_into(x.numpy(), out.numpy())
    assert torch.equal(out[:, :rows], x.t())
    assert not out[:, rows:].any()


@pytest.mark.parametrize("rows", [40, 2500])
def test_bfloat16_errs_by_its_rounding_only(rows: int) -> None:
    x, weight, bias = (
        drawn(rows, 64).requires_grad_(),
        drawn(32, 64, seed=1).requires_grad_(),
        drawn(32, seed=2).requires_grad_(),
    )
    # Half a unit in the last of 8 bits: once for each factor, once for the result; float32 sums add little.
    unit = 2.0**-9
    out = linear(x, weight, bias, low_precision=True)
    exact = x.detach().double() @ weight.detach().double().T + bias.detach().double()
    size = x.detach().abs().double() @ weight.detach().abs().double().T + bias.detach().abs().double()
    assert out.dtype == torch.float32
    off = (out.detach() - exact).abs()
    assert (off <= 3.1 * unit * size).all()
    assert float(off.max()) > 0.1 * unit, "these products were not rounded to bfloat16 at all"

    direction = drawn(rows, 32, seed=3)
    out.backward(direction)
    for tensor, exact_grad, size in (
        (
            x,
            direction.double() @ weight.detach().double(),
            direction.abs().double() @ weight.detach().abs().double(),
        ),
        (
            weight,
            direction.double().T @ x.detach().double(),
            direction.abs().double().T @ x.detach().abs().double(),
        ),
    ):
        assert tensor.dtype == torch.float32
        assert tensor.grad is not None
        assert tensor.grad.dtype == torch.float32
        assert ((tensor.grad - exact_grad).abs() <= 3.1 * unit * size).all()
    assert bias.grad is not None
    assert distance(bias.grad, direction.double().sum(0)) < 1e-6, (
        "a bias gradient is no product: it stays float32"
    )


@pytest.mark.bits
@pytest.mark.parametrize("low_precision", [False, True])
def test_any_number_of_workers_gives_equal_bits(low_precision: bool) -> None:
    results = []
    for count in (1, 2, 4):
        x, weight, bias = drawn(5000, 40).requires_grad_(), drawn(24, 40, seed=1), drawn(24, seed=2)
        weight, bias = weight.requires_grad_(), bias.requires_grad_()
        team = Workers(count, "hyrt.test")
        with use_workers(team):
            out = linear(x, weight, bias, relu=True, low_precision=low_precision)
            out.square().sum().backward()
        team.close()
        results.append([out.detach(), x.grad, weight.grad, bias.grad])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))  # type: ignore[arg-type]


@pytest.mark.bits
@pytest.mark.parametrize("count", [1, 3])
def test_torchs_own_threads_change_no_bit_and_stay_as_many(count: int) -> None:
    results = []
    for threads in (1, 2, 4):
        x, weight = drawn(3000, 100).requires_grad_(), drawn(256, 100, seed=1).requires_grad_()
        with torch_threads(threads), Workers(count, "hyrt.test") as team, use_workers(team):
            out = linear(x, weight)
            out.square().sum().backward()
            assert torch.get_num_threads() == threads
        results.append([out.detach(), x.grad, weight.grad])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))  # type: ignore[arg-type]


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match=r"x has shape \(5, 4\) and the weight has shape \(3, 7\)"):
        linear(torch.zeros(5, 4), torch.zeros(3, 7))
    with pytest.raises(ValueError, match=r"the bias has shape \(2,\)"):
        linear(torch.zeros(5, 4), torch.zeros(3, 4), torch.zeros(2))
    with pytest.raises(ValueError, match="use the same dtype"):
        linear(torch.zeros(5, 4), torch.zeros(3, 4).double())


def test_onednn_gets_no_columns_of_a_wider_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would read them a thousand times more slowly."""
    if blocked_matmul.ONEDNN is None:
        pytest.skip("torch has no oneDNN")
    by_onednn, dense = blocked_matmul.ONEDNN, []

    def product(a: torch.Tensor, b: torch.Tensor, *others: object) -> torch.Tensor:
        dense.append(b.is_contiguous() or b.t().is_contiguous())
        return by_onednn(a, b, *others)

    monkeypatch.setattr(blocked_matmul, "ONEDNN", product)
    monkeypatch.setattr(blocked_matmul, "ONEDNN_DTYPES", frozenset({torch.float32}))
    monkeypatch.setattr(blocked_matmul, "MKL_MAX_WEIGHTS", 0)
    rows, weight, out = torch.randn(7, 5), torch.randn(3, 9), torch.empty(7, 3)
    blocked_matmul.matmul(rows, weight[:, 4:].t(), out, precision=torch.float32)
    assert dense == [True]
    expected = rows.double() @ weight[:, 4:].double().t()
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


def test_small_matrices_are_never_onednn_s_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked_matmul, "ONEDNN_DTYPES", frozenset({torch.float32, torch.bfloat16}))
    monkeypatch.setattr(blocked_matmul, "MKL_MAX_WEIGHTS", 12)
    asked: list[tuple[int, int]] = []

    def product(a: torch.Tensor, b: torch.Tensor, *others: object) -> torch.Tensor:
        asked.append((len(b), b.shape[1]))
        return a @ b.t()

    monkeypatch.setattr(blocked_matmul, "ONEDNN", product)
    for wide, precision, num in ((4, torch.float32, 0), (5, torch.float32, 2), (4, torch.bfloat16, 2)):
        asked.clear()
        rows, grad, weight = drawn(6, wide), drawn(6, 3, seed=1), drawn(3, wide, seed=2)
        out, turned = torch.empty(6, 3), torch.empty(3, wide)
        blocked_matmul.matmul(rows, weight.to(precision).t(), out, precision=precision)
        blocked_matmul.matmul_transposed(rows, grad, turned, precision=precision)
        assert len(asked) == num
        bound = 1e-5 if precision == torch.float32 else 5e-2
        torch.testing.assert_close(out, rows @ weight.t(), rtol=bound, atol=bound)
        torch.testing.assert_close(turned, grad.t() @ rows, rtol=bound, atol=bound)


@pytest.mark.parametrize(
    ("vendor", "vectors", "has_mkl", "by_onednn"),
    [
        ("GenuineIntel", ["AVX-512", "AMX bf16"], True, set()),
        ("GenuineIntel", ["AVX2"], True, set()),
        ("AuthenticAMD", ["AVX2"], True, set()),
        # There MKL leaves the widest vectors unused.
        ("AuthenticAMD", ["AVX-512", "bf16"], True, {torch.float32}),
        (None, ["NEON", "bf16"], False, {torch.float32}),
        ("GenuineIntel", ["AVX2"], False, {torch.float32}),
    ],
)
@pytest.mark.parametrize("has_bf16", [False, True])
def test_the_library_is_the_fastest_of_the_processor(
    vendor: str | None,
    vectors: list[str],
    has_mkl: bool,
    by_onednn: set[torch.dtype],
    has_bf16: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocked_matmul, "processor_vendor", lambda: vendor)
    monkeypatch.setattr(blocked_matmul, "vector_instructions", lambda: vectors)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: has_mkl)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: has_bf16, raising=False)
    monkeypatch.setattr(blocked_matmul, "ONEDNN", object())
    assert set(blocked_matmul._onednn_dtypes()) == by_onednn | ({torch.bfloat16} if has_bf16 else set())
    monkeypatch.setattr(blocked_matmul, "ONEDNN", None)
    assert not set(blocked_matmul._onednn_dtypes())


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_a_gradient_is_added_to_what_is_there(precision: torch.dtype) -> None:
    x, weight, grad, there = (
        drawn(1500, 17),
        drawn(9, 17, seed=1),
        drawn(1500, 9, seed=2),
        drawn(1500, 17, seed=3),
    )
    x_grad = there.clone()
    of_weight, of_bias = linear_backward(x, weight, grad, precision=precision, x_grad=x_grad, accumulate=True)
    bound = 1e-6 if precision == torch.float32 else 1e-2
    assert distance(x_grad, there.double() + grad.double() @ weight.double()) < bound
    assert of_weight is not None
    assert distance(of_weight, grad.double().T @ x.double()) < bound
    assert of_bias is not None
    assert distance(of_bias, grad.double().sum(0)) < 1e-6


@pytest.mark.parametrize("relu", [False, True])
def test_a_bias_is_added_and_what_is_no_number_stays_so(relu: bool) -> None:
    rows, bias = drawn(5, 7), drawn(7, seed=1)
    rows[1, 2], rows[2, 3], rows[3, 4] = torch.nan, -bias[3], -torch.inf
    expected = (rows + bias).relu() if relu else rows + bias
    add_bias(rows.numpy(), bias.numpy(), relu)
    assert torch.equal(rows.nan_to_num(nan=7e7), expected.nan_to_num(nan=7e7))
