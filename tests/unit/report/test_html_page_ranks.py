"""The report of a run on several ranks: what each took and sent, against the records."""

from __future__ import annotations

from unit.report.test_html_page import line, record

from hyrt.report.html.page import purpose_rows, rank_rows, run_page


def of_rank(load: float, sent: dict[str, int]) -> dict[str, object]:
    stages = {"sample": 0.001, "load": load, "transfer": 0.0, "propagate": 0.004, "synchronize": 0.2}
    return {
        **{"host": "<one>", "pid": 7, "devices": ["cpu:0", "null:0"], "step_s": 0.25, "stage_s": stages},
        **{"memory_bytes": 2**30, "bytes_sent": sent, "bytes_received": {"rows": 2**20}},
    }


def test_each_rank_has_a_row_and_each_purpose_its_bytes() -> None:
    by_rank = [of_rank(0.002, {"rows": 2048, "gradients": 1024}), of_rank(0.006, {"rows": 4096, "models": 0})]
    figures = {"ranks": 2, "strategy": "home", "bounded_by": "load of rank 1", "by_rank": by_rank}
    run = record([line(1)], summary={"status": "finished", "distributed": figures})
    first, second = rank_rows(run)
    # All wait for the slowest while they synchronize.
    assert (first.longest, second.longest) == (3, 1)
    assert (first.sent, first.received, first.memory) == ("3 KiB", "1 MiB", "1 GiB")
    assert second.stages[1] == "6 ms"
    assert first.location == "<one>: cpu:0, null:0"
    assert purpose_rows(run) == [
        ("rows", ["2 KiB", "4 KiB"], "6 KiB"),
        ("gradients", ["1 KiB", "0 bytes"], "1 KiB"),
    ]
    page = run_page(run)
    assert (
        "2 ranks trained together (distributed.strategy=home). Their steps are bounded by load of rank 1."
        in (page)
    )
    assert page.count("&lt;one&gt;") == 2
    assert "<one>" not in page


def test_other_runs_have_no_ranks() -> None:
    assert rank_rows(record([line(1)])) == []
    assert "Ranks</h2>" not in run_page(record([line(1)]))
