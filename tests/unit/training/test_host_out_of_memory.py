"""A run that has no room in memory is told so before its weights are made."""

from __future__ import annotations

from typing import Any

import pytest

from hyrt.api import load, train
from hyrt.config import build_config
from hyrt.telemetry.events import Notice
from hyrt.training.prechecks import host_shortage
from hyrt.training.setup import PreparedRun, architecture

GRAPH = load("synthetic:tiny")
GIB = 2**30


def said(have_bytes: int, **settings: Any) -> str:
    config = build_config(settings)
    prepared = PreparedRun(config, GRAPH)
    return host_shortage(config, GRAPH, architecture(config, GRAPH), lambda: prepared.sampler, have_bytes)


def test_wide_rows_and_weights_are_told_with_their_bytes() -> None:
    wide = {"kind": "gcn", "hidden": 1_000_000}
    data = {"data": {"batch_size": 64}, "sampler": {"fanout": [3, 3]}}
    text = said(GIB, model=wide, **data)
    # (16 + 4) 10^6 weights of 4 bytes, six times: master and replica, their gradients, two moments.
    assert "optimizer 458 MiB" in text
    assert "but only 1 GiB are free" in text
    assert text.endswith(": lower model.hidden, data.batch_size or sampler.fanout")
    # Of the vertices of the step, which are few: those of the whole graph would need 15 GiB and more.
    assert said(12 * GIB, model=wide, **data) == ""
    text = said(GIB, model={"kind": "gcn", "hidden": 100_000, "layers": 3})
    # 100,000^2 of 4 bytes are 37.25 GiB.
    assert "optimizer 224 GiB" in text
    assert text.endswith(": lower model.hidden or model.layers")
    whole = said(4 * GIB, model=wide, sampler={"kind": "full"})
    # 2,000 rows of 4 * 10^6 bytes, twice.
    assert "rows of a step 14.9 GiB" in whole
    assert said(4 * GIB, model=wide, sampler={"kind": "full"}, fullgraph={"host_memory": "1GiB"}) == ""


@pytest.mark.parametrize("kind", ["graphsage", "gin", "gat", "ggnn"])
def test_usual_runs_are_told_nothing(kind: str) -> None:
    assert said(GIB, model={"kind": kind}) == ""


def test_a_run_tells_what_it_lacks_and_what_it_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyrt.training.build_run.free_memory", lambda: 2**10)
    heard: list[Any] = []
    train(GRAPH, {"kind": "gcn", "heads": 8, "hidden": 8}, train={"epochs": 1}, emit=heard.append)
    told = [event.text for event in heard if isinstance(event, Notice) and event.kind == "warning"]
    assert len(told) == 2
    assert told[1] == "model.heads=8 has no effect on gcn: only edge-gat, gat, hgt and rgat use it"
    assert "but only 1 KiB are free" in told[0]
