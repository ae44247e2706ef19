"""Runs that predict links: equal to dense float64, for every split, resumed, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graphs import adjacency, dense_features, random_graph
from hyrt_devices.opencl import OpenclDevice
from unit.distributed.ranks_in_threads import results_of
from unit.distributed.test_distributed_training import trained_on

import hyrt
from hyrt.config import build_config
from hyrt.errors import ConfigError, DataError
from hyrt.graph.graph import Graph
from hyrt.graph.links.build_split import write_links
from hyrt.graph.topology import Topology
from hyrt.inference.infer import infer_layerwise
from hyrt.inference.output_links import write_link_scores
from hyrt.nn.link_gnn import LinkGNN
from hyrt.nn.model import GNN
from hyrt.objective.link_prediction import DECODERS, LinkPrediction
from hyrt.runtime.workers import Workers
from hyrt.training.build_run import build_run
from hyrt.training.checkpoint import load_newest_checkpoint, save_checkpoint
from hyrt.training.open_graph import LINKS, link_graph
from hyrt.training.setup import PreparedRun
from hyrt.training.train import Training

PLAIN = random_graph(100, 6, features=7)
ALONE = Workers(1, "test")


def settings(**sections: Any) -> dict[str, Any]:
    is_full = sections.get("sampler", {}).get("kind") == "full"
    return {
        "model": {"kind": "graphsage", "hidden": 6, "layers": 2, "dropout": 0.0},
        "sampler": {"fanout": [-1, -1]},
        **({} if is_full else {"data": {"batch_size": 100}}),
        "train": {"objective": "links", "epochs": 2, "optimizer": "SGD", "lr": 0.1, "weight_decay": 0.0},
        "balance": {"policy": "static", "predict": False},
        "devices": ["cpu:0"],
        # The weights of the last step, and not of the best epoch.
        "evaluate": {"every": 0},
        **sections,
    }


def trained(graph: Graph, **sections: Any) -> Any:
    config = build_config(settings(**sections))
    return Training(build_run(config, link_graph(config, graph))).run()


def weights_of(result: Any) -> np.ndarray:
    return torch.cat([p.detach().flatten().double() for p in result.model.parameters()]).numpy()


def dense_weights(graph: Graph, **sections: Any) -> np.ndarray:
    """The weights after all steps, by matrices of all vertices in float64."""
    config = build_config(settings(**sections))
    graph = link_graph(config, graph)
    prepared = PreparedRun(config, graph)
    model, objective, sampler = prepared.model.double(), prepared.objective, prepared.sampler
    assert isinstance(model, GNN)
    x, messages = torch.from_numpy(dense_features(graph)), adjacency(graph)
    epochs = config.train.epochs or 0
    for step in range(epochs * sampler.steps_per_epoch()):
        batch = sampler.sample(step, sampler.units(step), ALONE, in_place=False)
        pairs = batch.targets[batch.labels]
        left = messages.copy()
        if not config.sampler.is_full_graph:
            left[pairs[:, 0, 0], pairs[:, 0, 1]] = left[pairs[:, 0, 1], pairs[:, 0, 0]] = 0
        edges = torch.from_numpy(left)
        degrees, h = edges.sum(1, keepdim=True), x
        for i, layer in enumerate(model.layers):
            if config.model.kind == "gcn":
                scale = 1 / torch.sqrt(degrees + 1)
                h = (scale * (edges + torch.eye(len(x))) * scale.T) @ h
            else:
                h = torch.cat([h, edges @ h / degrees.clamp(min=1)], dim=1)
            h = h @ layer.weight.T + layer.bias
            h = h if i else h.relu()
        rows = model.head(h) if isinstance(model, LinkGNN) else h
        loss = objective.loss_sum(rows, torch.from_numpy(pairs.astype(np.int64)), None) / len(pairs)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient
    return torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()


CASES = {
    "dot": {},
    "gcn": {"model": {"kind": "gcn", "hidden": 6, "layers": 2, "dropout": 0.0}},
    "distmult": {"links": {"decoder": "distmult", "loss": "ranking", "negatives": "degree"}},
    "mlp": {"links": {"decoder": "mlp", "width": 4, "supervision": 0.5}},
    "full graph": {"sampler": {"kind": "full"}, "links": {"decoder": "mlp"}},
    "full graph, dot": {"sampler": {"kind": "full"}},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_weights_are_those_of_dense_float64_for_every_split(case: dict[str, Any]) -> None:
    wanted = dense_weights(PLAIN, **case)
    splits: list[dict[str, Any]] = [{}]
    if "sampler" not in case:
        splits.append({"devices": ["cpu:0", "cpu:1"], "split": [71, 29]})
    if case in (CASES["dot"], CASES["mlp"]) and OpenclDevice.probe():
        splits.append({"devices": ["cpu:0", "opencl:0"], "split": [31, 69]})
    for split in splits:
        result = trained(PLAIN, **case, **split)
        assert weights_of(result) == pytest.approx(wanted, rel=1e-4, abs=1e-5)
        assert set(result.metrics["val"]) == set(LinkPrediction.metrics)
        assert result.metrics["test"]["roc_auc"] > 0.3


def test_two_ranks_train_what_one_process_does() -> None:
    given = settings(
        sampler={"fanout": [3, 4]}, links={"decoder": "mlp", "negatives": "batch"}, evaluate={"every": 1}
    )
    given["balance"] = {"policy": "static", "predict": False}
    graph = link_graph(build_config(given), PLAIN)
    alone = trained(PLAIN, **given)
    homes = np.arange(100) % 3 % 2
    results = results_of(2, lambda ranks: trained_on(ranks, graph, homes, given)[0])
    for result in results:
        assert weights_of(result) == pytest.approx(weights_of(alone), rel=1e-5, abs=1e-5)
        for name, values in alone.metrics.items():
            assert result.metrics[name] == pytest.approx(values, abs=1e-4)


def test_a_resumed_run_is_bit_equal_and_its_links_are_those_of_the_folder(tmp_path: Path) -> None:
    graph = PLAIN
    sections = settings(sampler={"fanout": [3, 2]}, links={"decoder": "mlp", "negatives": "batch"})
    whole = hyrt.train(graph, folder=tmp_path / "whole", **sections)
    config = build_config(sections)
    split = link_graph(config, graph)
    first = Training(
        build_run(
            config.model_copy(update={"train": config.train.model_copy(update={"epochs": 1})}),
            split,
            checkpoints=tmp_path / "checkpoints",
        )
    )
    first.run()
    second = Training(build_run(config, split))
    second.resume(load_newest_checkpoint(tmp_path / "checkpoints", print))
    assert (weights_of(second.run()) == weights_of(whole)).all()
    loaded = hyrt.load_run(tmp_path / "whole", graph=graph)
    assert loaded.graph.links is not None
    assert split.links is not None
    assert loaded.graph.links.split.checksum == split.links.split.checksum
    assert loaded.graph.num_edges == split.num_edges < graph.num_edges
    other = Training(build_run(config, link_graph(build_config({**sections, "seed": 1}), graph)))
    with pytest.raises(hyrt.errors.CheckpointError, match="has different labels or links from the graph"):
        other.resume(load_newest_checkpoint(tmp_path / "checkpoints", print))


def without_labels(graph: Graph) -> Graph:
    """As an edge list is imported."""
    nothing = np.zeros(graph.num_vertices, np.bool_)
    vertices = replace(graph.vertices, labels=np.full(graph.num_vertices, -1), vertex_ids=None)
    return replace(graph, vertices=replace(vertices, masks=dict.fromkeys(("train", "val", "test"), nothing)))


def forget_edges(folder: Path) -> None:
    """Turn checkpoints into those of an earlier version, without the checksum of the edges."""
    saved = load_newest_checkpoint(folder / "checkpoints", print)
    state = {key: value for key, value in saved.state.items() if key != "edges"}
    saved.path.unlink()
    save_checkpoint(folder / "checkpoints", saved.step, state, keep=1)


@pytest.mark.parametrize("version", ["current", "earlier"])
def test_the_held_out_links_of_a_run_are_those_of_its_edges_only(tmp_path: Path, version: str) -> None:
    """Graphs without labels differ in nothing else."""
    graph, other = (without_labels(random_graph(100, 6, features=7, seed=seed)) for seed in (0, 8))
    other = other.with_features(graph.features)
    hyrt.train(graph, folder=tmp_path, **settings())
    if version == "earlier":
        forget_edges(tmp_path)
    own, foreign = (hyrt.load_run(tmp_path, graph=each).graph for each in (graph, other))
    assert own.num_edges < graph.num_edges
    assert foreign.num_edges == other.num_edges
    assert foreign.links is not None
    assert not foreign.links.held_out


def test_a_run_is_not_resumed_on_other_edges(tmp_path: Path) -> None:
    config, more = build_config(settings()), PLAIN.topology
    hyrt.train(PLAIN, folder=tmp_path, **settings())
    training = link_graph(config, PLAIN)
    indptr = more.indptr.copy()
    indptr[-1] -= 1
    changed = replace(PLAIN, topology=Topology(indptr, more.indices[:-1]))
    changed = link_graph(config, changed, tmp_path / LINKS)
    newest = load_newest_checkpoint(tmp_path / "checkpoints", print)
    Training(build_run(config, training)).resume(newest)
    with pytest.raises(hyrt.errors.CheckpointError, match=r"has different edges from the graph that .*step-"):
        Training(build_run(config, changed)).resume(newest)
    # The vertices of the held-out links are gone.
    fewer = random_graph(20, 6, features=7)
    with pytest.raises(
        DataError, match=r"the held-out links of the run do not fit random, .*: vertex \d+ in"
    ):
        link_graph(config, fewer, tmp_path / LINKS)
    forget_edges(tmp_path)
    Training(build_run(config, changed)).resume(load_newest_checkpoint(tmp_path / "checkpoints", print))


def test_the_links_of_a_run_on_reordered_data_are_those_of_the_dataset(tmp_path: Path) -> None:
    """In its folder, as a file for other runs, and for the dataset in its original order."""
    ids = np.random.default_rng(5).permutation(PLAIN.num_vertices)
    graph = replace(PLAIN, vertices=replace(PLAIN.vertices, vertex_ids=ids))
    places = graph.vertices.positions
    assert places is not None
    hyrt.train(graph, folder=tmp_path, **settings())
    split = link_graph(build_config(settings()), graph).links
    assert split is not None
    file = tmp_path / LINKS
    by_file = build_config(settings(links={"split": str(file)}))
    for found in (link_graph(by_file, graph), hyrt.load_run(tmp_path, graph=graph).graph):
        assert found.links is not None
        assert found.links.split.checksum == split.split.checksum
        assert not found.links.split.warnings
    edges = adjacency(PLAIN)[places][:, places] > 0
    rows, sources = np.nonzero(edges)
    indptr = np.concatenate([[0], np.cumsum(edges.sum(1))]).astype(np.int64)
    original = replace(PLAIN, topology=Topology(indptr, sources.astype(np.int32)))
    held_out = link_graph(by_file, original).links
    assert held_out is not None
    assert len(rows) == PLAIN.num_edges
    assert edges[tuple(held_out.split.held_out["test"].links.T)].all()
    # The file of an earlier version has current numbers, which are right for its run alone.
    write_links(file, split.split)
    found = link_graph(build_config(settings()), graph, file)
    assert found.fingerprint == graph.fingerprint_with(split.split)
    with pytest.raises(DataError, match=r"links\.npz: \d+ of \d+ links are not edges of random: use a file"):
        link_graph(by_file, graph)


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"sampler": {"kind": "saint"}}, r"sampler\.kind=saint does not support train\.objective=links"),
        ({"sampler": {"on_device": True}}, r"sampler\.on_device=true does not support train"),
        (
            {"sampler": {"kind": "full"}, "links": {"exclude": "both"}},
            "would leave no edges with --full-graph",
        ),
        (
            {"sampler": {"kind": "full"}, "devices": ["cpu:0", "cpu:1"]},
            "--full-graph on cpu:0 and cpu:1: set devices=cpu",
        ),
        ({"train": {"objective": "auto"}, "links": {"decoder": "mlp"}}, r"links\.decoder has no effect"),
        ({"links": {"negatives": "given"}}, r"set links\.split=FILE\.npz"),
        ({"links": {"val": 0.5, "test": 0.5}}, "leave no links to train on"),
        ({"links": {"candidates": 0}}, "must be an integer of at least 1, or all"),
    ],
    ids=str,
)
def test_what_links_do_not_do_is_refused_in_one_line(sections: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        trained(PLAIN, **sections)
    assert "\n" not in str(caught.value)


def test_the_model_of_embeddings_has_the_parameters_of_the_model_of_links() -> None:
    """All but those of the decoder's head: layers, norms, shortcuts, and the input of a
    heterogeneous graph.
    """
    typed = hyrt.load("synthetic:hetero,vertices=60,edges=300")
    for graph, kind, links in ((PLAIN, "graphsage", {}), (typed, "rsage", {"relation": "writes"})):
        model = {"kind": kind, "hidden": 6, "layers": 3, "norm": "layer", "residual": True}
        config = build_config(
            settings(model=model, links={"decoder": "mlp", **links}, sampler={"fanout": [2, 2, 2]})
        )
        whole = PreparedRun(config, link_graph(config, graph)).model
        assert isinstance(whole, LinkGNN)
        plain = whole.embedding_model()
        assert len(plain.shortcuts) == 2
        wanted = {id(p) for name, p in whole.named_parameters() if not name.startswith("head.")}
        assert {id(p) for p in plain.parameters()} == wanted


def test_scores_of_pairs_are_written_in_pieces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("hyrt.inference.output_links._NPY_PAIRS_PER_WRITE", 3)
    config = build_config(settings(links={"decoder": "mlp"}))
    graph = link_graph(config, PLAIN)
    model = PreparedRun(config, graph).model
    assert isinstance(model, GNN)
    pairs = np.random.default_rng(0).integers(0, 100, (11, 2))
    score = DECODERS["mlp"].score
    file = tmp_path / "scores.npy"
    assert write_link_scores(file, model, graph, pairs, score, ALONE, memory_bytes=1 << 24) == 11
    rows = torch.from_numpy(infer_layerwise(model, graph, np.arange(100), ALONE, memory_bytes=1 << 24))
    wanted = [float(score(rows[u], rows[v])) for u, v in pairs]
    assert np.load(file).tolist() == pytest.approx(wanted, rel=1e-6)
    assert len(set(wanted)) == 11


@pytest.mark.parametrize(("lr", "learns"), [(1e-9, False), (0.05, True)])
def test_links_that_are_not_learned_are_warned_of(lr: float, learns: bool) -> None:
    graph = hyrt.load("synthetic:tiny,vertices=300")
    heard: list[Any] = []
    hyrt.train(
        graph,
        {"kind": "gcn", "hidden": 8, "dropout": 0.0},
        emit=heard.append,
        train={"objective": "links", "epochs": 5, "lr": lr, "weight_decay": 0.0},
        links={"decoder": "mlp"},
        data={"batch_size": 100},
        balance={"policy": "static", "predict": False},
        devices=["cpu:0"],
        evaluate={"every": 0},
    )
    said = [event.text for event in heard if getattr(event, "kind", "") == "warning"]
    assert [text for text in said if "is not learning. Lower train.lr (now" in text] == (
        [] if learns else said
    )
    assert learns or len(said) == 1
