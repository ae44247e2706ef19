"""Results that do not belong to their mini-batch never reach the step."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hyrt.device import Rates, StepResult
from hyrt.device.check_result import check_result
from hyrt.errors import DeviceFaultError

NO_NUMBERS: list[Any] = [None, "1", True, 1j, [1.0], torch.tensor(1.0), np.ones(3)]
PARAMETERS = [torch.zeros(3, 2), torch.zeros(2)]
COUNTS = ("correct", "targets")
BATCH: Any = SimpleNamespace(num_losses=3, normalizer=3.0)
GOOD = StepResult(
    loss_sum=1.0,
    counts={"correct": 1, "targets": 3},
    normalizer=3.0,
    gradients=[torch.ones(3, 2), torch.ones(2)],
)


def test_a_good_one_passes() -> None:
    check_result("npu:0", GOOD, BATCH, PARAMETERS, COUNTS)
    empty = StepResult.empty(0.0)
    check_result("npu:0", empty, SimpleNamespace(num_losses=0, normalizer=0.0), PARAMETERS, COUNTS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (None, "NoneType"),
        (
            replace(GOOD, counts={"targets": 3}),
            "counted targets, but the objective counts correct, targets",
        ),
        (replace(GOOD, counts={}), "counted nothing, but"),
        (replace(GOOD, counts={**GOOD.counts, "hello": 3}), "counted correct, targets, hello, but"),
        (replace(GOOD, counts={"correct": 1, "targets": 4}), "4 targets in a mini-batch of 3"),
        (replace(GOOD, normalizer=6.0), "normalizer 6"),
        (replace(GOOD, normalizer=float("nan")), "normalizer nan"),
        (replace(GOOD, gradients=[torch.ones(3, 2)]), "1 gradients for 2 parameters"),
        (
            replace(GOOD, gradients=[torch.ones(1), torch.ones(2)]),
            r"gradient 0 has shape \(1,\), but its parameter has shape \(3, 2\)",
        ),
        (replace(GOOD, gradients=[torch.ones(3, 2), None]), "gradient 1 is NoneType"),
        (replace(GOOD, gradients=[torch.ones(3, 2, dtype=torch.float64), torch.ones(2)]), "float64"),
        (replace(GOOD, gradients=[torch.ones(3, 2).to_sparse(), torch.ones(2)]), "gradient 0 is .* not "),
        (replace(GOOD, gradients=[np.ones((3, 2)), torch.ones(2)]), "gradient 0 is ndarray"),
        *((replace(GOOD, loss_sum=value), "as loss_sum, not a number") for value in NO_NUMBERS),
        *((replace(GOOD, normalizer=value), "as normalizer, not a number") for value in NO_NUMBERS),
        *((replace(GOOD, seconds=value), "as seconds") for value in (None, 1.0, [1.0], "1 s")),
        *(
            (replace(GOOD, seconds={"propagate": value}), r"as seconds\['propagate'\]")
            for value in NO_NUMBERS
        ),
        *((replace(GOOD, counts=value), "as counts") for value in (None, 3, [1, 3], "3")),
        *((replace(GOOD, counts={"correct": value, "targets": 3}), "as counts") for value in NO_NUMBERS),
        *((replace(GOOD, gradients=value), "as gradients") for value in (None, 1.0, {}, torch.ones(2))),
    ],
    ids=repr,
)
def test_a_wrong_one_is_a_fault_with_the_devices_name(result: Any, says: str) -> None:
    with pytest.raises(DeviceFaultError, match=f"npu:0: .*{says}.*: update or fix its backend") as caught:
        check_result("npu:0", result, BATCH, PARAMETERS, COUNTS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", [None, 3, b"measured", object()])
def test_rates_say_in_words_where_they_are_from(source: Any) -> None:
    with pytest.raises(ValueError, match=r"^rates: source must be a string such as 'assumed', got "):
        Rates(macs_per_s=1.0, memory_bytes_per_s=1.0, link_bytes_per_s=1.0, source=source)
