"""What a run's page says of what is slow, against figures that are worked out here."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyrt.report.html.page import (
    bottleneck_text,
    comparison_page,
    facts,
    predicted_rows,
    run_page,
    stage_rows,
    trainer_rows,
)
from hyrt.report.html.run_charts import run_charts
from hyrt.report.run_record import RunRecord, weighted_median

STAGES = ("sample", "load", "transfer", "propagate", "synchronize")


def line(step: int, propagate_s: float = 0.030, *, steps: int = 1, **changes: Any) -> dict[str, Any]:
    work = {
        "sample": 0.006,
        "load": 0.012,
        "transfer": 0.001,
        "propagate": propagate_s,
        "synchronize": 0.0005,
    }
    fields = {
        "event": "steps",
        "time_s": 0.1 * step,
        "step": step,
        "losses": [1.0 / step] * steps,
        "mteps": 3.0,
        "step_s": 0.040,
        "stage_s": work,
        "busy_s": {"cpu:0": 0.010, "opencl:0": 0.030},
        "blocked_s": {
            "sample.input": 0.031, "load.input": 0.0001, "load.output": 0.02, "transfer.input": 0.03,
        },
        "queued": {
            "sampled": 0.5, "loaded.cpu:0": 0.0, "loaded.opencl:0": 0.25, "staged.cpu:0": 1.0,
            "staged.opencl:0": 2.5, "done.cpu:0": 1.75, "done.opencl:0": 0.0,
        },
        "queue_depth": {
            "sampled": 6, "loaded.cpu:0": 3, "loaded.opencl:0": 3, "staged.cpu:0": 3,
            "staged.opencl:0": 3, "done.cpu:0": 3, "done.opencl:0": 3,
        },
        "bottleneck": max(STAGES[:-1], key=lambda stage: work[stage]),
        "split": {"cpu:0": 256, "opencl:0": 768},
        "threads": {"sample": 1, "load": 1, "train": 2},
        "memory_bytes": 734003200,
    }  # fmt: skip
    return fields | changes


def record(
    lines: Sequence[Mapping[str, Any]],
    path: Path = Path("runs/one"),
    summary: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> RunRecord:
    return RunRecord(
        path=path,
        config="seed: 0\n",
        settings=settings or {"runtime": {"pipelined": True}},
        environment={"command": ["hyrt", "run", "a b"], "memory_bytes": 2**34, "cgroup": {"cpus": None}},
        summary={"status": "finished", "steps": 3} if summary is None else summary,
        lines=lines,
    )


def test_stages_are_told_by_their_middle_steps() -> None:
    """A first step that compiles, and a line of many steps, which counts as that many."""
    run = record([line(1, 9.0), line(2, 0.004), line(12, 0.030, steps=10), line(13, 0.050)])
    rows = {row.name: row for row in stage_rows(run)}
    assert list(rows) == list(STAGES)
    middle = statistics.median([9.0, 0.004, *[0.030] * 10, 0.050])
    assert rows["propagate"].work == f"{1e3 * middle:.3g} ms" == "30 ms"
    assert rows["load"].share == pytest.approx(0.012 / 0.030)
    # In the second step loading was slower than propagating.
    assert (rows["propagate"].bounds, rows["load"].bounds, rows["synchronize"].bounds) == ("92%", "8%", "")
    assert [name for name, row in rows.items() if row.is_bottleneck] == ["propagate"]
    assert rows["sample"].waits == "31 ms for input"
    assert rows["load"].waits == "20 ms for room", "a wait of 0.1 ms of 40 is none"
    assert [rows[stage].queue for stage in STAGES] == ["0.5 of 6", "0.2 of 6", "3.5 of 6", "1.8 of 6", ""]
    assert rows["transfer"].queue_share == pytest.approx(3.5 / 6)


def test_predictions_stand_beside_medians() -> None:
    """The first step compiles: a mean over few steps would be mostly that."""
    expected = {"stages_s": {"propagate": 0.033}, "iteration_s": 0.044, "epoch_s": 0.5}
    summary = {"status": "finished", "predicted": expected, "epoch_s": 0.4, "iteration_s": 3.0}
    rows = predicted_rows(record([line(1, 9.0, step_s=9.0), line(2), line(3)], summary=summary))
    assert rows[STAGES.index("propagate")] == ("propagate", "33 ms", "30 ms", "+10.0%")
    assert rows[-2:] == [("a step", "44 ms", "40 ms", "+10.0%"), ("an epoch", "0.5 s", "0.4 s", "+25.0%")]
    failed = record([], summary={"status": "failed", "predicted": expected})
    assert {seen for _, _, seen, _ in predicted_rows(failed)} == {""}


@given(st.lists(st.tuples(st.integers(1, 5), st.floats(0, 9)), min_size=1, max_size=12))
def test_a_median_over_steps_is_that_of_single_steps(told: list[tuple[int, float]]) -> None:
    lines = [line(step, steps=count) for step, (count, _) in enumerate(told, 1)]
    each = [value for count, value in told for _ in range(count)]
    assert weighted_median(lines, [value for _, value in told]) == statistics.median_low(each)
    assert weighted_median([*lines, line(99)], [*(value for _, value in told), math.nan]) == (
        statistics.median_low(each)
    )


def test_charts_show_the_values_of_the_lines_in_their_units() -> None:
    charts = {chart.key: chart for chart in run_charts(record([line(2, steps=2), line(3, steps=1)]))}
    shown = {key: {each.name: list(each.y) for each in chart.series} for key, chart in charts.items()}
    assert shown["memory"] == {"process": [700 / 1024] * 2}
    assert charts["memory"].unit == "GiB"
    assert shown["busy"] == {"cpu:0": [pytest.approx(0.25)] * 2, "opencl:0": [pytest.approx(0.75)] * 2}
    assert shown["step"] == {"measured": [0.040] * 2}
    assert shown["throughput"] == {"sampled edges per second, in millions": [3.0] * 2}
    [losses] = charts["loss"].series
    assert (list(losses.x), list(losses.y)) == ([1, 2, 3], [0.5, 0.5, 1 / 3])


def test_waits_that_hardly_ever_happen_have_no_line() -> None:
    """Nine in ten values decide: two of ten count, one of twenty does not."""
    waits = [
        {"load.input": 0.010, "sample.output": 0.005 * (step % 10 < 2), "transfer.input": 0.5 * (step == 7)}
        for step in range(20)
    ]
    run = record([line(step, blocked_s=wait) for step, wait in enumerate(waits, 1)])
    (chart,) = [chart for chart in run_charts(run) if chart.title.startswith("Waiting")]
    assert [series.name for series in chart.series] == ["load.input", "sample.output"]


@pytest.mark.parametrize("count", [49, 51, 120, 200, 201])
def test_each_decision_is_listed_once(count: int) -> None:
    moved = {"event": "balanced", "time_s": 0.0, "split": {"cpu:0": 1}, "threads": {"load": 1}}
    lines = [moved | {"step": step, "acts_from": step, "reason": f"reason {step}!"} for step in range(count)]
    page = run_page(record([line(1), *lines]))
    listed = re.findall(r'<td class="wide">reason (\d+)!</td>', page)
    left_out = [] if count <= 200 else [50]
    assert list(map(int, listed)) == [step for step in range(count) if step not in left_out]
    assert ("1 between the first and the last are omitted here" in page) == bool(left_out)


def test_the_page_says_how_steps_are_made() -> None:
    """Of a whole graph no targets are shared: a step has one unit."""
    run = record([line(1)], settings={"sampler": {"kind": "full"}})
    assert ("sampler", "full") in facts(run)


def test_trainers() -> None:
    cpu, opencl = trainer_rows(record([line(1), line(2)]))
    assert (cpu.name, cpu.units, cpu.share, cpu.busy) == ("cpu:0", "256", 0.25, "10 ms")
    assert opencl.busy_share == pytest.approx(0.75)
    assert opencl.queues == "loaded 0.2 of 3, staged 2.5 of 3, done 0.0 of 3"


def test_simulated_devices_are_labelled_wherever_their_times_stand() -> None:
    devices = {"busy_s": {"cpu:0": 0.01, "fpga-csim:0": 0.002}, "split": {"cpu:0": 256, "fpga-csim:0": 768}}
    ended = {
        "status": "finished",
        "simulated": True,
        "simulated_devices": ["fpga-csim:0"],
        "devices": ["cpu", "fpga-csim"],
        "split": devices["split"],
    }
    started = {"event": "started", "time_s": 0.0, "step": 0, "simulated": ["fpga-csim:0"]}
    run = record([line(1, **devices), line(2, **devices)], summary=ended)
    assert [row.name for row in trainer_rows(run)] == ["cpu:0", "fpga-csim:0 (simulated)"]
    assert "cpu:0 10 ms, fpga-csim:0 (simulated) 2 ms." in bottleneck_text(run)
    page = run_page(run)
    assert '<th scope="row">fpga-csim:0 (simulated)</th>' in page
    assert "<td>cpu, fpga-csim (simulated)</td>" in page
    assert "<td>cpu:0 256, fpga-csim:0 (simulated) 768</td>" in page
    # A killed run has no summary.
    assert "<td>cpu:0 256, fpga-csim:0 (simulated) 768</td>" in run_page(
        record([started, line(1, **devices)], summary={})
    )
    # Nothing is known by its name alone.
    assert "(simulated)" not in run_page(record([line(1, **devices)], summary={}))


def test_a_plug_ins_simulated_devices_are_labelled_by_what_the_run_recorded() -> None:
    devices = {"busy_s": {"acme:0": 0.01, "acme:1": 0.002}, "split": {"acme:0": 256, "acme:1": 768}}
    started = {"event": "started", "time_s": 0.0, "step": 0, "simulated": ["acme:1"]}
    # While it runs, or where it was killed, and after its end.
    for lines, summary in (
        ([started], {}),
        ([], {"status": "finished", "simulated_devices": ["acme:1"], "devices": ["acme", "acme:1=3"]}),
    ):
        run = record([*lines, line(1, **devices), line(2, **devices)], summary=summary)
        assert [row.name for row in trainer_rows(run)] == ["acme:0", "acme:1 (simulated)"]
        page = run_page(run)
        assert '<th scope="row">acme:1 (simulated)</th>' in page
        assert "acme:0 (simulated)" not in page
    assert "<td>acme, acme:1=3 (simulated)</td>" in page
    # A run that recorded none has none, whatever the names are.
    real = {"busy_s": {"null:0": 0.01}, "split": {"null:0": 256}}
    run = record([line(1, **real)], summary={"status": "finished", "simulated_devices": []})
    assert [row.name for row in trainer_rows(run)] == ["null:0"]


def test_the_sentence_on_the_bottleneck() -> None:
    assert bottleneck_text(record([line(1), line(2)])) == (
        "Propagate is the slowest stage in 100% of the steps, with 30 ms of work per step, "
        "followed by load with 12 ms. Times of the trainers in this stage: cpu:0 10 ms, opencl:0 30 ms. "
        "A step takes 40 ms; the slowest stage works for 75% of that."
    )
    serial = record(
        [line(1, 0.001, queued={}, queue_depth={}, blocked_s={})], settings={"runtime": {"pipelined": False}}
    )
    assert bottleneck_text(serial) == (
        "Load is the slowest stage in 100% of the steps, with 12 ms of work per step, "
        "followed by sample with 6 ms. "
        "The stages ran one after the other (runtime.pipelined=false), so a step takes their sum, 40 ms."
    )
    assert "channel" not in run_page(serial).split("What bounds it</h2>")[1].split("Medians")[0]


def test_chunks_of_a_whole_graph_are_facts_and_charts() -> None:
    def chunks(copy_s: float) -> dict[str, dict[str, float]]:
        figures = {
            "intervals": 3, "vertices": 1000, "in_bytes": 2**20, "out_bytes": 2**19, "host_bytes": 2**21,
            "file_bytes": 0, "copy_s": copy_s, "compute_s": 0.5, "hidden_s": copy_s / 4,
        }  # fmt: skip
        return {"opencl:0": figures}

    run = record([line(1), line(2, chunks=chunks(0.3)), line(3, chunks=chunks(0.4))])
    said = dict(facts(run))
    assert said["chunks on opencl:0"] == (
        "3 x 3 chunks of 1,000 vertices · 1 MiB in and 512 KiB out per step · 2 MiB swapped to the host"
    )
    assert said["transfer of opencl:0"] == "copying 0.4 s, 25% of it hidden behind 0.5 s of computing"
    assert all(text in run_page(run) for text in ("3 x 3 chunks", "25% of it hidden", "Chunks on opencl:0"))
    [chart] = [chart for chart in run_charts(run) if chart.title.startswith("Chunks on")]
    assert [(series.name, list(series.x), list(series.y)) for series in chart.series] == [
        ("copying", [2, 3], [0.3, 0.4]),
        ("computing", [2, 3], [0.5, 0.5]),
        ("hidden copying", [2, 3], [0.075, 0.1]),
    ]
    of_ranks = {
        f"rank {rank} opencl:0": {**chunks(0.1)["opencl:0"], "step_s": 0.6 + 0.1 * rank} for rank in (0, 1)
    }
    page = run_page(record([line(1, chunks=of_ranks)]))
    assert (
        "In chunks, the newest step of rank 1 opencl:0, which took longest, is bound by computing on" in page
    )
    # 0.5 + 0.1 - 0.025 of 0.7 s.
    assert "rank 1 opencl:0, which is busy for 82% of a step of 0.7 s." in page
    without = record([line(1)])
    assert "In chunks" not in run_page(without)
    assert not any(name.startswith("chunks") for name, _ in facts(without))
    assert "Chunks on" not in run_page(without)


def test_lines_of_earlier_versions_and_runs_without_steps() -> None:
    old = line(1)
    del old["queued"], old["queue_depth"]
    assert [row.queue for row in stage_rows(record([old]))] == [""] * 5
    run_page(record([old]))
    nothing = record([], summary={})
    assert (stage_rows(nothing), trainer_rows(nothing), bottleneck_text(nothing)) == ([], [], "")
    assert "not ended" in run_page(nothing)


def test_a_failed_run_says_how_far_it_came_and_why_it_failed() -> None:
    page = run_page(record([line(7)], summary={"status": "failed", "error": "StageError: <no> memory"}))
    assert page.index("StageError: &lt;no&gt; memory") < page.index("What bounds it</h2>")
    assert "7, according to metrics.jsonl" in page
    assert "cpu:0 256, opencl:0 768" in page


def test_stages_beside_each_other() -> None:
    page = comparison_page([record([line(1)]), record([line(1, 0.001)], Path("runs/other"))])
    for name, cells in (
        ("slowest stage", ["propagate, in 100% of the steps", "load, in 100% of the steps"]),
        ("propagate, median", ["30 ms", "1 ms"]),
        ("median step", ["40 ms", "40 ms"]),
    ):
        found = re.search(rf'<th scope="row">{name}</th>(.*)', page)
        assert found, name
        assert re.findall(r"<td>([^<]*)</td>", found[1]) == cells


def test_which_classes_are_taken_for_which() -> None:
    def evaluation(counts: list[list[int]] | None, *, best: bool) -> dict[str, Any]:
        told = {"event": "evaluated", "step": 1, "metrics": {}, "is_best": best}
        return told if counts is None else told | {"confusion": counts}

    lines = [evaluation([[1, 0], [0, 1]], best=True), evaluation([[3000, 1000], [0, 0]], best=True)]
    page = run_page(record([*lines, evaluation(None, best=False)]))
    cells = re.search(r'<table class="confusion">(.*?)</table>', page, re.DOTALL)
    assert cells is not None
    rows = [re.sub(r"<[^>]*>", " ", row).split() for row in cells[1].split("</tr>")]
    assert rows[1:3] == [["0", "3,000", "1,000", "75%"], ["1", "0", "0"]]
    assert re.findall(r"--p:(\d+)", cells[1]) == ["75", "25"]
    assert "Classes taken for others" not in run_page(record([evaluation(None, best=True)]))


def test_environment_as_people_read_it() -> None:
    page = run_page(record([line(1)]))
    assert "hyrt run &#39;a b&#39;" in page
    assert "16 GiB" in page
    assert re.search(r"cgroup.cpus</th><td>not limited", page)


def test_traces_are_linked_from_where_the_page_is(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a b"
    run.mkdir(parents=True)
    assert "--trace" in run_page(record([line(1)], run))
    for name in ("trace-from-100.json.gz", "trace.json.gz", "trace-from-20.json.gz"):
        (run / name).touch()
    page = run_page(record([line(1)], run))
    names = re.findall(r'href="([^"#:]*)" download>([^<]*)<', page)
    # In the order of their steps.
    assert names == [(n, n) for n in ("trace.json.gz", "trace-from-20.json.gz", "trace-from-100.json.gz")]
    elsewhere = run_page(record([line(1)], run), tmp_path)
    assert 'href="runs/a%20b/trace.json.gz"' in elsewhere
    assert "ui.perfetto.dev" in page


def test_a_long_run_has_a_small_page_that_says_what_it_leaves_out() -> None:
    lines: list[dict[str, Any]] = []
    for group in range(4_000):
        lines.append(line(10 * (group + 1), 0.03 if group % 3 else 0.01, steps=10))
        if group % 2:
            split = {"cpu:0": 1, "opencl:0": 2}
            decided = {"event": "balanced", "step": 10 * group, "acts_from": 10 * group + 3, "split": split}
            decided |= {
                "threads": {"sample": 1},
                "reason": f"moved, the {group // 2}th time, because " + "x" * 80,
            }
            lines.append(decided)
    counts = [[10_000 + row + column for column in range(20)] for row in range(20)]
    lines.append({"event": "evaluated", "step": 1, "metrics": {}, "is_best": True, "confusion": counts})
    page = run_page(record(lines))
    assert len(page.encode()) < 400_000
    assert "1,800 between the first and the last are omitted here" in page
    assert "the 0th time" in page
    assert "the 1999th time" in page
    assert "the 1000th time" not in page
    assert "showing the lowest and highest of every 200 values, out of 40,000" in page
    assert "Numbers, 60 of 40,000 rows" in page
    assert "bottleneck mostly propagate" in page
