from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hyrt_perfmodel.model_workload import model_workload
from hyrt_perfmodel.platform import Accelerator, Host, Platform
from hyrt_perfmodel.prediction.predict import predict, with_accelerators
from hyrt_perfmodel.workload import TrainingWorkload, proportional_workload

from hyrt.errors import ConfigError, DataWriteError
from hyrt.report.plots import check_plot, plot_scaling

PLATFORM = Platform(
    name="a $ box",
    host=Host(memory_gb_s=50, macs_per_s=1e11),
    accelerators=(Accelerator(kind="gpu", memory_gb_s=500, macs_per_s=1e13, link_gb_s=10),),
)
WORK = model_workload("gcn", (9000, 2000, 100), (20_000, 3000), (64, 32, 8))
TRAINING = TrainingWorkload(at=proportional_workload(WORK, 100), targets_per_epoch=10_000, batch_size=400)
SCALING = [(count, predict(with_accelerators(PLATFORM, count), TRAINING)) for count in (0, 1, 4)]


@pytest.mark.parametrize(("name", "begins"), [("x.png", b"\x89PNG"), ("x.SVG", b"<?xml"), ("x.pdf", b"%PDF")])
def test_the_ending_chooses_the_format(tmp_path: Path, name: str, begins: bytes) -> None:
    check_plot(tmp_path / name)
    plot_scaling(SCALING, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begins)


def test_names_every_bottleneck_once(tmp_path: Path) -> None:
    scaling = [
        (i + 1, replace(SCALING[1][1], bottleneck=name)) for i, name in enumerate(("load", "sample", "load"))
    ]
    plot_scaling(scaling, tmp_path / "x.svg")
    drawn = (tmp_path / "x.svg").read_text()
    assert drawn.count(">bound by load</text>") == 1
    assert drawn.count(">bound by sample</text>") == 1
    assert drawn.count(">linear</text>") == 1


@pytest.mark.parametrize("name", ["x", "x.txt", ".png", "x.npz"])
def test_refuses_other_files(name: str) -> None:
    with pytest.raises(ConfigError, match="unknown file type"):
        check_plot(Path(name))


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataWriteError, match=r"nowhere/x\.png cannot be written"):
        plot_scaling(SCALING, tmp_path / "nowhere" / "x.png")
