from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hyrt_perfmodel.measured_costs import LoadCost
from hyrt_perfmodel.platform import Accelerator, Host, Platform
from hyrt_perfmodel.policy import Assignment, Threads
from hyrt_perfmodel.prediction.predict import Advice, MemoryNeed, Prediction
from hyrt_perfmodel.prediction.stage_times import StageTimes

from hyrt.formatting import format_duration
from hyrt.report.predict_table import prediction_lines, scaling_lines
from hyrt.report.printed_lines import to_encodable, wrap_lines

GIB = 2**30
PLATFORM = Platform(
    name="box",
    host=Host(memory_gb_s=148, macs_per_s=1e12, cores=8),
    accelerators=(Accelerator(kind="gpu", memory_gb_s=500, macs_per_s=1e13, link_gb_s=24, count=4),),
    source="assumed: a box",
)
NOW = Prediction(
    platform="box",
    source="assumed: a box",
    trainers=("cpu:0", "gpu:0", "gpu:1", "gpu:2", "gpu:3"),
    assignment=Assignment(split=(620, 101, 101, 101, 101), threads=Threads(sample=1, load=3, train=4)),
    stages=StageTimes(
        sample_s=0.0091,
        load_s=0.0148,
        transfer_s=0.0122,
        propagate_s=0.0118,
        synchronize_s=0.0003,
        trainer_transfer_s=(0.0, 0.0122, 0.0122, 0.0122, 0.0122),
        trainer_propagate_s=(0.0115, 0.011, 0.011, 0.011, 0.011),
    ),
    iteration_s=0.0148,
    iterations=1200,
    epoch_s=17.76,
    throughput_mteps=1234.56,
    bottleneck="load",
    memory={
        "host": MemoryNeed(needed_bytes=10 * GIB, available_bytes=512 * GIB),
        **{f"gpu:{i}": MemoryNeed(needed_bytes=GIB * (i + 1), available_bytes=24 * GIB) for i in range(4)},
    },
    ideal_epoch_s=12.0,
    relative_error=0.1,
)
LINK = Advice(change="links twice as fast", epoch_s=15.0, bottleneck="cores")


def text(now: Prediction = NOW, advice: tuple[Advice, ...] = (), platform: Platform = PLATFORM) -> list[str]:
    return prediction_lines(now, advice, platform)


def bound_by(stage: str, **times: object) -> list[str]:
    return text(replace(NOW, bottleneck=stage, stages=replace(NOW.stages, **times)))


def test_a_prediction_in_words() -> None:
    assert prediction_lines(NOW, [LINK], PLATFORM, ["degrees"]) == [
        "stage        ms/step    busy",
        "sample          9.10     61%",
        "load            14.8    100%  ◀ bottleneck (host memory 148 GB/s effective)",
        "transfer        12.2     82%",
        "propagate       11.8     80%  with synchronize 0.300",
        "epoch 17.8 s (16 s to 19.5 s) · 1,200 steps of 14.8 ms · 1,234.6 MTEPS",
        "split cpu:0 620 · gpu 4 x 101 · threads sample 1, load 3, train 4",
        "memory host 10 GiB of 512 GiB: fits · gpu 4 GiB of 24 GiB each: fits",
        "ideal epoch, if the speeds of all devices added up: 12 s",
        "to go faster: links twice as fast: 15 s per epoch, then the cores are the bottleneck",
        "estimated error ± 10%: box, assumed: a box",
        "assumed: degrees",
    ]


@pytest.mark.parametrize(
    ("stage", "line"),
    [
        ("sample", "sample          9.10     61%  ◀ bottleneck"),
        ("transfer", "transfer        12.2     82%  ◀ bottleneck (gpu link 24 GB/s effective)"),
        (
            "propagate",
            "propagate       11.8     80%  with synchronize 0.300  ◀ bottleneck (cpu is the slowest trainer)",
        ),
        ("cores", "cores           14.8    100%  ◀ bottleneck (the work of all stages together)"),
    ],
)
def test_exactly_the_bottleneck_is_marked(stage: str, line: str) -> None:
    lines = bound_by(stage)
    assert line in lines
    assert sum("◀" in other for other in lines) == 1


def test_synchronization_that_takes_longest_is_named() -> None:
    lines = bound_by("propagate", synchronize_s=0.3, propagate_s=0.3115)
    assert any(line.endswith("◀ bottleneck (mostly synchronization)") for line in lines)


def test_nothing_is_said_of_a_bandwidth_that_a_table_replaces() -> None:
    loading = (LoadCost(model="", form="rows", matrix_bytes=1e9, row_s=1e-8, gb_s=10, threads=1),)
    platform = replace(PLATFORM, host=replace(PLATFORM.host, loading=loading))
    assert "load            14.8    100%  ◀ bottleneck" in text(NOW, (), platform)


def test_equal_devices_stand_together() -> None:
    split = replace(NOW.assignment, split=(621, 102, 101, 200, 0))
    assert (
        "split cpu:0 621 · gpu 1 x 200, 1 x 102, 1 x 101, 1 x 0 · threads sample 1, load 3, train 4"
        in text(replace(NOW, assignment=split))
    )


def test_one_that_does_not_fit_is_said() -> None:
    memory = {**NOW.memory, "gpu:2": MemoryNeed(needed_bytes=25 * GIB, available_bytes=24 * GIB)}
    assert any(
        "gpu 25 GiB of 24 GiB each: DOES NOT FIT" in line for line in text(replace(NOW, memory=memory))
    )
    unknown = {"host": MemoryNeed(needed_bytes=3 * 2**20, available_bytes=None)}
    assert "memory host 3 MiB" in text(replace(NOW, memory=unknown))


def test_no_advice_is_said() -> None:
    assert "to go faster: no single change saves more than a few percent" in text()


def test_one_step_is_one_step() -> None:
    assert any("· 1 step of" in line for line in text(replace(NOW, iterations=1)))


def test_scaling_names_idle_accelerators() -> None:
    idle = replace(
        NOW, epoch_s=NOW.epoch_s / 2, assignment=replace(NOW.assignment, split=(620, 202, 202, 0, 0))
    )
    assert scaling_lines([(1, NOW), (4, idle)]) == [
        "accelerators       epoch  speed-up  bottleneck",
        "           1      17.8 s     1.00x  load",
        "           4      8.88 s     2.00x  load (2 of 4 receive no targets)",
    ]
    assert scaling_lines([]) == []


@given(st.floats(min_value=0, max_value=1e300))
def test_times_are_short_and_near(value: float) -> None:
    shown = format_duration(value)
    assert len(shown) <= 16
    number, unit = shown.replace(",", "").split()
    unit_s = {"us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "days": 86400}[unit]
    assert float(number) * unit_s == pytest.approx(value, rel=0.03, abs=1e-300)


@given(st.integers(min_value=20, max_value=200))
def test_wrapping_loses_no_word(width: int) -> None:
    lines = text(NOW, (LINK,))
    found = wrap_lines(lines, width)
    assert " ".join(found).split() == " ".join(lines).split()
    assert max(map(len, found)) <= width
    assert wrap_lines(["", "a"], width) == ["", "a"]
    assert wrap_lines(lines, None) == lines


@given(st.sampled_from(["ascii", "latin-1", "cp1252", "utf-8", None]), st.text())
def test_any_output_can_show_it(encoding: str | None, more: str) -> None:
    shown = to_encodable("◀ ± · " + more.encode("utf-8", "ignore").decode(), encoding)
    shown.encode(encoding or "utf-8")
    assert shown.startswith("◀ ± ·" if encoding in ("utf-8", None) else "< +- -")
