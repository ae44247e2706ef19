"""What a third party's package declares in hyrt's entry-point groups is a peer of what hyrt has."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from end_to_end.installed_package import installed_package
from end_to_end.terminal import TINY, hyrt


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return installed_package("hyrt-extras", tmp_path_factory)


def losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [loss for line in lines for loss in line.get("losses", [])]


def test_the_focal_loss_is_that_of_the_paper(
    installed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(installed["PYTHONPATH"].split(os.pathsep)[0])
    from hyrt_extras.focal import Focal  # type: ignore[import-not-found,unused-ignore]

    rng = np.random.default_rng(2)
    scores, labels, weights = rng.normal(size=(9, 4)), rng.integers(0, 4, 9), rng.random(9)
    chances = np.exp(scores)[np.arange(9), labels] / np.exp(scores).sum(1)
    wanted = -((1 - chances) ** 3) * np.log(chances)
    tensors = torch.from_numpy(scores), torch.from_numpy(labels)
    assert float(Focal(gamma=3).loss_sum(*tensors, None)) == pytest.approx(wanted.sum())
    assert float(Focal(gamma=3).loss_sum(*tensors, torch.from_numpy(weights))) == pytest.approx(
        wanted @ weights
    )


def test_it_is_trained_for_on_torch_and_on_kernels(installed: dict[str, str], tmp_path: Path) -> None:
    """The OpenCL device returns scores and takes their gradient; the split changes nothing."""
    pytest.importorskip("pyopencl")
    focal = [*TINY, "train.objective=focal", "train.objective_options={gamma: 2}"]
    hyrt("run", *TINY, "--name", "plain", cwd=tmp_path)
    hyrt("run", *focal, "--name", "alone", cwd=tmp_path, **installed)
    hyrt("run", *focal, "--devices", "cpu=1,opencl=1", "--name", "both", cwd=tmp_path, **installed)
    plain, alone, both = (losses(tmp_path / "runs" / name) for name in ("plain", "alone", "both"))
    assert len(alone) == 10
    assert both == pytest.approx(alone, rel=1e-4)
    # Each target's loss is the cross entropy times a factor below 1.
    assert alone[0] < plain[0]
    assert alone[-1] < alone[0]


def test_what_cannot_train_for_it_says_so(installed: dict[str, str], tmp_path: Path) -> None:
    focal = [*TINY, "train.objective=focal"]
    refused = hyrt("run", *focal, "--devices", "fpga-csim", cwd=tmp_path, code=2, **installed)
    assert "objective 'focal' on fpga-csim:0" in refused.stderr
    options = ["train.objective_options={gamma: 0.5}"]
    assert "gamma is 0.5" in hyrt("run", *focal, *options, cwd=tmp_path, code=2, **installed).stderr
    unknown = hyrt("run", *TINY, "train.objective=foca", cwd=tmp_path, code=2, **installed)
    assert "did you mean 'focal'" in unknown.stderr
    missing = hyrt("run", *focal, cwd=tmp_path, code=2)
    assert "the known ones are classification" in missing.stderr
