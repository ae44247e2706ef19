"""Dense products in chunks: values, gradients, and the error of bfloat16."""

from __future__ import annotations

import pytest
import torch
from closeness import distance

from hyrt.machine.workers import Workers, working
from hyrt.nn.operators.product import linear


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_gradcheck(relu: bool, biased: bool) -> None:
    x, weight, bias = (
        drawn(*shape, seed=seed, dtype=torch.float64).requires_grad_()
        for seed, shape in enumerate([(6, 3), (4, 3), (4,)])
    )
    inputs = (x, weight, bias) if biased else (x, weight)
    assert torch.autograd.gradcheck(lambda *t: linear(*t, relu=relu), inputs)


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


def test_only_what_is_asked_for_gets_a_gradient() -> None:
    x, weight = drawn(5, 3), drawn(2, 3).requires_grad_()
    linear(x, weight).sum().backward()
    assert x.grad is None
    assert weight.grad is not None
    x, weight = drawn(5, 3).requires_grad_(), drawn(2, 3)
    linear(x, weight).sum().backward()
    assert x.grad is not None


def test_a_strided_input_is_read_right() -> None:
    wide, weight = drawn(300, 8), drawn(4, 5, seed=1)
    assert torch.equal(linear(wide[:, 1:6], weight), linear(wide[:, 1:6].contiguous(), weight))
    assert torch.equal(linear(drawn(5, 300).t(), weight), linear(drawn(5, 300).t().contiguous(), weight))


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


@pytest.mark.parametrize("low_precision", [False, True])
def test_any_number_of_workers_gives_equal_bits(low_precision: bool) -> None:
    results = []
    for count in (1, 2, 4):
        x, weight, bias = drawn(5000, 40).requires_grad_(), drawn(24, 40, seed=1), drawn(24, seed=2)
        weight, bias = weight.requires_grad_(), bias.requires_grad_()
        team = Workers(count, "hyrt.test")
        with working(team):
            out = linear(x, weight, bias, relu=True, low_precision=low_precision)
            out.square().sum().backward()
        team.close()
        results.append([out.detach(), x.grad, weight.grad, bias.grad])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))  # type: ignore[arg-type]


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match=r"x has shape \(5, 4\) and the weight \(3, 7\)"):
        linear(torch.zeros(5, 4), torch.zeros(3, 7))
    with pytest.raises(ValueError, match=r"the bias has shape \(2,\)"):
        linear(torch.zeros(5, 4), torch.zeros(3, 4), torch.zeros(2))
    with pytest.raises(ValueError, match="give equal dtypes"):
        linear(torch.zeros(5, 4), torch.zeros(3, 4).double())
