"""What the benchmarks in tools/bench/ share, and the comparison of two commits."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools" / "bench"))

from commits import CommitRun, CommitSide, summary, table, train
from source_tree import ROOT, environment_of, source_tree
from timed_runs import ChildFailed, child_record, settings, stage_ms, step_mean, timed_run

from hyrt.config import build_config
from hyrt.graph import open_graph


@pytest.fixture(scope="module")
def side(tmp_path_factory: pytest.TempPathFactory) -> CommitSide:
    return CommitSide("before", environment_of(ROOT, tmp_path_factory.mktemp("declared") / "before"))


def test_a_timed_run_is_stopped_and_told_step_by_step() -> None:
    graph = open_graph("synthetic:tiny")
    config = build_config(settings("gcn", epochs=50, hidden=16, batch=128, devices=["cpu:0"]))
    run = timed_run(config, graph, steps=6)
    assert 6 <= run.groups[-1].step < 6 + len(run.groups[-1].losses)
    assert len(run.step_s()) == run.groups[-1].step
    assert step_mean(run.groups, lambda group: group.step_s) == pytest.approx(statistics.fmean(run.step_s()))
    assert set(stage_ms(run.groups)) >= {"sample", "load", "transfer", "propagate", "synchronize"}


def test_a_child_that_fails_says_its_last_words() -> None:
    assert child_record([sys.executable, "-c", "print('first'); print('{\"ms\": 3}')"], "it") == {"ms": 3}
    with pytest.raises(ChildFailed, match=r"it failed:\n.*no such thing"):
        child_record([sys.executable, "-c", "import sys; sys.exit('no such thing')"], "it")


@pytest.mark.parametrize("full_graph", [False, True])
def test_a_run_is_read_from_its_folder(side: CommitSide, tmp_path: Path, full_graph: bool) -> None:
    side.check(ROOT, tmp_path)
    with pytest.raises(SystemExit, match="before: hyrt was imported from"):
        side.check(tmp_path, tmp_path)
    words = ["model.hidden=16", "fullgraph.chunks=2" if full_graph else "data.batch_size=128"]
    options = argparse.Namespace(epochs=1, threads=1, set=words, full_graph=full_graph)
    data = tmp_path / "data"
    side.hyrt(["data", "generate", "tiny", data], tmp_path)
    first, again = (train(side, "gcn", data, options) for _ in range(2))
    steps = 1 if full_graph else -(-len(open_graph(data).split("train")) // 128)
    assert len(first.losses) == 2 * steps
    assert first.losses == again.losses
    assert first.loss == again.loss
    assert first.mteps > 0
    assert 0 < first.test_accuracy <= 1


def test_ratios_are_of_throughputs_pair_by_pair() -> None:
    run = CommitRun("before", "gcn", 30.0, 4.0, 0.5, 0.9, (0.7, 0.5), "a processor")
    before = [replace(run, mteps=mteps) for mteps in (4.0, 5.0, 2.0)]
    after = [replace(run, side="after", mteps=mteps) for mteps in (4.0, 4.0, 3.0)]
    found = summary("gcn", before, after)
    assert found["ratios"] == [1.0, 0.8, 1.5]
    assert found["ratio"] == 1.0
    assert found["mteps"] == [4.0, 4.0]
    assert found["equal_losses"]
    assert "| 1.000 | 0.800 to 1.500 | 1.000, 0.800, 1.500 |" in table([found])
    after[1] = replace(after[1], losses=(0.7, 0.5000001))
    assert not summary("gcn", before, after)["equal_losses"]
    assert "| **no** |" in table([summary("gcn", before, after)])
    json.dumps(found)


def test_a_source_tree_is_a_folder_or_a_commit() -> None:
    with source_tree(str(ROOT)) as tree:
        assert tree == ROOT
    with pytest.raises(SystemExit, match="neither a source tree nor a commit"), source_tree("no-such-commit"):
        pass


def test_steps_of_a_full_graph_that_compute_nothing_still_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """The overhead of a small graph is what is left of a step: `tools/bench/overhead.py` measures it."""
    from full_graph import skip_computation

    import hyrt
    from hyrt.fullgraph.replica import FullGraphReplica

    monkeypatch.setattr(FullGraphReplica, "step", FullGraphReplica.step)
    skip_computation()
    heard: list[Any] = []
    settings: dict[str, Any] = {
        "train": {"epochs": 3},
        "evaluate": {"every": 0},
        "balance": {"predict": False},
    }
    hyrt.train("synthetic:tiny", "gcn", full_graph=True, emit=heard.append, devices=["cpu:0"], **settings)
    totals = [event.loss for event in heard if type(event).__name__ == "EpochEnded"]
    assert len(totals) == 3
    assert len(set(totals)) == 1
