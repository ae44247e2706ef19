"""What a user is told whose module does what training cannot use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor, nn

import hyrt
from hyrt.errors import HyrtError

DATA = "synthetic:tiny,vertices=300,edges=1500"
SAMPLED = {"sampler": {"fanout": [5]}, "data": {"batch_size": 64}}
FULL = {"sampler": {"kind": "full"}}


class Odd(nn.Module):
    """A linear layer on the targets, and what a test does with its scores."""

    def __init__(self, change: Callable[[Odd, Tensor], Any], width: int = 16) -> None:
        super().__init__()
        self.layer = nn.Linear(width, 4)
        self.change = change
        self.kept: Tensor | None = None

    def forward(self, blocks: Any, x: Tensor) -> Any:
        return self.change(self, self.layer(x[: blocks[-1].num_dst]))


class NoBlocks(Odd):
    def forward(self, x: Tensor) -> Any:  # type: ignore[override]
        return self.layer(x)


def kept(odd: Odd, scores: Tensor) -> Tensor:
    odd.kept = scores.mean(0) if odd.kept is None else odd.kept + scores.mean(0)
    return scores + odd.kept


def sized(odd: Odd, scores: Tensor) -> Tensor:
    before, odd.kept = odd.kept, scores.detach()
    return scores if before is None else scores + before


def halved(odd: Odd, scores: Tensor) -> Tensor:
    odd.layer.weight.mul_(0.5)
    return scores


def overwritten(odd: Odd, scores: Tensor) -> Tensor:
    squared = scores.exp()
    result = squared * squared
    squared.add_(1)
    return result


@pytest.mark.parametrize("settings", [SAMPLED, FULL], ids=["sampled", "full"])
@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Odd(lambda odd, scores: None), "Odd returned nothing: return one floating-point tensor"),
        (Odd(lambda odd, scores: (scores, scores)), "Odd returned a tuple: return one"),
        (Odd(lambda odd, scores: scores.long()), "Odd returned torch.int64 of shape"),
        (Odd(lambda odd, scores: scores.to_sparse()), "layout torch.sparse_coo: return one"),
        (
            Odd(lambda odd, scores: scores.to("meta")),
            "scores on meta, but its parameters are on cpu",
        ),
        (Odd(lambda odd, scores: scores.detach()), "Odd returned scores without a gradient"),
        (Odd(kept), r"Odd failed \(.*\): keep only tensor.detach"),
        (Odd(halved), r"Odd failed at test_unusual_modules.py:\d+ \(.*\): leave parameter changes"),
        (
            Odd(overwritten),
            r"Odd failed \(.*\): create a new tensor .*in-place operation.* overwrites values",
        ),
        (
            Odd(lambda odd, scores: scores).double(),
            r"Odd failed at .* \(.*\): use one dtype for parameters and rows",
        ),
        (Odd(lambda odd, scores: scores, width=7), "Odd .*set layer widths that match the data"),
        (
            Odd(lambda odd, scores: scores * (1 // (scores.ndim - 2))),
            r"Odd failed at test_unusual_modules.py:\d+ \(ZeroDivisionError: .*\): fix the module there",
        ),
        (NoBlocks(lambda odd, scores: scores), r"NoBlocks failed.*def forward\(self, blocks, x\)"),
    ],
)
def test_the_user_is_told_what_is_wrong(model: nn.Module, said: str, settings: dict[str, Any]) -> None:
    model = type(model)(model.change, model.layer.in_features).to(model.layer.weight.dtype)
    with pytest.raises(HyrtError, match=said) as caught:
        hyrt.train(DATA, model=model, train={"epochs": 3}, **settings)
    assert "RuntimeError: RuntimeError" not in str(caught.value)


def test_a_tensor_that_is_kept_for_batches_of_another_size() -> None:
    with pytest.raises(HyrtError, match="keep no tensor between steps, because the number of rows differs"):
        hyrt.train(DATA, model=Odd(sized), train={"epochs": 3}, **SAMPLED)


def test_errors_of_other_causes_stay_as_they_are() -> None:
    def fail(odd: Odd, scores: Tensor) -> Tensor:
        raise RuntimeError("the driver is gone")

    with pytest.raises(HyrtError, match="RuntimeError: the driver is gone") as caught:
        hyrt.train(DATA, model=Odd(fail), train={"epochs": 1}, **SAMPLED)
    assert not isinstance(caught.value.__cause__, hyrt.errors.UnsupportedModelError)
