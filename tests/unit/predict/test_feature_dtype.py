"""Predictions of runs with narrow feature rows, against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from graphs import random_graph
from hyrt_perfmodel.platform import Platform
from hyrt_perfmodel.platform_file import load_platform
from hyrt_perfmodel.prediction.predict import advise, predict
from hyrt_perfmodel.prediction.stages import aggregate_s, load_s, synchronize_s, transfer_s
from hyrt_perfmodel.workload import TrainingWorkload, Workload

from hyrt.config import build_config
from hyrt.doctor.dataset_sizes import read_dataset_sizes
from hyrt.graph.formats.convert import Conversion, convert
from hyrt.graph.formats.dataset_files import write_npz
from hyrt.graph.formats.schema import from_graph
from hyrt.graph.quantized.features import quantize_graph
from hyrt.predict.dataset_sizes import generated_sizes, graph_sizes, with_row_format
from hyrt.predict.predict_platform import choose_rows, resolve_rows
from hyrt.predict.workload import expected_workload, other_samplers
from hyrt.training.setup import PreparedRun

FPGAS = load_platform("2x-epyc7763-4x-u250")
WORK = Workload(vertices=(1000, 200, 50), edges=(2000, 500), features=(10, 20, 5), concat=True)


def configured(rows: str) -> TrainingWorkload:
    config = build_config(
        {"data": {"source": "synthetic:products-s", "feature_dtype": rows}, "model": {"kind": "graphsage"}}
    )
    return expected_workload(config, generated_sizes("synthetic:products-s"))


def test_input_rows_are_read_and_sent_in_their_bytes_and_all_else_is_not() -> None:
    narrow = replace(WORK, input_bytes=14)
    assert load_s(narrow, 1e6) == pytest.approx(1000 * 14 / 1e6)
    assert transfer_s(narrow, 1e6) == pytest.approx(1000 * 14 / 1e6)
    assert aggregate_s(narrow, 1, 1e6) == pytest.approx(2000 * 14 / 1e6)
    assert aggregate_s(narrow, 2, 1e6) == aggregate_s(WORK, 2, 1e6)
    assert synchronize_s(narrow, 1e6) == synchronize_s(WORK, 1e6)
    with pytest.raises(ValueError, match=r"input_bytes must be a number of at least 0, got -1"):
        replace(WORK, input_bytes=-1)


@pytest.mark.parametrize(
    ("rows", "row_bytes"), [("float16", 200), ("bfloat16", 200), ("int8", 104), ("int8-columns", 100)]
)
def test_the_setting_gives_the_bytes_of_a_row(rows: str, row_bytes: int) -> None:
    found, stored = configured(rows), configured("stored")
    assert found.at(100).dense_row_bytes == row_bytes
    assert stored.at(100).dense_row_bytes == 400
    assert found.feature_bytes == pytest.approx(stored.feature_bytes * row_bytes / 400)


def slow_links() -> Platform:
    platform = load_platform("2x-epyc7763-4x-a5000")
    slow = tuple(replace(each, link_gb_s=each.link_gb_s / 50) for each in platform.accelerators)
    return replace(platform, accelerators=slow)


def test_where_the_link_bounds_int8_moves_the_split_and_the_epoch_back() -> None:
    platform = slow_links()
    wide, narrow = predict(platform, configured("stored")), predict(platform, configured("int8"))
    assert wide.bottleneck in ("transfer", "propagate")
    # The accelerators get more of each step when their link is relieved.
    assert sum(narrow.assignment.split[1:]) > 1.3 * sum(wide.assignment.split[1:])
    assert narrow.epoch_s < 0.8 * wide.epoch_s
    changes = [each.change for each in advise(platform, configured("stored"), wide, max_changes=9)]
    assert "features in 8 bits (data.feature_dtype=int8)" in changes
    found = [each.change for each in advise(platform, configured("int8"), narrow, max_changes=9)]
    assert not any("bits" in change for change in found)


def test_kernels_of_a_known_design_are_sent_codes_unless_columns_have_scales() -> None:
    host, fpga, *_ = FPGAS.trainers("graphsage")
    assert fpga.device.design is not None
    for rows, here, there in (("int8", 104, 104), ("int8-columns", 100, 400), ("float16", 200, 200)):
        work = configured(rows).at(10)
        assert host.adapt_workload(work).dense_row_bytes == here
        assert fpga.adapt_workload(work).dense_row_bytes == there


def test_auto_takes_the_least_rounding_that_is_about_as_fast_as_any() -> None:
    config = build_config({"data": {"source": "synthetic:products-s", "feature_dtype": "auto"}})
    stored = configured("stored")
    choice = choose_rows(config, slow_links(), stored)
    assert choice.rows == "int8"
    assert choice.training.at(5).dense_row_bytes == 104
    assert choice.reason.startswith("data.feature_dtype=auto selects int8, predicted")
    for wide, half, byte, rows in (
        (10, 9.8, 9.75, "stored"),
        (10, 7, 6.9, "float16"),
        (10, 9.95, 9.6, "int8"),
    ):
        epochs = {400: wide, 200: half, 104: byte}

        def told(platform: Platform, work: TrainingWorkload, epochs: Any = epochs, **given: Any) -> Any:
            return SimpleNamespace(epoch_s=epochs[round(work.at(1.0).dense_row_bytes)])

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("hyrt.predict.predict_platform.predict", told)
            assert choose_rows(config, slow_links(), stored).rows == rows


def test_auto_leaves_rows_alone_where_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyrt.predict.calibrate.store.usable_calibration", lambda: (None, ""))
    config = build_config({"data": {"feature_dtype": "auto"}, "devices": ["cpu"]})
    prepared = PreparedRun(config, random_graph(vertices=60, features=6))
    resolved, same, said = resolve_rows(config, prepared)
    assert resolved.data.feature_dtype == "stored"
    assert same is prepared
    assert said == (
        "data.feature_dtype=auto leaves the rows as they are: this machine is not "
        "calibrated: run `hyrt calibrate`"
    )


def test_advice_says_which_part_of_the_bytes_is_left() -> None:
    platform, work = slow_links(), configured("stored")
    # Transfer bounds all there is.
    platform = replace(platform, host=replace(platform.host, trains=False))
    moved = {
        each.change: each.moved_ratio
        for each in advise(platform, work, predict(platform, work), max_changes=99)
    }
    assert moved["features in 8 bits (data.feature_dtype=int8)"] == pytest.approx(0.26)
    assert moved["features in 16 bits (data.feature_dtype=float16)"] == pytest.approx(0.5)
    assert moved["links twice as fast"] == 1
    assert work.hit_rate is not None
    assert moved["30% of the rows cached on each accelerator (data.cache=30%)"] == pytest.approx(
        1 - work.hit_rate(0.3) + 4 / 400
    )


def test_sharing_neighbours_is_proposed_in_place_of_drawing_them_anew() -> None:
    sections = {"data": {"source": "synthetic:products-s"}, "model": {"kind": "graphsage"}}
    config, work = build_config(sections), configured("int8")
    [(words, labor)] = other_samplers(config, work)
    assert "sampler.kind=labor" in words
    assert labor.at(1024).vertices[0] < 0.8 * work.at(1024).vertices[0]
    assert labor.at(1024).edges == pytest.approx(work.at(1024).edges, rel=0.02)
    assert labor.at(1024).dense_row_bytes == 104
    platform = replace(slow_links(), host=replace(slow_links().host, trains=False))
    now = predict(platform, work)
    found = {
        each.change: each
        for each in advise(platform, work, now, other_workloads=[(words, labor)], max_changes=99)
    }
    assert found[words].moved_ratio == pytest.approx(
        labor.at(256).vertices[0] / work.at(256).vertices[0], rel=0.02
    )
    assert found[words].epoch_s < 0.85 * now.epoch_s
    assert other_samplers(build_config({**sections, "sampler": {"kind": "labor"}}), work) == []
    assert other_samplers(build_config({"data": {"source": "a.npz"}}), work) == []


def test_sizes_of_open_graphs_and_of_files_agree(tmp_path: Path) -> None:
    graph = random_graph(vertices=60, features=6)
    write_npz(from_graph(graph), tmp_path / "a.npz")
    targets = np.arange(5)
    for rows, row_bytes in (("int8", 10.0), ("bfloat16", 12.0), ("int8-columns", 6.0)):
        found = graph_sizes(quantize_graph(graph, rows), targets)
        assert (found.row_bytes, found.value_bytes) == (row_bytes, 4)
        assert with_row_format(graph_sizes(graph, targets), rows).row_bytes == row_bytes
        convert(Conversion(str(tmp_path / "a.npz"), tmp_path / rows, feature_dtype=rows))
        stored = read_dataset_sizes(str(tmp_path / rows), 0, "none")
        more = 4 * 6 / 60 if rows == "int8-columns" else 0
        assert stored.row_bytes == pytest.approx(row_bytes + more)
        assert stored.value_bytes == 4
