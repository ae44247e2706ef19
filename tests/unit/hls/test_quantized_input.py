"""Feature rows with smaller values in the kernels, against the same rows widened by NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from golden import GOLDEN_ARENA, random_task
from hyrt_hls.task_layout import ROW_CODES, Task, encode_task
from hyrt_perfmodel.fpga_design import LANES, row_words
from simulators import assert_as_reference, needs_compiler, simulator
from unit.hls.task_reference import dropout_factors

DTYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(np.uint16), "int8": np.dtype(np.int8)}


def codes_and_numbers(name: str, shape: tuple[int, int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Any codes of a format that are finite, and what they are."""
    random = np.random.default_rng(seed)
    if name == "int8":
        codes = random.integers(-128, 128, shape).astype(np.int8)
        return codes, codes.astype(np.float32)
    numbers = random.standard_normal(shape) * 10.0 ** random.integers(-7, 3, shape)
    if name == "float16":
        halves = numbers.astype(np.float16)
        return halves, halves.astype(np.float32)
    bits = numbers.astype(np.float32).view(np.uint32) >> 16
    return bits.astype(np.uint16), (bits << 16).view(np.float32)


def narrow(task: Task, name: str, seed: int = 0) -> tuple[Task, Task]:
    """A task whose features are codes, and the one that has them as float32."""
    header, dtype = task.header, DTYPES[name]
    codes, numbers = codes_and_numbers(name, (header.num_sources, header.in_width), seed)
    words = row_words(header.in_width, dtype.itemsize)
    packed = np.zeros((header.num_sources, words * LANES), np.int32)
    packed.view(dtype)[:, : header.in_width] = codes
    wide = np.zeros_like(task.features)
    wide[:, : header.in_width] = numbers
    described = encode_task(replace(header, row_codes=ROW_CODES[name]), task.records)
    return replace(task, features=packed, task=described), replace(task, features=wide)


@needs_compiler
@pytest.mark.parametrize("name", DTYPES)
# Rows that end within a word of memory, at its end, and in the middle of a chunk.
@pytest.mark.parametrize("width", [7, 64, 85])
def test_codes_are_widened_before_they_are_added(name: str, width: int) -> None:
    task = random_task(3, widths=[width, 24, 5], counts=[23, 12, 6], parts=[2, 1], rates=[0.3, 0.0, 0.0])
    coded, wide = narrow(task, name)
    assert (dropout_factors(task.header.dropout, task.vertices, width) == 0).any()
    found, expected = simulator(4).train(coded), simulator(4).train(wide)
    np.testing.assert_array_equal(found.scores, expected.scores)
    np.testing.assert_array_equal(found.gradients, expected.gradients)
    assert found.loss_sum == expected.loss_sum
    if name != "int8":
        assert_as_reference(found, wide)
    words = row_words(width, DTYPES[name].itemsize)
    assert found.counts.rows_read == expected.counts.rows_read
    assert found.counts.feature_words_read == words * found.counts.rows_read


@needs_compiler
def test_every_half_is_what_it_is() -> None:
    """All finite ones, those below the normal ones too: one row each of 512, times one."""
    halves = np.arange(65536, dtype=np.uint16)
    halves = halves[(halves & 0x7C00) != 0x7C00].reshape(-1, 496)
    task = random_task(1, widths=[496, 16], counts=[len(halves), 8], density=0.3)
    coded, wide = narrow(task, "float16")
    coded.features.view(np.uint16)[:, :496] = halves
    wide.features[:, :496] = halves.view(np.float16)
    found, expected = simulator(8).train(coded), simulator(8).train(wide)
    np.testing.assert_array_equal(found.scores, expected.scores)
    np.testing.assert_array_equal(found.gradients, expected.gradients)


def test_tasks_with_codes_are_checked() -> None:
    coded, wide = narrow(random_task(3, widths=[40, 5], counts=[20, 6]), "int8")
    coded.check(GOLDEN_ARENA, 4)
    with pytest.raises(
        ValueError, match=r"features is int32 \(20, 16\), but the description expects .*float32"
    ):
        replace(coded, task=wide.task).check(GOLDEN_ARENA, 4)
    wrong = encode_task(replace(coded.header, row_codes=4), coded.records)
    with pytest.raises(ValueError, match="row_codes must be from 0 to 3, got 4"):
        replace(coded, task=wrong).check(GOLDEN_ARENA, 4)
