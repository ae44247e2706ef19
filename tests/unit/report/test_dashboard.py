"""The live picture holds what the newest steps say."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from unit.report.run_events import STARTED, epoch_ended, evaluated, steps

from hyrt.fullgraph.chunk_stats import ChunkedStep
from hyrt.report.progress import Progress
from hyrt.report.progress_text import dashboard


def shown(width: int, **changes: object) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=False, color_system=None)
    console.print(dashboard(steps(60, **changes), epochs=5, predicted_s=0.024, width=width))
    return out.getvalue()


QUEUED = {
    "sampled": 1.23, "loaded.cpu:0": 0.0, "loaded.opencl:0": 0.3, "staged.cpu:0": 2.0, "staged.opencl:0": 3.0,
    "done.cpu:0": 0.04, "done.opencl:0": 1.5,
}  # fmt: skip


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_stages_trainers_and_what_they_wait_for(width: int) -> None:
    text = shown(
        width,
        split={"cpu:0": 256, "opencl:0": 768},
        busy_s={"cpu:0": 0.0206, "opencl:0": 0.0412},
        blocked_s={"load.input": 0.030, "sample.output": 0.004, "propagate.input": 0.0001},
        threads={"sample": 1, "load": 3, "train": 2},
        queued=QUEUED,
        queue_depth={name: 6 if name == "sampled" else 3 for name in QUEUED},
    )
    assert all(len(line) <= width for line in text.splitlines())
    for word in (
        "sample x1",
        "load x3",
        "propagate x2",
        "synchronize",
        "41 ms ◀",
        "predicted 24",
        "3.91 MTEPS",
    ):
        assert word in text
    assert ("waits 30 in" in text) == ("waits 4.0 out" in text) == (width > 40)
    assert text.count("waits") == (2 if width > 40 else 0), "what is not worth a word has none"
    # Between the stages: of a channel for each trainer the sum.
    assert re.findall(r"\d\.\d/6", text) == ["1.2/6", "0.3/6", "5.0/6", "1.5/6"]
    assert ("staged 3.0/3" in text) == (width == 120)
    assert ("━━━━╌ 5.0/6" in text) == (width == 80), "five sixths of five"
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.startswith(("cpu", "opencl"))}
    assert rows["cpu:0"][1] == "256"
    assert rows["opencl:0"][1] == "768"
    assert "50%" in rows["cpu:0"]
    assert "100%" in rows["opencl:0"]
    # A quarter and three quarters of the targets.
    assert 3 * rows["cpu:0"][2].count("━") == pytest.approx(
        rows["opencl:0"][2].count("━"), abs=3
    )  # Bars are rounded down.


def test_nothing_done_yet() -> None:
    zero = dict.fromkeys(("sample", "load", "transfer", "propagate", "synchronize"), 0.0)
    assert "0 ms" in shown(80, stage_s=zero, step_s=0.0, split={"cpu:0": 0}, busy_s={})


def test_a_serial_run_has_no_queues() -> None:
    text = shown(120, blocked_s={})
    assert "/" not in text.split("sample x1")[1]
    assert text.count("→") == 4


def test_waits_in_and_out_stand_below_each_other() -> None:
    text = shown(120, blocked_s={"load.input": 0.030, "load.output": 0.012})
    lines = [line for line in text.splitlines() if " in" in line or " out" in line]
    assert [line.split() for line in lines] == [["waits", "30", "in"], ["12", "out"]]
    assert lines[0].index("waits") == lines[1].index("12 out")


@pytest.mark.parametrize("with_dashboard", [True, False])
def test_the_picture_stays_while_an_epoch_is_evaluated(with_dashboard: bool) -> None:
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=True, color_system=None)
    with Progress(out, with_dashboard=with_dashboard, console=console) as progress:
        for event in (STARTED, steps(59), epoch_ended(1)):
            progress.handle(event)
        after = out.getvalue().rpartition("loss 0.51")[2]
        # Drawn again below the epoch's line, or gone.
        assert ("propagate x2" in after) == with_dashboard
        progress.handle(evaluated(1))
        assert ("propagate x2" in out.getvalue().rpartition("val accuracy")[2]) == with_dashboard
        progress.print_line("the last line")
    assert "propagate" not in out.getvalue().rpartition("the last line")[2]


@pytest.mark.parametrize("width", [40, 160])
def test_chunks_of_a_whole_graph_have_lines_of_their_own(width: int) -> None:
    accelerator = {
        "in_bytes": 3 * 2**30, "out_bytes": 2**28, "copy_s": 0.8, "compute_s": 1.0, "hidden_s": 0.6,
    }  # fmt: skip
    processor = {"in_bytes": 0, "out_bytes": 2**28, "copy_s": 0.1, "compute_s": 1.5, "hidden_s": 0.0}
    chunks = ChunkedStep(
        intervals=4, vertices=153_000, in_bytes=3 * 2**30, out_bytes=2**29, host_bytes=2**28,
        file_bytes=2**27, reads=24, read_bytes=3 * 2**28, filtered=9, spared_bytes=2**28, filter_s=0.05,
        handed_bytes=2**20, devices=2, step_s=2.0, by_device={"opencl:0": accelerator, "cpu:0": processor},
    )  # fmt: skip
    text = shown(width, chunks={"opencl:0+cpu:0": chunks.figures()})
    lines = [line.rstrip() for line in text.splitlines()]
    assert all(len(line) <= width for line in lines)
    wanted = [
        "opencl:0+cpu:0  4 x 4 chunks of 153,000 vertices · 3 GiB in and 512 MiB out per step · 1 MiB "
        "forwarded between devices · 256 MiB swapped to the host, 128 MiB of it in a file",
        "  filtering: rows for 9 of 24 chunks, 256 MiB (25% of all rows) not copied, in 50 ms",
        "  opencl:0  copying 0.8 s (3 GiB in, 256 MiB out), 75% of it hidden behind 1 s of computing",
        "  cpu:0     computing 1.5 s on rows and edges in place, copying 0.1 s of results (256 MiB)",
        "  bound by computing on cpu:0, which is busy for 80% of a step of 2 s",
    ]
    first = next(k for k, line in enumerate(lines) if line.startswith("opencl:0+cpu:0  4 x 4"))
    found = lines[first:]
    # What is too long goes on below, further to the right.
    while any(line.startswith("    ") for line in found):
        k = next(k for k, line in enumerate(found) if line.startswith("    "))
        found[k - 1 : k + 1] = [f"{found[k - 1]} {found[k].strip()}"]
    assert [line.split() for line in found] == [line.split() for line in wanted]


def test_of_several_ranks_the_chunks_of_the_slowest_are_shown() -> None:
    chunks = ChunkedStep(intervals=2, vertices=9, in_bytes=100, out_bytes=0, host_bytes=0, file_bytes=0)
    text = shown(
        120,
        chunks={f"rank {rank} cpu:0": chunks.figures() for rank in range(3)},
        num_ranks=3,
        slowest_rank=1,
    )
    assert [line.split("  ")[0] for line in text.splitlines() if "2 x 2 chunks" in line] == ["rank 1 cpu:0"]


def test_a_device_that_measures_no_copies_says_nothing_of_what_is_hidden() -> None:
    chunks = ChunkedStep(intervals=1, vertices=9, in_bytes=100, out_bytes=0, host_bytes=0, file_bytes=0)
    said = [line for line in shown(160, chunks={"xpu:0": chunks.figures()}).splitlines() if "xpu:0" in line]
    assert [line.rstrip() for line in said] == [
        "xpu:0  1 x 1 chunks of 9 vertices · 100 bytes in and 0 bytes out per step"
    ]
