"""What a step in chunks took, in words: against sentences that are worked out by hand."""

from __future__ import annotations

import pytest

from hyrt.fullgraph.chunk_stats import ChunkedStep
from hyrt.report.step_summary import ChunkSummary, bound_text, device_text, filter_text


def work(in_bytes: int, out_bytes: int, copy_s: float, compute_s: float, hidden_s: float) -> dict[str, float]:
    return {
        "in_bytes": in_bytes,
        "out_bytes": out_bytes,
        "copy_s": copy_s,
        "compute_s": compute_s,
        "hidden_s": hidden_s,
    }


ACCELERATOR = work(3 << 20, 1 << 20, 0.8, 1.0, 0.6)
PROCESSOR = work(0, 1 << 20, 0.02, 1.4, 0.0)


def step(**more: object) -> dict[str, object]:
    fields = {"intervals": 4, "vertices": 250, "in_bytes": 3 << 20, "out_bytes": 2 << 20, "host_bytes": 0}
    return ChunkedStep(file_bytes=0, **(fields | more)).figures()  # type: ignore[arg-type]


def test_one_device() -> None:
    words = ChunkSummary.from_stats("cuda:0", step(step_s=1.25, by_device={"cuda:0": ACCELERATOR}))
    assert words.cut == "4 x 4 chunks of 250 vertices · 3 MiB in and 2 MiB out per step"
    assert words.devices == {"cuda:0": "copying 0.8 s, 75% of it hidden behind 1 s of computing"}
    # 1.0 + 0.8 - 0.6 of 1.25 s.
    assert words.bound == "bound by computing on cuda:0, which is busy for 96% of a step of 1.25 s"
    assert words.filtered == ""


def test_several_devices_of_which_one_reads_the_hosts_memory() -> None:
    figures = step(step_s=2.0, by_device={"cuda:0": ACCELERATOR, "cpu:0": PROCESSOR}, devices=2)
    words = ChunkSummary.from_stats("cuda:0+cpu:0", figures, lambda name: f"<{name}>")
    assert words.devices == {
        "<cuda:0>": "copying 0.8 s (3 MiB in, 1 MiB out), 75% of it hidden behind 1 s of computing",
        "<cpu:0>": "computing 1.4 s on rows and edges in place, copying 20 ms of results (1 MiB)",
    }
    assert words.bound == "bound by computing on <cpu:0>, which is busy for 71% of a step of 2 s"


def test_what_copies_more_than_it_hides_is_bound_by_copying() -> None:
    works = {"cuda:0": work(1, 1, 2.0, 0.5, 0.4)}
    assert bound_text(works, 2.2) == "bound by copying on cuda:0, which is busy for 95% of a step of 2.2 s"
    assert bound_text(works, 10.0) == (
        "bound by the host: cuda:0 computes and copies for only 21% of a step of 10 s"
    )


def test_what_was_not_measured_is_not_said() -> None:
    nothing = work(1 << 20, 1 << 20, 0.0, 0.0, 0.0)
    assert device_text(nothing, is_only_device=True) == ""
    assert bound_text({"mps:0": nothing}, 1.0) == ""
    assert bound_text({"cuda:0": ACCELERATOR}, 0.0) == ""


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        (
            {"reads": 24, "filtered": 9, "read_bytes": 3 << 20, "spared_bytes": 1 << 20, "filter_s": 0.05},
            "filtering: rows for 9 of 24 chunks, 1 MiB (25% of all rows) not copied, in 50 ms",
        ),
        ({"reads": 24}, "filtering: none of 24 chunks, each receives all rows of an interval"),
        ({"reads": 24, "in_bytes": 0}, ""),
        ({}, ""),
    ],
)
def test_filtering(figures: dict[str, float], said: str) -> None:
    assert filter_text(step(**figures)) == said


def test_figures_of_an_earlier_version_are_those_of_one_device() -> None:
    old = {
        "intervals": 3, "vertices": 1000, "in_bytes": 2**20, "out_bytes": 2**19, "host_bytes": 0,
        "file_bytes": 0, "copy_s": 0.4, "compute_s": 0.5, "hidden_s": 0.1,
        "reads": 6, "filtered": 2, "spared_bytes": 2**20, "filter_s": 0.01,
    }  # fmt: skip
    words = ChunkSummary.from_stats("opencl:0", old)
    assert words.devices == {"opencl:0": "copying 0.4 s, 25% of it hidden behind 0.5 s of computing"}
    assert words.filtered == "filtering: rows for 2 of 6 chunks, 1 MiB not copied, in 10 ms"
    assert words.bound == ""


def test_what_the_host_reads_in_place_is_not_copied() -> None:
    words = ChunkSummary.from_stats("cpu:0", step(in_bytes=0, step_s=1.5, by_device={"cpu:0": PROCESSOR}))
    assert words.cut == (
        "4 x 4 chunks of 250 vertices · rows and edges read in place, 2 MiB of results copied per step"
    )
    assert words.devices == {"cpu:0": "computing 1.4 s on rows and edges in place, copying 20 ms of results"}


def test_loops_of_the_host_copy_nothing_at_all() -> None:
    figures = step(in_bytes=0, out_bytes=0, by_device={"cpu:0": work(0, 0, 0.0, 1.4, 0.0)})
    words = ChunkSummary.from_stats("cpu:0", figures)
    assert words.cut == "4 x 4 chunks of 250 vertices · rows and edges read in place"
    assert words.devices == {"cpu:0": "computing 1.4 s on rows and edges in place"}
