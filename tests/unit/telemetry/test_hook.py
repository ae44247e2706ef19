"""What a run tells its hooks, and how hooks lie in one another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from graphs import random_graph
from trace_checks import Trace

from hyrt.config import build_config
from hyrt.telemetry.faults import FaultInjectionHook, parse_faults
from hyrt.telemetry.hooks import HOST, Hook, Site, call_with_hooks
from hyrt.training.build_run import build_run
from hyrt.training.train import Training

STEPS = 4


class Noting(Hook):
    """Notes the calls it is around, and what they return."""

    def __init__(self, name: str = "", order: list[str] | None = None) -> None:
        self.calls: list[tuple[str, Site, Any]] = []
        self._name = name
        self._order = [] if order is None else order

    def wrap_call(self, stage: str, site: Site, work: Callable[[], Any]) -> Any:
        self._order.append(f"{self._name} in")
        result = work()
        self._order.append(f"{self._name} out")
        self.calls.append((stage, site, result))
        return result


def train(folder: Path, *hooks: Hook, **runtime: Any) -> None:
    graph = random_graph()
    settings = {
        "data": {"batch_size": -(-len(graph.split("train")) // STEPS)},
        "sampler": {"fanout": [3, 3]},
        "model": {"hidden": 8},
        "train": {"epochs": 1},
        "devices": ["null:0", "null:1"],
        "balance": {"policy": "static", "predict": False},
        "runtime": runtime,
    }
    (folder / "checkpoints").mkdir()
    Training(build_run(build_config(settings), graph, checkpoints=folder / "checkpoints", hooks=hooks)).run()


def test_hooks_lie_in_one_another() -> None:
    order: list[str] = []
    hooks = [Noting("first", order), Noting("last", order)]
    assert call_with_hooks(hooks, "load", Site(HOST, 0), lambda: 7) == 7
    assert order == ["last in", "first in", "first out", "last out"]
    assert call_with_hooks([], "load", Site(HOST, 0), lambda: 8) == 8


def test_every_call_of_a_run_is_told_once(tmp_path: Path) -> None:
    noting = Noting()
    train(tmp_path, noting)
    counts = Counter(stage for stage, _, _ in noting.calls)
    of_trainers = dict.fromkeys(("sample", "load", "transfer", "propagate", "update"), 2 * STEPS)
    assert counts == {**of_trainers, "synchronize": STEPS, "evaluate": 1, "checkpoint": 1}
    for stage, site, result in noting.calls:
        assert (site.place == HOST) == (stage in ("synchronize", "evaluate", "checkpoint"))
        if stage == "propagate":
            assert site.place == f"null:{site.trainer}"
            assert site.units == result.counts["targets"]


def test_a_trace_shows_what_a_fault_does(tmp_path: Path) -> None:
    """Both hooks at once: the delay that is injected into a load is in its slice."""
    train(tmp_path, FaultInjectionHook(parse_faults("load:null:1:2:slow")), trace=True)
    trace = Trace.read(tmp_path / "trace.json.gz")
    took_us = {(e["args"]["trainer"], e["args"]["step"]): e["dur"] for e in trace.of("hyrt.load", "load")}
    assert len(took_us) == 2 * STEPS
    assert took_us["null:1", 2] >= 1e5
