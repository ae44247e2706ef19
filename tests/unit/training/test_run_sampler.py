"""What a sampler of a third party may get wrong ends the run with its kind, its package and the reason."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

import numpy as np
import pytest

from hyrt.config import build_config
from hyrt.errors import ConfigError, StageError
from hyrt.graph.graph import Graph
from hyrt.graph.source import open_graph
from hyrt.sampling.neighbor_sampler import NeighborSampler
from hyrt.sampling.sampler_settings import SamplerSettings
from hyrt.training.build_run import build_run
from hyrt.training.setup import build_sampler
from hyrt.training.train import Training


class Plain(SamplerSettings):
    """Neighbours, one of each vertex."""

    def build(self, graph: Graph, targets: Any, *, layers: int, batch_size: int, seed: int, **_: Any) -> Any:
        return NeighborSampler(graph, targets, [1] * layers, batch_size, seed)


class SaysFewer(Plain):
    def units_per_step(self, batch_size: int) -> int:
        return 7


class FailsToBuild(Plain):
    def build(self, *_: Any, **__: Any) -> Any:
        raise IndexError("no\n  such row")


class NotDescribed(Plain):
    def describe(self, layers: int, batch_size: int) -> str:
        raise KeyError("words")


class BuildsNothing(Plain):
    def build(self, *_: Any, **__: Any) -> Any:
        return None


class Altered(Plain):
    """Answers of its sampler in place of the right ones."""

    what: str = ""

    def build(self, *given: Any, **settings: Any) -> Any:
        sampler: Any = super().build(*given, **settings)
        first = sampler.units(0)
        answers: dict[str, Any] = {
            "none": ("sample", lambda *_, **__: None),
            "no steps": ("steps_per_epoch", lambda: 0),
            "no units": ("units", lambda step: np.empty(0, np.int32)),
            "more later": ("units", lambda step: np.arange(2 * len(first)) if step else first),
            "repeats": ("units", lambda step: np.resize(first[:2], len(first))),
        }
        name, answer = answers[self.what]
        setattr(sampler, name, answer)
        return sampler


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = (Plain, SaysFewer, FailsToBuild, NotDescribed, BuildsNothing, Altered)
    more = [EntryPoint(kind.__name__, f"{__name__}:{kind.__name__}", "hyrt.samplers") for kind in kinds]
    monkeypatch.setattr(
        "hyrt.runtime.entry_points.entry_points",
        lambda group: [*entry_points(group=group), *(more if group == "hyrt.samplers" else [])],
    )


def settings(kind: str, **more: Any) -> Any:
    sections = {"data": {"batch_size": 64}, "train": {"epochs": 1}, "runtime": {"pipelined": False}}
    return build_config({**sections, "sampler": {"kind": kind, **more}})


@pytest.mark.parametrize(
    ("kind", "more", "says"),
    [
        (
            "SaysFewer",
            {},
            "its first step has 64 units, but must have from 1 to 7 \\(its units_per_step\\)",
        ),
        ("FailsToBuild", {}, "build failed: IndexError: no such row$"),
        ("BuildsNothing", {}, "build must return a hyrt.sampling.sampler.Sampler, got NoneType$"),
        ("Altered", {"what": "no units"}, "its first step has 0 units, but"),
        ("Altered", {"what": "no steps"}, "steps_per_epoch must be at least 1, got 0$"),
    ],
)
def test_it_is_refused_where_it_is_built(kind: str, more: Any, says: str) -> None:
    graph = open_graph("synthetic:tiny")
    with pytest.raises(ConfigError, match=rf"^sampler.kind '{kind}' \(.*:{kind}\): {says}"):
        build_sampler(settings(kind, **more), graph, graph.split("train"))


def test_fewer_targets_than_a_step_has_are_a_step() -> None:
    graph = open_graph("synthetic:tiny")
    sampler = build_sampler(settings("Plain"), graph, graph.split("train")[:9])
    assert len(sampler.units(0)) == 9


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("none", "step 0: the sampler .*NeighborSampler returned NoneType, not a MiniBatch: return "),
        (
            "more later",
            "step 1: the sampler .* returned 128 units for step 1, more than the 64 that it declared: "
            "return fewer",
        ),
        (
            "repeats",
            r"step 0: the sampler .* returned invalid units for step 0: units contains \d+ twice: list each",
        ),
    ],
)
def test_the_sample_stage_is_where_its_answers_are_checked(what: str, says: str) -> None:
    parts = build_run(settings("Altered", what=what), open_graph("synthetic:tiny"))
    with pytest.raises(StageError, match=f"^error in sample on cpu at {says}"):
        Training(parts).run()


def test_what_it_says_of_itself_is_its_own() -> None:
    parts = build_run(settings("NotDescribed"), open_graph("synthetic:tiny"))
    with pytest.raises(ConfigError, match=r"'NotDescribed' \(.*: describe failed: KeyError: 'words'$"):
        Training(parts).run()
