"""Every cell of docs/compatibility.md: the combination trains, or one error names both parts and a remedy."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from graphs import random_graph, with_values
from hetero_cases import small_typed
from unit.distributed.ranks_in_threads import results_of
from unit.distributed.test_distributed_training import trained_on
from unit.distributed.test_full_graph_on_ranks import settings as full_graph_settings
from unit.distributed.test_full_graph_on_ranks import trained_on as trained_full_graph_on

import hyrt
from hyrt.config import build_config
from hyrt.config.compatibility import (
    FEATURES,
    check_compatibility,
    distributed_settings_refusal,
    list_features,
    sampler_component,
)
from hyrt.distributed.strategies.registry import find_rank_problem
from hyrt.errors import HyrtError
from hyrt.graph.graph import Graph
from hyrt.runtime.workers import Workers
from hyrt.sampling.sampler_settings import SamplerSettings
from hyrt.training.open_graph import link_graph
from tools.write_configuration_docs import refusals, setting_refusals

PLAIN = random_graph(60, 5, features=4)
WEIGHTED, HETERO = with_values(PLAIN), small_typed()
OWNERS = np.arange(60) % 2
LINKS = {"objective": "links"}
SAMPLERS_WITHOUT_FANOUT = {
    "saint": {"roots": 8},
    "fastgcn": {"layer_size": 16},
    "ladies": {"layer_size": 16},
    "cluster": {"parts": 4},
    "shadow": {"hop_neighbors": 2},
}
Settings = dict[str, Any]


def settings(**sections: Any) -> Settings:
    """Return settings of a small run; sections replace or extend the defaults below."""
    base = {
        "model": {"kind": "graphsage", "hidden": 8, "layers": 2},
        "train": {"epochs": 1},
        "balance": {"policy": "static", "predict": False},
        "evaluate": {"every": 0},
        "devices": ["cpu:0"],
    }
    return base | {
        name: {**base.get(name, {}), **value} if isinstance(value, dict) else value
        for name, value in sections.items()
    }


def sampler_settings(kind: str) -> Settings:
    """Return the sections `sampler` and `data` for small mini-batches of a kind of sampler."""
    if kind == "full":
        return {"sampler": {"kind": "full"}}
    options = SAMPLERS_WITHOUT_FANOUT.get(kind, {"fanout": [3, 2]})
    return {"sampler": {"kind": kind, **options}, "data": {"batch_size": 32}}


def train(graph: Graph, given: Settings) -> None:
    result = hyrt.train(graph, given["model"], **{k: v for k, v in given.items() if k != "model"})
    assert all(torch.isfinite(parameter).all() for parameter in result.model.parameters())


def train_on_ranks(graph: Graph, given: Settings, *, split: bool = False) -> None:
    config = build_config(given)
    assert find_rank_problem(config, has_split_edges=split) == ""
    graph = link_graph(config, graph) if config.train.predicts_links else graph
    results = results_of(2, lambda ranks: trained_on(ranks, graph, OWNERS, given, split=split))
    assert all(torch.isfinite(each).all() for result, _ in results for each in result.model.parameters())


def check_refusal(error: str, component: str, feature: str) -> None:
    """Check that a message names the component and the feature, and gives a remedy."""
    assert component in error
    assert re.search(r"does not support|does not declare", error), error
    assert FEATURES[feature].title.split()[0] in error or "=" in error
    assert re.search(r": (set|remove|use|train|partition|run) ", error), error
    assert "\n" not in error


CELLS = [
    (setting, kind, feature)
    for setting, kinds in refusals().items()
    for kind in kinds
    for feature in FEATURES
    if any(feature in refused for refused in kinds.values())
]


@pytest.mark.parametrize(("setting", "kind", "feature"), CELLS)
def test_a_cell_of_the_tables_holds(setting: str, kind: str, feature: str) -> None:
    is_refused = feature in refusals()[setting][kind]
    check = {"sampler.kind": check_sampler, "model.kind": check_model, "distributed.strategy": check_strategy}
    if not is_refused:
        check[setting](kind, feature)
        return
    with pytest.raises(HyrtError) as refused:
        check[setting](kind, feature)
    check_refusal(str(refused.value), f"{setting}={kind}", feature)


def check_sampler(kind: str, feature: str) -> None:
    graph = WEIGHTED if kind == "weighted" else PLAIN
    given = settings(**sampler_settings(kind))
    if feature == "hetero":
        train(HETERO, settings(**sampler_settings(kind), model={"kind": "rgcn"}))
    elif feature == "links":
        train(graph, settings(**sampler_settings(kind), train=LINKS))
    elif kind == "full":
        whole = full_graph_settings({"kind": "gcn"}, train={"epochs": 1})
        results_of(2, lambda ranks: trained_full_graph_on(ranks, graph, OWNERS, whole, split=True))
    else:
        assert feature == "split_edges"
        if problem := find_rank_problem(build_config(given), "model-centric", has_split_edges=True):
            raise HyrtError(problem)
        train_on_ranks(graph, given, split=True)


def check_model(kind: str, feature: str) -> None:
    graph = HETERO if feature == "hetero" else PLAIN
    options = {}
    if kind in ("gine", "edge-gat") and feature == "homogeneous":
        graph = with_values(PLAIN, 1)
        graph = replace(graph, topology=replace(graph.topology, edge_weights=None))
    if kind in ("ggnn", "gnn-film") and feature == "homogeneous":
        graph, options = with_edge_types(PLAIN), {"options": {"edge_types": 3}}
    model = {"kind": kind, "hidden": 8, "layers": 2, **options}
    if kind in ("gat", "edge-gat", "rgat", "hgt"):
        model["heads"] = 2
    train(graph, settings(model=model, **sampler_settings("neighbor")))


def check_strategy(name: str, feature: str) -> None:
    sections = {
        "links": {"train": LINKS},
        "subgraph_units": sampler_settings("saint"),
        "step_sampling": sampler_settings("ladies"),
        "remote_cache": {"distributed": {"cache": 0.5}},
        "comm_dtype": {"distributed": {"comm_dtype": "float16"}},
        "accelerated_ranks": {"devices": ["cpu:0", "cpu:1"]},
        "rank_shares": {"distributed": {"shares": [2, 1]}},
        "split_edges": {},
    }[feature]
    distributed = {"strategy": name, **sections.pop("distributed", {})}
    given = settings(**{**sampler_settings("neighbor"), **sections}, distributed=distributed)
    split = feature == "split_edges"
    if problem := find_rank_problem(build_config(given), has_split_edges=split):
        raise HyrtError(problem)
    train_on_ranks(PLAIN, given, split=split)


def with_edge_types(graph: Graph, num_types: int = 3) -> Graph:
    types = (np.arange(graph.num_edges) * 7 % num_types).astype(np.int32)
    return replace(graph, topology=replace(graph.topology, edge_types=types))


OTHER_SETTINGS: dict[str, Settings] = {
    "data.cache": {"data": {"cache": 0.5}},
    "data.feature_dtype": {"data": {"feature_dtype": "float16"}},
    "distributed.cache": {"distributed": {"cache": 0.5}},
    "train.objective=links": {"train": LINKS},
    "--full-graph on several ranks": {"sampler": {"kind": "full"}},
    "sampler.on_device=true": {"sampler": {"on_device": True}},
    "sampler.degrees=sampled": {"sampler": {"degrees": "sampled"}},
    "sampler.relation_fanout": {"sampler": {"relation_fanout": {"cites": 2}}},
}
FEATURE_SETTINGS: dict[str, Settings] = {
    "links": {"train": LINKS},
    "full_graph": {"sampler": {"kind": "full"}},
    "accelerated_full_graph": {"sampler": {"kind": "full"}, "devices": ["cpu:0", "cpu:1"]},
    "full_graph_ranks": {"sampler": {"kind": "full"}},
    "device_sampling": {"sampler": {"on_device": True}},
    "strategy": {"distributed": {"strategy": "hopgnn"}},
    "rank_shares": {"distributed": {"shares": [2, 1]}},
    "remote_cache": {"distributed": {"cache": 0.5}},
    "comm_dtype": {"distributed": {"comm_dtype": "float16"}},
    "shared_memory": {"distributed": {"shared_memory_features": False}},
}


def merge(first: Settings, second: Settings) -> Settings:
    return {
        name: {**first.get(name, {}), **second.get(name, {})}
        if isinstance(first.get(name, second.get(name)), dict)
        else second.get(name, first.get(name))
        for name in first | second
    }


@pytest.mark.parametrize(
    ("setting", "feature"),
    [(setting, feature) for setting, refused in setting_refusals().items() for feature in refused],
)
def test_a_setting_is_refused_with_a_feature(setting: str, feature: str) -> None:
    given = settings(**merge(OTHER_SETTINGS[setting], FEATURE_SETTINGS.get(feature, {})))
    with pytest.raises(HyrtError) as refused:
        train_with_feature(given, feature)
    name = setting.removesuffix(" on several ranks").partition("=")[0]
    check_refusal(str(refused.value), name, feature)


def train_with_feature(given: Settings, feature: str) -> None:
    """Train on a graph with the feature; raise the error of runs on ranks if the feature is one of these."""
    graph = {"hetero": HETERO, "homogeneous": PLAIN, "edge_weights": WEIGHTED}.get(feature)
    if graph is not None:
        train(graph, merge(given, {"model": {"kind": "rgcn" if feature == "hetero" else "gcn"}}))
    elif problem := find_rank_problem(build_config(given), has_split_edges=feature == "split_edges"):
        raise HyrtError(problem)


def test_a_hetero_graph_on_ranks_refuses_settings_of_partitioned_graphs() -> None:
    refusal = distributed_settings_refusal("mag, which every rank opens as a whole,")
    for feature in ("strategy", "rank_shares", "remote_cache", "comm_dtype", "shared_memory"):
        config = build_config(settings(model={"kind": "rgcn"}, **FEATURE_SETTINGS[feature]))
        with pytest.raises(
            HyrtError, match=r"mag, which .* does not support distributed.*: remove distributed"
        ):
            check_compatibility([refusal], list_features(config, HETERO))


@pytest.mark.parametrize("kind", [*SAMPLERS_WITHOUT_FANOUT, "labor", "weighted", "neighbor", "full"])
def test_every_sampler_passes_edge_types_on(kind: str) -> None:
    """Every edge of a block has the type that the graph stores for its ends."""
    graph = with_edge_types(WEIGHTED if kind == "weighted" else PLAIN)
    topology = graph.topology
    rows = np.repeat(np.arange(60), np.diff(topology.indptr))
    type_of = dict(
        zip(zip(rows.tolist(), topology.indices.tolist(), strict=True), topology.edge_types, strict=True)
    )
    assert len(type_of) == graph.num_edges, "the graph must not have parallel edges"
    variants = [{}, {"iterations": 2}] if kind == "labor" else [{}]
    for options in variants:
        given = merge(sampler_settings(kind), {"sampler": options})
        section: SamplerSettings = build_config(settings(**given)).sampler
        sampler = section.build(graph, np.arange(60), layers=2, batch_size=32, seed=1)
        for in_place in (False, True):
            with Workers(2, "test") as workers:
                batch = sampler.sample(0, sampler.units(0), workers, in_place=in_place)
                for block in batch.blocks:
                    sources = block.columns if block.sources is None else block.sources[block.columns]
                    ends = np.repeat(block.destinations, np.diff(block.indptr))
                    expected = [type_of[pair] for pair in zip(ends.tolist(), sources.tolist(), strict=True)]
                    assert block.num_edges > 0
                    np.testing.assert_array_equal(block.edge_types, expected)
                batch.release()
    train(graph, settings(model={"kind": "ggnn", "options": {"edge_types": 3}}, **sampler_settings(kind)))


class HalfDeclared(SamplerSettings):
    """Sampler settings of another package that declare nothing."""

    kind: str = "half"

    def build(self, graph: Graph, targets: Any, **options: Any) -> Any:
        raise AssertionError("the run is refused before")


def test_a_sampler_of_another_package_must_declare_support() -> None:
    features = list_features(build_config(settings(model={"kind": "rgcn"})), HETERO)
    with pytest.raises(HyrtError, match=r"does not declare .*add 'hetero' to `supports` of HalfDeclared"):
        check_compatibility([sampler_component(HalfDeclared())], features)


def test_remedies_are_alternatives_that_work() -> None:
    """Each kind that a message suggests supports all features of the run."""
    given = settings(**sampler_settings("saint"), train=LINKS)
    with pytest.raises(HyrtError) as refused:
        build_config(given)
    for kind in re.findall(
        r"\b(full|neighbor|labor|saint|shadow|cluster|ladies)\b", str(refused.value).split(":")[1]
    ):
        train(PLAIN, settings(**sampler_settings(kind), train=LINKS))
