"""The file of a step that is under way: what is read is what was written, whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hyrt.errors import CheckpointError
from hyrt.fullgraph import step_checkpoint
from hyrt.fullgraph.step_checkpoint import StepCheckpointFile, StepPosition, write_step_checkpoint

matrices = hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=5))
names = st.text(st.characters(codec="utf-8", exclude_characters="/\\\0:"), min_size=1, max_size=8)


def position_of(**more: Any) -> StepPosition:
    return StepPosition(**{"plan": {"intervals": 3}, "number": 2, "columns": (1, 0), "num_passes": 5, **more})


@given(
    kept=st.dictionaries(names, matrices, max_size=3),
    losses=st.dictionaries(st.integers(0, 99), st.floats(), max_size=3),
    sums=st.lists(st.lists(hnp.arrays(np.float32, 3), max_size=2), max_size=2),
)
@settings(max_examples=30, deadline=None)
def test_what_is_read_is_what_was_written(
    tmp_path_factory: pytest.TempPathFactory,
    kept: dict[str, Any],
    losses: dict[int, float],
    sums: list[list[Any]],
) -> None:
    path = tmp_path_factory.mktemp("kept") / "step.npz"
    told = {q: (loss, {"correct": loss}) for q, loss in losses.items()}
    write_step_checkpoint(path, position_of(losses=told, sums=sums), kept, {"checkpoint": "a"})
    found = StepCheckpointFile.read(path)
    assert found.about == {"checkpoint": "a"}
    assert found.position.plan == {"intervals": 3}
    assert (found.position.number, found.position.columns, found.position.num_passes) == (2, [1, 0], 5)
    assert repr(found.position.losses) == repr(told)  # Also of numbers that are none.
    assert [len(each) for each in found.position.sums] == [len(each) for each in sums]
    for mine, of in zip(found.position.sums, sums, strict=True):
        assert [each.tobytes() for each in mine] == [each.tobytes() for each in of]
    assert found.matrices == {name: (matrix.shape, matrix.dtype) for name, matrix in kept.items()}
    for name, matrix in kept.items():
        out = np.empty_like(matrix)
        found.read_matrix(name, out)
        assert out.tobytes() == matrix.tobytes()
    assert [each.name for each in path.parent.iterdir()] == ["step.npz"]


def test_a_matrix_of_another_shape_is_refused(tmp_path: Path) -> None:
    write_step_checkpoint(tmp_path / "step.npz", position_of(), {"rows": np.ones((3, 2), np.float32)}, {})
    found = StepCheckpointFile.read(tmp_path / "step.npz")
    with pytest.raises(
        CheckpointError, match=r"rows is float32 \(3, 2\), but this step expects float32 \(2, 2\)"
    ):
        found.read_matrix("rows", np.empty((2, 2), np.float32))


@pytest.mark.parametrize("at", [0.2, 0.5, 0.9])
def test_one_changed_byte_and_a_lost_end_are_found(tmp_path: Path, at: float) -> None:
    path = tmp_path / "step.npz"
    write_step_checkpoint(path, position_of(), {"rows": np.arange(5000, dtype=np.float32)[:, None]}, {})
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[int(at * len(whole))] ^= 0x10
    for damaged in (bytes(changed), whole[: int(at * len(whole))], b""):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"step\.npz.*damaged"):
            StepCheckpointFile.read(path)


def test_nothing_is_left_where_it_cannot_be_written(tmp_path: Path) -> None:
    def full(operation: str) -> None:
        if operation == "fsync":
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_step_checkpoint(tmp_path / "step.npz", position_of(), {}, {}, full)
    assert not list(tmp_path.iterdir())
    with pytest.raises(CheckpointError, match="cannot be read"):
        StepCheckpointFile.read(tmp_path / "step.npz")


def test_any_changed_bit_is_found_or_changes_nothing(tmp_path: Path) -> None:
    """Also in what zipfile reads before any checksum: names, places, and how files are compressed."""
    path, rows = tmp_path / "step.npz", np.arange(6, dtype=np.float32).reshape(3, 2)
    write_step_checkpoint(
        path, position_of(sums=[[np.ones(2, np.float32)]]), {"rows": rows}, {"checkpoint": "a"}
    )
    whole, num_found = path.read_bytes(), 0
    for at in range(len(whole)):
        for bit in (0x01, 0x08):
            changed = bytearray(whole)
            changed[at] ^= bit
            path.write_bytes(changed)
            out = np.empty_like(rows)
            try:
                found = StepCheckpointFile.read(path)
                found.read_matrix("rows", out)
            except CheckpointError:
                num_found += 1
                continue
            assert (found.about, found.position.plan) == ({"checkpoint": "a"}, {"intervals": 3})
            assert (found.position.number, found.position.columns) == (2, [1, 0])
            assert found.position.sums[0][0].tolist() == [1, 1]
            assert out.tobytes() == rows.tobytes()
    # What is left are times, versions and the like.
    assert num_found > len(whole)


def test_whoever_watches_hears_of_each_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of hours' work takes minutes, in which nothing else moves."""
    monkeypatch.setattr(step_checkpoint, "_PIECE", 64)
    monkeypatch.setattr(step_checkpoint, "_SYNCED", 256)
    moves: list[int] = []
    rows, out = np.arange(1000, dtype=np.float32).reshape(100, 10), np.empty((100, 10), np.float32)
    path = tmp_path / "step.npz"
    # In the other order of its elements; what is kept has one order.
    write_step_checkpoint(
        path, position_of(), {"rows": np.asfortranarray(rows)}, {}, on_progress=lambda: moves.append(1)
    )
    assert len(moves) >= 63
    moves.clear()
    found = StepCheckpointFile.read(path, lambda: moves.append(1))
    assert len(moves) >= 63
    moves.clear()
    found.read_matrix("rows", out)
    assert len(moves) == 63
    assert out.tobytes() == rows.tobytes()
