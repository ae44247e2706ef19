"""Checkpoints: exact round trips, every damage found, nothing lost at any failing or killed write."""

from __future__ import annotations

import copy
import errno
import math
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from hyrt.errors import CheckpointError
from hyrt.training.checkpoint import (
    load_checkpoint,
    load_newest_checkpoint,
    save_checkpoint,
)

DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)


def assert_same(left: Any, right: Any) -> None:
    """Equal in type and value, deeply; floats and tensors bit by bit."""
    if isinstance(right, torch.Tensor):
        assert isinstance(left, torch.Tensor)
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        as_bytes = [t.contiguous().reshape(-1).view(torch.uint8) for t in (left, right)]
        assert torch.equal(*as_bytes)
    elif isinstance(right, dict):
        assert type(left) is dict
        assert list(left) == list(right)
        assert [type(key) for key in left] == [type(key) for key in right]
        for key in right:
            assert_same(left[key], right[key])
    elif isinstance(right, list | tuple):
        assert type(left) is type(right)
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    elif isinstance(right, float):
        assert type(left) is float
        assert left.hex() == right.hex()
    else:
        assert type(left) is type(right)
        assert left == right


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    dtype = draw(st.sampled_from(DTYPES))
    values = torch.tensor(draw(st.lists(st.integers(0, 100), min_size=64, max_size=64)), dtype=dtype)
    return values[: math.prod(shape)].reshape(shape)


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | tensors()
states = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    state=st.dictionaries(st.text(max_size=4) | st.integers(), states, max_size=4),
    step=st.integers(0, 10**10),
)
def test_any_state_comes_back_equal(
    tmp_path_factory: pytest.TempPathFactory, state: dict[str, Any], step: int
) -> None:
    folder = tmp_path_factory.mktemp("checkpoints")
    before = copy.deepcopy(state)
    path = save_checkpoint(folder, step, state, keep=1)
    loaded = load_checkpoint(path)
    assert (loaded.step, loaded.path) == (step, path)
    assert_same(loaded.state, state)
    assert_same(state, before)


def test_awkward_names_and_values(tmp_path: Path) -> None:
    state = {
        "__metadata__": torch.ones(2),
        "a": {"b": torch.zeros(1), 0: torch.ones(1), "0": torch.full((1,), 2.0)},
        "a.b": torch.full((1,), 3.0),
        "\ud800": torch.ones(1),
        "numbers": [math.inf, -math.inf, 5e-324, -0.0, 0.1 + 0.2, 2**80, True, 1],
        "text": "Zürich \x00 \ud800 ◀",
    }
    loaded = load_checkpoint(save_checkpoint(tmp_path, 1, state, keep=1))
    assert_same(loaded.state, state)


def test_nan_comes_back(tmp_path: Path) -> None:
    loaded = load_checkpoint(save_checkpoint(tmp_path, 1, {"x": math.nan}, keep=1))
    assert math.isnan(loaded.state["x"])


def test_views_shared_storage_and_parameters(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    state = {"all": base, "column": base[:, 2], "transposed": base.t(), "again": base, "odd": base[1:, ::2]}
    loaded = load_checkpoint(save_checkpoint(tmp_path, 3, state, keep=1)).state
    assert_same(loaded, state)
    loaded["all"].zero_()
    assert loaded["again"].sum() == base.sum()
    parameter = torch.nn.Parameter(torch.randn(3))
    loaded = load_checkpoint(save_checkpoint(tmp_path, 4, {"w": parameter}, keep=1)).state
    assert_same(loaded["w"], parameter.detach())


@pytest.mark.parametrize("name", ["Adam", "SGD", "RMSprop", "Adagrad", "NAdam"])
def test_an_optimizer_continues_bit_equal(tmp_path: Path, name: str) -> None:
    def make() -> tuple[torch.nn.Linear, torch.optim.Optimizer, torch.Generator]:
        torch.manual_seed(1)
        model = torch.nn.Linear(5, 3)
        return (
            model,
            getattr(torch.optim, name)(model.parameters(), lr=0.01),
            torch.Generator().manual_seed(7),
        )

    def train(model: torch.nn.Linear, optimizer: torch.optim.Optimizer, generator: torch.Generator) -> None:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 5, generator=generator)).square().sum().backward()
            optimizer.step()

    through = make()
    train(*through)
    model, optimizer, generator = through
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "generator": generator.get_state(),
    }
    path = save_checkpoint(tmp_path, 4, state, keep=1)
    train(*through)
    resumed = make()
    saved = load_checkpoint(path).state
    resumed[0].load_state_dict(saved["model"])
    resumed[1].load_state_dict(saved["optimizer"])
    resumed[2].set_state(saved["generator"])
    train(*resumed)
    assert_same(dict(resumed[0].state_dict()), dict(through[0].state_dict()))


def test_other_safetensors_readers_can_read_the_weights(tmp_path: Path) -> None:
    weight = torch.randn(3, 2)
    path = save_checkpoint(tmp_path, 1, {"model": {"layers.0.weight": weight}}, keep=1)
    with safe_open(path, framework="pt") as file:
        assert list(file.keys()) == ["model.layers.0.weight"]
        assert torch.equal(file.get_tensor("model.layers.0.weight"), weight)


def test_same_state_gives_same_file(tmp_path: Path) -> None:
    state = {"a": torch.arange(5), "b": 1.5, "c": {"d": torch.ones(2, 2)}}
    names = {save_checkpoint(tmp_path / str(i), 9, state, keep=1).name for i in range(3)}
    assert len(names) == 1


@pytest.mark.parametrize(
    ("state", "where"),
    [
        ({"a": {"b": {1, 2}}}, r"state\.a\.b: .* set"),
        ({"a": [object()]}, r"state\.a\.0: .* object"),
        ({"a": {1.5: 2}}, r"state\.a: key 1\.5"),
        ({True: 2}, r"state: key True"),
        ({"a": torch.zeros(2, dtype=torch.complex64)}, r"state\.a: .*complex64"),
        ({"a": torch.eye(2).to_sparse()}, r"state\.a: .*sparse"),
    ],
)
def test_what_cannot_be_saved_is_named(tmp_path: Path, state: dict[Any, Any], where: str) -> None:
    with pytest.raises(TypeError, match=where):
        save_checkpoint(tmp_path, 1, state, keep=1)
    assert list(tmp_path.iterdir()) == []


def a_state(step: int, size: int = 4000) -> dict[str, Any]:
    return {"step": step, "w": torch.full((size,), float(step)), "lr": 0.1 * step}


def steps_in(folder: Path) -> list[int]:
    return sorted(int(path.name.split(".")[0].removeprefix("step-")) for path in folder.iterdir())


def no_warning(text: str) -> None:
    raise AssertionError(f"unexpected warning: {text}")


def test_keeps_the_newest(tmp_path: Path) -> None:
    for step in range(1, 11):
        save_checkpoint(tmp_path, step, a_state(step), keep=3)
    assert steps_in(tmp_path) == [8, 9, 10]
    assert load_newest_checkpoint(tmp_path, no_warning).step == 10


def test_keep_one(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, a_state(step), keep=1)
    assert steps_in(tmp_path) == [3]
    with pytest.raises(ValueError, match="keep must be at least 1, got 0"):
        save_checkpoint(tmp_path, 4, a_state(4), keep=0)


def test_same_step_twice(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 5, {"x": 1}, keep=3)
    save_checkpoint(tmp_path, 5, {"x": 2}, keep=3)
    assert steps_in(tmp_path) == [5]
    assert load_newest_checkpoint(tmp_path, no_warning).state == {"x": 2}


def test_a_run_resumed_from_before_a_damaged_one_keeps_what_it_saves(tmp_path: Path) -> None:
    paths = [save_checkpoint(tmp_path, step, a_state(step), keep=1) for step in (800,)]
    paths[0].write_bytes(b"damaged")
    save_checkpoint(tmp_path, 500, a_state(500), keep=1)
    save_checkpoint(tmp_path, 600, a_state(600), keep=1)
    assert steps_in(tmp_path) == [600, 800]
    warnings: list[str] = []
    assert load_newest_checkpoint(tmp_path, warnings.append).step == 600
    assert len(warnings) == 1
    save_checkpoint(tmp_path, 800, a_state(800), keep=1)
    assert steps_in(tmp_path) == [800]
    assert load_newest_checkpoint(tmp_path, no_warning).step == 800


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    others = ["notes.txt", "step-1.safetensors", ".step-1.partial", "step-00000001.abc.safetensors"]
    for name in others:
        (tmp_path / name).write_text("mine")
    leftover = tmp_path / f".step-00000007.{'0' * 32}.safetensors.123.partial"
    leftover.write_text("half")
    path = save_checkpoint(tmp_path, 1, a_state(1), keep=1)
    assert {file.name for file in tmp_path.iterdir()} == {*others, path.name}


def test_every_truncation_is_found(tmp_path: Path) -> None:
    old = save_checkpoint(tmp_path, 1, a_state(1), keep=2)
    new = save_checkpoint(tmp_path, 2, a_state(2, 20_000), keep=2)
    whole = new.read_bytes()
    assert len(whole) > 80_000
    for size in [*range(0, len(whole), 4096), 1, 7, 8, 9, len(whole) - 1]:
        new.write_bytes(whole[:size])
        warnings: list[str] = []
        assert load_newest_checkpoint(tmp_path, warnings.append).path == old
        assert len(warnings) == 1
        assert new.name in warnings[0]
        assert "damaged" in warnings[0]
    new.write_bytes(whole + b"\0")
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(new)
    new.write_bytes(whole)
    assert load_newest_checkpoint(tmp_path, no_warning).path == new


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_flipped_byte_is_found(tmp_path: Path, data: st.DataObject) -> None:
    path = save_checkpoint(tmp_path, 2, a_state(2, 50), keep=1)
    damaged = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(damaged) - 1))
    damaged[position] ^= data.draw(st.integers(1, 255))
    path.write_bytes(damaged)
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(path)
    path.unlink()


def test_none_left(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        load_newest_checkpoint(tmp_path, no_warning)
    with pytest.raises(CheckpointError, match="No such file"):
        load_newest_checkpoint(tmp_path / "missing", no_warning)
    for step in (1, 2):
        save_checkpoint(tmp_path, step, a_state(step), keep=2).write_bytes(b"")
    warnings: list[str] = []
    with pytest.raises(CheckpointError, match=r"2 tried.*damaged"):
        load_newest_checkpoint(tmp_path, warnings.append)
    assert len(warnings) == 1


def test_files_that_are_no_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not the name of a checkpoint"):
        load_checkpoint(tmp_path / "weights.safetensors")
    path = save_checkpoint(tmp_path, 7, a_state(7), keep=1)
    renamed = path.rename(path.with_name(path.name.replace("step-00000007", "step-00000008")))
    with pytest.raises(CheckpointError, match="contains step 7"):
        load_checkpoint(renamed)
    with pytest.raises(CheckpointError, match="No such file"):
        load_checkpoint(path)


def fail_at(monkeypatch: pytest.MonkeyPatch, name: str, call: int, error: BaseException) -> None:
    """Make the given call (from 0) of os.<name> raise."""
    real = getattr(os, name)
    calls = iter(range(1000))

    def failing(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == call:
            raise error
        return real(*args, **kwargs)

    monkeypatch.setattr(os, name, failing)


FAILURES = [OSError(errno.ENOSPC, "No space left on device"), OSError(errno.EIO, "Input/output error")]


@pytest.mark.parametrize("error", [*FAILURES, KeyboardInterrupt(), MemoryError()], ids=repr)
@pytest.mark.parametrize(("name", "call"), [("fsync", 0), ("replace", 0), ("fsync", 1), ("open", 0)])
def test_every_failing_step_leaves_earlier_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, call: int, error: BaseException
) -> None:
    earlier = {save_checkpoint(tmp_path, step, a_state(step), keep=2) for step in (1, 2)}
    with monkeypatch.context() as patch:
        fail_at(patch, name, call, error)
        expected = CheckpointError if isinstance(error, OSError) else type(error)
        with pytest.raises(expected) as caught:
            save_checkpoint(tmp_path, 3, a_state(3), keep=2)
    if isinstance(error, OSError):
        assert str(tmp_path) in str(caught.value)
        assert str(error.strerror) in str(caught.value)
        remedy = (
            "Earlier checkpoints are untouched. Free space or make the folder writable, then resume the run."
        )
        assert remedy in str(caught.value)
    left = set(tmp_path.iterdir())
    assert earlier <= left
    assert not [path for path in left if path.name.endswith(".partial")]
    # Only where the folder's fsync failed has the new file its name already, and then it is whole.
    assert len(left) == 2 + (name in ("fsync", "open") and (name, call) != ("fsync", 0))
    assert load_newest_checkpoint(tmp_path, no_warning).step in (2, 3)
    save_checkpoint(tmp_path, 4, a_state(4), keep=1)
    assert steps_in(tmp_path) == [4]


@pytest.mark.parametrize("limit", [0, 1, 4096, 12_000])
def test_a_full_disk(tmp_path: Path, limit: int) -> None:
    old = save_checkpoint(tmp_path, 1, a_state(1), keep=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(CheckpointError, match="File too large"):
            save_checkpoint(tmp_path, 2, a_state(2), keep=1)
        with pytest.raises(CheckpointError, match=r"There is no earlier one\. Free space .* restart the run"):
            save_checkpoint(tmp_path / "new", 1, a_state(1), keep=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        (tmp_path / "new").rmdir()
    assert list(tmp_path.iterdir()) == [old]
    assert load_newest_checkpoint(tmp_path, no_warning).step == 1


def test_an_old_one_that_cannot_be_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = save_checkpoint(tmp_path, 1, a_state(1), keep=1)
    with monkeypatch.context() as patch:
        fail_at(patch, "unlink", 0, OSError(errno.EACCES, "Permission denied"))
        with pytest.raises(CheckpointError, match=f"{old.name}.*step 2 is saved.*Permission denied"):
            save_checkpoint(tmp_path, 2, a_state(2), keep=1)
    assert load_newest_checkpoint(tmp_path, no_warning).step == 2


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="could not be written"):
        save_checkpoint(tmp_path / "file", 1, a_state(1), keep=1)


# Each turn's writer is forked from a process that has imported what it needs.
WRITERS = """
import os, sys, torch
from pathlib import Path
from hyrt.training.checkpoint import load_newest_checkpoint, save_checkpoint
folder = Path(sys.argv[1])
while sys.stdin.readline():
    writer = os.fork()
    if writer:
        print("ended", os.waitstatus_to_exitcode(os.waitpid(writer, 0)[1]), flush=True)
        continue
    step = load_newest_checkpoint(folder, lambda text: sys.exit(text)).step
    print(os.getpid(), flush=True)
    while True:
        step += 1
        save_checkpoint(folder, step, {"step": step, "w": torch.full((300_000,), float(step))}, keep=2)
        print("saved", flush=True)
"""


def test_killed_writers_leave_a_whole_newest_checkpoint(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 0, {"step": 0, "w": torch.zeros(300_000)}, keep=2)
    last = 0
    command = [sys.executable, "-c", WRITERS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writers:
        assert writers.stdin is not None
        assert writers.stdout is not None
        for turn in range(4):
            writers.stdin.write("\n")
            writers.stdin.flush()
            writer = int(writers.stdout.readline())
            assert writers.stdout.readline() == "saved\n"
            time.sleep(0.017 * turn)
            os.kill(writer, signal.SIGKILL)
            while (said := writers.stdout.readline()) == "saved\n":
                pass
            assert said == f"ended {-signal.SIGKILL:d}\n"
            newest = load_newest_checkpoint(tmp_path, no_warning)
            assert newest.step >= last
            assert newest.state["step"] == newest.step
            assert torch.equal(newest.state["w"], torch.full((300_000,), float(newest.step)))
            last = newest.step
    assert last > 0
    save_checkpoint(tmp_path, last + 1, a_state(last + 1), keep=1)
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".partial")]
    assert len(steps_in(tmp_path)) <= 2
