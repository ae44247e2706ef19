"""The tool that counts what strategies send."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import volumes


def test_an_epoch_is_counted_for_every_strategy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    homes = tmp_path / "home.npy"
    np.save(homes, np.arange(2000) % 2)
    words = ["--data", "synthetic:tiny", "--parts", "2", "--fanouts", "3,2", "--targets", "100"]
    volumes.main([*words, "--homes", str(homes), "--steps", "2", "--json"])
    found = {line["strategy"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    assert list(found) == list(volumes.VARIANTS)
    # 16 features of 4 bytes; two steps of two ranks.
    for line in found.values():
        assert line["bytes"]["rows"] == 64 * line["remote_rows"]
        assert line["remote_rows"] <= line["rows"]
    assert found["home"]["remote_rows"] == found["hopgnn, and pre-gathering"]["remote_rows"]
    assert found["hopgnn, micrographs"]["rows"] > found["home"]["rows"]
    assert found["hopgnn, merged to 2"] == {
        **found["hopgnn, and pre-gathering"],
        "strategy": "hopgnn, merged to 2",
    }
    assert found["hopgnn, merged to 1"]["models"] == 0
    assert found["hopgnn, micrographs"]["models"] == 2 * 2
    weights = found["home"]["bytes"]["gradients"] / (2 * 2 * 1)
    # Two GraphSAGE layers with biases: 2 x 16 x 16 + 16, 2 x 16 x 4 + 4.
    assert weights == 4 * (512 + 16 + 128 + 4)
    assert found["p3"]["bytes"]["hidden"] == 64 * found["p3"]["hidden"]
    assert found["local"]["roots_max_over_mean"] <= found["home"]["roots_max_over_mean"]


def test_a_table_of_random_homes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data", "synthetic:tiny", "--parts", "2", "--fanouts", "3,2", "--steps", "1"]
    volumes.main([*words, "--targets", "50", "--strategies", "model-centric;home"])
    lines = capsys.readouterr().out.splitlines()
    assert "homes random" in lines[1]
    assert [line.split(" | ")[0] for line in lines[-2:]] == ["| model-centric", "| home"]
