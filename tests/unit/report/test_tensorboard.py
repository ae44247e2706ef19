"""What TensorBoard would read, read here from the files themselves."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest
from unit.report.run_events import BALANCED, epoch_ended, evaluated, steps

from hyrt.errors import ConfigError
from hyrt.report.records.tensorboard import TensorboardLog


def read_scalars(folder: Path) -> dict[tuple[str, int], float]:
    """All scalars of a folder's event files.

    A record is a length, its checksum, an Event message, and its checksum.
    """
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    found = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            event = event_pb2.Event.FromString(data[at + 12 : at + 12 + length])
            for value in event.summary.value:
                found[value.tag, event.step] = value.simple_value
            at += 12 + length + 4
    return found


def test_scalars_of_a_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    with TensorboardLog(tmp_path / "tb") as log:
        for event in (
            steps(6, queued={"sampled": 1.5}),
            steps(12, loss=0.5),
            evaluated(1),
            epoch_ended(1),
            BALANCED,
        ):
            log.handle(event)
    found = read_scalars(tmp_path / "tb")
    assert found["train/loss", 6] == pytest.approx(1.0234)
    assert found["train/loss", 12] == pytest.approx(0.5)
    assert found["stage_s/propagate", 6] == pytest.approx(0.0409)
    assert found["split/cpu", 6] == 1024
    assert found["queued/sampled", 6] == 1.5
    assert found["waiting_s/load.input", 6] == pytest.approx(0.03)
    assert {tag.split("/")[0] for tag, _ in found} == {
        *("train", "speed", "memory", "stage_s", "waiting_s", "queued", "busy_s", "split", "threads"),
        *("val", "test", "epoch", "balance"),
    }
    assert found["busy_s/cpu_0", 12] == pytest.approx(0.030)
    assert found["balance/expected_s", BALANCED.step] == pytest.approx(0.024)
    assert found["val/accuracy", 59] == pytest.approx(0.92)
    assert found["epoch/seconds", 59] == pytest.approx(3.5)


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ConfigError, match=r"hyrt\[tensorboard\]"):
        TensorboardLog(tmp_path / "tb")
    assert not (tmp_path / "tb").exists()
